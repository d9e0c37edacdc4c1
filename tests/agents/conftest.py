"""A run's file of effects, and where its records and checkpoints are kept: in memory, and in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents.refunds import Line, World, opened_line


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "effects.jsonl")


@pytest.fixture(params=["memory", "postgres"])
def line(request: pytest.FixtureRequest) -> Iterator[Line]:
    url = request.getfixturevalue("pg_url") if request.param == "postgres" else ""
    with opened_line(request.param, url) as opened:
        yield opened


@pytest.fixture
def quick() -> Iterator[Line]:
    """In memory, for what no database has a part in."""
    with opened_line("memory", "") as opened:
        yield opened
