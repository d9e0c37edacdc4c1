"""What befalls the row of a run, its events and its approvals: small changes that others make inside their transaction, under the run's lock.

The order of locks is the same everywhere: the run, its approvals, the change numbers, the console's history.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.contrib.auth.models import User
from django.db.models import Max
from django.utils import timezone

from actions.digests import canonical_json
from actions.errors import ActionsError, InvalidDecision
from actions.records import Action
from actions.redaction import redact_text, redact_value
from actions.rules import MAX_REASON_CHARS, as_column, check_text, has_visible_text
from agents.runs import RunType, RunTypeRefused
from console.models import Approval, ApprovalState, Run, RunEvent, RunStatus, Undoing
from console.run_types import UnknownRunType, find_run_type, run_types
from console.services import journal
from console.services.changes import bump

RUNS = "-runs"
"""The change number of everything about runs; no store can be called so. A store's own moves where its queue changes too."""
MAX_PROBLEM_CHARS = 2_000
MAX_RESULT_CHARS = 100_000
MAX_EVENTS = 500
LIVE = (RunStatus.RUNNING, RunStatus.WAITING_APPROVAL)


class RunNotPossible(ActionsError):
    """The run is in no state for this; the message says which, and what can be done instead. Nothing was changed."""


class OpenCalls(RunNotPossible):
    """It cannot count as done: calls of it may or may not have happened. Nothing was changed; `.calls` names them."""

    def __init__(self, calls: Iterable[Action]) -> None:
        self.calls = tuple(calls)
        named = ", ".join(f"{one.seq} ({redact_text(one.tool)[:60]})" for one in self.calls[:5])
        more = f" and {len(self.calls) - 5} more" if len(self.calls) > 5 else ""
        super().__init__(f"it says done, and calls are still open: {named}{more}; settle them first")


# --- events ----------------------------------------------------------------------------------------------------------


def add_event(run: Run, kind: str, *, by: str = "", **detail: Any) -> RunEvent:
    """The next event of a run whose row is locked. Texts are redacted here."""
    newest = RunEvent.objects.filter(run=run).aggregate(newest=Max("number"))["newest"] or 0
    said = redact_value({name: _plain(value) for name, value in detail.items() if value not in ("", None)})
    return RunEvent.objects.create(
        run=run, number=newest + 1, at=timezone.now(), kind=kind, by=as_column(by)[:150], detail=canonical_json(said)
    )


def list_events(run: Run, *, after: int = 0, limit: int = MAX_EVENTS) -> tuple[RunEvent, ...]:
    """The events after that number, oldest first, at most `limit`."""
    return tuple(RunEvent.objects.filter(run=run, number__gt=after).order_by("number")[:limit])


def tell(run: Run, *, queue: bool = True) -> None:
    """Let the screens know; the last but the console's history in a transaction. `queue`: an approval, a status or an open call changed."""
    bump(RUNS)
    if queue:
        bump(run.store)


def _plain(value: object) -> object:
    if isinstance(value, Decimal):
        return format(value.normalize(), "f")
    if isinstance(value, datetime):
        return value.isoformat()
    return list(value) if isinstance(value, tuple) else value


# --- the row ---------------------------------------------------------------------------------------------------------


def lock_run(pk: int) -> Run:
    return Run.objects.select_for_update().get(pk=pk)


def is_busy(run: Run, now: datetime) -> bool:
    """Whether a worker is at it, as far as its row knows."""
    return run.held_until is not None and run.held_until > now


def is_undoing(run: Run) -> bool:
    """Whether what is to be done about it is to take back what it did."""
    return run.status not in LIVE and run.undoing == Undoing.RUNNING


def sentence(text: str) -> str:
    """A problem as the row keeps it: one text, redacted, of bounded length."""
    return as_column(redact_text(text))[:MAX_PROBLEM_CHARS]


def put_down(run: Run) -> None:
    """Nobody is at it, and nothing of it is due. Does not save."""
    run.token, run.held_until, run.queued_until, run.due_at = "", None, None, None
    run.parked = ""


def make_due(run: Run, now: datetime) -> None:
    """It goes on as soon as a worker takes it. Does not save."""
    put_down(run)
    run.status, run.due_at, run.problem, run.ended_at = RunStatus.RUNNING, now, "", None


def end_run(run: Run, status: RunStatus, now: datetime, *, problem: str = "", by: str = "", **detail: object) -> None:
    """The run is over, as `status` says; what was asked is void, and where its type wants it what it did is taken back. Saves."""
    put_down(run)
    run.status, run.ended_at, run.problem = status, now, sentence(problem)
    void_approvals(run)
    add_event(run, str(status.value), by=by, problem=run.problem, **detail)
    if status is not RunStatus.DONE and compensates_itself(run):
        run.undoing, run.due_at = Undoing.RUNNING, now
        add_event(run, "undoing", reason="its type takes back by itself what a run did that did not come to its end")
    run.save()


def cancel_now(run: Run, now: datetime, **detail: Any) -> None:
    """What was asked for by `cancel_asked_by` becomes true. Saves."""
    end_run(run, RunStatus.CANCELLED, now, by=run.cancel_asked_by, reason=run.cancel_reason, **detail)


def cancels_of(run: Run) -> int:
    """How often it was cancelled and went on: what somebody agreed to before that is asked again."""
    return RunEvent.objects.filter(run=run, kind="cancelled").count() if run.resumes else 0


def void_approvals(run: Run) -> int:
    """An answer to what it asked would reach nobody any more."""
    return Approval.objects.filter(run=run, state=ApprovalState.PENDING).update(state=ApprovalState.VOID)


def type_of(run: Run) -> RunType | None:
    """None where it is not registered any more."""
    return _find_type(run.type)


def _find_type(name: str) -> RunType | None:
    try:
        return find_run_type(name)
    except (UnknownRunType, RunTypeRefused):
        return None


def type_names() -> tuple[str, ...]:
    """The registered ones; none where the settings name what cannot be registered."""
    try:
        return tuple(run_types())
    except RunTypeRefused:
        return ()


def compensates_itself(run: Run) -> bool:
    kind = type_of(run)
    return kind is not None and kind.compensates_itself


def tools_of(run: Run) -> tuple[str, ...]:
    """What it may call; empty where its type is gone, which asks for the right to everything."""
    return tools_of_type(run.type)


def tools_of_type(name: str) -> tuple[str, ...]:
    kind = _find_type(name)
    return tuple(tool.name for tool in kind.tools) if kind is not None else ()


def unkeepable(value: Any, name: str = "") -> str | None:
    """Where a text stands that no record keeps; None where there is none."""
    if isinstance(value, str):
        return name if "\x00" in value or any("\ud800" <= char <= "\udfff" for char in value) else None
    if isinstance(value, Mapping):
        pairs: Any = [(f"{name}.{key}".strip("."), part) for key, part in value.items()]
        if any(unkeepable(str(key)) is not None for key in value):
            return name
    elif isinstance(value, list | tuple):
        pairs = [(f"{name}.{index}".strip("."), part) for index, part in enumerate(value)]
    else:
        return None
    return next((found for path, part in pairs if (found := unkeepable(part, path)) is not None), None)


# --- a person's gesture ----------------------------------------------------------------------------------------------


def check_reason(reason: str) -> str:
    """Raises InvalidDecision."""
    if not has_visible_text(reason):
        raise InvalidDecision("a reason is required")
    if len(reason) > MAX_REASON_CHARS:
        raise InvalidDecision(f"the reason has {len(reason)} characters; the limit is {MAX_REASON_CHARS}")
    check_text("reason", reason)
    return reason


def enter(
    kind: str, run: Run, *, by: User, changed: Mapping[str, list[Any]], reason: str = "", tool: str = "", **detail: object
) -> None:
    """The gesture as an entry of the console's history. Last in its transaction."""
    said = {"about": run.run_id, "type": run.type, "of": {"store": run.store}, "changed": dict(changed), **detail}
    journal.record(kind, actor=f"operator {by.get_username()}", agent=run.run_id, tool=tool, reason=reason, detail=said)
