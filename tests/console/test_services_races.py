"""Two at once: people, workers, a person and a worker. One wins, the other is told, and the agent's records are written once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.db import IntegrityError, connection, transaction

from actions.queries import get_action
from actions.records import ActionRef
from console.models import Decision, DecisionId, Note
from console.services.answers import Answer, AnswerKind
from console.services.approve import approve, turn_down
from console.services.decide import DecisionRequest, decide
from console.services.deliver import claim_due, deliver
from console.services.policies import save_policy
from console.services.withdraw import withdraw
from console.stores import get_store
from tests.console.conftest import Cast
from tests.console.workers import wait_until_somebody_waits_for_us
from tests.recall_writer import RecordWriter

pytestmark = pytest.mark.django_db(transaction=True)

ROUNDS = 6
T = TypeVar("T")


def a_request(outcome: str = "done", reason: str = "found in the Sent folder", **fields: Any) -> DecisionRequest:
    return DecisionRequest(outcome=outcome, reason=reason, **{"decision_id": f"test-{uuid4()}", **fields})


def together(*calls: Callable[[], T]) -> list[T]:
    """Call all at once, each in a thread and with a connection of its own."""
    barrier = threading.Barrier(len(calls))

    def one(call: Callable[[], T]) -> T:
        try:
            barrier.wait(60)
            return call()
        finally:
            connection.close()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(120) for future in [pool.submit(one, call) for call in calls]]


def settled_entries(ref: ActionRef) -> int:
    return sum(entry.kind == "settled" for entry in get_store(ref.store).list_entries(limit=50, agent=ref.agent, seq=ref.seq))


def turns_of(ref: ActionRef) -> int:
    return len(get_store(ref.store).list_turns(ref.agent, limit=50))


def kinds(answers: list[Answer]) -> set[AnswerKind]:
    return {answer.kind for answer in answers}


def make_due() -> None:
    Decision.objects.update(next_try_at=datetime.now(UTC) - timedelta(seconds=1))


def test_one_form_sent_twice_is_one_decision(records: RecordWriter, ana: User) -> None:
    for number in range(ROUNDS):
        ref = records.action(f"agent-{number}", 1)
        request = a_request()
        answers = together(*[partial(decide, ref, request, by=ana)] * 4)
        assert sorted(answer.kind for answer in answers) == ["repeated", "repeated", "repeated", "written"]
        assert len({answer.decision.pk for answer in answers if answer.decision}) == 1
        assert (settled_entries(ref), turns_of(ref)) == (1, 1)


def test_of_two_people_one_wins_and_the_other_is_told_who(records: RecordWriter, ana: User, bea: User) -> None:
    for number in range(ROUNDS):
        ref = records.action(f"agent-{number}", 1)
        answers = together(
            partial(decide, ref, a_request("done"), by=ana),
            partial(decide, ref, a_request("failed", "not in the ledger"), by=bea),
        )
        assert kinds(answers) == {AnswerKind.WRITTEN, AnswerKind.CLOSED}
        winner = next(answer for answer in answers if answer.kind is AnswerKind.WRITTEN)
        loser = next(answer for answer in answers if answer.kind is AnswerKind.CLOSED)
        assert winner.decision is not None
        assert loser.decision == winner.decision
        assert winner.decision.actor in loser.detail
        assert (settled_entries(ref), turns_of(ref)) == (1, 1)


def test_of_two_people_at_a_living_agent_one_is_kept(records: RecordWriter, ana: User, bea: User) -> None:
    for number in range(ROUNDS):
        records.lease(f"agent-{number}", state="live")
        ref = records.action(f"agent-{number}", 1)
        answers = together(partial(decide, ref, a_request(), by=ana), partial(decide, ref, a_request("failed"), by=bea))
        assert kinds(answers) == {AnswerKind.WAITING, AnswerKind.PENDING}
        assert Decision.objects.filter(agent=ref.agent).count() == 1


def test_two_workers_deliver_once(records: RecordWriter, ana: User) -> None:
    for number in range(ROUNDS):
        records.lease(f"agent-{number}", state="live")
        ref = records.action(f"agent-{number}", 1)
        answer = decide(ref, a_request(), by=ana)
        assert answer.decision is not None
        pk = answer.decision.pk
        records.lease(f"agent-{number}", epoch=2, state="expired")
        together(*[partial(deliver, pk)] * 3)
        deliver(pk)
        assert Decision.objects.get(pk=pk).state == "written"
        assert (settled_entries(ref), turns_of(ref)) == (1, 1)


def test_two_sweeps_never_take_the_same_decision(records: RecordWriter, ana: User) -> None:
    for number in range(20):
        records.lease(f"agent-{number}", state="live")
        decide(records.action(f"agent-{number}", 1), a_request(), by=ana)
    make_due()
    first, second = together(lambda: claim_due(15), lambda: claim_due(15))
    assert not set(first) & set(second)
    assert len({*first, *second, *claim_due(15)}) == 20


def test_a_decision_is_withdrawn_or_delivered_but_never_both(records: RecordWriter, ana: User) -> None:
    ends = set()
    for number in range(ROUNDS * 2):
        records.lease(f"agent-{number}", state="live")
        ref = records.action(f"agent-{number}", 1)
        answer = decide(ref, a_request(), by=ana)
        assert answer.decision is not None
        pk = answer.decision.pk
        records.lease(f"agent-{number}", epoch=2, state="released")
        _, withdrawn = together(partial(deliver, pk), partial(withdraw, ref, by=ana))
        deliver(pk)
        state = Decision.objects.get(pk=pk).state
        action = get_action(get_store("main"), ref).action
        assert action is not None
        if withdrawn.kind is AnswerKind.WITHDRAWN:  # type: ignore[union-attr]
            assert (state, action.is_open, settled_entries(ref)) == ("withdrawn", True, 0)
        else:
            assert withdrawn.kind is AnswerKind.CLOSED  # type: ignore[union-attr]
            assert (state, action.is_open, settled_entries(ref)) == ("written", False, 1)
        ends.add(state)
    assert ends <= {"withdrawn", "written"}


def test_a_person_and_a_worker_after_a_crash_write_once(
    records: RecordWriter, ana: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dying(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for number in range(ROUNDS):
        ref = records.action(f"agent-{number}", 1)
        request = a_request()
        with monkeypatch.context() as patch:
            patch.setattr(get_store("main"), "settle", dying)
            with pytest.raises(KeyboardInterrupt):
                decide(ref, request, by=ana)
        pk = Decision.objects.get(agent=ref.agent).pk
        answer, _ = together(partial(decide, ref, request, by=ana), partial(deliver, pk))
        assert answer.kind is AnswerKind.REPEATED  # type: ignore[union-attr]
        assert (settled_entries(ref), turns_of(ref)) == (1, 1)


def test_a_note_sent_twice_at_once_is_one_note(records: RecordWriter, ana: User) -> None:
    ref = records.action("billing-7", 1)
    request = a_request("later", "asked the bank")
    answers = together(*[partial(decide, ref, request, by=ana)] * 4)
    assert sorted(answer.kind for answer in answers) == ["noted", "repeated", "repeated", "repeated"]


def test_the_database_itself_allows_one_pending_decision(memory: RecordWriter, ana: User) -> None:
    memory.lease("billing-7", state="live")
    answer = decide(memory.action("billing-7", 1), a_request(), by=ana)
    row = answer.decision
    assert row is not None
    row.pk, row.decision_id, row.state = None, "another-decision", "held"
    with pytest.raises(IntegrityError), transaction.atomic():
        row.save(force_insert=True)


def test_whoever_is_at_a_decision_is_waited_for_but_not_for_ever(
    memory: RecordWriter, ana: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("console.services.deliver.LOCK_TIMEOUT", timedelta(milliseconds=200))
    memory.lease("billing-7", state="live")
    ref = memory.action("billing-7", 1)
    request = a_request()
    decide(ref, request, by=ana)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        try:
            with transaction.atomic():
                Decision.objects.select_for_update().get()
                held.set()
                done.wait(120)
        finally:
            connection.close()

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert held.wait(60)
        assert deliver(Decision.objects.get().pk) is None
        assert withdraw(ref, by=ana).kind is AnswerKind.UNAVAILABLE
        answer = decide(ref, request, by=ana)
        assert answer.kind is AnswerKind.UNAVAILABLE
        assert "not known" in answer.detail
    finally:
        done.set()
        thread.join()
    assert withdraw(ref, by=ana).kind is AnswerKind.WITHDRAWN


def test_one_id_as_a_note_and_as_a_decision_at_once_is_one_of_them(memory: RecordWriter, ana: User) -> None:
    for number in range(ROUNDS):
        ref = memory.action(f"agent-{number}", 1)
        decided = a_request()
        noted = a_request("later", "asked the bank", decision_id=decided.decision_id)
        answers = together(partial(decide, ref, decided, by=ana), partial(decide, ref, noted, by=ana))
        assert AnswerKind.ID_REUSED in kinds(answers)
        assert kinds(answers) & {AnswerKind.WRITTEN, AnswerKind.NOTED}
        rows = Decision.objects.filter(decision_id=decided.decision_id).count()
        assert rows + Note.objects.filter(decision_id=decided.decision_id).count() == 1


def test_a_note_waits_for_the_decision_that_uses_its_id(memory: RecordWriter, ana: User) -> None:
    ref = memory.action("billing-7", 1)
    request = a_request("later", "asked the bank")
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            DecisionId.objects.create(id=request.decision_id)
            coming = pool.submit(_and_close, partial(decide, ref, request, by=ana))
            wait_until_somebody_waits_for_us()
            assert not coming.done()
        assert coming.result(60).kind is AnswerKind.ID_REUSED
    assert not Note.objects.exists()


def _and_close(call: Callable[[], T]) -> T:
    try:
        return call()
    finally:
        connection.close()


# --- the second person and the hold ----------------------------------------------------------------------------------


PAY = "create_payment"


@pytest.fixture
def four_eyes(person: Cast) -> User:
    """Payments need a second person; who set that is an admin and nothing else."""
    admin = person("amy", "admin")
    save_policy(PAY, {"second_person_when": "true"}, seen_version=0, by=admin)
    return admin


def proposed(records: RecordWriter, by: User, number: int) -> Decision:
    row = decide(records.action(f"agent-{number}", 1, tool=PAY), a_request(), by=by).decision
    assert row is not None
    assert row.state == "proposed"
    return row


def final(row: Decision) -> tuple[str, int, int]:
    return Decision.objects.get(pk=row.pk).state, settled_entries(row.ref), turns_of(row.ref)


@pytest.mark.usefixtures("four_eyes")
def test_of_two_second_people_one_approves_and_the_other_is_told_who(records: RecordWriter, ana: User, person: Cast) -> None:
    cleo, dora = person("cleo", "approver"), person("dora", "approver", "operator")
    for number in range(ROUNDS):
        row = proposed(records, ana, number)
        answers = together(*(partial(approve, row.ref, row.decision_id, by=who) for who in (cleo, dora)))
        assert kinds(answers) == {AnswerKind.WRITTEN, AnswerKind.NOT_PROPOSED}
        now = Decision.objects.get(pk=row.pk)
        assert f"{now.second_username} approved it before you" in next(
            a.detail for a in answers if a.kind is AnswerKind.NOT_PROPOSED
        )
        assert final(row) == ("written", 1, 1)


@pytest.mark.usefixtures("four_eyes")
@pytest.mark.parametrize("other", ["withdraw", "turn_down", "sweep"])
def test_an_approval_and_its_opposite_end_in_one_of_the_two(records: RecordWriter, ana: User, person: Cast, other: str) -> None:
    cleo, dora = person("cleo", "approver"), person("dora", "approver")
    ends = {"withdraw": "withdrawn", "turn_down": "refused", "sweep": "written"}
    for number in range(ROUNDS):
        row = proposed(records, ana, number)
        make_due()
        against: Callable[[], Any] = {
            "withdraw": partial(withdraw, row.ref, by=ana, decision_id=row.decision_id),
            "turn_down": partial(turn_down, row.ref, row.decision_id, by=dora, reason="another payment"),
            "sweep": partial(deliver, row.pk),
        }[other]
        together(partial(approve, row.ref, row.decision_id, by=cleo), against)
        deliver(row.pk)
        state, entries, turns = final(row)
        assert state in {"written", ends[other]}
        assert (entries, turns) == ((1, 1) if state == "written" else (0, 0))


@pytest.mark.usefixtures("four_eyes")
def test_an_approval_and_the_agents_own_end_leave_one_end(records: RecordWriter, ana: User, person: Cast) -> None:
    cleo = person("cleo", "approver")
    for number in range(ROUNDS):
        row = proposed(records, ana, number)
        together(
            partial(approve, row.ref, row.decision_id, by=cleo),
            partial(records.action, row.agent, 1, tool=PAY, status="done"),
        )
        deliver(row.pk)
        assert Decision.objects.get(pk=row.pk).state == "written"
        assert settled_entries(row.ref) == turns_of(row.ref) <= 1


def test_the_end_of_a_hold_and_its_undoing_end_in_one_of_the_two(records: RecordWriter, ana: User, four_eyes: User) -> None:
    save_policy(PAY, {"second_person_when": "", "hold_s": 60}, seen_version=1, by=four_eyes)
    for number in range(ROUNDS):
        row = decide(records.action(f"agent-{number}", 1, tool=PAY), a_request(), by=ana).decision
        assert row is not None
        assert row.state == "held"
        Decision.objects.filter(pk=row.pk).update(held_until=datetime.now(UTC) - timedelta(seconds=1))
        make_due()
        answers = together(partial(withdraw, row.ref, by=ana, decision_id=row.decision_id), partial(deliver, row.pk))
        deliver(row.pk)
        state, entries, turns = final(row)
        assert (state, entries, turns) in {("written", 1, 1), ("withdrawn", 0, 0)}
        assert isinstance(answers[0], Answer)
        assert (answers[0].kind is AnswerKind.WITHDRAWN) is (state == "withdrawn")


@pytest.mark.usefixtures("four_eyes")
def test_a_worker_that_dies_right_after_the_approval_loses_nothing(
    records: RecordWriter, ana: User, person: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = proposed(records, ana, 0)
    cleo = person("cleo", "approver")
    monkeypatch.setattr("console.services.approve.announce", _killed)
    with pytest.raises(KeyboardInterrupt):
        approve(row.ref, row.decision_id, by=cleo)
    assert final(row) == ("waiting", 0, 0)

    make_due()
    for pk in claim_due(10):
        deliver(pk)

    assert final(row) == ("written", 1, 1)
    entry = get_store("main").list_entries(limit=1, agent=row.agent)[0]
    assert entry.detail["second"] == "approver cleo"


def _killed(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt
