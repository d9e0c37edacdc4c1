"""Page or partial: the only place that knows htmx's headers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, urlencode, urlsplit

from django.conf import settings
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.cache import patch_vary_headers
from django_htmx.http import HttpResponseClientRedirect
from django_htmx.middleware import HtmxDetails

from actions.records import ActionRef


def wants_partial(request: HttpRequest) -> bool:
    """htmx asks for a piece of a page; neither a boosted link nor Back, which need the whole one."""
    htmx: HtmxDetails | None = getattr(request, "htmx", None)
    return htmx is not None and bool(htmx) and not htmx.boosted and not htmx.history_restore_request


def render_part(
    request: HttpRequest, page: str, part: str, context: Mapping[str, Any] | None = None, *, status: int = 200
) -> HttpResponse:
    """The partial for htmx, the page that includes it for everybody else; both from the same context.

    `is_part` in it says which, for what a partial swaps beside itself.
    """
    is_part = wants_partial(request)
    response = render(request, part if is_part else page, {**(context or {}), "is_part": is_part}, status=status)
    patch_vary_headers(response, ["HX-Request"])
    # Personal data stays out of every cache, the browser's own for Back included: Back asks again and shows what is true now.
    response["Cache-Control"] = "no-store"
    return response


def own_hosts(request: HttpRequest) -> tuple[str, str]:
    """The hosts in the addresses of this console: as it was asked now, and as its mails say it."""
    return request.get_host(), urlsplit(settings.BASE_URL).netloc


def beside_queue(request: HttpRequest, ref: ActionRef) -> str:
    """The queue's address with this action opened beside it; empty where the pane did not ask."""
    htmx: HtmxDetails | None = getattr(request, "htmx", None)
    page = _page_of(request)
    if not htmx or htmx.target != "pane" or page is None:
        return ""
    filters = QueryDict(page.query, mutable=True)
    filters["open"] = str(ref)
    return f"{reverse('queue')}?{filters.urlencode(safe='/,')}"


FROM_QUEUE = "queue"
"""In the address of an action's page and in its forms: the filter of the queue that led there."""
_MAX_QUEUE = 2_000
_OF_THE_LIST = ("open", "cursor", "select")


def queue_query(request: HttpRequest) -> str:
    """The filter of the queue that this person came from, as it stands in an address; whoever uses it checks it. Empty: none is known.

    A form says it; else the page does that the request comes from, which is the queue itself or names it.
    """
    if said := request.POST.get(FROM_QUEUE, ""):
        return said[:_MAX_QUEUE]
    path, given = request.path, request.GET.copy()
    if getattr(request, "htmx", None) or request.method == "POST":
        page = _page_of(request)
        path, given = (page.path, QueryDict(page.query, mutable=True)) if page else ("", QueryDict(mutable=True))
    if path != reverse("queue"):
        return given.get(FROM_QUEUE, "")[:_MAX_QUEUE]
    for name in _OF_THE_LIST:
        given.pop(name, None)
    return given.urlencode(safe=",")[:_MAX_QUEUE]


def to_login(request: HttpRequest, *, ended: bool = False) -> HttpResponse:
    """Send the whole page to the login, whoever asked: a login form never lands inside a panel.

    `ended`: there was a session. Then the login says so, and that a POST wrote nothing.
    """
    query = {"next": _back_to(request)} | ({"ended": "post" if request.method == "POST" else "get"} if ended else {})
    return go_to(request, f"{reverse('login')}?{urlencode(query)}")


def go_to(request: HttpRequest, url: str) -> HttpResponse:
    """A redirect of the whole page, also where htmx asked for a piece of it."""
    response = HttpResponseClientRedirect(url) if getattr(request, "htmx", None) else redirect(url)
    patch_vary_headers(response, ["HX-Request"])
    return response


def _back_to(request: HttpRequest) -> str:
    """The page to come back to: the one the person looks at, never a piece of it and never the address of a POST."""
    htmx: HtmxDetails | None = getattr(request, "htmx", None)
    if page := _page_of(request):
        return page.path + (f"?{page.query}" if page.query else "")
    return request.get_full_path() if request.method in ("GET", "HEAD") and not htmx else reverse("queue")


def _page_of(request: HttpRequest) -> SplitResult | None:
    """The page of ours that the person looks at while this is asked, as htmx says, or for a POST the browser; None where neither does."""
    htmx: HtmxDetails | None = getattr(request, "htmx", None)
    seen = (htmx.current_url if htmx else None) or (request.headers.get("Referer", "") if request.method == "POST" else "")
    try:
        page = urlsplit(seen)
    except ValueError:
        return None
    return page if page.netloc == request.get_host() else None
