"""Live updates: browsers are told when their screen may have changed, and only then."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.db import OperationalError, connection

from actions.errors import StoreUnavailable
from actions.store.memory import MemoryStore
from console import watch
from console.models import Observation, SeenEnd
from console.services.decide import DecisionRequest, decide
from console.services.deliver import deliver
from console.services.people import give_role
from console.stores import get_store
from console.watch import CHANGED, ENDED, PING, Watcher
from local.processes import wait_until
from tests.console.conftest import MemoryWriter
from tests.console.coroutines import run_to_end
from tests.recall_writer import RecordWriter

pytestmark = pytest.mark.django_db(transaction=True)

SOON = 60.0
QUIET = 0.6


@pytest.fixture
def watcher() -> Iterator[Watcher]:
    made = Watcher(pause_s=0.05)
    yield made
    made.stop()


class Ear:
    """One subscriber."""

    def __init__(self, events: AsyncIterator[str]) -> None:
        self._events = events
        self._next: asyncio.Future[str] | None = None

    async def hears(self, seconds: float = SOON) -> str | None:
        """The next event; None where nothing comes in time."""
        if self._next is None:
            self._next = asyncio.ensure_future(anext(self._events))  # type: ignore[arg-type]
        done, _ = await asyncio.wait({self._next}, timeout=seconds)
        if not done:
            return None
        heard, self._next = self._next.result(), None
        return heard

    async def settles(self) -> None:
        """Wait for silence: what came before is behind us."""
        while await self.hears(QUIET) is not None:
            pass

    async def leave(self) -> None:
        if self._next is not None:
            self._next.cancel()
            with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration):
                await self._next
        await self._events.aclose()  # type: ignore[attr-defined]


async def in_thread(call: Callable[..., Any], *args: Any) -> Any:
    """A call that uses Django's database, whose connection is given back."""

    def run() -> Any:
        try:
            return call(*args)
        finally:
            connection.close()

    return await sync_to_async(run)()


def listen(watcher: Watcher, check: Callable[[Ear], Awaitable[None]], **how: Any) -> None:
    async def run() -> None:
        ear = Ear(watcher.subscribe(**how))
        try:
            assert await ear.hears() == CHANGED  # at once
            await ear.settles()
            await check(ear)
        finally:
            await ear.leave()

    run_to_end(run())


def test_a_new_action_is_heard_of(records: RecordWriter, watcher: Watcher) -> None:
    async def check(ear: Ear) -> None:
        await sync_to_async(records.action)("billing-7", 1)
        assert await ear.hears() == CHANGED
        assert await ear.hears(QUIET) is None

    listen(watcher, check)


def test_an_action_that_ends_is_heard_of(records: RecordWriter, watcher: Watcher) -> None:
    records.action("billing-7", 1)

    async def check(ear: Ear) -> None:
        await sync_to_async(records.action)("billing-7", 1, status="done")
        assert await ear.hears() == CHANGED

    listen(watcher, check)


def test_a_busy_agent_is_not(records: RecordWriter, watcher: Watcher) -> None:
    """Its turns move the revision and its renewals the expiry; the queue shows neither."""
    records.lease("billing-7", "pod-a:1:aaaa", 1, "live")
    records.action("billing-7", 1)

    async def check(ear: Ear) -> None:
        for number in range(1, 5):
            await sync_to_async(records.turn)("billing-7", number)
            await sync_to_async(records.lease)("billing-7", "pod-a:1:aaaa", number + 1, "live")
            assert await ear.hears(QUIET / 3) is None

    listen(watcher, check)


def test_a_lease_that_expires_is_heard_of_though_nothing_was_written(memory: MemoryWriter, watcher: Watcher) -> None:
    memory.lease("billing-7", state="live")
    memory.action("billing-7", 1)
    shift = 0
    clock = memory.kept.clock
    memory.kept.clock = lambda: clock() + shift

    async def check(ear: Ear) -> None:
        nonlocal shift
        shift = 3_600 * 10**9
        assert await ear.hears() == CHANGED
        assert await ear.hears(QUIET) is None

    listen(watcher, check)


def test_a_takeover_is_heard_of(records: RecordWriter, watcher: Watcher) -> None:
    records.lease("billing-7", "pod-a:1:aaaa", 1, "expired")
    records.action("billing-7", 1, cls="idempotent")

    async def check(ear: Ear) -> None:
        await sync_to_async(records.lease)("billing-7", "pod-b:1:bbbb", 2, "live")
        assert await ear.hears() == CHANGED

    listen(watcher, check)


def test_decisions_and_notes_are_heard_of_but_waiting_on_is_not(records: RecordWriter, watcher: Watcher, ana: User) -> None:
    records.lease("billing-7", state="live")
    ref = records.action("billing-7", 1)

    def say(outcome: str) -> Any:
        return decide(ref, DecisionRequest(outcome=outcome, reason="x", decision_id=f"test-{uuid4()}"), by=ana)

    async def check(ear: Ear) -> None:
        await in_thread(say, "later")
        assert await ear.hears() == CHANGED
        await ear.settles()
        answer = await in_thread(say, "done")
        assert await ear.hears() == CHANGED
        await ear.settles()
        await in_thread(deliver, answer.decision.pk)
        assert await ear.hears(QUIET) is None

    listen(watcher, check)


def test_a_change_of_roles_ends_every_stream_and_is_no_news_of_any_store(
    memory: RecordWriter, watcher: Watcher, ana: User
) -> None:
    async def check(ear: Ear) -> None:
        await ear.settles()
        await in_thread(lambda: give_role(ana, "viewer", by=None))
        assert await ear.hears() == ENDED
        assert await ear.hears(QUIET) is None

    listen(watcher, check, may_see=lambda store: False)


def test_only_those_who_may_see_a_store_hear_of_it(records: RecordWriter, other_store: MemoryWriter, watcher: Watcher) -> None:
    async def check(ear: Ear) -> None:
        other_store.action("billing-7", 1)
        assert await ear.hears(QUIET) is None
        await sync_to_async(records.action)("billing-7", 1)
        assert await ear.hears() == CHANGED

    listen(watcher, check, may_see=lambda store: store == "main")


def test_a_store_that_goes_down_and_comes_back_is_heard_of_twice(
    memory: RecordWriter, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = get_store("main")
    assert isinstance(store, MemoryStore)
    read_watch, is_down = store.read_watch, threading.Event()

    def sometimes() -> Any:
        if is_down.is_set():
            raise StoreUnavailable("main", "connection refused")
        return read_watch()

    monkeypatch.setattr(store, "read_watch", sometimes)

    async def check(ear: Ear) -> None:
        is_down.set()
        assert await ear.hears() == CHANGED
        assert await ear.hears(QUIET) is None
        is_down.clear()
        assert await ear.hears() == CHANGED

    listen(watcher, check)


def test_one_bug_does_not_end_the_updates(memory: RecordWriter, watcher: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    store = get_store("main")
    assert isinstance(store, MemoryStore)
    read_watch, calls = store.read_watch, iter(range(1000))

    def buggy() -> Any:
        if next(calls) == 2:
            raise RuntimeError("a bug")
        return read_watch()

    monkeypatch.setattr(store, "read_watch", buggy)

    async def check(ear: Ear) -> None:
        memory.action("billing-7", 1)
        assert await ear.hears() == CHANGED

    listen(watcher, check)


def test_changes_nobody_has_looked_at_are_one_change(
    memory: RecordWriter, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = count_looks(monkeypatch)

    async def check(ear: Ear) -> None:
        for number in range(1, 9):
            memory.action("billing-7", number)
            seen = len(looks) + 2  # the one that may be under way, and a whole one
            await in_thread(lambda seen=seen: wait_until(lambda: len(looks) >= seen, what="two looks"))
        assert await ear.hears() == CHANGED  # the one that was being waited for
        assert await ear.hears() == CHANGED  # all the others
        assert await ear.hears(QUIET) is None

    listen(watcher, check)


def count_looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A number for each time at which the store was looked at."""
    looks: list[int] = []
    store = get_store("main")
    assert isinstance(store, MemoryStore)
    read_watch = store.read_watch
    monkeypatch.setattr(store, "read_watch", lambda: (looks.append(1), read_watch())[1])
    return looks


# --- the first word ----------------------------------------------------------------------------------------------------


@pytest.fixture
def may_look(memory: RecordWriter, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The store answers whoever watches once this is set."""
    allowed = threading.Event()
    store = get_store("main")
    assert isinstance(store, MemoryStore)
    read_watch = store.read_watch
    monkeypatch.setattr(store, "read_watch", lambda: (allowed.wait(60), read_watch())[1])
    yield allowed
    allowed.set()


def test_the_first_word_comes_once_everything_was_looked_at(
    memory: RecordWriter, watcher: Watcher, may_look: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever fetches then sees what later changes are told from."""
    monkeypatch.setattr(watch, "FIRST_LOOK_S", 60)

    async def run() -> None:
        ear = Ear(watcher.subscribe())
        assert await ear.hears(QUIET) is None
        may_look.set()
        assert await ear.hears() == CHANGED
        memory.action("billing-7", 1)
        assert await ear.hears() == CHANGED
        await ear.leave()

    run_to_end(run())


def test_what_happens_before_a_slow_store_was_first_looked_at_is_heard_of(
    memory: RecordWriter, watcher: Watcher, may_look: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "FIRST_LOOK_S", 0.05)

    async def run() -> None:
        ear = Ear(watcher.subscribe())
        assert await ear.hears() == CHANGED  # nobody waits for it for long
        memory.action("billing-7", 1)
        may_look.set()
        assert await ear.hears() == CHANGED
        await ear.leave()

    run_to_end(run())


def test_a_stop_waits_for_those_too_whose_last_listener_has_left(
    memory: RecordWriter, watcher: Watcher, may_look: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "FIRST_LOOK_S", 0.05)
    before = set(threading.enumerate())

    async def run() -> None:
        ear = Ear(watcher.subscribe())
        assert await ear.hears() == CHANGED
        await ear.leave()

    run_to_end(run())
    stopping = threading.Thread(target=watcher.stop)
    stopping.start()
    stopping.join(QUIET)
    assert stopping.is_alive()
    may_look.set()
    stopping.join(60)

    assert not stopping.is_alive()
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name == "watcher"]


def test_silence_is_broken_by_pings(memory: RecordWriter, watcher: Watcher) -> None:
    async def run() -> list[str]:
        heard = []
        async for event in watcher.subscribe(ping_s=0.05):
            heard.append(event)
            if heard[-3:] == [PING] * 3:
                break
        return heard

    assert run_to_end(run())[0] == CHANGED


def test_nobody_is_asked_while_nobody_listens(memory: RecordWriter, watcher: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = count_looks(monkeypatch)

    async def check(ear: Ear) -> None:
        assert watcher.listeners == 1
        await in_thread(lambda: wait_until(lambda: len(asked) > 1, what="another look"))

    listen(watcher, check)
    assert watcher.listeners == 0
    watcher.stop()
    count = len(asked)
    threading.Event().wait(0.3)
    assert len(asked) == count


def test_many_tabs_cost_one_watcher(memory: RecordWriter, watcher: Watcher) -> None:
    before = set(threading.enumerate())

    async def run() -> None:
        ears = [Ear(watcher.subscribe()) for _ in range(50)]
        for ear in ears:
            assert await ear.hears() == CHANGED
        watching = [thread for thread in set(threading.enumerate()) - before if thread.name == "watcher"]
        assert len(watching) == 2  # one store, and the console itself
        await asyncio.sleep(QUIET)
        memory.action("billing-7", 1)
        for ear in ears:
            assert await ear.hears() == CHANGED
            await ear.leave()

    run_to_end(run())


def test_who_holds_an_agent_and_ends_that_are_not_ours_are_written_down(records: RecordWriter, watcher: Watcher) -> None:
    records.lease("billing-7", "pod-a:1:aaaa", 1, "live")
    records.action("billing-7", 1)
    records.action("billing-7", 2)

    def is_seen() -> bool:
        return Observation.objects.filter(holder="pod-b:1:bbbb").exists() and SeenEnd.objects.filter(entry_number=1).exists()

    async def check(ear: Ear) -> None:
        await sync_to_async(records.action)("billing-7", 1, status="failed", written_epoch=2)
        await sync_to_async(records.lease)("billing-7", "pod-b:1:bbbb", 3, "live")
        await in_thread(lambda: wait_until(is_seen, what="observation and end"))

    listen(watcher, check)

    assert list(SeenEnd.objects.values_list("agent", "seq", "status", "written_epoch")) == [("billing-7", 1, "failed", 2)]
    (entry,) = get_store("main").list_entries(limit=5)
    assert (entry.kind, entry.agent, entry.seq, entry.outcome) == ("observed", "billing-7", 1, "failed")
    assert list(Observation.objects.order_by("lowest_epoch").values_list("holder", "state")) == [
        ("pod-a:1:aaaa", "released"),
        ("pod-b:1:bbbb", "live"),
    ]


def test_a_database_of_ours_that_cannot_be_written_stops_no_update(
    memory: MemoryWriter, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise OperationalError("read-only")

    monkeypatch.setattr(watch.Observer, "observe", refuse)

    async def check(ear: Ear) -> None:
        memory.action("billing-7", 1)
        assert await ear.hears() == CHANGED

    listen(watcher, check)
