"""What holds for every request: an idle session ends, a POST comes from our own pages, a store that fails is said on a drawn page."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.contrib.auth import SESSION_KEY
from django.contrib.sessions.exceptions import SessionInterrupted
from django.contrib.sessions.middleware import SessionMiddleware
from django.db import Error as ConsoleDatabaseError
from django.db import InternalError, OperationalError
from django.http import HttpRequest, HttpResponse, HttpResponsePermanentRedirect, QueryDict
from django.http.response import HttpResponseBase
from django.middleware.common import CommonMiddleware
from django.urls import ResolverMatch
from django.utils.deprecation import MiddlewareMixin

from actions.errors import InvalidQuery, StoreError
from console.api.methods import refuse_unknown_method
from console.refusals import denial_of
from console.services import journal
from console.services.denials import leave_denial
from console.services.tallies import count
from console.services.tokens import Caller
from console.stores import one_page
from console.views import errors

SEEN_AT = "seen_at"
BACKGROUND = "X-Background"
"""Header of requests that the page makes by itself; they do not keep a session alive."""
_WRITE_EVERY_S = 60
_FORM = "application/x-www-form-urlencoded"
_SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
_BY_ADDRESS = frozenset({"/healthz", "/readyz", "/metrics"})


class Deadlines(MiddlewareMixin):
    """One deadline for a page, whatever it asks for; before all that asks for anything. What is streamed after it has its own."""

    def __call__(self, request: HttpRequest) -> Any:
        if self.async_mode:
            return self.__acall__(request)
        with one_page(changes=request.method not in _SAFE):
            return self.get_response(request)

    async def __acall__(self, request: HttpRequest) -> HttpResponseBase:
        with one_page(changes=request.method not in _SAFE):
            return await self.get_response(request)  # type: ignore[misc]  # as MiddlewareMixin itself


class KnownHosts(CommonMiddleware):
    """Django's, but for programs that watch each process by its address, which is no name of ours: what they are answered names no host, holds
    nothing of anybody's session, and numbers need a token."""

    def process_request(self, request: HttpRequest) -> HttpResponsePermanentRedirect | None:
        return None if request.path_info in _BY_ADDRESS else super().process_request(request)


class Sessions(SessionMiddleware):
    """Django's, but for a database that can only be read: a page that was drawn is not thrown away because nobody could note that it was."""

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        try:
            return super().process_response(request, response)
        except (SessionInterrupted, ConsoleDatabaseError) as exc:
            # A session that was deleted meanwhile is Django's matter; its own errors have no cause in the driver.
            if request.method not in _SAFE or not _is_unwritable(exc):
                raise
            return response


class IdleTimeout(MiddlewareMixin):
    """End a session that nobody used for SESSION_IDLE_TIMEOUT. Stands before AuthenticationMiddleware's user is first looked at."""

    def process_request(self, request: HttpRequest) -> None:
        if settings.SESSION_COOKIE_NAME not in request.COOKIES or SESSION_KEY not in request.session:
            return
        now = now_s()
        seen_at = request.session.get(SEEN_AT, now)
        if now - seen_at > settings.SESSION_IDLE_TIMEOUT.total_seconds():
            request.session.flush()
        elif SEEN_AT not in request.session or (now - seen_at >= _WRITE_EVERY_S and not _is_background(request)):
            request.session[SEEN_AT] = now


class LineFeeds(MiddlewareMixin):
    """A browser sends each line feed of a text area as two characters. What was meant, and is kept and shown, is the one that was typed."""

    def process_view(
        self, request: HttpRequest, view: Callable[..., HttpResponse], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        # What is no form of ours reads its body itself.
        if request.method != "POST" or request.content_type != _FORM or getattr(view, "csrf_exempt", False):
            return
        if any("\r\n" in text for _, texts in request.POST.lists() for text in texts):
            typed = QueryDict(mutable=True)
            for name, texts in request.POST.lists():
                typed.setlist(name, [text.replace("\r\n", "\n") for text in texts])
            typed._mutable = False
            request.POST = typed  # type: ignore[assignment]


class SameOrigin(MiddlewareMixin):
    """Refuse a session's POST that the browser itself says another site started; the CSRF token is asked for besides."""

    def process_view(
        self, request: HttpRequest, view: Callable[..., HttpResponse], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> HttpResponse | None:
        site = request.headers.get("Sec-Fetch-Site", "same-origin")
        if request.method in _SAFE or site in ("same-origin", "none") or getattr(view, "csrf_exempt", False):
            return None
        return errors.csrf_failure(request, reason="another site started this request")


class KnownMethods(MiddlewareMixin):
    """The API answers in JSON whatever the method; what ninja itself would say is plain text."""

    def process_view(
        self, request: HttpRequest, view: Callable[..., HttpResponse], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> HttpResponse | None:
        match = request.resolver_match
        return refuse_unknown_method(request) if match is not None and "api" in match.namespaces else None


class Denials(MiddlewareMixin):
    """Whoever is known and is refused by their rights, or by the second person, or for want of a proof of identity, leaves an entry.

    On a page what changes something counts, of the API everything. Strangers leave none, nor does what came from another site.
    """

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        match = request.resolver_match
        if response.status_code != 403 or match is None:
            return response
        is_from_elsewhere = getattr(request, "is_from_elsewhere", False)
        why, reason = ("elsewhere", "") if is_from_elsewhere else denial_of(response, is_json="api" in match.namespaces)
        count("settle_refusals_total", why)
        if is_from_elsewhere:
            return response
        caller, user, is_api = getattr(request, "auth", None), getattr(request, "user", None), "api" in match.namespaces
        if isinstance(caller, Caller):
            actor = journal.person(caller.user) if caller.user is not None else f"agent {caller.store}/{caller.agent}"
        elif user is not None and user.is_authenticated and request.method not in _SAFE:
            actor = journal.person(user)
        else:
            return response
        about = {name: match.kwargs[name] for name in ("store", "agent", "seq") if match.kwargs.get(name)}
        leave_denial(actor, _gesture(request, match, is_api=is_api), why=why, reason=reason, **about)
        return response


def _gesture(request: HttpRequest, match: ResolverMatch, *, is_api: bool) -> str:
    """What was tried, as denials.GESTURES names it: `decision approve`; through the API `POST actions decision approve`."""
    if not is_api:
        return str(match.url_name).replace("-", " ")
    parts = [part for part in match.route.removeprefix("api/v1/").split("/") if part and "<" not in part]
    return " ".join([str(request.method), *parts])


class DrawnProblems(MiddlewareMixin):
    """A store or our own database that does not answer and a filter that cannot be understood become pages of their own, or panels inside one."""

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        if isinstance(exception, StoreError):
            return errors.store_problem(request, exception)
        if isinstance(exception, InvalidQuery):
            return errors.bad_query(request, exception)
        if isinstance(exception, ConsoleDatabaseError):
            return errors.database_problem(request, exception)
        return None


def _is_unwritable(exc: BaseException | None) -> bool:
    """Whether an error, or one it was raised about, is the driver's: no connection, or a database that takes no writes."""
    while exc is not None:
        if isinstance(exc, OperationalError | InternalError) and exc.__cause__ is not None:
            return True
        exc = exc.__context__
    return False


def now_s() -> int:
    return int(time.time())


def _is_background(request: HttpRequest) -> bool:
    return BACKGROUND in request.headers
