"""A settle that is cut off at any of its statements leaves nothing behind; one whose answer is lost says that it does not know."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import timedelta
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg.types.json import Jsonb

from actions.errors import ActionNotFound, LeaseLive, LeaseLost, StoreError, StoreUnavailable, WriteConflict
from actions.records import Action, ActionRef, Lease, NewEntry, NewTurn, Settled, Turn
from actions.store.postgres import PostgresStore
from agents.harness import DurableAgent
from tests.recall_writer import RecallWriter, run_on, turn_metadata
from tests.store.gestures import an_end, decide, look_at_world, until, verify

RAISE = "RAISE EXCEPTION 'injected'"
DIE = "PERFORM pg_terminate_backend(pg_backend_pid())"
MOMENTS = {
    "taking the lease": ("BEFORE INSERT OR UPDATE ON {leases}", "NEW.expires_at > to_timestamp(0)"),
    "closing the action": ("BEFORE UPDATE ON {records}", "true"),
    "writing the turn": ("BEFORE INSERT ON {records}", "NEW.metadata->>'record' = 'turn'"),
    "writing the output": ("BEFORE INSERT ON {records}", "NEW.metadata->>'record' = 'output'"),
    "locking the head": ("BEFORE INSERT OR UPDATE ON settle_audit.heads", "NEW.number = 0"),
    "writing the entry": ("BEFORE INSERT ON settle_audit.entries", "true"),
    "moving the head": ("BEFORE UPDATE ON settle_audit.heads", "NEW.number > OLD.number"),
    "giving the lease back": ("BEFORE UPDATE ON {leases}", "NEW.expires_at = to_timestamp(0)"),
    "moving the revision": ("BEFORE UPDATE ON {collections}", "true"),
}


def sabotage(
    recall: RecallWriter, trigger: str, condition: str, act: str, *, name: str = "injected", kind: str = "TRIGGER"
) -> None:
    recall.run(
        f"""CREATE FUNCTION public.{name}() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN IF {condition} AND current_setting('application_name') = 'settle' THEN {act}; END IF; RETURN NEW; END $$"""
    )
    recall.run(f"CREATE {kind} {name} {trigger} FOR EACH ROW EXECUTE FUNCTION public.{name}()")


@pytest.mark.parametrize("act", [RAISE, DIE], ids=["an error", "a killed connection"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_nothing_is_half_written(alone: tuple[PostgresStore, RecallWriter], moment: str, act: str) -> None:
    store, recall = alone
    ref = recall.action("a", 1)
    recall.turns("a", 2)
    recall.lease("a", epoch=4, state="expired")
    before = look_at_world(store, recall, "a")
    sabotage(recall, *MOMENTS[moment], act)

    with pytest.raises(StoreError) as caught:
        decide(store, ref, an_end(result="x" * 9000), decision_id="decision-1")

    if act == DIE:
        assert isinstance(caught.value, StoreUnavailable)
        assert not caught.value.may_be_written
    else:
        assert "injected" in caught.value.problem
    assert look_at_world(store, recall, "a") == before
    assert store.find_settled_entry("decision-1") is None
    recall.run("DROP FUNCTION public.injected CASCADE")
    assert not decide(store, ref, an_end(result="x" * 9000), decision_id="decision-1").is_repeat
    assert verify(store).is_intact


def test_a_commit_that_the_server_refuses_wrote_nothing(alone: tuple[PostgresStore, RecallWriter]) -> None:
    store, recall = alone
    ref = recall.action("a", 1)
    before = look_at_world(store, recall, "a")
    sabotage(
        recall, "AFTER INSERT ON settle_audit.entries DEFERRABLE INITIALLY DEFERRED", "true", RAISE, kind="CONSTRAINT TRIGGER"
    )

    with pytest.raises(StoreError, match="injected") as caught:
        decide(store, ref)

    assert not getattr(caught.value, "may_be_written", False)
    assert look_at_world(store, recall, "a") == before


def test_a_connection_that_dies_in_the_commit_leaves_it_open_and_asking_again_settles_it(
    alone: tuple[PostgresStore, RecallWriter],
) -> None:
    store, recall = alone
    ref = recall.action("a", 1)
    before = look_at_world(store, recall, "a")
    sabotage(recall, "AFTER INSERT ON settle_audit.entries DEFERRABLE INITIALLY DEFERRED", "true", DIE, kind="CONSTRAINT TRIGGER")

    with pytest.raises(StoreUnavailable) as caught:
        decide(store, ref, decision_id="decision-1")

    assert caught.value.may_be_written
    assert look_at_world(store, recall, "a") == before
    recall.run("DROP FUNCTION public.injected CASCADE")
    assert not decide(store, ref, decision_id="decision-1").is_repeat


class Wire:
    """Stands between a client and the server; once armed, it delivers the client's COMMIT and swallows the answer, known by its `tag`."""

    def __init__(self, host: str, port: int, *, tag: bytes = b"COMMIT\x00") -> None:
        self._upstream = (host, port)
        self._tag = tag
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.is_armed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._upstream)
            threading.Thread(target=self._forward, args=(client, server), daemon=True).start()
            threading.Thread(target=self._back, args=(server, client), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        while data := _received(client):
            server.sendall(data)

    def _back(self, server: socket.socket, client: socket.socket) -> None:
        while data := _received(server):
            if self.is_armed and self._tag in data:
                break  # the command tag: it is written, and nobody will hear of it
            client.sendall(data)
        for end in (client, server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # closing alone would wait for the other thread's recv
            end.close()


def _received(end: socket.socket) -> bytes:
    try:
        return end.recv(65536)
    except OSError:
        return b""


def test_a_lost_answer_leaves_it_open_and_asking_again_finds_what_was_written(
    alone: tuple[PostgresStore, RecallWriter], alone_url: str
) -> None:
    store, recall = alone
    ref = recall.action("a", 1)
    server = urlsplit(alone_url)
    with closing(Wire(server.hostname or "", server.port or 0)) as wire:
        through = PostgresStore(re.sub(r"@[^/]+/", f"@127.0.0.1:{wire.port}/", alone_url) + "?sslmode=disable&gssencmode=disable")
        through.read_watch()
        wire.is_armed = True

        with pytest.raises(StoreUnavailable) as caught:
            decide(through, ref, decision_id="decision-1")

        assert caught.value.may_be_written
        through.close()
    assert recall.body_of("a:act:1")["status"] == "done"
    again = decide(store, ref, decision_id="decision-1")
    assert (again.is_repeat, again.turn_seq) == (True, 1)
    assert len(store.list_turns("a", limit=5)) == 1
    assert store.read_head().number == 1


# --- an agent's own process --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("act", [RAISE, DIE], ids=["an error", "a killed connection"])
@pytest.mark.parametrize("moment", ["closing the action", "writing the turn", "writing the output", "moving the revision"])
def test_an_agents_write_is_never_half_written_and_is_asked_for_again(
    alone: tuple[PostgresStore, RecallWriter], moment: str, act: str
) -> None:
    store, recall = alone
    with DurableAgent.resume(store, "a") as agent:
        action = agent.begin_action("send_email", {}, "external")
        before = look_at_world(store, recall, "a")
        sabotage(recall, *MOMENTS[moment], act)
        end = partial(agent.end_action, action, "done", result="x" * 9000, turn=NewTurn("tool", "sent"))

        with pytest.raises(StoreError) as caught:
            end()

        assert getattr(caught.value, "may_be_written", False) == (act == DIE)
        assert look_at_world(store, recall, "a") == before
        recall.run("DROP FUNCTION public.injected CASCADE")
        assert end().status == "done"
        assert [turn.content for turn in agent.recent_turns()] == ["sent"]
        assert recall.revision() == before.revision + 3


def test_an_agents_gesture_whose_answer_was_lost_is_found_written(
    alone: tuple[PostgresStore, RecallWriter], alone_url: str
) -> None:
    recall = alone[1]
    server = urlsplit(alone_url)
    with closing(Wire(server.hostname or "", server.port or 0, tag=b"SELECT 1\x00")) as wire:
        address = re.sub(r"@[^/]+/", f"@127.0.0.1:{wire.port}/", alone_url) + "?sslmode=disable&gssencmode=disable"
        with closing(PostgresStore(address)) as through, DurableAgent.resume(through, "a") as agent:
            begin = partial(agent.begin_action, "send_email", {}, "external")
            end = partial(agent.end_action, 1, "done", turn=NewTurn("tool", "sent"))
            for gesture in (begin, end):
                wire.is_armed = True
                with pytest.raises(StoreUnavailable) as caught:
                    gesture()
                wire.is_armed = False
                assert caught.value.may_be_written
                revision = recall.revision()

                assert gesture().seq == 1

                assert recall.revision() == revision
    assert recall.record_ids() == ["a:act:1", "a:turn:1"]


# --- waiting for others ------------------------------------------------------------------------------------------------


@pytest.fixture
def rival(pg: tuple[PostgresStore, RecallWriter]) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """Somebody else's connection, in a transaction of its own."""
    with psycopg.connect(pg[1].url) as connection:
        yield connection


def in_background(work: Callable[[], object]) -> Callable[[], object]:
    """Run beside the test; calling the answer waits for what it said or raised."""
    answers: list[object] = []

    def run() -> None:
        try:
            answers.append(work())
        except Exception as exc:
            answers.append(exc)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def wait() -> object:
        thread.join()
        return answers[0]

    return wait


def wait_until_blocked(recall: RecallWriter, by: psycopg.Connection[tuple[Any, ...]], *, count: int = 1) -> None:
    """Until so many others wait for a lock that this connection holds."""
    until(lambda: len(blocked_by(recall, by.info.backend_pid)) >= count)


def blocked_by(recall: RecallWriter, pid: int) -> list[int]:
    return [row[0] for row in recall.run("SELECT pid FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))", [pid])]


def test_a_write_in_flight_is_waited_for_and_its_turn_counted(
    pg: tuple[PostgresStore, RecallWriter], rival: psycopg.Connection[tuple[Any, ...]]
) -> None:
    """The old holder's last fenced write: its lease has expired, nobody took it over (recall-records 5.3)."""
    store, recall = pg
    ref = recall.action("a", 1)
    recall.turns("a", 3)
    recall.lease("a", holder="pod-a", epoch=2, state="expired")
    run_on(recall, rival, "SELECT 1 FROM {leases} WHERE collection = %s AND name = 'a' FOR SHARE", [recall.collection])
    run_on(
        recall,
        rival,
        "INSERT INTO {records} VALUES ('a:turn:4', array_fill(0::real, ARRAY[256]), %s)",
        [Jsonb(turn_metadata("a", 4, "my last words"))],
    )

    settled = in_background(lambda: decide(store, ref))
    wait_until_blocked(recall, rival)
    rival.commit()

    answer = settled()
    assert isinstance(answer, Settled), answer
    assert answer.turn_seq == 5
    assert [turn.content for turn in store.list_turns("a", limit=2) if isinstance(turn, Turn)] == ["done", "my last words"]


def test_an_agents_write_that_meets_a_takeover_under_way_waits_and_is_fenced(
    pg: tuple[PostgresStore, RecallWriter], rival: psycopg.Connection[tuple[Any, ...]]
) -> None:
    store, recall = pg
    agent = DurableAgent.resume(store, "a")
    agent.begin_action("send_email", {}, "external")
    before = recall.record_ids(), recall.body_of("a:act:1"), recall.revision()
    run_on(recall, rival, "UPDATE {leases} SET epoch = epoch + 1, holder = 'b' WHERE collection = %s", [recall.collection])

    ended = in_background(lambda: agent.end_action(1, "done", turn=NewTurn("tool", "sent")))
    wait_until_blocked(recall, rival)
    rival.commit()

    assert isinstance(ended(), LeaseLost)
    assert (recall.record_ids(), recall.body_of("a:act:1"), recall.revision()) == before


def test_a_takeover_that_meets_an_agents_write_under_way_waits_for_it(
    pg: tuple[PostgresStore, RecallWriter], rival: psycopg.Connection[tuple[Any, ...]]
) -> None:
    store, recall = pg
    agent = DurableAgent.resume(store, "a")
    recall.lease("a", agent.holder, 1, "expired")
    run_on(
        recall, rival, "SELECT 1 FROM {collections} WHERE name = %s FOR UPDATE", [recall.collection]
    )  # what a write needs last

    begun = in_background(lambda: agent.begin_action("send_email", {}, "external"))
    wait_until_blocked(recall, rival)
    (writer,) = blocked_by(recall, rival.info.backend_pid)
    taken = in_background(lambda: store.acquire_lease("a", holder="b", ttl=timedelta(seconds=60)))
    until(lambda: blocked_by(recall, writer))
    rival.commit()

    assert isinstance(begun(), Action)
    lease = taken()
    assert isinstance(lease, Lease), lease
    assert (lease.holder, lease.epoch) == ("b", 2)
    assert [action.seq for action in store.load_agent("a").open_actions] == [1]


def test_an_agent_that_resumes_during_a_settle_waits_and_reads_the_turn(
    pg: tuple[PostgresStore, RecallWriter], rival: psycopg.Connection[tuple[Any, ...]]
) -> None:
    store, recall = pg
    ref = recall.action("a", 1)
    recall.lease("a", holder="pod-a", epoch=2, state="expired")
    run_on(recall, rival, "SELECT 1 FROM {collections} WHERE name = %s FOR UPDATE", [recall.collection])

    settled = in_background(lambda: decide(store, ref))
    wait_until_blocked(recall, rival)
    with RecallWriter(recall.url, collection=recall.collection.removesuffix("_agents")) as agent:
        (settler,) = blocked_by(recall, rival.info.backend_pid)
        resumed = in_background(lambda: agent.acquire("a", "pod-b"))
        until(lambda: blocked_by(recall, settler))
        rival.commit()
        assert isinstance(settled(), Settled)
        assert resumed() == 5

    assert [turn.content for turn in store.list_turns("a", limit=2) if isinstance(turn, Turn)] == ["done"]
    assert recall.lease_of("a") == ("pod-b", 5, "live")


def test_an_agent_that_resumes_before_a_settle_commits_first_is_respected(
    pg: tuple[PostgresStore, RecallWriter], rival: psycopg.Connection[tuple[Any, ...]]
) -> None:
    store, recall = pg
    ref = recall.action("a", 1)
    recall.lease("a", holder="pod-a", epoch=2, state="expired")
    run_on(
        recall,
        rival,
        """UPDATE {leases} SET holder = 'pod-b', epoch = epoch + 1, expires_at = clock_timestamp() + interval '1 minute'
        WHERE collection = %s AND name = 'a'""",
        [recall.collection],
    )

    settled = in_background(lambda: decide(store, ref))
    wait_until_blocked(recall, rival)
    rival.commit()

    answer = settled()
    assert isinstance(answer, LeaseLive), answer
    assert (answer.lease.holder, answer.lease.epoch) == ("pod-b", 3)
    assert recall.body_of("a:act:1")["status"] == "started"
    assert recall.lease_of("a") == ("pod-b", 3, "live")


def test_an_agent_that_leases_for_the_first_time_meanwhile_is_respected(
    pg: tuple[PostgresStore, RecallWriter], rival: psycopg.Connection[tuple[Any, ...]]
) -> None:
    store, recall = pg
    ref = recall.action("a", 1)
    run_on(
        recall,
        rival,
        "INSERT INTO {leases} VALUES (%s, 'a', 'pod-b', 1, clock_timestamp() + interval '1 minute')",
        [recall.collection],
    )

    settled = in_background(lambda: decide(store, ref))
    wait_until_blocked(recall, rival)
    rival.commit()

    answer = settled()
    assert isinstance(answer, LeaseLive), answer
    assert answer.lease.holder == "pod-b"
    assert recall.body_of("a:act:1")["status"] == "started"


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_the_databases_own_isolation_does_not_matter(
    alone: tuple[PostgresStore, RecallWriter], alone_url: str, isolation: str
) -> None:
    """Under REPEATABLE READ the newest turn would be read from before the wait (recall-records 9.1)."""
    _, recall = alone
    ref = recall.action("a", 1)
    recall.lease("a", holder="pod-a", epoch=2, state="expired")
    recall.run(f"ALTER DATABASE {urlsplit(alone_url).path[1:]} SET default_transaction_isolation = '{isolation}'")
    with psycopg.connect(recall.url) as rival, closing(PostgresStore(alone_url)) as store:
        rival.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        run_on(recall, rival, "SELECT 1 FROM {leases} WHERE name = 'a' FOR SHARE")
        run_on(
            recall,
            rival,
            "INSERT INTO {records} VALUES ('a:turn:1', array_fill(0::real, ARRAY[256]), %s)",
            [Jsonb(turn_metadata("a", 1, "my last words"))],
        )
        settled = in_background(lambda: decide(store, ref))
        wait_until_blocked(recall, rival)
        rival.commit()

        answer = settled()
        assert isinstance(answer, Settled), answer
        assert answer.turn_seq == 2


def test_a_lock_that_somebody_keeps_is_given_up_and_nothing_was_written(
    pg: tuple[PostgresStore, RecallWriter], rival: psycopg.Connection[tuple[Any, ...]]
) -> None:
    store, recall = pg
    ref = recall.action("a", 1)
    recall.lease("a", state="expired")
    before = look_at_world(store, recall, "a")
    run_on(recall, rival, "SELECT 1 FROM {leases} WHERE collection = %s AND name = 'a' FOR SHARE", [recall.collection])
    with (
        closing(
            PostgresStore(f"{recall.url}?collection={recall.collection.removesuffix('_agents')}&options=-c%20lock_timeout%3D50ms")
        ) as hasty,
        pytest.raises(StoreUnavailable, match="stayed locked by another writer") as caught,
    ):
        decide(hasty, ref)

    assert not caught.value.may_be_written
    assert look_at_world(store, recall, "a") == before


def test_reads_wait_for_nobody(pg: tuple[PostgresStore, RecallWriter], rival: psycopg.Connection[tuple[Any, ...]]) -> None:
    store, recall = pg
    recall.action("a", 1)
    recall.lease("a", state="live")
    for table in ("{leases}", "{records}", "{collections}"):
        run_on(recall, rival, f"SELECT 1 FROM {table} FOR UPDATE")

    assert store.get_action("a", 1).lease is not None
    assert store.find_lease("a") is not None
    assert store.read_watch().revision == 1


def test_a_turn_that_stands_in_the_way_is_not_overwritten(pg: tuple[PostgresStore, RecallWriter]) -> None:
    """It cannot be: the lease is ours. If it is, the agent's turn counts more than our decision."""
    store, recall = pg
    ref = recall.action("a", 1)
    recall.turns("a", 1)
    recall.run(
        """INSERT INTO {records} VALUES ('a:turn:2', array_fill(0::real, ARRAY[256]), '{{"record": "turn", "recall_agent": "somebody else"}}')"""
    )
    before = look_at_world(store, recall, "a")

    with pytest.raises(WriteConflict, match="turn 2 of agent a exists"):
        decide(store, ref)

    assert look_at_world(store, recall, "a") == before


def test_an_entry_whose_connection_dies_is_not_half_appended(alone: tuple[PostgresStore, RecallWriter]) -> None:
    store, recall = alone
    sabotage(recall, *MOMENTS["moving the head"], DIE)

    with pytest.raises(StoreUnavailable):
        store.append_entry(NewEntry(kind="refused", actor="operator ana"))

    assert list(store.iterate_links()) == []
    assert store.read_head().number == 0


def test_a_store_whose_tables_were_made_anew_is_looked_at_again(alone: tuple[PostgresStore, RecallWriter]) -> None:
    store, recall = alone
    decide(store, recall.action("a", 1))
    recall.run("DROP SCHEMA {schema} CASCADE")
    with pytest.raises(ActionNotFound):
        store.get_action("a", 1)
    with pytest.raises(ActionNotFound):
        decide(store, ActionRef("main", "a", 2))

    recall.create()

    assert decide(store, recall.action("a", 2)).turn_seq == 1
