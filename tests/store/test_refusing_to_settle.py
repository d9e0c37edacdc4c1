"""Every reason not to settle, and the world afterwards: exactly as it was."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from actions.errors import (
    ActionChanged,
    ActionNotFound,
    ActionNotOpen,
    DecisionIdReused,
    InvalidDecision,
    LeaseLive,
    StoreReadOnly,
    StoreUnusable,
)
from actions.queries import get_action
from actions.records import ActionRef, ActionStatus, NewEntry
from actions.settle import settle
from actions.store.base import ActionStore
from actions.store.memory import MemoryStore
from actions.store.postgres import PostgresStore
from tests.recall_writer import RecallWriter, RecordWriter, time_text
from tests.store.conftest import fenced
from tests.store.gestures import an_end, decide, look_at_world


def test_a_live_lease_is_respected(store: ActionStore, recall: RecordWriter) -> None:
    ref = recall.action("a", 1)
    recall.lease("a", holder="pod-a:1:aaaa", epoch=7, state="live")
    before = look_at_world(store, recall, "a")

    with pytest.raises(LeaseLive) as caught:
        decide(store, ref)

    lease = caught.value.lease
    assert (lease.agent, lease.holder, lease.epoch, lease.is_live) == ("a", "pod-a:1:aaaa", 7, True)
    assert "held by pod-a:1:aaaa until" in str(caught.value)
    assert look_at_world(store, recall, "a") == before


@pytest.mark.parametrize("status", ["done", "failed", "abandoned"])
def test_what_the_agent_closed_stays_closed(store: ActionStore, recall: RecordWriter, status: str) -> None:
    ref = recall.action("a", 1, status=status, resolution="message-id 7 in Sent")
    before = look_at_world(store, recall, "a")

    with pytest.raises(ActionNotOpen) as caught:
        decide(store, ref)

    assert (caught.value.action.status, caught.value.action.resolution) == (status, "message-id 7 in Sent")
    assert caught.value.entry is None
    assert look_at_world(store, recall, "a") == before


def test_the_first_decision_stands_and_the_second_learns_whose_it_was(store: ActionStore, recall: RecordWriter) -> None:
    ref = recall.action("a", 1)
    first = decide(store, ref, an_end(ActionStatus.FAILED, "never arrived"))
    before = look_at_world(store, recall, "a")

    with pytest.raises(ActionNotOpen) as caught:
        settle(store, ref, an_end(), actor="operator ben", decision_id="decision-of-ben")

    assert caught.value.entry == first.entry
    assert caught.value.action.status is ActionStatus.FAILED
    assert look_at_world(store, recall, "a") == before
    assert store.find_settled_entry("decision-of-ben") is None


def test_a_closed_action_of_a_living_agent_is_closed_and_not_held(store: ActionStore, recall: RecordWriter) -> None:
    """Else a decision would wait for a lease that cannot help it."""
    ref = recall.action("a", 1, status="done")
    recall.lease("a", state="live")

    with pytest.raises(ActionNotOpen):
        decide(store, ref)


@pytest.mark.parametrize(
    ("agent", "seq"), [("a", 2), ("nobody", 1), ("a\x00b", 1), ("\ud800", 1), ("a", 10**30), ("a", 0), ("a:act", 1), ("", 1)]
)
def test_an_action_that_is_not_there_is_not_found(store: ActionStore, recall: RecordWriter, agent: str, seq: int) -> None:
    recall.action("a", 1)
    before = look_at_world(store, recall, "a")

    with pytest.raises(ActionNotFound) as caught:
        decide(store, ActionRef("main", agent, seq))

    assert caught.value.ref == ActionRef("main", agent, seq)
    assert look_at_world(store, recall, "a") == before
    assert store.find_lease(agent) is None


CHANGES: dict[str, Callable[[RecordWriter], object]] = {
    "its status": lambda recall: recall.action("a", 1, status="unknown"),
    "its arguments": lambda recall: recall.action("a", 1, args={"to": "eve@example.com"}),
    "its long arguments": lambda recall: recall.action("a", 1, args={"to": "ann@example.com", "body": "x" * 9000}),
    "its tool": lambda recall: recall.action("a", 1, tool="create_payment"),
    "its class": lambda recall: recall.action("a", 1, cls="idempotent"),
    "its key": lambda recall: recall.action("a", 1, key="another"),
    "its epoch": lambda recall: recall.action("a", 1, epoch=2),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_decision_over_what_is_no_longer_there_is_refused(store: ActionStore, recall: RecordWriter, what: str) -> None:
    ref = recall.action("a", 1)
    seen = get_action(store, ref).digest
    CHANGES[what](recall)
    before = look_at_world(store, recall, "a")

    with pytest.raises(ActionChanged) as caught:
        decide(store, ref, seen=seen)

    assert caught.value.action == store.get_action("a", 1).action
    assert look_at_world(store, recall, "a") == before


@pytest.mark.parametrize("what", [what for what in CHANGES if what != "its status"])
def test_a_kept_decision_is_refused_where_more_than_the_status_changed(
    store: ActionStore, recall: RecordWriter, what: str
) -> None:
    ref = recall.action("a", 1)
    claim = get_action(store, ref).claim
    CHANGES[what](recall)
    before = look_at_world(store, recall, "a")

    with pytest.raises(ActionChanged):
        decide(store, ref, claim=claim)

    assert look_at_world(store, recall, "a") == before


def test_only_the_end_of_long_arguments_changed(store: ActionStore, recall: RecordWriter) -> None:
    ref = recall.action("a", 1, args="x" * 10_000 + "a")
    seen = get_action(store, ref).digest
    recall.action("a", 1, args="x" * 10_000 + "b")

    with pytest.raises(ActionChanged):
        decide(store, ref, seen=seen)


def test_what_does_not_matter_to_a_decision_may_change(store: ActionStore, recall: RecordWriter) -> None:
    ref = recall.action("a", 1)
    seen = get_action(store, ref).digest
    recall.action("a", 1, written_epoch=5, resolution="somebody looked", started_at=time_text(99))

    assert decide(store, ref, seen=seen).turn_seq == 1


@pytest.mark.parametrize("status", [ActionStatus.DONE, ActionStatus.FAILED])
def test_a_pure_action_can_only_be_abandoned(store: ActionStore, recall: RecordWriter, status: ActionStatus) -> None:
    ref = recall.action("a", 1, cls="pure")
    before = look_at_world(store, recall, "a")

    with pytest.raises(InvalidDecision, match="pure"):
        decide(store, ref, an_end(status))

    assert look_at_world(store, recall, "a") == before


def test_a_decision_id_stands_for_one_decision(store: ActionStore, recall: RecordWriter) -> None:
    ref = recall.action("a", 1)
    first = decide(store, ref, decision_id="decision-1")
    before = look_at_world(store, recall, "a")

    with pytest.raises(DecisionIdReused) as caught:
        decide(store, ref, an_end(ActionStatus.FAILED, "no"), decision_id="decision-1")

    assert caught.value.entry == first.entry
    assert look_at_world(store, recall, "a") == before


def test_a_decision_id_stands_for_one_action(store: ActionStore, recall: RecordWriter) -> None:
    one, other = recall.action("a", 1), recall.action("b", 1)
    decide(store, one, decision_id="decision-1")
    before = look_at_world(store, recall, "a", "b")

    with pytest.raises(DecisionIdReused):
        decide(store, other, decision_id="decision-1")

    assert look_at_world(store, recall, "a", "b") == before


@pytest.mark.parametrize("decision_id", ["", "short", "x" * 65, "with space", "ümlaut-id", "nul\x00nul-nul", "abcdefgh\n"])
def test_a_malformed_decision_id_is_refused(store: ActionStore, recall: RecordWriter, decision_id: str) -> None:
    ref = recall.action("a", 1)
    before = look_at_world(store, recall, "a")

    with pytest.raises(InvalidDecision):
        settle(store, ref, an_end(), actor="operator ana", decision_id=decision_id)

    assert look_at_world(store, recall, "a") == before


@pytest.mark.parametrize(
    ("status", "reason", "result", "error"),
    [
        (ActionStatus.DONE, "", "", ""),
        (ActionStatus.DONE, " \n ", "", ""),
        (ActionStatus.DONE, "x" * 2001, "", ""),
        (ActionStatus.DONE, "ok", "", "an error"),
        (ActionStatus.FAILED, "ok", "a result", ""),
        (ActionStatus.ABANDONED, "ok", "a result", ""),
        (ActionStatus.UNKNOWN, "ok", "", ""),
        (ActionStatus.STARTED, "ok", "", ""),
        (ActionStatus.DONE, "ok", "x" * (1024 * 1024 + 1), ""),
        (ActionStatus.DONE, "a\x00b", "", ""),
        (ActionStatus.DONE, "ok", "\ud800", ""),
        (ActionStatus.FAILED, "ok", "", "x" * 8001),
    ],
)
def test_an_end_that_breaks_a_rule_is_refused(
    store: ActionStore, recall: RecordWriter, status: ActionStatus, reason: str, result: str, error: str
) -> None:
    ref = recall.action("a", 1)
    before = look_at_world(store, recall, "a")

    with pytest.raises(InvalidDecision):
        decide(store, ref, an_end(status, reason, result=result, error=error))

    assert look_at_world(store, recall, "a") == before


def unprepared_memory() -> tuple[ActionStore, RecordWriter]:
    from tests.store.memory_writer import MemoryWriter

    store = MemoryStore(is_prepared=False)
    return store, MemoryWriter(store)


def unprepared_postgres(url: str) -> tuple[ActionStore, RecordWriter]:
    return PostgresStore(url), RecallWriter(url).create()


@pytest.mark.parametrize("kind", ["memory", "postgres"])
def test_a_store_that_is_not_prepared_is_read_and_not_settled(kind: str, request: pytest.FixtureRequest) -> None:
    store, recall = unprepared_memory() if kind == "memory" else unprepared_postgres(request.getfixturevalue("pg_url"))
    ref = recall.action("a", 1)
    before = look_at_world(store, recall, "a")

    with pytest.raises(StoreReadOnly, match="prepare_store main"):
        decide(store, ref)
    with pytest.raises(StoreReadOnly, match="prepare_store main"):
        store.append_entry(NewEntry(kind="refused", actor="operator ana"))

    assert look_at_world(store, recall, "a") == before
    assert len(store.read_actions([ActionStatus.STARTED], limit=5).readings) == 1
    assert (store.list_entries(limit=5), store.read_head().number, store.find_settled_entry("decision-1")) == ((), 0, None)
    assert not store.check().can_settle
    store.prepare()
    assert decide(store, ref).turn_seq == 1
    assert store.check().can_settle
    store.close()


@fenced
@pytest.mark.parametrize("epoch", [2**63 - 1, 2**63 - 2])
def test_a_lease_at_the_end_of_its_epochs_is_refused_in_words(store: ActionStore, recall: RecordWriter, epoch: int) -> None:
    """A settle needs two more: one for the lease, one for giving it back."""
    ref = recall.action("a", 1)
    recall.lease("a", epoch=epoch, state="expired")
    before = look_at_world(store, recall, "a")

    with pytest.raises(StoreUnusable, match=f"the lease of agent a has epoch {epoch}, which no other can follow"):
        decide(store, ref)

    assert look_at_world(store, recall, "a") == before


@fenced
def test_the_last_epochs_but_two_are_as_good_as_any(store: ActionStore, recall: RecordWriter) -> None:
    ref = recall.action("a", 1)
    recall.lease("a", epoch=2**63 - 3, state="expired")

    assert decide(store, ref).turn_seq == 1
    lease = store.find_lease("a")
    assert lease is not None
    assert lease.epoch == 2**63 - 1


def test_a_revision_at_its_end_is_refused_in_words(alone: tuple[PostgresStore, RecallWriter]) -> None:
    store, recall = alone
    ref = recall.action("a", 1)
    recall.run("UPDATE {collections} SET revision = %s", [2**63 - 1])
    before = look_at_world(store, recall, "a")

    with pytest.raises(StoreUnusable, match="at the end of its range"):
        decide(store, ref)

    assert look_at_world(store, recall, "a") == before
