"""Which collections of agents a database holds, also those of the tenants of `recall serve`, offered as stores. Reads only; no driver here.

A tenant's collection is named after a hash of its namespace (recall-records 12), which cannot be turned back: a namespace is known where a
key record names it, or where somebody who knows it says it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256

from actions.errors import InvalidQuery, StoreUnusable
from actions.store.addresses import check_login, take_out

MAX_COLLECTIONS = 1_000
MAX_NAMESPACES = 10_000
MAX_COUNTED = 20_000
"""Agents and open actions are counted so far and no further: a number above means "more"."""

AGENTS, KEYS = "_agents", "__keys"
_OF_ONE_STORE = frozenset({"schema", "collection", "serve", "serve_key"})
"""Of an address that was searched, what does not hold for every collection found there."""

_DEFAULT = "recall_lexical_v1"
_NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,254}", re.ASCII)
_TENANT = re.compile(r".+?__(?P<name>[a-z0-9][a-z0-9_]*_[0-9a-f]{8})", re.ASCII)
_CUT = re.compile("(?=__)")
_SECRET = re.compile(r"password|secret|token|key\Z|authmechanismproperties", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One collection of agents as the registry of a database names it."""

    collection: str  # of the memory, as in RECALL_COLLECTION: without _agents
    schema: str = ""  # PostgreSQL's; empty elsewhere
    agents: int | None = None  # that were ever resumed; None where they could not be counted
    open_actions: int | None = None
    problem: str = ""  # why not, in one sentence

    @property
    def is_tenant(self) -> bool:
        """Whether its name is one that `recall serve` makes for a namespace."""
        return _TENANT.fullmatch(self.collection) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What an adapter read: the collections, and the namespaces that have keys, of which nothing but the name was read."""

    found: tuple[Found, ...]
    namespaces: tuple[str, ...]
    problems: tuple[str, ...] = ()  # what else could not be read, each in one sentence
    is_truncated: bool = False  # more than MAX_COLLECTIONS, or MAX_NAMESPACES


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """A collection with the store's name and address that one would put into ACTION_STORES, without its secrets."""

    found: Found
    namespace: str  # empty: none, or not known
    store: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """Everything found, in the order of schema and collection."""

    offered: tuple[Offered, ...]
    unmatched: tuple[str, ...]  # of the namespaces that were asked for: those without a collection here
    problems: tuple[str, ...]
    is_truncated: bool


def discover(url: str, *, namespaces: Collection[str] = ()) -> Discovery:
    """Look through one database, in a bounded number of bounded statements; `namespaces` are tried beside those that have keys.

    A collection that cannot be counted is listed with its problem. `schema` in a PostgreSQL address limits the search to that schema.

    Raises:
        InvalidQuery: not an address of a database that can be searched, or not a namespace. Nothing was asked.
        StoreUnavailable, StoreUnusable: it does not answer, or refuses; `.problem` says why, without the address.
    """
    for namespace in namespaces:
        if not _NAMESPACE.fullmatch(namespace):
            raise InvalidQuery(
                f"{namespace[:80]!r} is no namespace: letters, digits and _ - . :, beginning with a letter or digit"
            )
    findings = _look(take_out(url, {"collection", "serve", "serve_key"})[0])
    everything = sorted(findings.found, key=lambda found: (found.schema, found.collection))
    matched = match_namespaces((found.collection for found in everything), [*findings.namespaces, *namespaces])
    named = list(zip(everything, matched, strict=True))
    return Discovery(
        offered=tuple(
            Offered(found=found, namespace=namespace, store=store, address=address_for(url, found))
            for (found, namespace), store in zip(named, _store_names(named), strict=True)
        ),
        unmatched=tuple(namespace for namespace in dict.fromkeys(namespaces) if namespace not in matched),
        problems=findings.problems,
        is_truncated=findings.is_truncated,
    )


def _look(url: str) -> Findings:
    scheme = url.partition(":")[0].lower()
    try:
        check_login("", url)
    except StoreUnusable as exc:
        raise InvalidQuery(exc.problem) from exc
    try:
        if scheme in ("postgres", "postgresql"):
            from actions.store.postgres_discovery import search

            return search(url)
        if scheme in ("mongodb", "mongodb+srv"):
            from actions.store.mongo_discovery import search as search_mongo

            return search_mongo(url)
    except MalformedAddress as exc:
        raise InvalidQuery(exc.problem) from exc
    raise InvalidQuery("only databases can be searched: postgres://... or mongodb://...")


class MalformedAddress(StoreUnusable):
    """Nothing was connected to."""


def tenant_collection(prefix: str, namespace: str) -> str:
    """The memory collection that `recall serve -collection PREFIX` keeps for a namespace."""
    clean = re.sub(r"[^a-z0-9]", "_", namespace.lower())
    return f"{prefix}__{clean}_{sha256(namespace.encode()).hexdigest()[:8]}"


def match_namespaces(collections: Iterable[str], known: Iterable[str]) -> list[str]:
    """For each collection the one of these namespaces that it is for, whatever the server's prefix; empty where it is none of them."""
    suffixes = {tenant_collection("", name): name for name in known}
    return [
        next((suffixes[name[cut.start() :]] for cut in _CUT.finditer(name, 1) if name[cut.start() :] in suffixes), "")
        for name in collections
    ]


def address_for(url: str, found: Found) -> str:
    """The address for ACTION_STORES: the one that was searched, for this collection, with *** where it has a secret."""
    base, _, query = take_out(url, _OF_ONE_STORE)[0].partition("?")
    scheme, _, rest = base.partition("://")
    place, slash, path = rest.partition("/")
    who, at, hosts = place.rpartition("@")
    user, colon, _ = who.partition(":")
    pairs = [pair.partition("=") for pair in query.split("&") if pair]
    kept = [f"{name}{equals}{'***' if _SECRET.search(name) else value}" for name, equals, value in pairs]
    schema = [f"schema={found.schema}"] if found.schema else []
    options = "&".join([*kept, *schema, f"collection={found.collection}"])
    return f"{scheme}://{user}{':***' if colon else ''}{at}{hosts}{slash}{path}?{options}".replace(" ", "%20")


def _store_names(named: Sequence[tuple[Found, str]]) -> Iterator[str]:
    """A name for each that ACTION_STORES allows, no two the same."""
    taken: set[str] = set()
    for found, namespace in named:
        tenant = _TENANT.fullmatch(found.collection)
        wished = "main" if found.collection == _DEFAULT else namespace or (tenant["name"] if tenant else found.collection)
        base = re.sub(r"[^a-z0-9_-]+", "-", wished.lower()).strip("-_")[:58] or "store"
        name = next(
            name for name in (base, *(f"{base}-{number}" for number in range(2, MAX_COLLECTIONS + 2))) if name not in taken
        )
        taken.add(name)
        yield name
