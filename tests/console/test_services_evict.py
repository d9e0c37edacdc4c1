"""An admin opens the way for a decision that waits: who may, bound to what was shown, and what becomes of the decision."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import Http404

from actions.errors import StoreUnavailable
from actions.queries import get_action
from actions.records import ActionRef, ActionStatus, Entry, Turn
from actions.store.memory import MemoryStore
from console.models import Decision, DecisionState
from console.services.answers import AnswerKind
from console.services.decide import DecisionRequest, decide
from console.services.evict import EvictionRequest, evict, holder_digest, look
from console.services.withdraw import withdraw
from console.stores import get_store
from tests.console.conftest import Cast, MemoryWriter
from tests.recall_writer import RecordWriter

pytestmark = pytest.mark.django_db

HOLDER = "vm:7:aaaa"


def a_request(**fields: str) -> EvictionRequest:
    said = {"holder": HOLDER, "reason": "its pod is gone", "confirm": "billing-7", "decision_id": f"test-{uuid4()}", **fields}
    return EvictionRequest(**said)


def begun(records: RecordWriter, seq: int = 1) -> ActionRef:
    ref = records.action("billing-7", seq)
    records.lease("billing-7", holder=HOLDER, epoch=7, state="live")
    return ref


def decided(ref: ActionRef, by: User, outcome: str = "done") -> Decision:
    answer = decide(ref, DecisionRequest(outcome=outcome, reason="found it", decision_id=f"test-{uuid4()}"), by=by)
    assert answer.kind is AnswerKind.WAITING
    assert answer.decision is not None
    return answer.decision


def kinds() -> list[str]:
    return [entry.kind for entry in reversed(get_store("main").list_entries(limit=50))]


def test_the_lease_is_taken_and_the_waiting_decision_written(records: RecordWriter, ana: User, amy: User) -> None:
    ref = begun(records)
    row = decided(ref, ana)

    answer = evict("main", "billing-7", a_request(), by=amy)

    assert answer.kind is AnswerKind.EVICTED
    assert kinds() == ["waiting", "evicted", "settled"]
    assert answer.entry is not None
    assert (answer.entry.actor, answer.entry.reason) == ("admin amy", "its pod is gone")
    assert [(one.pk, one.state, one.turn_seq) for one in answer.decisions] == [(row.pk, "written", 1)]
    settled = get_store("main").list_entries(limit=1)[0]
    assert settled.actor == "operator ana"
    action = get_action(get_store("main"), ref).action
    assert action is not None
    assert action.status is ActionStatus.DONE
    assert records.lease_of("billing-7") is not None
    assert not records.write_fenced("billing-7", HOLDER, 7, "billing-7:act:1", {})


def test_every_decision_that_waits_for_the_agent_is_written(memory: RecordWriter, ana: User, amy: User) -> None:
    refs = [begun(memory, seq) for seq in (1, 2, 3)]
    for ref in refs:
        decided(ref, ana)

    answer = evict("main", "billing-7", a_request(), by=amy)

    assert [(one.seq, one.state, one.turn_seq) for one in answer.decisions] == [
        (1, "written", 1),
        (2, "written", 2),
        (3, "written", 3),
    ]


def test_the_same_id_again_takes_nothing_twice(memory: RecordWriter, ana: User, amy: User) -> None:
    decided(begun(memory), ana)
    request = a_request(holder=holder_digest(HOLDER))
    first = evict("main", "billing-7", request, by=amy)
    memory.lease("billing-7", holder="pod-b", epoch=20, state="live")

    again = evict("main", "billing-7", request, by=amy)

    assert (again.kind, again.entry) == (AnswerKind.REPEATED, first.entry)
    assert memory.lease_of("billing-7") == ("pod-b", 20, "live")
    other = evict("main", "billing-7", a_request(decision_id=request.decision_id, reason="another"), by=amy)
    assert other.kind is AnswerKind.ID_REUSED
    assert kinds().count("evicted") == 1


REFUSED: dict[str, tuple[dict[str, str], AnswerKind]] = {
    "no reason": ({"reason": " "}, AnswerKind.INVALID),
    "another agent's id typed": ({"confirm": "billing-8"}, AnswerKind.INVALID),
    "no confirmation": ({"confirm": ""}, AnswerKind.INVALID),
    "an id too short": ({"decision_id": "x"}, AnswerKind.INVALID),
    "another holder shown": ({"holder": "vm:8:bbbb"}, AnswerKind.CHANGED),
    "another holder's digest": ({"holder": holder_digest("vm:8:bbbb")}, AnswerKind.CHANGED),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_as_it_was_shown_or_confirmed_takes_nothing(memory: RecordWriter, ana: User, amy: User, what: str) -> None:
    row = decided(begun(memory), ana)
    fields, kind = REFUSED[what]

    answer = evict("main", "billing-7", a_request(**fields), by=amy)

    assert (answer.kind, answer.entry) == (kind, None)
    assert memory.lease_of("billing-7") == (HOLDER, 7, "live")
    assert kinds() == ["waiting"]
    row.refresh_from_db()
    assert row.state == DecisionState.WAITING


@pytest.mark.parametrize("state", ["expired", "released"])
def test_a_lease_that_nobody_holds_any_more_is_left_to_the_ordinary_path(
    memory: RecordWriter, ana: User, amy: User, state: Any
) -> None:
    decided(begun(memory), ana)
    memory.lease("billing-7", holder=HOLDER, epoch=8, state=state)

    answer = evict("main", "billing-7", a_request(), by=amy)

    assert answer.kind is AnswerKind.CHANGED
    assert "nobody holds it" in answer.detail
    assert "evicted" not in kinds()


def test_nobody_is_evicted_for_nothing(memory: RecordWriter, ana: User, amy: User) -> None:
    ref = begun(memory)
    assert evict("main", "billing-7", a_request(), by=amy).kind is AnswerKind.NOT_NEEDED
    row = decided(ref, ana)
    withdraw(ref, by=ana, decision_id=row.decision_id)

    assert evict("main", "billing-7", a_request(), by=amy).kind is AnswerKind.NOT_NEEDED

    assert memory.lease_of("billing-7") == (HOLDER, 7, "live")
    assert not look("main", "billing-7", by=amy).can_be_evicted


def test_only_an_admin_of_the_whole_store_may(memory: RecordWriter, ana: User, ben: User, cyd: User, person: Cast) -> None:
    decided(begun(memory), ana)
    elsewhere, narrow = person("eve", ("admin", "other", "")), person("fay", ("admin", "main", "send_email"))

    for user, refusal in [
        (ana, PermissionDenied),
        (ben, PermissionDenied),
        (narrow, PermissionDenied),
        (cyd, Http404),
        (elsewhere, Http404),
    ]:
        with pytest.raises(refusal):
            evict("main", "billing-7", a_request(), by=user)
        with pytest.raises(refusal):
            look("main", "billing-7", by=user)

    assert memory.lease_of("billing-7") == (HOLDER, 7, "live")
    assert kinds() == ["waiting"]


def test_an_admin_may_still_not_settle(memory: RecordWriter, ana: User, amy: User) -> None:
    ref = begun(memory)
    with pytest.raises(PermissionDenied):
        decide(ref, DecisionRequest(outcome="done", reason="x", decision_id="test-12345678"), by=amy)


def test_what_is_known_of_the_holder_is_shown_beforehand(memory: RecordWriter, ana: User, amy: User) -> None:
    decided(begun(memory), ana)
    (waiting,) = get_store("main").list_entries(limit=5)

    held = look("main", "billing-7", by=amy)

    assert held.lease is not None
    assert (held.lease.holder, held.can_be_evicted, held.seen_since) == (HOLDER, True, waiting.at)
    assert held.last_record is not None
    memory.lease("billing-7", holder="pod-b", epoch=9, state="live")
    assert look("main", "billing-7", by=amy).seen_since is None


def test_an_agent_that_comes_first_keeps_the_decision_waiting(
    memory: MemoryWriter, ana: User, amy: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the two transactions anybody may take the lease."""
    row = decided(begun(memory), ana)
    take = MemoryStore.evict

    def taken_by_another(self: MemoryStore, agent: str, **options: Any) -> Entry:
        entry = take(self, agent, **options)
        self.acquire(agent, "pod-b")
        return entry

    monkeypatch.setattr(MemoryStore, "evict", taken_by_another)

    answer = evict("main", "billing-7", a_request(), by=amy)

    assert answer.kind is AnswerKind.EVICTED
    assert [(one.pk, one.state) for one in answer.decisions] == [(row.pk, "waiting")]
    assert memory.lease_of("billing-7") == ("pod-b", 9, "live")
    assert kinds() == ["waiting", "evicted"]


@pytest.mark.parametrize("is_written", [True, False])
def test_a_lost_answer_is_unknown_and_the_same_id_finds_out(
    memory: MemoryWriter, ana: User, amy: User, monkeypatch: pytest.MonkeyPatch, is_written: bool
) -> None:
    ref = begun(memory)
    decided(ref, ana)
    take, request = MemoryStore.evict, a_request()

    def lost(self: MemoryStore, agent: str, **options: Any) -> Entry:
        if is_written:
            take(self, agent, **options)
        raise StoreUnavailable(self.name, "the answer to the commit was lost", may_be_written=True)

    with monkeypatch.context() as patched:
        patched.setattr(MemoryStore, "evict", lost)
        answer = evict("main", "billing-7", request, by=amy)

    assert (answer.kind, answer.is_unwritten) == (AnswerKind.UNAVAILABLE, False)
    assert "not known" in answer.detail
    again = evict("main", "billing-7", request, by=amy)
    assert again.kind is (AnswerKind.REPEATED if is_written else AnswerKind.EVICTED)
    assert [one.state for one in again.decisions] == ["written"]
    assert kinds() == ["waiting", "evicted", "settled"]
    turns = get_store("main").list_turns("billing-7", limit=5)
    assert [turn.name for turn in turns if isinstance(turn, Turn)] == ["send_email"]


def test_a_store_without_a_history_evicts_nobody(memory: MemoryWriter, ana: User, amy: User) -> None:
    row = decided(begun(memory), ana)
    memory.kept._is_prepared = False

    answer = evict("main", "billing-7", a_request(), by=amy)

    assert (answer.kind, answer.is_unwritten) == (AnswerKind.READ_ONLY, True)
    assert memory.lease_of("billing-7") == (HOLDER, 7, "live")
    row.refresh_from_db()
    assert row.state == DecisionState.WAITING
