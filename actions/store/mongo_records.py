"""Recall's collections on MongoDB, for an agent that starts where no Recall ever ran: the form that Recall gives them (recall-records 2.3)."""

from __future__ import annotations

import hashlib
import re
import secrets

from bson import Int64
from pymongo.errors import DuplicateKeyError, OperationFailure

from actions.errors import StoreReadOnly
from actions.store.mongo_connection import NO_REPLICA_SET, UNAUTHORIZED, Address, Mongo, is_standalone
from actions.store.mongo_setup import LEASES, REGISTRY, create_collection

DIMENSION = 256
"""Of Recall's built-in word embedder. An agent of another one starts with Recall itself."""
_OTHER = re.compile(r"[^A-Za-z0-9_-]")


def collection_name(collection: str) -> str:
    """The collection that Recall makes for one of its own. One that exists is read from the registry, never reckoned."""
    plain = _OTHER.sub("_", collection)
    if plain == collection:
        return f"rc_{plain}"
    return f"rc_{plain}_{hashlib.sha256(collection.encode()).hexdigest()[:8]}"


def create(db: Mongo, address: Address, name: str) -> tuple[str, ...]:
    """Collections and indexes first, the registry's document last: whoever finds that finds all. Each step does no harm when two take it.

    Raises:
        StoreReadOnly: this user may not create them, or the server has no transactions. What was created before stays and does no harm.
    """
    if is_standalone(db.client):
        raise StoreReadOnly(name, NO_REPLICA_SET)
    records = collection_name(address.collection)
    try:
        for collection in (REGISTRY, LEASES, records):
            create_collection(db, collection)
        db[REGISTRY].create_index([("coll", 1)], unique=True)
        db[records].create_index([("md.k", 1), ("md.v", 1)])
        db[records].create_index([("text", "text")], default_language="english", language_override="recall_language")
        fields = {"coll": records, "dim": DIMENSION, "nonce": secrets.token_hex(8), "revision": Int64(0)}
        made = db[REGISTRY].update_one({"_id": address.collection}, {"$setOnInsert": fields}, upsert=True)
    except DuplicateKeyError:
        return ()  # somebody else was first
    except OperationFailure as exc:
        if exc.code != UNAUTHORIZED:
            raise
        raise StoreReadOnly(
            name, "this connection's user may not create Recall's collections; start one agent as the database's owner"
        ) from exc
    return (f"records of {address.collection}: collection {records} created",) if made.upserted_id is not None else ()
