"""What a settle or a correction reads and writes of Recall's documents, statement by statement, within one transaction.

Which transaction, and in what order, the store says; what is to be written, closing.py.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import timedelta

from bson import Int64
from pymongo import ReturnDocument
from pymongo.client_session import ClientSession
from pymongo.errors import DuplicateKeyError

from actions.errors import ActionNotFound, LeaseLive, WriteConflict
from actions.records import Action, ActionRef, Lease, Turn, Unreadable
from actions.store.base import SETTLE_TTL
from actions.store.closing import MARKED_TURNS, Closing, find_told, whole_args
from actions.store.codec import action_id, decode_output, decode_turn, head_id, output_id, turn_id
from actions.store.mongo_connection import Mongo
from actions.store.mongo_database import MongoDatabase, Place
from actions.store.mongo_documents import (
    FREE,
    RELEASED_DATE,
    Document,
    can_be_stored,
    decoded,
    lease_id,
    newest,
    read_metadata,
    read_reading,
    settled_ids,
    taken_lease,
    vector_fields,
    with_lease,
    written_fields,
)
from actions.store.mongo_setup import LEASES, REGISTRY
from actions.times import Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a settle reads before it takes the lease, all of one snapshot."""

    action: Action | Unreadable
    document: Document
    args: str
    head_document: Document | None
    lease: Lease | None
    now: Instant

    def head(self) -> tuple[str, object] | None:
        """The head's id and metadata, as `newest_turn` wants them. Raises RecordUnreadable: nothing was written."""
        return None if self.head_document is None else (self.head_document["_id"], read_metadata(self.head_document))


def look_at_action(database: MongoDatabase, db: Mongo, place: Place, ref: ActionRef, session: ClientSession) -> Found:
    """The action, its agent's lease and head, its whole arguments: in one statement, but for an output of an unusual name."""
    collection = database.address.collection
    stages = [{"$match": {"_id": {"$in": settled_ids(ref.agent, ref.seq)}}}, *with_lease(LEASES, collection)]
    rows = {row["_id"]: row for row in db[place.records].aggregate(stages, session=session)}
    document = rows.get(action_id(ref.agent, ref.seq))
    if document is None:
        raise ActionNotFound(ref)
    reading = read_reading(collection, document)
    action, args = reading.action, ""
    if isinstance(action, Action):
        key = output_id(action.agent, action.args_ref)
        if action.args_ref and key not in rows and can_be_stored(key):
            rows |= {row["_id"]: row for row in db[place.records].find({"_id": key}, session=session)}
        args = whole_args(action, decoded(decode_output, rows[key]) if key in rows else None)
    head = rows.get(head_id(ref.agent))
    return Found(action=action, document=document, args=args, head_document=head, lease=reading.lease, now=reading.read_at)


def find_largest_turn(db: Mongo, place: Place, agent: str, session: ClientSession) -> int:
    stages = [*newest(agent, "turn", "turn", before=None, limit=1), {"$project": {"number": 1}}]
    rows = list(db[place.records].aggregate(stages, session=session))
    return int(rows[0]["number"] or 0) if rows else 0


def find_marked_turn(db: Mongo, place: Place, agent: str, marker: str, session: ClientSession) -> Turn | None:
    if not marker:
        return None
    stages = newest(agent, "turn", "turn", before=None, limit=MARKED_TURNS)
    return find_told((decoded(decode_turn, row) for row in db[place.records].aggregate(stages, session=session)), marker)


def take_lease(database: MongoDatabase, db: Mongo, agent: str, holder: str, found: Lease | None, session: ClientSession) -> int:
    """Our epoch. Written, not only read: a read in a transaction conflicts with nothing."""
    wanted, token = lease_id(database.address.collection, agent), secrets.token_hex(12)
    if found is None:
        lease = {"_id": wanted, "holder": holder, "epoch": Int64(1), "expires_at": RELEASED_DATE, "token": token}
        db[LEASES].insert_one({**lease, "fenced_writes": Int64(0)}, session=session)
        return 1
    taken = db[LEASES].find_one_and_update(
        {"_id": wanted, **FREE},
        taken_lease(holder, token, SETTLE_TTL // timedelta(milliseconds=1)),
        return_document=ReturnDocument.AFTER,
        session=session,
    )
    if taken is None:  # it was free in this snapshot a moment ago: the server's clock was set back
        raise LeaseLive(found)
    return int(taken["epoch"])


def write_records(
    database: MongoDatabase, db: Mongo, place: Place, ref: ActionRef, closing: Closing, session: ClientSession
) -> None:
    """The action keeps its vector; the turn is inserted, which fails rather than destroy one of the agent's; a crashed agent may have left
    the output of a long result there already."""
    records, new_turn = db[place.records], turn_id(ref.agent, closing.turn_seq)
    vector = vector_fields(place.dimension)
    if closing.action is not None:
        closed = records.update_one(
            {"_id": action_id(ref.agent, ref.seq)}, {"$set": written_fields(closing.action)}, session=session
        )
        if closed.matched_count != 1:
            raise WriteConflict(database.name, f"action {ref} vanished while it was settled")
    for key, metadata in closing.inserted.items():
        fields = written_fields(metadata)
        if key != new_turn:
            records.update_one({"_id": key}, {"$set": fields, "$setOnInsert": vector}, upsert=True, session=session)
            continue
        try:
            records.insert_one({"_id": key, **vector, **fields}, session=session)
        except DuplicateKeyError as exc:
            raise WriteConflict(
                database.name,
                f"turn {closing.turn_seq} of agent {ref.agent} exists although we hold its lease",
            ) from exc


def release(
    database: MongoDatabase, db: Mongo, place: Place, agent: str, holder: str, epoch: int, written: int, session: ClientSession
) -> None:
    """The revision, which every writer of the store writes, and the lease."""
    moved = db[REGISTRY].update_one(
        {"_id": database.address.collection, "coll": place.records}, {"$inc": {"revision": Int64(written)}}, session=session
    )
    released = db[LEASES].update_one(
        {"_id": lease_id(database.address.collection, agent), "epoch": Int64(epoch), "holder": holder},
        {"$inc": {"epoch": Int64(1)}, "$set": {"expires_at": RELEASED_DATE}},
        session=session,
    )
    if (moved.matched_count, released.matched_count) != (1, 1):
        database.forget_place()
        raise WriteConflict(
            database.name,
            f"of revision and lease {(moved.matched_count, released.matched_count)} were there to write",
        )
