"""Page or partial: the only place that knows htmx's headers."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseNotModified, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.cache import patch_vary_headers
from django_htmx.http import HttpResponseClientRedirect
from django_htmx.middleware import HtmxDetails

from actions.records import ActionRef

_CSRF_TOKEN = re.compile(rb'name="csrfmiddlewaretoken" value="[^"]*"')


class HtmxHttpRequest(HttpRequest):
    """A request as our middleware leaves it."""

    htmx: HtmxDetails


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
    return _unless_unchanged(request, response) if is_part and status == 200 else response


def _unless_unchanged(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    """304 instead of a piece that its page shows already: no cache is asked, settle.js keeps the tag beside the piece.

    Drawn all the same, after every look at rights: only its way to the browser and the swap there are spared. The CSRF token, which is masked
    anew in each answer, says nothing new.
    """
    digest = hashlib.sha256(_CSRF_TOKEN.sub(b"", response.content)).hexdigest()[:32]
    response["ETag"] = f'"{digest}"'
    if request.method != "GET" or request.headers.get("If-None-Match", "").removeprefix("W/") != response["ETag"]:
        return response
    unchanged = HttpResponseNotModified(headers={name: response[name] for name in ("ETag", "Vary", "Cache-Control")})
    unchanged.cookies = response.cookies
    return unchanged


def own_hosts(request: HttpRequest) -> tuple[str, str]:
    """The hosts in the addresses of this console: as it was asked now, and as its mails say it."""
    return request.get_host(), urlsplit(settings.BASE_URL).netloc


def beside_queue(request: HttpRequest, ref: ActionRef) -> str:
    """The queue's address with this action opened beside it; empty where the pane did not ask."""
    htmx: HtmxDetails | None = getattr(request, "htmx", None)
    if not htmx or htmx.target != "pane" or not htmx.current_url:
        return ""
    filters = QueryDict(urlsplit(htmx.current_url).query, mutable=True)
    filters["open"] = str(ref)
    return f"{reverse('queue')}?{filters.urlencode(safe='/,')}"


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
    seen = (htmx.current_url if htmx else None) or (request.headers.get("Referer", "") if request.method == "POST" else "")
    if seen and urlsplit(seen).netloc == request.get_host():
        parts = urlsplit(seen)
        return parts.path + (f"?{parts.query}" if parts.query else "")
    return request.get_full_path() if request.method in ("GET", "HEAD") and not htmx else reverse("queue")
