"""An operator decides about an open action, or takes a decision back. Who may, what is kept, and what is answered."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from datetime import datetime

from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db import Error as ConsoleDatabaseError
from django.db import IntegrityError, transaction
from django.http import Http404
from django.utils import timezone

from actions.digests import decision_digest
from actions.errors import (
    ActionNotOpen,
    ActionsError,
    DecisionIdReused,
    InvalidDecision,
    RecordUnreadable,
    StoreError,
    StoreReadOnly,
    StoreUnavailable,
    StoreUnusable,
)
from actions.queries import ActionItem, get_action
from actions.records import ActionClass, ActionEnd, ActionRef, ActionStatus, Entry
from actions.redaction import redact_text
from actions.rules import MAX_REASON_CHARS, SETTLED_STATUSES, check_end_for, check_text, has_visible_text
from actions.settle import check_decision_id, make_end, preview_turn
from actions.turns import SettlementTurn
from console.access import Right, is_possible, item_or_404, may_somewhere, require
from console.models import PENDING_STATES, Decision, DecisionId, DecisionState, Note, WrittenBy
from console.services.answers import STATUS, Answer, AnswerKind, must_confirm
from console.services.changes import bump
from console.services.claimed import find_claim
from console.services.decisions import current_decisions
from console.services.deliver import (
    Attempt,
    announce,
    as_column,
    attempt,
    find_ending,
    has_begun,
    kept_before,
    lock,
    mark_written,
    turn_of,
)
from console.services.evidence import find_contradiction, find_verdict, numbers_shown
from console.services.gates import Gates, is_confirmed
from console.services.policies import gates_before
from console.services.settle_line import tell_ended
from console.stores import UnknownStore, get_store
from console.tool_rules import read_rules
from console.trouble import log_unexpected, name_of

__all__ = ["STATUS", "Answer", "AnswerKind", "DecisionRequest", "decide", "preview", "withdraw"]

log = logging.getLogger(__name__)

LATER = "later"
DATABASE_TROUBLE = "the console's own database did not answer in time or cannot be written"
_HALF_WRITTEN = (
    "too late: a part of it may be written, and its agent may have read that; it is completed as soon as that is possible"
)
_UNKNOWN_OUTCOME = "whether it was written is not known; ask again with the same decision id, it is never written twice"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRequest:
    """What a person sends: the outcome with a reason, the id made with the form, and the digest of what was shown."""

    outcome: str  # done, failed, abandoned, or later: cannot tell yet, keep a note
    reason: str
    decision_id: str
    seen: str = ""  # the item's digest; empty: nothing is compared
    result: str = ""
    error: str = ""  # defaults to the reason
    look_again_at: datetime | None = None  # only with later
    evidence_id: str = ""  # the verdict that it rests on; left out where it is not about this action
    evidence_shown: tuple[str, ...] | None = None  # the verdicts that stood on the page; None: it comes from no page
    confirmed_at: datetime | None = None  # when this person last proved who they are; None: never, as with a token


def decide(ref: ActionRef, request: DecisionRequest, *, by: User) -> Answer:
    """Settle an open action as this person says, or say exactly why not.

    Where a gate stands before it, it is kept as proposed or held, and nothing is written yet; where a proof of identity is asked for and is
    not there, nothing is kept. The decision is committed before its store is asked. The same id again answers what became of it, also when
    both come at once; of two people one wins, and the other is told who decided what.

    Raises:
        Http404, PermissionDenied: as `access.item_or_404`. Nothing was written.
    """
    try:
        item = item_or_404(by, ref, Right.SETTLE)
    except StoreError as exc:
        return _without_store(ref, request, by, exc)
    except (Http404, PermissionDenied, ConsoleDatabaseError):
        raise
    except Exception as exc:
        log_unexpected(log, f"reading {ref}", exc)
        return _without_store(ref, request, by, StoreUnavailable(ref.store, f"its answer broke something here: {name_of(exc)}"))
    try:
        theirs = _somebody_elses_claim(ref, by) if request.evidence_shown is None else ""
        answer = _decide(ref, request, item, by)
        return replace(answer, warnings=(*answer.warnings, theirs)) if theirs and answer.kind in _TOLD_OF_CLAIMS else answer
    except InvalidDecision as exc:
        return Answer(kind=AnswerKind.INVALID, detail=str(exc), item=item)
    except StoreError as exc:
        return Answer(kind=AnswerKind.UNAVAILABLE, detail=f"{exc}; nothing was written", item=item)
    except ConsoleDatabaseError as exc:
        # The console's own database is gone or read-only, or somebody has been at this decision for longer than anybody waits.
        log.error("deciding about %s: the console's database: %s", ref, type(exc).__name__)
        return Answer(kind=AnswerKind.UNAVAILABLE, detail=f"{DATABASE_TROUBLE}; {_UNKNOWN_OUTCOME}", item=item)
    except (Http404, PermissionDenied):
        raise
    except Exception as exc:
        log_unexpected(log, f"deciding about {ref}", exc)
        detail = f"something unexpected went wrong here ({name_of(exc)}); {_UNKNOWN_OUTCOME}"
        return Answer(kind=AnswerKind.UNAVAILABLE, detail=detail, item=item)


_TOLD_OF_CLAIMS = frozenset({AnswerKind.WRITTEN, AnswerKind.PROPOSED, AnswerKind.HELD, AnswerKind.WAITING})


def _somebody_elses_claim(ref: ActionRef, by: User) -> str:
    """For whoever has no page before them that says so; looked for first, because a claim ends with its action. It keeps nobody from deciding."""
    found = find_claim(ref)
    if found is None or found.by_id == by.pk:
        return ""
    return f"{found.username} has claimed it, since {found.claimed_at:%H:%M} UTC, and may be at it"


def preview(item: ActionItem, request: DecisionRequest, *, by: User) -> SettlementTurn:
    """The turn that the agent will read if this is decided now. Writes nothing.

    Raises:
        InvalidDecision: it breaks a rule; the message says which.
    """
    if request.outcome == LATER:
        raise InvalidDecision("a note writes no turn")
    if item.action is None:
        raise InvalidDecision("the record is unreadable, so it cannot be settled here")
    return preview_turn(item.action, end_of_request(request, by=by))


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
        return _pending(row, None)
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


def actor_of(by: User) -> str:
    """How a person stands in records and entries."""
    return f"operator {by.get_username()}"


def check_request(request: DecisionRequest) -> None:
    """Refuse what no rule allows, whatever the action.

    Raises:
        InvalidDecision: names the field and what is allowed. Nothing was read or written.
    """
    check_decision_id(request.decision_id)
    if request.outcome not in (LATER, *SETTLED_STATUSES):
        raise InvalidDecision(f"outcome {request.outcome[:40]!r} cannot be decided; choose done, failed, abandoned or later")
    if request.outcome != LATER:
        if request.look_again_at is not None:
            raise InvalidDecision("a time to look again goes with later only")
        return
    if request.result or request.error:
        raise InvalidDecision("a note has neither a result nor an error")
    if not has_visible_text(request.reason):
        raise InvalidDecision("a note is required: what did you look at, and what is missing?")
    if len(request.reason) > MAX_REASON_CHARS:
        raise InvalidDecision(f"the note has {len(request.reason)} characters; the limit is {MAX_REASON_CHARS}")
    check_text("note", request.reason)
    if request.look_again_at is not None and timezone.is_naive(request.look_again_at):
        raise InvalidDecision("the time to look again has no zone")


def end_of_request(request: DecisionRequest, *, by: User) -> ActionEnd:
    """The end that a request asks for, in the contract's words.

    Raises:
        InvalidDecision: it breaks a rule. Nothing was read or written.
    """
    check_request(request)
    return make_end(ActionStatus(request.outcome), request.reason, actor=actor_of(by), result=request.result, error=request.error)


def warnings_about(item: ActionItem, outcome: str) -> tuple[str, ...]:
    """What a person should know who decides about this action, or has."""
    found = []
    if item.action is not None and item.action.action_class is ActionClass.IDEMPOTENT:
        found.append("it is idempotent: left alone, its agent would run it again with the same key, which does no harm")
    if against := find_contradiction(item.ref, outcome):
        found.append(f"{against.resolver} {against.says} ({against.evidence_id})")
    return tuple(found)


# --- deciding --------------------------------------------------------------------------------------------------------


def _decide(ref: ActionRef, request: DecisionRequest, item: ActionItem, by: User) -> Answer:
    check_request(request)
    if request.outcome == LATER:
        return _keep_note(ref, request, item, by)
    end = end_of_request(request, by=by)
    if (used := _if_used(request, end, item)) is not None:
        return used
    if item.action is None:
        raise InvalidDecision("the record is unreadable, so it cannot be settled here")
    if not item.action.is_open:
        return _closed(ref, item)
    check_end_for(item.action, end)
    if request.seen and request.seen != item.digest:
        return _changed(item)
    return _decide_now(request, end, item, by)


def _decide_now(request: DecisionRequest, end: ActionEnd, item: ActionItem, by: User) -> Answer:
    """Keep the decision, then ask the store. Where another one is pending: help that one first, then look again."""
    gates = gates_before(item, end.status.value)
    if gates.needs_step_up and not is_confirmed(request.confirmed_at, timezone.now()):
        return must_confirm(item)
    for _ in range(3):
        row = _keep(request, end, item, by, gates)
        if row is not None and row.state != DecisionState.WAITING:
            announce(row, row.state, why=row.rule)
            return answer_of(None, row, item, fresh=True)
        if row is not None:
            return answer_of(attempt(row.pk, first=True, wait=True, seen=request.seen, item=item), row, item, fresh=True)
        if (used := _if_used(request, end, item)) is not None:
            return used
        other = _pending_for(item.ref)
        if other is not None and other.next_try_at is not None and other.next_try_at <= timezone.now():
            # On its way this very moment, or left by a crash: either way its attempt decides who was first.
            after = attempt(other.pk, wait=True)
            other = after.decision if after else other
        if other is not None and other.is_pending:
            return _pending(other, item)
        item = get_action(get_store(item.store), item.ref, read_rules())
        if item.action is not None and not item.action.is_open:
            return _closed(item.ref, item)
    return Answer(kind=AnswerKind.PENDING, detail="others are deciding about it right now; look again", item=item)


def _keep(request: DecisionRequest, end: ActionEnd, item: ActionItem, by: User, gates: Gates) -> Decision | None:
    """Commit the decision before its gates, or as waiting and due. None where its id is taken, or another one is pending."""
    try:
        with transaction.atomic(durable=True):
            DecisionId.objects.create(id=request.decision_id)
            row = Decision.objects.create(
                decision_id=request.decision_id,
                store=item.store,
                agent=item.agent,
                seq=item.ref.seq,
                tool=_tool_of(item),
                outcome=end.status.value,
                reason=end.reason,
                result=end.result,
                error=end.error,
                by=by,
                username=by.get_username(),
                actor=actor_of(by),
                claim=item.claim,
                content_digest=decision_digest(item.ref, end),
                evidence_id=request.evidence_id if find_verdict(item.ref, request.evidence_id) is not None else "",
                evidence_shown=numbers_shown(item.ref, request.evidence_shown),
                **kept_before(gates, item),
            )
            if row.state == DecisionState.HELD:
                row.refresh_from_db()  # counted by the database's clock
            if row.state != DecisionState.WAITING:
                bump(item.store)  # else its first attempt, which comes next, says what became of it
    except IntegrityError:
        return None
    return row


def _if_used(request: DecisionRequest, end: ActionEnd, item: ActionItem) -> Answer | None:
    """What is to be answered where the id has been used; one statement where it has not."""
    if not DecisionId.objects.filter(id=request.decision_id).exists():
        return None
    known = Decision.objects.filter(decision_id=request.decision_id).first()
    if known is not None:
        return _repeat(known, request, end, item)
    return _used_for_a_note(item) if Note.objects.filter(decision_id=request.decision_id).exists() else None


def _repeat(known: Decision, request: DecisionRequest, end: ActionEnd, item: ActionItem) -> Answer:
    """The same id again: what became of it; where that is open, find out now."""
    if known.ref != item.ref or known.content_digest != decision_digest(item.ref, end):
        shown = known if known.ref == item.ref else None
        return Answer(
            kind=AnswerKind.ID_REUSED, detail="this decision id was used for another decision", decision=shown, item=item
        )
    if known.state == DecisionState.WITHDRAWN:
        detail = "this decision was withdrawn; decide again with a new id"
        return Answer(kind=AnswerKind.ID_REUSED, detail=detail, decision=known, item=item)
    if known.is_turned_down:
        detail = f"{redact_text(known.why)}; decide again with a new id"
        return Answer(kind=AnswerKind.ID_REUSED, detail=detail, decision=known, item=item)
    if known.state == DecisionState.REFUSED:
        return _reopen(known, request, item)
    if known.is_pending:
        return answer_of(attempt(known.pk, wait=True), known, item, fresh=False)
    return answer_of(None, known, item, fresh=False)


def _reopen(known: Decision, request: DecisionRequest, item: ActionItem) -> Answer:
    """Nothing of it was written, so the same decision may be sent again, as long as it is about what is there now."""
    if item.action is None or not item.action.is_open:
        return _closed(item.ref, item)
    if known.claim != item.claim or (request.seen and request.seen != item.digest):
        return _changed(item)
    if known.needs_step_up and not is_confirmed(request.confirmed_at, timezone.now()):
        return must_confirm(item)
    has_passed = known.second_at is not None or known.broke_glass
    gates = Gates(needs_second=known.needs_second and not has_passed, hold_s=known.hold_s)
    again = {name: value for name, value in kept_before(gates, item).items() if name in _MOVING}
    try:
        with transaction.atomic(durable=True):
            refused = Decision.objects.filter(pk=known.pk, state=DecisionState.REFUSED, is_turned_down=False)
            is_ours = refused.update(**again) == 1
            bump(known.store)
    except IntegrityError:
        return _pending(_pending_for(item.ref), item)
    known.refresh_from_db()
    if known.state in (DecisionState.PROPOSED, DecisionState.HELD):
        return answer_of(None, known, item, fresh=False)
    return answer_of(attempt(known.pk, first=is_ours, wait=True, seen=request.seen), known, item, fresh=is_ours)


def _without_store(ref: ActionRef, request: DecisionRequest, by: User, problem: StoreError) -> Answer:
    """The store does not answer. What the console knows of this very decision is still worth saying."""
    known = Decision.objects.filter(decision_id=request.decision_id, store=ref.store, agent=ref.agent, seq=ref.seq).first()
    missing = f"no store is called {ref.store!r}"
    if known is not None:
        require(by, Right.SETTLE, store=known.store, tool=known.tool, missing=missing)
        if known.state == DecisionState.WRITTEN and known.by_id == by.pk:
            return Answer(kind=AnswerKind.REPEATED, detail="it was written before", decision=known)
        if known.is_pending:
            return Answer(kind=AnswerKind.UNAVAILABLE, detail=f"{problem}; {_UNKNOWN_OUTCOME}", decision=known)
    if not may_somewhere(by, Right.SETTLE, store=ref.store):
        if not may_somewhere(by, Right.READ, store=ref.store):
            raise Http404(missing)
        raise PermissionDenied("you need a role that may settle here")
    return Answer(kind=AnswerKind.UNAVAILABLE, detail=f"{problem}; nothing was written")


def _keep_note(ref: ActionRef, request: DecisionRequest, item: ActionItem, by: User) -> Answer:
    text = request.reason.strip()
    note = Note.objects.filter(decision_id=request.decision_id).first()
    is_new = False
    if note is None:
        if request.look_again_at is not None and request.look_again_at < timezone.now():
            raise InvalidDecision("the time to look again is in the past")
        note, is_new = _write_note(ref, request, text, item, by)
    if note is None:
        return Answer(kind=AnswerKind.ID_REUSED, detail="this decision id was used for a decision", item=item)
    if (note.ref, note.text, note.look_again_at, note.by_id) != (ref, text, request.look_again_at, by.pk):
        return Answer(kind=AnswerKind.ID_REUSED, detail="this decision id was used for another note", item=item)
    kind = AnswerKind.NOTED if is_new else AnswerKind.REPEATED
    return Answer(kind=kind, detail="the note is kept; nothing was written to the agent", note=note, item=item)


def _write_note(ref: ActionRef, request: DecisionRequest, text: str, item: ActionItem, by: User) -> tuple[Note | None, bool]:
    """The note under this id, and whether it was made now. None where the id is a decision's, also of one made this very moment."""
    try:
        with transaction.atomic(durable=True):
            DecisionId.objects.create(id=request.decision_id)
            note = Note.objects.create(
                decision_id=request.decision_id,
                store=ref.store,
                agent=ref.agent,
                seq=ref.seq,
                tool=_tool_of(item),
                text=text,
                look_again_at=request.look_again_at,
                by=by,
                username=by.get_username(),
            )
            bump(ref.store)
    except IntegrityError:
        return Note.objects.filter(decision_id=request.decision_id).first(), False
    return note, True


def _used_for_a_note(item: ActionItem) -> Answer:
    return Answer(kind=AnswerKind.ID_REUSED, detail="this decision id was used for a note", item=item)


_MOVING = frozenset({"state", "why", "held_until", "next_try_at"})
"""What of a decision changes on its way; its gates are frozen."""


def _tool_of(item: ActionItem) -> str:
    return as_column(item.action.tool if item.action else "")


# --- withdrawing -----------------------------------------------------------------------------------------------------


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


# --- answers ---------------------------------------------------------------------------------------------------------


def answer_of(after: Attempt | None, row: Decision, item: ActionItem, *, fresh: bool) -> Answer:
    """What an attempt came to. `fresh`: this request made the decision, so it is told of every obstacle."""
    decision = after.decision if after else row
    problem = after.problem if after else None
    now = item if decision.is_pending else _look_again(item)
    if decision.state == DecisionState.WRITTEN:
        kind = AnswerKind.WRITTEN if fresh else AnswerKind.REPEATED
        detail = decision.why or "its agent reads it when it resumes"
        return Answer(kind=kind, detail=detail, decision=decision, item=now, warnings=warnings_about(item, decision.outcome))
    if decision.state == DecisionState.REFUSED:
        return _refused(decision, problem, now, item.ref)
    if decision.state == DecisionState.WITHDRAWN:
        return Answer(kind=AnswerKind.ID_REUSED, detail="this decision was withdrawn meanwhile", decision=decision, item=now)
    warnings = warnings_about(item, decision.outcome)
    if decision.state == DecisionState.PROPOSED:
        detail = f"nothing is written: {decision.shown_rule or 'a second person has to approve it'}"
        return Answer(kind=AnswerKind.PROPOSED, detail=detail, decision=decision, item=now, warnings=warnings)
    if decision.state == DecisionState.HELD and decision.held_until is not None:
        detail = f"nothing is written yet: it can be undone until {decision.held_until:%H:%M:%S} UTC"
        return Answer(kind=AnswerKind.HELD, detail=detail, decision=decision, item=now, warnings=warnings)
    if isinstance(problem, StoreError):
        return Answer(kind=AnswerKind.UNAVAILABLE, detail=f"{problem}; {_UNKNOWN_OUTCOME}", decision=decision, item=now)
    detail = f"not written yet: {redact_text(decision.why)}" if decision.why else f"not written yet: it is {decision.state}"
    return Answer(kind=AnswerKind.WAITING, detail=detail, decision=decision, item=now, warnings=warnings)


def _refused(decision: Decision, problem: ActionsError | None, now: ActionItem | None, ref: ActionRef) -> Answer:
    detail = redact_text(decision.why)
    if isinstance(problem, ActionNotOpen) or (now is not None and now.action is not None and not now.action.is_open):
        return _closed(ref, now, entry=problem.entry if isinstance(problem, ActionNotOpen) else None)
    if isinstance(problem, StoreReadOnly | StoreUnusable):
        return Answer(kind=AnswerKind.READ_ONLY, detail=f"{problem}; nothing was written", decision=decision, item=now)
    if isinstance(problem, StoreUnavailable):
        return Answer(kind=AnswerKind.UNAVAILABLE, detail=f"{problem}; nothing was written", decision=decision, item=now)
    if isinstance(problem, DecisionIdReused):
        return Answer(kind=AnswerKind.ID_REUSED, detail=detail, decision=decision, item=now, entry=problem.entry)
    if isinstance(problem, InvalidDecision | RecordUnreadable):
        return Answer(kind=AnswerKind.INVALID, detail=detail, decision=decision, item=now)
    return Answer(kind=AnswerKind.CHANGED, detail=f"nothing was written: {detail}", decision=decision, item=now)


def _closed(ref: ActionRef, item: ActionItem | None, *, entry: Entry | None = None) -> Answer:
    """Somebody ended it: who, what and when, as far as the store's history and our own decisions know."""
    entry = entry or _ending_of(ref)
    current = current_decisions([ref]).get(ref)
    decision = current if current is not None and current.state == DecisionState.WRITTEN else None
    ended = item.action.status if item is not None and item.action is not None else "closed"
    who = entry.actor if entry is not None else "its agent or another program"
    reason = f": {entry.reason}" if entry is not None and entry.reason else ""
    return Answer(
        kind=AnswerKind.CLOSED, detail=f"it already ended {ended}, by {who}{reason}", decision=decision, item=item, entry=entry
    )


def _changed(item: ActionItem) -> Answer:
    return Answer(kind=AnswerKind.CHANGED, detail="it has changed since it was shown; look at it again", item=item)


def _pending(other: Decision | None, item: ActionItem | None) -> Answer:
    detail = "another decision about it is on its way"
    if other is not None:
        detail = f"{other.actor} has decided it {other.outcome}; that decision is {other.state}"
    return Answer(kind=AnswerKind.PENDING, detail=detail, decision=other, item=item)


def _pending_for(ref: ActionRef) -> Decision | None:
    return Decision.objects.filter(store=ref.store, agent=ref.agent, seq=ref.seq, state__in=PENDING_STATES).first()


def _ending_of(ref: ActionRef) -> Entry | None:
    try:
        return find_ending(get_store(ref.store), ref)
    except (StoreError, UnknownStore):
        return None
    except Exception as exc:
        log_unexpected(log, f"looking for who ended {ref}", exc)
        return None


def _look_again(item: ActionItem) -> ActionItem | None:
    """The action as it is now; None where its store does not answer: what happened is known all the same."""
    try:
        return get_action(get_store(item.store), item.ref, read_rules())
    except (ActionsError, UnknownStore):
        return None
    except Exception as exc:
        log_unexpected(log, f"reading {item.ref} again", exc)
        return None
