"""What each error is answered with, whichever address it was raised at. Nothing that was sent is repeated."""

from __future__ import annotations

import logging

from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.db import Error as ConsoleDatabaseError
from django.http import Http404, HttpRequest, HttpResponse
from ninja.errors import AuthenticationError, HttpError, ValidationError

from actions.errors import InvalidDecision, InvalidQuery, StoreError
from console.api.answers import error_answer
from console.api.bodies import MAX_BODY_BYTES, BadBody
from console.api.callers import caller_of
from console.api.root import api
from console.api.store_problems import unavailable
from console.logs import route_of
from console.services.asking import NobodyToAsk
from console.services.bulk import BatchCommitted, BulkRefused
from console.trouble import log_unexpected

log = logging.getLogger(__name__)


@api.exception_handler(AuthenticationError)
def unauthenticated(request: HttpRequest, exc: AuthenticationError) -> HttpResponse:
    response = error_answer(401, "unauthenticated", "send Authorization: Bearer TOKEN with a token that is valid here")
    response["WWW-Authenticate"] = "Bearer"
    return response


@api.exception_handler(PermissionDenied)
def forbidden(request: HttpRequest, exc: PermissionDenied) -> HttpResponse:
    return error_answer(403, "forbidden", str(exc) or "your roles do not allow this")


@api.exception_handler(Http404)
def not_found(request: HttpRequest, exc: Http404) -> HttpResponse:
    return error_answer(404, "not_found", str(exc) or "there is nothing at this address")


@api.exception_handler(InvalidQuery)
@api.exception_handler(InvalidDecision)
@api.exception_handler(BulkRefused)
def invalid(request: HttpRequest, exc: Exception) -> HttpResponse:
    return error_answer(422, "invalid", str(exc))


@api.exception_handler(ValidationError)
def bad_input(request: HttpRequest, exc: ValidationError) -> HttpResponse:
    """The first few problems by name. What was sent is never repeated."""
    said = [f"{'.'.join(str(part) for part in one['loc'][1:] if part != 'body')}: {one['msg']}"[:200] for one in exc.errors[:3]]
    return error_answer(422, "invalid", "; ".join(line.removeprefix(": ") for line in said))


@api.exception_handler(NobodyToAsk)
def nobody_to_ask(request: HttpRequest, exc: NobodyToAsk) -> HttpResponse:
    return error_answer(409, "nobody_to_ask", str(exc))


@api.exception_handler(BatchCommitted)
def batch_committed(request: HttpRequest, exc: BatchCommitted) -> HttpResponse:
    return error_answer(409, "id_reused", str(exc))


@api.exception_handler(StoreError)
def store_problem(request: HttpRequest, exc: StoreError) -> HttpResponse:
    return unavailable(caller_of(request).user, exc)


@api.exception_handler(ConsoleDatabaseError)
def database_problem(request: HttpRequest, exc: ConsoleDatabaseError) -> HttpResponse:
    log.error("the console's database at %s %s: %s", request.method, route_of(request), type(exc).__name__)
    return error_answer(
        503, "unavailable", "the console's database does not answer or cannot be written; the same decision id may be sent again"
    )


@api.exception_handler(RequestDataTooBig)
def too_big(request: HttpRequest, exc: RequestDataTooBig) -> HttpResponse:
    return error_answer(413, "too_large", f"the body is larger than {MAX_BODY_BYTES} bytes")


@api.exception_handler(HttpError)
def refused(request: HttpRequest, exc: HttpError) -> HttpResponse:
    """What ninja itself refuses; it wraps what the parser said."""
    cause = exc.__cause__
    if isinstance(cause, BadBody):
        return error_answer(422, "invalid", str(cause))
    if isinstance(cause, HttpError | RequestDataTooBig):
        return api.on_exception(request, cause)
    return error_answer(exc.status_code, "unsupported" if exc.status_code == 415 else "refused", str(exc))


@api.exception_handler(Exception)
def broken(request: HttpRequest, exc: Exception) -> HttpResponse:
    log_unexpected(log, f"answering {request.method} {route_of(request)}", exc)
    return error_answer(
        500, "broken", "something broke here; what was sent may or may not have been written. The same decision id is harmless"
    )
