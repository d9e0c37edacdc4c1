"""Four eyes, hold and break-glass: what is written only when, by whom, and what each is told."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db import IntegrityError, transaction
from django.http import Http404
from django.utils import timezone

from actions.records import ActionRef, ActionStatus
from actions.resolvers.verdict import Grade
from console.models import Decision, Inquiry
from console.services.answers import Answer, AnswerKind
from console.services.approve import approve, break_glass, proposal_digest, turn_down
from console.services.decide import DecisionRequest, decide
from console.services.deliver import attempt, claim_due, deliver
from console.services.policies import policy_of, save_policy
from console.services.withdraw import withdraw
from console.stores import get_store
from tests.console import own_resolver as world
from tests.console.conftest import Cast, MemoryWriter
from tests.console.test_services_decide import due, kinds_of_entries, status_of, turns_of
from tests.recall_writer import RecordWriter

pytestmark = pytest.mark.django_db

PAY = "create_payment"
LARGE = {"amount": 4200, "currency": "EUR", "to": "ACME"}
SMALL = {"amount": 42, "currency": "EUR", "to": "ACME"}


@pytest.fixture
def cleo(person: Cast) -> User:
    """Somebody who approves and may do nothing else."""
    return person("cleo", "approver")


@pytest.fixture
def gates(amy: User) -> Callable[..., None]:
    """Set the gates of payments: four eyes above 1000 unless said otherwise."""

    def put(**values: Any) -> None:
        save_policy(PAY, {"second_person_when": "amount > 1000", **values}, seen_version=policy_of(PAY).version, by=amy)

    put()
    return put


def a_request(outcome: str = "done", reason: str = "seen in the dashboard", **fields: Any) -> DecisionRequest:
    return DecisionRequest(outcome=outcome, reason=reason, **{"decision_id": f"test-{uuid4()}", **fields})


def payment(writer: RecordWriter, seq: int = 1, args: Any = LARGE) -> ActionRef:
    return writer.action("billing-7", seq, tool=PAY, args=args)


def proposed(ref: ActionRef, by: User, **fields: Any) -> Decision:
    answer = decide(ref, a_request(**fields), by=by)
    assert answer.kind is AnswerKind.PROPOSED, answer
    assert answer.decision is not None
    return answer.decision


def nothing_written(ref: ActionRef) -> bool:
    return status_of(ref) is ActionStatus.STARTED and not turns_of(ref) and "settled" not in kinds_of_entries(ref)


def hold_is_over(row: Decision) -> None:
    """Without waiting for it."""
    Decision.objects.filter(pk=row.pk).update(held_until=timezone.now() - timedelta(seconds=1))
    due(row)


# --- four eyes -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("gates")
def test_a_decision_that_needs_four_eyes_is_written_when_the_second_person_approves(
    records: RecordWriter, ana: User, cleo: User
) -> None:
    ref = payment(records)
    row = proposed(ref, ana)
    assert nothing_written(ref)
    assert "amount > 1000" in row.rule
    assert "policy 1" in row.rule

    answer = approve(ref, row.decision_id, by=cleo, reason="I see it as well")

    assert answer.kind is AnswerKind.WRITTEN
    assert status_of(ref) is ActionStatus.DONE
    assert turns_of(ref) == ["(settled after a crash: done; operator ana: seen in the dashboard) done"]
    assert kinds_of_entries(ref) == ["proposed", "approved", "settled"]
    said = get_store("main").list_entries(limit=1, agent=ref.agent)[0].detail
    assert (said["second"], said["second_reason"]) == ("approver cleo", "I see it as well")
    row.refresh_from_db()
    assert (row.state, row.second_username, row.username) == ("written", "cleo", "ana")


@pytest.mark.usefixtures("gates")
def test_what_the_rule_lets_through_is_written_at_once(memory: RecordWriter, ana: User) -> None:
    ref = payment(memory, args=SMALL)
    assert decide(ref, a_request(), by=ana).kind is AnswerKind.WRITTEN
    assert kinds_of_entries(ref) == ["settled"]


@pytest.mark.usefixtures("gates")
def test_nobody_is_the_second_person_of_their_own_decision(memory: RecordWriter, person: Cast) -> None:
    both = person("both", "operator", "approver", email="Both@Example.com")
    again = person("again", "approver", email=" both@example.COM")
    root = person("root", is_superuser=True)
    blank, blank_too = person("blank", "operator"), person("blank-too", "approver")
    ref, other = payment(memory), payment(memory, 2)
    row, theirs = proposed(ref, both), proposed(other, blank)

    refused = [approve(ref, row.decision_id, by=who) for who in (both, again)]
    refused += [turn_down(ref, row.decision_id, by=who, reason="I changed my mind") for who in (both, again)]

    assert [answer.kind for answer in refused] == [AnswerKind.OWN_DECISION] * 4
    assert "same email address" in refused[1].detail
    assert nothing_written(ref)
    assert Decision.objects.get(pk=row.pk).state == "proposed"
    assert approve(other, theirs.decision_id, by=blank_too).kind is AnswerKind.WRITTEN  # no address is nobody's address
    mine = proposed(payment(memory, 3), root)
    assert approve(mine.ref, mine.decision_id, by=root).kind is AnswerKind.OWN_DECISION


@pytest.mark.usefixtures("gates")
def test_only_who_may_approve_this_tool_in_this_store_may(
    memory: RecordWriter, ana: User, bea: User, cyd: User, person: Cast
) -> None:
    ref = payment(memory)
    row = proposed(ref, ana)
    elsewhere = person("elsewhere", ("approver", "main", "send_email"), "viewer")

    for who, refusal in ((bea, PermissionDenied), (elsewhere, PermissionDenied), (cyd, Http404)):
        with pytest.raises(refusal):
            approve(ref, row.decision_id, by=who)
        with pytest.raises(refusal):
            turn_down(ref, row.decision_id, by=who, reason="no")

    assert nothing_written(ref)
    assert Decision.objects.get(pk=row.pk).state == "proposed"


@pytest.mark.usefixtures("gates")
def test_a_proposal_that_is_turned_down_says_why_and_is_never_written(memory: RecordWriter, ana: User, cleo: User) -> None:
    ref = payment(memory)
    request = a_request()
    row = decide(ref, request, by=ana).decision
    assert row is not None
    assert turn_down(ref, row.decision_id, by=cleo, reason=" \u200b ").kind is AnswerKind.INVALID

    answer = turn_down(ref, row.decision_id, by=cleo, reason="that was another payment")

    assert answer.kind is AnswerKind.TURNED_DOWN
    row.refresh_from_db()
    assert (row.state, row.why) == ("refused", "cleo turned it down: that was another payment")
    again = [
        decide(ref, request, by=ana),
        approve(ref, row.decision_id, by=cleo),
        turn_down(ref, row.decision_id, by=cleo, reason="x"),
    ]
    assert [one.kind for one in again] == [AnswerKind.ID_REUSED, AnswerKind.NOT_PROPOSED, AnswerKind.TURNED_DOWN]
    assert "cleo turned it down" in again[0].detail
    assert deliver(row.pk) == row
    assert nothing_written(ref)
    assert kinds_of_entries(ref) == ["proposed", "turned_down"]
    assert proposed(ref, ana).pk != row.pk


@pytest.mark.usefixtures("gates")
def test_what_was_approved_already_says_who_did_and_asks_again_for_nothing(
    memory: RecordWriter, ana: User, cleo: User, person: Cast
) -> None:
    ref = payment(memory)
    row = proposed(ref, ana)
    approve(ref, row.decision_id, by=cleo)

    late = approve(ref, row.decision_id, by=person("dora", "approver"))
    same = approve(ref, row.decision_id, by=cleo)

    assert (late.kind, same.kind) == (AnswerKind.NOT_PROPOSED, AnswerKind.REPEATED)
    assert "cleo approved it before you; the decision is written" in late.detail
    assert kinds_of_entries(ref) == ["proposed", "approved", "settled"]


@pytest.mark.usefixtures("own_resolver", "gates")
def test_what_is_approved_is_what_was_shown(memory: RecordWriter, ana: User, amy: User, cleo: User) -> None:
    ref = payment(memory)
    row = proposed(ref, ana, outcome="failed", reason="not in the dashboard")
    item = decide(ref, a_request(), by=ana).item
    assert item is not None
    shown = proposal_digest(row, item)
    world.define(amy)
    world.name_it(amy, PAY)
    world.bring(world.payment("4200"))
    world.ask(ref, ana)

    stale = approve(ref, row.decision_id, by=cleo, seen=shown)
    assert nothing_written(ref)
    fresh = approve(ref, row.decision_id, by=cleo, seen=proposal_digest(row, item))

    assert (stale.kind, fresh.kind) == (AnswerKind.CHANGED, AnswerKind.WRITTEN)


@pytest.mark.usefixtures("gates")
@pytest.mark.parametrize(
    ("status", "kind", "state"), [("done", AnswerKind.REPEATED, "written"), ("failed", AnswerKind.CLOSED, "refused")]
)
@pytest.mark.parametrize("way", ["sweep", "approve", "break_glass", "turn_down"])
def test_a_proposal_whose_action_ends_meanwhile_becomes_what_its_agent_wrote(
    memory: RecordWriter, ana: User, cleo: User, way: str, status: str, kind: AnswerKind, state: str
) -> None:
    ref = payment(memory)
    row = proposed(ref, ana)
    memory.action("billing-7", 1, tool=PAY, args=LARGE, status=status)

    if way == "sweep":
        due(row)
        assert claim_due(10) == [row.pk]
        deliver(row.pk)
    else:
        answer = {
            "approve": lambda: approve(ref, row.decision_id, by=cleo),
            "break_glass": lambda: break_glass(ref, row.decision_id, by=ana, reason="nobody is awake"),
            "turn_down": lambda: turn_down(ref, row.decision_id, by=cleo, reason="it has ended"),
        }[way]()
        assert answer.kind is kind

    row.refresh_from_db()
    assert (row.state, row.second_at, row.broke_glass) == (state, None, "")
    assert not turns_of(ref)
    assert "settled" not in kinds_of_entries(ref)


@pytest.mark.usefixtures("gates")
def test_a_sweep_leaves_a_proposal_alone_and_looks_again_later(memory: RecordWriter, ana: User) -> None:
    ref = payment(memory)
    row = proposed(ref, ana)
    due(row)

    deliver(row.pk)

    now = Decision.objects.get(pk=row.pk)
    assert (now.state, now.attempts, now.may_be_written) == ("proposed", 0, False)
    assert now.next_try_at is not None
    assert now.next_try_at > timezone.now()
    assert nothing_written(ref)


def test_a_rule_is_frozen_when_it_is_proposed(memory: RecordWriter, ana: User, cleo: User, gates: Callable[..., None]) -> None:
    ref = payment(memory)
    row = proposed(ref, ana)
    gates(second_person_when="", hold_s=60)

    attempt(row.pk)
    assert nothing_written(ref)

    assert approve(ref, row.decision_id, by=cleo).kind is AnswerKind.WRITTEN
    assert Decision.objects.get(pk=row.pk).rule == row.rule


def test_no_code_brings_a_proposal_past_its_second_person(memory: RecordWriter, ana: User, gates: Callable[..., None]) -> None:
    row = proposed(payment(memory), ana)
    for state in ("held", "waiting", "written"):
        with pytest.raises(IntegrityError, match="decision_second_person"), transaction.atomic():
            Decision.objects.filter(pk=row.pk).update(state=state)
    with pytest.raises(IntegrityError, match="decision_second_is_another"), transaction.atomic():
        Decision.objects.filter(pk=row.pk).update(state="waiting", second_by=ana, second_at=timezone.now())


@pytest.mark.usefixtures("gates")
def test_a_proposal_for_a_living_agent_waits_for_the_lease_once_it_is_approved(
    memory: RecordWriter, ana: User, cleo: User
) -> None:
    memory.lease("billing-7", state="live")
    ref = payment(memory)
    row = proposed(ref, ana)

    answer = approve(ref, row.decision_id, by=cleo)
    assert answer.kind is AnswerKind.WAITING
    memory.lease("billing-7", epoch=2, state="expired")
    deliver(row.pk)

    assert status_of(ref) is ActionStatus.DONE
    assert kinds_of_entries(ref) == ["proposed", "approved", "waiting", "settled"]


@pytest.mark.usefixtures("gates")
def test_a_store_that_is_down_approves_nothing_and_keeps_the_proposal(flaky: MemoryWriter, ana: User, cleo: User) -> None:
    ref = payment(flaky)
    row = proposed(ref, ana)
    flaky.kept.fails = "read"  # type: ignore[attr-defined]
    answers = [
        approve(ref, row.decision_id, by=cleo),
        turn_down(ref, row.decision_id, by=cleo, reason="no"),
        break_glass(ref, row.decision_id, by=ana, reason="nobody is awake"),
    ]
    assert {answer.kind for answer in answers} == {AnswerKind.UNAVAILABLE}
    assert "connection refused" not in answers[0].detail  # cleo may not read what a store says of itself
    assert Decision.objects.get(pk=row.pk).state == "proposed"

    flaky.kept.fails = "after_write"  # type: ignore[attr-defined]
    assert approve(ref, row.decision_id, by=cleo).kind is AnswerKind.UNAVAILABLE
    flaky.kept.fails = ""  # type: ignore[attr-defined]
    due(row)
    deliver(row.pk)

    row.refresh_from_db()
    assert (row.state, row.second_username) == ("written", "cleo")
    assert kinds_of_entries(ref).count("settled") == 1


@pytest.mark.usefixtures("own_resolver")
def test_what_a_resolver_settles_by_itself_waits_for_a_person_where_the_rule_says_so(
    memory: RecordWriter, ana: User, amy: User, cleo: User
) -> None:
    ref, small = payment(memory), payment(memory, 2, args=SMALL)
    world.define(amy)
    world.name_it(amy, PAY, mode="settle", second_person_when="amount > 1000", tool_timeout_s=5, settle_window_s=60)
    for one, amount in ((ref, "4200"), (small, "42")):
        world.bring(world.payment(amount))
        verdict = world.ask(one, ana)
        assert verdict.grade == Grade.EXACT

    row = Decision.objects.get(agent=ref.agent, seq=1)
    assert (row.state, row.by, row.username) == ("proposed", None, "resolver:sent-folder")
    assert status_of(ref) is ActionStatus.STARTED
    assert status_of(small) is ActionStatus.DONE
    assert approve(ref, row.decision_id, by=cleo).kind is AnswerKind.WRITTEN
    assert Inquiry.objects.count() == 2


# --- hold ------------------------------------------------------------------------------------------------------------


def test_a_decision_is_held_and_then_written(records: RecordWriter, ana: User, gates: Callable[..., None]) -> None:
    gates(hold_s=60)
    ref = payment(records, args=SMALL)

    answer = decide(ref, a_request(), by=ana)
    row = answer.decision

    assert answer.kind is AnswerKind.HELD
    assert row is not None
    assert row.held_until is not None
    assert timedelta(seconds=50) < row.held_until - timezone.now() <= timedelta(seconds=60)
    assert row.next_try_at == row.held_until
    due(row)  # a clock that is ahead of the database's
    assert deliver(row.pk) is not None
    assert nothing_written(ref)
    assert Decision.objects.get(pk=row.pk).next_try_at == row.held_until

    hold_is_over(row)
    assert claim_due(10) == [row.pk]
    deliver(row.pk)

    assert status_of(ref) is ActionStatus.DONE
    assert kinds_of_entries(ref) == ["held", "settled"]


@pytest.mark.parametrize("person_first", [False, True])
def test_what_is_held_can_be_undone_and_is_then_never_written(
    memory: RecordWriter, ana: User, bea: User, cleo: User, gates: Callable[..., None], person_first: bool
) -> None:
    gates(hold_s=60)
    ref = payment(memory, args=LARGE if person_first else SMALL)
    row = decide(ref, a_request(), by=ana).decision
    assert row is not None
    if person_first:
        assert approve(ref, row.decision_id, by=cleo).kind is AnswerKind.HELD

    assert withdraw(ref, by=bea, decision_id=row.decision_id).kind is AnswerKind.WITHDRAWN
    hold_is_over(row)
    deliver(row.pk)

    assert nothing_written(ref)
    assert kinds_of_entries(ref)[-1] == "withdrawn"
    assert withdraw(ref, by=ana).kind is AnswerKind.NOTHING


def test_what_nobody_asked_its_store_to_write_is_withdrawn_while_that_is_down(
    flaky: MemoryWriter, ana: User, gates: Callable[..., None]
) -> None:
    row = proposed(payment(flaky), ana)
    flaky.kept.fails = "read"  # type: ignore[attr-defined]
    assert withdraw(row.ref, by=ana, decision_id=row.decision_id).kind is AnswerKind.WITHDRAWN


# --- break-glass -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("gates")
def test_whoever_may_settle_goes_on_without_a_second_person_and_that_is_recorded(
    memory: RecordWriter, ana: User, bea: User
) -> None:
    ref = payment(memory)
    row = proposed(ref, ana)
    reason = "The bank closes in ten minutes"
    for short in ("urgent", "a \u200b\u200b\u200b\u200b\u200b\u200b\u200b\u200b\u200b", ""):
        assert break_glass(ref, row.decision_id, by=bea, reason=short).kind is AnswerKind.INVALID
    assert nothing_written(ref)

    answer = break_glass(ref, row.decision_id, by=bea, reason=reason)

    assert answer.kind is AnswerKind.WRITTEN
    assert kinds_of_entries(ref) == ["proposed", "broke_glass", "settled"]
    entries = get_store("main").list_entries(limit=3, agent=ref.agent)
    assert (entries[1].actor, entries[1].detail["why"]) == ("operator bea", reason)
    assert (entries[0].detail["broke_glass"], entries[0].detail["broke_glass_by"]) == (reason, "bea")
    row.refresh_from_db()
    assert (row.broke_glass, row.second_by) == (reason, None)


def test_breaking_the_glass_passes_no_hold(memory: RecordWriter, ana: User, gates: Callable[..., None]) -> None:
    gates(hold_s=60)
    row = proposed(payment(memory), ana)
    assert break_glass(row.ref, row.decision_id, by=ana, reason="nobody is awake now").kind is AnswerKind.HELD
    assert nothing_written(row.ref)


@pytest.mark.usefixtures("gates")
def test_nobody_goes_on_alone_where_that_cannot_be_recorded(
    memory: RecordWriter, ana: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = proposed(payment(memory), ana)
    store = get_store("main")
    monkeypatch.setattr(type(store), "append_entry", _broken)

    answer = break_glass(row.ref, row.decision_id, by=ana, reason="nobody is awake now")

    assert answer.kind is AnswerKind.UNAVAILABLE
    assert (Decision.objects.get(pk=row.pk).state, nothing_written(row.ref)) == ("proposed", True)


def _broken(*_: Any, **__: Any) -> None:
    raise RuntimeError("the disk is full")


def test_an_approver_alone_cannot_break_the_glass(
    memory: RecordWriter, ana: User, cleo: User, gates: Callable[..., None]
) -> None:
    row = proposed(payment(memory), ana)
    with pytest.raises(PermissionDenied):
        break_glass(row.ref, row.decision_id, by=cleo, reason="nobody is awake now")
    assert nothing_written(row.ref)


# --- step-up ---------------------------------------------------------------------------------------------------------


def test_who_has_not_proved_lately_who_they_are_keeps_nothing(
    memory: RecordWriter, ana: User, cleo: User, gates: Callable[..., None]
) -> None:
    gates(step_up_when="amount > 1000")
    ref = payment(memory)
    just_now, long_ago = timezone.now(), datetime.now(UTC) - timedelta(minutes=11)
    asked: list[Answer] = [decide(ref, a_request(confirmed_at=at), by=ana) for at in (None, long_ago)]
    assert not Decision.objects.exists()
    assert get_store("main").list_entries(limit=5) == ()

    row = proposed(ref, ana, confirmed_at=just_now)
    asked += [approve(ref, row.decision_id, by=cleo, confirmed_at=at) for at in (None, long_ago)]
    asked += [break_glass(ref, row.decision_id, by=ana, reason="nobody is awake now")]

    assert {answer.kind for answer in asked} == {AnswerKind.CONFIRM}
    assert Decision.objects.get().state == "proposed"
    assert kinds_of_entries(ref) == ["proposed"]
    assert approve(ref, row.decision_id, by=cleo, confirmed_at=just_now).kind is AnswerKind.WRITTEN
