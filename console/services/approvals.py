"""What runs ask people before a call is made: one row for each call, bound to the digest of tool, whole arguments and the gate's rule.

Silence is never consent, and never told to the model as somebody's no. A run goes on once everything that it asked is answered.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Q
from django.http import Http404
from django.utils import timezone

from actions.errors import ActionsError, InvalidDecision
from actions.records import Action, ActionClass, ActionStatus
from actions.rules import MAX_REASON_CHARS, as_column, check_text, has_visible_text
from agents.runs import DECISIONS, Expiry, Gate, RunType
from console.access import Person, Right, may, visible
from console.edits import NotAnEdit, read_edit
from console.models import Approval, ApprovalState, Run, RunStatus
from console.services.decisions import is_same_person
from console.services.gates import gates_of, is_confirmed
from console.services.policies import policy_of, roles_of
from console.services.run_claims import whatever_befalls
from console.services.run_rows import add_event, end_run, enter, lock_run, make_due, tell, type_of, unkeepable
from console.shapes import arguments_json
from console.tool_rules import rule_of

if TYPE_CHECKING:
    from agents.gates import Answer, AskedCall

MAX_LISTED = 200
_STATE_OF: Mapping[str, ApprovalState] = {
    "approve": ApprovalState.APPROVED,
    "edit": ApprovalState.EDITED,
    "reject": ApprovalState.REJECTED,
    "respond": ApprovalState.RESPONDED,
}
_TYPE_OF = {state: word for word, state in _STATE_OF.items()}


class ApprovalChanged(ActionsError):
    """What is asked is not what was shown. Nothing was answered; `.digest` is what stands there now."""

    def __init__(self, digest: str) -> None:
        self.digest = digest
        super().__init__("what is asked is not what was shown any more; look at it again. Nothing was answered")


class AlreadyAnswered(ActionsError):
    """Somebody was first. Nothing was changed; `.approval` says who, when and what."""

    def __init__(self, approval: Approval) -> None:
        self.approval = approval
        super().__init__(f"{approval.answered_by} has answered it already: {approval.state}")


class ApprovalVoid(ActionsError):
    """An answer would reach nobody: the run was cancelled, failed or asks anew, or nobody answered in time. Nothing was changed."""

    def __init__(self, approval: Approval, why: str) -> None:
        self.approval = approval
        super().__init__(why)


class ProofNeeded(PermissionDenied):
    """The tool's policy asks for a fresh proof of identity before the call is let through. Nothing was answered."""


class InvalidAnswer(ActionsError):
    """The answer breaks the gate's rule or the tool's schema. Nothing was answered; `.problems` says why, a sentence each."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(problems))


# --- reading ---------------------------------------------------------------------------------------------------------


def pending_approvals(*, by: Person, limit: int = MAX_LISTED) -> tuple[Approval, ...]:
    """What waits for a person and this one may see, oldest first, each with its run; at most `limit`."""
    may_see, found = visible(by), list[Approval]()
    rows = Approval.objects.filter(state=ApprovalState.PENDING).select_related("run__starter").order_by("asked_at", "pk")
    for row in rows.iterator(chunk_size=500):
        if may_see(row.run.store, row.tool):
            found.append(row)
            if len(found) == min(limit, MAX_LISTED):
                break
    return tuple(found)


def get_approval(approval_id: str, *, by: Person) -> Approval:
    """Raises Http404 where there is none, or where this person may not see its tool."""
    is_id = approval_id.isascii() and approval_id.isalnum()
    row = Approval.objects.select_related("run__starter").filter(approval_id=approval_id).first() if is_id else None
    if row is None or not may(by, Right.READ, store=row.run.store, tool=row.tool):
        raise Http404(f"there is no approval {approval_id[:40]!r}")
    return row


def why_not_answer(row: Approval, by: Person) -> str:
    """Why this person may not answer it; empty where they may. Four eyes: an approver, and not who started the run."""
    right = Right.APPROVE if row.needs_another else Right.SETTLE
    if not may(by, right, store=row.run.store, tool=row.tool):
        return f"you need a role that may {right} {row.tool[:60]}"
    if not row.needs_another:
        return ""
    starter = row.run.starter
    # By their number: a name may have changed since, or be somebody else's by now. Where the account is gone the name is all there is.
    if starter.pk == by.pk if starter is not None else row.run.started_by == by.get_username():
        return "you started this run, so somebody else has to answer"
    if starter is not None and is_same_person(starter, by):
        return f"your account has the same email address as {row.run.started_by}'s, so somebody else has to answer"
    return ""


def needs_proof(row: Approval, decision: str, edited: Mapping[str, Any] | None = None) -> bool:
    """Whether the tool's policy wants a fresh proof of identity before this call is let through, as it was asked or as it was `edited`;
    saying no needs none."""
    if decision not in ("approve", "edit"):
        return False
    policy = policy_of(row.tool)
    return any(
        gates_of(
            policy, _as_action(row, args), args, store=row.run.store, outcome="approved", roles=roles_of(policy)
        ).needs_step_up
        for args in (row.args, *([json.dumps(edited)] if edited is not None else []))
    )


def _as_action(row: Approval, args: str) -> Action:
    """The call as it would be recorded, for rules that speak of calls."""
    return Action(
        agent=row.run.run_id,
        seq=1,
        tool=row.tool,
        action_class=ActionClass.EXTERNAL,
        key="",
        args=args,
        status=ActionStatus.STARTED,
        epoch=1,
        written_epoch=1,
        started_at=0,
    )


def shown_args(row: Approval, *, edited: bool = False) -> Any:
    """The arguments as they may be shown: without secrets, and without what the tool's policy hides. JSON, or a text that is none."""
    text = row.edited_args if edited else row.args
    return arguments_json(text, rule_of(row.tool))


# --- answering -------------------------------------------------------------------------------------------------------


def answer(
    approval_id: str,
    *,
    decision: str,
    seen: str,
    by: User,
    args: Mapping[str, Any] | None = None,
    message: str = "",
    confirmed_at: datetime | None = None,
) -> Approval:
    """What a person says of one call, on the record. The last answer that the run waits for makes it due.

    `args` of an edit are whole; what was hidden from this person and comes back as it was shown keeps its value. `confirmed_at`: when they
    last proved who they are; None: never, as with a token.

    Raises:
        Http404: as `get_approval`. PermissionDenied: as `why_not_answer`. ProofNeeded: as `needs_proof`.
            In each case, as in the others, nothing was answered.
        InvalidAnswer: a decision that this gate does not allow, arguments that the tool does not take, a message that is missing or too much.
        ApprovalChanged, AlreadyAnswered, ApprovalVoid: what stands there now.
    """
    row = get_approval(approval_id, by=by)
    if why := why_not_answer(row, by):
        raise PermissionDenied(why)
    _require_open(
        row, seen, timezone.now()
    )  # and once more under the lock: whoever comes too late is told that, not what else is wrong
    whole = _checked(row, decision, args, message)
    if needs_proof(row, decision, whole) and not is_confirmed(confirmed_at, timezone.now()):
        raise ProofNeeded("the policy of this tool asks for a proof of identity within the last ten minutes")
    now = timezone.now()
    with transaction.atomic(durable=True):
        run = lock_run(row.run_id)
        row = Approval.objects.select_for_update().get(pk=row.pk)
        row.run = run
        _require_open(row, seen, now)
        row.state, row.message = _STATE_OF[decision], message
        row.answered_by, row.answered_at = by.get_username(), now
        row.edited_args = json.dumps(whole) if whole is not None else ""
        row.save()
        add_event(
            run, "answered", by=by.get_username(), approval=row.approval_id, tool=row.tool, decision=decision, message=message
        )
        if not Approval.objects.filter(run=run, state=ApprovalState.PENDING).exists():
            make_due(run, now)
            run.save()
        tell(run)
        changed: dict[str, list[Any]] = {"approval": ["pending", str(row.state)]}
        if whole is not None:
            changed["arguments"] = [shown_args(row), shown_args(row, edited=True)]
        enter(
            "run_answered",
            run,
            by=by,
            tool=row.tool,
            reason=message,
            changed=changed,
            approval=row.approval_id,
            digest=row.digest,
        )
    return row


def _require_open(row: Approval, seen: str, now: datetime) -> None:
    if row.state in _TYPE_OF:
        raise AlreadyAnswered(row)
    if row.state == ApprovalState.EXPIRED or (row.expires_at is not None and row.expires_at <= now):
        raise ApprovalVoid(row, "nobody answered in time; nothing was agreed to, and nothing was refused")
    if seen != row.digest:
        raise ApprovalChanged(row.digest)
    if row.state == ApprovalState.VOID or row.run.status != RunStatus.WAITING_APPROVAL:
        raise ApprovalVoid(row, f"its run is {str(row.run.status).replace('_', ' ')} and does not wait for this answer any more")


def _checked(row: Approval, decision: str, args: Mapping[str, Any] | None, message: str) -> Mapping[str, Any] | None:
    """The whole arguments of an edit; None of anything else. Raises InvalidAnswer."""
    if decision not in DECISIONS:
        raise InvalidAnswer([f"decision {decision[:40]!r} is none; choose {', '.join(row.allowed)}"])
    if decision not in row.allowed:
        raise InvalidAnswer([f"this gate does not allow {decision}; choose {', '.join(row.allowed)}"])
    problems = []
    try:
        check_text("message", message)
    except InvalidDecision as exc:
        problems.append(str(exc))
    if len(message) > MAX_REASON_CHARS:
        problems.append(f"the message has {len(message)} characters; the limit is {MAX_REASON_CHARS}")
    if message and decision not in ("reject", "respond"):
        problems.append("a message goes with reject and respond only")
    if decision == "respond" and not has_visible_text(message):
        problems.append("a message is required: it is what the model is told in place of the call")
    if (args is not None) is not (decision == "edit"):
        problems.append("args go with edit, and with nothing else: all of them, as the tool is to get them")
    if problems:
        raise InvalidAnswer(problems)
    return _checked_edit(row, args) if args is not None else None


def edit_problems(row: Approval, args: Mapping[str, Any]) -> tuple[str, ...]:
    """What its tool does not take of these whole arguments, a sentence each, before anybody sends them. Nothing is said of a type that is gone:
    `answer` refuses then."""
    if type_of(row.run) is None:
        return ()
    try:
        _checked_edit(row, args)
    except InvalidAnswer as exc:
        return exc.problems
    return ()


def _checked_edit(row: Approval, args: Mapping[str, Any]) -> Mapping[str, Any]:
    kind = type_of(row.run)
    if kind is None:
        raise InvalidAnswer([f"no run type is called {row.run.type} any more, so nobody can say what the tool takes"])
    try:
        text = json.dumps(dict(args), allow_nan=False)
        name = unkeepable(args)
    except RecursionError as exc:
        raise InvalidAnswer(["the arguments are nested too deeply"]) from exc
    except (TypeError, ValueError) as exc:
        raise InvalidAnswer(["the arguments are not JSON"]) from exc
    if name is not None:
        raise InvalidAnswer([f"{name or 'a name'}: holds a NUL or half a character, which no record keeps"])
    try:
        # Else a placeholder would be called with.
        whole = read_edit(text, row.args, rule_of(row.tool).redacted)
    except NotAnEdit as exc:
        raise InvalidAnswer([str(exc)]) from exc
    from agents.gates import check_edit  # LangGraph, which nobody needs who only shows runs

    if problems := check_edit(kind, row.tool, whole):
        raise InvalidAnswer(problems)
    return whole


# --- a worker's side: asking, handing in, expiring -------------------------------------------------------------------


def ask_for(run: Run, kind: RunType, asked: Sequence[AskedCall], now: datetime) -> None:
    """Keep what a run asks now: what stands there with the same digest stays, anything else that is pending is void. Under the run's lock."""
    pending = {(row.interrupt_id, row.position): row for row in Approval.objects.filter(run=run, state=ApprovalState.PENDING)}
    same = {key for one in asked if (row := pending.get(key := (one.interrupt_id, one.position))) and row.digest == one.digest}
    gone = [row.pk for key, row in pending.items() if key not in same]
    Approval.objects.filter(pk__in=gone).update(state=ApprovalState.VOID)
    for one in asked:
        if (one.interrupt_id, one.position) not in same:
            tool = kind.tool(one.tool)
            _create(run, one, tool.gate if tool else None, now)


def _create(run: Run, one: AskedCall, gate: Gate | None, now: datetime) -> None:
    row = Approval.objects.create(
        approval_id=uuid.uuid4().hex,
        run=run,
        interrupt_id=one.interrupt_id,
        position=one.position,
        call_id=as_column(one.call_id)[:255],
        tool=as_column(one.tool),
        args=json.dumps(dict(one.args), default=str),
        digest=one.digest,
        description=as_column(one.description),
        allowed=[word for word in one.allowed if word in DECISIONS],
        needs_another=gate is not None and gate.needs_another,
        asked_at=now,
        expires_at=now + gate.expires_after if gate is not None and gate.expires_after is not None else None,
    )
    add_event(run, "asked", approval=row.approval_id, tool=row.tool, digest=row.digest, expires_at=row.expires_at)


def answers_of(run: Run) -> dict[str, list[Answer]]:
    """The answers that no checkpoint knows yet, by interrupt, in the order of its calls; only where all of its calls are answered."""
    latest: dict[str, dict[int, Approval]] = {}
    for row in Approval.objects.filter(run=run, is_spent=False).order_by("pk"):
        latest.setdefault(row.interrupt_id, {})[row.position] = row
    return {
        interrupt: [_answer(rows[position]) for position in sorted(rows)]
        for interrupt, rows in latest.items()
        if all(row.state in _TYPE_OF for row in rows.values())
    }


def let_through(run: Run) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    """With which arguments people let calls through since the last checkpoint, by tool and call id: also where it was asked anew since."""
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    yes = (ApprovalState.APPROVED, ApprovalState.EDITED)
    for row in Approval.objects.filter(run=run, is_spent=False, state__in=yes).order_by("-pk"):
        found.setdefault((row.tool, row.call_id), []).append(json.loads(row.edited_args or row.args))
    return found


def _answer(row: Approval) -> Answer:
    from agents.gates import Answer  # as in _checked

    args = json.loads(row.edited_args) if row.edited_args else None
    return Answer(type=_TYPE_OF[ApprovalState(row.state)], digest=row.digest, args=args, message=row.message)


def mark_spent(run: Run) -> None:
    """A checkpoint was written since these were answered. Under the run's lock."""
    Approval.objects.filter(run=run, is_spent=False).exclude(state=ApprovalState.PENDING).update(is_spent=True)


def expire_approvals(limit: int) -> int:
    """End what nobody answered in time, as its gate says: the run fails, or the same is asked anew. How many there were."""
    now, count = timezone.now(), 0
    due = Q(state=ApprovalState.PENDING, expires_at__lte=now)
    for run_pk in list(Approval.objects.filter(due).order_by("expires_at").values_list("run_id", flat=True)[:limit]):
        with whatever_befalls(str(run_pk), "ending what nobody answered"), transaction.atomic():
            run = lock_run(run_pk)
            rows = list(Approval.objects.select_for_update().filter(due, run=run).order_by("pk"))
            for row in rows:
                _expire(run, row, now)
            if rows:
                tell(run)
            count += len(rows)
    return count


def _expire(run: Run, row: Approval, now: datetime) -> None:
    kind = type_of(run)
    tool = kind.tool(row.tool) if kind else None
    gate = tool.gate if tool else None
    Approval.objects.filter(pk=row.pk).update(state=ApprovalState.EXPIRED)
    add_event(run, "expired", approval=row.approval_id, tool=row.tool)
    if run.status != RunStatus.WAITING_APPROVAL:
        return  # an earlier one of this run has ended it
    if gate is not None and gate.on_expiry is Expiry.ASK_AGAIN and row.expires_at is not None:
        _ask_again(run, row, gate, now)
    else:
        end_run(run, RunStatus.FAILED, now, problem=f"nobody said in time whether {row.tool[:60]} may be called")


def _ask_again(run: Run, row: Approval, gate: Gate, now: datetime) -> None:
    from agents.gates import AskedCall  # as in _checked

    one = AskedCall(
        interrupt_id=row.interrupt_id,
        position=row.position,
        call_id=row.call_id,
        tool=row.tool,
        args=json.loads(row.args),
        digest=row.digest,
        description=row.description,
        allowed=tuple(row.allowed),
    )
    _create(run, one, gate, now)
