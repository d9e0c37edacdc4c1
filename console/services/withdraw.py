"""An operator takes back a decision that is not written yet. Once withdrawn it is never written."""

from __future__ import annotations

import logging

from django.contrib.auth.models import User
from django.db import Error as ConsoleDatabaseError
from django.db import transaction
from django.http import Http404
from django.utils import timezone

from actions.errors import StoreError
from actions.queries import ActionItem
from actions.records import ActionRef
from console.access import Right, is_possible, item_or_404, may_somewhere, require
from console.models import PENDING_STATES, Decision, DecisionState, WrittenBy
from console.services.answers import DATABASE_TROUBLE, Answer, AnswerKind, answer_pending
from console.services.changes import bump
from console.services.decide import actor_of
from console.services.decisions import current_decisions
from console.services.deliver import announce, as_column, has_begun, lock, mark_written, turn_of
from console.services.settle_line import tell_ended
from console.stores import UnknownStore, get_store
from console.trouble import log_unexpected, name_of

log = logging.getLogger(__name__)

_HALF_WRITTEN = (
    "too late: a part of it may be written, and its agent may have read that; it is completed as soon as that is possible"
)


def withdraw(ref: ActionRef, *, by: User, decision_id: str = "") -> Answer:
    """Take back the pending decision about an action (with `decision_id` only that one). Once withdrawn it is never written.

    Whoever is delivering it is waited for: what they wrote stands.

    Raises:
        Http404, PermissionDenied: the person may not see or not settle this action. Nothing was changed.
    """
    row = _to_withdraw(ref, decision_id)
    if row is None:
        try:
            item = item_or_404(by, ref, Right.SETTLE)
        except StoreError as exc:
            if not may_somewhere(by, Right.SETTLE, store=ref.store):
                raise Http404(f"no store is called {ref.store!r}") from exc
            return Answer(kind=AnswerKind.NOTHING, detail="no decision is on its way")
        return _nothing_to_withdraw(ref, item)
    require(
        by,
        Right.SETTLE,
        store=row.store,
        tool=row.tool,
        missing=f"store {ref.store} has no action {ref.seq} of agent {ref.agent}",
    )
    if row.state == DecisionState.WITHDRAWN:
        return Answer(kind=AnswerKind.WITHDRAWN, detail="it was withdrawn before", decision=row)
    if decision_id and row.decision_id != decision_id:
        return answer_pending(row, None)
    try:
        with transaction.atomic(durable=True):
            answer = _withdraw_locked(row, by)
            bump(row.store)
    except ConsoleDatabaseError as exc:
        log.error("withdrawing decision %s: the console's database: %s", row.decision_id, type(exc).__name__)
        detail = f"{DATABASE_TROUBLE}, or somebody is at this decision; whether it is withdrawn is not known, look again"
        return Answer(kind=AnswerKind.UNAVAILABLE, detail=detail, decision=row)
    if answer.kind is AnswerKind.WITHDRAWN:
        announce(row, "withdrawn", actor=actor_of(by))
        tell_ended(row, DecisionState.WITHDRAWN)
    return answer


def _to_withdraw(ref: ActionRef, decision_id: str) -> Decision | None:
    if not is_possible(ref):
        return None
    rows = Decision.objects.filter(store=ref.store, agent=ref.agent, seq=ref.seq)
    withdrawn = rows.filter(state=DecisionState.WITHDRAWN, decision_id=as_column(decision_id)) if decision_id else rows.none()
    return rows.filter(state__in=PENDING_STATES).first() or withdrawn.first()


def _withdraw_locked(row: Decision, by: User) -> Answer:
    now = lock(row.pk, wait=True)
    if now is None or not now.is_pending:
        return _nothing_to_withdraw(row.ref, None)
    try:
        # A process may have died between the store's commit and this row: then it is too late.
        store = get_store(row.store)
        entry = store.find_settled_entry(row.decision_id)
        is_begun = entry is None and has_begun(now, store)
    except Exception as exc:
        if now.may_be_written:
            return Answer(kind=AnswerKind.UNAVAILABLE, detail=_why_it_cannot_be_withdrawn(row, exc), decision=now)
        entry, is_begun = None, False  # its store was never asked to write it, and while we hold the row nobody asks
    if entry is not None:
        mark_written(now, entry, turn_of(entry), WrittenBy.US)
        return Answer(kind=AnswerKind.CLOSED, detail="too late: it is written", decision=now, entry=entry)
    if is_begun:
        return Answer(kind=AnswerKind.UNAVAILABLE, detail=_HALF_WRITTEN, decision=now)
    pending = Decision.objects.filter(pk=row.pk, state__in=PENDING_STATES)
    changed = pending.update(
        state=DecisionState.WITHDRAWN, why=f"withdrawn by {by.get_username()}", next_try_at=None, updated_at=timezone.now()
    )
    if changed != 1:
        raise RuntimeError(f"decision {row.decision_id} changed while it was locked")
    now.refresh_from_db()
    return Answer(kind=AnswerKind.WITHDRAWN, detail="withdrawn; it will not be written", decision=now)


def _why_it_cannot_be_withdrawn(row: Decision, problem: Exception) -> str:
    """What is known of a decision whose store was asked to write it and cannot be asked whether it did."""
    known = "it was being written when its store was last asked, and whether it is, only that store knows"
    if isinstance(problem, UnknownStore):
        return f"store {row.store} is no longer in ACTION_STORES; {known}. Put the store back and withdraw it then"
    if isinstance(problem, StoreError):
        return f"{problem}; {known}. Try again when the store answers"
    log_unexpected(log, f"looking for decision {row.decision_id} in store {row.store}", problem)
    return f"store {row.store}: its answer broke something here ({name_of(problem)}); {known}"


def _nothing_to_withdraw(ref: ActionRef, item: ActionItem | None) -> Answer:
    current = current_decisions([ref]).get(ref)
    if current is not None and current.state == DecisionState.WRITTEN:
        return Answer(kind=AnswerKind.CLOSED, detail="too late: it is written", decision=current, item=item)
    return Answer(kind=AnswerKind.NOTHING, detail="no decision is on its way", decision=current, item=item)
