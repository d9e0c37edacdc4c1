"""How a request comes through the console under an ASGI server: in one thread of its own, from the first of the middleware to the last."""

from __future__ import annotations

import asyncio
import inspect
import threading
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.utils.deprecation import MiddlewareMixin
from pytest_django import Settings

from console.asgi import Handler
from tests.console.coroutines import run_to_end

SEEN: list[tuple[str, int, int]] = []
"""Which way, in which thread, and how many of us have called each other to come there."""


class Noting(MiddlewareMixin):
    """Can be asynchronous, as most of Django's own can."""

    def process_request(self, request: HttpRequest) -> None:
        SEEN.append(("in", threading.get_ident(), _callers()))

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        SEEN.append(("out", threading.get_ident(), _callers()))
        return response


def _callers() -> int:
    frame, found = inspect.currentframe(), set[int]()
    while frame is not None:
        if isinstance(one := frame.f_locals.get("self"), Noting):
            found.add(id(one))
        frame = frame.f_back
    return len(found)


@pytest.mark.parametrize("path", ["/healthz", "/events/"])
def test_a_request_goes_into_one_thread_and_comes_back_once(path: str, settings: Settings) -> None:
    noting = f"{__name__}.Noting"
    others = ["django.contrib.sessions.middleware.SessionMiddleware", "django.contrib.auth.middleware.AuthenticationMiddleware"]
    settings.MIDDLEWARE = [noting, *others, noting]
    SEEN.clear()
    said: list[dict[str, Any]] = []
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "path": path,
        "query_string": b"",
        "headers": [],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    asked = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def story() -> int:
        async def receive() -> Any:
            if (message := next(asked, None)) is not None:
                return message
            return await forever.wait()

        async def send(message: Any) -> None:
            said.append(message)

        forever = asyncio.Event()
        await Handler()(scope, receive, send)
        return threading.get_ident()

    loop = run_to_end(story())

    assert said[0]["status"] == {"/healthz": 200, "/events/": 401}[path]  # the second is an asynchronous view
    assert [(way, callers) for way, _, callers in SEEN] == [("in", 1), ("in", 2), ("out", 2), ("out", 1)]
    assert len({thread for _, thread, _ in SEEN}) == 1
    assert loop not in {thread for _, thread, _ in SEEN}
