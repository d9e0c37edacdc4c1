"""The second person of a correction: approve or turn down what somebody proposed. One conditional change each."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from datetime import datetime

from django.contrib.auth.models import User
from django.db import Error as ConsoleDatabaseError
from django.db import transaction
from django.db.models.functions import Now
from django.utils import timezone

from actions.correct import make_correction
from actions.errors import InvalidDecision, StoreError
from actions.queries import ActionItem
from actions.records import ActionRef, NewEntry
from actions.redaction import redact_text
from actions.rules import MAX_REASON_CHARS, check_text, has_visible_text
from actions.turns import SettlementTurn, correction_turn
from console.access import Person, Right, item_or_404, may, sees_problems
from console.models import Correction, CorrectionState
from console.services.answers import DATABASE_TROUBLE
from console.services.changes import bump
from console.services.correction_answers import CorrectionAnswer, CorrectionKind, answer_of, must_confirm
from console.services.correction_delivery import attempt_correction
from console.services.decisions import why_not_second
from console.services.deliver import as_column
from console.services.gates import Gates
from console.services.journal import enter_beside
from console.trouble import log_unexpected

log = logging.getLogger(__name__)

STEPS = frozenset({"proposed", "approved", "turned_down"})
"""Entries about a correction of which nothing is written to its agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedCorrection:
    """A proposed correction as a second person is shown it: the exact turn, and what this person may do about it."""

    turn: SettlementTurn | None  # None: it could not be written any more
    may_approve: bool
    why_not: str  # why this person cannot be the second one; empty: only the right counts


def show_proposed_correction(row: Correction, item: ActionItem, *, user: Person) -> ProposedCorrection:
    """Writes nothing and reads nothing. The caller has checked that the user may see the action."""
    why_not = why_not_second(row, user)
    words = make_correction(row.outcome, row.reason, actor=row.actor)
    return ProposedCorrection(
        turn=correction_turn(row.seq, row.told, words) if item.action is not None else None,
        may_approve=not why_not and may(user, Right.APPROVE, store=row.store, tool=row.tool),
        why_not=why_not,
    )


def approve_correction(
    ref: ActionRef, correction_id: str, *, by: User, reason: str = "", confirmed_at: datetime | None = None
) -> CorrectionAnswer:
    """Be the second person of a proposed correction, whose id stands for its content; then it goes the way of every other.

    Of two who approve at once one does, and the other is told who. The same person again is answered what became of it.

    Raises:
        Http404, PermissionDenied: as `access.item_or_404`. Nothing was changed.
    """
    row, refused = _proposed_for(ref, correction_id, by=by, reason=reason, needed="")
    if refused is not None or row is None:
        return refused or _nothing()
    if confirm := must_confirm(Gates(needs_step_up=row.needs_step_up, rule=row.rule), confirmed_at):
        return confirm
    moved = {"state": CorrectionState.WAITING, "why": "its store is being asked", "next_try_at": timezone.now()}
    try:
        if refused := _move(row, by, reason, **moved):
            return refused
        enter_step(row, "approved", actor=f"approver {by.get_username()}", why=reason)
        return _told(answer_of(attempt_correction(row.pk, wait=True), row, is_new=True), by)
    except ConsoleDatabaseError as exc:
        return _second_trouble(row, exc)


def turn_down_correction(ref: ActionRef, correction_id: str, *, by: User, reason: str) -> CorrectionAnswer:
    """Refuse a proposed correction as its second person; the reason is shown to whoever proposed it. Nothing is ever written of it.

    Raises:
        Http404, PermissionDenied: as `access.item_or_404`. Nothing was changed.
    """
    needed = "a reason is required: what is wrong with it?"
    row, refused = _proposed_for(ref, correction_id, by=by, reason=reason, needed=needed)
    if refused is not None or row is None:
        return refused or _nothing()
    why = f"{by.get_username()} turned it down: {' '.join(reason.split())}"
    moved = {"state": CorrectionState.REFUSED, "why": as_column(why), "is_turned_down": True, "next_try_at": None}
    try:
        if refused := _move(row, by, reason, **moved):
            return refused
    except ConsoleDatabaseError as exc:
        return _second_trouble(row, exc)
    enter_step(row, "turned_down", actor=f"approver {by.get_username()}", why=reason)
    return CorrectionAnswer(kind=CorrectionKind.TURNED_DOWN, detail="turned down; it will not be written", correction=row)


def enter_step(row: Correction, kind: str, *, actor: str, why: str) -> None:
    """A step of a proposal, into its store's history or the console's own; it stands whether or not either takes it."""
    entry = NewEntry(
        kind=kind,
        actor=actor,
        agent=row.agent,
        seq=row.seq,
        tool=redact_text(row.tool),
        decision_id=row.correction_id,
        outcome=row.outcome,
        reason=redact_text(row.reason),
        content_digest=row.content_digest,
        detail={"corrects": row.told_entry, **({"why": redact_text(why)} if why else {})},
    )
    try:
        enter_beside(row.store, entry)
    except Exception as exc:
        log_unexpected(log, f"entering {kind} of correction {row.correction_id}", exc)


def _proposed_for(
    ref: ActionRef, correction_id: str, *, by: User, reason: str, needed: str
) -> tuple[Correction | None, CorrectionAnswer | None]:
    """The proposal, or why this person does nothing about it."""
    try:
        item_or_404(by, ref, Right.APPROVE)
        if needed and not has_visible_text(reason):
            raise InvalidDecision(needed)
        if len(reason) > MAX_REASON_CHARS:
            raise InvalidDecision(f"the reason has {len(reason)} characters; the limit is {MAX_REASON_CHARS}")
        check_text("reason", reason)
    except InvalidDecision as exc:
        return None, CorrectionAnswer(kind=CorrectionKind.INVALID, detail=str(exc))
    except StoreError as exc:
        return None, _told(CorrectionAnswer(kind=CorrectionKind.UNAVAILABLE, detail=f"{exc}; nothing was changed"), by, ref.store)
    rows = Correction.objects.select_related("by").filter(store=ref.store, agent=ref.agent, seq=ref.seq)
    row = rows.filter(correction_id=as_column(correction_id[:64])).first()
    if row is None:
        return None, _nothing()
    if why := why_not_second(row, by):
        return row, CorrectionAnswer(kind=CorrectionKind.OWN, detail=f"{why}; nothing was changed", correction=row)
    return row, None if row.is_proposed else _told(_no_proposal(row, by), by)


def _move(row: Correction, by: User, reason: str, **values: object) -> CorrectionAnswer | None:
    """Change a proposal, if it still is one, and tell the browsers; else say what stands now."""
    second = {"second_by": by, "second_username": by.get_username(), "second_reason": reason.strip(), "second_at": Now()}
    with transaction.atomic(durable=True):
        proposed = Correction.objects.filter(pk=row.pk, state=CorrectionState.PROPOSED)
        moved = proposed.update(updated_at=timezone.now(), **second, **values)
        row.refresh_from_db()
        bump(row.store)
    return None if moved == 1 else _no_proposal(row, by)


def _no_proposal(row: Correction, by: User) -> CorrectionAnswer:
    if row.second_by_id == by.pk and row.is_turned_down:
        return CorrectionAnswer(kind=CorrectionKind.TURNED_DOWN, detail="it was turned down before", correction=row)
    if row.second_by_id == by.pk:
        return answer_of(None, row, is_new=False)
    if row.second_at is not None and not row.is_turned_down:
        said = f"{row.second_username} approved it before you; the correction is {row.state}"
    else:
        said = redact_text(row.why) or f"nobody has to approve it; the correction is {row.state}"
    return CorrectionAnswer(kind=CorrectionKind.NOT_PROPOSED, detail=said, correction=row)


def _told(answer: CorrectionAnswer, by: User, store: str = "") -> CorrectionAnswer:
    """Without what its store says of itself, for those who may not read that: whoever only approves."""
    row = answer.correction
    store = row.store if row is not None else store
    of_store = answer.kind in (CorrectionKind.UNAVAILABLE, CorrectionKind.READ_ONLY) or (row is not None and row.waits_for_store)
    if not of_store or sees_problems(by, store):
        return answer
    return replace(
        answer, detail=f"store {store} does not take it now; what is approved is delivered as soon as that is possible"
    )


def _nothing() -> CorrectionAnswer:
    return CorrectionAnswer(kind=CorrectionKind.NOTHING, detail="no such correction was proposed here")


def _second_trouble(row: Correction, problem: ConsoleDatabaseError) -> CorrectionAnswer:
    log.error("correction %s and its second person: the console's database: %s", row.correction_id, type(problem).__name__)
    detail = f"{DATABASE_TROUBLE}; whether it was kept is not known; look again"
    return CorrectionAnswer(kind=CorrectionKind.UNAVAILABLE, detail=detail, correction=row)
