"""A real server for a real browser: uvicorn as a process, with the test's console database and a store of its own on PostgreSQL."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import cache
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import User
from django.test import Client
from playwright.sync_api import Browser, BrowserContext, Page, expect
from pytest_django import DjangoDbBlocker

from actions.store import open_store
from console.models import Grant
from local.postgres import Postgres
from tests.browser import kinds, ledger
from tests.browser.live import HEARD, PATIENCE_S
from tests.recall_writer import RecallWriter
from tests.running_console import running_console

# Playwright's own loop runs in the thread in which the tests use the database.
os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"

# How long to wait before calling it a failure, on a machine that does other things too; how fast it is stands in the benchmarks.
expect.set_options(timeout=PATIENCE_S * 1000)

PASSWORD = "correct horse battery staple"
COLLECTION = "browser"
LONG = ("test_asking.py", "test_hundred.py", "test_trouble.py")
"""They take about as long as all the others together."""
ALIVE = timedelta(hours=1)
"""How long a lease lives that has to outlive a test on a slow machine."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One server and one browser for many: under xdist each half stays in one process, and the two side by side end sooner."""
    for item in items:
        if "tests/browser/" in item.nodeid:
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.xdist_group("browser-long" if item.path.name in LONG else "browser"))


@pytest.fixture(scope="session")
def store_url() -> str:
    return f"{django_settings.ACTION_STORES['main']}?collection={COLLECTION}"


@pytest.fixture(scope="session")
def site(django_db_setup: None, django_db_blocker: DjangoDbBlocker, pg_server: Postgres, store_url: str) -> Iterator[str]:
    """The address of the running console."""
    with RecallWriter(django_settings.ACTION_STORES["main"], collection=COLLECTION) as writer:
        writer.create()
    store = open_store(store_url)
    store.prepare()
    store.close()
    database_url = pg_server.url(django_settings.DATABASES["default"]["NAME"])
    with running_console(
        database_url=database_url,
        stores=f"main={store_url}",
        more={"RESOLVER_CALLABLES": ledger.PATH, "RUN_TYPES": kinds.MODULE},
    ) as address:
        yield address


@pytest.fixture
def records(site: str, transactional_db: None) -> Iterator[RecallWriter]:
    """The store as an agent writes it, empty."""
    with RecallWriter(django_settings.ACTION_STORES["main"], collection=COLLECTION) as writer:
        writer.run("TRUNCATE {records}, {leases}")
        yield writer


@pytest.fixture
def ana(transactional_db: None) -> User:
    return _person("ana", "operator")


@pytest.fixture
def bea(transactional_db: None) -> User:
    return _person("bea", "operator")


@pytest.fixture
def ben(transactional_db: None) -> User:
    return _person("ben", "viewer")


@pytest.fixture
def eve(transactional_db: None) -> User:
    """An admin who is an operator too."""
    return _person("eve", "admin", "operator")


@pytest.fixture
def cleo(transactional_db: None) -> User:
    """A second person: approves, and may do nothing else."""
    return _person("cleo", "approver")


@cache
def _hash_of_password() -> str:
    """Slow by design, so once for the whole run."""
    return make_password(PASSWORD)


def _person(name: str, *roles: str) -> User:
    user = User.objects.create(username=name, password=_hash_of_password())
    for role in roles:
        Grant.objects.create(user=user, role=role)
    return user


SignedIn = Callable[..., Page]


@pytest.fixture
def signed_in(browser: Browser, site: str) -> Iterator[SignedIn]:
    """Open a browser of its own in which this person is signed in; `signed_in(ana, java_script_enabled=False)`."""
    contexts: list[BrowserContext] = []

    def make(user: User, **options: Any) -> Page:
        client = Client()
        client.force_login(user)
        context = browser.new_context(base_url=site, **({"viewport": {"width": 1440, "height": 900}} | options))
        contexts.append(context)
        context.add_cookies([{"name": "sessionid", "value": client.cookies["sessionid"].value, "url": site}])
        context.set_default_timeout(PATIENCE_S * 1000)
        context.add_init_script(HEARD)
        return context.new_page()

    yield make
    for context in contexts:
        context.close()


@pytest.fixture
def stranger(browser: Browser, site: str) -> Iterator[Page]:
    """A browser in which nobody is signed in."""
    context = browser.new_context(base_url=site, viewport={"width": 1440, "height": 900})
    context.add_init_script(HEARD)
    yield context.new_page()
    context.close()
