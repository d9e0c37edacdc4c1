"""Every store under one contract: `store`, empty and prepared, and `recall`, who plays Recall and its agents on the same records.

A test that asks for both runs once for each kind of store. To add one: an entry in BACKENDS and a RecordWriter for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from uuid import uuid4

import pytest

from actions.store.base import ActionStore
from actions.store.memory import MemoryStore
from actions.store.postgres import PostgresStore
from local.postgres import Postgres
from tests.recall_writer import RecallWriter, RecordWriter
from tests.servers import VECTOR_TEMPLATE
from tests.store.memory_writer import MemoryWriter


@dataclass(frozen=True)
class Backend:
    """A store and who writes its records. `again` opens the same store as another process would."""

    store: ActionStore
    recall: RecordWriter
    again: Callable[[], ActionStore]


@pytest.fixture(scope="session")
def records_url(pg_server: Postgres) -> Iterator[str]:
    """One prepared database for a worker's whole run; tests keep apart by collection."""
    name = f"t_records_{uuid4().hex[:12]}"
    url = pg_server.create_database(name, template=VECTOR_TEMPLATE)
    store = PostgresStore(url)
    store.prepare()
    store.close()
    yield url
    pg_server.drop_database(name)


def _memory(request: pytest.FixtureRequest) -> Iterator[Backend]:
    store = MemoryStore()
    yield Backend(store, MemoryWriter(store), lambda: store)


def _postgres(request: pytest.FixtureRequest) -> Iterator[Backend]:
    url = f"{request.getfixturevalue('records_url')}?schema=recall&collection=c{uuid4().hex[:12]}"
    opened: list[PostgresStore] = []

    def open_store() -> PostgresStore:
        opened.append(PostgresStore(url))
        return opened[-1]

    with RecallWriter(url) as recall:
        yield Backend(open_store(), recall.create(), open_store)
    for store in opened:
        store.close()


BACKENDS: dict[str, Callable[[pytest.FixtureRequest], Iterator[Backend]]] = {"memory": _memory, "postgres": _postgres}


@pytest.fixture(params=list(BACKENDS))
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    yield from BACKENDS[request.param](request)


@pytest.fixture
def store(backend: Backend) -> ActionStore:
    return backend.store


@pytest.fixture
def recall(backend: Backend) -> RecordWriter:
    return backend.recall


@pytest.fixture
def pg(records_url: str) -> Iterator[tuple[PostgresStore, RecallWriter]]:
    """A prepared PostgreSQL store with its writer, for what only PostgreSQL can show."""
    url = f"{records_url}?collection=c{uuid4().hex[:12]}"
    store = PostgresStore(url)
    with RecallWriter(url) as recall:
        yield store, recall.create()
    store.close()
