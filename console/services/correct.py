"""Somebody was wrong: their word is kept, and brought to the agent by the same path as a decision. What is closed stays closed.

What the decision needed its correction needs too: where two people decided, one proposes and another one approves.
The row is committed before the store is asked, and locked while it is.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime

from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db import Error as ConsoleDatabaseError
from django.db import IntegrityError, transaction
from django.http import Http404
from django.utils import timezone

from actions.correct import check_differs, find_told, make_correction, preview_correction
from actions.digests import correction_digest
from actions.errors import CorrectedMeanwhile, InvalidDecision, NothingToCorrect, StoreError
from actions.queries import ActionItem
from actions.records import ActionRef, Entry
from actions.records import Correction as Words
from actions.redaction import redact_text
from actions.settle import check_decision_id
from actions.turns import SettlementTurn
from console.access import Right, item_or_404, require
from console.models import Correction, CorrectionState, Decision, DecisionId
from console.services.answers import DATABASE_TROUBLE
from console.services.changes import bump
from console.services.correction_answers import UNKNOWN_OUTCOME, CorrectionAnswer, CorrectionKind, answer_of, must_confirm
from console.services.correction_approval import STEPS, enter_step
from console.services.correction_delivery import attempt_correction, change_correction, lock_correction
from console.services.corrections import corrections_of, standing_correction
from console.services.decide import actor_of
from console.services.deliver import as_column
from console.services.gates import Gates
from console.services.policies import gates_before
from console.stores import UnknownStore, get_store
from console.trouble import log_unexpected, name_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionRequest:
    """What a person sends. `basis` is the number of the entry that was shown as what the agent was told last; None: whatever stands."""

    outcome: str  # done, failed or unknown: what really happened
    reason: str
    correction_id: str
    basis: int | None = None
    confirmed_at: datetime | None = None  # when this person last proved who they are


def correct_end(ref: ActionRef, request: CorrectionRequest, *, by: User) -> CorrectionAnswer:
    """Say what really happened to an action that a decision or resolver of ours ended, or say exactly why not.

    Committed before the store is asked; where its agent is alive it waits and the sweep delivers it. The same id again answers what became
    of it. Where the agent was told the opposite of what happened, an incident is opened with it.

    Raises:
        Http404, PermissionDenied: as `access.item_or_404`. Nothing was written.
    """
    try:
        item = item_or_404(by, ref, Right.SETTLE)
        return _correct(item, request, by)
    except InvalidDecision as exc:
        return CorrectionAnswer(kind=CorrectionKind.INVALID, detail=str(exc))
    except StoreError as exc:
        return CorrectionAnswer(kind=CorrectionKind.UNAVAILABLE, detail=f"{exc}; nothing was written")
    except (Http404, PermissionDenied):
        raise
    except ConsoleDatabaseError as exc:
        log.error("correcting %s: the console's database: %s", ref, type(exc).__name__)
        detail = f"{DATABASE_TROUBLE}; {UNKNOWN_OUTCOME}"
        return CorrectionAnswer(kind=CorrectionKind.UNAVAILABLE, detail=detail)
    except Exception as exc:
        log_unexpected(log, f"correcting {ref}", exc)
        detail = f"something unexpected went wrong here ({name_of(exc)}); {UNKNOWN_OUTCOME}"
        return CorrectionAnswer(kind=CorrectionKind.UNAVAILABLE, detail=detail)


def withdraw_correction(ref: ActionRef, *, by: User, correction_id: str = "") -> CorrectionAnswer:
    """Take back the correction that is on its way (with `correction_id` only that one). Once withdrawn it is never written.

    Whoever is delivering it is waited for. Where its store cannot be asked whether it stands there, it is not withdrawn.

    Raises:
        Http404, PermissionDenied: the person may not see or not settle this action. Nothing was changed.
    """
    row = next((one for one in corrections_of(ref) if one.is_pending), None)
    if row is None or (correction_id and row.correction_id != correction_id):
        item_or_404(by, ref, Right.SETTLE)
        return CorrectionAnswer(kind=CorrectionKind.NOTHING, detail="no correction is on its way")
    require(by, Right.SETTLE, store=row.store, tool=row.tool, missing="there is no such action")
    try:
        with transaction.atomic(durable=True):
            answer = _withdraw_locked(row, by)
            bump(row.store)
    except ConsoleDatabaseError as exc:
        log.error("withdrawing correction %s: the console's database: %s", row.correction_id, type(exc).__name__)
        detail = "somebody is at this correction, or the console's database did not answer; look again"
        return CorrectionAnswer(kind=CorrectionKind.UNAVAILABLE, detail=detail, correction=row)
    return answer


def preview_of(item: ActionItem, told: Entry, request: CorrectionRequest, *, by: User) -> SettlementTurn:
    """The turn that the agent will read if this is written now. Writes nothing.

    Raises:
        InvalidDecision: it breaks a rule; the message says which.
    """
    if item.action is None:
        raise InvalidDecision("the record is unreadable, so it cannot be corrected here")
    return preview_correction(item.action, told, _words(request, by))


def gates_before_correction(item: ActionItem, outcome: str, told: Entry) -> Gates:
    """What the tool's policy asks of either end, and what the decision that is taken back, or its correction, had to pass: the most of it.

    Else one person alone could have a payment made again. A hold is not asked for: what is closed stays closed, and this stands beside it.

    Raises:
        StoreError: whole arguments could not be read; nothing is known.
    """
    found = [gates_before(item, one) for one in dict.fromkeys([outcome, told.outcome]) if one != "unknown"]
    kept = (
        Decision.objects.filter(decision_id=told.decision_id).first()
        or Correction.objects.filter(correction_id=told.decision_id).first()
    )
    if kept is not None:
        found.append(Gates(needs_second=kept.needs_second, needs_step_up=kept.needs_step_up, rule=kept.rule))
    asking = [gates for gates in found if gates.needs_second or gates.needs_step_up]
    return Gates(
        needs_second=any(gates.needs_second for gates in asking),
        needs_step_up=any(gates.needs_step_up for gates in asking),
        rule=next((gates.rule for gates in asking if gates.needs_second), asking[0].rule if asking else ""),
    )


# --- correcting ------------------------------------------------------------------------------------------------------


def _correct(item: ActionItem, request: CorrectionRequest, by: User) -> CorrectionAnswer:
    check_decision_id(request.correction_id)
    words = _words(request, by)
    digest = correction_digest(item.ref, words)
    # What was told is read first: where it was told by this very id a moment ago, the row of that id is there to be found.
    told = find_told(get_store(item.store), item.ref) if item.action is not None and not item.action.is_open else None
    known = Correction.objects.filter(correction_id=request.correction_id).first()
    if known is not None:
        return _repeat(known, digest)
    if item.action is None:
        raise InvalidDecision("the record is unreadable, so it cannot be corrected here")
    if told is None:
        return CorrectionAnswer(kind=CorrectionKind.NOT_OURS, detail=redact_text(str(NothingToCorrect(item.ref, item.action))))
    if request.basis is not None and told.number != request.basis:
        return CorrectionAnswer(kind=CorrectionKind.CHANGED, detail=str(CorrectedMeanwhile(item.ref, told)))
    check_differs(told, words)
    gates = gates_before_correction(item, request.outcome, told)
    if refused := must_confirm(gates, request.confirmed_at):
        return refused
    row = _keep(item, request, told, digest, by, gates)
    if row is not None and row.is_proposed:
        enter_step(row, "proposed", actor=row.actor, why=row.rule)
        return answer_of(None, row, is_new=True)
    if row is not None:
        return answer_of(attempt_correction(row.pk, first=True, wait=True), row, is_new=True)
    known = Correction.objects.filter(correction_id=request.correction_id).first()
    if known is not None:
        return _repeat(known, digest)
    if DecisionId.objects.filter(id=request.correction_id).exists():
        return CorrectionAnswer(kind=CorrectionKind.ID_REUSED, detail="this id was used for something else; make a new one")
    other = standing_correction(item.ref)
    if other is None or not other.is_pending:
        # The other one was on its way a moment ago, and is written or withdrawn by now.
        now = find_told(get_store(item.store), item.ref) or told
        return CorrectionAnswer(kind=CorrectionKind.CHANGED, detail=str(CorrectedMeanwhile(item.ref, now)))
    detail = f"{other.actor} corrects it already; that correction is {other.state}"
    return CorrectionAnswer(kind=CorrectionKind.PENDING, detail=detail, correction=other)


def _words(request: CorrectionRequest, by: User) -> Words:
    return make_correction(request.outcome, request.reason, actor=actor_of(by))


def _keep(item: ActionItem, request: CorrectionRequest, told: Entry, digest: str, by: User, gates: Gates) -> Correction | None:
    """Commit it as proposed, or as waiting and due. None where its id is taken, or another one is on its way."""
    is_due = {"state": CorrectionState.WAITING, "why": "its store is being asked", "next_try_at": timezone.now()}
    is_proposed = {
        "state": CorrectionState.PROPOSED,
        "why": "a second person has to approve it",
        "sentence": as_column(item.facts.sentence)[:200] if item.facts else "",
    }
    try:
        with transaction.atomic(durable=True):
            DecisionId.objects.create(id=request.correction_id)
            row = Correction.objects.create(
                correction_id=request.correction_id,
                store=item.store,
                agent=item.agent,
                seq=item.ref.seq,
                tool=as_column(item.action.tool if item.action else ""),
                told=told.outcome,
                told_entry=told.number,
                outcome=request.outcome,
                reason=request.reason.strip(),
                by=by,
                username=by.get_username(),
                actor=actor_of(by),
                content_digest=digest,
                needs_second=gates.needs_second,
                needs_step_up=gates.needs_step_up,
                rule=as_column(gates.rule),
                **(is_proposed if gates.needs_second else is_due),
            )
            bump(item.store)
    except IntegrityError:
        return None
    return row


def _repeat(known: Correction, digest: str) -> CorrectionAnswer:
    if known.content_digest != digest:
        return CorrectionAnswer(kind=CorrectionKind.ID_REUSED, detail="this id was used for another correction")
    if known.state == CorrectionState.WITHDRAWN:
        detail = "this correction was withdrawn; correct it again with a new id"
        return CorrectionAnswer(kind=CorrectionKind.ID_REUSED, detail=detail, correction=known)
    if known.is_turned_down:
        detail = f"{redact_text(known.why)}; correct it again with a new id"
        return CorrectionAnswer(kind=CorrectionKind.ID_REUSED, detail=detail, correction=known)
    if known.state == CorrectionState.REFUSED:
        # Nothing of it was written, so it may be sent again; what stands there by now, its store compares.
        try:
            with transaction.atomic(durable=True):
                refused = Correction.objects.filter(pk=known.pk, state=CorrectionState.REFUSED)
                is_ours = refused.update(state=CorrectionState.WAITING, next_try_at=timezone.now()) == 1
                bump(known.store)
        except IntegrityError:
            return CorrectionAnswer(kind=CorrectionKind.PENDING, detail="another correction of it is on its way")
        return answer_of(attempt_correction(known.pk, first=is_ours, wait=True), known, is_new=is_ours)
    done = attempt_correction(known.pk, wait=True) if known.is_pending else None
    return answer_of(done, known, is_new=False)


# --- withdrawing -----------------------------------------------------------------------------------------------------


def _withdraw_locked(row: Correction, by: User) -> CorrectionAnswer:
    now = lock_correction(row.pk, wait=True)
    if now is None or not now.is_pending:
        return CorrectionAnswer(kind=CorrectionKind.NOTHING, detail="too late: it is not on its way any more", correction=now)
    if now.is_proposed:  # its store was never asked to write it, and while we hold the row nobody asks
        return _withdrawn(now, by)
    try:
        entries = get_store(row.store).list_entries(limit=200, agent=row.agent, seq=row.seq)
    except (StoreError, UnknownStore) as exc:
        detail = f"{exc}; whether it is written, only that store knows. Try again when it answers"
        return CorrectionAnswer(kind=CorrectionKind.UNAVAILABLE, detail=detail, correction=now)
    if any(entry.decision_id == row.correction_id and entry.kind not in STEPS for entry in entries):
        detail = "too late: it is written, or a part of it is; it is completed as soon as that is possible"
        return CorrectionAnswer(kind=CorrectionKind.PENDING, detail=detail, correction=now)
    return _withdrawn(now, by)


def _withdrawn(now: Correction, by: User) -> CorrectionAnswer:
    change_correction(now, state=CorrectionState.WITHDRAWN, why=f"withdrawn by {by.get_username()}", next_try_at=None)
    now.refresh_from_db()
    return CorrectionAnswer(kind=CorrectionKind.WITHDRAWN, detail="withdrawn; its agent will not read it", correction=now)
