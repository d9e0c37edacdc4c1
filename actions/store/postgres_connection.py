"""Connections to one PostgreSQL store: its address, those that are kept open, and the driver's errors as ours.

Not psycopg_pool: that opens connections in threads of its own, so a server that is down costs every caller the whole waiting time and
its reason is only logged; here the caller who needs a connection opens it, and learns at once why it could not.
"""

from __future__ import annotations

import os
import re
import select
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from time import monotonic
from urllib.parse import unquote

import psycopg
from psycopg import IsolationLevel, errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus

from actions.errors import StoreError, StoreReadOnly, StoreUnavailable, StoreUnusable
from actions.store.postgres_deadlines import Connection, DeadlinePassed, Silence, Timeouts, Use

__all__ = [
    "DEFAULT_SCHEMA",
    "Address",
    "Connection",
    "ProcessConnections",
    "Timeouts",
    "has_news",
    "is_lost",
    "parse_address",
    "store_error",
]

DEFAULT_SCHEMA = "recall"
DEFAULT_COLLECTION = "recall_lexical_v1"
LOCK_TIMEOUT_S = 5
STATEMENT_TIMEOUT_S = 7  # less than we wait ourselves, so that a slow statement costs no connection
CONNECT_TIMEOUT_S = 5
MAX_CONNECTIONS = 10
"""How many threads of one process may talk to one store at a time; the next one waits, at most `CONNECT_TIMEOUT_S`."""

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}", re.ASCII)
_COLLECTION = re.compile(r"[A-Za-z0-9_.:-]{1,200}", re.ASCII)
_PORTS = re.compile(r"[0-9,]*", re.ASCII)
_OPTIONS = (
    f"-c lock_timeout={LOCK_TIMEOUT_S}s -c statement_timeout={STATEMENT_TIMEOUT_S}s "
    # A process that is stopped in the middle of a settle must not keep the lease's row locked for ever.
    "-c idle_in_transaction_session_timeout=30s -c jit=off"
)
_DEFAULTS = {
    "connect_timeout": str(CONNECT_TIMEOUT_S),
    "application_name": "settle",
    # A server that vanished without a word (power, network) is noticed within about ten seconds.
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
    "client_encoding": "UTF8",
}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Address:
    """Where a store is. No repr: the connection's text holds a password."""

    conninfo: str
    schema: str
    collection: str  # the agents': the configured name and `_agents`
    password: str

    def hide_password(self, text: str) -> str:
        return text.replace(self.password, "***") if len(self.password) > 2 else text


def parse_address(name: str, url: str) -> Address:
    """Take our own parameters out of a URL and check them; everything else is libpq's.

    Raises:
        StoreUnusable: a part of it is malformed; the sentence never repeats the URL, which may hold a password.
    """
    base, _, query = url.partition("?")
    ours = {"schema": DEFAULT_SCHEMA, "collection": DEFAULT_COLLECTION}
    others = []
    for pair in filter(None, query.split("&")):
        key, _, value = pair.partition("=")
        if key in ours:
            ours[key] = unquote(value)
        else:
            others.append(pair)
    schema, collection = ours["schema"], ours["collection"]
    if not _SCHEMA.fullmatch(schema):
        raise StoreUnusable(name, f"schema must be a lower-case identifier of at most 63 characters, not {schema[:80]!r}")
    if not _COLLECTION.fullmatch(collection):
        raise StoreUnusable(name, f"collection must be 1 to 200 letters, digits, '_', '-', '.' or ':', not {collection[:80]!r}")
    if collection.endswith("_agents"):
        raise StoreUnusable(
            name, f"collection is the memory collection's name, as in RECALL_COLLECTION: without _agents ({collection[:80]})"
        )
    try:
        given = conninfo_to_dict("?".join([base, "&".join(others)]) if others else base)
        if not _PORTS.fullmatch(str(given.get("port") or "")):
            raise ValueError("port")  # else libpq repeats what stands there, which may be half a password
        options = f"{_OPTIONS} {given.get('options') or ''}".strip()
        conninfo = make_conninfo("", **{**_DEFAULTS, **given, "options": options})
    except (psycopg.Error, ValueError):
        raise StoreUnusable(name, "its address is not one that PostgreSQL understands; write special characters as %XX") from None
    return Address(
        conninfo=conninfo,
        schema=schema,
        collection=f"{collection}_agents",
        password=str(given.get("password") or ""),
    )


class Connections:
    """A few open connections, newest first; opened by whoever needs one. Belongs to the process that made it."""

    def __init__(self, conninfo: str, timeouts: Timeouts) -> None:
        self._conninfo = conninfo
        self._idle: list[Connection] = []
        self._lock = threading.Lock()
        self._places = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._silence = Silence(timeouts.pause_s)

    @contextmanager
    def borrow(self, *, is_fresh: bool = False) -> Iterator[Connection]:
        """A connection in autocommit, idle; kept afterwards if it is idle again and whole, closed otherwise.

        `is_fresh`: a new one, because one that was kept turned out dead; so the others that are kept are closed too.

        Raises:
            LeftAlone: the server did not answer a moment ago. Nothing was asked.
        """
        self._silence.check()
        if not self._places.acquire(timeout=CONNECT_TIMEOUT_S):
            raise errors.TooManyConnections(
                f"all {MAX_CONNECTIONS} connections of this process have been busy for {CONNECT_TIMEOUT_S} s"
            )
        try:
            with self._silence.ask() as use:
                if is_fresh:
                    self.close()
                connection = self._take() or self._open(use)
                try:
                    yield connection
                finally:
                    if connection.fell_silent_at is not None:
                        use.silent_since = connection.fell_silent_at
                        self.close()  # whatever is idle is as dead
                    self._give_back(connection)
        finally:
            self._places.release()

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _open(self, use: Use) -> Connection:
        began = monotonic()
        try:
            connection = Connection.connect(self._conninfo, autocommit=True)
        except psycopg.Error as exc:
            if isinstance(exc, errors.ConnectionTimeout) or monotonic() > began + CONNECT_TIMEOUT_S:
                use.silent_since = began
            raise
        # Whatever the database's default is: a transaction must see what was committed while it waited for a lock.
        connection.isolation_level = IsolationLevel.READ_COMMITTED
        return connection

    def _take(self) -> Connection | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if not has_news(connection):
                connection.is_kept = True
                connection.may_be_repeated = True
                return connection
            connection.close()

    def _give_back(self, connection: Connection) -> None:
        if connection.info.transaction_status is TransactionStatus.IDLE:
            with self._lock:
                self._idle.append(connection)
        else:
            connection.close()


def has_news(connection: Connection) -> bool:
    """Whether an idle connection has something to read: nothing was asked, so it can only be the server's farewell. No round trip."""
    if connection.closed:
        return True
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))


class ProcessConnections:
    """The connections of whichever process asks: a child never touches what its parent opened, nor closes it."""

    def __init__(self, conninfo: str, timeouts: Timeouts) -> None:
        self._conninfo = conninfo
        self._timeouts = timeouts
        self._by_process: dict[int, Connections] = {}  # keeps the parent's, so that nothing of it is collected in the child

    def borrow(self, *, is_fresh: bool = False) -> AbstractContextManager[Connection]:
        """As `Connections.borrow`."""
        own = self._by_process.get(os.getpid())
        if own is None:
            own = self._by_process.setdefault(os.getpid(), Connections(self._conninfo, self._timeouts))
        return own.borrow(is_fresh=is_fresh)

    def close(self) -> None:
        if own := self._by_process.get(os.getpid()):
            own.close()


# --- errors ----------------------------------------------------------------------------------------------------------

_TRY_AGAIN = "; try again"
_SENTENCES: tuple[tuple[type[psycopg.Error], str], ...] = (
    (errors.LockNotAvailable, f"a lease or record stayed locked by another writer for {LOCK_TIMEOUT_S} s{_TRY_AGAIN}"),
    (errors.QueryCanceled, f"it took longer than {STATEMENT_TIMEOUT_S} s and was given up{_TRY_AGAIN}"),
    (errors.TooManyConnections, f"it has no connection left for us{_TRY_AGAIN}"),
    (errors.SerializationFailure, f"another writer came first{_TRY_AGAIN}"),
    (errors.DeadlockDetected, f"another writer came first{_TRY_AGAIN}"),
    (errors.DiskFull, "its disk is full"),
    (errors.IdleInTransactionSessionTimeout, f"this process paused too long in the middle{_TRY_AGAIN}"),
)
_CONNECTION_CLASSES = {"08", "28", "3D", "53", "57"}
"""SQLSTATE classes of a server that does not serve us: connection, authorization, no such database, resources, operator intervention."""
_FAREWELLS = (errors.AdminShutdown, errors.CrashShutdown, errors.CannotConnectNow, errors.IdleSessionTimeout)
_READ_ONLY = "its database is read-only here (a standby, or default_transaction_read_only); point this store at the primary"


def is_lost(connection: Connection, exc: psycopg.Error) -> bool:
    """Whether the connection is gone, for another reason than our own deadline."""
    return not isinstance(exc, DeadlinePassed) and (connection.closed or isinstance(exc, _FAREWELLS))


def store_error(
    name: str, address: Address, exc: psycopg.Error, *, is_write: bool = False, may_be_written: bool = False
) -> StoreError:
    """The driver's error in words for a person, without the password. `may_be_written`: COMMIT was sent and its answer was lost."""
    said = address.hide_password(" ".join(str(exc.diag.message_primary or exc).split()))[:300]
    if may_be_written:
        return StoreUnavailable(name, f"the answer to the commit was lost ({said})", may_be_written=True)
    if isinstance(exc, DeadlinePassed):
        return StoreUnavailable(name, said)
    if isinstance(exc, errors.NumericValueOutOfRange):
        return StoreUnusable(name, f"a number in its records is at the end of its range, so nothing can follow it ({said})")
    for kind, sentence in _SENTENCES:
        if isinstance(exc, kind):
            return StoreUnavailable(name, sentence if exc.sqlstate and exc.diag.message_primary else said)
    if isinstance(exc, errors.ReadOnlySqlTransaction):
        return StoreReadOnly(name, _READ_ONLY)
    if isinstance(exc, errors.InsufficientPrivilege):
        if is_write:
            return StoreReadOnly(
                name, f"this connection's role lacks a right ({said}); `check_stores` says which grants are missing"
            )
        return StoreUnusable(
            name, f"this connection's role may not read it ({said}); `check_stores` says which grants are missing"
        )
    has_no_state = exc.sqlstate is None and isinstance(exc, psycopg.OperationalError | psycopg.InterfaceError)
    if has_no_state or (exc.sqlstate or "")[:2] in _CONNECTION_CLASSES:
        return StoreUnavailable(name, f"no connection: {said}")
    if isinstance(exc, errors.UndefinedTable | errors.UndefinedColumn | errors.InvalidSchemaName | errors.UndefinedFunction):
        return StoreUnusable(name, f"what stands there is not Recall's schema: {said}")
    return StoreUnusable(name, f"it answered with an error that we do not know: {said} ({exc.sqlstate or type(exc).__name__})")
