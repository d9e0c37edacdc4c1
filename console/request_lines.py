"""One line for each request, and its id: in the log, in the answer, and on the tasks that it sends."""

from __future__ import annotations

import re
import time
import uuid
from typing import Any, NamedTuple

import structlog
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.deprecation import MiddlewareMixin
from structlog.contextvars import bind_contextvars, clear_contextvars

from console.logs import route_of
from console.numbers import WEB_REQUESTS
from console.services.tokens import Caller

log = structlog.get_logger("console.request")

HEADER = "X-Request-ID"
_USABLE = re.compile(r"[A-Za-z0-9._-]{8,64}")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class _Began(NamedTuple):
    id: str
    at: float  # by time.perf_counter


class RequestLines(MiddlewareMixin):
    """Stands before everything else. A proxy's own id is kept where it is one; a stream's time is that to its first byte.

    Route pattern, not address; status, milliseconds and who: whatever an agent wrote or a person typed is in none of them.
    """

    def __call__(self, request: HttpRequest) -> Any:
        if self.async_mode:
            return self.__acall__(request)
        began = _begin(request)
        return _end(request, self.get_response(request), began)  # type: ignore[arg-type]  # as MiddlewareMixin itself

    async def __acall__(self, request: HttpRequest) -> HttpResponseBase:
        began = _begin(request)
        return _end(request, await self.get_response(request), began)  # type: ignore[misc]  # as MiddlewareMixin itself


def _begin(request: HttpRequest) -> _Began:
    said = request.headers.get(HEADER, "")
    began = _Began(said if _USABLE.fullmatch(said) else uuid.uuid4().hex, time.perf_counter())
    clear_contextvars()  # a thread may have answered somebody else before
    bind_contextvars(request_id=began.id)
    return began


def _end(request: HttpRequest, response: HttpResponseBase, began: _Began) -> HttpResponseBase:
    response[HEADER] = began.id
    method = request.method if request.method in _METHODS else "other"
    route, took = route_of(request), time.perf_counter() - began.at
    log.info("request", method=method, route=route, status=response.status_code, ms=round(took * 1000, 1), user=_who(request))
    WEB_REQUESTS.labels(str(method), route, str(response.status_code)).observe(took)
    return response


def _who(request: HttpRequest) -> str:
    """Who was recognised on the way, without asking the database for it."""
    caller = getattr(request, "auth", None)
    if isinstance(caller, Caller) and caller.user is None:
        return f"agent {caller.store}/{caller.agent[:120]}"
    user = caller.user if isinstance(caller, Caller) else getattr(request, "_cached_user", None)
    return str(user.get_username()) if user is not None and user.is_authenticated else ""
