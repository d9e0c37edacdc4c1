"""Pages for what went wrong: what is known, and the next step. As a panel where htmx asked for a piece of a page."""

from __future__ import annotations

import logging
import sys

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.db import Error as ConsoleDatabaseError
from django.http import Http404, HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.views import defaults
from django_htmx.http import reswap

from actions.errors import InvalidQuery, StoreError
from console.context import HTMX_CONFIG
from console.htmx import render_part, to_login, wants_partial
from console.logs import route_of
from console.refusals import denied
from console.store_news import complain
from console.views.account import other_opener

log = logging.getLogger(__name__)


def not_found(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    detail = str(exception) if type(exception) is not Http404 or not exception.args or isinstance(exception.args[0], str) else ""
    detail = detail if isinstance(exception, Http404) and "tried" not in detail else ""
    return _problem(request, 404, "Not here", detail or "There is nothing at this address, or it is not yours to see.")


def bad_request(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """A form that is larger than anything meant is refused before it is read; everything else that is no request, as Django has it."""
    if not isinstance(exception, RequestDataTooBig):
        return defaults.bad_request(request, exception or Exception())
    most = f"{settings.DATA_UPLOAD_MAX_MEMORY_SIZE / 1_048_576:.1f} MB"
    detail = f"Nothing was read and nothing was done: a form may hold at most {most}, and this one is larger. "
    detail += (
        "What you typed is still in the form: shorten it."
        if wants_partial(request)
        else "Go back: your browser still has what you typed."
    )
    response = _problem(request, 413, "That is too large", detail)
    if wants_partial(request):
        # Above what stands there: nothing typed is taken away, and the next answer finds its place again.
        reswap(response, "afterbegin")
    return response


def forbidden(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    detail = str(exception or "") or "Your roles do not allow this."
    return denied(_problem(request, 403, "Not yours to do", detail), "forbidden", detail)


def known(request: HttpRequest, status: int, detail: str) -> HttpResponse:
    """What became of a gesture whose own panel cannot be drawn any more."""
    return _problem(request, status, "Your decision", detail)


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    request.is_from_elsewhere = True  # type: ignore[attr-defined]  # nobody knows whether this person meant it
    if not request.user.is_authenticated:
        return to_login(request, ended=True)
    if opener := other_opener(request):
        detail = f"You are signed in as {request.user.get_username()} now; this page was opened by {opener}. Nothing was written. Reload the page."
        return _problem(request, 403, "Somebody else is signed in now", detail)
    detail = "Nothing was written. Reload the page and send it again; with JavaScript, what you typed about an action is kept in this tab."
    return _problem(request, 403, "Not sent from one of our pages", detail, reason=reason)


def server_error(request: HttpRequest) -> HttpResponse:
    """Whatever nobody foresaw, also in a middleware. Drawn without asking who looks, which may be just what broke."""
    if isinstance(sys.exc_info()[1], ConsoleDatabaseError):
        return database_problem(request, sys.exc_info()[1])
    detail = "It is not known whether what you sent was written. Reload to see; sending the same decision again is harmless."
    return _drawn_alone(request, 500, "Something broke here", detail)


def database_problem(request: HttpRequest, exception: BaseException | None) -> HttpResponse:
    """The console's own database does not answer or is read-only. The page asks it for nothing, not even for who looks at it."""
    log.error("the console's database at %s %s: %s", request.method, route_of(request), type(exception).__name__)
    detail = "It does not answer, or it can only be read just now (a failover, maintenance). "
    if request.method in ("GET", "HEAD"):
        detail += "What agents recorded is safe in their stores; reload in a moment."
    else:
        detail += "It is not known whether what you sent was written: reload to see. Sending the same decision again is harmless."
    response = _drawn_alone(request, 503, "The console's own database cannot be used", detail)
    response["Retry-After"] = "5"
    return response


def bad_query(request: HttpRequest, exception: InvalidQuery) -> HttpResponse:
    return _problem(request, 400, "This filter cannot be understood", str(exception))


def store_problem(request: HttpRequest, exception: StoreError) -> HttpResponse:
    may_be_written = getattr(exception, "may_be_written", False)
    known = "It is not known whether it was written: reload to see." if may_be_written else "Nothing was written."
    problem = complain(request.user, exception.store, exception.problem).rstrip(".")
    said = known if request.method == "POST" else "What it holds is not known now."
    detail = f"S{problem[1:]}{'' if problem.endswith('?') else '.'} {said}"
    return _problem(request, 503, "A store does not answer", detail)


def _problem(request: HttpRequest, status: int, title: str, detail: str, *, reason: str = "") -> HttpResponse:
    context = {"title": title, "detail": detail, "reason": reason, "status": status}
    return render_part(request, "errors/problem.html", "errors/_problem.html", context, status=status)


def _drawn_alone(request: HttpRequest, status: int, title: str, detail: str) -> HttpResponse:
    """A problem as page or panel that needs no session, no user and no query."""
    template = "errors/_problem.html" if wants_partial(request) else "errors/problem.html"
    context = {"title": title, "detail": detail, "status": status, "htmx_config": HTMX_CONFIG}
    response = HttpResponse(render_to_string(template, context), status=status)
    response["Cache-Control"] = "no-store"
    return response
