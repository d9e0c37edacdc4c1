"""The part of the API that is about durable runs and what they ask. Imported by api.py, whose rules for callers, bodies and errors hold here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any

from asgiref.sync import sync_to_async
from django.core.exceptions import PermissionDenied
from django.db import connection
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from ninja import Body, Path, Query, Schema
from pydantic import ConfigDict, Field

from actions.queries import MAX_LIMIT
from actions.redaction import redact_text
from agents.runs import RunTypeRefused
from console import shapes
from console.access import Person, sees_problems
from console.api import (
    _ALL_METHODS,
    _ERRORS,
    DEFAULT_LIMIT,
    ErrorOut,
    _error,
    _json,
    _know_query,
    _on,
    _refuse,
    _user,
    api,
)
from console.models import Approval, Run
from console.run_types import UnknownRunType
from console.services.approvals import (
    AlreadyAnswered,
    ApprovalChanged,
    ApprovalVoid,
    InvalidAnswer,
    ProofNeeded,
    answer,
    get_approval,
    pending_approvals,
    shown_args,
)
from console.services.run_rows import LIVE, MAX_EVENTS, RUNS, is_undoing, list_events
from console.services.runs import (
    IdempotencyConflict,
    InvalidRunInput,
    OpenCalls,
    RunNotPossible,
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
from console.services.tokens import find_caller
from console.services.undoing import PreviewChanged, digest_of, preview, start_undoing
from console.tasks import send_runs, send_undoing
from console.tool_rules import read_rules
from console.watch import ENDED, PING, watcher

PING_S = 15.0
LONGEST_S = 300.0
"""After so long a stream ends and is asked for anew, from the last event on."""


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


class WholeRunOut(RunOut):
    approvals: list[ApprovalOut]


class AnswerIn(Schema):
    """What a person says of one call that a run asks about."""

    model_config = ConfigDict(extra="forbid", strict=True)

    decision: str = Field(description="approve, edit, reject or respond, as far as `allowed` names it")
    seen: str = Field(description="the approval's digest, as it was shown")
    args: dict[str, Any] | None = Field(
        None, description="of an edit: all arguments; what is hidden here may be sent back as shown"
    )
    message: str = Field("", description="of a rejection or a response: what the model is told")


class ReasonIn(Schema):
    """Why somebody does this; it stands in the history."""

    model_config = ConfigDict(extra="forbid", strict=True)

    reason: str


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


class RestartedOut(RunIdOut):
    warnings: list[str]


Id = Annotated[str, Path()]
_RUN = "/runs/{run_id}"
_GESTURE = {200: RunOut, 409: ErrorOut, 503: ErrorOut, **_ERRORS}
_STREAM = {
    "responses": {
        200: {
            "description": "each event with its number as id, its kind as event, and itself as data; `end` after the last of a run that is over",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        }
    }
}


# --- runs ------------------------------------------------------------------------------------------------------------


@api.post("/runs", response={202: RunIdOut, 409: ErrorOut, **_ERRORS}, summary="Start a run")
def post_run(request: HttpRequest, body: Annotated[RunIn, Body()]) -> HttpResponse:
    """202 at once: a worker takes it up. The same key again: the same run; with another type or input 409."""
    _know_query(request)
    run, is_new = start_run(body.type, body.input, by=_user(request), idempotency_key=body.idempotency_key)
    if is_new:
        send_runs([run.pk])
    return _json({"id": run.run_id}, status=202)


@api.get("/runs", response={200: RunsOut, **_ERRORS}, summary="Runs, newest first")
def get_runs(
    request: HttpRequest,
    status: str = "",
    kind: Annotated[str, Query(alias="type")] = "",
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = DEFAULT_LIMIT,
    cursor: str = "",
) -> HttpResponse:
    """`status` and `type` take values joined by commas."""
    user = _user(request)
    _know_query(request, "status", "type", "limit", "cursor")
    page = list_runs(by=user, status=status, kind=kind, cursor=cursor or None, limit=limit)
    return _json({"items": [_run(user, run) for run in page.items], "next": page.next})


@api.get(_RUN, response={200: WholeRunOut, **_ERRORS}, summary="One run, and what it asked")
def get_one_run(request: HttpRequest, run_id: Id) -> HttpResponse:
    user = _user(request)
    _know_query(request)
    run = get_run(run_id, by=user)
    approvals = approvals_of(run)
    for one in approvals:
        one.run = run
    return _json({**_run(user, run), "approvals": [_approval(one) for one in approvals]})


@api.post(f"{_RUN}/cancel", response=_GESTURE, summary="Stop a run")
def post_cancel(request: HttpRequest, run_id: Id, body: Annotated[ReasonIn, Body()]) -> HttpResponse:
    """At once, or after the step that it is in (`cancel_asked_by` until then). A call that is being made is never cut off."""
    _know_query(request)
    user = _user(request)
    return _json(_run(user, cancel_run(run_id, by=user, reason=body.reason)))


@api.post(f"{_RUN}/resume", response=_GESTURE, summary="Let a run that failed or was cancelled go on")
def post_resume(request: HttpRequest, run_id: Id, body: Annotated[ReasonIn, Body()]) -> HttpResponse:
    _know_query(request)
    user = _user(request)
    run = resume_run(run_id, by=user, reason=body.reason)
    send_runs([run.pk])
    return _json(_run(user, run))


@api.post(
    f"{_RUN}/restart",
    response={202: RestartedOut, 409: ErrorOut, **_ERRORS},
    summary="Begin a run that failed or was cancelled anew, as a run of its own",
)
def post_restart(request: HttpRequest, run_id: Id, body: Annotated[ReasonIn, Body()]) -> HttpResponse:
    """`warnings`: what it may do once more. Look at them before, in the page of the run: they are no reason to refuse."""
    _know_query(request)
    user = _user(request)
    warnings = restart_warnings(get_run(run_id, by=user))
    run = restart_run(run_id, by=user, reason=body.reason)
    send_runs([run.pk])
    return _json({"id": run.run_id, "warnings": list(warnings)}, status=202)


@api.post(f"{_RUN}/done", response=_GESTURE, summary="Say that a run is done")
def post_done(request: HttpRequest, run_id: Id, body: Annotated[ReasonIn, Body()]) -> HttpResponse:
    """409 `open_calls` where calls of it may or may not have happened, and its type does not allow that."""
    _know_query(request)
    user = _user(request)
    return _json(_run(user, mark_done(run_id, by=user, reason=body.reason)))


@api.get(
    f"{_RUN}/compensation",
    response={200: PreviewOut, 409: ErrorOut, 503: ErrorOut, **_ERRORS},
    summary="What would be taken back",
)
def get_compensation(request: HttpRequest, run_id: Id) -> HttpResponse:
    """Newest first. `digest` is what `compensate` is bound to."""
    user = _user(request)
    _know_query(request)
    steps, rules = preview(run_id, by=user), read_rules()
    items = [shapes.undo_step_json(one, rules.of(one.call.tool), rules.of(one.tool)) for one in steps]
    return _json({"digest": digest_of(steps), "items": items})


@api.post(f"{_RUN}/compensate", response={412: ErrorOut, **_GESTURE}, summary="Take back what a run did")
def post_compensate(request: HttpRequest, run_id: Id, body: Annotated[CompensateIn, Body()]) -> HttpResponse:
    """By a worker, newest first; `undoing` says how far it is. 412: it is not what `seen` says."""
    _know_query(request)
    user = _user(request)
    run = start_undoing(run_id, by=user, reason=body.reason, seen=body.seen)
    send_undoing([run.pk])
    return _json(_run(user, run))


# --- what they ask ---------------------------------------------------------------------------------------------------


@api.get("/approvals", response={200: ApprovalsOut, **_ERRORS}, summary="What waits for a person, oldest first")
def get_approvals(request: HttpRequest, limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = DEFAULT_LIMIT) -> HttpResponse:
    """The oldest, at most 200: whoever answers them sees the next."""
    user = _user(request)
    _know_query(request, "limit")
    return _json({"items": [_approval(one) for one in pending_approvals(by=user, limit=limit)], "next": None})


@api.get("/approvals/{approval_id}", response={200: ApprovalOut, **_ERRORS}, summary="One of them, answered or not")
def get_one_approval(request: HttpRequest, approval_id: Id) -> HttpResponse:
    user = _user(request)
    _know_query(request)
    return _json(_approval(get_approval(approval_id, by=user)))


@api.post(
    "/approvals/{approval_id}",
    response={200: ApprovalOut, 409: ErrorOut, 412: ErrorOut, **_ERRORS},
    summary="Say whether the call is made",
)
def post_answer(request: HttpRequest, approval_id: Id, body: Annotated[AnswerIn, Body()]) -> HttpResponse:
    """409: answered already, or void. 412: it is not what `seen` says. 403: four eyes, it is your own run; or `confirm_identity`, which no
    token can: saying no needs none."""
    _know_query(request)
    row = answer(approval_id, decision=body.decision, seen=body.seen, by=_user(request), args=body.args, message=body.message)
    send_runs([row.run_id])
    return _json(_approval(row))


# --- live ------------------------------------------------------------------------------------------------------------


@api.get(f"{_RUN}/events", response={200: str, **_ERRORS}, openapi_extra=_STREAM, summary="A run's events as they happen")
def get_events(request: HttpRequest, run_id: Id, after: Annotated[int, Query(ge=0, lt=2**31)] = 0) -> HttpResponse:
    """Server-sent events, those after number `after` (or `Last-Event-ID`) first. Ends with `end` once the run is over, else after minutes."""
    user = _user(request)
    _know_query(request, "after")
    run = get_run(run_id, by=user)
    last = request.headers.get("Last-Event-ID", "")
    began = max(after, int(last) if last.isascii() and last.isdigit() and len(last) < 10 else 0)
    token = request.headers["Authorization"].partition(" ")[2].strip()
    response = StreamingHttpResponse(_stream(run.run_id, token, began), content_type="text/event-stream")
    response["Cache-Control"] = "no-store"
    response["X-Accel-Buffering"] = "no"
    return response  # type: ignore[return-value]


async def _stream(run_id: str, token: str, after: int) -> AsyncIterator[bytes]:
    """What is new whenever something about runs moved. Each look is made in a thread, by whoever the token is at that moment."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + LONGEST_S
    changes = watcher.subscribe(may_see=RUNS.__eq__, ping_s=PING_S)
    coming: asyncio.Future[str] = asyncio.ensure_future(anext(changes))
    try:
        while True:
            await asyncio.wait([coming], timeout=deadline - loop.time())
            if not coming.done():
                return
            heard = coming.result()
            coming = asyncio.ensure_future(anext(changes))
            if heard == PING:
                yield b"event: ping\ndata:\n\n"
                continue
            found = _Look()
            while found.has_more:
                found = await sync_to_async(_look, thread_sensitive=False)(run_id, token, after)
                for event in found.events:
                    after = event["number"]
                    yield f"id: {after}\nevent: {event['kind']}\ndata: {json.dumps(event)}\n\n".encode("ascii")
            if found.is_hidden:
                return
            if found.is_over:
                yield b"event: end\ndata:\n\n"
                return
            if heard == ENDED:
                return
    finally:
        # A generator that is being waited for cannot be closed: first end the wait, whoever left.
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
        await changes.aclose()  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """What is new of a run; `is_hidden`: whoever asks may not see it any more."""

    events: tuple[dict[str, Any], ...] = ()
    has_more: bool = True
    is_over: bool = False
    is_hidden: bool = False


def _look(run_id: str, token: str, after: int) -> _Look:
    """One bounded look. The connection goes back at once: the stream lives for minutes."""
    try:
        caller = find_caller(token)
        if caller is None or caller.user is None:
            return _Look(is_hidden=True, has_more=False)
        run = get_run(run_id, by=caller.user)
        found = list_events(run, after=after)
        return _Look(
            events=tuple(shapes.run_event_json(event) for event in found),
            has_more=len(found) == MAX_EVENTS,
            is_over=run.status not in LIVE and not is_undoing(run),
        )
    except (Http404, PermissionDenied):
        return _Look(is_hidden=True, has_more=False)
    finally:
        if not connection.in_atomic_block:
            connection.close()


# --- going out -------------------------------------------------------------------------------------------------------


def _run(user: Person, run: Run) -> dict[str, Any]:
    return shapes.run_json(run, sees_problems=sees_problems(user, run.store))


def _approval(row: Approval) -> dict[str, Any]:
    edited = shown_args(row, edited=True) if row.edited_args else None
    return shapes.approval_json(row, args=shown_args(row), edited_args=edited)


@_on(UnknownRunType)
def _unknown_type(request: HttpRequest, exc: UnknownRunType) -> HttpResponse:
    return _error(422, "unknown_type", str(exc))


@_on(RunTypeRefused)
def _types_refused(request: HttpRequest, exc: RunTypeRefused) -> HttpResponse:
    return _error(409, "not_possible", f"the run types of this installation cannot be used: {exc}")


@_on(InvalidRunInput)
def _invalid_input(request: HttpRequest, exc: InvalidRunInput) -> HttpResponse:
    return _json({"error": "invalid", "detail": str(exc), "problems": exc.problems}, status=422)


@_on(IdempotencyConflict)
def _key_reused(request: HttpRequest, exc: IdempotencyConflict) -> HttpResponse:
    return _json({"error": "id_reused", "detail": str(exc), "run": exc.run.run_id}, status=409)


@_on(RunNotPossible)
def _not_possible(request: HttpRequest, exc: RunNotPossible) -> HttpResponse:
    if not isinstance(exc, OpenCalls):
        return _error(409, "not_possible", str(exc))
    calls = [{"seq": one.seq, "tool": redact_text(one.tool), "status": one.status.value} for one in exc.calls]
    return _json({"error": "open_calls", "detail": str(exc), "calls": calls}, status=409)


@_on(ProofNeeded)
def _proof_needed(request: HttpRequest, exc: ProofNeeded) -> HttpResponse:
    return _error(403, "confirm_identity", f"{exc}, which no token can give; answer it on its page")


@_on(AlreadyAnswered)
def _already_answered(request: HttpRequest, exc: AlreadyAnswered) -> HttpResponse:
    return _json({"error": "already_answered", "detail": str(exc), "approval": _approval(exc.approval)}, status=409)


@_on(ApprovalVoid)
def _void(request: HttpRequest, exc: ApprovalVoid) -> HttpResponse:
    return _json({"error": "void", "detail": str(exc), "approval": _approval(exc.approval)}, status=409)


@_on(ApprovalChanged)
def _changed(request: HttpRequest, exc: ApprovalChanged) -> HttpResponse:
    return _json({"error": "changed", "detail": str(exc), "digest": exc.digest}, status=412)


@_on(PreviewChanged)
def _preview_changed(request: HttpRequest, exc: PreviewChanged) -> HttpResponse:
    return _json({"error": "changed", "detail": str(exc), "digest": exc.digest}, status=412)


@_on(InvalidAnswer)
def _invalid_answer(request: HttpRequest, exc: InvalidAnswer) -> HttpResponse:
    return _json({"error": "invalid", "detail": str(exc), "problems": list(exc.problems)}, status=422)


# --- every other method ----------------------------------------------------------------------------------------------

METHODS_OF_RUNS = {
    "/runs": ["GET", "POST"],
    _RUN: ["GET"],
    f"{_RUN}/events": ["GET"],
    f"{_RUN}/compensation": ["GET"],
    **{f"{_RUN}/{gesture}": ["POST"] for gesture in ("cancel", "resume", "restart", "done", "compensate")},
    "/approvals": ["GET"],
    "/approvals/{approval_id}": ["GET", "POST"],
}


def _refuse_others_of_runs(path: str, allowed: list[str]) -> None:
    def refuse(request: HttpRequest) -> HttpResponse:
        return _refuse(request, allowed)

    def refuse_for_run(request: HttpRequest, run_id: Id) -> HttpResponse:
        return _refuse(request, allowed)

    def refuse_for_approval(request: HttpRequest, approval_id: Id) -> HttpResponse:
        return _refuse(request, allowed)

    chosen: Any = refuse_for_run if "{run_id}" in path else refuse_for_approval if "{approval_id}" in path else refuse
    others = [method for method in _ALL_METHODS if method not in allowed]
    api.api_operation(others, path, include_in_schema=False)(chosen)


for _path, _allowed in METHODS_OF_RUNS.items():
    _refuse_others_of_runs(_path, _allowed)
