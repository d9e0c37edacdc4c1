"""What a server is asked while something happens, whoever asks: statements, rows that were read for them, and the same asked barely.

Unlike `Ground.witness`, which opens sessions of its own, this listens to those that are open already: a web process's two pools.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from psycopg import RawCursor

from bench.report import clock
from local.postgres import Postgres

PRELOADED: tuple[LiteralString, ...] = (
    "LOAD 'auto_explain'",
    "ALTER SYSTEM SET session_preload_libraries = 'auto_explain'",
    "ALTER SYSTEM SET auto_explain.log_min_duration = -1",  # there, and silent
    "ALTER SYSTEM SET auto_explain.log_analyze = on",
    "ALTER SYSTEM SET auto_explain.log_timing = off",
    "ALTER SYSTEM SET auto_explain.log_format = 'json'",
    "ALTER SYSTEM SET log_line_prefix = '%m [%p] <%d> '",
    "SELECT pg_reload_conf()",
)
"""What a server has to be told before its sessions are opened."""
_LOUD: tuple[LiteralString, ...] = (
    "ALTER SYSTEM SET auto_explain.log_min_duration = 0",
    "ALTER SYSTEM SET log_statement = 'all'",
    "SELECT pg_reload_conf()",
)
_SILENT: tuple[LiteralString, ...] = (
    "ALTER SYSTEM SET auto_explain.log_min_duration = -1",
    "ALTER SYSTEM RESET log_statement",
    "SELECT pg_reload_conf()",
)
_HEARD_S = 0.05  # until every session has heard of a setting
_ENTRY = re.compile(r"^\d{4}-\d\d-\d\d ", re.MULTILINE)
_HEAD = re.compile(r"\[\d+\] <([^>]*)> LOG:  ")
# What is read in pieces is asked as a whole here: a cursor's name is taken once it has been asked.
_CURSOR = re.compile(r'^DECLARE "[^"]+" .*?CURSOR (?:WITH HOLD )?FOR ', re.DOTALL)
_STATEMENT = re.compile(r"(?:statement|execute [^:]*): (.*)", re.DOTALL)
_PLAN = re.compile(r"plan:\s*(\{.*\})\s*$", re.DOTALL)
_PARAMETER = re.compile(r"\$(\d+) = (NULL|'(?:[^']|'')*')", re.DOTALL)
_WRITES = re.compile(r"\b(INSERT|UPDATE|DELETE|FOR SHARE|nextval|pg_advisory)\b")
_SCANS = frozenset({"Seq Scan", "Index Scan", "Index Only Scan", "Bitmap Heap Scan", "Tid Scan", "Sample Scan", "Tid Range Scan"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One statement that can be asked again."""

    database: str
    text: str
    parameters: tuple[str | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What was asked meanwhile. `rows` are those that scans touched, whether a filter kept them or not."""

    statements: int  # each is a round trip; BEGIN and COMMIT among them
    rows: int
    full_scans: tuple[str, ...]  # the tables that were read whole
    asked: tuple[Asked, ...]
    writes: int  # statements that cannot be asked again: they write, or lock


def overhear(server: Postgres, log: Path, work: Callable[[], object]) -> Heard:
    """Run `work` once, while the server writes down every statement and plan of every session. Slower than it is otherwise."""
    with psycopg.connect(server.url(), autocommit=True) as connection:
        try:
            for statement in _LOUD:
                connection.execute(statement)
            time.sleep(_HEARD_S)
            began = log.stat().st_size
            work()
            ended = log.stat().st_size
        finally:
            for statement in _SILENT:
                connection.execute(statement)
            time.sleep(_HEARD_S)
    with log.open("rb") as opened:
        opened.seek(began)
        return heard(opened.read(ended - began).decode(errors="replace"))


def heard(log: str) -> Heard:
    """Read a server's log as PRELOADED has it written."""
    statements, rows, writes = 0, 0, 0
    scans: list[str] = []
    asked: list[Asked] = []
    for entry in filter(None, _ENTRY.split(log)):
        head = _HEAD.search(entry)
        if head is None:
            continue
        said = entry[head.end() :]
        if _STATEMENT.match(said):
            statements += 1
        elif found := _PLAN.search(said):
            plan = json.loads(found[1])
            rows += _rows_read(plan["Plan"])
            scans += _full_scans(plan["Plan"])
            if _WRITES.search(plan["Query Text"]):
                writes += 1
            else:
                asked.append(
                    Asked(
                        database=head[1],
                        text=_CURSOR.sub("", plan["Query Text"]),
                        parameters=_parameters(plan.get("Query Parameters", "")),
                    )
                )
    return Heard(statements=statements, rows=rows, full_scans=tuple(scans), asked=tuple(asked), writes=writes)


def measure_floor(server: Postgres, asked: Sequence[Asked], *, times: int) -> list[float]:
    """Milliseconds of the same statements asked one after the other by the bare driver, all rows fetched, nothing made of them.

    What cannot be asked again (types that only the first asker knew) is left out, so that the floor is rather too low.
    """
    connections = {
        database: psycopg.connect(server.url(database), autocommit=True) for database in {one.database for one in asked}
    }
    try:
        known = [one for one in asked if _can_be_asked(connections[one.database], one)]

        def ask_all() -> None:
            for one in known:
                _ask(connections[one.database], one)

        for _ in range(6):  # the driver prepares a statement at its sixth use
            ask_all()
        return [clock(ask_all) for _ in range(times)]
    finally:
        for connection in connections.values():
            connection.close()


def _ask(connection: psycopg.Connection[Any], one: Asked) -> None:
    cursor = RawCursor(connection)
    cursor.execute(one.text, one.parameters or None)
    if cursor.description:
        cursor.fetchall()


def _can_be_asked(connection: psycopg.Connection[Any], one: Asked) -> bool:
    try:
        _ask(connection, one)
    except psycopg.Error:
        return False
    return True


def _parameters(said: str) -> tuple[str | None, ...]:
    return tuple(None if value == "NULL" else value[1:-1].replace("''", "'") for _, value in _PARAMETER.findall(said))


def _rows_read(node: dict[str, Any]) -> int:
    here = 0.0
    if node["Node Type"] in _SCANS:
        removed = sum(node.get(f"Rows Removed by {why}", 0) for why in ("Filter", "Index Recheck"))
        here = (node.get("Actual Rows", 0) + removed) * node.get("Actual Loops", 1)
    return round(here) + sum(_rows_read(child) for child in node.get("Plans", ()))


def _full_scans(node: dict[str, Any]) -> list[str]:
    here = [str(node.get("Relation Name"))] if node["Node Type"] == "Seq Scan" else []
    return here + [name for child in node.get("Plans", ()) for name in _full_scans(child)]
