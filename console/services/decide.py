"""An operator decides about an open action. Who may, what is kept, and what is answered."""

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
from actions.errors import InvalidDecision, StoreError, StoreUnavailable
from actions.queries import ActionItem, get_action
from actions.records import ActionEnd, ActionRef, ActionStatus
from actions.redaction import redact_text
from actions.rules import MAX_REASON_CHARS, SETTLED_STATUSES, check_end_for, check_text, has_visible_text
from actions.settle import check_decision_id, make_end, preview_turn
from actions.turns import SettlementTurn
from console.access import Right, item_or_404, may_somewhere, require
from console.models import PENDING_STATES, Decision, DecisionId, DecisionState, Note
from console.services.answers import (
    DATABASE_TROUBLE,
    UNKNOWN_OUTCOME,
    Answer,
    AnswerKind,
    answer_changed,
    answer_closed,
    answer_of,
    answer_pending,
    must_confirm,
)
from console.services.changes import bump
from console.services.claimed import find_claim
from console.services.deliver import announce, as_column, attempt, kept_before
from console.services.evidence import find_verdict, numbers_shown
from console.services.gates import Gates, is_confirmed
from console.services.notes import is_same, write_note
from console.services.policies import gates_before
from console.stores import get_store
from console.tool_rules import read_rules
from console.trouble import log_unexpected, name_of

__all__ = ["DATABASE_TROUBLE", "DecisionRequest", "actor_of", "answer_of", "check_request", "decide", "end_of_request", "preview"]

log = logging.getLogger(__name__)

LATER = "later"


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
        return Answer(kind=AnswerKind.UNAVAILABLE, detail=f"{DATABASE_TROUBLE}; {UNKNOWN_OUTCOME}", item=item)
    except (Http404, PermissionDenied):
        raise
    except Exception as exc:
        log_unexpected(log, f"deciding about {ref}", exc)
        detail = f"something unexpected went wrong here ({name_of(exc)}); {UNKNOWN_OUTCOME}"
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
        return answer_closed(ref, item)
    check_end_for(item.action, end)
    if request.seen and request.seen != item.digest:
        return answer_changed(item)
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
            return answer_pending(other, item)
        item = get_action(get_store(item.store), item.ref, read_rules())
        if item.action is not None and not item.action.is_open:
            return answer_closed(item.ref, item)
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
        return answer_closed(item.ref, item)
    if known.claim != item.claim or (request.seen and request.seen != item.digest):
        return answer_changed(item)
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
        return answer_pending(_pending_for(item.ref), item)
    known.refresh_from_db()
    if known.state in (DecisionState.PROPOSED, DecisionState.HELD):
        return answer_of(None, known, item, fresh=False)
    return answer_of(attempt(known.pk, first=is_ours, wait=True, seen=request.seen), known, item, fresh=is_ours)


_MOVING = frozenset({"state", "why", "held_until", "next_try_at"})
"""What of a decision changes on its way; its gates are frozen."""


def _pending_for(ref: ActionRef) -> Decision | None:
    return Decision.objects.filter(store=ref.store, agent=ref.agent, seq=ref.seq, state__in=PENDING_STATES).first()


def _without_store(ref: ActionRef, request: DecisionRequest, by: User, problem: StoreError) -> Answer:
    """The store does not answer. What the console knows of this very decision is still worth saying."""
    known = Decision.objects.filter(decision_id=request.decision_id, store=ref.store, agent=ref.agent, seq=ref.seq).first()
    missing = f"no store is called {ref.store!r}"
    if known is not None:
        require(by, Right.SETTLE, store=known.store, tool=known.tool, missing=missing)
        if known.state == DecisionState.WRITTEN and known.by_id == by.pk:
            return Answer(kind=AnswerKind.REPEATED, detail="it was written before", decision=known)
        if known.is_pending:
            return Answer(kind=AnswerKind.UNAVAILABLE, detail=f"{problem}; {UNKNOWN_OUTCOME}", decision=known)
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
        note, is_new = write_note(item, text, request.look_again_at, note_id=request.decision_id, by=by)
    if note is None:
        return Answer(kind=AnswerKind.ID_REUSED, detail="this decision id was used for a decision", item=item)
    if not is_same(note, ref, text, request.look_again_at, by=by):
        return Answer(kind=AnswerKind.ID_REUSED, detail="this decision id was used for another note", item=item)
    kind = AnswerKind.NOTED if is_new else AnswerKind.REPEATED
    return Answer(kind=kind, detail="the note is kept; nothing was written to the agent", note=note, item=item)


def _used_for_a_note(item: ActionItem) -> Answer:
    return Answer(kind=AnswerKind.ID_REUSED, detail="this decision id was used for a note", item=item)


def _tool_of(item: ActionItem) -> str:
    return as_column(item.action.tool if item.action else "")
