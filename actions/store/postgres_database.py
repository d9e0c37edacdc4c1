"""One PostgreSQL database as we use it: a connection for each use, transactions, statements by name. What stands in it, others know."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg
from psycopg import errors, sql

from actions.errors import StoreUnavailable, StoreUnusable
from actions.store.deadlines import LeftAlone, for_read
from actions.store.postgres_connection import (
    Address,
    Connection,
    ProcessConnections,
    Timeouts,
    is_lost,
    store_error,
)
from actions.store.postgres_statements import compose

Row = tuple[Any, ...]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sent:
    """A statement on its way; whoever sent it looks at its answer later."""

    statement: str
    cursor: psycopg.Cursor[Row]


_MOVED = (errors.UndefinedTable, errors.UndefinedColumn, errors.InvalidSchemaName)


class Database:
    """Where statements are executed. Connects on first use; safe to share between threads and across fork.

    Nobody waits for the server longer than `timeouts` say; one that did not answer is left alone for a while, then one caller asks it again.
    `name` is the store's, for messages. Every use raises StoreUnavailable, StoreReadOnly and StoreUnusable as the contract has them.
    """

    def __init__(self, name: str, address: Address, timeouts: Timeouts | None = None) -> None:
        self.name = name
        self.address = address
        self._timeouts = timeouts or Timeouts()
        self._connections = ProcessConnections(address.conninfo, self._timeouts)
        self._texts: dict[tuple[str, ...], str] = {}
        self._forgetful: list[Callable[[], None]] = []

    def when_moved(self, forget: Callable[[], None]) -> None:
        """Have this called where what we knew of the database's tables may be true no more."""
        self._forgetful.append(forget)

    def close(self) -> None:
        self._connections.close()

    def patience(self) -> float:
        """How many seconds a read may take from now; none where whoever asks has waited long enough."""
        try:
            return for_read(self._timeouts.read_s)
        except LeftAlone:
            return 0.0

    # --- one use ---

    def read(self, work: Callable[[Connection], T]) -> T:
        return self._use(work, is_write=False)

    def write(self, work: Callable[[Connection], T]) -> T:
        return self._use(work, is_write=True)

    @contextmanager
    def connect(self, *, is_write: bool = False, is_fresh: bool = False, may_find_dead: bool = False) -> Iterator[Connection]:
        """A connection for one use, with its deadline. `may_find_dead`: the caller asks again where a kept one is dead (_FoundDead)."""
        used: Connection | None = None
        try:
            limit_s = self._timeouts.write_s if is_write else for_read(self._timeouts.read_s)
            with self._connections.borrow(is_fresh=is_fresh) as used:
                used.allow(limit_s, answer_s=self._timeouts.answer_s)
                yield used
        except LeftAlone as exc:
            raise StoreUnavailable(self.name, str(exc)) from exc
        except _CommitUnanswered as exc:
            raise store_error(self.name, self.address, exc.cause, may_be_written=True) from exc.cause
        except psycopg.Error as exc:
            self._forget()
            if may_find_dead and used is not None and used.is_kept and used.may_be_repeated and is_lost(used, exc):
                raise _FoundDead from exc
            raise store_error(self.name, self.address, exc, is_write=is_write) from exc

    @contextmanager
    def transaction(self, connection: Connection, *, in_pipeline: bool = False) -> Iterator[None]:
        """All or nothing; says so when the answer to COMMIT was lost.

        `in_pipeline`: nobody waits for BEGIN, nor for what is sent while no answer is looked at. Each is a statement of its own all the
        same, with its own snapshot; after one that fails the server runs no other. For single statements only.
        """
        is_committing = False
        try:
            with connection.pipeline() if in_pipeline else nullcontext():
                connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
                connection.may_be_repeated = False
                yield
                connection.allow_more(self._timeouts.commit_s)
                is_committing = True
                connection.execute("COMMIT")
        except BaseException as exc:
            if is_committing and connection.closed and isinstance(exc, psycopg.Error):
                raise _CommitUnanswered(exc) from exc
            if not connection.closed:
                with suppress(psycopg.Error):  # where it cannot be said, the server rolls back when the connection is gone
                    connection.rollback()
            raise

    def execute_alone(
        self, connection: Connection, statement: str, params: Mapping[str, Any], records: str | None = None
    ) -> Row | None:
        """A statement that writes and is a transaction by itself; its first row. Says so when its answer was lost."""
        connection.may_be_repeated = False
        try:
            cursor = connection.execute(self.text(statement, records), params, prepare=True)
            # Not `description`, which costs as much as the rest of the answer: this stands between a tool and its call.
            return cursor.fetchone() if cursor.pgresult and cursor.pgresult.nfields else None
        except psycopg.Error as exc:
            if connection.closed or is_lost(connection, exc):
                raise _CommitUnanswered(exc) from exc
            raise

    def _use(self, work: Callable[[Connection], T], *, is_write: bool) -> T:
        try:
            with self.connect(is_write=is_write, may_find_dead=True) as connection:
                return self._look_again(connection, work)
        except _FoundDead:
            # The server was restarted, or somebody closed what was idle; no transaction had begun.
            with self.connect(is_write=is_write, is_fresh=True) as connection:
                return self._look_again(connection, work)

    def _look_again(self, connection: Connection, work: Callable[[Connection], T]) -> T:
        """Tables may be dropped and made anew while we run: forget what we knew and try once more. Nothing was written."""
        try:
            return work(connection)
        except _MOVED:
            self._forget()
            return work(connection)

    def _forget(self) -> None:
        for forget in self._forgetful:
            forget()

    # --- statements ---

    def send(self, connection: Connection, statement: str, params: Mapping[str, Any], records: str | None = None) -> Sent:
        """Ask without waiting, in a pipeline; `answer` waits. Elsewhere it is answered when this returns."""
        return Sent(statement, connection.execute(self.text(statement, records), params))

    def answer(self, sent: Sent) -> Row:
        """The one row of what was sent. Raises what the first statement that failed of all that was sent so far was refused with."""
        row = sent.cursor.fetchone()
        if row is None:
            raise StoreUnusable(self.name, f"{sent.statement} answered no row")
        return row

    def all(self, connection: Connection, statement: str, params: Mapping[str, Any], records: str | None = None) -> list[Row]:
        """All rows of a statement of queries.sql; `records` is the table that it reads."""
        return connection.execute(self.text(statement, records), params).fetchall()

    def first(self, connection: Connection, statement: str, params: Mapping[str, Any], records: str | None = None) -> Row | None:
        return connection.execute(self.text(statement, records), params).fetchone()

    def one(self, connection: Connection, statement: str, params: Mapping[str, Any], records: str | None = None) -> Row:
        return self.answer(self.send(connection, statement, params, records))

    def text(self, statement: str, records: str | None = None, **parts: sql.Composable) -> str:
        """A statement with its table names in; made once for each."""
        key = (statement, records or "", *(part.as_string(None) for part in parts.values()))
        if key not in self._texts:
            self._texts[key] = compose(statement, self.address.schema, records, **parts)
        return self._texts[key]


class _FoundDead(Exception):
    """A connection that was kept is gone, and nothing was begun on it: ask once more on a new one."""


class _CommitUnanswered(Exception):
    """COMMIT was sent; nobody knows what became of it."""

    def __init__(self, cause: psycopg.Error) -> None:
        self.cause = cause
        super().__init__(str(cause))
