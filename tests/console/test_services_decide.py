"""A person decides about an open action: what is written, what is kept, what is refused, and what each is told."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import Http404

from actions.errors import InvalidDecision
from actions.queries import get_action
from actions.records import ActionRef, ActionStatus
from console.models import Change, Decision, DecisionState, Note
from console.services.answers import Answer, AnswerKind
from console.services.decide import DecisionRequest, decide, preview
from console.services.decisions import current_decisions, latest_notes
from console.services.deliver import attempt, claim_due, deliver
from console.services.withdraw import withdraw
from console.stores import get_store
from tests.console.conftest import Cast, MemoryWriter
from tests.recall_writer import RecordWriter

pytestmark = pytest.mark.django_db


def a_request(outcome: str = "done", reason: str = "found in the Sent folder", **fields: Any) -> DecisionRequest:
    return DecisionRequest(outcome=outcome, reason=reason, **{"decision_id": f"test-{uuid4()}", **fields})


def status_of(ref: ActionRef) -> ActionStatus:
    action = get_action(get_store(ref.store), ref).action
    assert action is not None
    return action.status


def kinds_of_entries(ref: ActionRef) -> list[str]:
    return [entry.kind for entry in reversed(get_store(ref.store).list_entries(limit=50, agent=ref.agent))]


def turns_of(ref: ActionRef) -> list[str]:
    return [turn.brief for turn in reversed(get_store(ref.store).list_turns(ref.agent, limit=50))]  # type: ignore[union-attr]


def due(decision: Decision) -> None:
    """Its time has come, without waiting for it."""
    Decision.objects.filter(pk=decision.pk).update(next_try_at=datetime.now(UTC) - timedelta(seconds=1))


# --- written ---------------------------------------------------------------------------------------------------------


def test_a_decision_is_written_into_the_agents_records(records: RecordWriter, ana: User) -> None:
    ref = records.action("billing-7", 1)

    answer = decide(ref, a_request(result="message-id 1204"), by=ana)

    assert answer.kind is AnswerKind.WRITTEN
    assert status_of(ref) is ActionStatus.DONE
    assert turns_of(ref) == ["(settled after a crash: done; operator ana: found in the Sent folder) message-id 1204"]
    assert kinds_of_entries(ref) == ["settled"]
    row = Decision.objects.get()
    assert (row.state, row.written_by, row.entry_number, row.turn_seq, row.next_try_at) == ("written", "us", 1, 1, None)
    assert answer.decision == row
    assert answer.item is not None
    assert answer.item.action is not None
    assert answer.item.action.status is ActionStatus.DONE


def test_a_failed_call_has_the_reason_as_its_error(records: RecordWriter, ana: User) -> None:
    ref = records.action("billing-7", 1)
    decide(ref, a_request("failed", "not in the ledger"), by=ana)
    assert turns_of(ref) == ["(settled after a crash: failed; operator ana: not in the ledger) failed: not in the ledger"]


def test_what_was_shown_is_what_is_written(records: RecordWriter, ana: User) -> None:
    ref = records.action("billing-7", 1)
    item = get_action(get_store("main"), ref)
    request = a_request("abandoned", "the customer has left", seen=item.digest)
    shown = preview(item, request, by=ana)
    decide(ref, request, by=ana)
    (turn,) = get_store("main").list_turns("billing-7", limit=1)
    assert (shown.content, shown.brief) == (turn.content, turn.brief)  # type: ignore[union-attr]


def test_the_same_id_again_is_the_same_decision(records: RecordWriter, ana: User) -> None:
    ref = records.action("billing-7", 1)
    request = a_request()
    first, second = decide(ref, request, by=ana), decide(ref, request, by=ana)
    assert (first.kind, second.kind) == (AnswerKind.WRITTEN, AnswerKind.REPEATED)
    assert second.decision == first.decision
    assert kinds_of_entries(ref) == ["settled"]
    assert len(turns_of(ref)) == 1


@pytest.mark.parametrize("change", [{"reason": "another reason"}, {"outcome": "abandoned"}, {"result": "another result"}])
def test_the_same_id_with_other_content_is_refused(records: RecordWriter, ana: User, change: dict[str, str]) -> None:
    ref = records.action("billing-7", 1)
    request = a_request()
    decide(ref, request, by=ana)
    answer = decide(ref, a_request(**{"decision_id": request.decision_id, **change}), by=ana)
    assert answer.kind is AnswerKind.ID_REUSED
    assert len(turns_of(ref)) == 1


def test_somebody_elses_id_is_another_decision(records: RecordWriter, ana: User, bea: User) -> None:
    ref = records.action("billing-7", 1)
    request = a_request()
    decide(ref, request, by=ana)
    assert decide(ref, request, by=bea).kind is AnswerKind.ID_REUSED


def test_an_id_of_another_action_is_refused_and_not_shown(records: RecordWriter, ana: User) -> None:
    first, second = records.action("billing-7", 1), records.action("billing-8", 1)
    request = a_request()
    decide(first, request, by=ana)
    answer = decide(second, request, by=ana)
    assert (answer.kind, answer.decision) == (AnswerKind.ID_REUSED, None)
    assert status_of(second) is ActionStatus.STARTED


def test_the_first_decision_wins_and_the_second_is_told_who(records: RecordWriter, ana: User, bea: User) -> None:
    ref = records.action("billing-7", 1)
    decide(ref, a_request("failed", "not in the ledger"), by=ana)
    answer = decide(ref, a_request("done", "the customer wrote thanks"), by=bea)
    assert answer.kind is AnswerKind.CLOSED
    assert "already ended failed, by operator ana: not in the ledger" in answer.detail
    assert answer.decision is not None
    assert answer.decision.username == "ana"
    assert answer.entry is not None
    assert answer.entry.actor == "operator ana"
    assert len(turns_of(ref)) == 1


def test_an_action_that_its_agent_closed_is_closed(records: RecordWriter, ana: User) -> None:
    ref = records.action("billing-7", 1, status="done", result="sent")
    answer = decide(ref, a_request(), by=ana)
    assert (answer.kind, answer.decision, answer.entry) == (AnswerKind.CLOSED, None, None)
    assert not Decision.objects.exists()


def test_what_was_shown_is_compared(records: RecordWriter, ana: User) -> None:
    ref = records.action("billing-7", 1, args={"amount": 120})
    seen = get_action(get_store("main"), ref).digest
    records.action("billing-7", 1, args={"amount": 9000})

    answer = decide(ref, a_request(seen=seen), by=ana)

    assert answer.kind is AnswerKind.CHANGED
    assert answer.item is not None
    assert "9000" in answer.item.arguments.text
    assert status_of(ref) is ActionStatus.STARTED
    assert not Decision.objects.exists()


def test_idempotent_calls_are_settled_with_a_warning(records: RecordWriter, ana: User) -> None:
    answer = decide(records.action("billing-7", 1, cls="idempotent"), a_request(), by=ana)
    assert answer.kind is AnswerKind.WRITTEN
    assert "same key" in answer.warnings[0]


def test_pure_calls_are_only_abandoned(records: RecordWriter, ana: User) -> None:
    ref = records.action("billing-7", 1, cls="pure")
    assert decide(ref, a_request("done"), by=ana).kind is AnswerKind.INVALID
    assert not Decision.objects.exists()
    assert decide(ref, a_request("abandoned"), by=ana).kind is AnswerKind.WRITTEN


def test_an_unreadable_record_cannot_be_settled(records: RecordWriter, ana: User) -> None:
    answer = decide(records.action("billing-7", 1, body="{"), a_request(), by=ana)
    assert answer.kind is AnswerKind.INVALID
    assert "unreadable" in answer.detail


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"outcome": "maybe"}, "choose done, failed, abandoned or later"),
        ({"outcome": "unknown"}, "choose done, failed, abandoned or later"),
        ({"reason": "  "}, "a reason is required"),
        ({"reason": "x" * 2001}, "limit is 2000"),
        ({"reason": "a\x00b"}, "NUL"),
        ({"reason": "a\ud800b"}, "surrogate"),
        ({"outcome": "failed", "result": "sent"}, "a result goes with done only"),
        ({"error": "boom"}, "an error goes with failed only"),
        ({"result": "x" * 1_048_577}, "the limit is 1048576"),
        ({"decision_id": "short"}, "8 to 64"),
        ({"decision_id": "spaces are not allowed"}, "8 to 64"),
        ({"decision_id": "neither-is-\x00"}, "8 to 64"),
        ({"look_again_at": datetime.now(UTC)}, "goes with later only"),
        ({"outcome": "later", "reason": " "}, "a note is required"),
        ({"outcome": "later", "reason": "\u200b\u2060\u00ad\ufeff"}, "a note is required"),
        ({"outcome": "later", "reason": "\u202e \u2066\u2069"}, "a note is required"),
        ({"reason": "\u200b\u2060\u00ad\ufeff"}, "a reason is required"),
        ({"outcome": "later", "result": "x"}, "neither a result nor an error"),
        ({"outcome": "later", "reason": "a\x00b"}, "NUL"),
        ({"outcome": "later", "look_again_at": datetime(2026, 1, 1)}, "no zone"),  # noqa: DTZ001
        ({"outcome": "later", "look_again_at": datetime(2020, 1, 1, tzinfo=UTC)}, "in the past"),
    ],
)
def test_what_breaks_a_rule_is_refused_in_words(memory: RecordWriter, ana: User, fields: dict[str, Any], says: str) -> None:
    ref = memory.action("billing-7", 1)
    answer = decide(ref, a_request(**fields), by=ana)
    assert answer.kind is AnswerKind.INVALID
    assert says in answer.detail
    assert not Decision.objects.exists()
    assert not Note.objects.exists()
    assert status_of(ref) is ActionStatus.STARTED


def test_a_turn_that_cannot_be_written_cannot_be_shown(memory: RecordWriter, ana: User) -> None:
    item = get_action(get_store("main"), memory.action("billing-7", 1, cls="pure"))
    for request in (a_request("later"), a_request("done"), a_request("abandoned", "")):
        with pytest.raises(InvalidDecision):
            preview(item, request, by=ana)


# --- who may ---------------------------------------------------------------------------------------------------------


def test_a_viewer_may_not_decide(memory: RecordWriter, ben: User) -> None:
    ref = memory.action("billing-7", 1)
    with pytest.raises(PermissionDenied):
        decide(ref, a_request(), by=ben)
    with pytest.raises(PermissionDenied):
        withdraw(ref, by=ben)
    assert status_of(ref) is ActionStatus.STARTED


def test_an_admin_alone_may_not_decide(memory: RecordWriter, amy: User) -> None:
    with pytest.raises(PermissionDenied):
        decide(memory.action("billing-7", 1), a_request(), by=amy)


def test_a_limited_operator_decides_about_their_own_tool_only(memory: RecordWriter, dot: User) -> None:
    mine, theirs = memory.action("desk-1", 1, tool="open_ticket"), memory.action("desk-1", 2, tool="send_email")
    assert decide(mine, a_request(), by=dot).kind is AnswerKind.WRITTEN
    with pytest.raises(Http404):
        decide(theirs, a_request(), by=dot)


# --- later -----------------------------------------------------------------------------------------------------------


def test_a_note_writes_nothing_to_the_agent(records: RecordWriter, ana: User) -> None:
    ref = records.action("billing-7", 1)
    again = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    answer = decide(ref, a_request("later", "asked the bank", look_again_at=again), by=ana)
    assert answer.kind is AnswerKind.NOTED
    assert latest_notes([ref])[ref].text == "asked the bank"
    assert latest_notes([ref])[ref].look_again_at == again
    assert status_of(ref) is ActionStatus.STARTED
    assert kinds_of_entries(ref) == []


def test_a_note_sent_twice_is_one_note(memory: RecordWriter, ana: User, bea: User) -> None:
    ref = memory.action("billing-7", 1)
    request = a_request("later", "asked the bank")
    assert [decide(ref, request, by=ana).kind for _ in range(2)] == [AnswerKind.NOTED, AnswerKind.REPEATED]
    assert decide(ref, request, by=bea).kind is AnswerKind.ID_REUSED
    assert Note.objects.count() == 1


def test_a_note_conflicts_with_nothing(memory: RecordWriter, ana: User, bea: User) -> None:
    ref = memory.action("billing-7", 1)
    decide(ref, a_request("later", "asked the bank"), by=ana)
    assert decide(ref, a_request(), by=bea).kind is AnswerKind.WRITTEN
    assert decide(ref, a_request("later", "the bank answered"), by=ana).kind is AnswerKind.NOTED


def test_an_id_is_a_note_or_a_decision_but_not_both(memory: RecordWriter, ana: User) -> None:
    ref = memory.action("billing-7", 1)
    noted = a_request("later", "asked the bank")
    decide(ref, noted, by=ana)
    assert decide(ref, a_request(decision_id=noted.decision_id), by=ana).kind is AnswerKind.ID_REUSED
    decided = a_request()
    decide(ref, decided, by=ana)
    assert decide(ref, a_request("later", decision_id=decided.decision_id), by=ana).kind is AnswerKind.ID_REUSED


# --- waiting ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def alive(records: RecordWriter) -> ActionRef:
    """An action of an agent that is alive."""
    records.lease("billing-7", "pod-a:1:aaaa", 1, "live")
    return records.action("billing-7", 1)


def test_while_its_agent_lives_a_decision_waits(alive: ActionRef, ana: User) -> None:
    answer = decide(alive, a_request(), by=ana)
    assert answer.kind is AnswerKind.WAITING
    assert "pod-a:1:aaaa holds the lease until" in answer.detail
    assert answer.decision is not None
    assert answer.decision.state == DecisionState.WAITING
    assert status_of(alive) is ActionStatus.STARTED
    assert turns_of(alive) == []
    assert kinds_of_entries(alive) == ["waiting"]


def test_the_same_id_again_still_waits(alive: ActionRef, ana: User) -> None:
    request = a_request()
    assert [decide(alive, request, by=ana).kind for _ in range(3)] == [AnswerKind.WAITING] * 3
    assert Decision.objects.count() == 1
    assert kinds_of_entries(alive) == ["waiting"]


def test_another_decision_is_told_of_the_one_that_waits(alive: ActionRef, ana: User, bea: User) -> None:
    decide(alive, a_request(), by=ana)
    answer = decide(alive, a_request("failed"), by=bea)
    assert answer.kind is AnswerKind.PENDING
    assert answer.decision is not None
    assert answer.decision.username == "ana"
    assert "operator ana has decided it done; that decision is waiting" in answer.detail


def test_it_is_delivered_once_the_lease_is_free(records: RecordWriter, alive: ActionRef, ana: User) -> None:
    answer = decide(alive, a_request(), by=ana)
    assert answer.decision is not None
    assert deliver(answer.decision.pk).state == "waiting"  # type: ignore[union-attr]
    records.lease("billing-7", "pod-a:1:aaaa", 2, "released")

    assert deliver(answer.decision.pk).state == "written"  # type: ignore[union-attr]
    assert deliver(answer.decision.pk).state == "written"  # type: ignore[union-attr]

    assert status_of(alive) is ActionStatus.DONE
    assert kinds_of_entries(alive) == ["waiting", "settled"]
    assert len(turns_of(alive)) == 1


def test_a_resume_in_between_does_not_matter(records: RecordWriter, alive: ActionRef, ana: User) -> None:
    answer = decide(alive, a_request(seen=get_action(get_store("main"), alive).digest), by=ana)
    records.action("billing-7", 1, status="unknown", resolution="interrupted; no resolver to check whether it happened")
    records.lease("billing-7", "pod-b:1:bbbb", 3, "expired")
    assert deliver(answer.decision.pk).state == "written"  # type: ignore[union-attr]


def test_an_end_by_its_agent_with_the_same_outcome_counts_as_written(records: RecordWriter, alive: ActionRef, ana: User) -> None:
    request = a_request()
    answer = decide(alive, request, by=ana)
    records.action("billing-7", 1, status="done", result="sent after all")  # its lease is still live
    row = deliver(answer.decision.pk)  # type: ignore[union-attr]
    assert row is not None
    assert (row.state, row.written_by, row.entry_number) == ("written", "agent", None)
    assert turns_of(alive) == []
    assert decide(alive, request, by=ana).kind is AnswerKind.REPEATED


def test_another_end_by_its_agent_refuses_the_decision(records: RecordWriter, alive: ActionRef, ana: User) -> None:
    request = a_request()
    answer = decide(alive, request, by=ana)
    records.action("billing-7", 1, status="failed", error="mailbox full")
    row = deliver(answer.decision.pk)  # type: ignore[union-attr]
    assert row is not None
    assert (row.state, row.why) == ("refused", "its agent ended it first: failed, mailbox full")
    assert kinds_of_entries(alive) == ["waiting", "refused"]
    assert decide(alive, request, by=ana).kind is AnswerKind.CLOSED


def test_a_decision_about_something_else_is_refused(records: RecordWriter, alive: ActionRef, ana: User) -> None:
    request = a_request()
    answer = decide(alive, request, by=ana)
    records.action("billing-7", 1, args={"to": "mallory@example.com"})
    records.lease("billing-7", "pod-a:1:aaaa", 2, "released")
    row = deliver(answer.decision.pk)  # type: ignore[union-attr]
    assert row is not None
    assert (row.state, status_of(alive)) == ("refused", ActionStatus.STARTED)
    assert decide(alive, request, by=ana).kind is AnswerKind.CHANGED
    seen = get_action(get_store("main"), alive).digest
    assert decide(alive, a_request(seen=seen), by=ana).kind is AnswerKind.WRITTEN


# --- withdrawing -----------------------------------------------------------------------------------------------------


def test_a_waiting_decision_can_be_withdrawn(records: RecordWriter, alive: ActionRef, ana: User, bea: User) -> None:
    request = a_request()
    answer = decide(alive, request, by=ana)
    assert withdraw(alive, by=bea).kind is AnswerKind.WITHDRAWN
    assert withdraw(alive, by=ana, decision_id=request.decision_id).kind is AnswerKind.WITHDRAWN
    records.lease("billing-7", "pod-a:1:aaaa", 2, "released")
    assert deliver(answer.decision.pk).state == "withdrawn"  # type: ignore[union-attr]
    assert status_of(alive) is ActionStatus.STARTED
    entries = get_store("main").list_entries(limit=5)
    assert [(entry.kind, entry.actor) for entry in entries] == [("withdrawn", "operator bea"), ("waiting", "operator ana")]


def test_a_withdrawn_id_stays_withdrawn(records: RecordWriter, alive: ActionRef, ana: User) -> None:
    request = a_request()
    decide(alive, request, by=ana)
    withdraw(alive, by=ana)
    records.lease("billing-7", "pod-a:1:aaaa", 2, "released")
    answer = decide(alive, request, by=ana)
    assert answer.kind is AnswerKind.ID_REUSED
    assert "was withdrawn; decide again with a new id" in answer.detail
    assert decide(alive, a_request(), by=ana).kind is AnswerKind.WRITTEN


def test_what_is_written_cannot_be_withdrawn(memory: RecordWriter, ana: User) -> None:
    ref = memory.action("billing-7", 1)
    decide(ref, a_request(), by=ana)
    assert withdraw(ref, by=ana).kind is AnswerKind.CLOSED


def test_there_may_be_nothing_to_withdraw(memory: RecordWriter, ana: User) -> None:
    assert withdraw(memory.action("billing-7", 1), by=ana).kind is AnswerKind.NOTHING
    with pytest.raises(Http404):
        withdraw(ActionRef("main", "nobody", 1), by=ana)


def test_another_decision_is_not_withdrawn_by_mistake(alive: ActionRef, ana: User) -> None:
    decide(alive, a_request(), by=ana)
    assert withdraw(alive, by=ana, decision_id="another-decision").kind is AnswerKind.PENDING
    assert Decision.objects.get().state == "waiting"


# --- crashes and outages ---------------------------------------------------------------------------------------------


def test_a_crash_before_the_store_was_asked_is_made_good(flaky: MemoryWriter, ana: User, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = flaky.action("billing-7", 1)
    _dies(monkeypatch, before=True)
    request = a_request()
    with pytest.raises(KeyboardInterrupt):
        decide(ref, request, by=ana)
    monkeypatch.undo()
    assert (Decision.objects.get().state, status_of(ref)) == ("waiting", ActionStatus.STARTED)

    (pk,) = claim_due(10)
    assert deliver(pk).state == "written"  # type: ignore[union-attr]
    assert decide(ref, request, by=ana).kind is AnswerKind.REPEATED


def test_a_crash_after_the_store_committed_is_repaired(flaky: MemoryWriter, ana: User, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = flaky.action("billing-7", 1)
    _dies(monkeypatch, before=False)
    with pytest.raises(KeyboardInterrupt):
        decide(ref, a_request(), by=ana)
    monkeypatch.undo()
    assert (Decision.objects.get().state, status_of(ref)) == ("waiting", ActionStatus.DONE)

    (pk,) = claim_due(10)
    row = deliver(pk)

    assert row is not None
    assert (row.state, row.written_by, row.entry_number, row.turn_seq) == ("written", "us", 1, 1)
    assert len(turns_of(ref)) == 1


def test_the_same_id_after_a_crash_finds_what_it_wrote(flaky: MemoryWriter, ana: User, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = flaky.action("billing-7", 1)
    _dies(monkeypatch, before=False)
    request = a_request()
    with pytest.raises(KeyboardInterrupt):
        decide(ref, request, by=ana)
    monkeypatch.undo()
    assert decide(ref, request, by=ana).kind is AnswerKind.REPEATED
    assert len(turns_of(ref)) == 1


def test_somebody_elses_decision_after_a_crash_is_told_who_was_first(
    flaky: MemoryWriter, ana: User, bea: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = flaky.action("billing-7", 1)
    _dies(monkeypatch, before=True)
    with pytest.raises(KeyboardInterrupt):
        decide(ref, a_request("failed"), by=ana)
    monkeypatch.undo()
    answer = decide(ref, a_request(), by=bea)
    assert answer.kind is AnswerKind.CLOSED
    assert "by operator ana" in answer.detail
    assert Decision.objects.get().state == "written"


def test_what_a_crash_wrote_cannot_be_withdrawn(flaky: MemoryWriter, ana: User, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = flaky.action("billing-7", 1)
    _dies(monkeypatch, before=False)
    with pytest.raises(KeyboardInterrupt):
        decide(ref, a_request(), by=ana)
    monkeypatch.undo()
    answer = withdraw(ref, by=ana)
    assert answer.kind is AnswerKind.CLOSED
    assert Decision.objects.get().state == "written"


def _dies(monkeypatch: pytest.MonkeyPatch, *, before: bool) -> None:
    """The process ends right before or right after the store commits: nothing after it runs, no handler either."""
    store = get_store("main")
    settle = store.settle

    def dying(*args: Any, **kwargs: Any) -> Any:
        if not before:
            settle(*args, **kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "settle", dying)


def test_a_store_that_does_not_answer_writes_nothing(flaky: MemoryWriter, ana: User) -> None:
    ref = flaky.action("billing-7", 1)
    flaky.kept.fails = "read"  # type: ignore[attr-defined]
    answer = decide(ref, a_request(), by=ana)
    assert answer.kind is AnswerKind.UNAVAILABLE
    assert "nothing was written" in answer.detail
    assert not Decision.objects.exists()


def test_a_store_that_fails_before_the_write_leaves_nothing_behind(flaky: MemoryWriter, ana: User) -> None:
    ref = flaky.action("billing-7", 1)
    request = a_request()
    flaky.kept.fails = "before_write"  # type: ignore[attr-defined]
    answer = decide(ref, request, by=ana)
    assert answer.kind is AnswerKind.UNAVAILABLE
    assert "nothing was written" in answer.detail
    assert claim_due(10) == []
    flaky.kept.fails = ""  # type: ignore[attr-defined]
    assert decide(ref, request, by=ana).kind is AnswerKind.WRITTEN


def test_a_lost_answer_is_said_to_be_unknown_and_found_again(flaky: MemoryWriter, ana: User) -> None:
    ref = flaky.action("billing-7", 1)
    request = a_request()
    flaky.kept.fails = "after_write"  # type: ignore[attr-defined]
    answer = decide(ref, request, by=ana)
    assert answer.kind is AnswerKind.UNAVAILABLE
    assert "whether it was written is not known" in answer.detail
    flaky.kept.fails = "read"  # type: ignore[attr-defined]
    assert "whether it was written is not known" in decide(ref, request, by=ana).detail
    flaky.kept.fails = ""  # type: ignore[attr-defined]
    assert decide(ref, request, by=ana).kind is AnswerKind.REPEATED
    assert len(turns_of(ref)) == 1


def test_what_is_known_to_be_written_is_said_even_while_the_store_is_down(flaky: MemoryWriter, ana: User) -> None:
    ref = flaky.action("billing-7", 1)
    request = a_request()
    decide(ref, request, by=ana)
    flaky.kept.fails = "read"  # type: ignore[attr-defined]
    assert decide(ref, request, by=ana).kind is AnswerKind.REPEATED


def test_who_may_not_decide_learns_nothing_while_the_store_is_down(flaky: MemoryWriter, ben: User, cyd: User) -> None:
    flaky.kept.fails = "read"  # type: ignore[attr-defined]
    with pytest.raises(PermissionDenied):
        decide(ActionRef("main", "billing-7", 1), a_request(), by=ben)
    with pytest.raises(Http404):
        decide(ActionRef("main", "billing-7", 1), a_request(), by=cyd)


def test_a_waiting_decision_outlives_an_outage(flaky: MemoryWriter, ana: User) -> None:
    flaky.lease("billing-7", state="live")
    answer = decide(flaky.action("billing-7", 1), a_request(), by=ana)
    flaky.kept.fails = "read"  # type: ignore[attr-defined]
    row = deliver(answer.decision.pk)  # type: ignore[union-attr]
    assert row is not None
    assert (row.state, row.why) == ("waiting", "store main: connection refused")
    flaky.kept.fails = ""  # type: ignore[attr-defined]
    flaky.lease("billing-7", state="released")
    assert deliver(row.pk).state == "written"  # type: ignore[union-attr]


def test_a_read_only_store_refuses_with_the_remedy(flaky: MemoryWriter, ana: User) -> None:
    ref = flaky.action("billing-7", 1)
    flaky.kept._is_prepared = False
    request = a_request()
    answer = decide(ref, request, by=ana)
    assert answer.kind is AnswerKind.READ_ONLY
    assert "prepare_store main" in answer.detail
    assert Decision.objects.get().state == "refused"
    flaky.kept.prepare()
    assert decide(ref, request, by=ana).kind is AnswerKind.WRITTEN


def test_a_store_taken_out_of_the_settings_leaves_its_decisions_waiting(alive: ActionRef, ana: User, settings: Any) -> None:
    answer = decide(alive, a_request(), by=ana)
    settings.ACTION_STORES = {"elsewhere": "memory:"}
    row = deliver(answer.decision.pk)  # type: ignore[union-attr]
    assert row is not None
    assert row.state == "waiting"
    assert "put it back into ACTION_STORES" in row.why


# --- the sweep -------------------------------------------------------------------------------------------------------


def test_a_sweep_takes_what_is_due_once(alive: ActionRef, ana: User) -> None:
    answer = decide(alive, a_request(), by=ana)
    assert claim_due(10) == []
    due(answer.decision)  # type: ignore[arg-type]
    assert claim_due(10) == [answer.decision.pk]  # type: ignore[union-attr]
    assert claim_due(10) == []


def test_a_sweep_is_bounded_and_begins_with_the_oldest(memory: RecordWriter, ana: User) -> None:
    rows = []
    for seq in range(1, 6):
        memory.lease(f"agent-{seq}", state="live")
        rows.append(decide(memory.action(f"agent-{seq}", 1), a_request(), by=ana).decision)
    for row in rows:
        due(row)  # type: ignore[arg-type]
    assert claim_due(2) == [row.pk for row in rows[:2]]  # type: ignore[union-attr]


def test_an_attempt_at_nothing_is_nothing(memory: RecordWriter, ana: User) -> None:
    assert attempt(12345) is None
    assert deliver(12345) is None


# --- reads -----------------------------------------------------------------------------------------------------------


def test_the_decision_that_matters_is_the_pending_or_the_written_one(alive: ActionRef, ana: User) -> None:
    decide(alive, a_request(), by=ana)
    withdraw(alive, by=ana)
    assert current_decisions([alive])[alive].state == "withdrawn"
    decide(alive, a_request("failed"), by=ana)
    assert current_decisions([alive])[alive].outcome == "failed"


def test_many_actions_are_looked_up_in_one_query(memory: RecordWriter, ana: User, django_assert_num_queries: Any) -> None:
    refs = [memory.action(f"agent-{n}", 1) for n in range(30)]
    for ref in refs[:3]:
        decide(ref, a_request(), by=ana)
        decide(ref, a_request("later"), by=ana)
    with django_assert_num_queries(1):
        assert len(current_decisions(refs)) == 3
    with django_assert_num_queries(1):
        assert len(latest_notes(refs)) == 3
    with django_assert_num_queries(0):
        assert current_decisions([ActionRef("main", "bad\x00", 1)]) == {}


def test_every_change_moves_the_change_number(alive: ActionRef, ana: User) -> None:
    def number() -> int:
        return sum(Change.objects.filter(store="main").values_list("number", flat=True))

    numbers = [number()]
    for act in (
        lambda: decide(alive, a_request("later"), by=ana),
        lambda: decide(alive, a_request(), by=ana),
        lambda: withdraw(alive, by=ana),
    ):
        act()
        numbers.append(number())
    assert numbers == sorted(set(numbers))


def test_a_decision_costs_few_queries(memory: RecordWriter, ana: User, django_assert_max_num_queries: Any) -> None:
    for seq in range(1, 30):
        memory.action("billing-7", seq)
    with django_assert_max_num_queries(23):  # savepoints of the test, four looks at the policies and the end of claims included
        decide(ActionRef("main", "billing-7", 7), a_request(), by=ana)


def test_a_tool_with_a_name_that_no_column_keeps_can_still_be_settled(records: RecordWriter, ana: User) -> None:
    ref = records.action("billing-7", 1, tool="odd\x00tool\ud800")
    assert decide(ref, a_request(), by=ana).kind is AnswerKind.WRITTEN


def test_secrets_in_a_reason_are_hidden_from_screens_and_history(memory: RecordWriter, ana: User) -> None:
    ref = memory.action("billing-7", 1)
    decide(ref, a_request(reason="the token sk_live_abcdefghijklmnop was used"), by=ana)
    assert "sk_live" not in Decision.objects.get().shown_reason
    assert not any("sk_live" in link.text for link in get_store("main").iterate_links())


def test_a_decision_answers_in_one_sentence(memory: RecordWriter, ana: User, person: Cast) -> None:
    answers: list[Answer] = [decide(memory.action("billing-7", 1), a_request(), by=ana)]
    assert all("\n" not in answer.detail and answer.detail for answer in answers)
