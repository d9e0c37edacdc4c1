"""Fixtures that every folder of tests may use: empty databases, and the browser's launch arguments."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.test import TransactionTestCase
from hypothesis import settings
from pytest_django import DjangoDbBlocker
from whitenoise.middleware import WhiteNoiseMiddleware

from local import chromium, mongo, polign
from local.mongo import Mongo
from local.polign import RunningPolign
from local.postgres import Postgres
from tests.servers import MONGO_URL, POSTGRES_URL, VECTOR_TEMPLATE

# In short, and without a deadline: a busy machine is no failure.
settings.register_profile("settle", deadline=None, max_examples=50)
settings.load_profile("settle")

OF_MIGRATE = frozenset({"django_migrations", "django_content_type", "auth_permission"})


@pytest.fixture(scope="session")
def pg_server() -> Postgres:
    """The run's PostgreSQL, as its superuser."""
    return Postgres.from_url(os.environ[POSTGRES_URL])


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """The console's database; its own history holds a connection there, which is given back before it is dropped.

    Nothing is known of sweeps: no worker runs, and a minute after `migrate` every page would say so.
    """
    from console import stores  # settings are read when Django is, not when this module is
    from console.models import Sweep

    with django_db_blocker.unblock():
        Sweep.objects.all().delete()
    yield

    stores.reset()


@pytest.fixture
def pg_url(pg_server: Postgres) -> Iterator[str]:
    """The address of a fresh, empty database with the vector extension; dropped afterwards, whoever is still connected."""
    name = f"t_{uuid4().hex[:16]}"
    yield pg_server.create_database(name, template=VECTOR_TEMPLATE)
    pg_server.drop_database(name)


@pytest.fixture(scope="session")
def mongo_server() -> Iterator[Mongo]:
    """The MongoDB that MONGO_URL names, a replica set; else a stand-in of this worker's own, started when the first test needs it."""
    if url := os.environ.get(MONGO_URL):
        yield Mongo.from_url(url)
        return
    with mongo.start() as running:
        yield running.server


@pytest.fixture
def mongo_url(mongo_server: Mongo) -> Iterator[str]:
    """The address of a fresh, empty database; dropped afterwards."""
    name = f"t_{uuid4().hex[:16]}"
    yield mongo_server.url(name)
    mongo_server.drop_database(name)


@pytest.fixture(scope="session")
def polign_server() -> Iterator[RunningPolign]:
    """A polign_db of this worker's own, started when the first test needs it; tests keep apart by collection."""
    with polign.start() as running:
        yield running


@pytest.fixture(scope="session", autouse=True)
def _only_what_was_written_is_emptied() -> Iterator[None]:
    """After a test with transactions of its own Django empties every table and lays the permissions anew; here those that hold rows go."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", lambda self: _empty_tables())
        yield


@pytest.fixture(scope="session", autouse=True)
def _static_files_are_looked_for_once() -> Iterator[None]:
    """Each client of a test makes its own middleware, of which one walks through all static files: they stay as they are during a run."""
    found: dict[str, dict[str, Any]] = {}
    look = WhiteNoiseMiddleware.add_files_from_finders

    def look_once(self: WhiteNoiseMiddleware) -> None:
        if self.static_prefix not in found:
            look(self)
            found[self.static_prefix] = dict(self.files)
        self.files.update(found[self.static_prefix])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WhiteNoiseMiddleware, "add_files_from_finders", look_once)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Hostile text that a test let out (half a character in a log) would end the whole run: no worker of xdist could send its report."""
    return _as_utf8((yield))


def _as_utf8(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {name: _as_utf8(part) for name, part in value.items()}
    return type(value)(map(_as_utf8, value)) if type(value) in (list, tuple) else value


def _empty_tables() -> None:
    """Where nothing was written nothing is done; what `migrate` wrote stays. Django does not know the console's own history."""
    names = sorted(set(connection.introspection.django_table_names(only_existing=True)) - OF_MIGRATE)
    looks = [f"(SELECT '{name}' FROM \"{name}\" LIMIT 1)" for name in names]
    looks.append("(SELECT 'settle_audit' FROM settle_audit.heads LIMIT 1)")
    with connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join(looks))
        written = {name for (name,) in cursor.fetchall()}
        if "settle_audit" in written:
            cursor.execute(
                "ALTER TABLE settle_audit.entries DISABLE TRIGGER entries_are_final;"
                "TRUNCATE settle_audit.entries, settle_audit.heads;"
                "ALTER TABLE settle_audit.entries ENABLE ALWAYS TRIGGER entries_are_final"
            )
        if tables := [f'"{name}"' for name in sorted(written - {"settle_audit"})]:
            cursor.execute(f"TRUNCATE {', '.join(tables)} CASCADE")


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args: dict[str, Any]) -> dict[str, Any]:
    """Playwright drives the machine's Chromium; it never downloads one."""
    return browser_type_launch_args | {"executable_path": chromium.find(), "args": chromium.launch_arguments()}
