"""The event stream: only for people with a role, says "changed" and nothing else, ends when they go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.db import connections
from django.http import StreamingHttpResponse
from django.test import AsyncClient, Client

from console import watch
from console.views import events
from console.watch import watcher
from tests.console.conftest import MemoryWriter
from tests.console.coroutines import run_to_end
from tests.console.view_helpers import browser
from tests.recall_writer import RecordWriter

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _watcher_stops() -> Iterator[None]:
    yield
    watcher.stop()


async def listen(client: Client) -> StreamingHttpResponse:
    """The stream as this browser gets it."""
    listener = AsyncClient()
    listener.cookies = client.cookies
    response = await listener.get("/events/", headers={"Accept-Encoding": "br, gzip", "Sec-Fetch-Site": "same-origin"})
    assert isinstance(response, StreamingHttpResponse)
    return response


def lines(response: StreamingHttpResponse) -> AsyncIterator[bytes]:
    stream = response.streaming_content
    assert isinstance(stream, AsyncIterator)
    return stream


async def heard(stream: AsyncIterator[bytes]) -> bytes:
    return await asyncio.wait_for(anext(stream), 60)


def test_it_says_changed_at_once_and_when_something_changes(memory: RecordWriter, ana: User) -> None:
    async def run() -> None:
        response = await listen(browser_client)
        stream = lines(response)
        assert response["Content-Type"] == "text/event-stream"
        assert response["Cache-Control"] == "no-store"
        assert not response.has_header("Content-Encoding")
        assert await heard(stream) == b"event: changed\ndata:\n\n"
        memory.action("m-1", 1)
        assert await heard(stream) == b"event: changed\ndata:\n\n"
        await stream.aclose()  # type: ignore[attr-defined]

    browser_client = browser(ana)
    run_to_end(run())
    assert watcher.listeners == 0


def test_it_pings_while_nothing_happens(memory: RecordWriter, ana: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "PING_S", 0.05)

    async def run() -> None:
        stream = lines(await listen(client))
        while (line := await heard(stream)) == b"event: changed\ndata:\n\n":
            pass
        assert line == b"event: ping\ndata:\n\n"
        await stream.aclose()  # type: ignore[attr-defined]

    client = browser(ana)
    run_to_end(run())


def test_it_ends_when_the_person_goes_out(memory: RecordWriter, ana: User) -> None:
    async def run() -> list[bytes]:
        stream = lines(await listen(client))
        await heard(stream)
        await sync_to_async(client.post)("/logout/")
        return [line async for line in stream]

    client = browser(ana)

    assert run_to_end(asyncio.wait_for(run(), 60)) == []
    assert watcher.listeners == 0


def test_it_ends_by_itself_so_that_lost_rights_are_noticed(
    memory: RecordWriter, ana: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "FIRST_LOOK_S", 0.05)
    monkeypatch.setattr(events, "LONGEST_S", 2.0)  # longer than the first word may take

    async def run() -> list[bytes]:
        return [line async for line in lines(await listen(client))]

    client = browser(ana)

    assert set(run_to_end(asyncio.wait_for(run(), 60))) == {b"event: changed\ndata:\n\n"}


def test_it_hears_nothing_of_stores_that_are_not_the_persons(memory: MemoryWriter, ana: User) -> None:
    listener = events._Listener("key", frozenset({"other"}))

    async def run() -> bytes | None:
        stream = events._stream(listener)
        await heard(stream)
        memory.action("m-1", 1)
        try:
            return await asyncio.wait_for(anext(stream), 2.5)
        except TimeoutError:
            return None

    assert run_to_end(run()) is None


def status(client: Client, method: str = "GET") -> int:
    """What this browser is answered, without leaving a connection behind in the thread that answered."""

    async def run() -> int:
        listener = AsyncClient()
        listener.cookies = client.cookies
        response = await listener.generic(method, "/events/")
        await sync_to_async(connections.close_all)()
        return response.status_code

    return run_to_end(run())


def test_strangers_and_people_without_a_role_get_none(memory: RecordWriter, cyd: User) -> None:
    assert status(browser()) == 401
    assert status(browser(cyd)) == 403


def test_it_answers_get_only(memory: RecordWriter, ana: User) -> None:
    assert status(browser(ana), "POST") == 405
