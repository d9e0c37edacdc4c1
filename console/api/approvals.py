"""Approvals: what runs ask before a call is made, and what people answer."""

from __future__ import annotations

from typing import Annotated, Any

from django.http import HttpRequest, HttpResponse
from ninja import Body, Path, Router, Schema
from pydantic import ConfigDict, Field

from console import shapes
from console.api.answers import ERRORS, ErrorOut, json_answer
from console.api.callers import user_of
from console.api.parameters import DEFAULT_LIMIT, Limit, know_query
from console.models import Approval
from console.services.approvals import answer, get_approval, pending_approvals, shown_args
from console.tasks import send_runs

Id = Annotated[str, Path()]
_APPROVAL = "/approvals/{approval_id}"


class ApprovalOut(Schema):
    """What a run asks, or asked. `args`: without what is hidden here; a text where they are no JSON without a doubt."""

    id: str
    run: str
    type: str
    store: str
    started_by: str
    tool: str
    args: dict[str, Any] | str
    digest: str
    description: str
    allowed: list[str]
    needs_another: bool
    asked_at: str
    expires_at: str | None
    state: str
    answered_by: str | None
    answered_at: str | None
    message: str
    edited_args: dict[str, Any] | str | None


class ApprovalsOut(Schema):
    items: list[ApprovalOut]
    next: str | None


class AnswerIn(Schema):
    """What a person says of one call that a run asks about."""

    model_config = ConfigDict(extra="forbid", strict=True)

    decision: str = Field(description="approve, edit, reject or respond, as far as `allowed` names it")
    seen: str = Field(description="the approval's digest, as it was shown")
    args: dict[str, Any] | None = Field(
        None, description="of an edit: all arguments; what is hidden here may be sent back as shown"
    )
    message: str = Field("", description="of a rejection or a response: what the model is told")


router = Router()


@router.get("/approvals", response={200: ApprovalsOut, **ERRORS}, summary="What waits for a person, oldest first")
def get_approvals(request: HttpRequest, limit: Limit = DEFAULT_LIMIT) -> HttpResponse:
    """The oldest, at most 200: whoever answers them sees the next."""
    user = user_of(request)
    know_query(request, "limit")
    return json_answer({"items": [approval_json(one) for one in pending_approvals(by=user, limit=limit)], "next": None})


@router.get(_APPROVAL, response={200: ApprovalOut, **ERRORS}, summary="One of them, answered or not")
def get_one_approval(request: HttpRequest, approval_id: Id) -> HttpResponse:
    user = user_of(request)
    know_query(request)
    return json_answer(approval_json(get_approval(approval_id, by=user)))


@router.post(
    _APPROVAL,
    response={200: ApprovalOut, 409: ErrorOut, 412: ErrorOut, **ERRORS},
    summary="Say whether the call is made",
)
def post_answer(request: HttpRequest, approval_id: Id, body: Annotated[AnswerIn, Body()]) -> HttpResponse:
    """409: answered already, or void. 412: it is not what `seen` says. 403: four eyes, it is your own run; or `confirm_identity`, which no
    token can: saying no needs none."""
    know_query(request)
    row = answer(approval_id, decision=body.decision, seen=body.seen, by=user_of(request), args=body.args, message=body.message)
    send_runs([row.run_id])
    return json_answer(approval_json(row))


def approval_json(row: Approval) -> dict[str, Any]:
    """What a run asks, without what is hidden here."""
    edited = shown_args(row, edited=True) if row.edited_args else None
    return shapes.approval_json(row, args=shown_args(row), edited_args=edited)
