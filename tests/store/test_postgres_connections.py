"""Addresses, lost connections, forks, and errors in words that hold no password."""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.parse import quote, urlsplit

import psycopg
import pytest

from actions.errors import LeaseLive, StoreError, StoreUnavailable, StoreUnusable
from actions.records import ActionRef, ActionStatus, NewEntry
from actions.store import open_store
from actions.store.memory import MemoryStore
from actions.store.postgres import PostgresStore
from local import postgres
from local.postgres import Postgres
from tests.recall_writer import RecallWriter
from tests.store.gestures import decide, race, until
from tests.store.test_postgres_all_or_nothing import blocked_by, wait_until_blocked

OPEN = [ActionStatus.STARTED, ActionStatus.UNKNOWN]


def connections_of(recall: RecallWriter) -> list[int]:
    """Backends that serve us in this database."""
    rows = recall.run("SELECT pid FROM pg_stat_activity WHERE application_name = 'settle' AND datname = current_database()")
    return [row[0] for row in rows]


# --- addresses ---------------------------------------------------------------------------------------------------------


def test_our_own_parameters_are_taken_out_before_libpq_sees_the_address(pg_url: str) -> None:
    url = f"{pg_url}?sslmode=prefer&schema=agents&collection=tenant-a&application_name=desk"
    with closing(PostgresStore(url)) as store, RecallWriter(url) as recall:
        recall.create()
        recall.action("a", 1)

        assert store.read_head().chain == "agents.tenant-a_agents"
        assert len(store.read_actions(OPEN, limit=5).readings) == 1
        names = {row[0] for row in recall.run("SELECT application_name FROM pg_stat_activity WHERE datname = current_database()")}
        assert "desk" in names


def test_opening_a_store_connects_to_nothing() -> None:
    store = open_store("postgres://nobody:nothing@192.0.2.1/x?schema=recall", name="far")

    assert store.name == "far"
    assert isinstance(store, PostgresStore)
    assert isinstance(open_store("memory:"), MemoryStore)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgres://u:geheim-123@h/x?schema=My%20Schema", "lower-case identifier"),
        ("postgres://u:geheim-123@h/x?schema=a-b", "lower-case identifier"),
        (f"postgres://u:geheim-123@h/x?schema={'s' * 64}", "at most 63"),
        ("postgres://u:geheim-123@h/x?schema=", "lower-case identifier"),
        ("postgres://u:geheim-123@h/x?schema=recall%22%3B--", "lower-case identifier"),
        ("postgres://u:geheim-123@h/x?collection=", "collection must be"),
        ("postgres://u:geheim-123@h/x?collection=a%00b", "collection must be"),
        ("postgres://u:geheim-123@h/x?collection=recall_lexical_v1_agents", "without _agents"),
        ("postgres://u:geheim-123@h/x?shcema=recall", "not one that PostgreSQL understands"),
        ("postgres://u:geheim-123@h:port/x", "not one that PostgreSQL understands"),
        ("postgres://u:geheim-123/h@x", "write special characters"),
        ("postgres://u:geheim-123@[::1/x", "not one that PostgreSQL understands"),
        ("ftp://u:geheim-123@h/x", "no adapter for ftp"),
        ("mysql", "no adapter"),
    ],
)
def test_a_malformed_address_is_refused_without_repeating_its_password(url: str, words: str) -> None:
    with pytest.raises(StoreUnusable, match=words) as caught:
        open_store(url, name="main")

    assert "geheim" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_store_never_shows_its_password() -> None:
    store = PostgresStore("postgres://ana:geheim-123@h/x")

    assert "geheim" not in repr(store)
    assert "geheim" not in repr(store._address)


# --- errors ------------------------------------------------------------------------------------------------------------


def everything(store: PostgresStore) -> list[Callable[[], object]]:
    entry = NewEntry(kind="refused", actor="operator ana")
    return [
        store.read_watch,
        lambda: store.read_actions(OPEN, limit=5),
        lambda: store.read_outputs([("a", "x")]),
        lambda: store.get_action("a", 1),
        lambda: store.find_lease("a"),
        lambda: store.list_turns("a", limit=5),
        lambda: store.list_agent_actions("a", limit=5),
        lambda: store.find_working_state("a"),
        lambda: store.list_pointers("a"),
        lambda: store.find_settled_entry("decision-1"),
        lambda: store.list_entries(limit=5),
        lambda: list(store.iterate_links()),
        store.read_head,
        store.prepare,
        lambda: store.append_entry(entry),
        lambda: decide(store, ActionRef(store.name, "a", 1)),
    ]


def test_a_server_that_is_down_is_unavailable_to_every_method_and_at_once() -> None:
    store = PostgresStore("postgres://ana:geheim-123@127.0.0.1:1/x", name="books")

    for ask in everything(store):
        with pytest.raises(StoreUnavailable) as caught:
            ask()
        assert caught.value.store == "books"
        assert "geheim" not in str(caught.value)
        assert "refused" in caught.value.problem
        assert not caught.value.may_be_written
    assert not store.check().is_reachable


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s, db: f"postgres://{s.user}:wrong-geheim@{s.host}:{s.port}/{db}", "password authentication failed"),
        (lambda s, db: f"postgres://nobody-here:wrong-geheim@{s.host}:{s.port}/{db}", "password authentication failed"),
        (lambda s, db: f"postgres://{s.user}:{quote(s.password, safe='')}@{s.host}:{s.port}/no_such_database", "does not exist"),
        (lambda s, db: f"postgres://{s.user}:{quote(s.password, safe='')}@{s.host}:{s.port}/{db}?sslmode=require", "SSL"),
        (lambda s, db: f"postgres://{s.user}:{quote(s.password, safe='')}@no-such-host.invalid:{s.port}/{db}", "resolve"),
        (lambda s, db: f"postgres://{s.user}@{s.host}:{s.port}/{db}?passfile=/nowhere", "password"),
    ],
)
def test_a_connection_that_is_refused_says_why_and_not_with_what(
    pg_url: str, pg_server: Postgres, change: Callable[[Postgres, str], str], words: str
) -> None:
    store = PostgresStore(change(pg_server, urlsplit(pg_url).path[1:]))

    with pytest.raises(StoreUnavailable, match=words) as caught:
        store.read_watch()

    assert "geheim" not in str(caught.value)
    assert pg_server.password not in str(caught.value)
    check = store.check()
    assert (check.is_reachable, check.can_settle) == (False, False)
    assert words in check.why_not


def test_a_server_that_accepts_and_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = PostgresStore(f"postgres://ana:x@127.0.0.1:{silent.getsockname()[1]}/x?connect_timeout=1")

        with pytest.raises(StoreUnavailable):
            store.read_watch()


def test_a_statement_that_takes_too_long_is_given_up(pg: tuple[PostgresStore, RecallWriter]) -> None:
    _, recall = pg
    recall.action("a", 1)
    collection = recall.collection.removesuffix("_agents")
    with (
        psycopg.connect(recall.url) as rival,
        closing(
            PostgresStore(f"{recall.url}?collection={collection}&options=-c%20statement_timeout%3D1s%20-c%20lock_timeout%3D0")
        ) as store,
    ):
        store.read_watch()
        rival.execute(f"LOCK TABLE recall.{recall.table}")
        with pytest.raises(StoreUnavailable, match="took longer"):
            store.read_actions(OPEN, limit=5)


def test_an_error_that_we_do_not_know_is_a_store_error_too(alone: tuple[PostgresStore, RecallWriter]) -> None:
    store, recall = alone
    recall.action("a", 1)
    store.read_watch()
    recall.run("ALTER TABLE {leases} ALTER expires_at TYPE text")

    with pytest.raises(StoreError):
        store.read_actions(OPEN, limit=5)


# --- connections that are lost -----------------------------------------------------------------------------------------


def test_connections_that_the_server_closed_while_they_were_idle_are_not_used(alone: tuple[PostgresStore, RecallWriter]) -> None:
    store, recall = alone
    ref = recall.action("a", 1)
    race(*[lambda: store.read_actions(OPEN, limit=5)] * 4)
    assert connections_of(recall)
    recall.run(
        "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE application_name = 'settle' AND datname = current_database()"
    )

    for _ in range(4):
        store.read_actions(OPEN, limit=5)
    assert decide(store, ref).turn_seq == 1


def test_a_connection_that_is_lost_in_a_read_is_an_error_and_the_next_one_is_new(
    alone: tuple[PostgresStore, RecallWriter],
) -> None:
    recall = alone[1]
    recall.action("a", 1)
    with closing(PostgresStore(f"{recall.url}?options=-c%20lock_timeout%3D0")) as store, psycopg.connect(recall.url) as rival:
        store.read_watch()
        rival.execute(f"LOCK TABLE recall.{recall.table}")
        answers: list[object] = []

        def read() -> None:
            try:
                answers.append(store.read_actions(OPEN, limit=5))
            except StoreUnavailable as exc:
                answers.append(exc)

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        wait_until_blocked(recall, rival)
        recall.run("SELECT pg_terminate_backend(%s)", blocked_by(recall, rival.info.backend_pid))
        thread.join()
        assert isinstance(answers[0], StoreUnavailable)

        rival.rollback()
        assert len(store.read_actions(OPEN, limit=5).readings) == 1


def test_an_error_does_not_cost_a_connection(alone: tuple[PostgresStore, RecallWriter]) -> None:
    store, recall = alone
    recall.action("a", 1)
    recall.lease("a", state="live")
    for _ in range(30):
        with pytest.raises(LeaseLive):
            decide(store, ActionRef("main", "a", 1))

    assert len(connections_of(recall)) == 1


def test_more_threads_than_connections_wait_for_their_turn(alone: tuple[PostgresStore, RecallWriter]) -> None:
    store, recall = alone
    recall.action("a", 1)

    answers = race(*[lambda: len(store.read_actions(OPEN, limit=5).readings)] * 30)

    assert answers == [1] * 30
    assert len(connections_of(recall)) <= 10


def test_a_closed_store_opens_again(alone: tuple[PostgresStore, RecallWriter]) -> None:
    store, recall = alone
    recall.action("a", 1)
    store.read_watch()
    store.close()
    store.close()

    assert len(store.read_actions(OPEN, limit=5).readings) == 1


def _read_in_child(store: PostgresStore, answer: multiprocessing.SimpleQueue[object]) -> None:
    with psycopg.connect(store._address.conninfo) as own:
        own.execute("SELECT 1")
    answer.put((len(store.read_actions(OPEN, limit=5).readings), os.getpid()))
    store.close()


def test_a_child_opens_connections_of_its_own_and_leaves_its_parents_alone(alone: tuple[PostgresStore, RecallWriter]) -> None:
    store, recall = alone
    ref = recall.action("a", 1)
    store.read_watch()
    (mine,) = connections_of(recall)
    context = multiprocessing.get_context("fork")
    answer: multiprocessing.SimpleQueue[object] = context.SimpleQueue()

    child = context.Process(target=_read_in_child, args=(store, answer))
    child.start()
    child.join()

    assert child.exitcode == 0
    assert answer.get() == (1, child.pid)
    until(lambda: len(connections_of(recall)) == 1)  # the server sees a little later that the child has gone
    assert connections_of(recall) == [mine]
    assert decide(store, ref).turn_seq == 1
    assert connections_of(recall) == [mine]


def test_a_server_that_is_restarted_is_found_again(tmp_path: Path) -> None:
    with postgres.start(tmp_path / "pg") as server:
        url = server.create_database("records")
        store, recall = PostgresStore(url), RecallWriter(url)
        recall.create()
        store.prepare()
        ref = recall.action("a", 1)
        store.read_watch()
        recall.close()
        server.stop()
        with pytest.raises(StoreUnavailable):
            store.read_watch()
        with pytest.raises(StoreUnavailable) as caught:
            decide(store, ref, decision_id="decision-1")
        assert not caught.value.may_be_written
        assert not store.check().is_reachable
        with postgres.start(tmp_path / "pg") as again:
            assert again.server.port == server.server.port
            assert store.check().can_settle
            assert not decide(store, ref, decision_id="decision-1").is_repeat
            store.close()
            recall.close()
    postgres.remove_data(tmp_path / "pg")
