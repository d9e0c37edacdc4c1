"""Pages for what went wrong: what is known, and the next step. As a panel where htmx asked for a piece of a page."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse

from actions.errors import InvalidQuery, StoreError
from console.htmx import render_part, to_login, wants_partial


def not_found(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    detail = str(exception) if type(exception) is not Http404 or not exception.args or isinstance(exception.args[0], str) else ""
    detail = detail if isinstance(exception, Http404) and "tried" not in detail else ""
    return _problem(request, 404, "Not here", detail or "There is nothing at this address, or it is not yours to see.")


def forbidden(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return _problem(request, 403, "Not yours to do", str(exception or "") or "Your roles do not allow this.")


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    if wants_partial(request) and not request.user.is_authenticated:
        return to_login(request, ended=True)
    detail = "Nothing was written. Reload the page and send it again; with JavaScript, what you typed is kept in this tab."
    return _problem(request, 403, "Not sent from one of our pages", detail, reason=reason)


def server_error(request: HttpRequest) -> HttpResponse:
    return _problem(
        request,
        500,
        "Something broke here",
        "It is not known whether what you sent was written. Reload to see; sending the same decision again is harmless.",
    )


def bad_query(request: HttpRequest, exception: InvalidQuery) -> HttpResponse:
    return _problem(request, 400, "This filter cannot be understood", str(exception))


def store_problem(request: HttpRequest, exception: StoreError) -> HttpResponse:
    may_be_written = getattr(exception, "may_be_written", False)
    known = "It is not known whether it was written: reload to see." if may_be_written else "Nothing was written."
    problem = exception.problem.rstrip(".")
    said = known if request.method == "POST" else "What it holds is not known now."
    detail = f"Store {exception.store}: {problem}{'' if problem.endswith('?') else '.'} {said}"
    return _problem(request, 503, "A store does not answer", detail)


def _problem(request: HttpRequest, status: int, title: str, detail: str, *, reason: str = "") -> HttpResponse:
    context = {"title": title, "detail": detail, "reason": reason, "status": status}
    return render_part(request, "errors/problem.html", "errors/_problem.html", context, status=status)
