"""What each error about runs and what they ask is answered with."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse

from actions.redaction import redact_text
from agents.runs import RunTypeRefused
from console.api.answers import error_answer
from console.api.approvals import approval_json
from console.api.root import api
from console.run_types import UnknownRunType
from console.services.approvals import AlreadyAnswered, ApprovalChanged, ApprovalVoid, InvalidAnswer, ProofNeeded
from console.services.runs import IdempotencyConflict, InvalidRunInput, OpenCalls, RunNotPossible
from console.services.undoing import PreviewChanged


@api.exception_handler(UnknownRunType)
def unknown_type(request: HttpRequest, exc: UnknownRunType) -> HttpResponse:
    return error_answer(422, "unknown_type", str(exc))


@api.exception_handler(RunTypeRefused)
def types_refused(request: HttpRequest, exc: RunTypeRefused) -> HttpResponse:
    return error_answer(409, "not_possible", f"the run types of this installation cannot be used: {exc}")


@api.exception_handler(InvalidRunInput)
def invalid_input(request: HttpRequest, exc: InvalidRunInput) -> HttpResponse:
    return error_answer(422, "invalid", str(exc), problems=exc.problems)


@api.exception_handler(InvalidAnswer)
def invalid_answer(request: HttpRequest, exc: InvalidAnswer) -> HttpResponse:
    return error_answer(422, "invalid", str(exc), problems=list(exc.problems))


@api.exception_handler(ProofNeeded)
def proof_needed(request: HttpRequest, exc: ProofNeeded) -> HttpResponse:
    return error_answer(403, "confirm_identity", f"{exc}, which no token can give; answer it on its page")


@api.exception_handler(IdempotencyConflict)
def key_reused(request: HttpRequest, exc: IdempotencyConflict) -> HttpResponse:
    return error_answer(409, "id_reused", str(exc), run=exc.run.run_id)


@api.exception_handler(RunNotPossible)
def not_possible(request: HttpRequest, exc: RunNotPossible) -> HttpResponse:
    if not isinstance(exc, OpenCalls):
        return error_answer(409, "not_possible", str(exc))
    calls = [{"seq": one.seq, "tool": redact_text(one.tool), "status": one.status.value} for one in exc.calls]
    return error_answer(409, "open_calls", str(exc), calls=calls)


@api.exception_handler(AlreadyAnswered)
def already_answered(request: HttpRequest, exc: AlreadyAnswered) -> HttpResponse:
    return error_answer(409, "already_answered", str(exc), approval=approval_json(exc.approval))


@api.exception_handler(ApprovalVoid)
def void(request: HttpRequest, exc: ApprovalVoid) -> HttpResponse:
    return error_answer(409, "void", str(exc), approval=approval_json(exc.approval))


@api.exception_handler(ApprovalChanged)
@api.exception_handler(PreviewChanged)
def changed(request: HttpRequest, exc: ApprovalChanged | PreviewChanged) -> HttpResponse:
    return error_answer(412, "changed", str(exc), digest=exc.digest)
