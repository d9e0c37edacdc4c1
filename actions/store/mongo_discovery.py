"""Looking through a MongoDB database for collections of agents: reads only, each within its time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TypeVar

import pymongo
from pymongo.errors import InvalidName, OperationFailure, PyMongoError

from actions.errors import StoreUnusable
from actions.records import OPEN_STATUSES
from actions.store import mongo_documents as shapes
from actions.store.deadlines import Timeouts
from actions.store.discovery import (
    AGENTS,
    KEYS,
    MAX_COLLECTIONS,
    MAX_COUNTED,
    MAX_NAMESPACES,
    Findings,
    Found,
    MalformedAddress,
)
from actions.store.mongo_connection import Address, Mongo, ProcessClients, database_of, parse_address, store_error
from actions.store.mongo_setup import LEASES, REGISTRY

T = TypeVar("T")

_NAME = "database"
_TIMEOUTS = Timeouts()


def search(url: str) -> Findings:
    """The collections that the database's registry names.

    Raises: as `discovery.discover`.
    """
    try:
        address = parse_address(_NAME, url)
    except StoreUnusable as exc:
        raise MalformedAddress(exc.store, exc.problem) from None
    with _connected(address) as db:
        return _search(db, address)


@contextmanager
def _connected(address: Address) -> Iterator[Mongo]:
    with closing(ProcessClients(address, _TIMEOUTS)) as clients:
        try:
            with clients.ask() as client:
                yield database_of(client, address)
        except PyMongoError as exc:
            raise store_error(_NAME, address, exc, answer_s=_TIMEOUTS.answer_s) from exc


def _search(db: Mongo, address: Address) -> Findings:
    wanted = {"_id": {"$regex": f"({AGENTS}|{KEYS})$"}}
    rows = _ask(lambda: list(db[REGISTRY].find(wanted, {"coll": 1}).sort("_id", 1).limit(MAX_COLLECTIONS + 1)))
    found: list[Found] = []
    namespaces: dict[str, None] = {}
    problems: list[str] = []
    is_truncated = len(rows) > MAX_COLLECTIONS
    for name, records in [(row["_id"], str(row.get("coll") or "")) for row in rows[:MAX_COLLECTIONS]]:
        if name.endswith(AGENTS):
            found.append(_count(db, address, name, records))
            continue
        try:
            keys = _read_namespaces(db, records)
        except OperationFailure as exc:
            problems.append(f"keys in {name}: {store_error(_NAME, address, exc).problem}")
            continue
        namespaces |= dict.fromkeys(keys[:MAX_NAMESPACES])
        is_truncated = is_truncated or len(keys) > MAX_NAMESPACES
    return Findings(found=tuple(found), namespaces=tuple(namespaces), problems=tuple(problems), is_truncated=is_truncated)


def _read_namespaces(db: Mongo, records: str) -> list[str]:
    """Of a key's record nothing but the namespace leaves the server."""
    stages: shapes.Stages = [
        {"$match": shapes.entry("kind", "key")},
        {"$group": {"_id": shapes.value_of("namespace")}},
        {"$sort": {"_id": 1}},
        {"$limit": MAX_NAMESPACES + 1},
    ]
    return _ask(lambda: [row["_id"] for row in db[records].aggregate(stages) if isinstance(row["_id"], str)])


def _count(db: Mongo, address: Address, name: str, records: str) -> Found:
    collection = name.removesuffix(AGENTS)
    statuses = {"$in": sorted(status.value for status in OPEN_STATUSES)}
    try:
        agents = _ask(lambda: db[LEASES].count_documents({"_id": shapes.leases_of(name)}, limit=MAX_COUNTED + 1))
        opened = _ask(lambda: db[records].count_documents(shapes.entry("status", statuses), limit=MAX_COUNTED + 1))
    except (OperationFailure, InvalidName) as exc:
        return Found(collection=collection, problem=store_error(_NAME, address, exc).problem)
    return Found(collection=collection, agents=agents, open_actions=opened)


def _ask(read: Callable[[], T]) -> T:
    with pymongo.timeout(_TIMEOUTS.answer_s):
        return read()
