"""Live updates: one watcher per process asks each store a few numbers every second and tells its browsers that something changed.

What changed is not said: whoever hears it fetches its fragment, and there access is checked.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass

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
LEASES_EVERY = 5
"""How many pauses lie between two looks at the leases of all agents; a change of the store's numbers is a reason to look at once."""
ENDS_AT_ONCE = 50
"""How many calls that are no longer open are looked at in one turn; the others wait for the next."""
_LOAD = 4  # asking may take at most a fifth of the time, however many rows are open


@dataclass(frozen=True, slots=True, eq=False)
class _Subscriber:
    loop: asyncio.AbstractEventLoop
    queue: asyncio.Queue[str]  # of one place: two changes nobody has looked at yet are one change
    may_see: Callable[[str], bool]

    def tell(self, store: str) -> None:
        if store == PEOPLE or self.may_see(store):
            self.say(ENDED if store == PEOPLE else CHANGED)

    def say(self, word: str) -> None:
        try:
            self.loop.call_soon_threadsafe(self._put, word)
        except RuntimeError:
            return  # its loop has ended, and it with it

    def _put(self, word: str) -> None:
        if word == ENDED and not self.queue.empty():
            self.queue.get_nowait()
        if self.queue.empty():
            self.queue.put_nowait(word)


class Watcher:
    """One thread per store and one for the console's own numbers, running only while somebody listens.

    A store that is down is asked less and less often, and that it went down or came back is itself a change.
    """

    def __init__(self, *, pause_s: float = PAUSE_S) -> None:
        self._pause_s = pause_s
        self._lock = threading.Lock()
        self._subscribers: set[_Subscriber] = set()
        self._threads: list[threading.Thread] = []
        self._unseen = 0  # threads that have not looked a first time
        self._stop = threading.Event()

    async def subscribe(
        self, *, may_see: Callable[[str], bool] = lambda store: True, ping_s: float | None = None
    ) -> AsyncIterator[str]:
        """Yield "changed" as soon as everything has been looked at once (what happened before that is not known), and whenever the screen of a
        visible store may have changed; "ended" when roles or sessions changed: whoever listens asks anew who they are.

        Said any earlier, the first word would lose what happens between it and the first look: nothing older is known to compare with.

        With `ping_s`, "ping" after so long a silence: never wrap this in a time-out of your own, which would end it. `may_see` is asked
        from another thread for each store's name and must not touch a database.
        """
        subscriber = _Subscriber(asyncio.get_running_loop(), asyncio.Queue(maxsize=1), may_see)
        self._add(subscriber)
        try:
            while True:
                try:
                    yield await asyncio.wait_for(subscriber.queue.get(), ping_s)
                except TimeoutError:
                    yield PING
        finally:
            self._remove(subscriber)

    def stop(self) -> None:
        """End the threads and wait for them; the next subscriber starts new ones. For tests and for a clean end."""
        with self._lock:
            threads, self._threads = self._threads, []
            self._stop.set()
        for thread in threads:
            thread.join(timeout=30)

    @property
    def listeners(self) -> int:
        return len(self._subscribers)

    def _add(self, subscriber: _Subscriber) -> None:
        with self._lock:
            self._subscribers.add(subscriber)
            if not self._threads:
                self._start()
            elif not self._unseen:
                subscriber.say(CHANGED)

    def _remove(self, subscriber: _Subscriber) -> None:
        with self._lock:
            self._subscribers.discard(subscriber)
            if not self._subscribers:
                self._stop.set()
                self._threads = []

    def _start(self) -> None:
        """A stop event of their own for each generation: threads of the one before may still be asking a slow store."""
        self._stop = stop = threading.Event()
        watches: list[Callable[[], set[str]]] = [
            _StoreWatch(name, look_every_s=LEASES_EVERY * self._pause_s).poll for name in settings.ACTION_STORES
        ]
        for poll in [*watches, _ConsoleWatch().poll]:
            thread = threading.Thread(target=self._run, args=(poll, stop), name="watcher", daemon=True)
            self._threads.append(thread)
        self._unseen = len(self._threads)
        for thread in self._threads:
            thread.start()

    def _looked(self, stop: threading.Event) -> None:
        """One thread has looked for the first time; after the last of them every change is told, and whoever listens looks now."""
        with self._lock:
            if stop is not self._stop:
                return  # others have taken over
            self._unseen -= 1
            waiting = () if self._unseen else tuple(self._subscribers)
        for subscriber in waiting:
            subscriber.say(CHANGED)

    def _run(self, poll: Callable[[], set[str]], stop: threading.Event) -> None:
        failures, has_looked = 0, False
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
            if not has_looked:
                has_looked = True  # in vain too: one store that cannot be asked keeps nobody from hearing of the others
                self._looked(stop)
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
