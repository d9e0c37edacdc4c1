"""Stores: where actions are kept. `open_store` picks the adapter by the URL's scheme; nothing connects before the first read."""

from __future__ import annotations

import re

from actions.errors import StoreUnusable
from actions.store.base import ActionStore

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):", re.ASCII)


def open_store(url: str, *, name: str = "main") -> ActionStore:
    """A store for `postgres://...?schema=recall&collection=...`, `mongodb://.../db?collection=...` or `memory:`.

    Drivers are imported only for the scheme that needs them.

    Raises:
        StoreUnusable: no adapter for this scheme, or a part of the URL is malformed. Nothing was connected to.
    """
    # Not urlsplit: it raises on some malformed hosts, and its error repeats the address.
    match = _SCHEME.match(url)
    scheme = match[1].lower() if match else ""
    if scheme in ("postgres", "postgresql"):
        from actions.store.postgres import PostgresStore

        return PostgresStore(url, name=name)
    if scheme in ("mongodb", "mongodb+srv"):
        from actions.store.mongo import MongoStore

        return MongoStore(url, name=name)
    if scheme == "memory":
        from actions.store.memory import MemoryStore

        return MemoryStore(name=name)
    raise StoreUnusable(
        name, f"no adapter for {scheme or 'an address without a scheme'}; use postgres://..., mongodb://... or memory:"
    )
