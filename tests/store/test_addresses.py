"""Addresses: whose password was not escaped, of which nothing is repeated, and which lead to a store that agents can write."""

from __future__ import annotations

import pytest

from actions.errors import InvalidQuery, StoreUnusable
from actions.store import is_agent_store, open_agent_store, open_store
from actions.store.discovery import discover

SECRETS = ("hunter2", "secretpw")
ADDRESSES = [
    f"{scheme}://u:hunter2{char}secretpw@127.0.0.1:1/x"
    for scheme in ("postgres", "postgresql", "mongodb", "polign+http", "polign+https")
    for char in "@/"
]


@pytest.mark.parametrize("address", ADDRESSES)
def test_no_part_of_a_password_is_told(address: str) -> None:
    with pytest.raises(StoreUnusable) as opened:
        open_store(address)

    assert not any(secret in str(opened.value) for secret in SECRETS)
    assert "%XX" in str(opened.value)


@pytest.mark.parametrize("address", [one for one in ADDRESSES if not one.startswith("polign")])
def test_nor_by_the_search_for_collections(address: str) -> None:
    with pytest.raises(InvalidQuery) as searched:
        discover(address)

    assert not any(secret in str(searched.value) for secret in SECRETS)


@pytest.mark.parametrize("address", ["postgres://u%40corp:p%2Fw@127.0.0.1:1/x?host=/tmp", "mongodb://u:p%40w@127.0.0.1:1/x"])
def test_escaped_ones_are_taken(address: str) -> None:
    open_store(address).close()


def test_polign_db_is_no_store_for_an_agents_own_process() -> None:
    with pytest.raises(StoreUnusable, match="fences no writes"):
        open_agent_store("polign+http://localhost:1/?collection=c")
    assert is_agent_store(open_agent_store("memory:"))
