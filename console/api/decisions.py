"""Decisions about one action: made, read, withdrawn, approved or refused by a second person, and written through a tenant's server."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from ninja import Body, Router, Schema
from pydantic import ConfigDict, Field

from actions.errors import InvalidDecision
from actions.records import ActionRef
from actions.times import parse_rfc3339, to_datetime
from console import shapes
from console.access import item_or_404, sees_problems
from console.api.answers import ERRORS, ErrorOut, gesture_answer, json_answer
from console.api.callers import caller_of, user_of
from console.api.parameters import DECISION, Agent, Seq, Store, know_query
from console.services.approve import approve, break_glass, turn_down
from console.services.decide import DecisionRequest, decide
from console.services.decisions import current_decisions
from console.services.through import write_through
from console.services.withdraw import withdraw


class DecisionOut(Schema):
    """A decision as it stands. To an agent only what it is told; `detail` and `warnings` only in answers to a gesture."""

    id: str
    state: str
    outcome: str | None
    reason: str | None
    result: str | None
    error: str | None
    by: str | None
    at: str
    why: str | None = Field(None, description="why it is where it is, in one sentence")
    written_by: str | None = Field(None, description="us, or agent: it ended the action itself, with this outcome")
    turn: int | None = Field(None, description="the number of the turn that its agent reads")
    entry: int | None = Field(None, description="the number of its entry in the history of its store")
    rule: str | None = None
    second: str | None = None
    second_reason: str | None = None
    held_until: str | None = None
    broke_glass: str | None = None
    broke_glass_by: str | None = None
    seen: str | None = Field(None, description="of a proposal: what an approval may be bound to")
    tool: str | None = Field(None, description="to an agent: the tool of the action that was decided about")
    claim: str | None = Field(None, description="to an agent: the digest of that action, without its status")
    resolution: str | None = Field(None, description="to an agent: how its records will say that the end is known")
    detail: str | None = None
    warnings: list[str] | None = None


class DecisionIn(Schema):
    """A decision. What its texts may hold, the rules say; sizes and characters are checked there."""

    model_config = ConfigDict(extra="forbid", strict=True)

    outcome: str = Field(description="done, failed, abandoned or later")
    reason: str
    decision_id: str = Field(description="8 to 64 of A-Z a-z 0-9 -, made anew for each decision")
    seen: str | None = Field(None, description="the item's digest; compared where given")
    result: str | None = None
    error: str | None = None
    look_again_at: str | None = Field(None, description="RFC 3339; only with later")


class ApprovalIn(Schema):
    """The second person of a proposed decision."""

    model_config = ConfigDict(extra="forbid", strict=True)

    decision_id: str = Field(description="of the decision that is proposed")
    reason: str = Field("", description="what they looked at")
    seen: str | None = Field(None, description="`decision.seen` of the action; compared where given")


class TurnDownIn(Schema):
    """The second person refuses a proposed decision."""

    model_config = ConfigDict(extra="forbid", strict=True)

    decision_id: str = Field(description="of the decision that is proposed")
    reason: str = Field(description="what is wrong with it; whoever proposed it reads this")


class BreakGlassIn(Schema):
    """A proposed decision goes on without a second person."""

    model_config = ConfigDict(extra="forbid", strict=True)

    decision_id: str = Field(description="of the decision that is proposed")
    reason: str = Field(description="why no second person can be waited for: at least 10 characters, kept in the history")


class ThroughIn(Schema):
    """That a decision which waits is to be written through the tenant's own server."""

    model_config = ConfigDict(extra="forbid", strict=True)

    decision_id: str = Field(description="of the decision that waits")
    confirm: str = Field(description="the agent's id once more: its process may be alive")


_WRITING = {200: DecisionOut, 201: DecisionOut, 202: DecisionOut, 409: ErrorOut, 503: ErrorOut, **ERRORS}
_DECIDING = {412: ErrorOut, **_WRITING}

router = Router()


@router.post(DECISION, response=_DECIDING, summary="Decide")
def post_decision(
    request: HttpRequest, store: Store, agent: Agent, seq: Seq, body: Annotated[DecisionIn, Body()]
) -> HttpResponse:
    """201: written by this request. 200: the same id again. 202: kept, not written yet. 503: not written, or unknown; send it again as it is."""
    user = user_of(request)
    wanted = DecisionRequest(
        outcome=body.outcome,
        reason=body.reason,
        decision_id=body.decision_id,
        seen=body.seen or "",
        result=body.result or "",
        error=body.error or "",
        look_again_at=_time(body.look_again_at) if body.look_again_at else None,
    )
    return gesture_answer(decide(ActionRef(store, agent, seq), wanted, by=user))


@router.get(DECISION, response={200: DecisionOut, **ERRORS}, summary="The decision that matters, if there is one")
def get_decision(request: HttpRequest, store: Store, agent: Agent, seq: Seq) -> HttpResponse:
    """An agent's token may ask about its own actions, and is told an outcome only once it is waiting or written."""
    ref = ActionRef(store, agent, seq)
    know_query(request)
    caller = caller_of(request)
    if caller.user is None:
        if (caller.store, caller.agent) != (store, agent):
            raise PermissionDenied("this token reads the decisions of another agent")
    else:
        item_or_404(caller.user, ref)
    decision = current_decisions([ref]).get(ref)
    if decision is None:
        raise Http404("nothing was decided about this action")
    if caller.user is None:
        return json_answer(shapes.agent_decision_json(decision))
    return json_answer(shapes.decision_json(decision, sees_problems=sees_problems(caller.user, store)))


@router.delete(DECISION, response={200: DecisionOut, 409: ErrorOut, **ERRORS}, summary="Withdraw the decision that is on its way")
def delete_decision(request: HttpRequest, store: Store, agent: Agent, seq: Seq, decision_id: str = "") -> HttpResponse:
    """Once withdrawn it is never written; 409 where it is written already."""
    user = user_of(request)
    know_query(request, "decision_id")
    return gesture_answer(withdraw(ActionRef(store, agent, seq), by=user, decision_id=decision_id))


@router.post(f"{DECISION}/approve", response=_DECIDING, summary="Be the second person of a proposed decision")
def post_approval(
    request: HttpRequest, store: Store, agent: Agent, seq: Seq, body: Annotated[ApprovalIn, Body()]
) -> HttpResponse:
    """201: written. 202: held, or waiting for the lease. 403: your own, or `confirm_identity`, which no token can. 409: somebody was first."""
    user, ref = user_of(request), ActionRef(store, agent, seq)
    answer = approve(ref, body.decision_id, by=user, reason=body.reason, seen=body.seen or "")
    return gesture_answer(answer, sees=sees_problems(user, store))


@router.post(f"{DECISION}/turn-down", response=_DECIDING, summary="Refuse a proposed decision as its second person")
def post_turn_down(
    request: HttpRequest, store: Store, agent: Agent, seq: Seq, body: Annotated[TurnDownIn, Body()]
) -> HttpResponse:
    """It is never written; whoever proposed it is shown the reason."""
    user, ref = user_of(request), ActionRef(store, agent, seq)
    return gesture_answer(turn_down(ref, body.decision_id, by=user, reason=body.reason), sees=sees_problems(user, store))


@router.post(f"{DECISION}/break-glass", response=_DECIDING, summary="Go on without a second person, on the record")
def post_break_glass(
    request: HttpRequest, store: Store, agent: Agent, seq: Seq, body: Annotated[BreakGlassIn, Body()]
) -> HttpResponse:
    """For whoever may settle; it passes no hold. 503: the history could not be written, so nothing passed."""
    ref = ActionRef(store, agent, seq)
    return gesture_answer(break_glass(ref, body.decision_id, by=user_of(request), reason=body.reason))


@router.post(
    f"{DECISION}/through-server", response=_WRITING, summary="Write the decision that waits through the tenant's own server"
)
def post_through(request: HttpRequest, store: Store, agent: Agent, seq: Seq, body: Annotated[ThroughIn, Body()]) -> HttpResponse:
    """For an agent whose server keeps its lease alive. 503: not written, or a part of it may be; send it again as it is."""
    ref = ActionRef(store, agent, seq)
    return gesture_answer(write_through(ref, decision_id=body.decision_id, confirm=body.confirm, by=user_of(request)))


def _time(text: str) -> datetime:
    try:
        return to_datetime(parse_rfc3339(text))
    except ValueError as exc:
        raise InvalidDecision(f"look_again_at: {exc}") from exc
