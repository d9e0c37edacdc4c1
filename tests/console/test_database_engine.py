"""Django's engine: a page waits once for a database that says nothing, then nobody for a while; connections are few, kept, and never half used."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory

from actions.store.deadlines import LeftAlone, for_read
from console.database import base
from console.database.base import DatabaseWrapper, answered_within
from console.middleware import Deadlines
from tests.store.test_postgres_deadlines import Proxy

pytestmark = pytest.mark.django_db


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with closing(Proxy(connection.settings_dict["HOST"], int(connection.settings_dict["PORT"]))) as between:
        yield between


Open = Callable[..., DatabaseWrapper]


@pytest.fixture
def far(proxy: Proxy) -> Iterator[Open]:
    """The console's database, through the proxy: each call is what another thread of one process would use."""
    opened: list[DatabaseWrapper] = []

    def open_(**pool: Any) -> DatabaseWrapper:
        options = connection.settings_dict["OPTIONS"] | {"sslmode": "disable", "gssencmode": "disable", "connect_timeout": "2"}
        options["pool"] = {"max_size": 2, "timeout": 0.2, "pause_s": 60.0, **pool}
        there = {"HOST": "127.0.0.1", "PORT": str(proxy.port), "OPTIONS": options}
        opened.append(DatabaseWrapper({**connection.settings_dict, **there}, alias="far"))
        return opened[-1]

    yield open_
    for one in opened:
        one.close()
        one.close_pool()


def ask(database: DatabaseWrapper, statement: str = "SELECT pg_backend_pid()") -> Any:
    with database.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchone()[0]


def test_a_page_waits_for_one_answer_and_the_next_page_for_none(proxy: Proxy, far: Open) -> None:
    database, idle = far(), far()
    ask(idle)
    ask(database)
    idle.close()
    proxy.swallows.set()

    with answered_within(0.3):
        with pytest.raises(OperationalError, match="did not answer within 0.3 s"):
            ask(database)
        with pytest.raises(OperationalError, match="the connection is closed"):  # the page's other statements
            ask(database)
        database.close()
        before = proxy.accepted
        with pytest.raises(OperationalError, match="the database did not answer a moment ago"):
            ask(database)

    assert proxy.accepted == before
    # What was kept is as dead, and nobody is given it.
    assert database.pool._own().idle == []


def test_once_it_answers_again_pages_go_on(proxy: Proxy, far: Open) -> None:
    database = far(pause_s=0.0)
    ask(database)
    proxy.swallows.set()
    with answered_within(0.3), pytest.raises(OperationalError):
        ask(database)
    database.close()

    proxy.swallows.clear()

    assert ask(database)


def test_before_a_change_a_kept_connection_is_asked_whether_it_is_there(
    proxy: Proxy, far: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a change asks may wait for locks far longer than a page waits for an answer."""
    monkeypatch.setattr(base, "ANSWER_S", 0.3)
    database = far()
    ask(database)
    database.close()
    proxy.swallows.set()

    with answered_within(60), pytest.raises(OperationalError, match=r"did not answer within 0\.3 s"):
        ask(database)


def test_outside_of_a_page_a_statement_takes_its_time(far: Open) -> None:
    database = far()
    with answered_within(0.2), pytest.raises(OperationalError, match=r"did not answer within 0\.2 s"):
        ask(database, "SELECT pg_sleep(0.6)")
    database.close()

    patient = far(pause_s=0.0)
    assert patient.pool is database.pool
    patient.pool._by_process.clear()  # as another process: nothing is known of a silence
    assert ask(patient, "SELECT pg_sleep(0.6)") == ""


def test_a_connection_is_kept_and_one_that_was_in_the_middle_of_something_is_not(far: Open) -> None:
    database = far()
    first = ask(database)
    database.close()
    assert ask(database) == first

    database.connection.autocommit = False
    ask(database)
    database.close()

    assert ask(database) != first


def test_a_kept_connection_that_the_server_ended_is_replaced_unseen(far: Open) -> None:
    database = far()
    first = ask(database)
    kept = database.connection
    database.close()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", [first])
    while not base.has_news(kept):
        pass

    with answered_within(base.ANSWER_S):
        assert ask(database) != first


def test_no_more_are_opened_than_there_are_places_and_each_is_given_back(far: Open) -> None:
    one, two, three = far(), far(), far()
    assert len({ask(one), ask(two)}) == 2

    with pytest.raises(OperationalError, match="all 2 connections of this process were busy for 0.2 s"):
        ask(three)

    one.close()
    assert ask(three)


def test_one_that_was_forgotten_frees_its_place_and_one_that_was_given_back_frees_it_once(far: Open) -> None:
    one, two = far(), far()
    ask(one)
    ask(two)
    one.connection = None  # as a thread leaves it whose request was broken off
    gc.collect()
    two.close()

    three, four, five = far(), far(), far()
    assert len({ask(three), ask(four)}) == 2
    with pytest.raises(OperationalError, match="all 2 connections of this process were busy"):
        ask(five)


@pytest.mark.parametrize(("method", "answer_s", "reads_end"), [("GET", base.ANSWER_S, True), ("POST", base.CHANGE_S, False)])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_request_has_one_deadline_and_nothing_after_it_has(
    method: str, answer_s: float, reads_end: bool, is_async: bool
) -> None:
    seen: list[tuple[float, bool]] = []

    def view(request: HttpRequest) -> HttpResponse:
        seen.append((base._answer_s.get(), for_read(1_000) < 1_000))
        return HttpResponse()

    async def later(request: HttpRequest) -> HttpResponse:
        return view(request)

    request = RequestFactory().generic(method, "/")
    if is_async:
        asyncio.run(Deadlines(later)(request))
    else:
        Deadlines(view)(request)

    assert seen == [(answer_s, reads_end)]
    assert for_read(1_000) == 1_000
    assert base._answer_s.get() > 1_000


def test_every_page_has_it(memory: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything asks for the session."""
    seen: list[float] = []

    def look(request: HttpRequest) -> None:
        seen.append(base._answer_s.get())

    monkeypatch.setattr("console.middleware.IdleTimeout.process_request", lambda self, request: look(request))
    Client().get("/login/")
    Client().get("/")

    assert seen == [base.ANSWER_S] * 2


def test_the_time_of_a_page_is_one_for_all_stores_that_it_reads() -> None:
    from actions.side_by_side import ask_each
    from actions.store.deadlines import reads_within

    def is_refused(_: int) -> bool:
        try:
            for_read(10)
        except LeftAlone:
            return True
        return False

    with reads_within(0):
        assert ask_each([1, 2, 3], is_refused) == (True, True, True)
    assert ask_each([1, 2, 3], is_refused) == (False, False, False)


def test_a_connection_closed_in_a_transaction_that_had_asked_nothing_begins_anew(far: Open) -> None:
    """psycopg sends BEGIN with the first statement, so it is idle; whoever is given it next must not stand in that transaction."""
    database = far()
    pid = ask(database)
    database.set_autocommit(False)
    database.close()

    other = far()

    assert ask(other) == pid
    assert other.get_autocommit()
    with answered_within(60):
        assert ask(far()) != pid
    other.close()
    with answered_within(60):
        assert ask(far()) == pid
