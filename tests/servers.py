"""The pytest plugin that starts one PostgreSQL and one Valkey for a whole run, before Django's settings are read, and stops them.

Named in pyproject.toml (`-p tests.servers`), since pytest-django reads settings before any conftest. Under xdist the
controller starts the servers; the workers find their addresses in the environment and take databases of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
from collections.abc import Generator, Iterator
from importlib.metadata import version

import pytest

from local import chromium, dovecot, polign, postgres, valkey
from local.mongo import Mongo
from local.postgres import Postgres

POSTGRES_URL = "TEST_DATABASE_URL"
BROKER_URL = "TEST_BROKER_URL"
MONGO_URL = "MONGO_URL"
"""A replica set of the developer's own; without it tests/conftest.py starts a stand-in for those tests that need one."""
VECTOR_TEMPLATE = "settle_test_vector"

# Settings of the run, whatever the developer's shell says; tests of settings build environments of their own.
_SETTINGS = {
    "DEBUG": "0",
    "DEMO": "1",
    "SECRET_KEY": "only-for-tests-and-long-enough-to-be-taken-for-a-secret-of-its-own",
    "SECRETS_KEY": "b25seS1mb3ItdGVzdHMtMzItYnl0ZXMtb2Yta2V5LWE=",
    "AUDIT_SIGNING_KEY": "b25seS1mb3ItdGVzdHMtMzItYnl0ZXMtb2Yta2V5LWI=",
    "ALLOWED_HOSTS": "testserver localhost 127.0.0.1",
    "BASE_URL": "http://testserver",
    "EMAIL_URL": "memory:",
}
_FOREIGN = ("CSRF_TRUSTED_ORIGINS", "RECALL_BACKEND", "RECALL_BACKEND_URL", "RECALL_BACKEND_KEY", "RECALL_COLLECTION")

_running = contextlib.ExitStack()
_versions: list[str] = []


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests() -> Generator[None, None, None]:
    """A wrapper's first half runs before every other plugin's hook: before pytest-django reads the settings."""
    if POSTGRES_URL not in os.environ:
        _start_postgres()
    if BROKER_URL not in os.environ:
        _start_valkey()
    _set_environment(Postgres.from_url(os.environ[POSTGRES_URL]))
    return (yield)


def _start_postgres() -> None:
    running = _running.enter_context(postgres.start())
    os.environ[POSTGRES_URL] = running.url()
    _running.callback(os.environ.pop, POSTGRES_URL)


def _start_valkey() -> None:
    broker = _running.enter_context(valkey.start())
    os.environ[BROKER_URL] = broker.url()
    _versions.append(f"Valkey {broker.version()}")
    _running.callback(os.environ.pop, BROKER_URL)


def _set_environment(server: Postgres) -> None:
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    _ensure_vector_template(server)
    for name in _FOREIGN:
        os.environ.pop(name, None)
    os.environ |= _SETTINGS
    os.environ["DATABASE_URL"] = server.url("console")  # pytest-django makes test_console, test_console_gw0, ... of it
    os.environ["ACTION_STORES"] = f"main={_fresh_records(server)}"
    os.environ["CELERY_BROKER_URL"] = _broker_of(worker)
    _versions.insert(0, f"PostgreSQL {server.version()} with pgvector {_vector_version(server)}")


def _ensure_vector_template(server: Postgres) -> None:
    """What every database of a test is copied from: Recall needs the extension. The controller makes it before its workers start."""
    if server.database_exists(VECTOR_TEMPLATE):
        return
    server.create_database(VECTOR_TEMPLATE)
    with postgres.connect(server.url(VECTOR_TEMPLATE)) as connection:
        connection.execute("CREATE EXTENSION vector")


def _vector_version(server: Postgres) -> str:
    with postgres.connect(server.url(VECTOR_TEMPLATE)) as connection:
        row = connection.execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'").fetchone()
    return str(row[0]) if row else "missing"


def _fresh_records(server: Postgres) -> str:
    """The store `main` of this process: no other worker's tests, nor a run inside a run, write there."""
    name = f"records_{os.getpid()}"
    _running.callback(server.drop_database, name)
    return server.create_database(name, template=VECTOR_TEMPLATE)


def _broker_of(worker: str) -> str:
    database = int(worker.removeprefix("gw")) if worker.startswith("gw") else 0
    return os.environ[BROKER_URL].replace("virtual_host=0", f"virtual_host={database}")


def pytest_report_header() -> list[str]:
    servers = [*_versions, _mongo_version(), f"polign_db {polign.server_version()}"]
    return [f"servers: {', '.join(servers)}", *_left_out()]


def _mongo_version() -> str:
    if url := os.environ.get(MONGO_URL):
        return f"MongoDB {Mongo.from_url(url).version()} of {MONGO_URL}"
    return f"SecantusDB {version('secantusdb')} in MongoDB's place"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in _left_out():
        terminalreporter.write_line(line, red=True, bold=True)


def _left_out() -> list[str]:
    return list(_missing().values())


def _missing() -> dict[str, str]:
    """Markers of the tests that this machine cannot run, and what to say of it."""
    how = "on this machine; install it, or run as root on Debian to have it installed"
    missing = {}
    if chromium.find() is None:
        missing["browser"] = f"BROWSER TESTS LEFT OUT: no chromium {how}"
    if dovecot.find() is None:
        missing["dovecot"] = f"DOVECOT TEST LEFT OUT: no dovecot {how}"
    return missing


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Eight thousand tests are a million objects that stay to the end: looking through them for garbage, again and again, was a sixth of
    the tests' time. They are made without, and left out from then on. What tests leave behind is found young; the old is looked through
    a tenth as often as by default: that was half of what was left."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(*gc.get_threshold()[:2], 100)
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    markers = _missing()
    left_out = [item for item in items if any(item.get_closest_marker(name) for name in markers)]
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    _running.close()


@pytest.fixture(autouse=True)
def _no_loop_runs_but_the_tests_own(request: pytest.FixtureRequest) -> Iterator[None]:
    """Once a browser was used, Playwright's loop counts as running in this thread until the end; only tests with a browser are its guests.

    Here and not in a conftest: plugins' fixtures come in the order of the plugins, and this one has to be set up before pytest-django's and
    to go after it. Django keeps other connections where a loop runs: a test's transaction was begun on one, and what the test wrote went by
    another, was committed, and met the tests after it.
    """
    running = None if request.node.get_closest_marker("browser") else asyncio._get_running_loop()
    if running is not None:
        asyncio._set_running_loop(None)
    yield
    if running is not None:
        asyncio._set_running_loop(running)
