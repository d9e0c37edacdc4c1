"""Stores: where actions are kept. `open_store` picks the adapter by the URL's scheme; nothing connects before the first read."""

from __future__ import annotations

from urllib.parse import urlsplit

from actions.errors import StoreUnusable
from actions.store.base import ActionStore


def open_store(url: str, *, name: str = "main") -> ActionStore:
    """A store for `postgres://...?schema=recall&collection=...` or `memory:`. Drivers are imported only for the scheme that needs them.

    Raises:
        StoreUnusable: no adapter for this scheme, or a part of the URL is malformed. Nothing was connected to.
    """
    scheme = urlsplit(url).scheme
    if scheme in ("postgres", "postgresql"):
        from actions.store.postgres import PostgresStore

        return PostgresStore(url, name=name)
    if scheme == "memory":
        from actions.store.memory import MemoryStore

        return MemoryStore(name=name)
    raise StoreUnusable(name, f"no adapter for {scheme or 'an address without a scheme'}; use postgres://... or memory:")
