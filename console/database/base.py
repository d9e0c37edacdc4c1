"""Django's PostgreSQL engine over a few connections of our own. Within a page nobody waits for a server that says nothing beyond a deadline.

Not psycopg_pool, for the reasons of `actions.store.postgres_connection`: who needs a connection opens it and learns at once why not. After a
silence the server is left alone for some seconds, so that a page is refused once, not at each of its statements and at each page anew.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from math import inf
from time import monotonic
from typing import Any

import psycopg
from django.db.backends.base.base import NO_DB_ALIAS
from django.db.backends.postgresql import base
from psycopg import errors
from psycopg.pq import TransactionStatus

from actions.store.deadlines import LeftAlone, Silence
from actions.store.postgres_connection import has_news
from actions.store.postgres_deadlines import Connection, DeadlinePassed

ANSWER_S = 8.0
"""How long a page waits for one answer of the console's database."""
CHANGE_S = 20.0
"""What changes something may wait for whoever is at the same decision, who may be at its store: longer than the locks' own time-out."""
PAUSE_S = 5.0
"""A database that did not answer is left alone for so long."""

_answer_s: ContextVar[float] = ContextVar("answer_s", default=inf)


@contextmanager
def answered_within(seconds: float) -> Iterator[None]:
    """No statement of this context is waited for longer. Outside of one, as in commands and tasks, nothing is given up."""
    token = _answer_s.set(seconds)
    try:
        yield
    finally:
        _answer_s.reset(token)


class Watched(Connection):
    """A connection that tells the others when it gets no answer."""

    silence: Silence | None = None
    place: Any = None  # frees its place where nobody gives it back

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        self._answer_s = _answer_s.get()
        began = monotonic()
        try:
            answer = super().wait(gen, *args, **kwargs)
        except DeadlinePassed:
            if self.silence is not None:
                self.silence.fell_silent(began)
            raise
        if self.silence is not None:
            self.silence.heard(began)
        return answer


class _Own:
    """What belongs to one process: a child never touches what its parent opened."""

    def __init__(self, max_size: int, pause_s: float) -> None:
        self.idle: list[Watched] = []
        self.lock = threading.Lock()
        self.places = threading.BoundedSemaphore(max_size)
        self.forgotten: deque[None] = (
            deque()
        )  # given to somebody who is gone; the collector may come anywhere, so it takes no lock
        self.silence = Silence(pause_s)

    def reap(self) -> None:
        """Free the places of those that nobody has any more."""
        with suppress(IndexError):
            while True:
                self.forgotten.pop()
                self.places.release()


class Few:
    """In the place of a pool of psycopg_pool, with as much of it as Django uses. A connection is opened by whoever needs one."""

    def __init__(
        self,
        params: Mapping[str, Any],
        configure: Callable[[Any], object],
        *,
        max_size: int,
        timeout: float,
        pause_s: float = PAUSE_S,
    ) -> None:
        self._params = params
        self._configure = configure
        self._max_size = max_size
        self._timeout = timeout
        self._pause_s = pause_s
        self._by_process: dict[int, _Own] = {}  # keeps the parent's, so that nothing of it is collected in the child

    def open(self) -> None:
        """Nothing: each is opened when it is needed."""

    def getconn(self) -> Watched:
        """A connection in autocommit, idle.

        Raises:
            psycopg.OperationalError: there is none, it is left alone just now, or all were busy for too long. Nothing was asked.
        """
        own = self._own()
        self._check(own)
        own.reap()
        if not own.places.acquire(timeout=self._timeout):
            own.reap()
            if own.places.acquire(blocking=False):
                return self._given(own)
            raise errors.TooManyConnections(f"all {self._max_size} connections of this process were busy for {self._timeout:g} s")
        return self._given(own)

    def _given(self, own: _Own) -> Watched:
        """A connection for whoever has a place."""
        try:
            connection = self._take(own) or self._open(own)
        except BaseException:
            own.places.release()
            raise
        connection._pool = self  # type: ignore[assignment]  # where Django gives it back
        # Whoever breaks off in the middle of a streamed answer is told of no end, and nothing is closed: it is forgotten instead.
        connection.place = weakref.finalize(connection, own.forgotten.append, None)
        return connection

    def putconn(self, connection: Watched) -> None:
        """Keep it where it is idle and whole; what it was in the middle of is rolled back by the server when it is closed."""
        own = self._own()
        connection._pool = None
        if connection.place is not None:
            connection.place.detach()
        if connection.silence is not own.silence:
            return  # of the process that this one was forked from
        if not connection.closed and connection.info.transaction_status is TransactionStatus.IDLE:
            connection.autocommit = True  # closed within a transaction that had asked nothing yet; the server is not asked
            with own.lock:
                own.idle.append(connection)
        else:
            connection.close()
        own.places.release()

    def close(self) -> None:
        """Close what is kept; what is in use is closed by whoever has it."""
        _close_idle(self._own())

    def _own(self) -> _Own:
        own = self._by_process.get(os.getpid())
        return own or self._by_process.setdefault(os.getpid(), _Own(self._max_size, self._pause_s))

    def _check(self, own: _Own) -> None:
        try:
            own.silence.check()
        except LeftAlone as exc:
            _close_idle(own)  # whatever is idle is as dead
            raise psycopg.OperationalError(f"the database {exc}") from exc

    def _take(self, own: _Own) -> Watched | None:
        while True:
            with own.lock:
                if not own.idle:
                    return None
                connection = own.idle.pop()
            if has_news(connection):
                connection.close()
            elif _answer_s.get() <= ANSWER_S or _is_there(connection):
                return connection

    def _open(self, own: _Own) -> Watched:
        try:
            with own.silence.ask() as use:
                began = monotonic()
                try:
                    connection = Watched.connect(**self._params)
                except psycopg.Error as exc:
                    if isinstance(exc, errors.ConnectionTimeout):
                        use.silent_since = began
                    raise
                connection.silence = own.silence
                with answered_within(ANSWER_S):
                    self._configure(connection)
        except LeftAlone as exc:
            raise psycopg.OperationalError(f"the database {exc}") from exc
        return connection


def _is_there(connection: Watched) -> bool:
    """Ask it, where what follows may wait for long: False where it is gone. Raises DeadlinePassed where it says nothing."""
    try:
        with answered_within(ANSWER_S):
            connection.execute("")
    except DeadlinePassed:
        raise
    except psycopg.Error:
        connection.close()
        return False
    return True


def _close_idle(own: _Own) -> None:
    with own.lock:
        idle, own.idle = own.idle, []
    for connection in idle:
        with suppress(psycopg.Error):
            connection.close()


class DatabaseWrapper(base.DatabaseWrapper):
    """As Django's own; OPTIONS["pool"] holds `max_size` and `timeout`, in seconds. Without it, one connection that nobody else uses."""

    @property
    def pool(self) -> Any:
        options = self.settings_dict["OPTIONS"].get("pool")
        if self.alias == NO_DB_ALIAS or not options:
            return None
        pools: dict[str, Any] = self._connection_pools  # type: ignore[attr-defined]  # of every wrapper, by alias
        if self.alias not in pools:
            params = {**self.get_connection_params(), "autocommit": True}
            configure = self._configure_connection  # type: ignore[attr-defined]
            pools.setdefault(self.alias, Few(params, configure, **options))
        return pools[self.alias]
