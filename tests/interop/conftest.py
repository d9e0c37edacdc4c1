"""One database for each test, the real Recall on it, and our store beside it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from actions.store import open_store
from actions.store.base import ActionStore
from tests.interop.driver import Recall


@pytest.fixture
def recall(pg_url: str) -> Iterator[Recall]:
    """Clients of this test's database; all are ended afterwards."""
    opened = Recall(pg_url)
    yield opened
    opened.close()


@pytest.fixture
def store(pg_url: str) -> Iterator[ActionStore]:
    """Our store on the same database, prepared before Recall has made any table."""
    opened = open_store(pg_url, name="main")
    opened.prepare()
    yield opened
    opened.close()
