"""Somebody was wrong: their word is kept, and brought to the agent by the same path as a decision. What is closed stays closed.

What the decision needed its correction needs too: where two people decided, one proposes and another one approves.
The row is committed before the store is asked, and locked while it is; the store writes one id once, so that asking again is the repair of
whatever was cut off.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db import Error as ConsoleDatabaseError
from django.db import IntegrityError, connection, transaction
from django.db.models import F
from django.db.models.functions import Now
from django.http import Http404
from django.utils import timezone

from actions.correct import (
    WasRead,
    check_differs,
    correct,
    find_told,
    make_correction,
    preview_correction,
    was_read,
)
from actions.digests import correction_digest
from actions.errors import (
    ActionsError,
    CorrectedMeanwhile,
    DecisionIdReused,
    InvalidDecision,
    LeaseLive,
    NothingToCorrect,
    StoreError,
    StoreReadOnly,
    StoreUnavailable,
    StoreUnusable,
)
from actions.queries import ActionItem
from actions.records import ActionRef, Entry, NewEntry
from actions.records import Correction as Words
from actions.redaction import redact_text
from actions.rules import MAX_REASON_CHARS, check_text, has_visible_text
from actions.settle import check_decision_id
from actions.store.base import ActionStore
from actions.times import SECOND, format_rfc3339
from actions.turns import SettlementTurn, correction_turn
from console.access import Person, Right, is_possible, item_or_404, may, require, sees_problems
from console.models import PENDING_CORRECTIONS, Correction, CorrectionState, Decision, DecisionId, Incident
from console.services.changes import bump
from console.services.decisions import why_not_second
from console.services.deliver import (
    CLAIM,
    LOCK_TIMEOUT,
    LONGEST_AFTER_TROUBLE,
    LONGEST_BACK_OFF,
    LONGEST_PAUSE,
    as_column,
)
from console.services.gates import Gates, is_confirmed
from console.services.incidents import announce_incident, open_for_correction
from console.services.journal import enter_beside
from console.services.policies import gates_before
from console.services.settle_line import tell_correction
from console.stores import UnknownStore, get_store
from console.trouble import log_unexpected, name_of

log = logging.getLogger(__name__)

_STEPS = frozenset({"proposed", "approved", "turned_down"})
"""Entries about a correction of which nothing is written to its agent."""
_UNKNOWN_OUTCOME = "whether it was written is not known; ask again with the same id, it is never written twice"


class CorrectionKind(StrEnum):
    """What happened, or what stood in the way. Only `written` and `repeated` mean that the agent's history says so."""

    WRITTEN = "written"
    REPEATED = "repeated"  # the same id again; it stands written since the first time
    PROPOSED = "proposed"  # kept: a second person has to approve it
    WAITING = "waiting"  # kept: its agent is alive; delivered once the lease is free
    TURNED_DOWN = "turned_down"  # refused by a second person; it will not be written
    NOT_PROPOSED = "not_proposed"  # nobody has to approve it any more; `detail` says what stands
    OWN = "own_correction"  # nobody is the second person of their own; nothing was changed
    WITHDRAWN = "withdrawn"
    NOTHING = "nothing"  # there is no correction on its way
    PENDING = "pending"  # another correction is on its way
    NOT_OURS = "not_ours"  # it is open, or nobody here ended it
    CHANGED = "changed"  # it was corrected since it was shown
    ID_REUSED = "id_reused"
    CONFIRM = "confirm_identity"  # whoever says so has to prove first who they are
    INVALID = "invalid"
    READ_ONLY = "read_only"
    UNAVAILABLE = "unavailable"


STATUS_OF_CORRECTION = {
    CorrectionKind.WRITTEN: 201,
    CorrectionKind.REPEATED: 200,
    CorrectionKind.PROPOSED: 202,
    CorrectionKind.WAITING: 202,
    CorrectionKind.TURNED_DOWN: 200,
    CorrectionKind.NOT_PROPOSED: 409,
    CorrectionKind.OWN: 403,
    CorrectionKind.WITHDRAWN: 200,
    CorrectionKind.NOTHING: 404,
    CorrectionKind.PENDING: 409,
    CorrectionKind.NOT_OURS: 409,
    CorrectionKind.CHANGED: 412,
    CorrectionKind.ID_REUSED: 409,
    CorrectionKind.CONFIRM: 403,
    CorrectionKind.INVALID: 422,
    CorrectionKind.READ_ONLY: 503,
    CorrectionKind.UNAVAILABLE: 503,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionRequest:
    """What a person sends. `basis` is the number of the entry that was shown as what the agent was told last; None: whatever stands."""

    outcome: str  # done, failed or unknown: what really happened
    reason: str
    correction_id: str
    basis: int | None = None
    confirmed_at: datetime | None = None  # when this person last proved who they are


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionAnswer:
    """What it came to. `detail` is one sentence for a person, redacted."""

    kind: CorrectionKind
    detail: str
    correction: Correction | None = None
    incident: Incident | None = None  # opened by this, or open about the action already


@dataclass(frozen=True, slots=True, kw_only=True)
class Correctable:
    """What a person is shown before they correct: what its agent was told last, and whether it has read that."""

    told: Entry
    was_read: WasRead


# --- reading ---------------------------------------------------------------------------------------------------------


def corrections_of(ref: ActionRef, *, limit: int = 20) -> list[Correction]:
    """The corrections of one action, newest first. The caller has checked that its user may see the action."""
    if not is_possible(ref):
        return []
    return list(Correction.objects.filter(store=ref.store, agent=ref.agent, seq=ref.seq).order_by("-id")[:limit])


def standing_correction(ref: ActionRef) -> Correction | None:
    """The one on its way, else the newest written one."""
    found = corrections_of(ref)
    written = (one for one in found if one.state == CorrectionState.WRITTEN)
    return next((one for one in found if one.is_pending), None) or next(written, None)


def waiting_corrections(user: User, *, limit: int = 200) -> list[Correction]:
    """A person's own corrections on their way, oldest first."""
    return list(Correction.objects.filter(by=user, state__in=PENDING_CORRECTIONS).order_by("id")[:limit])


def find_correctable(item: ActionItem) -> Correctable | None:
    """None where there is nothing of ours to correct: it is open, or ended by its agent or another program. Four reads of the store."""
    if item.action is None or item.action.is_open:
        return None
    store = get_store(item.store)
    told = find_told(store, item.ref)
    return Correctable(told=told, was_read=was_read(store, told)) if told else None


def preview_of(item: ActionItem, told: Entry, request: CorrectionRequest, *, by: User) -> SettlementTurn:
    """The turn that the agent will read if this is written now. Writes nothing.

    Raises:
        InvalidDecision: it breaks a rule; the message says which.
    """
    if item.action is None:
        raise InvalidDecision("the record is unreadable, so it cannot be corrected here")
    return preview_correction(item.action, told, _words(request, by))


# --- correcting ------------------------------------------------------------------------------------------------------


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
        detail = f"the console's own database did not answer in time or cannot be written; {_UNKNOWN_OUTCOME}"
        return CorrectionAnswer(kind=CorrectionKind.UNAVAILABLE, detail=detail)
    except Exception as exc:
        log_unexpected(log, f"correcting {ref}", exc)
        detail = f"something unexpected went wrong here ({name_of(exc)}); {_UNKNOWN_OUTCOME}"
        return CorrectionAnswer(kind=CorrectionKind.UNAVAILABLE, detail=detail)


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
    if refused := _must_confirm(gates, request.confirmed_at):
        return refused
    row = _keep(item, request, told, digest, by, gates)
    if row is not None and row.is_proposed:
        _enter(row, "proposed", actor=row.actor, why=row.rule)
        return _answer(None, row, is_new=True)
    if row is not None:
        return _answer(_attempt(row.pk, first=True, wait=True), row, is_new=True)
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


def _must_confirm(gates: Gates, confirmed_at: datetime | None) -> CorrectionAnswer | None:
    if not gates.needs_step_up or is_confirmed(confirmed_at, timezone.now()):
        return None
    detail = f"prove first that it is you ({gates.rule}); nothing was changed"
    return CorrectionAnswer(kind=CorrectionKind.CONFIRM, detail=redact_text(detail))


def _words(request: CorrectionRequest, by: User) -> Words:
    return make_correction(request.outcome, request.reason, actor=_actor(by))


def _actor(by: User) -> str:
    return f"operator {by.get_username()}"


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
                actor=_actor(by),
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
        return _answer(_attempt(known.pk, first=is_ours, wait=True), known, is_new=is_ours)
    done = _attempt(known.pk, wait=True) if known.is_pending else None
    return _answer(done, known, is_new=False)


def _answer(done: Attempted | None, row: Correction, *, is_new: bool) -> CorrectionAnswer:
    now = done.correction if done else row
    problem = done.problem if done else None
    if now.state == CorrectionState.WRITTEN:
        incident = Incident.objects.filter(correction=now).first()
        kind = CorrectionKind.WRITTEN if is_new else CorrectionKind.REPEATED
        return CorrectionAnswer(kind=kind, detail=READ_SAYS[now.was_read], correction=now, incident=incident)
    if now.state == CorrectionState.REFUSED:
        kind = next((kind for error, kind in _REFUSALS if isinstance(problem, error)), CorrectionKind.INVALID)
        return CorrectionAnswer(kind=kind, detail=f"nothing was written: {redact_text(now.why)}", correction=now)
    if now.state == CorrectionState.WITHDRAWN:
        return CorrectionAnswer(kind=CorrectionKind.ID_REUSED, detail="it was withdrawn meanwhile", correction=now)
    if now.is_proposed:
        detail = f"nothing is written: {redact_text(now.rule) or 'a second person has to approve it'}"
        return CorrectionAnswer(kind=CorrectionKind.PROPOSED, detail=detail, correction=now)
    if isinstance(problem, StoreError):
        return CorrectionAnswer(kind=CorrectionKind.UNAVAILABLE, detail=f"{problem}; {_UNKNOWN_OUTCOME}", correction=now)
    return CorrectionAnswer(kind=CorrectionKind.WAITING, detail=f"not written yet: {redact_text(now.why)}", correction=now)


READ_SAYS = {
    WasRead.YES: "its agent has read what it was told first, and has gone on since",
    WasRead.NO: "its agent has not read what it was told first: nobody has resumed it since; it reads both",
    WasRead.UNKNOWN: "whether its agent has read what it was told first is not known",
    "": "whether its agent has read what it was told first is not known",
}
_REFUSALS: tuple[tuple[type[ActionsError], CorrectionKind], ...] = (
    (NothingToCorrect, CorrectionKind.NOT_OURS),
    (CorrectedMeanwhile, CorrectionKind.CHANGED),
    (DecisionIdReused, CorrectionKind.ID_REUSED),
    (StoreReadOnly, CorrectionKind.READ_ONLY),
    (StoreUnusable, CorrectionKind.READ_ONLY),
    (StoreError, CorrectionKind.UNAVAILABLE),
)


# --- the second person -----------------------------------------------------------------------------------------------


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
    if confirm := _must_confirm(Gates(needs_step_up=row.needs_step_up, rule=row.rule), confirmed_at):
        return confirm
    moved = {"state": CorrectionState.WAITING, "why": "its store is being asked", "next_try_at": timezone.now()}
    try:
        if refused := _move(row, by, reason, **moved):
            return refused
        _enter(row, "approved", actor=f"approver {by.get_username()}", why=reason)
        return _told(_answer(_attempt(row.pk, wait=True), row, is_new=True), by)
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
    _enter(row, "turned_down", actor=f"approver {by.get_username()}", why=reason)
    return CorrectionAnswer(kind=CorrectionKind.TURNED_DOWN, detail="turned down; it will not be written", correction=row)


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
        return _answer(None, row, is_new=False)
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
    detail = (
        "the console's own database did not answer in time or cannot be written; whether it was kept is not known; look again"
    )
    return CorrectionAnswer(kind=CorrectionKind.UNAVAILABLE, detail=detail, correction=row)


def _enter(row: Correction, kind: str, *, actor: str, why: str) -> None:
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


# --- bringing it to its store ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempted:
    """A correction as it stands after an attempt, and what the store objected, if anything."""

    correction: Correction
    problem: ActionsError | None = None


def deliver_correction(pk: int) -> Correction | None:
    """One attempt at a correction that is on its way, by a task. None where somebody else is at it."""
    done = _attempt(pk)
    return done.correction if done else None


def claim_due_corrections(limit: int) -> list[int]:
    """Take up to `limit` corrections whose time has come, and put them off: two sweeps never take the same one."""
    now = timezone.now()
    with transaction.atomic():
        due = Correction.objects.filter(state=CorrectionState.WAITING, next_try_at__lte=now).order_by("next_try_at", "pk")
        pks = list(due.select_for_update(skip_locked=True).values_list("pk", flat=True)[:limit])
        Correction.objects.filter(pk__in=pks, state=CorrectionState.WAITING).update(next_try_at=now + CLAIM)
    return pks


def _attempt(pk: int, *, first: bool = False, wait: bool = False) -> Attempted | None:
    """Ask the store to write one waiting correction, if nobody else is at it. Safe to call twice, or never.

    `first`: by the request that has just made it, whose person hears of every obstacle at once.
    """
    incident, began = None, time.perf_counter()
    with transaction.atomic(durable=True):
        row = _lock(pk, wait=wait)
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
        pause = timedelta(seconds=max(1, (exc.lease.expires_at - exc.lease.read_at) // SECOND))
        why = f"its agent is alive: {exc.lease.holder[:80]} holds the lease until {format_rfc3339(exc.lease.expires_at)}"
        _change(row, why=why, next_try_at=timezone.now() + min(pause, LONGEST_PAUSE))
        return exc, None
    except (StoreUnavailable, StoreReadOnly, StoreUnusable) as exc:
        is_open_question = isinstance(exc, StoreUnavailable) and exc.may_be_written
        return (_refuse(row, exc) if first and not is_open_question else _postpone(row, exc)), None
    except ActionsError as exc:
        return _refuse(row, exc), None
    _change(
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


def _lock(pk: int, *, wait: bool) -> Correction | None:
    if wait:
        with connection.cursor() as cursor:
            cursor.execute("SELECT set_config('lock_timeout', %s, true)", [f"{LOCK_TIMEOUT // timedelta(milliseconds=1)}ms"])
    return Correction.objects.select_for_update(skip_locked=not wait, of=("self",)).filter(pk=pk).first()


def _postpone(row: Correction, problem: StoreError, *, longest: timedelta = LONGEST_BACK_OFF) -> StoreError:
    pause = timedelta(seconds=2 ** min(row.attempts + 1, 12))
    _change(row, why=str(problem), next_try_at=timezone.now() + min(pause, longest))
    return problem


def _refuse(row: Correction, problem: ActionsError) -> ActionsError:
    _change(row, state=CorrectionState.REFUSED, why=str(problem), next_try_at=None)
    return problem


def _change(row: Correction, **values: object) -> None:
    if isinstance(why := values.get("why"), str):
        values["why"] = as_column(why)
    pending = Correction.objects.filter(pk=row.pk, state=row.state)
    if not row.is_pending or pending.update(attempts=F("attempts") + 1, updated_at=timezone.now(), **values) != 1:
        raise RuntimeError(f"correction {row.correction_id} changed while it was locked")


# --- withdrawing -----------------------------------------------------------------------------------------------------


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


def _withdraw_locked(row: Correction, by: User) -> CorrectionAnswer:
    now = _lock(row.pk, wait=True)
    if now is None or not now.is_pending:
        return CorrectionAnswer(kind=CorrectionKind.NOTHING, detail="too late: it is not on its way any more", correction=now)
    if now.is_proposed:  # its store was never asked to write it, and while we hold the row nobody asks
        return _withdrawn(now, by)
    try:
        entries = get_store(row.store).list_entries(limit=200, agent=row.agent, seq=row.seq)
    except (StoreError, UnknownStore) as exc:
        detail = f"{exc}; whether it is written, only that store knows. Try again when it answers"
        return CorrectionAnswer(kind=CorrectionKind.UNAVAILABLE, detail=detail, correction=now)
    if any(entry.decision_id == row.correction_id and entry.kind not in _STEPS for entry in entries):
        detail = "too late: it is written, or a part of it is; it is completed as soon as that is possible"
        return CorrectionAnswer(kind=CorrectionKind.PENDING, detail=detail, correction=now)
    return _withdrawn(now, by)


def _withdrawn(now: Correction, by: User) -> CorrectionAnswer:
    _change(now, state=CorrectionState.WITHDRAWN, why=f"withdrawn by {by.get_username()}", next_try_at=None)
    now.refresh_from_db()
    return CorrectionAnswer(kind=CorrectionKind.WITHDRAWN, detail="withdrawn; its agent will not read it", correction=now)
