"""Every database of a demo, for everyone who reaches it. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CONSOLE = "settle_console"  # the console's role, on every server
AGENTS = "settle_agents"
RECORDS = "records"  # the database with a store's records
COLLECTION = "recall_lexical_v1_agents"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Passwords:
    """What the roles log in with, on every server."""

    console: str
    agents: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Store:
    """Recall's database under one name, for everyone who reaches it."""

    name: str  # in ACTION_STORES
    console: str  # for the console's role: it may settle there, but owns nothing
    owner: str  # for whoever prepares it
    agents: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Addresses:
    """The console's own database and the stores, in the order in which people see them."""

    console: str
    stores: tuple[Store, ...]

    @property
    def agents(self) -> dict[str, str]:
        """Where the agents of each store keep their records."""
        return {store.name: store.agents for store in self.stores}


def action_stores(addresses: Mapping[str, str]) -> str:
    """As ACTION_STORES names them."""
    return " ".join(f"{name}={address}" for name, address in addresses.items())


def stores_in(text: str) -> dict[str, str]:
    """What `action_stores` wrote."""
    return {name: address for name, _, address in (word.partition("=") for word in text.split())}


def is_mongo(address: str) -> bool:
    return address.startswith("mongodb:")
