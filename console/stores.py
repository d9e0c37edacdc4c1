"""The configured stores, opened on first use and again after a fork: pools and their threads do not survive one. Alone opens stores."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast
from urllib.parse import quote

from django.conf import settings
from django.db import connections
from django.http import Http404

from actions.errors import StoreUnusable
from actions.records import StoreCheck
from actions.store import is_agent_store, open_chain, open_store
from actions.store.addresses import split_address
from actions.store.base import ActionStore, AgentStore, EntryChain, OwnChain
from actions.store.deadlines import reads_within
from actions.store.serve import TenantServer
from console.database.base import ANSWER_S, CHANGE_S, answered_within

__all__ = [
    "CONSOLE_CHAIN",
    "ActionStore",
    "AgentStore",
    "EntryChain",
    "TenantServer",
    "UnknownStore",
    "console_chain",
    "find_server",
    "get_agent_store",
    "get_store",
    "list_stores",
    "one_page",
    "prepare_run_checkpoints",
    "reset",
    "run_checkpoints",
    "store_names",
]


CONSOLE_CHAIN = "console"
"""The chain of what happens in the console itself (contract, Audit entries); no store may be called so."""

PAGE_S = 12.0
"""How long all reads of stores for one page may take together: a browser of ours gives a page up after 15 s."""


class UnknownStore(Http404):
    """No store is configured under this name. Nothing was connected to."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"no store is called {name[:63]!r}")


_lock = threading.Lock()
_opened: dict[tuple[str, str], ActionStore] = {}  # by name and address
_servers: dict[str, TenantServer | None] = {}
_console: OwnChain | None = None  # survives a fork: its connections are each process's own
_opened_in = os.getpid()


def get_store(name: str) -> ActionStore:
    """The store of that name, the same object on every call in this process. Connects with its first read, not here.

    Raises:
        UnknownStore: ACTION_STORES does not name it.
    """
    if name not in settings.ACTION_STORES:
        raise UnknownStore(name)
    return _opened_once(name, settings.ACTION_STORES[name])


def get_agent_store(name: str) -> AgentStore:
    """The same store, for whoever acts as one of its agents: by RUN_STORE_URL where that is set, since a console's role may write less.

    Raises:
        UnknownStore: ACTION_STORES does not name it.
        StoreUnusable: no agent can write there. Nothing was connected to.
    """
    if name not in settings.ACTION_STORES:
        raise UnknownStore(name)
    own = settings.RUN_STORE_URL if name == settings.RUN_STORE else ""
    store = _opened_once(name, own or settings.ACTION_STORES[name])
    if isinstance(store, _Unusable):
        raise StoreUnusable(name, store.problem)
    if not is_agent_store(store):
        raise StoreUnusable(name, "it fences no writes, so no agent of ours writes there; use postgres://, mongodb:// or memory:")
    return store


@contextmanager
def run_checkpoints() -> Iterator[Any]:
    """LangGraph's checkpointer in the console's database, with a connection of its own that is closed afterwards. Raises as
    `run_checkpoints.open_saver`."""
    from console.run_checkpoints import open_saver  # LangGraph takes a second to import, and most processes advance no run

    with open_saver(_checkpoints_url()) as saver:
        yield saver


def prepare_run_checkpoints() -> None:
    """Make its schema and tables, or bring them up to date; a step of `migrate`. Raises as `run_checkpoints.prepare`."""
    from console.run_checkpoints import prepare

    prepare(_checkpoints_url())


def find_server(name: str) -> TenantServer | None:
    """The tenant's own server that a store's address names; None where it names none, or nothing that can be one. Connects with its first call.

    Raises:
        UnknownStore: ACTION_STORES does not name the store.
    """
    if name not in settings.ACTION_STORES:
        raise UnknownStore(name)
    if name not in _servers:
        try:
            _, address = split_address(name, settings.ACTION_STORES[name])
        except StoreUnusable:
            address = None  # the store itself says so
        with _lock:
            _servers.setdefault(name, TenantServer(name, address) if address else None)
    return _servers[name]


def list_stores() -> tuple[ActionStore, ...]:
    """Every configured store, in the order of ACTION_STORES."""
    return tuple(get_store(name) for name in settings.ACTION_STORES)


def store_names() -> tuple[str, ...]:
    """Their names; opens nothing."""
    return tuple(settings.ACTION_STORES)


def console_chain() -> OwnChain:
    """The console's own chain, in its own database. Connects with its first use; prepared by `migrate`."""
    global _console
    with _lock:
        if _console is None:
            _console = open_chain(CONSOLE_CHAIN, _console_url(), CONSOLE_CHAIN)
        return _console


@contextmanager
def open_as_owner(name: str, url: str) -> Iterator[ActionStore | OwnChain]:
    """The same history through another address, for the one thing that the console's own role cannot do. Closed afterwards.

    Raises:
        StoreUnusable: the address is malformed, or leads to another kind of store. Nothing was connected to.
    """
    if name == CONSOLE_CHAIN:
        opened: ActionStore | OwnChain = open_chain(name, url, CONSOLE_CHAIN)
    else:
        opened = open_store(url, name=name, entries_url=url)
    try:
        yield opened
    finally:
        opened.close()


@contextmanager
def one_page(*, changes: bool) -> Iterator[None]:
    """Around all that is done for one request: nobody waits longer for servers that say nothing, the console's own included.

    `changes`: it may write. Then the reads are not cut short, and whoever is at the same decision is waited for.
    """
    with ExitStack() as limits:
        limits.enter_context(answered_within(CHANGE_S if changes else ANSWER_S))
        if not changes:
            limits.enter_context(reads_within(PAGE_S))
        yield


def list_chains() -> tuple[EntryChain, ...]:
    """Every history there is: the stores' in the order of ACTION_STORES, then the console's."""
    return (*list_stores(), console_chain())


def reset() -> None:
    """Close what this process opened; the next use opens anew. For tests and for a clean end."""
    global _console
    with _lock:
        if _console is not None and _opened_in == os.getpid():
            _console.close()
        _console = None
        if _opened_in == os.getpid():
            for store in _opened.values():
                store.close()
            for server in _servers.values():
                if server is not None:
                    server.close()
        _opened.clear()
        _servers.clear()


def _opened_once(name: str, address: str) -> ActionStore:
    global _opened_in
    with _lock:
        if _opened_in != os.getpid():
            # Forget, never close: the connections are the parent's.
            _opened.clear()
            _opened_in = os.getpid()
        if (name, address) not in _opened:
            _opened[name, address] = _open(name, address)
        return _opened[name, address]


def _open(name: str, address: str) -> ActionStore:
    try:
        return open_store(address, name=name, entries_url=_console_url())
    except StoreUnusable as exc:
        return cast("ActionStore", _Unusable(name, exc.problem))


def _checkpoints_url() -> str:
    from console.run_checkpoints import SCHEMA, STATEMENT_TIMEOUT_S

    given = connections["default"].settings_dict["OPTIONS"].get("options", "")
    options = f"{given} -c search_path={SCHEMA} -c statement_timeout={STATEMENT_TIMEOUT_S}s -c lock_timeout=5s".strip()
    return _console_url(options=options)


def _console_url(**more: str) -> str:
    """The address of the console's own database, for stores whose server cannot keep the history of decisions."""
    database = connections["default"].settings_dict
    user, password, name = (quote(str(database[part] or ""), safe="") for part in ("USER", "PASSWORD", "NAME"))
    options = {"host": database["HOST"], "port": database["PORT"], **database["OPTIONS"], **more}
    given = "&".join(
        f"{key}={quote(str(value), safe='')}" for key, value in options.items() if value and isinstance(value, str | int)
    )
    return f"postgres://{user}{f':{password}' if password else ''}@/{name}?{given}"


class _Unusable:
    """A store whose address cannot be opened: it answers everything with why, so that the other stores go on."""

    leases_known = False

    def __init__(self, name: str, problem: str) -> None:
        self.name = name
        self.problem = problem

    def check(self) -> StoreCheck:
        return StoreCheck(is_reachable=False, why_not=self.problem)

    def close(self) -> None:
        return

    def __getattr__(self, method: str) -> Any:
        if method.startswith("_"):
            raise AttributeError(method)

        def refuse(*args: object, **kwargs: object) -> Any:
            raise StoreUnusable(self.name, self.problem)

        return refuse


if hasattr(os, "register_at_fork"):
    # A fork while another thread holds the lock would leave the child waiting for ever.
    def _new_lock() -> None:
        global _lock
        _lock = threading.Lock()

    os.register_at_fork(after_in_child=_new_lock)
