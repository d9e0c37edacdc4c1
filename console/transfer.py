"""How answers travel: smaller where that tells nobody anything, and not at all where the page shows them already."""

from __future__ import annotations

import gzip
import re

import brotli
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.cache import patch_vary_headers
from django.utils.deprecation import MiddlewareMixin

from actions.digests import sha256_text
from console.htmx import wants_partial

SMALLEST = 1_000
"""What is shorter fits into a packet or two anyway."""
_TYPES = ("text/html", "application/json", "text/plain")
_CSRF = re.compile(r'(name="csrfmiddlewaretoken" value=)"[A-Za-z0-9]+"')
_WEIGHT = re.compile(r"q=0(\.0*)?$")
_OURS = frozenset({"same-origin", "none"})


class Compressed(MiddlewareMixin):
    """Brotli or gzip, for pages, pieces of pages and the API. Never a stream: events have to arrive, and exports are never whole here.

    BREACH reads a secret out of how long compressed answers are, when another site makes somebody's browser ask again and again with guesses
    that the page repeats (our filters do). So what another site asked for is never compressed: browsers say who asks in `Sec-Fetch-Site`, and
    of a browser that does not say, whoever has a session gets nothing compressed. A program with a token asks for nothing on a stranger's
    behalf. Besides, the only secret in a page, the CSRF token, is masked anew in each by Django, and the session's cookie is SameSite.
    """

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        if (
            not isinstance(response, HttpResponse)
            or response.streaming
            or not _is_text(response)
            or len(response.content) < SMALLEST
        ):
            return response
        patch_vary_headers(response, ["Accept-Encoding", "Sec-Fetch-Site"])
        way = _way(request)
        if not way or response.has_header("Content-Encoding") or _may_be_a_guess(request):
            return response
        body = brotli.compress(response.content, quality=4) if way == "br" else gzip.compress(response.content, 5, mtime=0)
        response.content = body
        response["Content-Encoding"] = way
        response["Content-Length"] = str(len(body))
        return response


class Unchanged(MiddlewareMixin):
    """A piece of a page that is, but for the mask of its CSRF token, what its asker has: 304, and nothing is drawn anew.

    The validator is made of the finished piece, because a piece tells times and what this person may see: it saves bytes and drawing in the
    browser, not the work here. Access was checked before, as ever. Only settle.js asks so, of parts that refresh by themselves; nothing is
    kept in any cache.
    """

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        if request.method != "GET" or not isinstance(response, HttpResponse) or response.status_code != 200:
            return response
        if not wants_partial(request) or any(name.lower().startswith("hx-") for name, _ in response.items()):
            return response
        validator = _validator(request, response)
        response["ETag"] = validator
        if request.headers.get("If-None-Match") == validator:
            response.status_code = 304
            response.content = b""
            del response["Content-Type"], response["Content-Length"]
        return response


def _validator(request: HttpRequest, response: HttpResponse) -> str:
    """Weak: the mask differs. A new secret behind it is another piece: the old form would be refused."""
    text = _CSRF.sub(r"\1", response.content.decode("utf-8", "replace"))
    said = sha256_text(f"{request.META.get('CSRF_COOKIE', '')} {text}")
    return f'W/"{said[:32]}"'


def _is_text(response: HttpResponse) -> bool:
    return response.get("Content-Type", "").partition(";")[0].strip() in _TYPES


def _way(request: HttpRequest) -> str:
    """The better of the two that the asker takes; empty where it takes neither."""
    taken = set()
    for one in request.headers.get("Accept-Encoding", "").lower().split(","):
        name, _, weight = one.partition(";")
        if not _WEIGHT.match(weight.strip()):
            taken.add(name.strip())
    return "br" if "br" in taken else "gzip" if "gzip" in taken else ""


def _may_be_a_guess(request: HttpRequest) -> bool:
    site = request.headers.get("Sec-Fetch-Site")
    return site not in _OURS if site is not None else settings.SESSION_COOKIE_NAME in request.COOKIES
