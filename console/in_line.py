"""Pages wait in line: one change makes every browser ask at the same moment, and a process draws no page sooner by drawing all at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

AT_ONCE = 8
"""As many pages are drawn at once as there are connections to the console's database; a ninth would only wait for one, and be refused."""
PATIENCE_S = 10.0
"""A store that hangs must not keep those from their page who ask for nothing of it."""
_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]
_Application = Callable[[_Message, _Receive, _Send], Awaitable[None]]
_NEVER_WAIT = frozenset({"/events/", "/healthz", "/readyz"})


def in_line(application: _Application, *, at_once: int = AT_ONCE, patience_s: float = PATIENCE_S) -> _Application:
    """Let at most `at_once` GETs be worked at; the others wait, first come first served, without a thread or a connection; not longer than
    `patience_s`, then they go ahead.

    A place is given back when the answer begins: what is streamed after that keeps nobody waiting. What changes something never waits here,
    nor does a probe: a slow upload must not hold a place, and a process that is busy is not ill.
    """
    places = asyncio.Semaphore(at_once)

    async def wait_and_answer(scope: _Message, receive: _Receive, send: _Send) -> None:
        if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD") or scope["path"] in _NEVER_WAIT:
            await application(scope, receive, send)
            return
        try:
            async with asyncio.timeout(patience_s):
                await places.acquire()
        except TimeoutError:
            # Those in front hang on something: whoever still has to wait then hears from the pool, which says so.
            await application(scope, receive, send)
            return
        holds = True

        def give_back() -> None:
            nonlocal holds
            if holds:
                holds = False
                places.release()

        async def send_and_give_back(message: _Message) -> None:
            give_back()
            await send(message)

        try:
            await application(scope, receive, send_and_give_back)
        finally:
            give_back()

    return wait_and_answer
