"""What is ours to create in a store's MongoDB database, and what a connection may and should do there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pymongo import IndexModel
from pymongo.errors import OperationFailure

from actions.errors import StoreReadOnly, StoreUnusable
from actions.records import StoreCheck
from actions.store.mongo_connection import NO_REPLICA_SET, STANDBY, Address, Mongo, is_secondary, is_standalone

VERSION = 2
REGISTRY, LEASES = "recall_collections", "recall_leases"
ENTRIES, HEADS = "settle_audit_entries", "settle_audit_head"

_INDEXES = (
    IndexModel([("chain", 1), ("number", 1)], name="entries_number", unique=True),
    IndexModel(
        [("chain", 1), ("decision_id", 1)],
        name="entries_decision",
        unique=True,
        partialFilterExpression={"kind": "settled", "decision_id": {"$gt": ""}},
    ),
    IndexModel([("chain", 1), ("agent", 1), ("seq", 1), ("number", 1)], name="entries_action"),
    IndexModel([("chain", 1), ("agent", 1), ("number", 1)], name="entries_agent"),  # version 2: as on PostgreSQL
)
_ALL = frozenset({"entries_number", "entries_decision", "entries_action", "entries_agent"})
_UNIQUE = frozenset({"entries_number", "entries_decision"})
_MD_INDEX = [("md.k", 1), ("md.v", 1)]

_RIGHTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (REGISTRY, ("find", "update")),
    (LEASES, ("find", "insert", "update")),
    (ENTRIES, ("find", "insert", "listIndexes")),
    (HEADS, ("find", "insert", "update")),
)
_RECORD_RIGHTS = ("find", "insert", "update")
_TOO_MUCH = ("update", "remove", "dropCollection")
_NAMESPACE_EXISTS, _UNAUTHORIZED = 48, 13


# --- prepare ---------------------------------------------------------------------------------------------------------


def not_prepared(name: str) -> str:
    return f"not prepared: run `prepare_store {name}` as the database's owner"


def is_prepared(db: Mongo) -> bool:
    """Whether the entries have their unique indexes; one round trip, never remembered, since whoever drops them drops a promise."""
    return db[ENTRIES].index_information().keys() >= _UNIQUE


def find_history(db: Mongo) -> set[str]:
    """Which of our two collections are there for us. No right beyond the one to read them is needed for that."""
    return set(db.list_collection_names(filter={"name": {"$in": [ENTRIES, HEADS]}}, authorizedCollections=True))


def require_whole_history(db: Mongo, name: str) -> None:
    """Asked where nothing was found: that is so only where both of our collections are there, or none is.

    Raises:
        StoreUnusable: half of the history is gone, or hidden from us.
    """
    found = find_history(db)
    if len(found) == 1:
        (gone,) = {ENTRIES, HEADS} - found
        raise StoreUnusable(
            name, f"the history of decisions cannot be read: collection {gone} is not there any more, or we may not read it"
        )


def is_in_place(db: Mongo) -> bool:
    """Whether there is nothing left to prepare."""
    return db[ENTRIES].index_information().keys() >= _ALL and HEADS in db.list_collection_names(filter={"name": HEADS})


def lines_in_place() -> tuple[str, ...]:
    return (f"collections {ENTRIES}, {HEADS}: in place (version {VERSION})",)


def prepare(db: Mongo, name: str) -> tuple[str, ...]:
    """The two collections and their indexes. Each step is idempotent, so two who prepare at once, or again, do no harm."""
    try:
        for collection in (ENTRIES, HEADS):
            create_collection(db, collection)
        db[ENTRIES].create_indexes(list(_INDEXES))
    except OperationFailure as exc:
        if exc.code != _UNAUTHORIZED:
            raise
        raise StoreReadOnly(
            name, f"this connection's user may not create {ENTRIES}; run prepare_store as the database's owner (role dbOwner)"
        ) from exc
    return (f"collections {ENTRIES}, {HEADS}: created (version {VERSION})",)


def create_collection(db: Mongo, collection: str) -> None:
    """Made beforehand: one that comes into being inside a transaction makes others wait or fail."""
    try:
        db.command("create", collection)
    except OperationFailure as exc:
        if exc.code != _NAMESPACE_EXISTS:
            raise


# --- check -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Who we are here, and what the server says that we may do; empty where it does not say."""

    name: str
    is_asked: bool  # access control is on
    privileges: tuple[Mapping[str, Any], ...]

    def may(self, database: str, collection: str) -> frozenset[str]:
        return frozenset(
            action for held in self.privileges if _covers(held["resource"], database, collection) for action in held["actions"]
        )


def check(db: Mongo, address: Address, name: str) -> StoreCheck:
    """What this connection can be used for: a handful of commands, and the registry's document."""
    version = db.client.admin.command("buildInfo")["version"]
    hello = db.client.admin.command("hello")
    row = db[REGISTRY].find_one({"_id": address.collection})
    records = str(row["coll"]) if row and row.get("coll") else None
    prepared = is_prepared(db)
    user = _user(db)
    missing = missing_rights(user, address.database, records) if prepared else []
    has_index = records is not None and any(index["key"][:2] == _MD_INDEX for index in db[records].index_information().values())
    why_not = _why_not(db, address, name, records=records, prepared=prepared, missing=missing)
    return StoreCheck(
        server=f"MongoDB {version}" + (f", replica set {hello['setName']}" if hello.get("setName") else ""),
        is_reachable=True,
        has_records=records is not None,
        is_prepared=prepared,
        has_index=has_index,
        can_settle=not why_not,
        why_not=why_not,
        warnings=tuple(warnings(user, address, records, has_index=has_index)),
    )


def _user(db: Mongo) -> User:
    info = db.client.admin.command("connectionStatus", showPrivileges=True)["authInfo"]
    users = info["authenticatedUsers"]
    return User(
        name=users[0]["user"] if users else "anybody",
        is_asked=bool(users),
        privileges=tuple(info.get("authenticatedUserPrivileges") or ()),
    )


def _covers(resource: Mapping[str, Any], database: str, collection: str) -> bool:
    """MongoDB's rule: an empty name stands for all of them."""
    if resource.get("anyResource"):
        return True
    return resource.get("db") in ("", database) and resource.get("collection") in ("", collection)


def missing_rights(user: User, database: str, records: str | None) -> list[str]:
    """Rights that are missing, by collection; none where the server does not say what we have."""
    wanted = [*_RIGHTS, *([(records, _RECORD_RIGHTS)] if records else [])]
    if not user.privileges:
        return []
    lacking = ((collection, [r for r in rights if r not in user.may(database, collection)]) for collection, rights in wanted)
    return [f"{', '.join(rights)} on {database}.{collection}" for collection, rights in lacking if rights]


def _why_not(db: Mongo, address: Address, name: str, *, records: str | None, prepared: bool, missing: list[str]) -> str:
    """One sentence with the remedy; empty where a decision can be written."""
    if is_standalone(db.client):
        return NO_REPLICA_SET
    if is_secondary(db.client):
        return STANDBY
    if not prepared:
        return not_prepared(name)
    if missing:
        return f"rights are missing; as the owner, grant this user's role {'; '.join(missing)}"
    if records is None:
        return (
            f"the collection {address.collection} is not in Recall's registry of database {address.database} yet: its first agent makes it; "
            "check the address if one has run"
        )
    return ""


def warnings(user: User, address: Address, records: str | None, *, has_index: bool) -> Iterable[str]:
    promise = '"entries are only inserted" is an empty promise; connect as a user of its own'
    if not user.is_asked:
        yield f"the server asks nobody for a password: {promise}"
    too_much = [right for right in _TOO_MUCH if right in user.may(address.database, ENTRIES)]
    if too_much:
        yield f"{user.name} may {', '.join(too_much)} audit entries: {promise}"
    if records and "remove" in user.may(address.database, records):
        yield f"{user.name} may remove Recall's records, which nothing here ever does; revoke it"
    if records and not has_index:
        yield f"the index {{md.k, md.v}} of {records} is missing, which Recall makes: every read scans the whole collection"
