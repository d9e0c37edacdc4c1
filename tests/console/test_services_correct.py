"""Somebody was wrong: their agent is told, once, by the same path as a decision; nothing is reopened and nothing is forgotten."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db import IntegrityError
from django.http import Http404
from django.utils import timezone

from actions.queries import get_action
from actions.records import ActionRef, ActionStatus, Turn
from console.models import Correction, Decision, Incident, Note
from console.services import correction_delivery
from console.services.approve import approve
from console.services.correct import CorrectionRequest, correct_end, withdraw_correction
from console.services.correction_answers import CorrectionAnswer, CorrectionKind
from console.services.correction_approval import approve_correction, turn_down_correction
from console.services.correction_delivery import claim_due_corrections, deliver_correction
from console.services.corrections import find_correctable
from console.services.decide import decide
from console.services.incidents import close_incident
from console.services.notes import add_note
from console.services.policies import policy_of, save_policy
from console.stores import get_store
from console.tasks import sweep
from tests.console.conftest import Cast
from tests.console.test_services_races import a_request, together
from tests.recall_writer import RecordWriter
from tests.store.memory_writer import MemoryWriter

pytestmark = pytest.mark.django_db(transaction=True)
ROUNDS = 5


def a_correction(outcome: str = "failed", reason: str = "the provider never had it", **more: Any) -> CorrectionRequest:
    return CorrectionRequest(outcome=outcome, reason=reason, **{"correction_id": f"test-{uuid4()}", **more})


def decided(records: RecordWriter, by: User, outcome: str = "done", agent: str = "billing-7") -> ActionRef:
    ref = records.action(agent, 1, tool="create_payment")
    decide(ref, a_request(outcome), by=by)
    return ref


def turns_of(ref: ActionRef) -> list[str]:
    found = get_store(ref.store).list_turns(ref.agent, limit=50)
    return [turn.content for turn in reversed(found) if isinstance(turn, Turn)]


def kinds_of(ref: ActionRef) -> list[str]:
    return [entry.kind for entry in reversed(get_store(ref.store).list_entries(limit=50, agent=ref.agent))]


def kinds(*answers: CorrectionAnswer) -> list[CorrectionKind]:
    return sorted(answer.kind for answer in answers)


def test_a_correction_is_written_and_the_action_stays_as_it_is(records: RecordWriter, ana: User, bea: User) -> None:
    ref = decided(records, ana)
    item = get_action(get_store("main"), ref)
    shown = find_correctable(item)
    assert shown is not None
    request = a_correction(basis=shown.told.number)

    answer = correct_end(ref, request, by=bea)

    assert (answer.kind, shown.was_read) == (CorrectionKind.WRITTEN, "no")
    row = answer.correction
    assert row is not None
    assert (row.state, row.told, row.outcome, row.turn_seq, row.was_read) == ("written", "done", "failed", 2, "no")
    assert "has not read" in answer.detail
    assert get_action(get_store("main"), ref).digest == item.digest
    assert turns_of(ref)[1:] == [
        "correction: action 1 was settled as done, which was wrong; in truth it did not happen: the provider never had it"
    ]
    assert Decision.objects.get().state == "written"
    again = correct_end(ref, request, by=bea)
    assert (again.kind, again.correction) == (CorrectionKind.REPEATED, row)
    assert len(turns_of(ref)) == 2


def test_whoever_was_told_the_opposite_is_an_incident_until_somebody_acts(records: RecordWriter, ana: User, bea: User) -> None:
    ref = decided(records, ana)

    answer = correct_end(ref, a_correction(reason="token=sk_live_abcdefgh12345678 was refused"), by=bea)

    incident = Incident.objects.get()
    assert answer.incident == incident
    assert incident.text.startswith("its agent was told done, but operator bea says that it did not happen")
    assert "sk_live" not in incident.text
    assert kinds_of(ref) == ["settled", "corrected", "incident"]
    close_incident(incident.pk, "paid by hand", by=ana)
    assert kinds_of(ref)[-1] == "incident_closed"


@pytest.mark.parametrize(("first", "outcome"), [("done", "unknown"), ("abandoned", "done"), ("failed", "unknown")])
def test_what_is_not_the_opposite_is_no_incident(memory: RecordWriter, ana: User, first: str, outcome: str) -> None:
    ref = decided(memory, ana, first)

    assert correct_end(ref, a_correction(outcome), by=ana).kind is CorrectionKind.WRITTEN

    assert not Incident.objects.exists()
    assert get_action(get_store("main"), ref).action.status == first  # type: ignore[union-attr]


@pytest.mark.parametrize("what", ["open", "its own", "the same", "no reason", "stale", "bad id"])
def test_what_cannot_be_corrected_is_refused_and_nothing_is_kept(memory: RecordWriter, ana: User, what: str) -> None:
    ref = decided(memory, ana) if what not in ("open", "its own") else memory.action("billing-7", 1)
    if what == "its own":
        memory.action("billing-7", 1, status="done")
    request = {
        "the same": a_correction("done"),
        "no reason": a_correction(reason=" \u200b"),
        "stale": a_correction(basis=99),
        "bad id": a_correction(correction_id="x"),
    }.get(what, a_correction())
    before = (turns_of(ref), kinds_of(ref))

    answer = correct_end(ref, request, by=ana)

    expected = {"open": "not_ours", "its own": "not_ours", "stale": "changed"}.get(what, "invalid")
    assert answer.kind == expected
    assert (turns_of(ref), kinds_of(ref)) == before
    assert not Correction.objects.exists()


def test_who_may_not_settle_it_corrects_nothing(memory: RecordWriter, ana: User, ben: User, cyd: User, dot: User) -> None:
    ref = decided(memory, ana)
    with pytest.raises(PermissionDenied):
        correct_end(ref, a_correction(), by=ben)
    for stranger in (cyd, dot):
        with pytest.raises(Http404):
            correct_end(ref, a_correction(), by=stranger)
    assert not Correction.objects.exists()


def test_where_a_proof_of_identity_is_asked_for_a_correction_needs_one_too(memory: RecordWriter, ana: User, amy: User) -> None:
    ref = decided(memory, ana)
    save_policy("create_payment", {"step_up_when": "true"}, seen_version=policy_of("create_payment").version, by=amy)
    now = datetime.now(UTC)

    refused = [correct_end(ref, a_correction(confirmed_at=at), by=ana).kind for at in (None, now - timedelta(hours=1))]

    assert refused == [CorrectionKind.CONFIRM] * 2
    assert not Correction.objects.exists()
    assert correct_end(ref, a_correction(confirmed_at=now), by=ana).kind is CorrectionKind.WRITTEN


def test_a_living_agent_is_told_by_the_sweep_once_it_is_free(records: RecordWriter, ana: User, settings: Any) -> None:
    ref = decided(records, ana)
    records.lease("billing-7", epoch=5, state="live")

    answer = correct_end(ref, a_correction(), by=ana)

    assert answer.kind is CorrectionKind.WAITING
    assert "its agent is alive" in answer.detail
    assert len(turns_of(ref)) == 1
    assert correct_end(ref, a_correction("unknown"), by=ana).kind is CorrectionKind.PENDING
    records.turn("billing-7", 2, "I go on")
    records.lease("billing-7", epoch=5, state="expired")
    Correction.objects.update(next_try_at=datetime.now(UTC) - timedelta(seconds=1))
    (due,) = claim_due_corrections(10)
    assert claim_due_corrections(10) == []
    deliver_correction(due)
    row = Correction.objects.get()
    assert (row.state, row.was_read, row.turn_seq) == ("written", "yes", 3)
    assert Incident.objects.count() == 1
    deliver_correction(due)
    assert len(turns_of(ref)) == 3


def test_the_sweep_sends_a_task_for_each_correction_that_is_due(
    memory: RecordWriter, ana: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = decided(memory, ana)
    memory.lease("billing-7", epoch=5, state="live")
    correct_end(ref, a_correction(), by=ana)
    Correction.objects.update(next_try_at=datetime.now(UTC) - timedelta(seconds=1))
    sent: list[int] = []
    monkeypatch.setattr("console.tasks.deliver_correction.delay", sent.append)

    sweep()

    assert sent == [Correction.objects.get().pk]


def test_a_waiting_correction_is_taken_back_and_never_written(memory: RecordWriter, ana: User, bea: User, ben: User) -> None:
    ref = decided(memory, ana)
    memory.lease("billing-7", epoch=5, state="live")
    request = a_correction()
    correct_end(ref, request, by=ana)
    with pytest.raises(PermissionDenied):
        withdraw_correction(ref, by=ben)

    assert withdraw_correction(ref, by=bea).kind is CorrectionKind.WITHDRAWN

    memory.lease("billing-7", epoch=5, state="expired")
    deliver_correction(Correction.objects.get().pk)
    assert (Correction.objects.get().state, len(turns_of(ref))) == ("withdrawn", 1)
    assert withdraw_correction(ref, by=bea).kind is CorrectionKind.NOTHING
    assert correct_end(ref, request, by=ana).kind is CorrectionKind.ID_REUSED


def test_cut_off_between_store_and_console_it_is_completed_and_written_once(
    records: RecordWriter, ana: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dying(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    ref = decided(records, ana)
    request = a_correction()
    with monkeypatch.context() as patch:
        patch.setattr(correction_delivery, "open_for_correction", dying)
        with pytest.raises(KeyboardInterrupt):
            correct_end(ref, request, by=ana)
    assert (Correction.objects.get().state, len(turns_of(ref))) == ("waiting", 2)
    assert withdraw_correction(ref, by=ana).kind is CorrectionKind.PENDING

    together(partial(deliver_correction, Correction.objects.get().pk), partial(correct_end, ref, request, by=ana))
    answer = correct_end(ref, request, by=ana)

    assert answer.kind is CorrectionKind.REPEATED
    assert (Correction.objects.get().state, len(turns_of(ref)), Incident.objects.count()) == ("written", 2, 1)
    assert kinds_of(ref).count("corrected") == 1


def test_a_store_that_is_down_is_said_and_the_same_id_may_be_sent_again(flaky: MemoryWriter, ana: User) -> None:
    ref = decided(flaky, ana)
    request = a_correction()
    flaky.kept.fails = "read"  # type: ignore[attr-defined]
    down = correct_end(ref, request, by=ana)
    assert (down.kind, down.detail.endswith("nothing was written")) == (CorrectionKind.UNAVAILABLE, True)
    assert len(turns_of(ref)) == 1
    flaky.kept.fails = ""  # type: ignore[attr-defined]

    assert correct_end(ref, request, by=ana).kind is CorrectionKind.WRITTEN


def test_one_form_sent_twice_is_one_correction(records: RecordWriter, ana: User) -> None:
    for number in range(ROUNDS):
        ref = decided(records, ana, agent=f"agent-{number}")
        request = a_correction()
        answers = together(*[partial(correct_end, ref, request, by=ana)] * 3)
        assert kinds(*answers) == ["repeated", "repeated", "written"]
        assert (len(turns_of(ref)), kinds_of(ref).count("corrected")) == (2, 1)


def test_of_two_people_who_correct_one_end_one_does(records: RecordWriter, ana: User, bea: User) -> None:
    for number in range(ROUNDS):
        ref = decided(records, ana, agent=f"agent-{number}")
        shown = find_correctable(get_action(get_store("main"), ref))
        assert shown is not None
        answers = together(
            partial(correct_end, ref, a_correction("failed", basis=shown.told.number), by=ana),
            partial(correct_end, ref, a_correction("unknown", basis=shown.told.number), by=bea),
        )
        assert sum(answer.kind is CorrectionKind.WRITTEN for answer in answers) == 1
        assert {answer.kind for answer in answers} <= {CorrectionKind.WRITTEN, CorrectionKind.CHANGED, CorrectionKind.PENDING}
        assert len(turns_of(ref)) == 2


def test_one_id_is_a_note_or_a_correction(memory: RecordWriter, ana: User) -> None:
    ref = decided(memory, ana)
    note = add_note(ref, text="the customer called", look_again_at=None, note_id="shared-id-1", by=ana)

    assert correct_end(ref, a_correction(correction_id=note.decision_id), by=ana).kind is CorrectionKind.ID_REUSED

    assert (Note.objects.count(), Correction.objects.count(), len(turns_of(ref))) == (1, 0, 1)
    assert get_action(get_store("main"), ref).action.status is ActionStatus.DONE  # type: ignore[union-attr]


# --- the gates of its tool -------------------------------------------------------------------------------------------


@pytest.fixture
def four_eyes(amy: User) -> None:
    save_policy("create_payment", {"second_person_when": "outcome == 'done'"}, seen_version=0, by=amy)


@pytest.fixture
def cleo(person: Cast) -> User:
    return person("cleo", "operator", "approver", email="cleo@example.com")


def by_two(records: RecordWriter, first: User, second: User) -> ActionRef:
    """Ended by a decision that one person proposed and another one approved."""
    ref = records.action("billing-7", 1, tool="create_payment")
    row = decide(ref, a_request("done"), by=first).decision
    assert row is not None
    approve(ref, row.decision_id, by=second)
    return ref


def a_proposal(ref: ActionRef, by: User, **more: Any) -> Correction:
    answer = correct_end(ref, a_correction(**more), by=by)
    assert answer.kind is CorrectionKind.PROPOSED, answer
    assert answer.correction is not None
    return answer.correction


@pytest.mark.usefixtures("four_eyes")
def test_what_two_decided_nobody_corrects_alone_whoever_they_are(
    records: RecordWriter, ana: User, bea: User, cleo: User, person: Cast
) -> None:
    """The rule speaks of `done` only: that it did not happen needs two people all the same, because the decision did."""
    ref = by_two(records, ana, cleo)
    twin = person("twin", "operator", "approver", email=" Cleo@example.COM")
    other = person("other", "approver")
    before = turns_of(ref)

    row = a_proposal(ref, cleo)

    assert (turns_of(ref), kinds_of(ref)[-1], row.needs_second) == (before, "proposed", True)
    for alone in (cleo, twin):
        assert approve_correction(ref, row.correction_id, by=alone).kind is CorrectionKind.OWN
    with pytest.raises(PermissionDenied):
        approve_correction(ref, row.correction_id, by=bea)
    assert correct_end(ref, a_correction("unknown"), by=ana).kind is CorrectionKind.PENDING
    assert claim_due_corrections(10) == []
    assert (turns_of(ref), Correction.objects.get().state) == (before, "proposed")

    answer = approve_correction(ref, row.correction_id, by=other, reason="looked at the dashboard")

    assert (answer.kind, len(turns_of(ref))) == (CorrectionKind.WRITTEN, len(before) + 1)
    assert kinds_of(ref)[-4:] == ["proposed", "approved", "corrected", "incident"]
    (entry,) = get_store("main").list_entries(limit=5, kinds=("corrected",))
    assert (entry.actor, entry.detail["second"], entry.detail["second_reason"]) == (
        "operator cleo",
        "approver other",
        "looked at the dashboard",
    )
    # And so is the next word about it.
    assert a_proposal(ref, ana, outcome="unknown").state == "proposed"
    assert len(turns_of(ref)) == len(before) + 1


@pytest.mark.usefixtures("four_eyes")
def test_a_second_person_turns_a_correction_down_for_good_and_its_proposer_withdraws_one(
    memory: RecordWriter, ana: User, cleo: User, person: Cast
) -> None:
    ref = by_two(memory, ana, cleo)
    request = a_correction()
    row = correct_end(ref, request, by=ana).correction
    assert row is not None
    before = turns_of(ref)

    assert turn_down_correction(ref, row.correction_id, by=cleo, reason=" ").kind is CorrectionKind.INVALID
    down = turn_down_correction(ref, row.correction_id, by=cleo, reason="it is there, look again")
    again = [
        correct_end(ref, request, by=ana).kind,
        approve_correction(ref, row.correction_id, by=person("eve", "approver")).kind,
    ]

    assert (down.kind, again) == (CorrectionKind.TURNED_DOWN, [CorrectionKind.ID_REUSED, CorrectionKind.NOT_PROPOSED])
    assert Correction.objects.get().why == "cleo turned it down: it is there, look again"
    second = a_proposal(ref, ana)
    assert withdraw_correction(ref, by=ana).kind is CorrectionKind.WITHDRAWN
    assert approve_correction(ref, second.correction_id, by=cleo).kind is CorrectionKind.NOT_PROPOSED
    assert (turns_of(ref), claim_due_corrections(10)) == (before, [])


@pytest.mark.usefixtures("four_eyes")
def test_of_two_who_approve_one_correction_at_once_one_does_and_it_is_written_once(
    records: RecordWriter, ana: User, cleo: User, person: Cast
) -> None:
    ref = by_two(records, ana, cleo)
    row, eve, before = a_proposal(ref, ana), person("eve", "approver"), len(turns_of(ref))

    answers = together(*(partial(approve_correction, ref, row.correction_id, by=user) for user in (cleo, eve)))

    assert kinds(*answers) == sorted([CorrectionKind.NOT_PROPOSED, CorrectionKind.WRITTEN])
    assert (len(turns_of(ref)), kinds_of(ref).count("corrected"), kinds_of(ref).count("approved")) == (before + 1, 1, 2)


def test_no_code_writes_a_correction_past_its_second_person(memory: RecordWriter, ana: User, cleo: User, four_eyes: None) -> None:
    row = a_proposal(by_two(memory, ana, cleo), ana)
    for values in (
        {"state": "waiting"},
        {"state": "written"},
        {"second_by": ana, "second_at": timezone.now(), "state": "waiting"},
    ):
        with pytest.raises(IntegrityError):
            Correction.objects.filter(pk=row.pk).update(**values)


@pytest.mark.usefixtures("four_eyes")
def test_the_second_person_of_a_correction_proves_who_they_are_where_that_is_asked_for(
    memory: RecordWriter, ana: User, cleo: User, amy: User
) -> None:
    ref = by_two(memory, ana, cleo)
    save_policy("create_payment", {"second_person_when": "true", "step_up_when": "true"}, seen_version=1, by=amy)
    now = timezone.now()
    assert correct_end(ref, a_correction(), by=ana).kind is CorrectionKind.CONFIRM
    row = a_proposal(ref, ana, confirmed_at=now)

    assert approve_correction(ref, row.correction_id, by=cleo).kind is CorrectionKind.CONFIRM
    assert Correction.objects.get().state == "proposed"
    assert approve_correction(ref, row.correction_id, by=cleo, confirmed_at=now).kind is CorrectionKind.WRITTEN


def test_a_correction_asks_for_the_fresh_proof_that_a_decision_asks_for(memory: RecordWriter, ana: User, amy: User) -> None:
    ref = decided(memory, ana)
    save_policy("create_payment", {"step_up_when": "outcome != 'done'"}, seen_version=0, by=amy)
    now = timezone.now()

    for proved in (None, now - timedelta(minutes=11), now + timedelta(minutes=1)):
        answer = correct_end(ref, a_correction(confirmed_at=proved), by=ana)
        assert (answer.kind, answer.correction) == (CorrectionKind.CONFIRM, None), proved
    assert not Correction.objects.exists()
    assert len(turns_of(ref)) == 1

    answer = correct_end(ref, a_correction(confirmed_at=now - timedelta(minutes=9)), by=ana)
    assert (answer.kind, len(turns_of(ref))) == (CorrectionKind.WRITTEN, 2)
