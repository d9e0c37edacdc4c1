"""Connections to one MongoDB store: its address, a client for each process, and the driver's errors as ours."""

from __future__ import annotations

import itertools
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import unquote

import pymongo
from bson.codec_options import CodecOptions, DatetimeConversion
from pymongo import MongoClient, ReadPreference, WriteConcern
from pymongo.client_session import ClientSession
from pymongo.database import Database
from pymongo.errors import (
    ConfigurationError,
    ConnectionFailure,
    InvalidURI,
    NetworkTimeout,
    NotPrimaryError,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
    WaitQueueTimeoutError,
)
from pymongo.read_concern import ReadConcern
from pymongo.uri_parser import parse_uri

from actions.errors import StoreError, StoreReadOnly, StoreUnavailable, StoreUnusable
from actions.store.deadlines import Silence, Timeouts

Client = MongoClient[dict[str, Any]]
Mongo = Database[dict[str, Any]]

DEFAULT_DATABASE = "recall"
"""Where Recall goes when its address names none."""
DEFAULT_COLLECTION = "recall_lexical_v1"
SERVER_TIMEOUT_S = 5
PREPARE_TIMEOUT_S = 600
MAX_CONNECTIONS = 10
_SHORTEST_S = 0.05

T = TypeVar("T")

_COLLECTION = re.compile(r"[A-Za-z0-9_.:-]{1,200}", re.ASCII)
_DATABASE = re.compile(r"[^/\\. \"$*<>:|?\x00]{1,63}")
_DEFAULTS: dict[str, Any] = {
    "serverSelectionTimeoutMS": SERVER_TIMEOUT_S * 1000,
    "connectTimeoutMS": SERVER_TIMEOUT_S * 1000,
    "waitQueueTimeoutMS": SERVER_TIMEOUT_S * 1000,
    "maxPoolSize": MAX_CONNECTIONS,
    "appName": "settle",
}
# Dates as numbers: one beyond the year 9999 must not spoil a list. Bytes that are no UTF-8 are kept recognisable instead of refused.
CODEC: CodecOptions[dict[str, Any]] = CodecOptions(
    datetime_conversion=DatetimeConversion.DATETIME_MS, unicode_decode_error_handler="surrogateescape"
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Address:
    """Where a store is. No repr: the address holds a password."""

    url: str  # as the driver reads it, without what is ours
    database: str
    collection: str  # the agents': the configured name and `_agents`
    passwords: tuple[str, ...]  # as it is, and as it stands in the address

    def hide_password(self, text: str) -> str:
        for password in self.passwords:
            text = text.replace(password, "***") if len(password) > 2 else text
        return text


def parse_address(name: str, url: str) -> Address:
    """Take our own parameter out of a URL and check it; everything else is the driver's (`directConnection`, `authSource`, `tls` ...).

    Raises:
        StoreUnusable: a part of it is malformed; the sentence never repeats the URL, which may hold a password.
    """
    base, _, query = url.partition("?")
    pairs = [pair for pair in query.split("&") if pair]
    given = [unquote(pair.partition("=")[2]) for pair in pairs if pair.partition("=")[0] == "collection"]
    others = [pair for pair in pairs if pair.partition("=")[0] != "collection"]
    collection = given[-1] if given else DEFAULT_COLLECTION
    if not _COLLECTION.fullmatch(collection):
        raise StoreUnusable(name, f"collection must be 1 to 200 letters, digits, '_', '-', '.' or ':', not {collection[:80]!r}")
    if collection.endswith("_agents"):
        raise StoreUnusable(
            name, f"collection is the memory collection's name, as in RECALL_COLLECTION: without _agents ({collection[:80]})"
        )
    scheme, _, rest = base.partition("://")
    place, _, path = rest.partition("/")
    database = unquote(path) or DEFAULT_DATABASE
    if not _DATABASE.fullmatch(database):
        raise StoreUnusable(name, f"{database[:80]!r} cannot be the name of a database")
    password = place.rpartition("@")[0].partition(":")[2]
    address = Address(
        url=f"{scheme}://{place}/{path}{'?' if others else ''}{'&'.join(others)}",
        database=database,
        collection=f"{collection}_agents",
        passwords=tuple({password, unquote(password)} - {""}),
    )
    if scheme == "mongodb":  # the other scheme asks the DNS, and nothing is asked before the first read
        _check_url(name, address)
    return address


def _check_url(name: str, address: Address) -> None:
    try:
        parse_uri(address.url)
    except (PyMongoError, ValueError) as exc:
        raise StoreUnusable(name, _malformed(address, exc)) from None


def _malformed(address: Address, exc: Exception) -> str:
    said = address.hide_password(" ".join(str(exc).split()))[:200]
    return f"its address is not one that MongoDB's driver understands ({said}); write special characters as %XX"


class ProcessClients:
    """The client of whichever process asks: a child never touches what its parent opened, nor closes it. Nothing is opened before."""

    def __init__(self, address: Address, timeouts: Timeouts) -> None:
        self._address = address
        self._timeouts = timeouts
        self._by_process: dict[int, Client] = {}  # keeps the parent's, so that nothing of it is collected in the child
        self._silences: dict[int, Silence] = {}
        self._lock = threading.Lock()

    @contextmanager
    def ask(self) -> Iterator[Client]:
        """Around one use of the server, which learns from it whether it answers.

        Raises:
            LeftAlone: it did not answer a moment ago. Nothing was asked.
        """
        silence = self._silences.get(os.getpid()) or self._silences.setdefault(os.getpid(), Silence(self._timeouts.pause_s))
        with silence.ask() as use:
            client = self.get()
            try:
                wait_for_primary(client, client.options.server_selection_timeout)
                yield client
            except (CommitUnanswered, PyMongoError) as exc:
                use.silent_since = use.began if is_silence(exc, client) else None
                raise

    def get(self) -> Client:
        own = self._by_process.get(os.getpid())
        if own is None:
            with self._lock:
                own = self._by_process.get(os.getpid()) or self._by_process.setdefault(os.getpid(), self._open())
        return own

    def close(self) -> None:
        if own := self._by_process.pop(os.getpid(), None):
            with pymongo.timeout(
                _SHORTEST_S if has_refused(own) else self._timeouts.commit_s
            ):  # it says goodbye, perhaps to nobody
                own.close()

    def _open(self) -> Client:
        named = {pair.partition("=")[0].lower() for pair in self._address.url.partition("?")[2].split("&")}
        # The clock of each use is what counts; this is for whatever stands outside of one.
        defaults = _DEFAULTS | {"socketTimeoutMS": int(self._timeouts.answer_s * 1000)}
        options = {key: value for key, value in defaults.items() if key.lower() not in named}
        return MongoClient(self._address.url, connect=False, **options)


def database_of(client: Client, address: Address) -> Mongo:
    """The primary's, and only what a majority has: what is shown as written must not be rolled back. Whatever the address says."""
    return client.get_database(
        address.database,
        codec_options=CODEC,
        read_preference=ReadPreference.PRIMARY,
        write_concern=WriteConcern("majority"),
        read_concern=ReadConcern("majority"),
    )


def wait_for_primary(client: Client, within_s: float) -> None:
    """Until a server is known that can be written, or all have refused us. No round trip where one is known.

    Within a time limit the driver waits for one as long as the limit lasts: whatever the address says about it, and also where nobody is there.

    Raises:
        ServerSelectionTimeoutError: there is none. Nothing was asked.
        OperationFailure: it refused user or password a moment ago, and the driver does not try again before its next heartbeat.
    """
    until, before = time.monotonic() + within_s, set(_refusals(client))
    while not client.topology_description.has_writable_server():
        try:
            with pymongo.timeout(_SHORTEST_S):
                _ = client.is_primary  # waits until one is known, or the next round of the driver's questions is over
        except ServerSelectionTimeoutError as exc:
            for refusal in _refusals(client):
                if isinstance(refusal, OperationFailure) and refusal.code in _REFUSED:
                    raise refusal from exc
            if time.monotonic() > until or (has_refused(client) and before.isdisjoint(_refusals(client))):
                raise


def has_refused(client: Client) -> bool:
    """Whether every server was heard of, and none serves us: nobody listens there, the name is unknown, TLS failed, it hung up."""
    refusals = _refusals(client)
    return bool(refusals) and None not in refusals


def _refusals(client: Client) -> list[Exception | None]:
    """Why each server, as far as we know, does not serve us; None where it does, or does not say anything."""
    errors = (server.error for server in client.topology_description.server_descriptions().values())
    return [None if isinstance(error, NetworkTimeout) else error for error in errors]


def is_standalone(client: Client) -> bool:
    """Whether the server that answered belongs to no replica set, so that it has no transactions. No round trip."""
    return any(server.server_type_name == "Standalone" for server in client.topology_description.server_descriptions().values())


def is_secondary(client: Client) -> bool:
    """Whether we are tied to one server, and it is not the primary. No round trip."""
    servers = client.topology_description.server_descriptions().values()
    return client.topology_description.topology_type_name == "Single" and any(
        server.server_type_name in ("RSSecondary", "RSOther", "RSGhost") for server in servers
    )


# --- transactions ----------------------------------------------------------------------------------------------------


class CommitUnanswered(Exception):
    """The commit was sent; nobody knows what became of it."""

    def __init__(self, cause: PyMongoError) -> None:
        self.cause = cause
        super().__init__(str(cause))


def in_transaction(session: ClientSession, work: Callable[[], T], timeouts: Timeouts, *, until: float) -> T:
    """Run `work` and commit it; again from its start where another writer came first, until that moment. An attempt that is cut off then says
    why there was more than one: its server was not silent.

    What the driver's with_transaction does, within bounds: that one tries a commit for two minutes, and, once a time limit is over, cannot
    abort any more either, so that the server keeps the lease and the head locked for everybody until the transaction's minute is over.

    Raises:
        CommitUnanswered: it may be written.
        PyMongoError: nothing was written. Whatever else `work` raised: nothing was written.
    """
    conflict: BaseException | None = None
    for attempt in itertools.count(1):
        wait_for_primary(session.client, seconds_left(until))
        session.start_transaction(ReadConcern("snapshot"), WriteConcern("majority"), ReadPreference.PRIMARY)
        try:
            with pymongo.timeout(min(seconds_left(until), timeouts.answer_s)):
                answer = work()
        except BaseException as exc:
            is_over = time.monotonic() + _SHORTEST_S > until
            with _last_words(session.client, timeouts):
                session.abort_transaction()
            if is_over and conflict is not None and isinstance(exc, PyMongoError) and exc.timeout:
                raise conflict from exc
            if not is_transient(exc) or is_silence(exc, session.client) or is_over:
                raise
            conflict = exc
        else:
            try:
                _commit(session, timeouts, until=time.monotonic() + timeouts.commit_s)
            except PyMongoError as exc:
                if not is_transient(exc):
                    _let_go(session, timeouts)
                    raise CommitUnanswered(exc) from exc
                if time.monotonic() > until:
                    raise
                conflict = exc
            else:
                return answer
        time.sleep(random.random() * min(0.005 * 1.5**attempt, 0.25))  # noqa: S311
    raise AssertionError("unreachable")


def seconds_left(until: float) -> float:
    """Never none at all: the driver would take that for no limit."""
    return max(until - time.monotonic(), _SHORTEST_S)


def _commit(session: ClientSession, timeouts: Timeouts, *, until: float) -> None:
    """Asking again is safe: a transaction that was committed is answered with its success."""
    while True:
        try:
            with pymongo.timeout(min(seconds_left(until), timeouts.answer_s)):
                session.commit_transaction()
            return
        except PyMongoError as exc:
            if not exc.has_error_label("UnknownTransactionCommitResult") or time.monotonic() > until:
                raise


def _let_go(session: ClientSession, timeouts: Timeouts) -> None:
    """Where the commit never arrived, its locks would stop every settle of the store until the transaction's minute is over. One that was
    committed stays so."""
    with suppress(PyMongoError), _last_words(session.client, timeouts):
        session.client.admin.command("killSessions", [session.session_id])


@contextmanager
def _last_words(client: Client, timeouts: Timeouts) -> Iterator[None]:
    """Around what a server should be told that perhaps is gone: not waited for where nobody is there to be told."""
    until = time.monotonic() + timeouts.commit_s
    with suppress(ServerSelectionTimeoutError):
        wait_for_primary(client, timeouts.commit_s)
    with pymongo.timeout(_SHORTEST_S if has_refused(client) else seconds_left(until)):
        yield


def is_transient(exc: BaseException) -> bool:
    """Whether the server promises that nothing of this transaction was written."""
    return isinstance(exc, PyMongoError) and exc.has_error_label("TransientTransactionError")


def is_silence(exc: BaseException, client: Client) -> bool:
    """Whether we waited for nothing: not where we were refused, which costs nobody time, nor where a primary is known again."""
    if isinstance(exc, CommitUnanswered):
        return is_silence(exc.cause, client)
    if isinstance(exc, ServerSelectionTimeoutError):
        return not (has_refused(client) or client.topology_description.has_writable_server())
    return isinstance(exc, NetworkTimeout)


@contextmanager
def alone() -> Iterator[None]:
    """Around one statement that writes outside of a transaction: where its answer is lost nobody knows what became of it.

    Raises:
        CommitUnanswered: it may be written.
    """
    try:
        yield
    except PyMongoError as exc:
        if isinstance(exc, ConnectionFailure) or exc.timeout:
            raise CommitUnanswered(exc) from exc
        raise


# --- errors ----------------------------------------------------------------------------------------------------------

NO_REPLICA_SET = (
    "this MongoDB is not a replica set, so it has no transactions and nothing can be settled; "
    "start it with --replSet and run rs.initiate() once (one member is enough)"
)
STANDBY = "this address leads to a secondary, which cannot be written; name all members and replicaSet=NAME in it, without directConnection"
_TRY_AGAIN = "; try again"
_NO_TRANSACTIONS = (
    20,
    123,
)  # IllegalOperation: "Transaction numbers are only allowed on a replica set member or mongos"; NotAReplicaSet
_REFUSED = (18, 8000, 11)  # AuthenticationFailed, Atlas's own, UserNotFound
UNAUTHORIZED = 13
_TOO_SLOW = (50, 262)  # MaxTimeMSExpired, ExceededTimeLimit
_CONFLICT = 112
_DISK_FULL = 14031
_STEPPING_DOWN = (10107, 13435, 13436, 11600, 11602, 189, 91)


def store_error(
    name: str,
    address: Address,
    exc: PyMongoError,
    *,
    answer_s: float = 8,
    is_write: bool = False,
    may_be_written: bool = False,
) -> StoreError:
    """The driver's error in words for a person, without the password. `may_be_written`: the commit was sent and its answer was lost."""
    said = f"did not answer within {answer_s:g} s" if isinstance(exc, NetworkTimeout) else _said(address, exc)
    if said == "No servers found yet":
        said = "nothing was heard from any of its servers"
    if may_be_written:
        return StoreUnavailable(name, f"the answer to the commit was lost ({said})", may_be_written=True)
    if isinstance(exc, ConfigurationError | InvalidURI):
        return _configuration_error(name, address, exc, said)
    code = exc.code if isinstance(exc, OperationFailure) else None
    if code in _REFUSED:
        return StoreUnavailable(
            name, f"it refuses the user or the password ({said}); authSource in the address names the user's database"
        )
    if code == UNAUTHORIZED and is_write:
        return StoreReadOnly(name, f"this connection's user lacks a right ({said}); `check_stores` says which are missing")
    if code == UNAUTHORIZED:
        return StoreUnusable(
            name, f"this connection's user may not read it ({said}); `check_stores` says which rights are missing"
        )
    if code in _NO_TRANSACTIONS:
        return StoreReadOnly(name, NO_REPLICA_SET)
    if isinstance(exc, NotPrimaryError) or code in _STEPPING_DOWN:
        return StoreUnavailable(name, f"its primary is stepping down or just starting{_TRY_AGAIN}")
    if code == _CONFLICT or (code is not None and exc.has_error_label("TransientTransactionError")):
        return StoreUnavailable(name, f"other writers came first, again and again{_TRY_AGAIN}")
    if isinstance(exc, WaitQueueTimeoutError):
        return StoreUnavailable(
            name, f"all {MAX_CONNECTIONS} connections of this process have been busy for {SERVER_TIMEOUT_S} s; try again"
        )
    if isinstance(exc, NetworkTimeout):
        return StoreUnavailable(name, said)
    if isinstance(exc, ConnectionFailure):
        return StoreUnavailable(name, f"it does not answer: {said}")
    if exc.timeout or code in _TOO_SLOW:
        return StoreUnavailable(name, f"it took too long and was given up{_TRY_AGAIN}")
    if code == _DISK_FULL:
        return StoreUnavailable(name, "its disk is full")
    if "Failed to apply $inc" in said:
        return StoreUnusable(name, f"a number in its records is at the end of its range, so nothing can follow it ({said})")
    return StoreUnusable(name, f"it answered with an error that we do not know: {said} ({code or type(exc).__name__})")


def _configuration_error(name: str, address: Address, exc: PyMongoError, said: str) -> StoreError:
    if "Sessions are not supported" in said:
        return StoreReadOnly(name, NO_REPLICA_SET)
    if "DNS" in said or "resolution" in said:
        return StoreUnavailable(name, f"its address could not be looked up: {said}")
    return StoreUnusable(name, _malformed(address, exc))


_SETTINGS = re.compile(r" ?\(configured timeouts: [^)]*\)|, Timeout: .*|, full error: .*", re.DOTALL)
_COMMAND = re.compile(r"(to execute command \{ \w+: [^,}]*).*", re.DOTALL)


def _said(address: Address, exc: PyMongoError) -> str:
    """What the driver said, in one line, without its settings and without the command's content, which is the agents'."""
    text = exc.details.get("errmsg", "") if isinstance(exc, OperationFailure) and exc.details else str(exc)
    text = _COMMAND.sub(r"\1 ... }", _SETTINGS.sub("", text or str(exc)))
    return address.hide_password(" ".join(text.split()))[:300]
