"""One database for each test, the real Recall on it, and our store beside it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from actions.store import open_store
from actions.store.base import ActionStore
from tests.interop.driver import Recall


@pytest.fixture(params=["postgres", "mongo"])
def url(request: pytest.FixtureRequest) -> str:
    """An empty database of each kind. A module about one kind alone names its own."""
    address: str = request.getfixturevalue({"postgres": "pg_url", "mongo": "mongo_url"}[request.param])
    return address


@pytest.fixture
def recall(url: str) -> Iterator[Recall]:
    """Clients of this test's database; all are ended afterwards."""
    opened = Recall(url)
    yield opened
    opened.close()


@pytest.fixture
def store(url: str) -> Iterator[ActionStore]:
    """Our store on the same database, prepared before Recall has made any table."""
    opened = open_store(url, name="main")
    opened.prepare()
    yield opened
    opened.close()
