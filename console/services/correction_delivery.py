"""Bringing a kept correction to its store: the same path for the request that made it, for the task and for the sweep.

The row is locked while the store is asked; the store writes one id once, so that asking again is the repair of whatever was cut off.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from datetime import timedelta

from django.db import Error as ConsoleDatabaseError
from django.db import connection, transaction
from django.db.models import F
from django.utils import timezone

from actions.correct import WasRead, correct, make_correction, was_read
from actions.errors import ActionsError, LeaseLive, StoreError, StoreReadOnly, StoreUnavailable, StoreUnusable
from actions.redaction import redact_text
from actions.store.base import ActionStore
from console.models import Correction, CorrectionState, Incident
from console.services.changes import bump
from console.services.deliver import (
    CLAIM,
    LONGEST_AFTER_TROUBLE,
    LONGEST_BACK_OFF,
    as_column,
    back_off,
    bound_waiting,
    while_alive,
)
from console.services.due import take_due
from console.services.incidents import announce_incident, open_for_correction
from console.services.settle_line import tell_correction
from console.stores import UnknownStore, get_store
from console.trouble import log_unexpected, name_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempted:
    """A correction as it stands after an attempt, and what the store objected, if anything."""

    correction: Correction
    problem: ActionsError | None = None


def attempt_correction(pk: int, *, first: bool = False, wait: bool = False) -> Attempted | None:
    """Ask the store to write one waiting correction, if nobody else is at it. Safe to call twice, or never.

    `first`: by the request that has just made it, whose person hears of every obstacle at once.
    """
    incident, began = None, time.perf_counter()
    with transaction.atomic(durable=True):
        row = lock_correction(pk, wait=wait)
        if row is None or row.state != CorrectionState.WAITING:
            return Attempted(correction=row) if row else None
        why = row.why
        try:
            with transaction.atomic():
                problem, incident = _try(row, first=first)
        except Exception as exc:
            if isinstance(exc, ConsoleDatabaseError) and not connection.is_usable():
                raise
            log_unexpected(log, f"delivering correction {row.correction_id} (attempt {row.attempts + 1})", exc)
            unforeseen = StoreUnavailable(row.store, f"something unexpected went wrong here: {name_of(exc)}", may_be_written=True)
            problem = _postpone(row, unforeseen, longest=LONGEST_AFTER_TROUBLE)
        row.refresh_from_db()
        if first or not row.is_pending or (isinstance(problem, StoreError) and row.why != why):
            bump(row.store)
    if incident is not None:
        announce_incident(incident)
    tell_correction(row, before=CorrectionState.WAITING, began=began, problem=problem)
    return Attempted(correction=row, problem=problem)


def deliver_correction(pk: int) -> Correction | None:
    """One attempt at a correction that is on its way, by a task. None where somebody else is at it."""
    done = attempt_correction(pk)
    return done.correction if done else None


def claim_due_corrections(limit: int) -> list[int]:
    """Take up to `limit` corrections whose time has come, oldest first, and put them off by CLAIM, as `take_due` does."""
    now = timezone.now()
    due = Correction.objects.filter(state=CorrectionState.WAITING, next_try_at__lte=now).order_by("next_try_at", "pk")
    return take_due(due, limit, next_try_at=now + CLAIM)


def lock_correction(pk: int, *, wait: bool) -> Correction | None:
    """The row, locked to the end of the transaction. None where it is gone, or somebody else holds it and `wait` is false.

    Raises DatabaseError where it was waited for LOCK_TIMEOUT in vain: nothing was changed.
    """
    if wait:
        bound_waiting()
    return Correction.objects.select_for_update(skip_locked=not wait, of=("self",)).filter(pk=pk).first()


def change_correction(row: Correction, **values: object) -> None:
    """Change a locked row that is on its way, only where it is still as it was read; anything else is a bug, and raises RuntimeError."""
    if isinstance(why := values.get("why"), str):
        values["why"] = as_column(why)
    pending = Correction.objects.filter(pk=row.pk, state=row.state)
    if not row.is_pending or pending.update(attempts=F("attempts") + 1, updated_at=timezone.now(), **values) != 1:
        raise RuntimeError(f"correction {row.correction_id} changed while it was locked")


def _try(row: Correction, *, first: bool) -> tuple[ActionsError | None, Incident | None]:
    try:
        store = get_store(row.store)
        words = make_correction(row.outcome, row.reason, actor=row.actor)
        written = correct(
            store,
            row.ref,
            words,
            actor=row.actor,
            decision_id=row.correction_id,
            basis=row.told_entry,
            detail=_second_detail(row),
        )
    except UnknownStore as exc:
        return _postpone(row, StoreUnusable(row.store, f"{exc}; put it back into ACTION_STORES")), None
    except LeaseLive as exc:
        why, pause = while_alive(exc.lease)
        change_correction(row, why=why, next_try_at=timezone.now() + pause)
        return exc, None
    except (StoreUnavailable, StoreReadOnly, StoreUnusable) as exc:
        is_open_question = isinstance(exc, StoreUnavailable) and exc.may_be_written
        return (_refuse(row, exc) if first and not is_open_question else _postpone(row, exc)), None
    except ActionsError as exc:
        return _refuse(row, exc), None
    change_correction(
        row,
        state=CorrectionState.WRITTEN,
        why="",
        entry_number=written.entry.number,
        turn_seq=written.turn_seq,
        was_read=_was_read(store, row, written.turn_seq),
        next_try_at=None,
    )
    return None, open_for_correction(row)


def _second_detail(row: Correction) -> dict[str, object]:
    """What stood before a correction and who let it pass, for the entry that commits with it. Redacted."""
    if row.second_at is None:
        return {}
    said = {"rule": redact_text(row.rule), "second": f"approver {row.second_username}", "second_reason": row.shown_second_reason}
    return {name: value for name, value in said.items() if value}


def _was_read(store: ActionStore, row: Correction, turn_seq: int) -> str:
    """Whether the first one was read by the time this one was written; nobody's delivery fails for it."""
    try:
        entries = store.list_entries(limit=1, before=row.told_entry + 1, agent=row.agent, seq=row.seq)
        return was_read(store, entries[0], before=turn_seq) if entries else WasRead.UNKNOWN
    except StoreError:
        return WasRead.UNKNOWN


def _postpone(row: Correction, problem: StoreError, *, longest: timedelta = LONGEST_BACK_OFF) -> StoreError:
    change_correction(row, why=str(problem), next_try_at=timezone.now() + back_off(row.attempts, longest))
    return problem


def _refuse(row: Correction, problem: ActionsError) -> ActionsError:
    change_correction(row, state=CorrectionState.REFUSED, why=str(problem), next_try_at=None)
    return problem
