"""A server that is there and answers nothing: stopped, or behind a network that swallows everything. Nobody waits for it for ever."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar
from urllib.parse import urlsplit

import psycopg
import pytest

from actions.errors import StoreError, StoreUnavailable
from actions.records import ActionRef, ActionStatus, NewEntry
from actions.store import postgres_connection
from actions.store.postgres import PostgresStore
from actions.store.postgres_deadlines import LeftAlone, Silence, Timeouts
from tests.recall_writer import RecallWriter
from tests.store.gestures import decide, look_at_world, race, until, verify
from tests.store.test_postgres_all_or_nothing import blocked_by, in_background, wait_until_blocked

T = TypeVar("T")
OPEN = [ActionStatus.STARTED, ActionStatus.UNKNOWN]
SHORT = Timeouts(answer_s=0.5, read_s=1, write_s=1, commit_s=0.5, pause_s=60)
PATIENT = {"answer_s": 60.0, "read_s": 60.0, "write_s": 60.0, "commit_s": 60.0}
"""How long a store waits while its server answers: a slow machine is no silent server."""


FAREWELL = b"X\x00\x00\x00\x04"  # as a connection is closed


class Proxy:
    """Stands between a client and the server until it is told to swallow everything: the connections stay open, and nothing arrives.

    `swallow_after`: swallows from the moment on when the client has sent these bytes; they are still delivered.
    """

    def __init__(self, host: str, port: int) -> None:
        self._upstream = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ends: list[socket.socket] = []
        self.port: int = self._listener.getsockname()[1]
        self.swallows = threading.Event()
        self.swallow_after: bytes | None = None
        self.accepted = 0
        self.arrived = 0  # bytes of clients, swallowed or not, but for a farewell
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for end in (self._listener, *self._ends):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def hang_up(self) -> None:
        """Close every connection that was made so far."""
        ends, self._ends = self._ends, []
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            server = socket.create_connection(self._upstream)
            self._ends += [client, server]
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=(source, target, source is client), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, is_client: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self.arrived += len(data) if is_client and data != FAREWELL else 0
                is_last = is_client and self.swallow_after is not None and self.swallow_after in data
                if is_last:
                    self.swallows.set()
                if is_last or not self.swallows.is_set():
                    target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)


@dataclass(frozen=True)
class Far:
    """A store of which everything goes through a proxy, the same store without one, and who writes its records."""

    proxy: Proxy
    url: str
    near: PostgresStore
    recall: RecallWriter
    opened: list[tuple[PostgresStore, Timeouts]] = field(default_factory=list)

    def store(self, timeouts: Timeouts = SHORT, *, connect_s: int = 2) -> PostgresStore:
        """It waits no longer than these only from when the server falls silent."""
        url = f"{self.url}&connect_timeout={connect_s}"
        store = PostgresStore(url, name="far", timeouts=replace(timeouts, **PATIENT))
        self.opened.append((store, timeouts))
        return store

    def connected(self, timeouts: Timeouts = SHORT) -> PostgresStore:
        """One that has been answered; a connection may take longer than it is waited for later."""
        for _ in range(30):
            store = self.store(timeouts)
            with suppress(StoreUnavailable):
                store.read_watch()
                return store
        raise AssertionError("nobody answered")

    def falls_silent(self, *, after: bytes | None = None) -> None:
        """Now, or once these bytes have been sent."""
        self.is_hasty()
        self.proxy.swallow_after = after
        if after is None:
            self.proxy.swallows.set()

    def is_hasty(self) -> None:
        """It goes on answering, and is waited for no longer than that."""
        for store, timeouts in self.opened:
            store._database._timeouts = timeouts

    def answers_again(self) -> None:
        for store, timeouts in self.opened:
            store._database._timeouts = replace(timeouts, **PATIENT)
        self.proxy.swallows.clear()


@pytest.fixture
def far(alone: tuple[PostgresStore, RecallWriter], alone_url: str) -> Iterator[Far]:
    near, recall = alone
    server = urlsplit(alone_url)
    with closing(Proxy(server.hostname or "", server.port or 0)) as proxy:
        url = re.sub(r"@[^/]+/", f"@127.0.0.1:{proxy.port}/", alone_url) + "?sslmode=disable&gssencmode=disable"
        there = Far(proxy, url, near, recall)
        yield there
        for store, _ in there.opened:
            store.close()


def fail(ask: Callable[[], object]) -> StoreUnavailable:
    """What it raised."""
    with pytest.raises(StoreUnavailable) as caught:
        ask()
    return caught.value


QUESTIONS: dict[str, Callable[[PostgresStore], object]] = {
    "read_watch": lambda store: store.read_watch(),
    "read_actions": lambda store: store.read_actions(OPEN, limit=5),
    "read_outputs": lambda store: store.read_outputs([("a", "x")]),
    "get_action": lambda store: store.get_action("a", 1),
    "find_lease": lambda store: store.find_lease("a"),
    "list_turns": lambda store: store.list_turns("a", limit=5),
    "list_agent_actions": lambda store: store.list_agent_actions("a", limit=5),
    "find_working_state": lambda store: store.find_working_state("a"),
    "list_pointers": lambda store: store.list_pointers("a"),
    "find_settled_entry": lambda store: store.find_settled_entry("decision-1"),
    "list_entries": lambda store: store.list_entries(limit=5),
    "iterate_links": lambda store: list(store.iterate_links()),
    "read_head": lambda store: store.read_head(),
    "prepare": lambda store: store.prepare(),
    "append_entry": lambda store: store.append_entry(NewEntry(kind="refused", actor="operator ana")),
    "settle": lambda store: decide(store, ActionRef(store.name, "a", 1)),
}


# --- the deadline ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("question", QUESTIONS)
def test_every_method_gives_up_a_server_that_stopped_answering(far: Far, question: str) -> None:
    far.recall.action("a", 1)
    before = look_at_world(far.near, far.recall, "a")
    store = far.connected()
    far.falls_silent()

    error = fail(lambda: QUESTIONS[question](store))

    assert (error.store, error.problem) == ("far", "did not answer within 0.5 s")
    assert not error.may_be_written
    assert look_at_world(far.near, far.recall, "a") == before


def test_what_is_said_by_default() -> None:
    assert Timeouts().answer_s == 8
    assert Timeouts().write_s + Timeouts().commit_s == 15
    assert postgres_connection.LOCK_TIMEOUT_S < postgres_connection.STATEMENT_TIMEOUT_S < Timeouts().answer_s


def test_check_is_bounded_too_and_says_so(far: Far) -> None:
    store = far.connected()
    assert store.check().can_settle
    far.falls_silent()

    check = store.check()

    assert (check.is_reachable, check.can_settle, check.why_not) == (False, False, "did not answer within 0.5 s")
    assert store.check().why_not.startswith("did not answer a moment ago; asked again in ")


@pytest.mark.parametrize(
    "statement",
    ["BEGIN ISOLATION", "LEFT JOIN settle_audit", "FOR UPDATE", "ORDER BY id FOR UPDATE", "told AS", "AS h (chain", "moved AS"],
)
def test_a_settle_that_is_cut_off_before_its_commit_wrote_nothing(far: Far, statement: str) -> None:
    ref = far.recall.action("a", 1)
    before = look_at_world(far.near, far.recall, "a")
    store = far.connected()
    text = statement if statement.startswith("BEGIN") else re.sub(r"settle_audit$", '"settle_audit"', statement)
    far.falls_silent(after=text.encode())

    error = fail(lambda: decide(store, ref, decision_id="decision-1"))

    assert not error.may_be_written
    far.proxy.hang_up()
    end_of_settlers(far.recall)
    assert look_at_world(far.near, far.recall, "a") == before
    assert not decide(far.near, ref, decision_id="decision-1").is_repeat


def end_of_settlers(recall: RecallWriter) -> None:
    """Until the server has noticed that whoever was in a transaction is gone."""
    at_work = (
        "SELECT 1 FROM pg_stat_activity WHERE application_name = 'settle' AND datname = current_database() AND state <> 'idle'"
    )
    until(lambda: not recall.run(at_work))


def test_a_commit_that_was_sent_may_be_written_and_asking_again_finds_out(far: Far) -> None:
    ref = far.recall.action("a", 1)
    store = far.connected(Timeouts(answer_s=2, write_s=60, commit_s=60, pause_s=60))  # all before the commit is answered
    far.falls_silent(after=b"COMMIT\x00")

    error = fail(lambda: decide(store, ref, decision_id="decision-1"))

    assert error.may_be_written
    assert "did not answer within 2 s" in error.problem
    end_of_settlers(far.recall)
    again = decide(far.near, ref, decision_id="decision-1")
    assert (again.is_repeat, again.turn_seq) == (True, 1)
    assert verify(far.near).is_intact


def test_a_lock_is_waited_for_no_longer_than_all_of_a_settle_may_take(far: Far) -> None:
    """Slow is not silent: each statement was answered in time, so the store is asked again at once."""
    ref = far.recall.action("a", 1)
    far.recall.lease("a", state="expired")
    store = far.connected(Timeouts(answer_s=60, read_s=60, write_s=0.3, commit_s=0.1, pause_s=60))
    with psycopg.connect(far.recall.url) as rival:
        rival.execute("SELECT 1 FROM recall.recall_leases FOR UPDATE")
        far.is_hasty()
        error = fail(lambda: decide(store, ref))

    assert (error.problem, error.may_be_written) == ("took longer than 0.3 s in all and was given up", False)
    assert store.read_watch().entries == 0


def test_an_index_takes_as_long_as_it_takes(far: Far) -> None:
    """It waits for a transaction that is open: longer than anything else here may take."""
    far.recall.action("a", 1)
    store = far.connected(Timeouts(answer_s=2, read_s=2, write_s=2, commit_s=2, pause_s=60))
    far.is_hasty()
    with psycopg.connect(far.recall.url) as rival:
        rival.execute(f"UPDATE recall.{far.recall.table} SET id = id")
        preparing = in_background(lambda: store.prepare(index=True))
        wait_until_blocked(far.recall, rival)
        rival.execute("SELECT pg_sleep(2.2)")
        assert blocked_by(far.recall, rival.info.backend_pid)
        rival.commit()
        lines = preparing()

    assert "created" in str(lines)
    assert store.check().has_index


# --- left alone --------------------------------------------------------------------------------------------------------


def test_a_store_that_did_not_answer_is_left_alone_for_a_while(far: Far) -> None:
    store = far.connected()
    far.falls_silent()
    fail(store.read_watch)
    asked = far.proxy.accepted, far.proxy.arrived

    for question in QUESTIONS.values():
        error = fail(partial(question, store))
        assert re.fullmatch(r"did not answer a moment ago; asked again in \d+ s", error.problem)
        assert not error.may_be_written
    assert (far.proxy.accepted, far.proxy.arrived) == asked


def test_a_server_that_accepts_connections_and_says_nothing_is_left_alone_too(far: Far) -> None:
    store = far.store()
    far.falls_silent()

    assert "timeout" in fail(store.read_watch).problem
    asked = far.proxy.accepted, far.proxy.arrived
    error = fail(store.read_watch)

    assert "did not answer a moment ago" in error.problem
    assert (far.proxy.accepted, far.proxy.arrived) == asked


def test_a_server_that_refuses_connections_answers_at_once_and_is_asked_every_time() -> None:
    store = PostgresStore("postgres://ana:x@127.0.0.1:1/x", timeouts=SHORT)

    for _ in range(3):
        assert "refused" in fail(store.read_watch).problem


def test_it_is_asked_again_after_the_pause_and_found_well(far: Far) -> None:
    ref = far.recall.action("a", 1)
    store = far.connected(Timeouts(answer_s=0.5, write_s=5, commit_s=5, pause_s=0))
    far.falls_silent()
    fail(store.read_watch)
    fail(store.read_watch)
    far.answers_again()

    assert sooner_or_later(lambda: decide(store, ref, decision_id="decision-1")).turn_seq == 1
    assert store.check().can_settle


def sooner_or_later(ask: Callable[[], T]) -> T:
    """Whoever asks whether it is back waits for a connection only so long, and may be told once more that it is not."""
    end = time.monotonic() + 60
    while True:
        try:
            return ask()
        except StoreUnavailable:
            assert time.monotonic() < end, "waited in vain"


def test_requests_beyond_the_first_ones_take_no_time(far: Far) -> None:
    """Those that wait, and then as many as like: none of these is waited for by anybody."""
    store = far.connected()
    race(*[store.read_watch] * 8)
    far.falls_silent()

    first = race(*[store.read_watch] * 8)
    asked = far.proxy.accepted, far.proxy.arrived
    others = race(*[store.read_watch] * 30)

    assert all(isinstance(answer, StoreUnavailable) for answer in (*first, *others)), (first, others)
    assert {getattr(answer, "problem", "").partition(";")[0] for answer in others} == {"did not answer a moment ago"}
    assert (far.proxy.accepted, far.proxy.arrived) == asked


def test_another_store_is_none_the_worse(far: Far) -> None:
    store = far.connected()
    far.falls_silent()
    fail(store.read_watch)

    assert far.near.check().can_settle


def test_one_at_a_time_asks_whether_it_is_back() -> None:
    silence = Silence(pause_s=0)
    with silence.ask() as use:
        use.silent_since = use.began

    with silence.ask():
        with pytest.raises(LeftAlone, match="being asked again right now"):
            silence.check()
        with pytest.raises(LeftAlone), silence.ask():
            pass

    silence.check()
    with silence.ask(), silence.ask():
        pass


def test_who_asks_whether_it_is_back_may_fail_in_any_way() -> None:
    silence = Silence(pause_s=0)

    def be_interrupted() -> None:
        with silence.ask() as use:
            use.silent_since = use.began
            raise KeyboardInterrupt

    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            be_interrupted()

    with silence.ask():
        pass
    silence.check()


def test_one_dead_connection_among_living_ones_does_not_make_a_store_silent() -> None:
    silence = Silence(pause_s=60)
    with silence.ask() as dead:
        dead.silent_since = dead.began
        with silence.ask():
            pass

    silence.check()


# --- connections that died while they were idle ------------------------------------------------------------------------


@pytest.fixture
def unnoticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The farewell of a connection has not arrived yet when it is taken: it is found out by asking."""
    monkeypatch.setattr(postgres_connection, "has_news", lambda connection: False)


def end_all(recall: RecallWriter) -> None:
    recall.run(
        "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE application_name = 'settle' AND datname = current_database()"
    )


@pytest.mark.parametrize("question", [name for name in QUESTIONS if name != "prepare"])
def test_the_first_request_after_a_restart_is_answered(
    alone: tuple[PostgresStore, RecallWriter], unnoticed: None, question: str
) -> None:
    store, recall = alone
    recall.action("a", 1)
    race(*[store.read_watch] * 4)
    end_all(recall)

    QUESTIONS[question](store)
    assert store.check().can_settle


def test_check_finds_a_server_that_was_restarted(alone: tuple[PostgresStore, RecallWriter], unnoticed: None) -> None:
    store, recall = alone
    store.read_watch()
    end_all(recall)

    assert store.check().is_reachable


def test_connections_that_a_network_dropped_are_replaced(far: Far, unnoticed: None) -> None:
    store = far.store(Timeouts(), connect_s=60)
    race(*[store.read_watch] * 4)
    far.proxy.hang_up()

    assert store.read_watch().entries == 0


def test_a_server_that_stays_away_is_asked_once_more_and_not_again(far: Far, unnoticed: None) -> None:
    store = far.connected()
    far.proxy.close()

    assert "refused" in fail(store.read_watch).problem


@pytest.mark.parametrize("moment", ["BEFORE INSERT OR UPDATE ON {leases}", "BEFORE INSERT ON settle_audit.entries"])
def test_a_settle_that_has_begun_is_never_asked_twice(
    alone: tuple[PostgresStore, RecallWriter], unnoticed: None, moment: str
) -> None:
    store, recall = alone
    ref = recall.action("a", 1)
    recall.run("CREATE SEQUENCE public.times")
    recall.run(
        """CREATE FUNCTION public.injected() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN PERFORM nextval('public.times'); PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END $$"""
    )
    recall.run(f"CREATE TRIGGER injected {moment} FOR EACH ROW EXECUTE FUNCTION public.injected()")
    store.read_watch()

    error = fail(lambda: decide(store, ref))

    assert not error.may_be_written
    assert recall.run("SELECT last_value FROM public.times") == [(1,)]
    recall.run("DROP FUNCTION public.injected CASCADE")


def test_each_sentence_of_the_store_leaves_what_was_written_to_its_class(alone: tuple[PostgresStore, RecallWriter]) -> None:
    """Callers say once whether something was written."""
    store, _ = alone
    driver_errors = [kind("x") for kind, _ in postgres_connection._SENTENCES]

    for error in driver_errors:
        said: StoreError = postgres_connection.store_error("main", store._address, error)
        assert "nothing was written" not in said.problem
    assert not any("nothing was written" in sentence for _, sentence in postgres_connection._SENTENCES)
