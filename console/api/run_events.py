"""The events of one run as they happen: a stream that ends with the run, else after minutes."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any

from asgiref.sync import sync_to_async
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError, connection
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from ninja import Query, Router

from console import shapes
from console.api.answers import ERRORS
from console.api.callers import user_of
from console.api.parameters import RUN, RunId, know_query
from console.services.run_rows import LIVE, MAX_EVENTS, RUNS, is_undoing, list_events
from console.services.runs import get_run
from console.services.tokens import find_caller
from console.watch import CHANGED, ENDED, PING, watcher

PING_S = 15.0
LONGEST_S = 300.0
"""After so long a stream ends and is asked for anew, from the last event on."""
_STREAM = {
    "responses": {
        200: {
            "description": "each event with its number as id, its kind as event, and itself as data; `end` after the last of a run that is over",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        }
    }
}

log = logging.getLogger(__name__)

router = Router()


@router.get(f"{RUN}/events", response={200: str, **ERRORS}, openapi_extra=_STREAM, summary="A run's events as they happen")
def get_events(request: HttpRequest, run_id: RunId, after: Annotated[int, Query(ge=0, lt=2**31)] = 0) -> HttpResponse:
    """Server-sent events, those after number `after` (or `Last-Event-ID`) first. Ends with `end` once the run is over, else after minutes."""
    try:
        user = user_of(request)
        know_query(request, "after")
        run = get_run(run_id, by=user)
    finally:
        _give_back()
    last = request.headers.get("Last-Event-ID", "")
    began = max(after, int(last) if last.isascii() and last.isdigit() and len(last) < 10 else 0)
    token = request.headers["Authorization"].partition(" ")[2].strip()
    response = StreamingHttpResponse(_stream(run.run_id, token, began), content_type="text/event-stream")
    response["Cache-Control"] = "no-store"
    response["X-Accel-Buffering"] = "no"
    return response  # type: ignore[return-value]


async def _stream(run_id: str, token: str, after: int) -> AsyncIterator[bytes]:
    """What is new whenever something about runs moved. Each look is made in a thread, by whoever the token is at that moment."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + LONGEST_S
    changes = watcher.subscribe(may_see=RUNS.__eq__, ping_s=PING_S)
    coming: asyncio.Future[str] = asyncio.ensure_future(anext(changes))
    heard = CHANGED  # what is there already needs no news
    try:
        while True:
            if heard == PING:
                yield b"event: ping\ndata:\n\n"
            else:
                found = _Look()
                while found.has_more:
                    found = await sync_to_async(_look, thread_sensitive=False)(run_id, token, after)
                    for event in found.events:
                        after = event["number"]
                        yield f"id: {after}\nevent: {event['kind']}\ndata: {json.dumps(event)}\n\n".encode("ascii")
                if found.is_hidden:
                    return
                if found.is_over:
                    yield b"event: end\ndata:\n\n"
                    return
                if heard == ENDED:
                    return
            await asyncio.wait([coming], timeout=deadline - loop.time())
            if not coming.done():
                return
            heard = coming.result()
            coming = asyncio.ensure_future(anext(changes))
    finally:
        # A generator that is being waited for cannot be closed: first end the wait, whoever left.
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
        await changes.aclose()  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """What is new of a run; `is_hidden`: whoever asks may not see it any more, or nobody can now."""

    events: tuple[dict[str, Any], ...] = ()
    has_more: bool = True
    is_over: bool = False
    is_hidden: bool = False


def _look(run_id: str, token: str, after: int) -> _Look:
    """One bounded look."""
    try:
        caller = find_caller(token)
        if caller is None or caller.user is None:
            return _Look(is_hidden=True, has_more=False)
        run = get_run(run_id, by=caller.user)
        found = list_events(run, after=after)
        return _Look(
            events=tuple(shapes.run_event_json(event) for event in found),
            has_more=len(found) == MAX_EVENTS,
            is_over=run.status not in LIVE and not is_undoing(run),
        )
    except (Http404, PermissionDenied):
        return _Look(is_hidden=True, has_more=False)
    except DatabaseError as exc:
        log.warning("a stream of events ends: the console's database does not answer (%s)", type(exc).__name__)
        return _Look(is_hidden=True, has_more=False)  # whoever listens asks anew, from the last event on
    finally:
        _give_back()


def _give_back() -> None:
    """Its connection is others' while somebody listens: that takes minutes, and a process has few."""
    if not connection.in_atomic_block:
        connection.close()
