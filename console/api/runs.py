"""Durable runs: started, listed, read, stopped, resumed, begun anew, said to be done."""

from __future__ import annotations

from typing import Annotated, Any

from django.http import HttpRequest, HttpResponse
from ninja import Body, Query, Router, Schema
from pydantic import ConfigDict, Field

from console import shapes
from console.access import Person, sees_problems
from console.api.answers import ERRORS, ErrorOut, json_answer
from console.api.approvals import ApprovalOut, approval_json
from console.api.callers import user_of
from console.api.parameters import DEFAULT_LIMIT, RUN, Limit, RunId, know_query
from console.models import Run
from console.services.runs import (
    approvals_of,
    cancel_run,
    get_run,
    list_runs,
    mark_done,
    restart_run,
    restart_warnings,
    resume_run,
    start_run,
)
from console.tasks import send_runs


class RunIn(Schema):
    """A new run."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: str = Field(description="a run type that is registered here")
    input: dict[str, Any] = Field(description="as the type's own schema asks for it")
    idempotency_key: str = Field("", description="the same key again is the same run; at most 255 characters")


class RunIdOut(Schema):
    id: str


class RunOut(Schema):
    """One run. `parked`: why it stands still though it runs (open_calls, lease, store); `undoing`: how far it is taken back."""

    id: str
    type: str
    store: str
    status: str = Field(description="running, waiting_approval, failed, done or cancelled")
    parked: str | None
    problem: str
    result: str
    input: dict[str, Any]
    started_by: str
    started_at: str
    changed_at: str
    ended_at: str | None
    steps: int
    resumes: int
    cost: str
    busy_ms: int
    cancel_asked_by: str | None
    undoing: str | None
    restart_of: str | None


class RunsOut(Schema):
    items: list[RunOut]
    next: str | None


class WholeRunOut(RunOut):
    approvals: list[ApprovalOut]


class ReasonIn(Schema):
    """Why somebody does this; it stands in the history."""

    model_config = ConfigDict(extra="forbid", strict=True)

    reason: str


class RestartedOut(RunIdOut):
    warnings: list[str]


GESTURE = {200: RunOut, 409: ErrorOut, 503: ErrorOut, **ERRORS}

router = Router()


@router.post("/runs", response={202: RunIdOut, 409: ErrorOut, **ERRORS}, summary="Start a run")
def post_run(request: HttpRequest, body: Annotated[RunIn, Body()]) -> HttpResponse:
    """202 at once: a worker takes it up. The same key again: the same run; with another type or input 409."""
    know_query(request)
    run, is_new = start_run(body.type, body.input, by=user_of(request), idempotency_key=body.idempotency_key)
    if is_new:
        send_runs([run.pk])
    return json_answer({"id": run.run_id}, status=202)


@router.get("/runs", response={200: RunsOut, **ERRORS}, summary="Runs, newest first")
def get_runs(
    request: HttpRequest,
    status: str = "",
    kind: Annotated[str, Query(alias="type")] = "",
    limit: Limit = DEFAULT_LIMIT,
    cursor: str = "",
) -> HttpResponse:
    """`status` and `type` take values joined by commas."""
    user = user_of(request)
    know_query(request, "status", "type", "limit", "cursor")
    page = list_runs(by=user, status=status, kind=kind, cursor=cursor or None, limit=limit)
    return json_answer({"items": [run_json_for(user, run) for run in page.items], "next": page.next})


@router.get(RUN, response={200: WholeRunOut, **ERRORS}, summary="One run, and what it asked")
def get_one_run(request: HttpRequest, run_id: RunId) -> HttpResponse:
    user = user_of(request)
    know_query(request)
    run = get_run(run_id, by=user)
    approvals = approvals_of(run)
    for one in approvals:
        one.run = run
    return json_answer({**run_json_for(user, run), "approvals": [approval_json(one) for one in approvals]})


@router.post(f"{RUN}/cancel", response=GESTURE, summary="Stop a run")
def post_cancel(request: HttpRequest, run_id: RunId, body: Annotated[ReasonIn, Body()]) -> HttpResponse:
    """At once, or after the step that it is in (`cancel_asked_by` until then). A call that is being made is never cut off."""
    know_query(request)
    user = user_of(request)
    return json_answer(run_json_for(user, cancel_run(run_id, by=user, reason=body.reason)))


@router.post(f"{RUN}/resume", response=GESTURE, summary="Let a run that failed or was cancelled go on")
def post_resume(request: HttpRequest, run_id: RunId, body: Annotated[ReasonIn, Body()]) -> HttpResponse:
    know_query(request)
    user = user_of(request)
    run = resume_run(run_id, by=user, reason=body.reason)
    send_runs([run.pk])
    return json_answer(run_json_for(user, run))


@router.post(
    f"{RUN}/restart",
    response={202: RestartedOut, 409: ErrorOut, **ERRORS},
    summary="Begin a run that failed or was cancelled anew, as a run of its own",
)
def post_restart(request: HttpRequest, run_id: RunId, body: Annotated[ReasonIn, Body()]) -> HttpResponse:
    """`warnings`: what it may do once more. Look at them before, in the page of the run: they are no reason to refuse."""
    know_query(request)
    user = user_of(request)
    warnings = restart_warnings(get_run(run_id, by=user))
    run = restart_run(run_id, by=user, reason=body.reason)
    send_runs([run.pk])
    return json_answer({"id": run.run_id, "warnings": list(warnings)}, status=202)


@router.post(f"{RUN}/done", response=GESTURE, summary="Say that a run is done")
def post_done(request: HttpRequest, run_id: RunId, body: Annotated[ReasonIn, Body()]) -> HttpResponse:
    """409 `open_calls` where calls of it may or may not have happened, and its type does not allow that."""
    know_query(request)
    user = user_of(request)
    return json_answer(run_json_for(user, mark_done(run_id, by=user, reason=body.reason)))


def run_json_for(user: Person, run: Run) -> dict[str, Any]:
    """A run as this caller may read it."""
    return shapes.run_json(run, sees_problems=sees_problems(user, run.store))
