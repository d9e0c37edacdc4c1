"""Where LangGraph keeps the states of runs: its own PostgreSQL checkpointer, in a schema of its own. Opened by console/stores.py alone.

A connection for each use: a step is rare beside what it does, and none is ever left over from before a fork or a restart of the database.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from actions.errors import ActionsError, StoreUnavailable, StoreUnusable

SCHEMA = "settle_runs"
NAME = "checkpoints"
"""What errors call it, where they name a store."""
MAX_STATE_BYTES = 16 * 1024 * 1024
"""Of one value of a graph's state; it is written anew whenever it changes."""
PREPARING_S = 60.0
STATEMENT_TIMEOUT_S = 10


class StateRefused(ActionsError):
    """A graph's state cannot be kept as it is. Nothing of it was written; trying again changes nothing."""


class _Bounded(JsonPlusSerializer):
    """Reads back only what LangGraph counts as safe, never pickle, and writes nothing that no database should hold."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        kind, data = super().dumps_typed(obj)
        if len(data) > MAX_STATE_BYTES:
            raise StateRefused(f"a value of the graph's state has {len(data):,} bytes; at most {MAX_STATE_BYTES:,} are kept")
        return kind, data


class _Saver(PostgresSaver):
    """LangGraph's own, with the driver's errors as ours."""

    # Without the explicit list whatever stands in the database would be imported and called.
    serde = _Bounded(pickle_fallback=False, allowed_msgpack_modules=None, allowed_json_modules=None)

    @contextmanager
    def _cursor(self, *, pipeline: bool = False) -> Iterator[Any]:
        with _as_ours(), super()._cursor(pipeline=pipeline) as cursor:
            yield cursor


@contextmanager
def open_saver(url: str) -> Iterator[_Saver]:
    """The checkpointer, for one step or one look.

    Raises:
        StoreUnavailable: the database does not answer, here or in the midst of it; what was being written may be there.
        StoreUnusable: `migrate` has not made its tables.
        StateRefused: what is to be kept cannot be kept. Nothing was written.
    """
    with _as_ours():
        # Closed by itself, without `with`: an error of whoever uses it is not the connection's.
        opened = _Saver.from_conn_string(url)
        saver = opened.__enter__()
    try:
        yield saver  # type: ignore[misc]
    finally:
        try:
            opened.__exit__(None, None, None)
        except psycopg.Error:
            pass  # it is gone, which is what closing is for


def prepare(url: str) -> None:
    """Make the schema and LangGraph's tables, or bring them up to date. Several processes at once: one does it, the others find it done.

    Its indexes are made CONCURRENTLY, outside of transactions; whoever waited for a lock meanwhile would be waited for by that. So nobody
    waits inside the database.

    Raises:
        StoreUnavailable: the database does not answer, or somebody else has been preparing for longer than anybody waits.
    """
    deadline = time.monotonic() + PREPARING_S
    with open_saver(url) as saver, _as_ours():
        connection: Any = saver.conn
        connection.execute("SET statement_timeout = 0")
        while not _row(connection, "SELECT pg_try_advisory_lock(hashtext('settle_runs')) AS is_ours")["is_ours"]:
            if time.monotonic() > deadline:
                raise StoreUnavailable(NAME, "somebody else is preparing them, and does not come to an end")
            time.sleep(0.1)
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
        saver.setup()


def _row(connection: Any, statement: str) -> Any:
    return connection.execute(statement).fetchone()


@contextmanager
def _as_ours() -> Iterator[None]:
    try:
        yield
    except psycopg.DataError as exc:
        raise StateRefused(f"the graph's state holds what PostgreSQL does not keep: {_line(exc)}") from exc
    except psycopg.errors.UndefinedTable as exc:
        raise StoreUnusable(NAME, "their tables are missing; run migrate") from exc
    except psycopg.Error as exc:
        raise StoreUnavailable(NAME, f"their database does not answer: {_line(exc)}", may_be_written=True) from exc


def _line(exc: Exception) -> str:
    return (str(exc).strip().splitlines() or [type(exc).__name__])[0][:200]


__all__ = ["MAX_STATE_BYTES", "SCHEMA", "StateRefused", "open_saver", "prepare"]
