"""Runs from their start to their end: what is kept of a step, what stops one, and what people do about it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db import OperationalError, connection
from django.http import Http404
from django.utils import timezone
from pydantic import AfterValidator, BaseModel

from actions.errors import InvalidDecision
from actions.records import ActionRef
from agents.runs import RunTypeRefused
from agents.steps import Meter
from console import run_types
from console.models import Approval, Run, RunEvent
from console.run_types import UnknownRunType
from console.services import advancing, run_claims, runs
from console.services.advancing import advance_run
from console.services.approvals import expire_approvals
from console.services.decide import DecisionRequest, decide
from console.services.run_claims import claim_due_runs, free_the_lost, wake_parked
from console.services.run_rows import OpenCalls, RunNotPossible, add_event
from console.services.runs import (
    IdempotencyConflict,
    InvalidRunInput,
    cancel_run,
    get_run,
    list_runs,
    mark_done,
    restart_run,
    restart_warnings,
    resume_run,
    start_run,
)
from console.services.undoing import undo_run
from console.stores import get_store
from tests.console.conftest import Cast
from tests.console.entries import console_entries
from tests.console.run_kinds import Died, effects
from tests.console.runs import BOOK, LOOK, PAY, PAY_MUCH, SEND, details_of, drive, errand, kinds_of, start
from tests.console.workers import wait_for
from tests.recall_writer import RecordWriter
from tests.store.memory_writer import MemoryWriter

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("errands")]
WHY = "seen in the dashboard"


def nested(depth: int) -> list[Any]:
    inner: list[Any] = []
    for _ in range(depth):
        inner = [inner]
    return inner


def as_if_dead(run: Run, *, ago: timedelta = timedelta(minutes=1)) -> None:
    """A worker took it so long ago and was never heard of again."""
    assert run_claims.take_claim(run.pk)
    Run.objects.filter(pk=run.pk).update(held_until=timezone.now() + timedelta(seconds=150) - ago)


def ended_ago(run: Run, ago: timedelta) -> None:
    Run.objects.filter(pk=run.pk).update(stepped_at=timezone.now() - ago)


# --- from the start to the end ---------------------------------------------------------------------------------------


def test_a_run_makes_each_call_once_and_ends_with_its_events_records_and_entry(records: RecordWriter, ana: User) -> None:
    run = drive(start(ana, LOOK, [SEND, BOOK]))

    assert (run.status, run.problem, run.due_at, run.token) == ("done", "", None, "")
    assert [len(effects(tool)) for tool in ("look_up", "send", "book")] == [1, 1, 1]
    assert run.result.startswith("done: order A-1 is there; send ")
    assert kinds_of(run) == ["started", *["step"] * run.steps, "done"]
    assert [event.number for event in RunEvent.objects.filter(run=run).order_by("number")] == list(range(1, run.steps + 3))
    assert run.cost == sum(Decimal(step["cost"]) for step in details_of(run, "step") if "cost" in step) == Decimal("0.03")
    made = [call for step in details_of(run, "step") for call in step["calls"]]
    assert [(call["seq"], call["status"]) for call in made] == [(1, "done"), (2, "done"), (3, "done")]
    assert all(step["checkpoint"] for step in details_of(run, "step"))
    actions = get_store("main").list_agent_actions(run.run_id, limit=10)
    assert {one.action.key for one in actions} >= {effects("send")[0]["key"], effects("book")[0]["key"]}  # type: ignore[union-attr]
    (entry,) = console_entries("run_started")
    assert (entry.actor, entry.agent, entry.detail["changed"]) == ("operator ana", run.run_id, {"run": [None, "running"]})


def test_what_is_over_is_advanced_by_nobody(memory: RecordWriter, ana: User) -> None:
    run = drive(start(ana, SEND))
    before = RunEvent.objects.count()

    assert not advance_run(run.pk)
    assert claim_due_runs(10) == []
    assert (RunEvent.objects.count(), len(effects("send"))) == (before, 1)


def test_the_same_key_is_the_same_run_and_with_other_content_a_conflict(memory: RecordWriter, ana: User, bea: User) -> None:
    first, is_new = start_run("errand", errand(SEND), by=ana, idempotency_key="order-7")
    again, is_new_again = start_run("errand", errand(SEND), by=ana, idempotency_key="order-7")

    assert (first.pk, is_new, is_new_again) == (again.pk, True, False)
    with pytest.raises(IdempotencyConflict) as refused:
        start_run("errand", errand(LOOK), by=ana, idempotency_key="order-7")
    assert refused.value.run == first
    assert start_run("errand", errand(SEND), by=bea, idempotency_key="order-7")[1]
    assert len(console_entries("run_started")) == 2


@pytest.mark.django_db(transaction=True)
def test_of_two_starts_with_one_key_at_one_moment_there_is_one_run(memory: RecordWriter, ana: User) -> None:
    def begin(_: int) -> tuple[int, bool]:
        try:
            run, is_new = start_run("errand", errand(SEND), by=ana, idempotency_key="order-7")
            return run.pk, is_new
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(begin, range(8)))

    assert len({pk for pk, _ in answers}) == 1
    assert [is_new for _, is_new in answers].count(True) == 1
    assert (Run.objects.count(), len(console_entries("run_started"))) == (1, 1)


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        ("nothing", errand(SEND), "no run type is called 'nothing'; known: errand, "),
        ("errand", {}, "turns: Field required"),
        ("errand", {"turns": [], "more": 1}, "more: Extra inputs are not permitted"),
        ("errand", {"turns": [[["send", {"to": "a\x00b"}]]]}, "turns.0.0.1.to: holds a NUL"),
        ("errand", {"turns": [[["send", {"to": "\ud800"}]]]}, "turns.0.0.1.to: holds a NUL or half a character"),
        ("errand", {"turns": [[["send", {"to": "x" * 300_000}]]]}, "the limit is 262,144"),
        ("errand", {"turns": [[["send", {"to": float("nan")}]]]}, "the input is not JSON"),
        *(("errand", {"turns": [[["send", {"to": nested(depth)}]]]}, "nested too deeply") for depth in (700, 5000)),
    ],
)
def test_bad_input_gets_one_clear_line_and_starts_nothing(
    memory: RecordWriter, ana: User, kind: str, given: dict[str, Any], said: str
) -> None:
    with pytest.raises((UnknownRunType, InvalidRunInput), match=".") as refused:
        start_run(kind, given, by=ana)

    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not Run.objects.exists()


# --- what stops one --------------------------------------------------------------------------------------------------


def test_a_graph_that_raises_fails_the_run_and_resuming_begins_that_step_again(
    memory: RecordWriter, ana: User, errands: Path
) -> None:
    (errands / "broken").touch()
    run = drive(start(ana, SEND, LOOK, breaks=1))
    assert run.status == "failed"
    assert run.problem.startswith("ValueError: the model broke")
    assert "sk-live" not in run.problem + str(details_of(run, "failed"))
    (errands / "broken").unlink()

    resume_run(run.run_id, by=ana, reason=WHY)
    drive(run)

    assert run.status == "done"
    assert [len(effects(tool)) for tool in ("send", "look_up")] == [1, 1]
    assert details_of(run, "resumed") == [{"reason": WHY}]
    (entry,) = console_entries("run_resumed")
    assert (entry.reason, entry.detail["changed"]) == (WHY, {"run": ["failed", "running"]})


@pytest.mark.parametrize(("kind", "said"), [("short", "its type allows 3"), ("cheap", "its type allows 0.02")])
def test_a_run_that_reaches_a_limit_fails_between_two_steps(memory: RecordWriter, ana: User, kind: str, said: str) -> None:
    run = drive(start(ana, LOOK, SEND, SEND, kind=kind))

    assert run.status == "failed"
    assert said in run.problem
    assert len(effects("send")) <= 1
    with pytest.raises(RunNotPossible, match="begin it anew"):
        resume_run(run.run_id, by=ana, reason=WHY)


def test_a_call_that_nobody_knows_about_parks_the_run_until_a_person_settles_it(
    records: RecordWriter, ana: User, errands: Path
) -> None:
    (errands / "vague-send").touch()
    run = drive(start(ana, SEND, LOOK))
    assert (run.status, run.parked, run.due_at, run.token) == ("running", "open_calls", None, "")
    lease = get_store("main").find_lease(run.run_id)
    assert lease is not None
    assert not lease.is_live
    soon(run)
    assert (wake_parked(10), claim_due_runs(10)) == (0, [])

    decide(
        ActionRef("main", run.run_id, 1),
        DecisionRequest(outcome="done", reason=WHY, decision_id="decision-1", result="sent"),
        by=ana,
    )
    soon(run)
    assert wake_parked(10) == 1
    drive(run)

    assert (run.status, run.parked) == ("done", "")
    assert (len(effects("send")), len(effects("look_up"))) == (1, 1)
    assert details_of(run, "resumed") == [{"reason": "the calls that were in doubt are settled"}]


def soon(run: Run) -> None:
    Run.objects.filter(pk=run.pk).update(queued_until=timezone.now())


def test_a_lease_that_somebody_has_lets_the_run_wait_and_nothing_is_called(memory: MemoryWriter, ana: User) -> None:
    run = start(ana, SEND)
    memory.lease(run.run_id, state="live")

    drive(run)

    assert (run.status, run.parked, effects("send")) == ("running", "lease", [])
    assert run.due_at is not None
    assert claim_due_runs(10) == []


def test_a_store_that_is_down_lets_the_run_wait_and_it_goes_on_once_that_is_back(flaky: MemoryWriter, ana: User) -> None:
    run = start(ana, SEND)
    down = flaky.kept
    for _ in range(3):
        assert advance_run(run.pk)
    good = type(down).load_agent
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(down), "load_agent", _refuses)
        drive(run)
        assert (run.status, run.parked) == ("running", "store")
        drive(run)
    assert type(down).load_agent is good
    Run.objects.filter(pk=run.pk).update(due_at=timezone.now())

    drive(run)

    assert (run.status, run.parked, len(effects("send"))) == ("done", "", 1)
    assert kinds_of(run).count("parked") == 1


def _refuses(*_: object) -> None:
    from actions.errors import StoreUnavailable

    raise StoreUnavailable("main", "connection refused")


def test_a_type_that_is_gone_fails_the_run_and_says_so(memory: RecordWriter, ana: User) -> None:
    run = start(ana, SEND)
    Run.objects.update(type="gone")

    drive(run)

    assert (run.status, effects("send")) == ("failed", [])
    assert "no run type is called 'gone'" in run.problem
    with pytest.raises(Http404):
        get_run(run.run_id, by=User.objects.create(username="eve"))
    with pytest.raises(RunNotPossible, match="no run type"):
        resume_run(run.run_id, by=ana, reason=WHY)


def test_a_check_of_a_types_own_that_breaks_is_said_and_starts_nothing(memory: RecordWriter, ana: User) -> None:
    class Odd(BaseModel):
        order: Annotated[str, AfterValidator(lambda order: {}[order])]

    known = run_types.run_types()
    known["errand"] = replace(known["errand"], input=Odd)

    with pytest.raises(InvalidRunInput, match="what run type errand checks about its input broke: KeyError") as refused:
        start_run("errand", {"order": "A-17"}, by=ana)

    assert "A-17" not in str(refused.value)
    assert not Run.objects.exists()


def test_run_types_that_cannot_be_loaded_let_every_run_wait_and_it_goes_on_once_they_can(
    memory: RecordWriter, ana: User, settings: Any
) -> None:
    run, waiting = start(ana, SEND), drive(start(ana, PAY_MUCH))
    back = start(ana, PAY)
    Run.objects.filter(pk=back.pk).update(status="failed", undoing="running")
    loadable, settings.RUN_TYPES = settings.RUN_TYPES, ("no.such.module",)
    run_types.forget()

    for _ in range(3):
        Run.objects.exclude(pk=waiting.pk).update(due_at=timezone.now())
        assert drive(run).due_at is not None
        undo_run(back.pk)
    back.refresh_from_db()

    said = "module no.such.module of RUN_TYPES cannot be loaded (ModuleNotFoundError)"
    assert (run.status, run.parked, run.problem, run.lost_steps, run.token) == ("running", "", said, 0, "")
    assert (back.undoing, back.parked, back.token) == ("running", "", "")
    assert details_of(run, "parked") == [{"problem": said}]
    with pytest.raises(RunTypeRefused, match="no.such.module"):
        start_run("errand", errand(SEND), by=ana)
    assert get_run(waiting.run_id, by=ana).status == "waiting_approval"
    assert expire_approvals(10) == 0
    settings.RUN_TYPES = loadable
    run_types.forget()
    Run.objects.filter(pk=run.pk).update(due_at=timezone.now())
    assert (drive(run).status, run.problem, len(effects("send"))) == ("done", "", 1)


# --- workers that die ------------------------------------------------------------------------------------------------


def test_what_a_dead_worker_was_at_is_found_by_its_lease_and_only_by_that(memory: MemoryWriter, ana: User) -> None:
    run = start(ana, SEND)
    as_if_dead(run, ago=timedelta(seconds=5))
    assert free_the_lost(10) == 0, "it may be about to take the lease"
    as_if_still(run, timedelta(minutes=1))
    memory.lease(run.run_id, state="live")
    assert free_the_lost(10) == 0, "it is alive"
    assert not advance_run(run.pk)

    memory.lease(run.run_id, state="expired")
    assert free_the_lost(10) == 1
    drive(run)

    assert (run.status, run.resumes, run.lost_steps, len(effects("send"))) == ("done", 1, 0, 1)
    (said,) = details_of(run, "resumed")
    assert (said["reason"], said["lost"]) == ("the worker that was at it is gone", 1)


def as_if_still(run: Run, ago: timedelta) -> None:
    Run.objects.filter(pk=run.pk).update(held_until=timezone.now() + timedelta(seconds=150) - ago)


def test_a_step_whose_worker_died_before_it_could_say_so_is_not_made_again_and_its_checkpoint_is_told_of(
    memory: RecordWriter, ana: User
) -> None:
    run, kind = start(ana, SEND), runs.find_run_type("errand")
    undisturbed = drive(start(ana, LOOK))
    while not effects("send"):
        assert (token := run_claims.take_claim(run.pk))
        assert advancing._step(Run.objects.get(pk=run.pk), kind, token, Meter(kind.cost, attempt=token)).is_ours
        as_if_still(run, timedelta(minutes=1))  # and it is never heard of again
        assert free_the_lost(10) == 1
        Run.objects.filter(pk=run.pk).update(due_at=timezone.now())  # nobody waits for the pause

    drive(run)

    steps = details_of(run, "step")
    assert (run.status, len(effects("send")), run.steps) == ("done", 1, undisturbed.steps)
    assert len({step["checkpoint"] for step in steps}) == len(steps) == run.steps
    assert [step["nodes"] for step in steps] == [step["nodes"] for step in details_of(undisturbed, "step")]
    assert [bool(step.get("told_by")) for step in steps] == [True] * run.resumes + [False] * (run.steps - run.resumes)
    assert run.cost == undisturbed.cost == sum(Decimal(step.get("cost", 0)) for step in steps)


@pytest.mark.parametrize(("kind", "ends", "cost"), [("errand", "done", "0.04"), ("cheap", "failed", "0.02")])
def test_what_a_step_cost_whose_workers_were_killed_counts_once_each_and_towards_the_limit(
    memory: RecordWriter, ana: User, errands: Path, kind: str, ends: str, cost: str
) -> None:
    run = start(ana, SEND, kind=kind)
    (errands / "dies").touch()
    for lost in (1, 2):
        with pytest.raises(Died):
            advance_run(run.pk)
        as_if_still(run, timedelta(minutes=1))
        assert free_the_lost(10) == 1
        Run.objects.filter(pk=run.pk).update(due_at=timezone.now())
        run.refresh_from_db()
        assert (run.steps, run.lost_steps, run.status) == (0, lost, "running")
    (errands / "dies").unlink()

    drive(run)

    assert (run.status, run.cost, len(effects("send"))) == (ends, Decimal(cost), ends == "done")
    told = [*details_of(run, "step"), *details_of(run, "failed")]
    assert sum(Decimal(one.get("cost", 0)) for one in told) == run.cost
    assert [one["lost_cost"] for one in told if "lost_cost" in one] == ["0.02"]
    assert ("it has cost 0.02, and its type allows 0.02" in run.problem) is (ends == "failed")


def test_a_worker_that_lost_its_claim_writes_nothing(memory: RecordWriter, ana: User) -> None:
    run = start(ana, SEND)
    token = run_claims.take_claim(run.pk)
    assert token
    as_if_still(run, timedelta(minutes=1))
    assert free_the_lost(10) == 1
    step = advancing.Step(state=advancing.StepState.DONE, checkpoint="c", result="stale")
    kind = runs.find_run_type("errand")

    assert not run_claims.renew_claim(run.pk, token)
    assert not advancing._keep(run.pk, token, kind, step)
    assert not advancing._keep_failed(run.pk, token, "stale")

    run.refresh_from_db()
    assert (run.status, run.result, run.problem, kinds_of(run)) == ("running", "", "", ["started", "resumed"])


def test_what_the_lost_steps_of_a_run_cost_counts_too_where_they_end_it(
    memory: RecordWriter, ana: User, errands: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_claims, "MAX_LOST", 2)
    run = start(ana, SEND)
    (errands / "dies").touch()
    for _ in range(2):
        with pytest.raises(Died):
            advance_run(run.pk)
        as_if_still(run, timedelta(minutes=1))
        assert free_the_lost(10) == 1
        Run.objects.filter(pk=run.pk, status="running").update(due_at=timezone.now())

    run.refresh_from_db()
    (failed,) = details_of(run, "failed")
    assert (run.status, run.cost, failed["cost"], effects("send")) == ("failed", Decimal("0.02"), "0.02", [])


@pytest.mark.parametrize("leaves_a_call", [False, True])
def test_a_step_that_kills_one_worker_after_the_other_waits_longer_each_time_and_fails_the_run(
    memory: MemoryWriter, ana: User, monkeypatch: pytest.MonkeyPatch, leaves_a_call: bool
) -> None:
    monkeypatch.setattr(run_claims, "MAX_LOST", 4)
    run = start(ana, SEND)
    for lost, pause in ((1, timedelta(0)), (2, timedelta(seconds=2)), (3, timedelta(seconds=4))):
        as_if_dead(run)
        earliest = timezone.now() + pause
        assert free_the_lost(10) == 1
        run.refresh_from_db()
        assert run.due_at is not None
        assert earliest <= run.due_at <= timezone.now() + pause
        if leaves_a_call:  # settled by somebody before the step is begun again
            Run.objects.filter(pk=run.pk).update(due_at=timezone.now())
            ref = memory.action(run.run_id, lost, tool="send", args={"to": "ann"})
            assert drive(run).parked == "open_calls"
            decide(ref, DecisionRequest(outcome="failed", reason=WHY, decision_id=f"decision-{lost}"), by=ana)
            soon(run)
            assert wake_parked(10) == 1
        Run.objects.filter(pk=run.pk).update(due_at=timezone.now())
    as_if_dead(run)
    assert free_the_lost(10) == 1

    run.refresh_from_db()
    assert (run.status, run.steps, run.due_at, effects("send")) == ("failed", 0, None, [])
    assert run.problem == (
        "4 workers were lost in the same step, which may be what kills them; look what it needs, "
        "then resume the run, or begin it anew"
    )
    assert [one["lost"] for one in details_of(run, "resumed") if "lost" in one] == [1, 2, 3]
    resume_run(run.run_id, by=ana, reason=WHY)
    as_if_dead(run)
    assert free_the_lost(10) == 1
    assert drive(run).status == "done"


@pytest.mark.parametrize(
    ("kind", "calls", "ago", "ends"),
    [
        ("errand", [SEND], timedelta(days=3), "done"),
        ("anew", [SEND], timedelta(0), "restarted"),
        ("anew", [PAY], timedelta(0), "done"),
        ("soon", [SEND], timedelta(minutes=1), "done"),
        ("soon", [SEND], timedelta(minutes=9), "restarted"),
        ("soon", [PAY], timedelta(minutes=9), "failed"),
    ],
)
def test_what_is_done_about_a_lost_worker_is_its_types_policy_and_never_a_restart_once_money_moved(
    memory: RecordWriter, ana: User, kind: str, calls: list[Any], ago: timedelta, ends: str
) -> None:
    run = start(ana, *calls, LOOK, kind=kind)
    while not [call for step in details_of(run, "step") for call in step["calls"]]:
        assert advance_run(run.pk)
    as_if_dead(run)
    ended_ago(run, ago)
    free_the_lost(10)

    drive(run)

    tool = calls[0][0]
    assert (run.status, len(effects(tool))) == ("done" if ends == "done" else "failed", 1)
    new = Run.objects.filter(restart_of=run).first()
    assert (new is not None) is (ends == "restarted")
    if new is not None:
        assert new.run_id in run.problem
        assert drive(new).status == "done"
        assert len({one["key"] for one in effects(tool)}) == len(effects(tool)) == 2
    if ends == "failed":
        assert "a person has to say whether it is resumed or begun anew" in run.problem
        assert len(restart_warnings(run)) == 1
        assert drive(restart_run(run.run_id, by=ana, reason=WHY)).status == "done"


def test_runs_that_are_begun_anew_by_themselves_wait_longer_each_time_and_end_as_one_does(
    memory: RecordWriter, ana: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advancing, "MAX_LOST", 4)
    run = start(ana, SEND, kind="anew")
    for pause in (timedelta(0), timedelta(seconds=2), timedelta(seconds=4)):
        as_if_dead(run)
        assert free_the_lost(10) == 1
        earliest = timezone.now() + pause
        assert drive(run).status == "failed"
        run = Run.objects.get(restart_of=run)
        assert run.due_at is not None
        assert earliest <= run.due_at <= timezone.now() + pause
        Run.objects.filter(pk=run.pk).update(due_at=timezone.now())
    as_if_dead(run)
    assert free_the_lost(10) == 1

    assert drive(run).status == "failed"
    assert run.problem.startswith("4 runs one after the other lost their worker and were begun anew")
    assert (Run.objects.count(), effects("send")) == (4, [])
    as_person = restart_run(run.run_id, by=ana, reason=WHY)
    as_if_dead(as_person)
    assert free_the_lost(10) == 1
    assert drive(as_person).problem.startswith("its type begins anew")


def test_a_run_that_no_sweep_can_handle_keeps_none_from_the_others(
    memory: RecordWriter, ana: User, caplog: pytest.LogCaptureFixture
) -> None:
    odd, dead = start(ana, SEND), start(ana, SEND)
    for run in (odd, dead):
        as_if_dead(run)
    add_event(odd, "resumed", attempt="a")
    RunEvent.objects.filter(run=odd, kind="resumed").update(detail='{"attempt":')
    Run.objects.filter(pk=odd.pk).update(lost_steps=1, held_until=timezone.now())
    unread, silent = drive(start(ana, PAY_MUCH, kind="patient")), drive(start(ana, PAY_MUCH, kind="patient"))
    Approval.objects.filter(run=unread).update(args="{", expires_at=timezone.now() - timedelta(hours=1))
    Approval.objects.filter(run=silent).update(expires_at=timezone.now())

    assert (free_the_lost(10), expire_approvals(10)) == (1, 1)

    assert drive(dead).status == "done"
    assert [one.state for one in Approval.objects.filter(run=silent).order_by("pk")] == ["expired", "pending"]
    assert [one.state for one in Approval.objects.filter(run=unread)] == ["pending"]
    said = [record.getMessage() for record in caplog.records if record.name == "console.services.run_claims"]
    assert len(said) == 2
    assert odd.run_id in said[0]
    with pytest.raises(OperationalError), run_claims.whatever_befalls("run-1", "looking"):
        raise OperationalError("the connection is closed")


# --- what people do --------------------------------------------------------------------------------------------------


def test_a_run_that_is_due_is_cancelled_at_once_and_makes_no_call(memory: RecordWriter, ana: User) -> None:
    run = start(ana, SEND)
    advance_run(run.pk)

    cancelled = cancel_run(run.run_id, by=ana, reason=WHY)

    assert (cancelled.status, cancelled.due_at) == ("cancelled", None)
    assert not advance_run(run.pk)
    assert effects("send") == []
    (entry,) = console_entries("run_cancelled")
    assert (entry.reason, entry.detail["changed"]) == (WHY, {"run": ["running", "cancelled"]})
    with pytest.raises(RunNotPossible, match="cancelled already"):
        cancel_run(run.run_id, by=ana, reason=WHY)


def test_a_run_that_is_cancelled_while_its_worker_is_dead_ends_as_soon_as_that_is_found(memory: RecordWriter, ana: User) -> None:
    run = start(ana, SEND)
    as_if_dead(run)
    assert cancel_run(run.run_id, by=ana, reason=WHY).status == "running"
    free_the_lost(10)

    drive(run)

    assert (run.status, effects("send"), kinds_of(run)[-1]) == ("cancelled", [], "cancelled")


@pytest.mark.django_db(transaction=True)
def test_a_run_that_a_worker_is_at_is_cancelled_after_that_step_and_its_call_is_not_cut_off(
    memory: RecordWriter, ana: User, errands: Path
) -> None:
    (errands / "stop-before-ann").touch()
    run = start(ana, SEND, LOOK)

    def work() -> None:
        try:
            drive(Run.objects.get(pk=run.pk))
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        wait_for((errands / "at-before-ann").exists, "the worker is in the call")
        assert cancel_run(run.run_id, by=ana, reason=WHY).status == "running"
        with pytest.raises(RunNotPossible, match="ana has cancelled it already"):
            cancel_run(run.run_id, by=ana, reason=WHY)
        with pytest.raises(RunNotPossible, match="a worker is at it"):
            mark_done_anyhow(run, ana)
        (errands / "stop-before-ann").unlink()
        working.result(120)

    run.refresh_from_db()
    assert (run.status, len(effects("send")), effects("look_up")) == ("cancelled", 1, [])
    assert len(console_entries("run_cancelled")) == 1


def mark_done_anyhow(run: Run, by: User) -> None:
    Run.objects.filter(pk=run.pk).update(type="careless")
    try:
        mark_done(run.run_id, by=by, reason=WHY)
    finally:
        Run.objects.filter(pk=run.pk).update(type="errand")


def test_a_restart_is_another_run_with_keys_of_its_own_and_there_is_one(memory: RecordWriter, ana: User) -> None:
    run = start(ana, SEND, LOOK)
    while not effects("send"):
        advance_run(run.pk)
    with pytest.raises(RunNotPossible, match="only one that failed or was cancelled"):
        restart_run(run.run_id, by=ana, reason=WHY)
    cancel_run(run.run_id, by=ana, reason=WHY)

    new = drive(restart_run(run.run_id, by=ana, reason=WHY))

    assert (new.status, new.restart_of_id, new.input) == ("done", run.pk, run.input)
    assert len({one["key"] for one in effects("send")}) == 2
    with pytest.raises(RunNotPossible, match=new.run_id):
        restart_run(run.run_id, by=ana, reason=WHY)
    assert console_entries("run_restarted")[0].detail["changed"] == {"restarted as": [None, new.run_id]}
    assert details_of(new, "started") == [{"restart_of": run.run_id}]


@pytest.mark.parametrize(("kind", "is_allowed"), [("errand", False), ("careless", True)])
def test_a_run_counts_as_done_with_open_calls_only_where_its_type_says_so(
    memory: RecordWriter, ana: User, errands: Path, kind: str, is_allowed: bool
) -> None:
    (errands / "vague-send").touch()
    run = drive(start(ana, SEND, kind=kind))
    if is_allowed:
        assert mark_done(run.run_id, by=ana, reason=WHY).status == "done"
        assert console_entries("run_marked")[0].detail["changed"] == {"run": ["running", "done"]}
        return

    with pytest.raises(OpenCalls, match="says done, and calls are still open: 1 \\(send\\)") as refused:
        mark_done(run.run_id, by=ana, reason=WHY)

    assert [one.seq for one in refused.value.calls] == [1]
    assert (Run.objects.get().status, console_entries("run_marked")) == ("running", [])


@pytest.mark.parametrize("gesture", [cancel_run, resume_run, restart_run, mark_done])
@pytest.mark.parametrize("reason", ["", "\u200b ", "a\x00b", "x" * 2_001])
def test_each_gesture_wants_a_reason(memory: RecordWriter, ana: User, gesture: Callable[..., Any], reason: str) -> None:
    run = start(ana, SEND)
    with pytest.raises(InvalidDecision):
        gesture(run.run_id, by=ana, reason=reason)
    assert kinds_of(run) == ["started"]


@pytest.mark.parametrize(
    ("role", "sees"),
    [
        ("viewer", True),
        ("approver", True),
        ("admin", True),
        ("auditor", True),
        ("", False),
        (("operator", "main", "send"), False),
    ],
)
def test_who_may_not_settle_every_tool_of_a_run_changes_nothing_about_it(
    memory: RecordWriter, ana: User, person: Cast, role: Any, sees: bool
) -> None:
    run, who = start(ana, SEND), person("who", *([role] if role else []))

    for gesture in (cancel_run, resume_run, restart_run, mark_done):
        with pytest.raises(PermissionDenied if sees else Http404):
            gesture(run.run_id, by=who, reason=WHY)
    with pytest.raises(PermissionDenied):
        start_run("errand", errand(SEND), by=who)

    assert [one.pk for one in list_runs(by=who).items] == ([run.pk] if sees else [])
    assert (kinds_of(run), Run.objects.count()) == (["started"], 1)


def test_the_list_is_newest_first_filtered_and_paged(memory: RecordWriter, ana: User) -> None:
    made = [start(ana, SEND), start(ana, LOOK, kind="short"), start(ana, LOOK)]
    cancel_run(made[0].run_id, by=ana, reason=WHY)

    first = list_runs(by=ana, limit=2)
    second = list_runs(by=ana, limit=2, cursor=first.next)

    assert [one.pk for one in (*first.items, *second.items)] == [one.pk for one in reversed(made)]
    assert second.next is None
    assert [one.pk for one in list_runs(by=ana, status="cancelled,done").items] == [made[0].pk]
    assert [one.pk for one in list_runs(by=ana, kind="short").items] == [made[1].pk]
    assert [one.pk for one in list_runs(by=ana, text=made[2].run_id[:20]).items] == [made[2].pk]
