"""Pages wait in line: how many are worked at, who never waits, and when a place is free again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from console.in_line import in_line

Send = Callable[[Any], Awaitable[None]]


class Inner:
    """An application that holds every request until it is let go, and remembers who came to it."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.breaks = False

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        name = scope["path"]
        self.begun.append(name)
        if self.breaks:
            raise RuntimeError("broken")
        await self.gate(name).wait()
        await send({"type": "http.response.start"})
        await self.gate(f"{name} body").wait()
        await send({"type": "http.response.body"})

    def gate(self, name: str) -> asyncio.Event:
        return self.gates.setdefault(name, asyncio.Event())


def scope(path: str, method: str = "GET", kind: str = "http") -> dict[str, Any]:
    return {"type": kind, "method": method, "path": path}


async def nothing(_: Any = None) -> None:
    return None


async def settled() -> None:
    """Whoever can go on has gone on."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_third_page_waits_for_one_of_two_and_comes_in_its_turn() -> None:
    async def story() -> list[str]:
        inner = Inner()
        application = in_line(inner, at_once=2)
        tasks = [asyncio.ensure_future(application(scope(f"/{n}/"), nothing, nothing)) for n in range(4)]
        await settled()
        assert inner.begun == ["/0/", "/1/"]
        inner.gate("/1/").set()  # its answer begins; its body is still being read
        await settled()
        begun = list(inner.begun)
        for n in range(4):
            inner.gate(f"/{n}/").set()
            inner.gate(f"/{n}/ body").set()
        await asyncio.gather(*tasks)
        assert inner.begun == ["/0/", "/1/", "/2/", "/3/"]
        return begun

    assert asyncio.run(story()) == ["/0/", "/1/", "/2/"]


@pytest.mark.parametrize(
    "other",
    [scope("/a/", "POST"), scope("/a/", "DELETE"), scope("/events/"), scope("/healthz"), scope("/a/", kind="lifespan")],
    ids=lambda one: f"{one['type']} {one['method']} {one['path']}",
)
def test_what_changes_something_and_streams_and_probes_never_wait(other: dict[str, Any]) -> None:
    async def story() -> list[str]:
        inner = Inner()
        application = in_line(inner, at_once=1)
        tasks = [asyncio.ensure_future(application(one, nothing, nothing)) for one in (scope("/page/"), other)]
        await settled()
        begun = list(inner.begun)
        for gate in ("/page/", other["path"]):
            inner.gate(gate).set()
            inner.gate(f"{gate} body").set()
        await asyncio.gather(*tasks)
        return begun

    assert asyncio.run(story()) == ["/page/", other["path"]]


def test_a_page_that_breaks_or_is_given_up_gives_its_place_back() -> None:
    async def story() -> list[str]:
        inner = Inner()
        application = in_line(inner, at_once=1)
        inner.breaks = True
        with pytest.raises(RuntimeError, match="broken"):
            await application(scope("/breaks/"), nothing, nothing)
        inner.breaks = False
        given_up = asyncio.ensure_future(application(scope("/given-up/"), nothing, nothing))
        waits = asyncio.ensure_future(application(scope("/waits/"), nothing, nothing))
        await settled()
        waits.cancel()  # before its turn came: it holds no place that it could give back
        given_up.cancel()
        await asyncio.gather(given_up, waits, return_exceptions=True)
        inner.gate("/next/").set()
        inner.gate("/next/ body").set()
        for _ in range(2):
            await application(scope("/next/"), nothing, nothing)
        return inner.begun

    assert asyncio.run(story()) == ["/breaks/", "/given-up/", "/next/", "/next/"]


def test_who_waits_too_long_behind_pages_that_hang_goes_ahead() -> None:
    async def story() -> list[str]:
        inner = Inner()
        application = in_line(inner, at_once=1, patience_s=0)
        tasks = [asyncio.ensure_future(application(scope(f"/{n}/"), nothing, nothing)) for n in range(2)]
        while len(inner.begun) < 2:
            await asyncio.sleep(0)
        begun = list(inner.begun)
        for n in range(2):
            inner.gate(f"/{n}/").set()
            inner.gate(f"/{n}/ body").set()
        await asyncio.gather(*tasks)
        return begun

    assert asyncio.run(story()) == ["/0/", "/1/"]
