"""Looking through a PostgreSQL database for collections of agents: read-only, one statement after the other, each within its time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from actions.errors import StoreUnusable
from actions.store.deadlines import Timeouts
from actions.store.discovery import (
    AGENTS,
    KEYS,
    MAX_COLLECTIONS,
    MAX_COUNTED,
    MAX_NAMESPACES,
    Findings,
    Found,
    MalformedAddress,
)
from actions.store.postgres_connection import Address, Connection, parse_address, store_error
from actions.store.postgres_statements import compose

_NAME = "database"
_TIMEOUTS = Timeouts()
_PATIENCE_S = 120
"""For all of a large database; each statement has its own time."""


def search(url: str) -> Findings:
    """Every schema with Recall's registry and leases; only the one that the address names, where it names one.

    Raises: as `discovery.discover`.
    """
    try:
        address = parse_address(_NAME, url)
    except StoreUnusable as exc:
        raise MalformedAddress(exc.store, exc.problem) from None
    with _connected(address) as connection:
        return _search(connection, address, only=address.schema if _names_schema(url) else None)


@contextmanager
def _connected(address: Address) -> Iterator[Connection]:
    try:
        with Connection.connect(address.conninfo, autocommit=True) as connection:
            connection.allow(_PATIENCE_S, answer_s=_TIMEOUTS.answer_s)
            connection.execute("SET default_transaction_read_only = on")
            yield connection
    except psycopg.Error as exc:
        raise store_error(_NAME, address, exc) from exc


def _names_schema(url: str) -> bool:
    return any(pair.startswith("schema=") for pair in url.partition("?")[2].split("&"))


def _search(connection: Connection, address: Address, *, only: str | None) -> Findings:
    found: list[Found] = []
    namespaces: dict[str, None] = {}
    problems: list[str] = []
    is_truncated = False
    for (schema,) in _all(connection, "discover_schemas", {"only": only, "limit": MAX_COLLECTIONS}):
        try:
            rows = _all(connection, "discover_collections", {"limit": MAX_COLLECTIONS + 1}, schema)
        except psycopg.Error as exc:
            problems.append(f"schema {schema}: {_problem(connection, address, exc)}")
            continue
        for name, table in rows[:MAX_COLLECTIONS]:
            if name.endswith(AGENTS):
                found.append(_count(connection, address, schema, name, table))
            elif name.endswith(KEYS):
                try:
                    keys = _all(connection, "discover_namespaces", {"limit": MAX_NAMESPACES + 1}, schema, table)
                except psycopg.Error as exc:
                    problems.append(f"keys in {name}: {_problem(connection, address, exc)}")
                    continue
                namespaces |= dict.fromkeys(namespace for (namespace,) in keys[:MAX_NAMESPACES] if namespace)
                is_truncated = is_truncated or len(keys) > MAX_NAMESPACES
        is_truncated = is_truncated or len(rows) > MAX_COLLECTIONS
    return Findings(found=tuple(found), namespaces=tuple(namespaces), problems=tuple(problems), is_truncated=is_truncated)


def _count(connection: Connection, address: Address, schema: str, name: str, table: str) -> Found:
    collection = name.removesuffix(AGENTS)
    try:
        rows = _all(connection, "discover_counts", {"collection": name, "limit": MAX_COUNTED + 1}, schema, table)
    except psycopg.Error as exc:
        return Found(collection=collection, schema=schema, problem=_problem(connection, address, exc))
    agents, open_actions = rows[0]
    return Found(collection=collection, schema=schema, agents=agents, open_actions=open_actions)


def _problem(connection: Connection, address: Address, exc: psycopg.Error) -> str:
    """What one collection is not told for; raises where the whole connection is gone, which is everybody's problem."""
    if connection.closed:
        raise exc
    return store_error(_NAME, address, exc).problem


def _all(
    connection: Connection, statement: str, params: dict[str, Any], schema: str = "", table: str | None = None
) -> list[tuple[Any, ...]]:
    return connection.execute(compose(statement, schema, table), params).fetchall()
