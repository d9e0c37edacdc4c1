"""Compensations: taking back what a run did."""

from __future__ import annotations

from typing import Annotated, Any

from django.http import HttpRequest, HttpResponse
from ninja import Body, Router, Schema
from pydantic import Field

from console import shapes
from console.api.answers import ERRORS, ErrorOut, json_answer
from console.api.callers import user_of
from console.api.parameters import RUN, RunId, know_query
from console.api.runs import GESTURE, ReasonIn, run_json_for
from console.services.undoing import digest_of, preview, start_undoing
from console.tasks import send_undoing
from console.tool_rules import read_rules


class CompensateIn(ReasonIn):
    seen: str = Field(description="the digest of `compensation`, as it was shown")


class UndoStepOut(Schema):
    """One call that happened or may have. `state`: waiting, happened (taken back), failed, in_doubt or nothing_to_undo."""

    seq: int
    tool: str
    args: dict[str, Any] | str
    status: str
    state: str
    by_tool: str | None
    by_args: dict[str, Any] | str | None
    by_seq: int | None
    problem: str


class PreviewOut(Schema):
    digest: str
    items: list[UndoStepOut]


router = Router()


@router.get(
    f"{RUN}/compensation",
    response={200: PreviewOut, 409: ErrorOut, 503: ErrorOut, **ERRORS},
    summary="What would be taken back",
)
def get_compensation(request: HttpRequest, run_id: RunId) -> HttpResponse:
    """Newest first. `digest` is what `compensate` is bound to."""
    user = user_of(request)
    know_query(request)
    steps, rules = preview(run_id, by=user), read_rules()
    items = [shapes.undo_step_json(one, rules.of(one.call.tool), rules.of(one.tool)) for one in steps]
    return json_answer({"digest": digest_of(steps), "items": items})


@router.post(f"{RUN}/compensate", response={412: ErrorOut, **GESTURE}, summary="Take back what a run did")
def post_compensate(request: HttpRequest, run_id: RunId, body: Annotated[CompensateIn, Body()]) -> HttpResponse:
    """By a worker, newest first; `undoing` says how far it is. 412: it is not what `seen` says."""
    know_query(request)
    user = user_of(request)
    run = start_undoing(run_id, by=user, reason=body.reason, seen=body.seen)
    send_undoing([run.pk])
    return json_answer(run_json_for(user, run))
