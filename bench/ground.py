"""The ground of every benchmark: a durable PostgreSQL of our own, Recall's tables made by the real client, filled by COPY."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from polign_recall import Client
from psycopg import sql

from actions.records import OPEN_STATUSES
from actions.store import open_store
from actions.store.base import ActionStore
from bench.overhear import PRELOADED
from bench.shape import Life, Shape, lives, records
from local import postgres, processes
from local.postgres import Postgres

COLLECTION = "recall_lexical_v1_agents"
TABLE = sql.Identifier("recall", COLLECTION)
DATABASE = "bench"
TOLD_EVERY = 200_000  # records: a long run says how far it is
WARM_UP = 8  # the driver prepares a statement on the server at its sixth use


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """A filled store: its address, what is in it, and what its server says about a piece of work."""

    url: str
    shape: Shape
    lives: list[Life]
    versions: dict[str, str]
    log: Path
    tell: Callable[[str], None]  # how far a long piece of work is
    name: str = DATABASE  # of its database

    @contextlib.contextmanager
    def store(self) -> Iterator[ActionStore]:
        """Our store on it, as the console opens it."""
        opened = open_store(self.url, name="main")
        try:
            yield opened
        finally:
            opened.close()

    @contextlib.contextmanager
    def new_store(self) -> Iterator[ActionStore]:
        """Our store with a warm connection that has not decoded any record yet, bar one."""
        with self.store() as store:
            for _ in range(WARM_UP):
                store.read_actions(OPEN_STATUSES, limit=1)
            yield store

    def database(self, name: str) -> str:
        """Another database on the same server, made when it is missing."""
        return Postgres.from_url(self.url).ensure_database(name)

    @contextlib.contextmanager
    def client(self) -> Iterator[Client]:
        """The real client with a binary of its own."""
        with Client(agent=True, backend="pgvector", backend_url=self.url) as opened:
            yield opened

    def witness(self, work: Callable[[ActionStore], object]) -> Testimony:
        """Run a piece of work once in sessions whose every statement and plan the server writes down."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            for name, value in _WITNESS.items():
                connection.execute(_alter(self.name, "SET {} = {}", sql.Identifier(*name.split(".")), sql.Literal(value)))
        try:
            with self.store() as store:
                store.read_watch()  # a pool's first connection is set up here, not in the work
                began = self.log.stat().st_size
                work(store)
            with self.log.open() as log:
                log.seek(began)
                return _testimony(log.read())
        finally:
            with psycopg.connect(self.url, autocommit=True) as connection:
                connection.execute(_alter(self.name, "RESET ALL"))

    def add(self, agents: Sequence[Life]) -> None:
        """More agents by COPY, while the indexes stand. Nobody else may write meanwhile."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            _copy_records(connection, agents, self.shape.seed, self.tell)
            _fill_leases(connection, agents)
        self.vacuum()

    def vacuum(self) -> None:
        """As autovacuum would leave it, a minute later."""
        self.execute("VACUUM ANALYZE")

    def execute(self, statement: LiteralString) -> list[tuple[Any, ...]]:
        """One statement of the benchmark's own."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []


@dataclass(frozen=True, slots=True, kw_only=True)
class Testimony:
    """What the server saw: each statement is a round trip; full scans are those of the records table."""

    statements: tuple[str, ...]
    full_scans: int


_WITNESS = {
    "log_statement": "all",
    "session_preload_libraries": "auto_explain",
    "auto_explain.log_min_duration": "0",
    "auto_explain.log_format": "json",
}
_ENTRY = re.compile(r"^\d{4}-\d\d-\d\d ", re.MULTILINE)
_STATEMENT = re.compile(r"LOG:  (?:statement|execute [^:]*): (.*)", re.DOTALL)
_PLAN = re.compile(r"plan:\s*(\{.*\})\s*$", re.DOTALL)


def _alter(database: str, change: LiteralString, *parts: sql.Composable) -> sql.Composed:
    return sql.SQL("ALTER DATABASE {} ").format(sql.Identifier(database)) + sql.SQL(change).format(*parts)


def _testimony(log: str) -> Testimony:
    entries = [entry for entry in _ENTRY.split(log) if entry]
    statements = [found[1].strip() for entry in entries if (found := _STATEMENT.search(entry))]
    plans = [json.loads(found[1]) for entry in entries if (found := _PLAN.search(entry))]
    return Testimony(statements=tuple(statements), full_scans=sum(_full_scans(plan["Plan"]) for plan in plans))


def _full_scans(node: dict[str, Any]) -> int:
    here = node["Node Type"] in ("Seq Scan", "Parallel Seq Scan") and node.get("Relation Name") == COLLECTION
    return here + sum(_full_scans(child) for child in node.get("Plans", ()))


@contextlib.contextmanager
def laid(shape: Shape, tell: Callable[[str], None]) -> Iterator[Ground]:
    """Start a server that keeps its promises to the disk, fill it, prepare it for us; stop it and forget its data afterwards."""
    home = processes.temporary_folder("bench", mode=0o711)
    try:
        with postgres.start(home) as server:
            with psycopg.connect(server.url(), autocommit=True) as connection:
                for statement in PRELOADED:
                    connection.execute(statement)
            yield _filled(server.create_database(DATABASE), DATABASE, shape, _log_of(home), tell)
    finally:
        postgres.remove_data(home)


@contextlib.contextmanager
def laid_beside(ground: Ground, name: str, shape: Shape) -> Iterator[Ground]:
    """Another store in a database of its own on the same server; dropped afterwards."""
    server = Postgres.from_url(ground.url)
    try:
        yield _filled(server.create_database(name), name, shape, ground.log, ground.tell)
    finally:
        server.drop_database(name)


def _filled(url: str, name: str, shape: Shape, log: Path, tell: Callable[[str], None]) -> Ground:
    with Client(agent=True, backend="pgvector", backend_url=url) as client:
        client.resume("maker").record_turn("user", "makes the tables")
        recall = client.server_version
    began = time.monotonic()
    agents = lives(shape)
    rows = _fill(url, agents, shape.seed, tell)
    with contextlib.closing(open_store(url, name="main")) as store:
        store.prepare(index=True)
    tell(f"  {rows:,} records of {shape.agents:,} agents in {time.monotonic() - began:.1f} s")
    return Ground(url=url, shape=shape, lives=agents, versions=_versions(url) | {"recall": recall}, log=log, tell=tell, name=name)


def _log_of(home: Path) -> Path:
    data = postgres.place_of_data(home)
    return data.parent / f"{data.name}.log"


def _versions(url: str) -> dict[str, str]:
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "SELECT current_setting('server_version'), (SELECT extversion FROM pg_extension WHERE extname = 'vector'), "
            "current_setting('fsync') || '/' || current_setting('synchronous_commit')"
        ).fetchone() or ("?", "?", "?")
    return {
        "postgresql": row[0],
        "pgvector": row[1],
        "fsync/synchronous_commit": row[2],
        "psycopg": psycopg.__version__,
        "python": sys.version.split()[0],
    }


def _fill(url: str, agents: Sequence[Life], seed: int, tell: Callable[[str], None]) -> int:
    """All rows by COPY; indexes are dropped before and made anew after, as they were."""
    with psycopg.connect(url, autocommit=True) as connection:
        indexes = connection.execute(
            "SELECT quote_ident(schemaname) || '.' || quote_ident(indexname), indexdef FROM pg_indexes "
            "WHERE schemaname = 'recall' AND tablename = %s AND indexname NOT LIKE '%%pkey'",
            [COLLECTION],
        ).fetchall()
        for name, _ in indexes:
            connection.execute(f"DROP INDEX {name}".encode())
        count = _copy_records(connection, agents, seed, tell)
        for _, definition in indexes:
            connection.execute(definition.encode())
        _fill_leases(connection, agents)
        connection.execute("VACUUM ANALYZE")
    return count


def _copy_records(connection: psycopg.Connection[Any], agents: Sequence[Life], seed: int, tell: Callable[[str], None]) -> int:
    count = 0
    connection.execute(sql.SQL("ALTER TABLE {} ALTER embedding SET DEFAULT array_fill(0, ARRAY[256])::vector").format(TABLE))
    with connection.cursor() as cursor, cursor.copy(sql.SQL("COPY {} (id, metadata) FROM STDIN").format(TABLE)) as copy:
        for life in agents:
            for record_id, metadata in records(life, seed):
                copy.write_row((record_id, json.dumps(metadata, ensure_ascii=False)))
                count += 1
                if count % TOLD_EVERY == 0:
                    tell(f"  {count:,} records ...")
    connection.execute(sql.SQL("ALTER TABLE {} ALTER embedding DROP DEFAULT").format(TABLE))
    connection.execute("UPDATE recall.recall_collections SET revision = revision + %s WHERE name = %s", [count, COLLECTION])
    return count


def _fill_leases(connection: psycopg.Connection[Any], agents: Sequence[Life]) -> None:
    """Live for a day by the server's clock; expired long ago; released as a release leaves it."""
    expires = {"live": "2000-01-02T00:00:00Z", "expired": "2000-01-01T00:00:00Z", "released": "1970-01-01T00:00:00Z"}
    statement = "COPY recall.recall_leases (collection, name, holder, epoch, expires_at) FROM STDIN"
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for number, life in enumerate(agents):
            epoch = 3 if life.lease == "released" else 1
            copy.write_row((COLLECTION, life.agent, f"pod-{number % 50}:{number}:0a1b2c3d", epoch, expires[life.lease]))
    connection.execute(
        "UPDATE recall.recall_leases SET expires_at = clock_timestamp() + interval '1 day' WHERE expires_at = %s",
        [expires["live"]],
    )
