"""Server-sent events: "changed", nothing more. Whoever hears it fetches a fragment, and there access is checked."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.contrib.auth.signals import user_logged_out
from django.db import connection
from django.dispatch import receiver
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseNotAllowed, StreamingHttpResponse

from console.access import has_any_role, visible_stores
from console.services.run_rows import RUNS
from console.watch import CHANGED, ENDED, watcher

PING_S = 15.0
LONGEST_S = 300.0
"""After so long the stream ends and the browser asks again: a lost role or an ended session is noticed then at the latest."""


class _Listener(NamedTuple):
    session_key: str
    stores: frozenset[str]


class _End(NamedTuple):
    """Ends one stream from any thread."""

    loop: asyncio.AbstractEventLoop
    event: asyncio.Event


_open: defaultdict[str, set[_End]] = defaultdict(set)


async def events(request: HttpRequest) -> HttpResponseBase:
    """The stream of one browser tab; it closes it while it is hidden."""
    if request.method != "GET":
        return HttpResponseNotAllowed(["GET"])
    listener = await sync_to_async(_listener)(request)
    if listener is None:
        return HttpResponse(status=401)
    if not listener.stores:
        return HttpResponse(status=403)
    response = StreamingHttpResponse(_stream(listener), content_type="text/event-stream")
    response["Cache-Control"] = "no-store"
    response["X-Accel-Buffering"] = "no"
    return response


def _listener(request: HttpRequest) -> _Listener | None:
    """The one look into the database; its connection goes back at once, because the stream lives for minutes."""
    try:
        user = request.user
        if not isinstance(user, User):
            return None
        names = frozenset(store.name for store in visible_stores(user)) if has_any_role(user) else frozenset[str]()
        # Each step of each run is news for whoever looks at runs, and for nobody else.
        about = frozenset({RUNS}) if names and request.GET.get("runs") else frozenset[str]()
        return _Listener(request.session.session_key or "", names | about)
    finally:
        connection.close()


async def _stream(listener: _Listener) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    end = _End(loop, asyncio.Event())
    _open[listener.session_key].add(end)
    changes = watcher.subscribe(may_see=listener.stores.__contains__, ping_s=PING_S)
    ended: asyncio.Future[bool] = asyncio.ensure_future(end.event.wait())
    coming: asyncio.Future[str] = asyncio.ensure_future(anext(changes))
    deadline = loop.time() + LONGEST_S
    try:
        while True:
            either: list[asyncio.Future[Any]] = [coming, ended]
            await asyncio.wait(either, timeout=deadline - loop.time(), return_when=asyncio.FIRST_COMPLETED)
            if not coming.done() or ended.done():
                return
            heard = coming.result()
            if heard == ENDED:
                return
            coming = asyncio.ensure_future(anext(changes))
            yield b"event: changed\ndata:\n\n" if heard == CHANGED else b"event: ping\ndata:\n\n"
    finally:
        # A generator that is being waited for cannot be closed: first end the wait, whoever left.
        ended.cancel()
        coming.cancel()
        await asyncio.gather(ended, coming, return_exceptions=True)
        _open[listener.session_key].discard(end)
        if not _open[listener.session_key]:
            del _open[listener.session_key]
        await changes.aclose()  # type: ignore[attr-defined]


@receiver(user_logged_out)
def end_streams(request: HttpRequest, **_: object) -> None:
    """Whoever goes out hears nothing more, in whatever tab."""
    for end in tuple(_open.get(request.session.session_key or "", ())):
        end.loop.call_soon_threadsafe(end.event.set)
