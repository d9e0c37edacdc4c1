"""Durable runs: starting one, reading them, and what people do about them. How a worker advances one stands in advancing.py.

Everything that decides who advances a run stands in its row; what a run did stands in its agent's records.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet
from django.http import Http404
from django.utils import timezone
from pydantic import ValidationError

from actions.digests import canonical_json, sha256_text
from actions.errors import ActionsError, InvalidDecision, InvalidQuery, StoreError
from actions.queries import MAX_LIMIT
from actions.records import OPEN_STATUSES, Action, ActionClass, Page
from actions.rules import check_text
from agents.runs import RunType, has_moved_money, read_input
from console.access import Person, Right, may_all, may_somewhere, require_run
from console.models import Approval, Run, RunStatus, Undoing
from console.run_types import find_run_type
from console.services.run_rows import (
    LIVE,
    OpenCalls,
    RunNotPossible,
    add_event,
    cancel_now,
    check_reason,
    end_run,
    enter,
    is_busy,
    lock_run,
    make_due,
    sentence,
    tell,
    tools_of,
    tools_of_type,
    type_names,
    type_of,
    unkeepable,
)
from console.stores import UnknownStore, get_agent_store, run_checkpoints, store_names
from console.trouble import log_unexpected

__all__ = [
    "COUNTED",
    "IdempotencyConflict",
    "InvalidRunInput",
    "OpenCalls",
    "RunNotPossible",
    "approvals_of",
    "cancel_run",
    "count_runs",
    "get_run",
    "limit_reached",
    "list_runs",
    "mark_done",
    "open_calls_of_run",
    "restart_run",
    "restart_warnings",
    "resume_run",
    "start_run",
]

log = logging.getLogger(__name__)

MAX_INPUT_BYTES = 262_144
MAX_KEY_CHARS = 255
COUNTED = 1_000
"""Counting stops one after this."""
MAX_CALLS_READ = 10_000
"""How many calls of a run are looked through for money; a run that made more counts as one that moved some."""


class InvalidRunInput(ActionsError):
    """The input does not fit the type's schema. Nothing was started; `.problems` says why, by field."""

    def __init__(self, problems: Mapping[str, str]) -> None:
        self.problems = dict(problems)
        super().__init__("; ".join(f"{name}: {why}" if name else why for name, why in list(problems.items())[:5]))


class IdempotencyConflict(ActionsError):
    """The key stands for a run of another type or with another input. Nothing was started; `.run` is what the key began."""

    def __init__(self, run: Run) -> None:
        self.run = run
        super().__init__("this idempotency key was used for another run; take a new one, or send the same type and input")


# --- starting --------------------------------------------------------------------------------------------------------


def start_run(kind_name: str, given: Mapping[str, Any], *, by: User, idempotency_key: str = "") -> tuple[Run, bool]:
    """Keep a run that is due at once, and whether it is new. No store is asked; a worker takes it up.

    The same key of the same person again is the same run, also where both come at once.

    Raises:
        PermissionDenied: this person may not settle every tool of the type, in the store where runs are kept.
        UnknownRunType, InvalidRunInput, InvalidDecision (the key), IdempotencyConflict: nothing was started.
        RunNotPossible: RUN_STORE names no store.
    """
    if not may_somewhere(by, Right.SETTLE):
        raise PermissionDenied("you need a role that may settle, to start a run")
    kind, store = find_run_type(kind_name), settings.RUN_STORE
    if not may_all(by, Right.SETTLE, store=store, tools=[tool.name for tool in kind.tools]):
        raise PermissionDenied(f"you need a role that may settle every tool of {kind.name} in store {store}")
    if store not in settings.ACTION_STORES:
        raise RunNotPossible("RUN_STORE names no store of ACTION_STORES, so a run could keep no records")
    check_text("idempotency_key", idempotency_key)
    if len(idempotency_key) > MAX_KEY_CHARS:
        raise InvalidDecision(f"idempotency_key has {len(idempotency_key)} characters; the limit is {MAX_KEY_CHARS}")
    text, content = _checked_input(kind, given)
    if idempotency_key and (known := _of_key(by, idempotency_key)):
        return _same(known, content), False
    try:
        with transaction.atomic(durable=True):
            name = by.get_username()
            run = _create(kind, text, content, store=store, by=name, starter=by, idempotency_key=idempotency_key)
            enter("run_started", run, by=by, changed={"run": [None, str(run.status)]})
    except IntegrityError:
        known = _of_key(by, idempotency_key)
        if known is None:
            raise
        return _same(known, content), False
    return run, True


def _create(
    kind: RunType,
    text: str,
    content: str,
    *,
    store: str,
    by: str,
    starter: User | None,
    restart_of: Run | None = None,
    due_at: datetime | None = None,
    **more: str,
) -> Run:
    """In the caller's transaction."""
    run = Run.objects.create(
        run_id=f"run-{uuid.uuid4().hex}",
        store=store,
        type=kind.name,
        type_version=kind.version,
        input=text,
        content=content,
        started_by=by,
        starter=starter,
        restart_of=restart_of,
        due_at=due_at or timezone.now(),
        **more,
    )
    add_event(run, "started", by=by, restart_of=restart_of.run_id if restart_of else "")
    tell(run)
    return run


def _of_key(by: User, key: str) -> Run | None:
    return Run.objects.filter(started_by=by.get_username(), idempotency_key=key).first()


def _same(run: Run, content: str) -> Run:
    if run.content != content:
        raise IdempotencyConflict(run)
    return run


def _checked_input(kind: RunType, given: Mapping[str, Any]) -> tuple[str, str]:
    """The input as it is kept, and the digest of what was asked for. Raises InvalidRunInput."""
    try:
        said = canonical_json(given)
        name = unkeepable(given)
    except RecursionError as exc:
        raise InvalidRunInput({"": "the input is nested too deeply"}) from exc
    except (TypeError, ValueError) as exc:
        raise InvalidRunInput({"": "the input is not JSON"}) from exc
    if len(said) > MAX_INPUT_BYTES:
        raise InvalidRunInput({"": f"the input has {len(said):,} bytes; the limit is {MAX_INPUT_BYTES:,}"})
    if name is not None:
        raise InvalidRunInput({name: "holds a NUL or half a character, which no record keeps"})
    try:
        read_input(kind, given)
    except ValidationError as exc:
        # Never what was sent: it may hold anything.
        problems = {".".join(map(str, one["loc"])): _words_of(one)[:200] for one in exc.errors(include_input=False)[:20]}
        raise InvalidRunInput(problems) from exc
    except RecursionError as exc:
        raise InvalidRunInput({"": "the input is nested too deeply"}) from exc
    except Exception as exc:
        log_unexpected(log, f"checking an input of run type {kind.name}", exc)
        raise InvalidRunInput({"": f"what run type {kind.name} checks about its input broke: {type(exc).__name__}"}) from exc
    return said, sha256_text(canonical_json([kind.name, given]))


def _words_of(error: Mapping[str, Any]) -> str:
    """What is wrong, for whoever filled in the form: without pydantic's prefix, and without a regular expression."""
    if error["type"] == "string_pattern_mismatch":
        return "it does not look like what is asked for"
    return str(error["msg"]).removeprefix("Value error, ")


# --- reading ---------------------------------------------------------------------------------------------------------


def get_run(run_id: str, *, by: Person, right: Right = Right.READ) -> Run:
    """The run, for somebody who has this right on every tool of its type.

    Raises:
        Http404: there is none, or this person may not see it: both look the same.
        PermissionDenied: they may see it, but lack this right.
    """
    missing = f"there is no run {run_id[:64]!r}"
    run = Run.objects.select_related("restart_of").filter(run_id=run_id).first() if _is_column(run_id) else None
    if run is None:
        raise Http404(missing)
    require_run(by, right, store=run.store, tools=tools_of(run), missing=missing)
    return run


def list_runs(
    *, by: Person, status: str = "", kind: str = "", text: str = "", cursor: str | None = None, limit: int = 50
) -> Page[Run]:
    """The runs that this person may see, newest first; `status` and `kind` take values joined by commas, `text` is part of an id or a person.

    Raises:
        InvalidQuery: a status that there is not, a cursor that is none.
    """
    rows = _matching(by=by, status=status, kind=kind, text=text).select_related("restart_of")
    if cursor:
        rows = rows.filter(pk__lt=_number(cursor))
    size = max(1, min(limit, MAX_LIMIT))
    found = list(rows.order_by("-pk")[: size + 1])
    return Page(items=tuple(found[:size]), next=str(found[size - 1].pk) if len(found) > size else None)


def count_runs(*, by: Person, status: str = "", kind: str = "", text: str = "") -> int:
    """How many `list_runs` has over all its pages, at most one more than COUNTED. Raises as that."""
    return _matching(by=by, status=status, kind=kind, text=text)[: COUNTED + 1].count()


def _matching(*, by: Person, status: str, kind: str, text: str) -> QuerySet[Run]:
    wanted = [word.strip() for word in status.split(",") if word.strip()]
    if unknown := [word for word in wanted if word not in RunStatus.values]:
        raise InvalidQuery(f"no status is called {unknown[0][:40]!r}; there are {', '.join(RunStatus.values)}")
    rows = Run.objects.filter(_visible(by))
    if wanted:
        rows = rows.filter(status__in=wanted)
    if kinds := [word.strip() for word in kind.split(",") if word.strip()]:
        rows = rows.filter(type__in=[word for word in kinds if _is_column(word)])
    if text.strip():
        check = text.strip()
        rows = rows.filter(Q(run_id__icontains=check) | Q(started_by__icontains=check)) if _is_column(check) else rows.none()
    return rows


def _visible(by: Person) -> Q:
    """Who may read all that a run may call sees it; of a type or a store that is gone, who may read all of that store, or of every store."""
    if may_all(by, Right.READ, store="", tools=()):
        return Q()
    seen = Q(pk__in=[])
    for store in store_names():
        if may_all(by, Right.READ, store=store, tools=()):
            seen |= Q(store=store)
            continue
        kinds = [name for name in type_names() if may_all(by, Right.READ, store=store, tools=tools_of_type(name))]
        seen |= Q(store=store, type__in=kinds)
    return seen


def _number(cursor: str) -> int:
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 19):
        raise InvalidQuery("the cursor is not one that this list gave")
    return int(cursor)


def _is_column(text: str) -> bool:
    """Whether a database can be asked for it."""
    return "\x00" not in text and not any("\ud800" <= char <= "\udfff" for char in text)


def approvals_of(run: Run) -> tuple[Approval, ...]:
    """All that it ever asked, newest first, at most 200."""
    return tuple(Approval.objects.filter(run=run).order_by("-pk")[:200])


def open_calls_of_run(run: Run) -> tuple[Action, ...]:
    """Its calls that may or may not have happened, by number; what only reads is none.

    Raises:
        StoreError: the store did not answer; nothing is known.
    """
    read = get_agent_store(run.store).read_actions(OPEN_STATUSES, limit=MAX_CALLS_READ, agent=run.run_id)
    found = [one.action for one in read.readings if isinstance(one.action, Action)]
    return tuple(sorted((one for one in found if one.action_class is not ActionClass.PURE), key=lambda one: one.seq))


def moved_money(run: Run, kind: RunType) -> bool:
    """Whether a call marked so has happened, or may have. Raises StoreError."""
    readings = get_agent_store(run.store).list_agent_actions(run.run_id, limit=MAX_CALLS_READ)
    # What cannot be read may have been one.
    is_known = len(readings) < MAX_CALLS_READ and all(isinstance(one.action, Action) for one in readings)
    return not is_known or has_moved_money(kind, [one.action for one in readings if isinstance(one.action, Action)])


def restart_warnings(run: Run) -> tuple[str, ...]:
    """What somebody should know who begins this run anew, a sentence each."""
    kind = type_of(run)
    if kind is None:
        return (f"no run type is called {run.type} any more",)
    try:
        opened = open_calls_of_run(run)
        found = ["it has moved money, or may have: the new run may do that once more"] if moved_money(run, kind) else []
    except (StoreError, UnknownStore):
        return ("its store does not answer, so nobody can say what it has done already",)
    if opened:
        found.append(f"{len(opened)} of its calls may or may not have happened; the new run may make them once more")
    if run.undoing not in (Undoing.NO, Undoing.DONE):
        found.append("what it did is not all taken back")
    return tuple(found)


def limit_reached(run: Run, kind: RunType) -> str:
    """Which limit the run has reached, in one sentence; empty where none."""
    limits = kind.limits
    if run.steps >= limits.steps:
        return f"it has made {run.steps} steps, and its type allows {limits.steps}"
    if run.busy_ms >= limits.busy.total_seconds() * 1000:
        return f"it has been busy for {run.busy_ms / 1000:.0f} s, and its type allows {limits.busy.total_seconds():.0f} s"
    if limits.cost is not None and run.cost >= limits.cost:
        return f"it has cost {_amount(run.cost)}, and its type allows {_amount(limits.cost)}"
    return ""


def _amount(cost: Decimal) -> str:
    return format(cost.normalize(), "f")


# --- what people do --------------------------------------------------------------------------------------------------


def cancel_run(run_id: str, *, by: User, reason: str) -> Run:
    """Stop a run: at once where nobody is at it, else after the step that it is in. A call that is being made is never cut off.

    What it asked is void then. What it did stays, until somebody has it taken back.

    Raises:
        Http404, PermissionDenied: as `get_run`. InvalidDecision: the reason. RunNotPossible: it is over, or cancelled already.
    """
    run, said = get_run(run_id, by=by, right=Right.SETTLE), check_reason(reason)
    now = timezone.now()
    with transaction.atomic(durable=True):
        row = lock_run(run.pk)
        if row.status not in LIVE:
            raise RunNotPossible(f"the run is {_words(row)} already, so there is nothing to stop")
        if row.cancel_asked_by:
            raise RunNotPossible(f"{row.cancel_asked_by} has cancelled it already; it stops after the step that it is in")
        before, row.cancel_asked_by, row.cancel_reason = str(row.status), by.get_username(), sentence(said)
        if is_busy(row, now):
            row.save(update_fields=["cancel_asked_by", "cancel_reason", "changed_at"])
        else:
            cancel_now(row, now)
        tell(row)
        enter("run_cancelled", row, by=by, reason=said, changed={"run": [before, "cancelled"]})
    return row


def resume_run(run_id: str, *, by: User, reason: str) -> Run:
    """Let a run that failed or was cancelled go on from its last checkpoint. What it asked and nobody answered is asked again; after it was
    cancelled, so is what somebody had answered and it had not done yet.

    Raises:
        Http404, PermissionDenied, InvalidDecision: as `cancel_run`.
        RunNotPossible: it is neither, was begun anew, what it did is being taken back, a limit is reached, or its checkpoint no longer loads.
        StoreUnavailable: its checkpoints cannot be read. Nothing was changed.
    """
    run, said = get_run(run_id, by=by, right=Right.SETTLE), check_reason(reason)
    kind = type_of(run)
    if kind is None:
        raise RunNotPossible(f"no run type is called {run.type} any more, so nobody can say how it goes on")
    _require_ended(run)
    if limit := limit_reached(run, kind):
        raise RunNotPossible(f"{limit}; begin it anew instead")
    from agents.steps import state_problem  # LangGraph, which nobody needs who only shows runs

    with run_checkpoints() as checkpointer:
        problem = state_problem(kind, run.run_id, checkpointer=checkpointer)
    if problem:
        raise RunNotPossible(problem)
    with transaction.atomic(durable=True):
        row = lock_run(run.pk)
        _require_ended(row)
        before = str(row.status)
        make_due(row, timezone.now())
        row.cancel_asked_by = row.cancel_reason = ""
        row.resumes, row.lost_steps, row.stepped_at = row.resumes + 1, 0, timezone.now()
        row.save()
        add_event(row, "resumed", by=by.get_username(), reason=said)
        tell(row)
        enter("run_resumed", row, by=by, reason=said, changed={"run": [before, "running"]})
    return row


def restart_run(run_id: str, *, by: User, reason: str) -> Run:
    """Begin a run that failed or was cancelled anew, with its input: a run of its own, whose calls have keys of their own.

    `restart_warnings` says what to show before: a person may do it even after money moved. Once only; of two at one moment one does.

    Raises:
        Http404, PermissionDenied, InvalidDecision: as `cancel_run`.
        RunNotPossible: it is neither, or was begun anew already; the message names that run.
        UnknownRunType, InvalidRunInput: its type is gone, or does not take this input any more. Nothing was started.
    """
    run, said = get_run(run_id, by=by, right=Right.SETTLE), check_reason(reason)
    kind = find_run_type(run.type)
    _checked_input(kind, json.loads(run.input))
    with transaction.atomic(durable=True):
        row = lock_run(run.pk)
        if row.status not in (RunStatus.FAILED, RunStatus.CANCELLED):
            raise RunNotPossible(f"the run is {_words(row)}; only one that failed or was cancelled begins anew")
        if row.undoing == Undoing.RUNNING:
            raise RunNotPossible("what it did is being taken back; wait until that is over")
        new = restart(row, kind, by=by.get_username(), starter=by, reason=said)
        enter("run_restarted", row, by=by, reason=said, changed={"restarted as": [None, new.run_id]})
    return new


def restart(row: Run, kind: RunType, *, by: str, reason: str, starter: User | None = None, due_at: datetime | None = None) -> Run:
    """The new run of one that is locked, due then (None: now); without `by` as if whoever started that one had. Inside the caller's transaction.

    Raises RunNotPossible.
    """
    if (other := Run.objects.filter(restart_of=row).first()) is not None:
        raise RunNotPossible(f"it was begun anew already, as {other.run_id}")
    who, whose = (by, starter) if by else (row.started_by, row.starter)
    new = _create(kind, row.input, row.content, store=settings.RUN_STORE, by=who, starter=whose, restart_of=row, due_at=due_at)
    add_event(row, "restarted", by=by, reason=reason, restarted_as=new.run_id)
    return new


def mark_done(run_id: str, *, by: User, reason: str) -> Run:
    """Say that a run is done although its graph did not come to its end: somebody did the rest by hand.

    Raises:
        Http404, PermissionDenied, InvalidDecision: as `cancel_run`.
        OpenCalls: calls of it may or may not have happened, and its type does not allow that.
        RunNotPossible: it is done, what it did is taken back or was begun to be, a worker is at it, or it went on while its calls were looked at.
        StoreError: its store did not answer, so nobody knows whether calls are open. Nothing was changed.
    """
    run, said = get_run(run_id, by=by, right=Right.SETTLE), check_reason(reason)
    _require_not_done(run)
    kind = type_of(run)
    opened = open_calls_of_run(run)
    if opened and not (kind is not None and kind.may_end_with_open_calls):
        raise OpenCalls(opened)
    now = timezone.now()
    with transaction.atomic(durable=True):
        row = lock_run(run.pk)
        _require_not_done(row)
        if is_busy(row, now):
            raise RunNotPossible("a worker is at it; cancel it first, or wait")
        if (row.status, row.steps, row.changed_at) != (run.status, run.steps, run.changed_at):
            raise RunNotPossible("it has gone on meanwhile; look at it again")
        before = str(row.status)
        end_run(row, RunStatus.DONE, now, by=by.get_username(), reason=said)
        tell(row)
        enter("run_marked", row, by=by, reason=said, changed={"run": [before, "done"]})
    return row


def _require_not_done(run: Run) -> None:
    """It can be marked as done: nobody has, and what it did stands."""
    if run.status == RunStatus.DONE:
        raise RunNotPossible("the run is done already")
    if run.undoing != Undoing.NO:
        raise RunNotPossible("what it did is taken back, or was begun to be, so it is not done; begin it anew instead")


def _require_ended(run: Run) -> None:
    if run.status not in (RunStatus.FAILED, RunStatus.CANCELLED):
        raise RunNotPossible(f"the run is {_words(run)}; only one that failed or was cancelled can be resumed")
    if (other := Run.objects.filter(restart_of=run).first()) is not None:
        raise RunNotPossible(f"it was begun anew already, as {other.run_id}; both would make the same calls")
    if run.undoing != Undoing.NO:
        raise RunNotPossible("what it did is taken back, or was begun to be; begin it anew instead")


def _words(run: Run) -> str:
    return str(run.status).replace("_", " ")
