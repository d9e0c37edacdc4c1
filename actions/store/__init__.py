"""Stores: where actions are kept. `open_store` picks the adapter by the URL's scheme; nothing connects before the first read."""

from __future__ import annotations

import re
from typing import TypeGuard

from actions.errors import StoreUnusable
from actions.store.addresses import check_login, split_address
from actions.store.base import ActionStore, AgentStore, OwnChain

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):", re.ASCII)


def open_store(url: str, *, name: str = "main", entries_url: str | None = None) -> ActionStore:
    """A store for `postgres://...?schema=recall&collection=...`, `mongodb://.../db?collection=...`, `polign+http://...` or `memory:`.

    `entries_url` is the console's PostgreSQL database, for stores whose own server cannot keep the history of decisions; without one such a
    store is read and not settled. Drivers are imported only for the scheme that needs them.

    `serve` and `serve_key`, which lead to its tenant's own server, are checked and left to `serve.TenantServer`.

    Raises:
        StoreUnusable: no adapter for this scheme, or a part of the URL is malformed. Nothing was connected to.
    """
    check_login(name, url)
    url, _ = split_address(name, url)
    # Not urlsplit: it raises on some malformed hosts, and its error repeats the address.
    match = _SCHEME.match(url)
    scheme = match[1].lower() if match else ""
    if scheme in ("postgres", "postgresql"):
        from actions.store.postgres import PostgresStore

        return PostgresStore(url, name=name)
    if scheme in ("mongodb", "mongodb+srv"):
        from actions.store.mongo import MongoStore

        return MongoStore(url, name=name)
    if scheme in ("polign+http", "polign+https"):
        from actions.store.polign import PolignStore

        return PolignStore(url, name=name, entries_url=entries_url)
    if scheme == "memory":
        from actions.store.memory import MemoryStore

        return MemoryStore(name=name)
    raise StoreUnusable(
        name,
        f"no adapter for {scheme or 'an address without a scheme'}; use postgres://..., mongodb://..., polign+http://... or memory:",
    )


def open_agent_store(url: str, *, name: str = "main") -> AgentStore:
    """A store that an agent's own process can write: `open_store`, but for polign_db, which fences nothing.

    Raises:
        StoreUnusable: as `open_store`, or the scheme is polign_db's. Nothing was connected to.
    """
    store = open_store(url, name=name)
    if not is_agent_store(store):
        raise StoreUnusable(
            name, "polign_db fences no writes, so no agent of ours writes there; use postgres://, mongodb:// or memory:"
        )
    return store


def is_agent_store(store: ActionStore) -> TypeGuard[AgentStore]:
    """Whether an agent's own process can write it: every promise of AgentStore or none."""
    return hasattr(store, "acquire_lease")


def open_chain(name: str, url: str, chain: str) -> OwnChain:
    """A history in a PostgreSQL database by itself; `name` is for messages. Nothing connects before the first use.

    Raises:
        StoreUnusable: the address is malformed; the sentence does not repeat it.
    """
    from actions.store.postgres_entries import open_entries

    return open_entries(name, url, chain)
