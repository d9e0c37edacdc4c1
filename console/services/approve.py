"""The second person: approve or turn down what somebody proposed, or pass their gate with a recorded reason. One conditional change each.

Nobody is the second person of their own decision, with this account or with another one of the same address. What is approved is what was
shown: the decision, the action that it is about, and the verdict against it. After it the decision goes the way of every other.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.auth.models import User
from django.db import Error as ConsoleDatabaseError
from django.db import transaction
from django.db.models.functions import Now
from django.utils import timezone

from actions.digests import canonical_json, sha256_text
from actions.errors import InvalidDecision, StoreError
from actions.queries import ActionItem
from actions.records import ActionRef
from actions.redaction import redact_text
from actions.rules import MAX_REASON_CHARS, check_text, has_visible_text
from actions.settle import preview_turn
from actions.turns import SettlementTurn
from console.access import Person, Right, item_or_404, may, sees_problems
from console.models import Decision, DecisionState
from console.services.answers import Answer, AnswerKind, must_confirm
from console.services.changes import bump
from console.services.decide import DATABASE_TROUBLE, actor_of, answer_of
from console.services.decisions import why_not_second
from console.services.deliver import announce, as_column, attempt, end_of, lock, on_its_way
from console.services.evidence import Contradiction, find_contradiction
from console.services.gates import is_confirmed
from console.services.settle_line import tell_ended

log = logging.getLogger(__name__)

LEAST_VISIBLE = 10
"""Characters that a reason for passing the second person must show."""
_NOT_KNOWN = "whether it was kept is not known; look again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A proposed decision as its page shows it: the exact turn, what binds an approval to it, and what this person may do about it."""

    turn: SettlementTurn | None  # None: it could not be written any more
    seen: str
    against: Contradiction | None
    may_approve: bool
    why_not: str  # why this person cannot be the second one; empty: only the right counts


def show_proposal(row: Decision, item: ActionItem, *, user: Person) -> Proposal:
    """Writes nothing. The caller has checked that the user may see the action."""
    try:
        turn = preview_turn(item.action, end_of(row)) if item.action is not None else None
    except InvalidDecision:
        turn = None
    why_not = why_not_second(row, user)
    return Proposal(
        turn=turn,
        seen=proposal_digest(row, item),
        against=find_contradiction(row.ref, row.outcome),
        may_approve=not why_not and may(user, Right.APPROVE, store=row.store, tool=row.tool),
        why_not=why_not,
    )


def approve(
    ref: ActionRef, decision_id: str, *, by: User, reason: str = "", seen: str = "", confirmed_at: datetime | None = None
) -> Answer:
    """Be the second person of a proposed decision; then it is held or brought to its store, as any other.

    `seen`: the digest of what was shown (`proposal_digest`); empty: nothing is compared. Of two who approve at once one does, and the
    other is told who. The same person again is answered what became of it.

    Raises:
        Http404, PermissionDenied: as `access.item_or_404`. Nothing was changed.
    """
    try:
        item = item_or_404(by, ref, Right.APPROVE)
        _check_reason(reason)
    except InvalidDecision as exc:
        return Answer(kind=AnswerKind.INVALID, detail=str(exc))
    except StoreError as exc:
        return _without_store(ref, by, exc)
    row = _find(ref, decision_id)
    if row is None:
        return Answer(kind=AnswerKind.NOTHING, detail="no such decision was proposed here", item=item)
    if _has_ended(row, item):
        return _told(_look(row, item), by, ref)
    try:
        with transaction.atomic(durable=True):
            refusal = _refusal(row, item, by, seen, confirmed_at) or _move(
                row,
                **on_its_way(row.hold_s),
                second_by=by,
                second_username=by.get_username(),
                second_reason=reason.strip(),
                second_at=Now(),
            )
        if refusal is not None:
            return _told(refusal, by, ref)
        announce(row, "approved", actor=approver(by), why=reason)
        return _told(_go_on(row, item), by, ref)
    except ConsoleDatabaseError as exc:
        return _database_trouble("approving", row, item, exc)


def turn_down(ref: ActionRef, decision_id: str, *, by: User, reason: str) -> Answer:
    """Refuse a proposed decision as its second person; the reason is shown to whoever proposed it. Nothing is ever written of it.

    Raises:
        Http404, PermissionDenied: as `access.item_or_404`. Nothing was changed.
    """
    try:
        item = item_or_404(by, ref, Right.APPROVE)
        _check_reason(reason, needed="a reason is required: what is wrong with it?")
    except InvalidDecision as exc:
        return Answer(kind=AnswerKind.INVALID, detail=str(exc))
    except StoreError as exc:
        return _without_store(ref, by, exc)
    row = _find(ref, decision_id)
    if row is None:
        return Answer(kind=AnswerKind.NOTHING, detail="no such decision was proposed here", item=item)
    if _has_ended(row, item):
        return _told(_look(row, item), by, ref)
    why = f"{by.get_username()} turned it down: {' '.join(reason.split())}"
    try:
        with transaction.atomic(durable=True):
            refusal = _not_yours(row, by) or _move(
                row,
                state=DecisionState.REFUSED,
                is_turned_down=True,
                why=as_column(why),
                next_try_at=None,
                second_by=by,
                second_username=by.get_username(),
                second_reason=reason.strip(),
                second_at=Now(),
            )
    except ConsoleDatabaseError as exc:
        return _database_trouble("turning down", row, item, exc)
    if refusal is not None and row.is_turned_down and row.second_by_id == by.pk:
        return Answer(kind=AnswerKind.TURNED_DOWN, detail="it was turned down before", decision=row, item=item)
    if refusal is not None:
        return _told(refusal, by, ref)
    announce(row, "turned_down", actor=approver(by), why=reason)
    tell_ended(row, DecisionState.REFUSED)
    return Answer(kind=AnswerKind.TURNED_DOWN, detail="turned down; it will not be written", decision=row, item=item)


def break_glass(ref: ActionRef, decision_id: str, *, by: User, reason: str, confirmed_at: datetime | None = None) -> Answer:
    """Pass the second person of a proposed decision, not its hold. Whoever may settle may; the reason enters the history first.

    Where the history cannot be written, nothing passes.

    Raises:
        Http404, PermissionDenied: as `access.item_or_404`. Nothing was changed.
    """
    try:
        item = item_or_404(by, ref, Right.SETTLE)
        _check_reason(reason, needed="a reason is required: why can no second person be waited for?", least=LEAST_VISIBLE)
    except InvalidDecision as exc:
        return Answer(kind=AnswerKind.INVALID, detail=str(exc))
    except StoreError as exc:
        return _without_store(ref, by, exc)
    row = _find(ref, decision_id)
    if row is None:
        return Answer(kind=AnswerKind.NOTHING, detail="no such decision was proposed here", item=item)
    if _has_ended(row, item):
        return _told(_look(row, item), by, ref)
    try:
        with transaction.atomic(durable=True):
            refusal = _not_proposed(row, item, by) or _stale(row, item, "", confirmed_at)
            if refusal is None and not announce(row, "broke_glass", actor=actor_of(by), why=reason, or_here=False):
                detail = "the history cannot be written, so the second person cannot be passed; nothing was changed"
                refusal = Answer(kind=AnswerKind.UNAVAILABLE, detail=detail, decision=row, item=item)
            refusal = refusal or _move(
                row, **on_its_way(row.hold_s), broke_glass=reason.strip(), broke_glass_by=by.get_username()
            )
        return refusal or _go_on(row, item)
    except ConsoleDatabaseError as exc:
        return _database_trouble("breaking the glass for", row, item, exc)


def proposal_digest(row: Decision, item: ActionItem) -> str:
    """Stands for what a second person is shown: the decision, the action that it is about, and the verdict that says otherwise."""
    against = find_contradiction(row.ref, row.outcome)
    shown = {"decision": row.content_digest, "claim": item.claim, "against": against.evidence_id if against else ""}
    return sha256_text(canonical_json(shown))


def approver(by: User) -> str:
    """How a second person stands in entries."""
    return f"approver {by.get_username()}"


def _find(ref: ActionRef, decision_id: str) -> Decision | None:
    rows = Decision.objects.select_related("by").filter(store=ref.store, agent=ref.agent, seq=ref.seq)
    return rows.filter(decision_id=as_column(decision_id[:64])).first()


def _check_reason(reason: str, *, needed: str = "", least: int = 1) -> None:
    if needed and not has_visible_text(reason):
        raise InvalidDecision(needed)
    if needed and sum(has_visible_text(char) for char in reason) < least:
        raise InvalidDecision(f"the reason is too short; at least {least} characters that can be seen")
    if len(reason) > MAX_REASON_CHARS:
        raise InvalidDecision(f"the reason has {len(reason)} characters; the limit is {MAX_REASON_CHARS}")
    check_text("reason", reason)


# --- under the decision's lock ---------------------------------------------------------------------------------------


def _refusal(row: Decision, item: ActionItem, by: User, seen: str, confirmed_at: datetime | None) -> Answer | None:
    """Why an approval is not kept; None where nothing stands in its way. Takes the lock, as `_move` does."""
    return _not_yours(row, by) or _not_proposed(row, item, by) or _stale(row, item, seen, confirmed_at)


def _not_yours(row: Decision, by: User) -> Answer | None:
    why = why_not_second(row, by)
    return Answer(kind=AnswerKind.OWN_DECISION, detail=why, decision=row) if why else None


def _not_proposed(row: Decision, item: ActionItem, by: User) -> Answer | None:
    now = lock(row.pk, wait=True)
    if now is None:
        return Answer(kind=AnswerKind.NOTHING, detail="no such decision was proposed here", item=item)
    if now.state == DecisionState.PROPOSED:
        return None
    if now.second_by_id == by.pk and not now.is_turned_down:
        return answer_of(None, now, item, fresh=False)
    return Answer(kind=AnswerKind.NOT_PROPOSED, detail=what_stands(now), decision=now, item=item)


def _stale(row: Decision, item: ActionItem, seen: str, confirmed_at: datetime | None) -> Answer | None:
    if item.action is None:
        return Answer(kind=AnswerKind.INVALID, detail="the record is unreadable, so it cannot be settled here", item=item)
    if row.claim != item.claim or (seen and seen != proposal_digest(row, item)):
        detail = "it is not what was shown any more; look at it again. Nothing was changed"
        return Answer(kind=AnswerKind.CHANGED, detail=detail, decision=row, item=item)
    if row.needs_step_up and not is_confirmed(confirmed_at, timezone.now()):
        return must_confirm(item)
    return None


def what_stands(row: Decision) -> str:
    """What became of a proposal, in one sentence."""
    if row.state == DecisionState.WITHDRAWN:
        return f"it was {row.why}" if row.why else "it was withdrawn"
    if row.state == DecisionState.REFUSED:
        return redact_text(row.why)
    if row.broke_glass:
        return f"{row.broke_glass_by} went on without a second person; the decision is {row.state}"
    if row.second_at is not None:
        return f"{row.second_username} approved it before you; the decision is {row.state}"
    return f"nobody has to approve it; the decision is {row.state}"


def _move(row: Decision, **values: Any) -> Answer | None:
    """Change a proposal, if it still is one; else say what stands now."""
    proposed = Decision.objects.filter(pk=row.pk, state=DecisionState.PROPOSED)
    moved = proposed.update(updated_at=timezone.now(), **values)
    row.refresh_from_db()
    if moved != 1:
        return Answer(kind=AnswerKind.NOT_PROPOSED, detail=what_stands(row), decision=row)
    bump(row.store)
    return None


# --- answers ---------------------------------------------------------------------------------------------------------


def _go_on(row: Decision, item: ActionItem) -> Answer:
    """What became of it, now that no second person stands before it."""
    if row.state != DecisionState.WAITING:
        return answer_of(None, row, item, fresh=True)
    return answer_of(attempt(row.pk, wait=True), row, item, fresh=True)


def _has_ended(row: Decision, item: ActionItem) -> bool:
    """Whether its action ended while it was proposed: then there is nothing to approve or to turn down any more."""
    return row.state == DecisionState.PROPOSED and item.action is not None and not item.action.is_open


def _look(row: Decision, item: ActionItem) -> Answer:
    """The proposal becomes what its action's end makes of it."""
    try:
        return answer_of(attempt(row.pk, wait=True), row, item, fresh=False)
    except ConsoleDatabaseError as exc:
        return _database_trouble("looking at", row, item, exc)


def _without_store(ref: ActionRef, by: User, problem: StoreError) -> Answer:
    said = str(problem) if sees_problems(by, ref.store) else f"store {ref.store} does not answer"
    return Answer(kind=AnswerKind.UNAVAILABLE, detail=f"{said}; nothing was changed")


def _told(answer: Answer, by: User, ref: ActionRef) -> Answer:
    """Without what its store says of itself, for those who may not read that."""
    says_much = answer.kind in (AnswerKind.UNAVAILABLE, AnswerKind.READ_ONLY) or (
        answer.decision is not None and answer.decision.waits_for_store
    )
    if not says_much or sees_problems(by, ref.store):
        return answer
    detail = f"store {ref.store} does not take it now; it is delivered as soon as that is possible"
    return Answer(kind=answer.kind, detail=detail, decision=answer.decision, item=answer.item, warnings=answer.warnings)


def _database_trouble(doing: str, row: Decision, item: ActionItem, problem: ConsoleDatabaseError) -> Answer:
    log.error("%s decision %s: the console's database: %s", doing, row.decision_id, type(problem).__name__)
    return Answer(kind=AnswerKind.UNAVAILABLE, detail=f"{DATABASE_TROUBLE}; {_NOT_KNOWN}", decision=row, item=item)
