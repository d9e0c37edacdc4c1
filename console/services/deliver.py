"""Bringing a kept decision to its store: the same path for the request that made it, for the task and for the sweep.

A hold that has run out becomes waiting here; a proposal is only looked at: whether its action has ended without it.

The decision's row is locked while the store is asked, so that nobody withdraws, repeats or delivers it at the same time; the lock dies
with its process. What the store committed before such a death is found again by the decision id.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import Error as ConsoleDatabaseError
from django.db import connection, transaction
from django.db.models import F
from django.db.models.functions import Now
from django.utils import timezone

from actions.errors import (
    ActionChanged,
    ActionNotOpen,
    ActionsError,
    LeaseLive,
    LeaseMoved,
    StoreError,
    StoreReadOnly,
    StoreUnavailable,
    StoreUnusable,
)
from actions.queries import ActionItem, get_action
from actions.records import Action, ActionEnd, ActionRef, ActionStatus, Entry, Lease, NewEntry, Settled
from actions.redaction import redact_text
from actions.rules import as_column as as_column
from actions.settle import make_end, settle, settled_entry
from actions.store.base import ActionStore
from actions.store.serve import settle_through
from actions.store.steps import marker
from actions.times import SECOND, format_rfc3339
from console.models import PENDING_STATES, Decision, DecisionState, WrittenBy
from console.services.changes import bump
from console.services.claimed import end_claims
from console.services.due import take_due
from console.services.gates import Gates
from console.services.journal import enter_beside
from console.services.settle_line import tell_attempt
from console.stores import TenantServer, UnknownStore, get_store
from console.tool_rules import rule_of
from console.trouble import log_unexpected, name_of

log = logging.getLogger(__name__)

LOCK_TIMEOUT = timedelta(seconds=15)
"""How long one request waits for another that is at the same decision; longer than a store may take to answer."""
CLAIM = timedelta(seconds=30)
"""How long the sweep leaves a decision to the task that it sent for it."""
PROPOSAL_PAUSE = timedelta(seconds=20)
"""How often a proposal's action is looked at: it may end without a second person."""
LONGEST_PAUSE = timedelta(seconds=3)
"""How long a live lease is left alone: it may be released long before it expires."""
LONGEST_BACK_OFF = timedelta(seconds=60)
LONGEST_AFTER_TROUBLE = timedelta(minutes=15)
"""The same after errors that nobody foresaw: they seldom go away by themselves."""
_MAX_NUMBER = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A decision as it stands after an attempt, and what the store objected, if anything."""

    decision: Decision
    problem: ActionsError | None = None


def attempt(
    pk: int,
    *,
    first: bool = False,
    wait: bool = False,
    seen: str = "",
    item: ActionItem | None = None,
    through: TenantServer | None = None,
) -> Attempt | None:
    """Ask the store to write one decision on its way, if nobody else is at it. Safe to call twice, or never.

    `first`: by the request that has just made it, whose person hears of every obstacle at once: what cannot be written now is refused.
    Later, a store that is down or read-only is tried again, and an end that the agent wrote itself is compared. `wait`: for whoever is at
    it, up to LOCK_TIMEOUT. `item`: the action as just read. `through`: where its agent's lease is live, write it through this server.

    An error that nobody foresaw leaves it waiting, with the kind of error in `why`: it may be written, so nothing else may be said.

    None: it does not exist, or somebody else is at it. Raises DatabaseError where the wait was in vain or the console's database went
    away: then nothing is known; it stays waiting, and the next attempt finds out.
    """
    done = _attempt_once(pk, first=first, wait=wait, seen=seen, item=item, through=through)
    if isinstance(done, _MustBeMarked):
        # That its store is being asked is committed now: whatever happens from here on, the row says that it may be written.
        done = _attempt_once(pk, first=first, wait=wait, seen=seen, item=None, through=through)
    return None if isinstance(done, _MustBeMarked) else done


class _MustBeMarked:
    """The row has been marked as "may be written" and the store has not been asked yet."""


def _attempt_once(
    pk: int, *, first: bool, wait: bool, seen: str, item: ActionItem | None, through: TenantServer | None
) -> Attempt | _MustBeMarked | None:
    began = time.perf_counter()
    with transaction.atomic(durable=True):
        row = lock(pk, wait=wait)
        if row is None or not row.is_pending:
            return Attempt(decision=row) if row else None
        why, state = row.why, row.state
        if row.state == DecisionState.HELD and not _end_hold(row):
            return Attempt(decision=row)
        problem = _try_whatever_happens(row, first=first, seen=seen, item=item, through=through)
        if isinstance(problem, _MustBeMarked):
            if row.state != state:
                bump(row.store)
            return problem
        row.refresh_from_db()
        # Still waiting for the same reason is no news: else every browser would fetch every few seconds while any agent lives.
        if first or row.state != state or (isinstance(problem, StoreError) and row.why != why):
            bump(row.store)
    tell_attempt(row, before=state, began=began, problem=problem)
    return Attempt(decision=row, problem=problem)


def _try_whatever_happens(
    row: Decision, *, first: bool, seen: str, item: ActionItem | None, through: TenantServer | None
) -> ActionsError | _MustBeMarked | None:
    """One attempt whose outcome always reaches the row, also where it breaks: else it would be tried for ever and nobody would know."""
    try:
        with transaction.atomic():
            return _try(row, first=first, seen=seen, item=item, through=through)
    except Exception as exc:
        if isinstance(exc, ConsoleDatabaseError) and not connection.is_usable():
            raise
        log_unexpected(log, f"delivering decision {row.decision_id} (attempt {row.attempts + 1})", exc)
        problem = StoreUnavailable(row.store, f"something unexpected went wrong here: {name_of(exc)}", may_be_written=True)
        return _postpone(row, problem, longest=LONGEST_AFTER_TROUBLE)


def deliver(pk: int) -> Decision | None:
    """One attempt at a decision that is on its way, by a task. Answers the row as it stands, None where somebody else is at it."""
    done = attempt(pk)
    return done.decision if done else None


def claim_due(limit: int) -> list[int]:
    """Take up to `limit` decisions whose time has come, oldest first, and put them off by CLAIM, as `take_due` does."""
    now = timezone.now()
    due = Decision.objects.filter(state__in=PENDING_STATES, next_try_at__lte=now).order_by("next_try_at", "pk")
    return take_due(due, limit, next_try_at=now + CLAIM)


def kept_before(gates: Gates, item: ActionItem) -> dict[str, Any]:
    """The columns of a decision that is made before these gates: its first state, its rule as it is frozen, when it is looked at again."""
    frozen = {
        "needs_second": gates.needs_second,
        "needs_step_up": gates.needs_step_up,
        "hold_s": gates.hold_s,
        "rule": as_column(gates.rule),
        "sentence": as_column(item.facts.sentence)[:200] if item.facts and gates.needs_second else "",
        "may_be_written": not (gates.needs_second or gates.hold_s),
    }
    if gates.needs_second:
        why, due = "a second person has to approve it", timezone.now() + PROPOSAL_PAUSE
        return {**frozen, "state": DecisionState.PROPOSED, "why": why, "next_try_at": due}
    return {**frozen, **on_its_way(gates.hold_s)}


def on_its_way(hold_s: int) -> dict[str, Any]:
    """The columns of a decision that nobody has to approve any more: held by the database's clock, or waiting and due."""
    if hold_s:
        until = Now() + timedelta(seconds=hold_s)
        return {"state": DecisionState.HELD, "why": "it can be undone", "held_until": until, "next_try_at": until}
    return {"state": DecisionState.WAITING, "why": "its store is being asked", "next_try_at": timezone.now()}


def end_of(row: Decision) -> ActionEnd:
    """The end as the row keeps it; the same on every attempt, so that the decision id stands for one content."""
    return make_end(ActionStatus(row.outcome), row.reason, actor=row.actor, result=row.result, error=row.error)


def lock(pk: int, *, wait: bool) -> Decision | None:
    """The row, locked to the end of the transaction. None where it is gone, or somebody else holds it and `wait` is false."""
    if wait:
        bound_waiting()
    return Decision.objects.select_for_update(skip_locked=not wait, of=("self",)).filter(pk=pk).first()


def bound_waiting() -> None:
    """From here on this transaction waits no longer than LOCK_TIMEOUT for a row that somebody else holds."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('lock_timeout', %s, true)", [f"{LOCK_TIMEOUT // timedelta(milliseconds=1)}ms"])


def while_alive(lease: Lease) -> tuple[str, timedelta]:
    """Why nothing is written while this lease is live, and for how long it is left alone."""
    why = f"its agent is alive: {lease.holder[:80]} holds the lease until {format_rfc3339(lease.expires_at)}"
    return why, min(timedelta(seconds=max(1, (lease.expires_at - lease.read_at) // SECOND)), LONGEST_PAUSE)


def back_off(attempts: int, longest: timedelta = LONGEST_BACK_OFF) -> timedelta:
    """How long a store is left alone that did not take what it was asked to write, after so many attempts before this one."""
    return min(timedelta(seconds=2 ** min(attempts + 1, 12)), longest)


def announce(row: Decision, kind: str, *, actor: str = "", why: str = "", or_here: bool = True) -> bool:
    """Put a step of a decision into its store's chain, or into the console's own where that store takes none; False where it is in neither.

    `or_here=False`: beside its action or not at all.
    """
    entry = NewEntry(
        kind=kind,
        actor=actor or row.actor,
        agent=row.agent,
        seq=row.seq,
        tool=redact_text(row.tool),
        decision_id=row.decision_id,
        outcome=row.outcome,
        reason=redact_text(row.reason),
        content_digest=row.content_digest,
        evidence_id=row.evidence_id,
        detail={"why": redact_text(why)} if why else {},
    )
    try:
        return enter_beside(row.store, entry, or_here=or_here) is not None
    except Exception as exc:
        log_unexpected(log, f"entering {kind} of decision {row.decision_id} into the history of store {row.store}", exc)
        return False


def gates_detail(row: Decision) -> dict[str, object]:
    """What stood before a decision and who let it pass, for the entry that commits with it. Redacted."""
    said = {
        "rule": row.shown_rule,
        "second": f"approver {row.second_username}" if row.second_at is not None else "",
        "second_reason": row.shown_second_reason,
        "broke_glass": row.shown_broke_glass,
        "broke_glass_by": row.broke_glass_by,
    }
    return {name: value for name, value in said.items() if value}


def turn_of(entry: Entry) -> int | None:
    """The number of the turn that a settle wrote."""
    turn = entry.detail.get("turn")
    return turn if isinstance(turn, int) else None


def mark_written(row: Decision, entry: Entry | None, turn_seq: int | None, by: WrittenBy, why: str = "") -> None:
    """Keep of a locked row that it stands in its store, and end the claims on its action. In the caller's transaction."""
    end_claims(row.ref)
    _change(
        row,
        state=DecisionState.WRITTEN,
        why=why,
        entry_number=_as_number(entry.number if entry else None),
        turn_seq=_as_number(turn_seq),
        written_by=by,
        next_try_at=None,
    )


def _try(
    row: Decision, *, first: bool, seen: str, item: ActionItem | None, through: TenantServer | None
) -> ActionsError | _MustBeMarked | None:
    """One attempt at a locked, waiting row. Leaves it as the attempt left the world; answers what the store objected."""
    try:
        store = get_store(row.store)
        now = item or get_action(store, row.ref)
        if now.action is not None and not now.action.is_open:
            return _compare_end(row, store, now.action, first=first)
        if row.state == DecisionState.PROPOSED:
            _leave_proposed(row)
            return None
        is_held = now.lease is not None and now.lease.is_live
        if now.lease is not None and is_held and through is None:
            raise LeaseLive(now.lease)
        if not row.may_be_written:
            Decision.objects.filter(pk=row.pk).update(may_be_written=True)
            return _MustBeMarked()
        written = _settle_through(row, store, through) if through is not None and is_held else None
        mark_written(row, *(written or _settle(row, store, seen)), WrittenBy.US)
    except UnknownStore as exc:
        return _postpone(row, StoreUnusable(row.store, f"{exc}; put it back into ACTION_STORES"))
    except LeaseLive as exc:
        return _leave_waiting(row, exc)
    except ActionNotOpen as exc:
        return _ended(row, exc, first=first)
    except (StoreUnavailable, StoreReadOnly, StoreUnusable) as exc:
        is_open_question = isinstance(exc, StoreUnavailable) and exc.may_be_written
        return _refuse(row, exc, str(exc)) if first and not is_open_question else _postpone(row, exc)
    except ActionChanged as exc:
        return _refuse(row, exc, "the action is no longer the one that was decided about")
    except ActionsError as exc:
        return _refuse(row, exc, str(exc))
    return None


def _settle(row: Decision, store: ActionStore, seen: str) -> tuple[Entry, int]:
    """Begun through the tenant's server and cut off there, its turn may stand already: then no second one is written."""
    is_begun = row.attempts > 0 and has_begun(row, store)
    written: Settled = settle(
        store,
        row.ref,
        end_of(row),
        actor=row.actor,
        decision_id=row.decision_id,
        seen=seen or None,
        claim=row.claim,
        evidence_id=row.evidence_id,
        detail=gates_detail(row),
        marker=marker(row.seq, row.decision_id) if is_begun else "",
        redacted=rule_of(row.tool).redacted,
    )
    return written.entry, written.turn_seq


def _settle_through(row: Decision, store: ActionStore, server: TenantServer | None) -> tuple[Entry, int] | None:
    """None where the agent has become free meanwhile: then it is settled as any other."""
    end = end_of(row)
    detail = {"through": "the tenant's server", **gates_detail(row)}
    redacted = rule_of(row.tool).redacted
    entry = settled_entry(row.ref, end, actor=row.actor, decision_id=row.decision_id, detail=detail, redacted=redacted)
    try:
        written = settle_through(server, store, row.ref, end, entry=entry, claim=row.claim)
    except LeaseMoved:
        return None
    return written.entry, written.turn_seq


def _compare_end(row: Decision, store: ActionStore, action: Action, *, first: bool) -> ActionsError | None:
    """The action has ended: by this very decision before a crash, by its agent, or by somebody else."""
    ours = store.find_settled_entry(row.decision_id)
    if ours is not None:
        mark_written(row, ours, turn_of(ours), WrittenBy.US)
        return None
    if has_begun(row, store):  # only asking again tells whose end it is, and completes ours
        mark_written(row, *_complete(row, store), WrittenBy.US)
        return None
    return _ended(row, ActionNotOpen(row.ref, action, find_ending(store, row.ref)), first=first)


def _complete(row: Decision, store: ActionStore) -> tuple[Entry, int]:
    """A store that settles in steps does it by itself; in any other it was begun through the tenant's server, which need not be asked."""
    through = _settle_through(row, store, None) if store.leases_known else None
    return through or _settle(row, store, "")


def has_begun(row: Decision, store: ActionStore) -> bool:
    """Whether a part of this decision may be written: only where it is settled in steps, and was cut off between them."""
    if not row.may_be_written:
        return False
    entries = store.list_entries(limit=50, agent=row.agent, seq=row.seq, kinds=("settling",))
    return any(entry.decision_id == row.decision_id for entry in entries)


def find_ending(store: ActionStore, ref: ActionRef) -> Entry | None:
    """The entry of the settle that ended this action; None where another program's write did."""
    return next(iter(store.list_entries(limit=1, agent=ref.agent, seq=ref.seq, kinds=("settled",))), None)


def _ended(row: Decision, problem: ActionNotOpen, *, first: bool) -> ActionsError | None:
    """Somebody ended it. By the agent with the same outcome counts as written, unless a person is there to be told."""
    end_claims(row.ref)
    if problem.entry is None and problem.action.status == row.outcome and not first:
        mark_written(row, None, None, WrittenBy.AGENT, why="its agent ended it itself, with the same outcome")
        return None
    who = problem.entry.actor if problem.entry else "its agent"
    what = problem.action.error or problem.action.result
    return _refuse(
        row, problem, f"{who} ended it first: {problem.action.status}" + (f", {redact_text(what)[:300]}" if what else "")
    )


def _end_hold(row: Decision) -> bool:
    """Make a hold that has run out waiting; by the database's clock, which began it. False: it can still be undone."""
    held = Decision.objects.filter(pk=row.pk, state=DecisionState.HELD)
    why = "its store is being asked"
    if held.filter(held_until__lte=Now()).update(state=DecisionState.WAITING, why=why, updated_at=timezone.now()) != 1:
        held.update(next_try_at=F("held_until"))  # the clock of whoever claimed it is ahead
        return False
    row.state, row.why = DecisionState.WAITING, why
    return True


def _leave_proposed(row: Decision) -> None:
    proposed = Decision.objects.filter(pk=row.pk, state=DecisionState.PROPOSED)
    proposed.update(next_try_at=timezone.now() + PROPOSAL_PAUSE)


def _leave_waiting(row: Decision, problem: LeaseLive) -> LeaseLive:
    why, pause = while_alive(problem.lease)
    is_announced = row.is_announced or announce(row, "waiting", why=why)
    # Somebody else holds the lease that a write of ours would have needed, and the action was open: no write of ours is on its way. Unless
    # it was begun through the tenant's server, which needs no lease of ours.
    may_be_written = row.attempts > 0 and has_begun(row, get_store(row.store))
    if may_be_written:
        why = f"a part of it may be written through its tenant's server; send it again that way. {why[0].upper()}{why[1:]}"
    next_try_at = timezone.now() + pause
    _change(row, why=why, is_announced=is_announced, may_be_written=may_be_written, next_try_at=next_try_at)
    return problem


def _postpone(row: Decision, problem: StoreError, *, longest: timedelta = LONGEST_BACK_OFF) -> StoreError:
    if row.state == DecisionState.PROPOSED:
        _leave_proposed(row)  # nobody has asked its store to write anything
        return problem
    _change(row, why=str(problem), next_try_at=timezone.now() + back_off(row.attempts, longest))
    return problem


def _refuse(row: Decision, problem: ActionsError, why: str) -> ActionsError:
    _change(row, state=DecisionState.REFUSED, why=why, next_try_at=None)
    if not isinstance(problem, StoreError):
        announce(row, "refused", why=why)
    return problem


def _change(row: Decision, **values: object) -> None:
    """Change a row only where it is still as it was read; the lock makes anything else impossible, and a bug should say so."""
    if isinstance(why := values.get("why"), str):
        values["why"] = as_column(why)
    unchanged = Decision.objects.filter(pk=row.pk, state=row.state)
    if unchanged.update(attempts=F("attempts") + 1, updated_at=timezone.now(), **values) != 1:
        raise RuntimeError(f"decision {row.decision_id} changed while it was locked")


def _as_number(number: int | None) -> int | None:
    """A number for a screen, unless no column holds it: that it is written matters, not where."""
    return number if number is not None and 0 <= number <= _MAX_NUMBER else None
