"""Taking back what a run did that failed or was cancelled: newest first, one compensation at a time, each an action of its own.

What was taken back stands in the run's records alone (agents/compensation.py), so that nothing is taken back twice, whoever dies.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.utils import timezone

from actions.digests import canonical_json, sha256_text
from actions.errors import ActionsError, LeaseLive, LeaseLost, LeaseNotHeld, StoreError
from actions.records import Action, Output
from agents.calls import EndUnrecorded
from agents.compensation import UndoOutcome, UndoState, UndoStep, UndoStepState, plan, undo_next
from agents.harness import DurableAgent
from agents.runs import RunType, RunTypeRefused
from console.access import Person, Right
from console.models import Parked, Run, RunStatus, Undoing
from console.run_types import UnknownRunType, find_run_type
from console.services.run_claims import FIRST_LOOK, STORE_PAUSE, UNDOING, claimed_run, renew_claim, take_claim
from console.services.run_rows import RunNotPossible, add_event, check_reason, enter, lock_run, put_down, sentence, tell, type_of
from console.services.runs import MAX_CALLS_READ, get_run
from console.spans import StepSpan, undo_of
from console.stores import UnknownStore, get_agent_store
from console.trouble import log_unexpected, name_of

log = logging.getLogger(__name__)

TO_DO = (UndoStepState.WAITING, UndoStepState.FAILED, UndoStepState.IN_DOUBT)


class PreviewChanged(ActionsError):
    """What would be taken back is not what was shown. Nothing was changed; `.digest` is that of what stands there now."""

    def __init__(self, digest: str) -> None:
        self.digest = digest
        super().__init__("what would be taken back is not what was shown any more; look at it again. Nothing was changed")


# --- a person's side -------------------------------------------------------------------------------------------------


def preview(run_id: str, *, by: Person) -> tuple[UndoStep, ...]:
    """Each call that happened or may have, newest first, with what takes it back and how far that is. Reads, and changes nothing.

    Raises:
        Http404: as `get_run`. RunNotPossible: its type is gone. StoreError: its store did not answer.
    """
    run = get_run(run_id, by=by)
    kind = type_of(run)
    if kind is None:
        raise RunNotPossible(f"no run type is called {run.type} any more, so nobody can say what takes back what it did")
    return _plan(run, kind)


def digest_of(steps: Sequence[UndoStep]) -> str:
    """What `start_undoing` is bound to: every call with its status, what takes it back and how far that is."""
    said = [[one.call.seq, one.call.status, one.tool, one.args and dict(one.args), one.state] for one in steps]
    return sha256_text(canonical_json(said))


def start_undoing(run_id: str, *, by: User, reason: str, seen: str) -> Run:
    """Have a worker take back what the run did; after it stopped, go on: a compensation that failed is made once more.

    Raises:
        Http404, PermissionDenied: as `get_run`; it takes the right to settle. InvalidDecision: the reason.
        PreviewChanged: nothing was changed, nor in the other cases.
        RunNotPossible: the run goes on or is done, nothing is to be taken back, or that is under way.
        StoreError: its store did not answer.
    """
    run, said = get_run(run_id, by=by, right=Right.SETTLE), check_reason(reason)
    _require_possible(run)
    steps = preview(run_id, by=by)
    if seen != (digest := digest_of(steps)):
        raise PreviewChanged(digest)
    if not any(one.state in TO_DO for one in steps):
        raise RunNotPossible("there is nothing to take back")
    with transaction.atomic(durable=True):
        row = lock_run(run.pk)
        _require_possible(row)
        before = str(row.undoing) or "no"
        put_down(row)
        row.undoing, row.due_at, row.lost_steps = Undoing.RUNNING, timezone.now(), 0
        row.save()
        add_event(row, "undoing", by=by.get_username(), reason=said)
        tell(row)
        enter("run_undoing", row, by=by, reason=said, changed={"taken back": [before, "running"]}, digest=digest)
    return row


def _require_possible(run: Run) -> None:
    if run.status not in (RunStatus.FAILED, RunStatus.CANCELLED):
        words = str(run.status).replace("_", " ")
        first = "; cancel it first" if run.status != RunStatus.DONE else ""
        raise RunNotPossible(f"the run is {words}; only what one did that failed or was cancelled is taken back{first}")
    if run.undoing == Undoing.RUNNING:
        raise RunNotPossible("what it did is being taken back already")


def _plan(run: Run, kind: RunType) -> tuple[UndoStep, ...]:
    store = get_agent_store(run.store)
    readings = store.list_agent_actions(run.run_id, limit=MAX_CALLS_READ)
    actions = [one.action for one in readings if isinstance(one.action, Action)]
    if len(actions) < len(readings) or len(readings) == MAX_CALLS_READ:
        raise RunNotPossible("some of its calls cannot be read, so nobody can say what it did")
    refs = [(run.run_id, ref) for one in actions for ref in (one.args_ref, one.result_ref) if ref]
    outputs = {ref: one.content for (_, ref), one in store.read_outputs(refs).items() if isinstance(one, Output)}
    results = {one.seq: outputs[one.result_ref] for one in actions if one.result_ref in outputs}
    args = {one.seq: outputs[one.args_ref] for one in actions if one.args_ref in outputs}
    return plan(kind, actions, results, args)


# --- a worker's side -------------------------------------------------------------------------------------------------


def undo_run(pk: int) -> bool:
    """Take back one call of a run, if that is due and nobody else is at it. Safe to call twice, or never. Whether another one is due now.

    Raises DatabaseError where the console's database went away, as `advance_run`.
    """
    token = take_claim(pk, UNDOING)
    if token is None:
        return False
    run = Run.objects.get(pk=pk)
    try:
        kind = find_run_type(run.type)
    except UnknownRunType:
        return _stop(pk, token, f"no run type is called {run.type} any more")
    except RunTypeRefused as exc:
        return _wait(pk, token, Parked.NO, str(exc), STORE_PAUSE)  # as in advancing.py
    with undo_of(run, kind) as span:
        if not connection.in_atomic_block:
            connection.close()  # others' meanwhile
        return _undo(run, kind, token, span)


def _undo(run: Run, kind: RunType, token: str, span: StepSpan) -> bool:
    pk = run.pk
    try:
        outcome, is_ours = _undo_one(run, kind, token)
    except LeaseLive as exc:
        from console.services.advancing import LEASE_PAUSE  # as in _undo_one

        return _wait(pk, token, Parked.LEASE, str(exc), LEASE_PAUSE)
    except (LeaseLost, LeaseNotHeld, StoreError, UnknownStore, EndUnrecorded) as exc:
        span.broke_off(exc)
        return _wait(pk, token, Parked.STORE, str(exc), STORE_PAUSE)
    except ActionsError as exc:
        span.broke_off(exc)
        return _stop(pk, token, str(exc))
    except Exception as exc:
        span.broke_off(exc)
        log_unexpected(log, f"taking back what run {run.run_id} did", exc)
        return _stop(pk, token, f"something unexpected went wrong here: {name_of(exc)}")
    is_going = is_ours and _keep(pk, token, outcome)
    span.came_to(outcome, is_ours=is_ours)
    return is_going


def _undo_one(run: Run, kind: RunType, token: str) -> tuple[UndoOutcome, bool]:
    """One compensation under the agent's lease, and whether the claim was still ours when it ended. As `advancing._step`."""
    from console.services.advancing import (
        decided_in_console,
    )  # LangGraph, which nobody needs who only shows runs

    with DurableAgent.resume(
        get_agent_store(run.store),
        run.run_id,
        holder=f"run:{socket.gethostname()}:{os.getpid()}:{token[:12]}",
        lease_ttl=timedelta(seconds=settings.RUN_LEASE_S),
    ) as agent:
        if not renew_claim(run.pk, token, UNDOING):
            return UndoOutcome(state=UndoState.GOING), False
        outcome = undo_next(kind, run.run_id, agent=agent, resolver=decided_in_console(run.store, run.run_id))
        return outcome, renew_claim(run.pk, token, UNDOING)


def _keep(pk: int, token: str, outcome: UndoOutcome) -> bool:
    now = timezone.now()
    with transaction.atomic(durable=True):
        row = claimed_run(pk, token, UNDOING)
        if row is None:
            return False
        put_down(row)
        row.lost_steps, row.stepped_at = 0, now
        about = _about(outcome.step)
        if outcome.state is UndoState.GOING:
            row.due_at, row.queued_until = now, now + timedelta(seconds=settings.RUN_QUEUED_S)
            add_event(row, "undone", **about)
        elif outcome.state is UndoState.DONE:
            row.undoing = Undoing.DONE
            add_event(row, "undone", is_all=True)
        elif outcome.state is UndoState.OPEN_CALLS:
            row.parked, row.queued_until = Parked.OPEN_CALLS, now + FIRST_LOOK
            add_event(row, "parked", why="open_calls", problem=outcome.problem, **about)
        else:
            row.undoing = Undoing.STOPPED
            add_event(row, "undo_stopped", problem=outcome.problem, **about)
        row.save()
        tell(row)
    return outcome.state is UndoState.GOING


def _about(step: UndoStep | None) -> dict[str, Any]:
    if step is None:
        return {}
    by = step.undone_by
    return {"call": step.call.seq, "tool": step.call.tool, "by_tool": step.tool, "by_call": by.seq if by else None}


def _wait(pk: int, token: str, why: Parked, problem: str, pause: timedelta) -> bool:
    with transaction.atomic(durable=True):
        row = claimed_run(pk, token, UNDOING)
        if row is None:
            return False
        was = row.parked
        put_down(row)
        row.parked, row.due_at = why, timezone.now() + pause
        row.save()
        if was != why:
            add_event(row, "parked", why=str(why.value), problem=sentence(problem))
        tell(row, queue=False)
    return False


def _stop(pk: int, token: str, problem: str) -> bool:
    with transaction.atomic(durable=True):
        row = claimed_run(pk, token, UNDOING)
        if row is not None:
            put_down(row)
            row.undoing = Undoing.STOPPED
            row.save()
            add_event(row, "undo_stopped", problem=sentence(problem))
            tell(row)
    return False
