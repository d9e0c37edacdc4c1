"""Every store under one contract: `store`, empty and prepared, and `recall`, who plays Recall and its agents on the same records.

A test that asks for both runs once for each kind of store. To add one: an entry in BACKENDS and a RecordWriter for it. What only a store
can promise that reads leases and settles in one transaction is marked `fenced`; polign_db's weaker promises are in test_polign_*.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from uuid import uuid4

import pytest

from actions.store.base import ActionStore
from actions.store.deadlines import Timeouts
from actions.store.memory import MemoryStore
from actions.store.mongo import MongoStore
from actions.store.polign import PolignStore
from actions.store.postgres import PostgresStore
from local.mongo import Mongo
from local.polign import RunningPolign
from local.postgres import Postgres
from tests.mongo_writer import MongoWriter
from tests.polign_writer import PolignWriter
from tests.recall_writer import RecallWriter, RecordWriter
from tests.servers import VECTOR_TEMPLATE
from tests.store.memory_writer import MemoryWriter

PATIENT = Timeouts(answer_s=60, read_s=60, write_s=60, commit_s=60)
"""What these tests say of a store they say of a busy one too; how long it waits by itself has tests of its own."""
PATIENT_SERVER = "options=-c%20lock_timeout%3D60s%20-c%20statement_timeout%3D60s"


@dataclass(frozen=True)
class Backend:
    """A store and who writes its records. `again` opens the same store as another process would, `another` another agent's process."""

    store: ActionStore
    recall: RecordWriter
    again: Callable[[], ActionStore]
    another: Callable[[], RecordWriter]


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


@pytest.fixture(scope="session")
def documents_url(mongo_server: Mongo) -> Iterator[str]:
    """The same on MongoDB."""
    name = f"t_records_{uuid4().hex[:12]}"
    with closing(MongoStore(mongo_server.url(name))) as store:
        store.prepare()
    yield mongo_server.url(name)
    mongo_server.drop_database(name)


def _memory(request: pytest.FixtureRequest) -> Iterator[Backend]:
    store = MemoryStore()
    recall = MemoryWriter(store)
    yield Backend(store, recall, lambda: store, lambda: recall)


def _postgres(request: pytest.FixtureRequest) -> Iterator[Backend]:
    url = f"{request.getfixturevalue('records_url')}?schema=recall&collection=c{uuid4().hex[:12]}"
    with ExitStack() as opened:

        def again() -> ActionStore:
            return opened.enter_context(closing(PostgresStore(f"{url}&{PATIENT_SERVER}", timeouts=PATIENT)))

        def another() -> RecallWriter:
            return opened.enter_context(RecallWriter(url))

        yield Backend(again(), another().create(), again, another)


def _mongo(request: pytest.FixtureRequest) -> Iterator[Backend]:
    url = with_collection(request.getfixturevalue("documents_url"))
    with ExitStack() as opened:

        def again() -> ActionStore:
            return opened.enter_context(closing(MongoStore(url, timeouts=PATIENT)))

        def another() -> MongoWriter:
            return opened.enter_context(MongoWriter(url))

        yield Backend(again(), another().create(), again, another)


def _polign(request: pytest.FixtureRequest) -> Iterator[Backend]:
    server: RunningPolign = request.getfixturevalue("polign_server")
    collection, entries_url = f"c{uuid4().hex[:12]}", request.getfixturevalue("records_url")
    with ExitStack() as opened:

        def again() -> ActionStore:
            return opened.enter_context(closing(PolignStore(server.url(collection), entries_url=entries_url)))

        def another() -> PolignWriter:
            return opened.enter_context(PolignWriter(server, collection))

        yield Backend(again(), another(), again, another)


def with_option(url: str, option: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{option}"


def with_collection(url: str) -> str:
    """An address with a collection of its own."""
    return with_option(url, f"collection=c{uuid4().hex[:12]}")


BACKENDS: dict[str, Callable[[pytest.FixtureRequest], Iterator[Backend]]] = {
    "memory": _memory,
    "postgres": _postgres,
    "mongo": _mongo,
    "polign": _polign,
}
fenced = pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "polign"], indirect=True)
"""For a test of what only those stores promise whose leases can be read and whose settle is one transaction under them."""


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
    with closing(PostgresStore(url)) as store, RecallWriter(url) as recall:
        yield store, recall.create()


@pytest.fixture
def documents(documents_url: str) -> Iterator[tuple[MongoStore, MongoWriter]]:
    """A prepared MongoDB store with its writer, for what only MongoDB can show."""
    url = with_collection(documents_url)
    with closing(MongoStore(url)) as store, MongoWriter(url) as recall:
        yield store, recall.create()


@pytest.fixture
def polign(polign_server: RunningPolign, records_url: str) -> Iterator[tuple[PolignStore, PolignWriter]]:
    """A prepared polign_db store with its writer, for what only polign_db can show."""
    collection = f"c{uuid4().hex[:12]}"
    with (
        closing(PolignStore(polign_server.url(collection), entries_url=records_url)) as store,
        PolignWriter(polign_server, collection) as recall,
    ):
        yield store, recall


@pytest.fixture(scope="session")
def prepared_template(pg_server: Postgres) -> Iterator[str]:
    """A database with Recall's tables and ours, to copy from."""
    name = f"t_template_{uuid4().hex[:12]}"
    url = pg_server.create_database(name, template=VECTOR_TEMPLATE)
    with closing(PostgresStore(url)) as store, RecallWriter(url) as recall:
        recall.create()
        store.prepare()
    yield name
    pg_server.drop_database(name)


@pytest.fixture
def alone_url(pg_server: Postgres, prepared_template: str) -> Iterator[str]:
    """A prepared database of one's own."""
    name = f"t_{uuid4().hex[:16]}"
    yield pg_server.create_database(name, template=prepared_template)
    pg_server.drop_database(name)


@pytest.fixture
def alone(alone_url: str) -> Iterator[tuple[PostgresStore, RecallWriter]]:
    """A prepared store in a database of its own, for tests that change tables, triggers or rights."""
    with closing(PostgresStore(alone_url)) as store, RecallWriter(alone_url) as recall:
        yield store, recall
