"""A worker at a run: one step of it, and what is kept of that step. Who may be at it stands in run_claims.py."""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from time import monotonic
from typing import Any, NamedTuple

from django.conf import settings
from django.db import connection, transaction
from django.utils import timezone

from actions.digests import claim_digest
from actions.errors import ActionsError, LeaseLive, LeaseLost, LeaseNotHeld, StoreError
from actions.queries import read_whole_args
from actions.records import Action, ActionClass
from actions.redaction import redact_text
from actions.rules import as_column
from agents.calls import EndUnrecorded
from agents.harness import DurableAgent, End, Resolver
from agents.runs import Recovery, RunType, RunTypeRefused
from agents.steps import AskedCall, Lost, Meter, Step, StepState, StoredStep, advance, read_lost
from console.models import Decision, DecisionState, Parked, Run, RunEvent, RunStatus
from console.run_types import UnknownRunType, find_run_type
from console.services.approvals import answers_of, ask_for, let_through, mark_spent
from console.services.run_claims import (
    FIRST_LOOK,
    MAX_LOST,
    ONE_LOOK,
    STORE_PAUSE,
    begun_anew_by_themselves,
    claimed_run,
    lost_attempts,
    pause_after,
    renew_claim,
    take_claim,
)
from console.services.run_rows import (
    MAX_RESULT_CHARS,
    RunNotPossible,
    add_event,
    cancel_now,
    cancels_of,
    end_run,
    put_down,
    sentence,
    tell,
)
from console.services.runs import limit_reached, moved_money, restart
from console.spans import StepSpan, step_of
from console.stores import UnknownStore, get_agent_store, get_store, run_checkpoints
from console.trouble import log_unexpected, name_of

log = logging.getLogger(__name__)

NOTHING_LOST = Lost()
FOUND = 20
"""So many checkpoints are compared with what was told, after a worker died."""
LEASE_PAUSE = timedelta(seconds=1)
"""How long it waits for somebody who has its agent: an operator's settle takes a moment."""


# --- one step --------------------------------------------------------------------------------------------------------


def advance_run(pk: int) -> bool:
    """Advance a run by one step, if it is due and nobody else is at it. Safe to call twice, or never. Whether another step is due now.

    Raises DatabaseError where the console's database went away: the claim is taken from us once our lease is free, and the step found done
    or begun again.
    """
    token = take_claim(pk)
    if token is None:
        return False
    run = Run.objects.get(pk=pk)
    if run.cancel_asked_by:
        return _keep_cancelled(pk, token)
    try:
        kind = find_run_type(run.type)
        get_agent_store(run.store)
        if (problem := limit_reached(run, kind)) or (problem := _recover(run, kind, token)):
            return _keep_failed(pk, token, problem)
    except UnknownRunType as exc:
        return _keep_failed(pk, token, str(exc))
    except RunTypeRefused as exc:
        return _keep_parked(pk, token, Parked.NO, str(exc), STORE_PAUSE)  # of this worker, and nothing about the run
    except (StoreError, UnknownStore) as exc:
        return _keep_parked(pk, token, Parked.STORE, str(exc), STORE_PAUSE)
    except _Restarted:
        return False
    with step_of(run, kind) as span:
        _let_go_of_the_database()
        return _advance(run, kind, token, span)


def _advance(run: Run, kind: RunType, token: str, span: StepSpan) -> bool:
    pk, began, meter = run.pk, monotonic(), Meter(kind.cost, attempt=token)
    try:
        done = _step(run, kind, token, meter)
    except LeaseLive as exc:
        return _keep_parked(pk, token, Parked.LEASE, str(exc), LEASE_PAUSE)
    except (LeaseLost, LeaseNotHeld, StoreError, EndUnrecorded) as exc:
        span.broke_off(exc)
        # What the step did stands in the records, as far as it came; the next one goes on from there.
        pause = STORE_PAUSE if isinstance(exc, StoreError) else LEASE_PAUSE
        return _keep_parked(pk, token, Parked.STORE, str(exc), pause, cost=meter.spent)
    except ActionsError as exc:
        span.broke_off(exc)
        return _keep_failed(pk, token, str(exc), cost=meter.spent)
    except Exception as exc:
        span.broke_off(exc)
        log_unexpected(log, f"advancing run {run.run_id}", exc)
        return _keep_failed(pk, token, f"something unexpected went wrong here: {name_of(exc)}", cost=meter.spent)
    busy = timedelta(seconds=monotonic() - began)
    is_going = done.is_ours and _keep(pk, token, kind, done.step, lost=done.lost, busy=busy, span=span)
    span.came_to(done.step, is_ours=done.is_ours)
    return is_going


class _Done(NamedTuple):
    """A step, whether the claim was still ours when it ended, and what lost workers left before it that nobody may have told of."""

    step: Step
    is_ours: bool
    lost: Lost = NOTHING_LOST


def _step(run: Run, kind: RunType, token: str, meter: Meter) -> _Done:
    """One step under the agent's lease, which is given back in any case. Raises what `advance` and the stores raise."""
    given, answers, cancels, attempts = json.loads(run.input), answers_of(run), cancels_of(run), lost_attempts(run)
    allowed = let_through(run)
    with DurableAgent.resume(
        get_agent_store(run.store),
        run.run_id,
        holder=f"run:{socket.gethostname()}:{os.getpid()}:{token[:12]}",
        lease_ttl=timedelta(seconds=settings.RUN_LEASE_S),
    ) as agent:
        # The claim may have been taken from us before we had the lease: then whoever has it now waits for us to leave.
        if not renew_claim(run.pk, token):
            return _Done(Step(state=StepState.GOING), False)
        with run_checkpoints() as checkpointer:
            lost = NOTHING_LOST
            if run.lost_steps > 0 or run.parked != Parked.NO:
                lost = read_lost(kind, run.run_id, checkpointer=checkpointer, attempts=attempts, limit=FOUND)
            run.cost += lost.cost
            if lost.cost and (problem := limit_reached(run, kind)):
                return _Done(Step(state=StepState.FAILED, problem=problem), renew_claim(run.pk, token), lost)
            step = advance(
                kind,
                run.run_id,
                given,
                answers,
                agent=agent,
                checkpointer=checkpointer,
                resolver=decided_in_console(run.store, run.run_id),
                cancels=cancels,
                let_through=allowed,
                meter=meter,
            )
        if step.state is StepState.DONE and not kind.may_end_with_open_calls:
            step = _done_only_when_settled(step, agent)
        # Renewed before the lease goes: nobody takes the claim while what the step came to is being kept.
        return _Done(step, renew_claim(run.pk, token), lost)


def _done_only_when_settled(step: Step, agent: DurableAgent) -> Step:
    """A graph that says done while calls are open has not come to its end."""
    opened = tuple(one for one in agent.pending_actions() if one.action_class is not ActionClass.PURE)
    if not opened:
        return step
    return Step(state=StepState.OPEN_CALLS, checkpoint=step.checkpoint, nodes=step.nodes, open_calls=opened, cost=step.cost,
                calls=step.calls, problem="it says done, and calls are still open")  # fmt: skip


class _Restarted(Exception):
    """Another run went on in its place."""


def _recover(run: Run, kind: RunType, token: str) -> str:
    """What is done by itself about a run whose worker died, where that is not to go on: a restart, or a problem. Raises StoreError."""
    if run.lost_steps == 0:
        return ""
    idle = timezone.now() - (run.stepped_at or run.created_at)
    is_late = kind.resume_within is not None and idle > kind.resume_within
    if not is_late and kind.recovery is not Recovery.RESTART:
        return ""
    if moved_money(run, kind):
        if not is_late:
            return ""  # it may not be begun anew, so it goes on
        return (
            f"it stood still for {idle.total_seconds():.0f} s after its worker died, longer than its type allows, and it has moved money "
            "or may have: a person has to say whether it is resumed or begun anew"
        )
    why = "too much time has passed since its last step" if is_late else "its type begins anew when a worker was lost"
    lost = 1 + begun_anew_by_themselves(run)
    if lost >= MAX_LOST:
        return (
            f"{lost} runs one after the other lost their worker and were begun anew, so this may be what kills them; "
            "look what it needs, then resume the run, or begin it anew"
        )
    with transaction.atomic(durable=True):
        row = claimed_run(run.pk, token)
        if row is None:
            raise _Restarted
        try:
            new = restart(row, kind, by="", reason=why, due_at=timezone.now() + pause_after(lost))
        except RunNotPossible:
            return ""
        end_run(row, RunStatus.FAILED, timezone.now(), problem=f"{why}; it went on as {new.run_id}")
        tell(row)
    raise _Restarted


def decided_in_console(store: str, run_id: str) -> Resolver:
    """What people and resolvers decided here about a run's open calls, while its agent's lease kept that from being written.

    Only about exactly that call, only done and failed: an abandoned one is written once the agent is free, and the run goes on then.
    """

    def resolve(action: Action) -> End | None:
        try:
            row = (
                Decision.objects.filter(store=store, agent=run_id, seq=action.seq, outcome__in=("done", "failed"))
                .filter(state__in=(DecisionState.WAITING, DecisionState.WRITTEN))
                .order_by("-pk")
                .first()
            )
            if row is None or row.claim != claim_digest(action, read_whole_args(get_store(store), action)):
                return None
            resolution = f"{row.actor}: {' '.join(row.reason.split())}"
            return End(status=row.outcome, result=row.result, error=row.error, resolution=resolution)
        finally:
            _let_go_of_the_database()

    return resolve


def _let_go_of_the_database() -> None:
    """A step may take minutes; its connection is others' meanwhile."""
    if not connection.in_atomic_block:
        connection.close()


# --- what is kept of it ----------------------------------------------------------------------------------------------


def _keep(
    pk: int,
    token: str,
    kind: RunType,
    step: Step,
    *,
    lost: Lost = NOTHING_LOST,
    busy: timedelta = timedelta(0),
    span: StepSpan | None = None,
) -> bool:
    """What the step came to, in one transaction with its events and approvals; nothing where the claim is not ours any more."""
    now = timezone.now()
    with transaction.atomic(durable=True):
        row = claimed_run(pk, token)
        if row is None:
            return False
        put_down(row)
        row.busy_ms += max(0, int(busy.total_seconds() * 1000))
        row.cost += step.cost + lost.cost
        row.lost_steps, row.problem, row.stepped_at = 0, "", now
        _tell_of_found(row, lost.steps)
        # What an attempt cost stands in the event that tells of it: the step, else where the run stops.
        cost: dict[str, Any] = {"cost": step.cost + lost.cost or None, "lost_cost": lost.cost or None}
        if step.checkpoint:
            row.steps += 1
            if span is not None:
                span.number = row.steps
            mark_spent(row)
            add_event(row, "step", **_said(step, busy), **cost)
            cost = {}
        is_going = _decide(row, kind, step, now, cost)
        tell(row, queue=not is_going or bool(step.open_calls))
    return is_going


def _tell_of_found(row: Run, found: Sequence[StoredStep]) -> None:
    """The checkpoints of workers that died before they could say so."""
    if not found:
        return
    newest = RunEvent.objects.filter(run=row, kind="step").order_by("-number")[:FOUND]
    told = {json.loads(event.detail).get("checkpoint") for event in newest}
    for one in reversed(found):
        if one.nodes and one.checkpoint not in told:
            row.steps, row.cost = row.steps + 1, row.cost + one.cost
            add_event(
                row,
                "step",
                checkpoint=one.checkpoint,
                nodes=list(one.nodes),
                kept_at=one.at,
                told_by="whoever came after",
                cost=one.cost or None,
            )


def _said(step: Step, busy: timedelta) -> dict[str, Any]:
    return {
        "checkpoint": step.checkpoint,
        "nodes": list(step.nodes),
        "calls": [_call(one) for one in step.calls],
        "busy_ms": int(busy.total_seconds() * 1000),
    }


def _call(action: Action) -> dict[str, object]:
    took = None if action.ended_at is None else max(0, action.ended_at - action.started_at) // 1_000_000
    return {"seq": action.seq, "tool": action.tool, "status": str(action.status), "latency_ms": took}


def _decide(row: Run, kind: RunType, step: Step, now: datetime, cost: Mapping[str, Any]) -> bool:
    """Where the row goes from here; saves it. Whether its next step is due now. `cost`: where no step tells of it."""
    if step.state is StepState.DONE:
        row.result = as_column(redact_text(step.result))[:MAX_RESULT_CHARS]
        end_run(row, RunStatus.DONE, now, **cost)
    elif step.state is StepState.FAILED:
        end_run(row, RunStatus.FAILED, now, problem=step.problem or "its graph failed, and did not say why", **cost)
    elif row.cancel_asked_by:
        cancel_now(row, now, **cost)
    elif step.state is StepState.ASKS:
        _ask(row, kind, step.asked, now)
    elif step.state is StepState.OPEN_CALLS:
        _park_for_calls(row, step, now, cost)
    else:
        row.due_at, row.queued_until = now, now + timedelta(seconds=settings.RUN_QUEUED_S)
        row.save()
        return True
    return False


def _ask(row: Run, kind: RunType, asked: Sequence[AskedCall], now: datetime) -> None:
    if not asked:
        end_run(row, RunStatus.FAILED, now, problem="its graph waits for somebody, and does not say for what")
        return
    row.status = RunStatus.WAITING_APPROVAL
    row.save()
    ask_for(row, kind, asked, now)


def _park_for_calls(row: Run, step: Step, now: datetime, cost: Mapping[str, Any]) -> None:
    named = ", ".join(f"{one.seq} ({one.tool[:60]})" for one in step.open_calls[:5])
    row.parked, row.queued_until = Parked.OPEN_CALLS, now + FIRST_LOOK
    row.problem = sentence(step.problem or f"nobody knows yet whether these calls happened: {named}")
    row.save()
    calls = [_call(one) for one in step.open_calls[:ONE_LOOK]]
    add_event(row, "parked", why="open_calls", problem=row.problem, calls=calls, **cost)


def _keep_parked(pk: int, token: str, why: Parked, problem: str, pause: timedelta, *, cost: Decimal = Decimal(0)) -> bool:
    """It stands still for a while, and is due by itself then. `cost`: of what was broken off."""
    now = timezone.now()
    with transaction.atomic(durable=True):
        row = claimed_run(pk, token)
        if row is None:
            return False
        was, problem_was = row.parked, row.problem
        put_down(row)
        row.parked, row.problem, row.due_at = why, sentence(problem), now + pause
        row.cost += cost
        if row.cancel_asked_by:
            cancel_now(row, now, cost=cost or None)
        else:
            row.save()
            if was != why or cost or (why == Parked.NO and problem_was != row.problem):
                add_event(row, "parked", why=str(why.value), problem=row.problem, cost=cost or None)
        tell(row, queue=was != why)
    return False


def _keep_failed(pk: int, token: str, problem: str, *, cost: Decimal = Decimal(0)) -> bool:
    with transaction.atomic(durable=True):
        row = claimed_run(pk, token)
        if row is not None:
            row.cost += cost
            end_run(row, RunStatus.FAILED, timezone.now(), problem=problem, cost=cost or None)
            tell(row)
    return False


def _keep_cancelled(pk: int, token: str) -> bool:
    with transaction.atomic(durable=True):
        row = claimed_run(pk, token)
        if row is not None:
            cancel_now(row, timezone.now())
            tell(row)
    return False
