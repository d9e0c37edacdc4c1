"""The statements of an agent's own process on MongoDB: its lease, what it starts from, and its writes, each one transaction."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeVar

from bson import Int64
from pymongo import InsertOne, ReturnDocument, UpdateOne
from pymongo.client_session import ClientSession
from pymongo.collection import Collection as Documents
from pymongo.errors import BulkWriteError, DuplicateKeyError

from actions.errors import ActionNotFound, ActionNotOpen, LeaseLost, RecordUnreadable, StoreUnusable, WriteConflict
from actions.records import OPEN_STATUSES, ActionRef, AgentRecords, Change, Condition, Lease, Unreadable
from actions.store import mongo_documents as shapes
from actions.store.codec import (
    Stored,
    decode_action,
    decode_output,
    decode_pointer,
    decode_turn,
    encode_changes,
    head_id,
)
from actions.store.loading import MAX_LOADED_OUTPUTS, MAX_LOADED_POINTERS, MAX_LOADED_TURNS, agent_records
from actions.store.mongo_connection import Mongo, alone
from actions.store.mongo_documents import Document, decoded, read_metadata
from actions.store.mongo_setup import LEASES, REGISTRY

T = TypeVar("T")

ATTEMPTS = 3
"""A lease that was held and is free when we look at it is asked for again; one that keeps changing is somebody else's."""
_DUPLICATE_KEY = 11_000


def acquire(leases: Documents[dict[str, Any]], collection: str, agent: str, holder: str, ttl: timedelta) -> Lease | None:
    """The lease where it was free, by the token that it then carries; None where it was not, or somebody else was first."""
    token, ttl_ms = secrets.token_hex(12), ttl // timedelta(milliseconds=1)
    try:
        with alone():
            found = leases.find_one_and_update(
                {"_id": shapes.lease_id(collection, agent)},
                shapes.taken_if_free(holder, token, ttl_ms),
                upsert=True,
                return_document=ReturnDocument.AFTER,
            )
    except DuplicateKeyError:  # two who made the first one
        return None
    return _granted(collection, found, ttl_ms) if found and found["token"] == token else None


def renew(leases: Documents[dict[str, Any]], collection: str, lease: Lease, ttl: timedelta, in_doubt: int) -> Lease | None:
    ttl_ms = ttl // timedelta(milliseconds=1)
    renewed = {"epoch": {"$add": ["$epoch", Int64(1)]}, "expires_at": {"$add": ["$$NOW", Int64(ttl_ms)]}}
    with alone():
        found = leases.find_one_and_update(
            _held(collection, lease, in_doubt), [{"$set": renewed}], return_document=ReturnDocument.AFTER
        )
    return None if found is None else _granted(collection, found, ttl_ms)


def release(leases: Documents[dict[str, Any]], collection: str, lease: Lease, in_doubt: int) -> None:
    with alone():
        leases.update_one(
            _held(collection, lease, in_doubt),
            {"$inc": {"epoch": Int64(1)}, "$set": {"expires_at": shapes.RELEASED_DATE}},
        )


def load(records: Documents[dict[str, Any]] | None, lease: Lease | None, agent: str, session: ClientSession) -> AgentRecords:
    if records is None:
        return agent_records(
            agent, lease=lease, largest_turn=0, largest_action=0, head=None, open_actions=(), pointers=(), outputs=(), turns=()
        )

    def find(wanted: Document, limit: int) -> list[dict[str, Any]]:
        return list(records.find(wanted, {"m": 1, "md": 1}, session=session).sort("_id", 1).limit(limit))

    def newest(record: str, kind: str, limit: int) -> list[dict[str, Any]]:
        stages = shapes.newest(agent, record, kind, before=None, limit=limit)
        return list(records.aggregate(stages, session=session, allowDiskUse=True))

    opened = records.aggregate(shapes.actions_with(OPEN_STATUSES, agent=agent), session=session)
    heads = find({"_id": head_id(agent)}, 1)
    turns, last_actions = newest("turn", "turn", MAX_LOADED_TURNS), newest("action", "act", 1)
    pointers = (decoded(decode_pointer, row) for row in find(shapes.pointers_of(agent), MAX_LOADED_POINTERS))
    return agent_records(
        agent,
        lease=lease,
        largest_turn=_number(turns),
        largest_action=_number(last_actions),
        head=(heads[0]["_id"], read_metadata(heads[0])) if heads else None,
        open_actions=[decoded(decode_action, row) for row in opened],
        pointers=[pointer for pointer in pointers if pointer is not None],
        outputs=[decoded(decode_output, row) for row in find(shapes.outputs_of(agent), MAX_LOADED_OUTPUTS)],
        turns=[decoded(decode_turn, row) for row in turns],
    )


def write(
    name: str,
    db: Mongo,
    collection: str,
    records: Documents[dict[str, Any]],
    dimension: int,
    lease: Lease,
    changes: Sequence[Change],
    session: ClientSession,
) -> None:
    """In the order of Recall's own: the lease, the records, the registry."""
    stored = encode_changes(changes, epoch=lease.epoch)
    fence = {
        "_id": shapes.lease_id(collection, lease.agent),
        "holder": lease.holder,
        "epoch": {"$gte": Int64(lease.epoch)},
        "expires_at": {"$gt": shapes.RELEASED_DATE},
    }
    if db[LEASES].update_one(fence, {"$inc": {"fenced_writes": Int64(1)}}, session=session).matched_count != 1:
        raise LeaseLost(lease)
    opened = [each for each in stored if each.condition is Condition.OPEN]
    if len(opened) == 1:
        closed = records.update_one(_open([opened[0].record_id]), _closing(opened[0]), session=session).matched_count
    elif opened:
        # Looked at first, in this snapshot: whoever changes one of them until we commit conflicts with our writing it.
        found = [row["_id"] for row in records.find(_open([each.record_id for each in opened]), {"_id": 1}, session=session)]
        closed = len(found)
        if closed == len(opened):
            records.bulk_write([UpdateOne({"_id": each.record_id}, _closing(each)) for each in opened], session=session)
    if opened and closed != len(opened):
        _explain_not_open(name, records, lease, opened, session)
    others = [_writing(each, shapes.vector_fields(dimension)) for each in stored if each.condition is not Condition.OPEN]
    if others:
        try:
            records.bulk_write(others, session=session)
        except BulkWriteError as exc:
            if any(error.get("code") == _DUPLICATE_KEY for error in exc.details["writeErrors"]):
                raise WriteConflict(name, f"a record of agent {lease.agent} that should be new is there already") from exc
            raise
    moved = db[REGISTRY].update_one({"_id": collection}, {"$inc": {"revision": Int64(len(stored))}}, session=session)
    if moved.matched_count != 1:
        raise StoreUnusable(name, f"the registry has no document of {collection} any more")


def _open(ids: list[str]) -> dict[str, Any]:
    is_open = [shapes.entry("record", "action"), shapes.entry("status", {"$in": sorted(OPEN_STATUSES)})]
    return {"_id": {"$in": ids} if len(ids) > 1 else ids[0], "$and": is_open}


def _closing(each: Stored) -> dict[str, Any]:
    return {"$set": shapes.written_fields(each.metadata)}


def _writing(each: Stored, vector: dict[str, Any]) -> InsertOne[dict[str, Any]] | UpdateOne:
    """What stands there already keeps its vector."""
    fields = shapes.written_fields(each.metadata)
    if each.condition is Condition.NEW:
        return InsertOne({"_id": each.record_id, **vector, **fields})
    return UpdateOne({"_id": each.record_id}, {"$set": fields, "$setOnInsert": vector}, upsert=True)


def _explain_not_open(
    name: str, records: Documents[dict[str, Any]], lease: Lease, opened: Sequence[Stored], session: ClientSession
) -> None:
    """Which action is not open, and what it is: none of them was written yet. Always raises."""
    ids = [each.record_id for each in opened]
    rows = {row["_id"]: row for row in records.find({"_id": {"$in": ids}}, {"m": 1, "md": 1}, session=session)}
    for each in opened:
        ref = ActionRef(name, lease.agent, each.metadata["seq"])
        if each.record_id not in rows:
            raise ActionNotFound(ref)
        action = decoded(decode_action, rows[each.record_id])
        if isinstance(action, Unreadable):
            raise RecordUnreadable(action.record_id, action.problem)
        if not action.is_open:
            raise ActionNotOpen(ref, action)
    raise WriteConflict(name, f"an action of agent {lease.agent} is not open any more")


def _held(collection: str, lease: Lease, in_doubt: int) -> dict[str, Any]:
    last = shapes.stored_number(lease.epoch + in_doubt)
    return {
        "_id": shapes.lease_id(collection, lease.agent),
        "holder": lease.holder,
        "epoch": {"$gte": Int64(lease.epoch), "$lte": last},
        "expires_at": {"$gt": shapes.RELEASED_DATE},
    }


def _granted(collection: str, document: Document, ttl_ms: int) -> Lease:
    """As it was granted a moment ago: the store's clock then was one ttl before its end."""
    return shapes.read_lease(collection, document, shapes.read_time(document["expires_at"]) - ttl_ms * 1_000_000)


def _number(rows: Sequence[Document]) -> int:
    return int(rows[0]["number"] or 0) if rows else 0
