"""Taking a live lease away: from exactly the holder that was shown, with an entry, and nothing else is touched."""

from __future__ import annotations

import re
from contextlib import closing
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from actions.errors import (
    DecisionIdReused,
    InvalidDecision,
    LeaseMoved,
    StoreError,
    StoreReadOnly,
    StoreUnavailable,
    StoreUnusable,
)
from actions.records import Entry, Settled
from actions.settle import evict
from actions.store.base import ActionStore
from actions.store.memory import MemoryStore
from actions.store.polign import PolignStore
from actions.store.postgres import PostgresStore
from tests.polign_writer import PolignWriter
from tests.recall_writer import LeaseState, RecallWriter, RecordWriter, run_on, turn_metadata
from tests.store.conftest import Backend, fenced
from tests.store.gestures import decide, look_at_world, new_decision_id, race, verify
from tests.store.memory_writer import MemoryWriter
from tests.store.test_postgres_all_or_nothing import MOMENTS, RAISE, Wire, in_background, sabotage, wait_until_blocked

ROUNDS = 6
HOLDER = "vm:7:aaaa"
REASON = "its pod was deleted at 18:02; the server renews for it"


def take(store: ActionStore, agent: str = "a", *, holder: str = HOLDER, reason: str = REASON, decision_id: str = "") -> Entry:
    return evict(store, agent, holder=holder, reason=reason, actor="admin amy", decision_id=decision_id or new_decision_id())


def begun(recall: RecordWriter, agent: str = "a", *, epoch: int = 7) -> Any:
    ref = recall.action(agent, 1)
    recall.turns(agent, 2)
    recall.lease(agent, holder=HOLDER, epoch=epoch, state="live")
    return ref


@fenced
def test_the_holder_loses_its_lease_and_nothing_else_changes(store: ActionStore, recall: RecordWriter) -> None:
    begun(recall)
    before = look_at_world(store, recall, "a")

    entry = take(store, decision_id="eviction-1")

    assert recall.lease_of("a") == (HOLDER, 8, "released")
    after = look_at_world(store, recall, "a")
    assert (after.records, after.revision) == (before.records, before.revision)
    assert (entry.kind, entry.actor, entry.agent, entry.seq, entry.reason) == ("evicted", "admin amy", "a", None, REASON)
    assert (entry.detail["before"]["holder"], entry.detail["before"]["epoch"]) == (HOLDER, 7)  # type: ignore[index]
    assert entry.detail["after"] == {"epoch": 8, "released": True}
    assert store.list_entries(limit=5) == (entry,)
    assert store.find_settled_entry("eviction-1") is None
    assert verify(store).is_intact


@fenced
def test_the_evicted_can_neither_write_nor_renew_and_a_decision_goes_through(store: ActionStore, recall: RecordWriter) -> None:
    ref = begun(recall)

    take(store)

    assert not recall.write_fenced("a", HOLDER, 7, "a:turn:3", turn_metadata("a", 3, "I am still here"))
    assert recall.renew("a", HOLDER, 7) is None
    assert decide(store, ref).turn_seq == 3
    assert recall.acquire("a", "pod-b") == 11
    assert verify(store).is_intact


@fenced
def test_a_lease_that_was_renewed_since_is_still_the_one_that_was_shown(store: ActionStore, recall: RecordWriter) -> None:
    begun(recall)
    recall.renew("a", HOLDER, 7)

    entry = take(store)

    assert entry.detail["before"]["epoch"] == 8  # type: ignore[index]
    assert recall.lease_of("a") == (HOLDER, 9, "released")


@pytest.mark.parametrize(
    ("holder", "state"), [("pod-b:1:bbbb", "live"), (HOLDER, "expired"), (HOLDER, "released"), (f"{HOLDER} ", "live")]
)
@fenced
def test_a_lease_that_is_not_what_was_shown_is_left_alone(
    store: ActionStore, recall: RecordWriter, holder: str, state: LeaseState
) -> None:
    recall.action("a", 1)
    recall.lease("a", holder=holder, epoch=7, state=state)
    before = look_at_world(store, recall, "a")

    with pytest.raises(LeaseMoved, match="look again") as caught:
        take(store)

    assert caught.value.lease is not None
    assert (caught.value.lease.holder, caught.value.lease.is_live) == (holder, state == "live")
    assert look_at_world(store, recall, "a") == before


@pytest.mark.parametrize("agent", ["nobody", "a\x00b", "\ud800", ""])
@fenced
def test_an_agent_that_was_never_leased_has_nothing_to_take(store: ActionStore, recall: RecordWriter, agent: str) -> None:
    begun(recall)
    before = look_at_world(store, recall, "a")

    with pytest.raises(LeaseMoved) as caught:
        take(store, agent)

    assert caught.value.lease is None
    assert look_at_world(store, recall, "a") == before


@fenced
def test_the_same_id_again_answers_what_it_wrote_whoever_holds_the_agent_by_then(
    store: ActionStore, recall: RecordWriter
) -> None:
    begun(recall)
    first = take(store, decision_id="eviction-1")
    recall.acquire("a", HOLDER)
    before = look_at_world(store, recall, "a")

    again = take(store, decision_id="eviction-1")

    assert again == first
    assert look_at_world(store, recall, "a") == before


@fenced
def test_the_same_id_with_another_reason_is_refused(store: ActionStore, recall: RecordWriter) -> None:
    begun(recall)
    first = take(store, decision_id="eviction-1")
    recall.acquire("a", HOLDER)
    before = look_at_world(store, recall, "a")

    with pytest.raises(DecisionIdReused) as caught:
        take(store, decision_id="eviction-1", reason="another one")

    assert caught.value.entry == first
    assert look_at_world(store, recall, "a") == before


@pytest.mark.parametrize(
    ("reason", "decision_id"),
    [("", "eviction-1"), ("\u200b ", "eviction-1"), ("x" * 2001, "eviction-1"), ("a\x00b", "eviction-1"), (REASON, "short")],
)
def test_an_eviction_without_a_reason_or_an_id_reads_and_writes_nothing(reason: str, decision_id: str) -> None:
    store = MemoryStore()
    recall = MemoryWriter(store)
    begun(recall)
    before = look_at_world(store, recall, "a")

    with pytest.raises(InvalidDecision):
        take(store, reason=reason, decision_id=decision_id)

    assert look_at_world(store, recall, "a") == before


@fenced
def test_secrets_in_a_reason_do_not_reach_the_history(store: ActionStore, recall: RecordWriter) -> None:
    begun(recall)

    entry = take(store, reason="password=hunter2hunter2 did not help")

    assert "hunter2" not in entry.text


@fenced
def test_a_lease_at_the_end_of_its_epochs_cannot_be_taken_from_anybody(store: ActionStore, recall: RecordWriter) -> None:
    begun(recall, epoch=2**63 - 1)
    before = look_at_world(store, recall, "a")

    with pytest.raises(StoreUnusable, match="epoch"):
        take(store)

    assert look_at_world(store, recall, "a") == before


@pytest.mark.parametrize("kind", ["memory", "postgres"])
def test_where_no_history_is_kept_nobody_is_evicted(request: pytest.FixtureRequest, kind: str) -> None:
    """An eviction without its entry is what must never happen."""
    store: ActionStore
    recall: RecordWriter
    if kind == "memory":
        store = memory = MemoryStore(is_prepared=False)
        recall = MemoryWriter(memory)
    else:
        url = request.getfixturevalue("pg_url")
        store, recall = PostgresStore(url), RecallWriter(url).create()
        request.addfinalizer(store.close)
        request.addfinalizer(recall.close)
    begun(recall)

    with pytest.raises(StoreReadOnly, match="prepare_store"):
        take(store)

    assert recall.lease_of("a") == (HOLDER, 7, "live")


def test_where_nothing_is_fenced_nobody_can_be_evicted(polign: tuple[PolignStore, PolignWriter]) -> None:
    store, recall = polign
    recall.action("a", 1)

    with pytest.raises(StoreUnusable, match="compares no lease"):
        take(store)

    assert store.list_entries(limit=5) == ()


# --- races -------------------------------------------------------------------------------------------------------------


@fenced
def test_an_eviction_against_the_holders_renewal_is_one_order_or_the_other(backend: Backend) -> None:
    store, recall, holder = backend.store, backend.recall, backend.another()
    for number in range(ROUNDS):
        agent = f"a{number}"
        begun(recall, agent)

        entry, epoch = race(partial(take, store, agent), partial(holder.renew, agent, HOLDER, 7))

        assert isinstance(entry, Entry), entry
        assert epoch in (None, 8), epoch
        assert recall.lease_of(agent) == (HOLDER, 9 if epoch else 8, "released")
        assert holder.renew(agent, HOLDER, 8 if epoch else 7) is None
    assert verify(store).is_intact


@fenced
def test_an_eviction_against_a_fenced_write_loses_nothing_and_lets_nothing_in_afterwards(backend: Backend) -> None:
    store, recall, holder = backend.store, backend.recall, backend.another()
    for number in range(ROUNDS):
        agent = f"a{number}"
        ref = begun(recall, agent)
        turn = turn_metadata(agent, 3, "I was in the middle of it")

        entry, written = race(
            partial(take, store, agent), partial(holder.write_fenced, agent, HOLDER, 7, f"{agent}:turn:3", turn)
        )

        assert isinstance(entry, Entry), entry
        assert written in (True, False), written
        assert (recall.metadata_of(f"{agent}:turn:3") is not None) == written
        assert decide(store, ref).turn_seq == (4 if written else 3)
    assert verify(store).is_intact


@fenced
def test_of_two_admins_one_evicts_and_the_other_is_told_that_it_moved(backend: Backend) -> None:
    store, recall, other = backend.store, backend.recall, backend.again()
    for number in range(ROUNDS):
        agent = f"a{number}"
        begun(recall, agent)

        answers = race(partial(take, store, agent), partial(take, other, agent))

        assert {type(answer) for answer in answers} == {Entry, LeaseMoved}, answers
        assert recall.lease_of(agent) == (HOLDER, 8, "released")
    assert store.read_head().number == ROUNDS


@fenced
def test_a_double_submit_evicts_once(backend: Backend) -> None:
    store, recall, other = backend.store, backend.recall, backend.again()
    for number in range(ROUNDS):
        agent = f"a{number}"
        begun(recall, agent)

        first, second = race(
            partial(take, store, agent, decision_id=f"eviction-{number}"),
            partial(take, other, agent, decision_id=f"eviction-{number}"),
        )

        assert isinstance(first, Entry), first
        assert first == second
        assert recall.lease_of(agent) == (HOLDER, 8, "released")
    assert store.read_head().number == ROUNDS


def test_a_write_in_flight_is_waited_for_and_stands(pg: tuple[PostgresStore, RecallWriter]) -> None:
    """The holder's transaction has passed its fence and not committed yet: the eviction waits for it, and the decision counts its turn."""
    store, recall = pg
    ref = begun(recall)
    with psycopg.connect(recall.url) as holder:
        run_on(recall, holder, "SELECT 1 FROM {leases} WHERE collection = %s AND name = 'a' FOR SHARE", [recall.collection])
        evicting = in_background(lambda: take(store))
        wait_until_blocked(recall, holder)
        recall._write(holder, "a:turn:3", turn_metadata("a", 3, "done before you came"))
        holder.commit()

    assert isinstance(evicting(), Entry)
    settled = decide(store, ref)
    assert isinstance(settled, Settled)
    assert settled.turn_seq == 4


# --- all or nothing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["locking the head", "writing the entry", "moving the head", "giving the lease back"])
def test_no_eviction_without_its_entry_and_no_entry_without_its_eviction(
    alone: tuple[PostgresStore, RecallWriter], moment: str
) -> None:
    store, recall = alone
    begun(recall)
    before = look_at_world(store, recall, "a")
    sabotage(recall, *MOMENTS[moment], RAISE)

    with pytest.raises(StoreError, match="injected"):
        take(store)

    assert look_at_world(store, recall, "a") == before


def test_a_lost_answer_leaves_it_open_and_asking_again_finds_the_eviction(
    alone: tuple[PostgresStore, RecallWriter], alone_url: str
) -> None:
    store, recall = alone
    begun(recall)
    server = urlsplit(alone_url)
    with closing(Wire(server.hostname or "", server.port or 0)) as wire:
        through = PostgresStore(re.sub(r"@[^/]+/", f"@127.0.0.1:{wire.port}/", alone_url) + "?sslmode=disable&gssencmode=disable")
        through.read_watch()
        wire.is_armed = True

        with pytest.raises(StoreUnavailable) as caught:
            take(through, decision_id="eviction-1")

        assert caught.value.may_be_written
        through.close()
    assert recall.lease_of("a") == (HOLDER, 8, "released")
    assert take(store, decision_id="eviction-1") == store.list_entries(limit=5)[0]
    assert store.read_head().number == 1
