"""Live updates: one watcher per process asks each store a few numbers every second and tells its browsers that something changed.

What changed is not said: whoever hears it fetches its fragment, and there access is checked.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field

from django.conf import settings
from django.db import DatabaseError, connection

from actions.errors import StoreError
from actions.queries import MAX_ROWS_PER_STORE
from actions.records import OPEN_STATUSES, Action, ActionRef, Reading, Watch
from actions.rules import state_of_reading
from console.services.changes import PEOPLE, read_changes
from console.services.ends import Seen, has_moved, observe_end, open_calls
from console.services.observe import Observer
from console.stores import ActionStore, get_store

log = logging.getLogger(__name__)

CHANGED = "changed"
ENDED = "ended"
PING = "ping"
PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
FIRST_LOOK_S = 5.0
"""How long the first word waits for a store that is slow."""
LEASES_EVERY = 5
"""How many pauses lie between two looks at the leases of all agents; a change of the store's numbers is a reason to look at once."""
ENDS_AT_ONCE = 50
"""How many calls that are no longer open are looked at in one turn; the others wait for the next."""
_LOAD = 4  # asking may take at most a fifth of the time, however many rows are open


@dataclass(frozen=True, slots=True, eq=False)
class _Subscriber:
    loop: asyncio.AbstractEventLoop
    queue: asyncio.Queue[str]  # of one place: two changes nobody has looked at yet are one change
    is_begun: asyncio.Event  # what later changes are told from has been read
    may_see: Callable[[str], bool]

    def tell(self, store: str) -> None:
        if store == PEOPLE or self.may_see(store):
            try:
                self.loop.call_soon_threadsafe(self.put, ENDED if store == PEOPLE else CHANGED)
            except RuntimeError:
                return  # its loop has ended, and it with it

    def begin(self) -> None:
        try:
            self.loop.call_soon_threadsafe(self.is_begun.set)
        except RuntimeError:
            return  # its loop has ended, and it with it

    def put(self, word: str) -> None:
        """In its own loop."""
        if word == ENDED and not self.queue.empty():
            self.queue.get_nowait()
        if self.queue.empty():
            self.queue.put_nowait(word)


@dataclass(slots=True, eq=False)
class _Generation:
    """The threads of one time in which somebody listened."""

    stop: threading.Event = field(default_factory=threading.Event)
    threads: list[threading.Thread] = field(default_factory=list)
    first_looks: int = 0  # how many of them have not looked yet


class Watcher:
    """One thread per store and one for the console's own numbers, running only while somebody listens.

    A store that is down is asked less and less often, and that it went down or came back is itself a change.
    """

    def __init__(self, *, pause_s: float = PAUSE_S) -> None:
        self._pause_s = pause_s
        self._lock = threading.Lock()
        self._subscribers: set[_Subscriber] = set()
        self._now: _Generation | None = None
        self._gone: list[threading.Thread] = []  # told to stop, and perhaps still asking a slow store

    async def subscribe(
        self, *, may_see: Callable[[str], bool] = lambda store: True, ping_s: float | None = None
    ) -> AsyncIterator[str]:
        """Yield "changed" as soon as everything was looked at once (whatever happened before is not known) and whenever the screen of a visible
        store may have changed; "ended" when roles or sessions changed: whoever listens asks anew who they are. Whoever fetches after the first
        "changed" misses nothing; where a store is slow it comes after `FIRST_LOOK_S`, and once more when that store has been looked at.

        With `ping_s`, "ping" after so long a silence: never wrap this in a time-out of your own, which would end it. `may_see` is asked
        from another thread for each store's name and must not touch a database.
        """
        subscriber = _Subscriber(asyncio.get_running_loop(), asyncio.Queue(maxsize=1), asyncio.Event(), may_see)
        self._add(subscriber)
        late: asyncio.Future[None] | None = None
        try:
            if not await _is_set_within(subscriber.is_begun, FIRST_LOOK_S):
                late = asyncio.ensure_future(_tell_once_begun(subscriber))
            yield CHANGED
            while True:
                try:
                    yield await asyncio.wait_for(subscriber.queue.get(), ping_s)
                except TimeoutError:
                    yield PING
        finally:
            if late is not None:
                late.cancel()
            self._remove(subscriber)

    def stop(self) -> None:
        """End the threads and wait for them; the next subscriber starts new ones. For tests and for a clean end."""
        with self._lock:
            self._end()
            threads, self._gone = self._gone, []
        for thread in threads:
            thread.join(timeout=30)

    @property
    def listeners(self) -> int:
        return len(self._subscribers)

    def _add(self, subscriber: _Subscriber) -> None:
        with self._lock:
            self._subscribers.add(subscriber)
            if self._now is None:
                self._now = self._start()
            if not self._now.first_looks:
                subscriber.begin()

    def _remove(self, subscriber: _Subscriber) -> None:
        with self._lock:
            self._subscribers.discard(subscriber)
            if not self._subscribers:
                self._end()

    def _end(self) -> None:
        """Under the lock."""
        if self._now is not None:
            self._now.stop.set()
            self._gone = [thread for thread in (*self._gone, *self._now.threads) if thread.is_alive()]
            self._now = None

    def _start(self) -> _Generation:
        """Under the lock, which no thread of it gets before all are started."""
        watches: list[Callable[[], set[str]]] = [
            _StoreWatch(name, look_every_s=LEASES_EVERY * self._pause_s).poll for name in settings.ACTION_STORES
        ]
        polls = [*watches, _ConsoleWatch().poll]
        started = _Generation(first_looks=len(polls))
        for poll in polls:
            thread = threading.Thread(target=self._run, args=(poll, started), name="watcher", daemon=True)
            started.threads.append(thread)
            thread.start()
        return started

    def _has_looked(self, generation: _Generation) -> None:
        """One of its threads knows what to tell changes from, or that its store is down."""
        with self._lock:
            generation.first_looks -= 1
            if generation is self._now and not generation.first_looks:
                for subscriber in self._subscribers:
                    subscriber.begin()

    def _run(self, poll: Callable[[], set[str]], generation: _Generation) -> None:
        failures, is_first, stop = 0, True, generation.stop
        while not stop.is_set():
            began = time.monotonic()
            try:
                for store in poll():
                    self._tell(store)
                failures = 0
            except (StoreError, DatabaseError) as exc:
                failures += 1
                if failures == 1:
                    log.warning("watching: %s", exc)
            except Exception:
                # A thread that dies would leave every browser of this process without updates, silently.
                failures += 1
                log.exception("watching failed")
            if is_first:
                is_first = False
                self._has_looked(generation)
            took = time.monotonic() - began
            stop.wait(
                min(LONGEST_PAUSE_S, max(self._pause_s * 2**failures, took * _LOAD))
                if failures
                else max(self._pause_s, took * _LOAD)
            )

    def _tell(self, store: str) -> None:
        with self._lock:
            subscribers = tuple(self._subscribers)
        for subscriber in subscribers:
            subscriber.tell(store)


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return event.is_set()
    return True


async def _tell_once_begun(subscriber: _Subscriber) -> None:
    await subscriber.is_begun.wait()
    subscriber.put(CHANGED)


class _StoreWatch:
    """One store: its numbers, the rows behind them where the numbers moved, and what is seen there that nobody else keeps."""

    def __init__(self, name: str, *, look_every_s: float = LEASES_EVERY * PAUSE_S) -> None:
        self._name = name
        self._observer = Observer(name)
        self._look_every_s = look_every_s
        self._look_at = 0.0
        self._open: dict[tuple[str, int], Seen] = {}
        self._moved: dict[ActionRef, Seen] = {}  # were open, and are not what they were any more
        self._numbers: tuple[int, int | None, int] | None = None
        self._rows: frozenset[tuple[object, ...]] | None = None
        self._is_down = False

    def poll(self) -> set[str]:
        """The store's name where its screen may have changed, else nothing."""
        try:
            store = get_store(self._name)
            has_changed = self._has_changed(store)
            self._observe(store)
        except StoreError:
            if self._is_down:
                raise
            self._is_down = True
            return {self._name}
        came_back, self._is_down = self._is_down, False
        return {self._name} if has_changed or came_back else set()

    def _has_changed(self, store: ActionStore) -> bool:
        """The earliest expiry of a *live* lease moves when a lease ends, is taken or is renewed: no clock of ours is needed."""
        watch: Watch = store.read_watch()
        numbers = (watch.revision, watch.next_expiry, watch.entries)
        if numbers == self._numbers:
            return False
        read = store.read_actions(OPEN_STATUSES, limit=MAX_ROWS_PER_STORE)
        rows = frozenset(_visible_part(reading, leases_known=store.leases_known) for reading in read.readings)
        before, self._rows = (self._numbers, self._rows), rows
        self._numbers = numbers
        now_open = open_calls(read.readings)
        moved = {ActionRef(self._name, *key): seen for key, seen in self._open.items() if has_moved(seen, now_open.get(key))}
        self._moved = moved | self._moved  # what was seen first counts until it was looked at
        self._open, self._look_at = now_open, 0.0
        old_numbers, old_rows = before
        if old_numbers is None:
            return False
        # A new entry is a change of the history; a renewed lease or an agent's turn is none of the queue's.
        return rows != old_rows or numbers[2] != old_numbers[2]

    def _observe(self, store: ActionStore) -> None:
        """Write down what is seen. A database of ours that cannot be written just now stops no update: what was news is news again."""
        try:
            if store.leases_known and time.monotonic() >= self._look_at:
                self._observer.observe(store.read_leases(limit=MAX_ROWS_PER_STORE).leases)
                self._look_at = time.monotonic() + self._look_every_s
            for ref, before in list(self._moved.items())[:ENDS_AT_ONCE]:
                observe_end(store, ref, before)
                del self._moved[ref]
        except DatabaseError as exc:
            log.warning("what was seen in store %s is not written down: %s", self._name, type(exc).__name__)
        finally:
            connection.close()  # this thread's own; it goes back to the pool


class _ConsoleWatch:
    """The console's own change numbers."""

    def __init__(self) -> None:
        self._numbers: Mapping[str, int] | None = None

    def poll(self) -> set[str]:
        try:
            numbers = read_changes()
        finally:
            connection.close()  # this thread's own; it goes back to the pool
        before, self._numbers = self._numbers, numbers
        if before is None:
            return set()
        return {store for store, number in numbers.items() if before.get(store) != number}


def _visible_part(reading: Reading, *, leases_known: bool) -> tuple[object, ...]:
    """What a row of the queue shows of an action. Not the lease's epoch or expiry: a living agent moves those all the time."""
    action = reading.action
    state = state_of_reading(reading, leases_known=leases_known)
    holder = reading.lease.holder if reading.lease is not None and reading.lease.is_live else ""
    return (action.agent, action.seq, state, action.written_epoch if isinstance(action, Action) else action.record_id, holder)


watcher = Watcher()
"""The one of this process."""
