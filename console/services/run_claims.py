"""Which runs are due, and who is at which: advancing one, or taking back what one did.

The database alone knows what is due. A task may come twice or never, a worker may die at any point. Two things keep two workers from acting
for one run: the claim on its row, without whose token nothing is written there, and its agent's lease, without which nothing is written
in its records. The claim runs out after a step can take no longer, and is taken from who holds no lease: they have died.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from decimal import Decimal

from django.conf import settings
from django.db import InterfaceError, OperationalError, transaction
from django.db.models import Max, Q
from django.utils import timezone

from actions.errors import StoreError
from actions.records import OPEN_STATUSES, Action, ActionClass
from console.models import Parked, Run, RunEvent, RunStatus, Undoing
from console.services.run_rows import add_event, end_run, is_undoing, make_due, put_down, tell, type_of
from console.stores import UnknownStore, get_store, run_checkpoints
from console.trouble import log_unexpected

log = logging.getLogger(__name__)

ADVANCING = Q(status=RunStatus.RUNNING)
UNDOING = Q(status__in=(RunStatus.FAILED, RunStatus.CANCELLED), undoing=Undoing.RUNNING)
"""What a worker may be at."""
STORE_PAUSE = timedelta(seconds=5)
"""How long a run waits for a store or for its checkpoints' database."""
FIRST_LOOK = timedelta(seconds=2)
LAST_LOOK = timedelta(seconds=30)
"""How long lies between two looks at a run whose calls are in doubt: at first, and once it has been so for minutes."""
MAX_LOST = 10
"""So many workers may be lost in one step; then it is the step that kills them."""
LONGEST_PAUSE = timedelta(minutes=1)
"""From the second lost worker on the step waits before it is begun again, each time twice as long, at most so long."""
ONE_LOOK = 200
_OF_LOST = '"attempt":'
"""In the detail of an event `resumed`: a worker was lost."""


# --- what is due -----------------------------------------------------------------------------------------------------


def claim_due_runs(limit: int, work: Q = ADVANCING) -> list[int]:
    """Take up to `limit` runs whose time has come, oldest first, and put them off by RUN_QUEUED_S: two sweeps never take the same one.
    A task that is lost costs only that time."""
    now = timezone.now()
    with transaction.atomic():
        due = Run.objects.filter(work, _free(now), due_at__lte=now)
        due = due.filter(Q(queued_until=None) | Q(queued_until__lte=now)).order_by("due_at", "pk")
        pks = list(due.select_for_update(skip_locked=True).values_list("pk", flat=True)[:limit])
        Run.objects.filter(pk__in=pks).update(queued_until=now + timedelta(seconds=settings.RUN_QUEUED_S))
    return pks


def free_the_lost(limit: int) -> int:
    """Make due what a worker was at that has died: its claim ran out, or its agent's lease is free. How many there were.

    Whoever takes a claim gets the lease within moments and keeps it alive; one that is free a whole lease's time later is nobody's.
    """
    now = timezone.now()
    old = now + timedelta(seconds=settings.RUN_CLAIM_S - settings.RUN_LEASE_S)
    held = Run.objects.filter(ADVANCING | UNDOING, held_until__lte=old).order_by("held_until")
    freed = 0
    for run in held[:limit]:
        with whatever_befalls(run.run_id, "seeing whether its worker died"):
            if run.held_until is not None and run.held_until > now and not _is_lease_free(run):
                continue
            freed += _free_one(run, now)
    return freed


@contextmanager
def whatever_befalls(run_id: str, doing: str) -> Iterator[None]:
    """What goes wrong with one run is a line of the log, and keeps no sweep from the others. A database that is away concerns all of them."""
    try:
        yield
    except (OperationalError, InterfaceError):
        raise
    except Exception as exc:
        log_unexpected(log, f"{doing}, run {run_id}", exc)


def _is_lease_free(run: Run) -> bool:
    try:
        lease = get_store(run.store).find_lease(run.run_id)
    except (StoreError, UnknownStore) as exc:
        log.warning("whether run %s is lost cannot be told: %s", run.run_id, exc)
        return False  # the claim runs out by itself
    return lease is None or not lease.is_live


def _free_one(run: Run, now: datetime) -> bool:
    with transaction.atomic():
        row = Run.objects.select_for_update().filter(pk=run.pk, token=run.token, held_until=run.held_until).first()
        if row is None:
            return False
        attempt, lost = row.token, _lost_in_this_step(row) + 1
        attempts = (*lost_attempts(row), attempt)
        row.resumes, row.lost_steps = row.resumes + 1, row.lost_steps + 1
        goes_back = is_undoing(row)
        problem = (
            f"{lost} workers were lost in the same step, which may be what kills them; look what it needs, "
            f"then {'have it taken back once more' if goes_back else 'resume the run, or begin it anew'}"
        )
        if lost < MAX_LOST:
            _again(row, now + pause_after(lost) if not row.cancel_asked_by else now)
            add_event(row, "resumed", reason="the worker that was at it is gone", lost=lost, attempt=attempt)
        elif goes_back:
            put_down(row)
            row.undoing = Undoing.STOPPED
            row.save()
            add_event(row, "undo_stopped", problem=problem)
        else:
            cost = _cost_of(row, attempts)
            row.cost += cost
            end_run(row, RunStatus.FAILED, now, problem=problem, cost=cost or None)
        tell(row)
    return True


def _lost_in_this_step(row: Run) -> int:
    """How many workers were lost since it last came a step further, or a person had it go on. A call that was settled meanwhile is no step."""
    further = Q(kind__in=("started", "step", "undone", "undoing")) | Q(kind="resumed") & ~Q(by="")
    since = RunEvent.objects.filter(further, run=row).aggregate(newest=Max("number"))["newest"] or 0
    return RunEvent.objects.filter(run=row, kind="resumed", number__gt=since, detail__contains=_OF_LOST).count()


def pause_after(lost: int) -> timedelta:
    return min(timedelta(seconds=2 ** (lost - 1)), LONGEST_PAUSE) if lost > 1 else timedelta(0)


def begun_anew_by_themselves(run: Run) -> int:
    """How many runs one after the other came to this one because a worker was lost and nobody was asked; as far as MAX_LOST."""
    found, before = 0, run.restart_of
    while before is not None and found < MAX_LOST and RunEvent.objects.filter(run=before, kind="restarted", by="").exists():
        found, before = found + 1, before.restart_of
    return found


def lost_attempts(run: Run) -> tuple[str, ...]:
    """The claims of the workers that were lost since somebody last told what a step came to."""
    if not run.lost_steps:
        return ()
    events = RunEvent.objects.filter(run=run, kind="resumed", detail__contains=_OF_LOST).order_by("-number")[: run.lost_steps]
    return tuple(str(json.loads(event.detail)["attempt"]) for event in events)


def _cost_of(run: Run, attempts: Sequence[str]) -> Decimal:
    """What these attempts are known to have cost; nothing where that cannot be read now."""
    kind = type_of(run)
    if kind is None:
        return Decimal(0)
    try:
        from agents.steps import read_lost  # LangGraph, which nobody needs who only shows runs

        with run_checkpoints() as checkpointer:
            return read_lost(kind, run.run_id, checkpointer=checkpointer, attempts=attempts, limit=1).cost
    except Exception as exc:  # whatever a state raises that is not read any more
        log.warning("what the lost steps of run %s cost cannot be told: %s", run.run_id, type(exc).__name__)
        return Decimal(0)


def _again(row: Run, at: datetime) -> None:
    """Due once more, then, for what was being done with it. Saves."""
    if is_undoing(row):
        put_down(row)
        row.due_at = at
    else:
        make_due(row, at)
    row.save()


def wake_parked(limit: int) -> int:
    """Make due the runs whose calls in doubt are settled by now. How many there were. One bounded read for each that is looked at."""
    now = timezone.now()
    parked = Run.objects.filter(ADVANCING | UNDOING, parked=Parked.OPEN_CALLS, due_at=None, held_until=None)
    woken = 0
    for run in parked.filter(Q(queued_until=None) | Q(queued_until__lte=now)).order_by("queued_until", "pk")[:limit]:
        with whatever_befalls(run.run_id, "seeing whether its calls are settled"):
            woken += _wake_if_settled(run, now)
    return woken


def _wake_if_settled(run: Run, now: datetime) -> bool:
    try:
        read = get_store(run.store).read_actions(OPEN_STATUSES, limit=ONE_LOOK, agent=run.run_id)
    except (StoreError, UnknownStore):
        Run.objects.filter(pk=run.pk).update(queued_until=now + STORE_PAUSE)
        return False
    found = [one.action for one in read.readings if isinstance(one.action, Action)]
    in_doubt = [one for one in found if one.action_class is ActionClass.EXTERNAL]
    age = now - (run.stepped_at or run.created_at)
    # What is idempotent and open is made again with its key by the next step: now and then, not every two seconds.
    if in_doubt or len(found) < len(read.readings) or (_counts(found) and age < LAST_LOOK):
        Run.objects.filter(pk=run.pk).update(queued_until=now + min(max(age / 10, FIRST_LOOK), LAST_LOOK))
        return False
    return _wake(run, now)


def _counts(found: Sequence[Action]) -> bool:
    return any(one.action_class is not ActionClass.PURE for one in found)


def _wake(run: Run, now: datetime) -> bool:
    with transaction.atomic():
        waiting = Run.objects.filter(ADVANCING | UNDOING, parked=Parked.OPEN_CALLS, due_at=None, pk=run.pk)
        row = waiting.select_for_update().first()
        if row is None:
            return False
        _again(row, now)
        add_event(row, "resumed", reason="the calls that were in doubt are settled")
        tell(row)
    return True


# --- the claim -------------------------------------------------------------------------------------------------------


def _free(now: datetime) -> Q:
    return Q(held_until=None) | Q(held_until__lte=now)


def take_claim(pk: int, work: Q = ADVANCING) -> str | None:
    """The claim to a run that is due; None where somebody else has it, or nothing is to be done."""
    now, token = timezone.now(), uuid.uuid4().hex
    taken = Run.objects.filter(work, _free(now), pk=pk, due_at__lte=now).update(
        held_until=now + timedelta(seconds=settings.RUN_CLAIM_S), token=token
    )
    return token if taken == 1 else None


def renew_claim(pk: int, token: str, work: Q = ADVANCING) -> bool:
    """Whether it is still ours; then for another while."""
    until = timezone.now() + timedelta(seconds=settings.RUN_CLAIM_S)
    return Run.objects.filter(work, pk=pk, token=token).update(held_until=until) == 1


def claimed_run(pk: int, token: str, work: Q = ADVANCING) -> Run | None:
    """The row, locked, if the claim is still ours. In the caller's transaction."""
    return Run.objects.select_for_update().filter(work, pk=pk, token=token).first()
