"""Plays Recall on MongoDB: documents, leases and fenced writes as recall-records 2.3 and 5.2 have them, not with our own codec."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Self
from urllib.parse import parse_qsl, urlencode

from bson import Int64
from pymongo import MongoClient, ReturnDocument, WriteConcern
from pymongo.client_session import ClientSession
from pymongo.database import Database
from pymongo.read_concern import ReadConcern

from tests.recall_writer import DIMENSION, LeaseState, Metadata, RecordWriter, recall_json

RELEASED = datetime(1970, 1, 1, tzinfo=UTC)
NOT_RELEASED = {"$gt": RELEASED}


def collection_name(name: str) -> str:
    """Where the records of a collection are (recall-records 2.3)."""
    clean = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    return f"rc_{clean}" if clean == name else f"rc_{clean}_{sha256(name.encode()).hexdigest()[:8]}"


def document_of(record_id: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """A record as Recall writes it, with a zero vector."""
    entries = [{"k": key, "v": _double(metadata[key])} for key in sorted(metadata)]
    text = recall_json(dict(sorted(metadata.items())))
    return {"_id": record_id, "v": [0.0] * DIMENSION, "norm": 0.0, "md": entries, "m": text, "text": ""}


def _double(value: object) -> object:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


class MongoWriter(RecordWriter):
    """Writes into a MongoDB database as Recall does. One client, opened at once."""

    def __init__(self, url: str, *, store: str = "main") -> None:
        base, _, query = url.partition("?")
        options = dict(parse_qsl(query))
        self.collection = options.pop("collection", "recall_lexical_v1") + "_agents"
        self.store = store
        self.client: MongoClient[dict[str, Any]] = MongoClient(f"{base}?{urlencode(options)}", tz_aware=True)
        self.db: Database[dict[str, Any]] = self.client.get_default_database("recall")
        self.registry = self.db.recall_collections
        self.leases = self.db.recall_leases
        self.records = self.db[collection_name(self.collection)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def create(self) -> Self:
        """The registry's document and the collection of records with its index, as after Recall's first record."""
        self.registry.create_index([("coll", 1)], unique=True)
        self.registry.insert_one(
            {
                "_id": self.collection,
                "coll": self.records.name,
                "dim": DIMENSION,
                "nonce": secrets.token_hex(8),
                "revision": Int64(0),
            }
        )
        self.records.create_index([("md.k", 1), ("md.v", 1)])
        return self

    def put(self, record_id: str, metadata: Mapping[str, Any]) -> None:
        with self.client.start_session() as session:
            session.with_transaction(lambda session: self._write(record_id, metadata, session))

    def lease(
        self,
        agent: str,
        holder: str = "pod-a:1:aaaa",
        epoch: int = 1,
        state: LeaseState = "expired",
        *,
        ttl: timedelta = timedelta(seconds=60),
    ) -> None:
        length = Int64(ttl // timedelta(milliseconds=1))
        expires: dict[LeaseState, object] = {
            "live": {"$add": ["$$NOW", length]},
            "expired": {"$subtract": ["$$NOW", length]},
            "released": RELEASED,
        }
        fields = {"holder": {"$literal": holder}, "epoch": {"$literal": Int64(epoch)}, "expires_at": expires[state]}
        others = {"token": secrets.token_hex(12), "fenced_writes": {"$literal": Int64(0)}}
        self.leases.update_one({"_id": self.lease_id(agent)}, [{"$set": {**fields, **others}}], upsert=True)

    def acquire(self, agent: str, holder: str, ttl: timedelta = timedelta(seconds=60)) -> int | None:
        """One command that writes the new lease or the old one; the token tells which."""
        token = secrets.token_hex(12)
        is_free = {"$lte": [{"$ifNull": ["$expires_at", RELEASED]}, "$$NOW"]}
        expires = {"$add": ["$$NOW", Int64(ttl // timedelta(milliseconds=1))]}
        new = {
            "holder": {"$literal": holder},
            "epoch": {"$add": [{"$ifNull": ["$epoch", Int64(0)]}, Int64(1)]},
            "expires_at": expires,
            "token": token,
            "fenced_writes": {"$ifNull": ["$fenced_writes", Int64(0)]},
        }
        pipeline = [{"$set": {key: {"$cond": [is_free, value, f"${key}"]} for key, value in new.items()}}]
        lease = self.leases.find_one_and_update(
            {"_id": self.lease_id(agent)}, pipeline, upsert=True, return_document=ReturnDocument.AFTER
        )
        return lease["epoch"] if lease is not None and lease["token"] == token else None

    def renew(self, agent: str, holder: str, epoch: int, ttl: timedelta = timedelta(seconds=60)) -> int | None:
        renewed = {
            "epoch": {"$add": ["$epoch", Int64(1)]},
            "holder": {"$literal": holder},
            "expires_at": {"$add": ["$$NOW", Int64(ttl // timedelta(milliseconds=1))]},
        }
        lease = self.leases.find_one_and_update(
            {"_id": self.lease_id(agent), "epoch": Int64(epoch)}, [{"$set": renewed}], return_document=ReturnDocument.AFTER
        )
        return int(lease["epoch"]) if lease is not None else None

    def write_fenced(self, agent: str, holder: str, epoch: int, record_id: str, metadata: Mapping[str, Any]) -> bool:
        fence = {"_id": self.lease_id(agent), "holder": holder, "epoch": {"$gte": Int64(epoch)}, "expires_at": NOT_RELEASED}

        def write(session: ClientSession) -> bool:
            passed = self.leases.update_one(fence, {"$inc": {"fenced_writes": Int64(1)}}, session=session).matched_count == 1
            if passed:
                self._write(record_id, metadata, session)
            return passed

        with self.client.start_session() as session:
            return session.with_transaction(write, read_concern=ReadConcern("snapshot"), write_concern=WriteConcern("majority"))

    def metadata_of(self, record_id: str) -> Metadata | None:
        document = self.records.find_one({"_id": record_id}, {"m": 1})
        return None if document is None else json.loads(document["m"])

    def record_ids(self) -> list[str]:
        return [document["_id"] for document in self.records.find({}, {"_id": 1}).sort("_id", 1)]

    def revision(self) -> int:
        document = self.registry.find_one({"_id": self.collection})
        assert document is not None
        return int(document["revision"])

    def lease_of(self, agent: str) -> tuple[str, int, LeaseState] | None:
        stages = [{"$match": {"_id": self.lease_id(agent)}}, {"$addFields": {"now": "$$NOW"}}]
        for lease in self.leases.aggregate(stages):
            state: LeaseState = "live" if lease["expires_at"] > lease["now"] else "expired"
            return lease["holder"], int(lease["epoch"]), "released" if lease["expires_at"] == RELEASED else state
        return None

    def lease_id(self, agent: str) -> str:
        return f"{len(self.collection.encode())}:{self.collection}/{agent}"

    def _write(self, record_id: str, metadata: Mapping[str, Any], session: ClientSession) -> None:
        self.records.replace_one({"_id": record_id}, document_of(record_id, metadata), upsert=True, session=session)
        self.registry.update_one({"_id": self.collection}, {"$inc": {"revision": Int64(1)}}, session=session)
