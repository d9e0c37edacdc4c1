"""What is said about each store above a list: which one is down and what was last known of it, in whose words, and its cautions."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.db.backends.signals import connection_created
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pytest_django import Settings

from actions.errors import StoreUnavailable
from actions.queries import IN_DOUBT, StoreStatus
from actions.records import StoreCheck
from actions.store.memory import MemoryStore
from console import checks, stores
from console.forms import QueueFilters
from console.models import KnownCount
from console.services import known_counts
from console.services.tokens import create_user_token
from console.store_news import PLAIN
from tests.console.conftest import Api, Cast, MemoryWriter
from tests.console.test_commands import run
from tests.console.view_helpers import HTMX, browser, path_of, text_of
from tests.recall_writer import RecordWriter

pytestmark = pytest.mark.django_db

CAUTION = "This store cannot fence <b>anybody</b>"
REASON = "connection to 10.0.0.7 refused"


@pytest.fixture(autouse=True)
def _asked_anew() -> None:
    checks.forget()


class Store(MemoryStore):
    """A memory store that can be switched off, whose leases can be hidden, and that can have cautions."""

    is_away = False
    cautions: tuple[str, ...] = ()

    def __getattribute__(self, name: str) -> Any:
        if name in ("read_actions", "list_entries", "get_action", "find_lease", "read_watch") and self.is_away:
            raise StoreUnavailable(self.name, REASON)
        return super().__getattribute__(name)

    def check(self) -> StoreCheck:
        if self.is_away:
            return StoreCheck(is_reachable=False, why_not=REASON)
        return StoreCheck(server="memory", is_reachable=True, is_prepared=True, can_settle=True, cautions=self.cautions)


Pair = dict[str, MemoryWriter]


@pytest.fixture
def pair(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    """Two stores, `east` and `west`."""
    settings.ACTION_STORES = {"east": "memory:", "west": "memory:"}
    monkeypatch.setattr(stores, "open_store", lambda url, name, entries_url: Store(name))
    stores.reset()
    yield {name: MemoryWriter(stores.get_store(name)) for name in ("east", "west")}  # type: ignore[arg-type]
    stores.reset()


def switch(writer: MemoryWriter, *, away: bool) -> None:
    assert isinstance(writer.kept, Store)
    writer.kept.is_away = away
    checks.forget()


def get(user: User, path: str = "/", **headers: str) -> str:
    return text_of(browser(user).get(path, headers=headers).content.decode())


def api(user: User) -> Api:
    return Api(create_user_token(user))


# --- last known ------------------------------------------------------------------------------------------------------


def test_a_store_that_is_down_is_shown_with_what_was_last_known_of_it_also_after_a_restart(pair: Pair, ana: User) -> None:
    pair["east"].action("a-1", 1)
    for seq in range(1, 13):
        pair["west"].action("b-1", seq)
    pair["west"].action("b-1", 13, cls="pure")
    assert "Last known" not in get(ana)
    KnownCount.objects.filter(store="west").update(counted_at=timezone.now() - timedelta(minutes=4, seconds=5))
    switch(pair["west"], away=True)
    known_counts.forget()

    said = get(ana)

    at = KnownCount.objects.get(store="west").counted_at.strftime("%H:%M UTC")
    assert f"Store west does not answer. {REASON}. Its actions are missing below." in said
    assert re.search(rf"Last known: 12 in doubt, at (\d+ \w+ )?{at} \(4 min ago\)\.", said)
    assert "In doubt 1 + ?" in said
    assert "Last known: 12 in doubt" in get(ana, "/stores/")
    assert "nobody knows whether there are any" not in said
    switch(pair["west"], away=False)
    assert "Last known" not in get(ana) + get(ana, "/stores/")


def test_the_count_is_of_the_queue_as_it_opens() -> None:
    filters = QueueFilters({})
    assert filters.is_valid()
    assert filters.to_filter() == IN_DOUBT


def test_a_count_is_not_told_to_those_limited_to_tools(pair: Pair, person: Cast, ben: User) -> None:
    tim = person("tim", ("viewer", "west", "send_email"))
    pair["west"].action("b-1", 1)
    get(ben)
    switch(pair["west"], away=True)

    for path in ("/", "/stores/"):
        assert "Last known: 1 in doubt" in get(ben, path)
        said = get(tim, path)
        assert "west" in said
        assert "Last known" not in said
        assert "in doubt, at" not in said
    _, body = api(ben).get("actions")
    assert body["problems"][0]["last_known"]["in_doubt"] == 1
    status, body = api(tim).get("actions")
    assert (status, body["problems"]) == (503, [{"store": "west", "detail": PLAIN, "last_known": None}])


def test_nothing_is_claimed_of_a_store_that_never_answered(memory: RecordWriter, down: str, ana: User) -> None:
    said = get(ana)

    assert "nobody knows whether there are any" in said
    assert "Last known" not in said
    assert not KnownCount.objects.filter(store=down).exists()


def statuses(count: int, *, is_truncated: bool = False) -> list[StoreStatus]:
    return [StoreStatus(name="main", in_doubt=count, is_truncated=is_truncated), StoreStatus(name="gone", problem="x")]


def test_a_count_is_written_when_it_is_news_and_not_at_every_request(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(known_counts.time, "monotonic", lambda: now[0])

    def writes(count: int, *, after: float = 0.0, **more: bool) -> int:
        now[0] += after
        with CaptureQueriesContext(connection) as queries:
            known_counts.remember(statuses(count, **more))
        return len(queries)

    assert [writes(12), writes(12), writes(12, after=59), writes(12, after=2)] == [1, 0, 0, 1]
    assert [writes(13, after=4), writes(13, after=2), writes(13, is_truncated=True, after=5)] == [0, 1, 1]
    row = KnownCount.objects.get()
    assert (row.store, row.in_doubt, row.is_capped) == ("main", 13, True)


def test_the_same_count_from_another_process_leaves_the_row_alone_for_a_minute(db: None) -> None:
    def at(count: int) -> Any:
        known_counts.forget()
        known_counts.remember(statuses(count))
        return KnownCount.objects.get().counted_at

    first = at(12)
    assert at(12) == first
    KnownCount.objects.update(counted_at=first - timedelta(seconds=61))
    second = at(12)
    assert second > first
    assert at(11) > second


def test_a_read_that_cannot_tell_leaves_what_is_known(memory: RecordWriter, ana: User) -> None:
    memory.action("a-1", 1)
    get(ana)
    for query in ("/?agent=nobody", "/?state=done&class=any"):
        known_counts.forget()
        get(ana, query)
        assert KnownCount.objects.get().in_doubt == 1


# --- in whose words --------------------------------------------------------------------------------------------------


def test_a_stores_own_words_are_for_those_who_settle_or_run_it(pair: Pair, person: Cast) -> None:
    ref = pair["west"].action("b-1", 1)
    switch(pair["west"], away=True)
    paths = ("/", "/history/", "/stores/", path_of(ref), "/agents/west/b-1/")
    for name, role, is_told in (
        ("vic", "viewer", False),
        ("adi", "auditor", False),
        ("olga", "operator", True),
        ("amy", "admin", True),
    ):
        user = person(name, (role, "west", ""))
        for path in paths:
            said = get(user, path)
            assert (REASON in said) == is_told, (role, path)
            assert "west" in said
    other = person("otto", ("operator", "east", ""), ("viewer", "west", ""))
    assert REASON not in "".join(get(other, path) for path in paths)
    assert "Those who settle or run it can see why." in get(other)
    for path in ("actions", "actions?store=west", "audit", "actions/west/b-1/1"):
        status, body = api(other).get(path)
        assert REASON not in str(body), path
        assert status in (200, 503)


# --- side by side ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "method"),
    [("/", "read_actions"), ("/", "check"), ("/history/", "list_entries"), ("/history/", "check"), ("/stores/", "check")],
)
def test_every_store_is_asked_before_any_answers(
    pair: Pair, ana: User, monkeypatch: pytest.MonkeyPatch, path: str, method: str
) -> None:
    together, real = threading.Barrier(2), getattr(Store, method)

    def waits(self: Store, *args: Any, **kwargs: Any) -> Any:
        together.wait(timeout=30)
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Store, method, waits)

    assert browser(ana).get(path).status_code == 200


def test_no_thread_that_asks_a_store_opens_a_connection_of_the_console(pair: Pair, ana: User, dot: User) -> None:
    pair["east"].action("a-1", 1, args={"body": "x" * 9000})
    pair["west"].action("a-1", 1, args={"body": "x" * 9000})
    opened_in: set[int] = set()

    def note(**_: object) -> None:
        opened_in.add(threading.get_ident())

    connection_created.connect(note)
    try:
        for user in (ana, dot):
            for path in ("/", "/history/", "/stores/"):
                browser(user).get(path)
    finally:
        connection_created.disconnect(note)
    assert opened_in <= {threading.get_ident()}


# --- cautions --------------------------------------------------------------------------------------------------------


def test_a_caution_stands_on_every_screen_of_its_store_and_on_no_other(pair: Pair, ana: User, ben: User) -> None:
    assert isinstance(pair["west"].kept, Store)
    pair["west"].kept.cautions = (CAUTION, "And settle slowly.")
    east, west = pair["east"].action("a-1", 1), pair["west"].action("a-1", 1)
    client = browser(ana)
    run("settle", "west", "a-1", "1", "done", "--reason", "seen", "--user", "ana")
    pair["west"].action("a-1", 2)

    def times(path: str, **headers: str) -> int:
        html = client.get(path, headers=headers).content.decode()
        assert "<b>anybody</b>" not in html
        assert text_of(html).count("And settle slowly.") == text_of(html).count(CAUTION)
        return text_of(html).count(CAUTION)

    assert [times("/"), times("/", **HTMX), times("/?store=west"), times("/?store=east")] == [1, 1, 1, 0]
    assert times("/?state=done&class=any") == 1
    assert times("/agents/west/a-1/") == times("/stores/") == times("/history/?store=west") == times("/history/west/1/") == 1
    assert times(path_of(west, "arguments/")) == times(path_of(west, "status/"), **HTMX) == 1
    second = path_of(west).replace("/1/", "/2/")
    assert times(second) == 2  # at the head, and above the decision
    empty = client.post(f"{second}decision/", {"outcome": "done"}, headers=HTMX)
    assert (empty.status_code, text_of(empty.content.decode()).count(CAUTION)) == (422, 1)
    assert "In store west" not in get(ben, path_of(east))
    for path in (path_of(east), "/agents/east/a-1/", "/history/", "/history/?store=east", path_of(east, "arguments/")):
        assert times(path) == 0


def test_cautions_are_said_at_a_shell_too(pair: Pair, ana: User) -> None:
    assert isinstance(pair["west"].kept, Store)
    pair["west"].kept.cautions = (CAUTION,)
    pair["west"].action("a-1", 1)

    assert f"west: caution: {CAUTION}" in run("check_stores").out.splitlines()
    said = run("settle", "west", "a-1", "1", "done", "--reason", "seen", "--user", "ana")
    assert (said.code, said.err) == (0, f"caution: {CAUTION}\n")


# --- leases that cannot be read --------------------------------------------------------------------------------------


def test_unclear_is_explained_where_no_lease_can_be_read(pair: Pair, ana: User) -> None:
    pair["west"].kept.leases_known = False
    pair["west"].lease("a-1", state="live")
    ref = pair["west"].action("a-1", 1)
    pair["east"].lease("a-1", state="live")
    other = pair["east"].action("a-1", 1, cls="idempotent")

    said = get(ana, path_of(ref))
    assert "unclear nobody can tell whether its process is alive" in said
    assert "Lease cannot be read in this store" in said
    assert "never taken" not in said
    assert "cannot be read in this store: nobody can tell" in get(ana, "/agents/west/a-1/")
    assert "Leases cannot be read here." in get(ana, "/stores/")
    assert "unclear may be left over from an earlier process" in get(ana, path_of(other))


# --- filters ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/?store=nowhere", "/history/?store=nowhere", "/history/?kind=bogus", "/?store=east,nowhere"])
def test_a_filter_that_names_what_is_not_there_is_refused_and_never_answered_with_nothing(
    pair: Pair, ana: User, path: str
) -> None:
    response = browser(ana).get(path)

    assert response.status_code == 400
    said = text_of(response.content.decode()).lower()
    assert ("no store is called 'nowhere' here; there are east, west" in said) == ("kind" not in path)
    assert ("no kind of entry is called 'bogus'; there are settled, " in said) == ("kind" in path)


def test_a_kind_that_is_not_there_is_refused_by_the_api(pair: Pair, ana: User) -> None:
    status, body = api(ana).get("audit", kind="bogus")
    assert (status, body["error"]) == (422, "invalid")
    assert "no kind of entry is called 'bogus'" in body["detail"]
    assert api(ana).get("audit", kind="settled")[0] == 200


# --- paging back -----------------------------------------------------------------------------------------------------


def test_pages_lead_back_as_well_as_on(pair: Pair, ana: User) -> None:
    for seq in range(1, 61):
        pair["east"].action("a-1", seq, args={"to": f"e{seq}@example.com"})
        pair["west"].action("a-1", seq, args={"to": f"w{seq}@example.com"})
    client = browser(ana)

    def follow(html: str, rel: str) -> str:
        link = re.search(rf'<a href="(\?[^"]*cursor=[^"]*)" rel="{rel}">', html)
        assert link is not None
        return client.get("/" + link[1].replace("&amp;", "&")).content.decode()

    def refs(html: str) -> list[str]:
        return re.findall(r'data-pane="([^"]*)"', html)

    first = client.get("/").content.decode()
    second = follow(first, "next")
    third = follow(second, "next")

    assert [len(refs(html)) for html in (first, second, third)] == [50, 50, 20]
    assert refs(follow(third, "prev")) == refs(second)
    assert refs(follow(second, "prev")) == refs(first)
    assert 'rel="prev"' not in first
    assert 'rel="next"' not in third
    assert "First page" in text_of(third)


def test_a_page_whose_rows_have_all_ended_leads_back(memory: RecordWriter, ana: User) -> None:
    for seq in range(1, 52):
        memory.action("a-1", seq)
    client = browser(ana)
    following = re.search(r'href="(\?[^"]*)" rel="next"', client.get("/").content.decode())
    assert following is not None
    memory.action("a-1", 51, status="done")

    html = client.get("/" + following[1].replace("&amp;", "&")).content.decode()

    assert "Nothing is left on this page." in text_of(html)
    assert "Nothing is in doubt" not in text_of(html)
    assert 'rel="prev"' in html


# --- commands --------------------------------------------------------------------------------------------------------


def test_open_actions_says_what_was_last_known_and_keeps_to_one_line(pair: Pair, ana: User) -> None:
    pair["west"].action("b-1", 1)
    get(ana)
    KnownCount.objects.filter(store="west").update(counted_at="2026-11-29T18:20:00Z")
    switch(pair["west"], away=True)

    said = run("open_actions")

    assert (said.code, said.out) == (1, "")
    assert re.fullmatch(
        rf"store west: {re.escape(REASON)} \(last known: 1 in doubt, at 2026-11-29 18:20 UTC, \d+ \w+ ago\)", said.err
    )
