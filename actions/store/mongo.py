"""The MongoDB store: pymongo. Reads are single statements on the primary; a settle is one transaction that also writes the lease document.

Rules of the records are in recall-records 9.2; what documents look like is in mongo_documents.py, how errors are told in
mongo_connection.py, what is ours to create in mongo_setup.py.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from math import inf, isfinite
from time import monotonic
from typing import Any, NamedTuple, TypeVar

import pymongo
from bson import Int64
from pymongo import ReturnDocument
from pymongo.client_session import ClientSession
from pymongo.collection import Collection as Documents
from pymongo.errors import DuplicateKeyError, OperationFailure, PyMongoError

from actions.errors import (
    ActionNotFound,
    ActionNotOpen,
    DecisionIdReused,
    LeaseLive,
    LeaseLost,
    RecordUnreadable,
    StoreError,
    StoreReadOnly,
    StoreUnavailable,
    StoreUnusable,
    WriteConflict,
)
from actions.records import (
    Action,
    ActionEnd,
    ActionRef,
    ActionsRead,
    ActionStatus,
    AgentRecords,
    ChainHead,
    Change,
    Correction,
    Entry,
    Lease,
    LeasesRead,
    Link,
    NewEntry,
    Output,
    Pointer,
    Reading,
    Settled,
    StoreCheck,
    Turn,
    Unreadable,
    Watch,
    WorkingState,
)
from actions.store import mongo_agents, mongo_records, mongo_setup
from actions.store import mongo_documents as shapes
from actions.store.audit import GENESIS, read_entry, seal, show_entry
from actions.store.base import SETTLE_TTL, cannot_remove, check_epoch
from actions.store.closing import (
    ENDINGS,
    ENDINGS_LOOKED_AT,
    MARKED_TURNS,
    Closing,
    answer_repeat,
    check_correctable,
    check_seen,
    find_told,
    newest_turn,
    plan_closing,
    plan_correction,
    readable,
    whole_args,
)
from actions.store.codec import (
    action_id,
    decode_action,
    decode_output,
    decode_pointer,
    decode_turn,
    decode_working_state,
    head_id,
    output_id,
    turn_id,
    unreadable,
)
from actions.store.deadlines import LeftAlone, Timeouts, for_read
from actions.store.evicting import EVICTED, answer_eviction, eviction_entry, require_held
from actions.store.mongo_connection import (
    NO_REPLICA_SET,
    PREPARE_TIMEOUT_S,
    STANDBY,
    UNAUTHORIZED,
    CommitUnanswered,
    Mongo,
    ProcessClients,
    database_of,
    in_transaction,
    is_secondary,
    is_standalone,
    parse_address,
    seconds_left,
    store_error,
)
from actions.store.mongo_documents import (
    Document,
    can_be_stored,
    lease_id,
    read_lease,
    read_metadata,
    read_time,
    record_id,
    stored_number,
)
from actions.store.mongo_setup import ENTRIES, HEADS, LEASES, REGISTRY
from actions.store.observing import LOOKED_AT, find_observed, is_ours
from actions.times import Instant

T = TypeVar("T")

LINKS_PER_BATCH = 1_000
_ROWS = 20_001
"""What was asked for comes in one answer, as far as 16 MB hold it."""
_SEARCHABLE = ("at", "kind", "actor", "agent", "seq", "tool", "decision_id", "outcome")
_LINK = {"_id": 0, "number": 1, "text": 1, "prev": 1, "hash": 1}
_ROW = _LINK | dict.fromkeys(_SEARCHABLE, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where Recall keeps the records of one collection, by its registry."""

    records: str
    dimension: int


class MongoStore:
    """ActionStore and AgentStore over Recall's collections. Connects on first use; safe to share between threads and across fork.

    Nobody waits for a server longer than `timeouts` say; one that did not answer is left alone for a while, then one caller asks it again.
    """

    leases_known = True

    def __init__(self, url: str, *, name: str = "main", timeouts: Timeouts | None = None) -> None:
        self.name = name
        self._address = parse_address(name, url)
        self._timeouts = timeouts or Timeouts()
        self._clients = ProcessClients(self._address, self._timeouts)
        self._known: Place | None = None

    @property
    def chain(self) -> str:
        return f"{self._address.database}.{self._address.collection}"

    # --- the store itself ---

    def check(self) -> StoreCheck:
        try:
            with self._connect() as db:
                return mongo_setup.check(db, self._address, self.name)
        except StoreError as exc:
            return StoreCheck(is_reachable=not isinstance(exc, StoreUnavailable), why_not=exc.problem)

    def prepare(self, *, index: bool = False) -> tuple[str, ...]:
        with self._connect(is_write=True) as db:
            is_there = mongo_setup.is_in_place(db)
        if is_there:
            lines = mongo_setup.lines_in_place()
        else:
            with self._connect(is_write=True, within_s=PREPARE_TIMEOUT_S) as db:  # indexes of a long history take what they take
                lines = mongo_setup.prepare(db, self.name)
        return (*lines, *(["index of open actions: not needed, Recall's own on md serves"] if index else []))

    def close(self) -> None:
        self._clients.close()

    def read_watch(self) -> Watch:
        stages = shapes.watched(self._address.collection, self.chain, registry=REGISTRY, leases=LEASES, heads=HEADS)
        with self._connect() as db:
            try:
                (row,) = db.aggregate(stages)
            except OperationFailure as exc:
                if exc.code != UNAUTHORIZED:
                    raise
                (row,) = db.aggregate(stages[:-1])  # without the history, which we may not read: the queue goes on
                row["heads"] = []
        fields = {"registry": "revision", "leases": "next", "heads": "number"}
        revision, expiry, entries = (row[source][0].get(field) if row[source] else None for source, field in fields.items())
        return Watch(
            revision=int(revision or 0),
            next_expiry=None if expiry is None else read_time(expiry),
            entries=int(entries or 0),
            read_at=read_time(row["now"]),
        )

    # --- reads over all agents ---

    def read_actions(self, statuses: Collection[ActionStatus], *, limit: int, agent: str | None = None) -> ActionsRead:
        rows: list[Document] = []
        if statuses and (agent is None or can_be_stored(agent)):
            rows = self._readings([*shapes.actions_with(statuses, agent=agent), {"$limit": limit + 1}])
        return ActionsRead(readings=tuple(map(self._reading, rows[:limit])), is_truncated=len(rows) > limit)

    def read_outputs(self, wanted: Collection[tuple[str, str]]) -> Mapping[tuple[str, str], Output | Unreadable]:
        keys = {output_id(agent, ref): (agent, ref) for agent, ref in wanted}
        ids = [key for key in keys if can_be_stored(key)]
        rows = self._find({"_id": {"$in": ids}}, limit=len(ids))
        return {keys[row["_id"]]: _decoded(decode_output, row) for row in rows}

    def get_action(self, agent: str, seq: int) -> Reading:
        rows = self._readings([{"$match": {"_id": action_id(agent, seq)}}]) if can_be_stored(agent) else []
        if not rows:
            raise ActionNotFound(ActionRef(self.name, agent, seq))
        return self._reading(rows[0])

    def read_leases(self, *, limit: int) -> LeasesRead:
        """By the range of `_id` that holds this collection's."""
        stages: shapes.Stages = [
            {"$match": {"_id": shapes.leases_of(self._address.collection)}},
            {"$sort": {"expires_at": -1, "_id": 1}},
            {"$limit": limit + 1},
            {"$addFields": {"now": "$$NOW"}},
        ]
        with self._connect() as db:
            rows = list(db[LEASES].aggregate(stages, batchSize=_ROWS))
        leases = tuple(read_lease(self._address.collection, row, read_time(row["now"])) for row in rows[:limit])
        return LeasesRead(leases=leases, is_truncated=len(rows) > limit)

    def read_last_turns(self, agents: Collection[str]) -> Mapping[str, Turn | Unreadable]:
        """Two statements: which turns, by the numbers in their ids, and those turns."""
        wanted = sorted({agent for agent in agents if can_be_stored(agent)})
        newest = {row["turn"]: row["_id"] for row in self._aggregate(shapes.last_turns(wanted))} if wanted else {}
        rows = self._find({"_id": {"$in": list(newest)}}, limit=len(newest))
        return {newest[row["_id"]]: _decoded(decode_turn, row) for row in rows}

    # --- one agent ---

    def find_lease(self, agent: str) -> Lease | None:
        if not can_be_stored(agent):
            return None
        with self._connect() as db:
            return self._read_lease(db, agent)

    def _read_lease(self, db: Mongo, agent: str, session: ClientSession | None = None) -> Lease | None:
        stages = [{"$match": {"_id": self._lease_id(agent)}}, {"$addFields": {"now": "$$NOW"}}]
        rows = list(db[LEASES].aggregate(stages, session=session))
        return read_lease(self._address.collection, rows[0], read_time(rows[0]["now"])) if rows else None

    def list_turns(self, agent: str, *, limit: int, before: int | None = None) -> tuple[Turn | Unreadable, ...]:
        return tuple(_decoded(decode_turn, row) for row in self._newest(agent, "turn", "turn", limit=limit, before=before))

    def list_agent_actions(self, agent: str, *, limit: int, before: int | None = None) -> tuple[Reading, ...]:
        rows = self._newest(agent, "action", "act", limit=limit, before=before, then=self._with_lease())
        return tuple(map(self._reading, rows))

    def find_working_state(self, agent: str) -> WorkingState | Unreadable | None:
        rows = self._find({"_id": head_id(agent)}, limit=1) if can_be_stored(agent) else []
        return _decoded(decode_working_state, rows[0]) if rows else None

    def list_working_states(self, agent: str, *, limit: int, before: int | None = None) -> tuple[WorkingState | Unreadable, ...]:
        rows = self._newest(agent, "working_state", "ws", limit=limit, before=before)
        return tuple(_decoded(decode_working_state, row) for row in rows)

    def list_outputs(self, agent: str, *, limit: int) -> tuple[Output | Unreadable, ...]:
        rows = self._find(shapes.outputs_of(agent), limit=limit) if can_be_stored(agent) else []
        return tuple(_decoded(decode_output, row) for row in rows)

    def list_pointers(self, agent: str, *, limit: int = 1000) -> tuple[Pointer | Unreadable, ...]:
        rows = self._find(shapes.pointers_of(agent), limit=limit) if can_be_stored(agent) else []
        decoded = (_decoded(decode_pointer, row) for row in rows)
        return tuple(pointer for pointer in decoded if pointer is not None)

    # --- the one write for operators ---

    def settle(
        self,
        ref: ActionRef,
        end: ActionEnd,
        *,
        entry: NewEntry,
        holder: str,
        seen: str | None = None,
        claim: str | None = None,
        marker: str = "",
    ) -> Settled:
        """One transaction of a dozen statements. It runs again, from its first read, whenever another writer came first: of two settles, or of
        a settle and an agent's fenced write, the second finds a document changed that it writes too (lease, head, registry)."""

        def write(db: Mongo, session: ClientSession) -> Settled:
            written = self._find_link(db, {"kind": "settled", "decision_id": entry.decision_id}, session)
            if written is not None:
                return answer_repeat(written, entry)
            place = self._look(db, session)
            if place is None or not can_be_stored(ref.agent):
                raise ActionNotFound(ref)
            found = self._look_at_action(db, place, ref, session)
            action = readable(found.action)
            if not action.is_open:
                raise ActionNotOpen(
                    ref, action, self._find_link(db, {"kind": "settled", "agent": ref.agent, "seq": ref.seq}, session)
                )
            if found.lease is not None and found.lease.is_live:
                raise LeaseLive(found.lease)
            check_epoch(self.name, found.lease)
            check_seen(ref, action, found.args, seen=seen, claim=claim)
            head = self._hold_head(db, session)
            newest = newest_turn(self._largest_turn(db, place, ref.agent, session), found.head())
            epoch = self._take_lease(db, ref.agent, holder, found.lease, session)
            closing = plan_closing(
                action,
                read_metadata(found.document),
                end,
                entry,
                args=found.args,
                newest=newest,
                found=found.lease,
                epoch=epoch,
                at=found.now,
                seen=seen,
                claim=claim,
                told=self._find_told(db, place, ref.agent, marker, session),
            )
            self._write_records(db, place, ref, closing, session)
            sealed = self._append(db, head, closing.entry, session)
            self._release(db, place, ref.agent, holder, epoch, closing.records_written, session)
            return Settled(entry=sealed, turn_seq=closing.turn_seq, is_repeat=False)

        return self._write(write)

    def correct(
        self, ref: ActionRef, correction: Correction, *, entry: NewEntry, holder: str, basis: int | None = None
    ) -> Settled:
        """As a settle, but for the action's document, which is only read: of two corrections the second finds lease and head changed."""

        def write(db: Mongo, session: ClientSession) -> Settled:
            place = self._look(db, session)
            if place is None or not can_be_stored(ref.agent):
                raise ActionNotFound(ref)
            found = self._look_at_action(db, place, ref, session)
            action = readable(found.action)
            told = check_correctable(ref, action, self._list_endings(db, ref, session), entry, basis=basis)
            if isinstance(told, Settled):
                return told
            if found.lease is not None and found.lease.is_live:
                raise LeaseLive(found.lease)
            check_epoch(self.name, found.lease)
            head = self._hold_head(db, session)
            newest = newest_turn(self._largest_turn(db, place, ref.agent, session), found.head())
            epoch = self._take_lease(db, ref.agent, holder, found.lease, session)
            closing = plan_correction(
                action, correction, entry, told=told, newest=newest, found=found.lease, epoch=epoch, at=found.now
            )
            self._write_records(db, place, ref, closing, session)
            sealed = self._append(db, head, closing.entry, session)
            self._release(db, place, ref.agent, holder, epoch, closing.records_written, session)
            return Settled(entry=sealed, turn_seq=closing.turn_seq, is_repeat=False)

        return self._write(write)

    def _list_endings(self, db: Mongo, ref: ActionRef, session: ClientSession) -> tuple[Entry, ...]:
        wanted = {"chain": self.chain, "agent": ref.agent, "seq": stored_number(ref.seq), "kind": {"$in": list(ENDINGS)}}
        rows = db[ENTRIES].find(wanted, _LINK, session=session).sort("number", -1).limit(ENDINGS_LOOKED_AT)
        return tuple(show_entry(link_of(row)) for row in rows)

    def _look_at_action(self, db: Mongo, place: Place, ref: ActionRef, session: ClientSession) -> _Found:
        """The action, its agent's lease and head, its whole arguments: in one statement, but for an output of an unusual name."""
        stages = [{"$match": {"_id": {"$in": shapes.settled_ids(ref.agent, ref.seq)}}}, *self._with_lease()]
        rows = {row["_id"]: row for row in db[place.records].aggregate(stages, session=session)}
        document = rows.get(action_id(ref.agent, ref.seq))
        if document is None:
            raise ActionNotFound(ref)
        reading = self._reading(document)
        action, args = reading.action, ""
        if isinstance(action, Action):
            key = output_id(action.agent, action.args_ref)
            if action.args_ref and key not in rows and can_be_stored(key):
                rows |= {row["_id"]: row for row in db[place.records].find({"_id": key}, session=session)}
            args = whole_args(action, _decoded(decode_output, rows[key]) if key in rows else None)
        head = rows.get(head_id(ref.agent))
        return _Found(action=action, document=document, args=args, head_document=head, lease=reading.lease, now=reading.read_at)

    def _largest_turn(self, db: Mongo, place: Place, agent: str, session: ClientSession) -> int:
        stages = [*shapes.newest(agent, "turn", "turn", before=None, limit=1), {"$project": {"number": 1}}]
        rows = list(db[place.records].aggregate(stages, session=session))
        return int(rows[0]["number"] or 0) if rows else 0

    def _find_told(self, db: Mongo, place: Place, agent: str, marker: str, session: ClientSession) -> Turn | None:
        if not marker:
            return None
        stages = shapes.newest(agent, "turn", "turn", before=None, limit=MARKED_TURNS)
        return find_told((_decoded(decode_turn, row) for row in db[place.records].aggregate(stages, session=session)), marker)

    def _take_lease(self, db: Mongo, agent: str, holder: str, found: Lease | None, session: ClientSession) -> int:
        """Our epoch. Written, not only read: a read in a transaction conflicts with nothing."""
        wanted, token = self._lease_id(agent), secrets.token_hex(12)
        if found is None:
            lease = {"_id": wanted, "holder": holder, "epoch": Int64(1), "expires_at": shapes.RELEASED_DATE, "token": token}
            db[LEASES].insert_one({**lease, "fenced_writes": Int64(0)}, session=session)
            return 1
        taken = db[LEASES].find_one_and_update(
            {"_id": wanted, **shapes.FREE},
            shapes.taken_lease(holder, token, SETTLE_TTL // timedelta(milliseconds=1)),
            return_document=ReturnDocument.AFTER,
            session=session,
        )
        if taken is None:  # it was free in this snapshot a moment ago: the server's clock was set back
            raise LeaseLive(found)
        return int(taken["epoch"])

    def _write_records(self, db: Mongo, place: Place, ref: ActionRef, closing: Closing, session: ClientSession) -> None:
        """The action keeps its vector; the turn is inserted, which fails rather than destroy one of the agent's; a crashed agent may have left
        the output of a long result there already."""
        records, new_turn = db[place.records], turn_id(ref.agent, closing.turn_seq)
        vector = shapes.vector_fields(place.dimension)
        if closing.action is not None:
            closed = records.update_one(
                {"_id": action_id(ref.agent, ref.seq)}, {"$set": shapes.written_fields(closing.action)}, session=session
            )
            if closed.matched_count != 1:
                raise WriteConflict(self.name, f"action {ref} vanished while it was settled")
        for key, metadata in closing.inserted.items():
            fields = shapes.written_fields(metadata)
            if key != new_turn:
                records.update_one({"_id": key}, {"$set": fields, "$setOnInsert": vector}, upsert=True, session=session)
                continue
            try:
                records.insert_one({"_id": key, **vector, **fields}, session=session)
            except DuplicateKeyError as exc:
                raise WriteConflict(
                    self.name,
                    f"turn {closing.turn_seq} of agent {ref.agent} exists although we hold its lease",
                ) from exc

    def _release(
        self, db: Mongo, place: Place, agent: str, holder: str, epoch: int, written: int, session: ClientSession
    ) -> None:
        """The revision, which every writer of the store writes, and the lease."""
        moved = db[REGISTRY].update_one(
            {"_id": self._address.collection, "coll": place.records}, {"$inc": {"revision": Int64(written)}}, session=session
        )
        released = db[LEASES].update_one(
            {"_id": self._lease_id(agent), "epoch": Int64(epoch), "holder": holder},
            {"$inc": {"epoch": Int64(1)}, "$set": {"expires_at": shapes.RELEASED_DATE}},
            session=session,
        )
        if (moved.matched_count, released.matched_count) != (1, 1):
            self._known = None
            raise WriteConflict(
                self.name,
                f"of revision and lease {(moved.matched_count, released.matched_count)} were there to write",
            )

    def evict(self, agent: str, *, holder: str, entry: NewEntry) -> Entry:
        """Runs again whenever the holder's renewal or fenced write, or another settle, came first: all of them write the lease or the head."""

        def write(db: Mongo, session: ClientSession) -> Entry:
            known = {"kind": EVICTED, "agent": agent, "decision_id": entry.decision_id}
            written = self._find_link(db, known, session) if can_be_stored(agent) else None
            if written is not None:
                return answer_eviction(written, entry)
            lease = self._read_lease(db, agent, session) if can_be_stored(agent) else None
            found = require_held(self.name, agent, holder, lease)
            head = self._hold_head(db, session)
            taken = db[LEASES].update_one(
                {"_id": self._lease_id(agent), "epoch": Int64(found.epoch), "holder": holder},
                {"$inc": {"epoch": Int64(1)}, "$set": {"expires_at": shapes.RELEASED_DATE}},
                session=session,
            )
            if taken.matched_count != 1:
                raise WriteConflict(self.name, f"the lease of agent {agent} moved while it was taken away")
            return self._append(db, head, eviction_entry(entry, found), session)

        return self._write(write)

    # --- what an agent's process writes ---

    def create_records(self) -> tuple[str, ...]:
        if self._known is not None:
            return ()
        with self._connect(is_write=True) as db:
            is_there = self._look(db) is not None
        if is_there:
            return ()
        with self._connect(is_write=True, within_s=PREPARE_TIMEOUT_S) as db:
            return mongo_records.create(db, self._address, self.name)

    def acquire_lease(self, agent: str, *, holder: str, ttl: timedelta) -> Lease:
        with self._connect(is_write=True) as db:
            for _ in range(mongo_agents.ATTEMPTS):
                found = self._read_lease(db, agent)
                check_epoch(self.name, found)
                if lease := mongo_agents.acquire(db[LEASES], self._address.collection, agent, holder, ttl):
                    return lease
                found = self._read_lease(db, agent)
                if found is not None and found.is_live:
                    raise LeaseLive(found)
        raise WriteConflict(self.name, f"the lease of agent {agent} can neither be taken nor read")

    def renew_lease(self, lease: Lease, *, ttl: timedelta, in_doubt: int = 0) -> Lease:
        with self._connect(is_write=True) as db:
            renewed = mongo_agents.renew(db[LEASES], self._address.collection, lease, ttl, in_doubt)
        if renewed is None:
            raise LeaseLost(lease)
        return renewed

    def release_lease(self, lease: Lease, *, in_doubt: int = 0) -> None:
        with self._connect(is_write=True) as db:
            mongo_agents.release(db[LEASES], self._address.collection, lease, in_doubt)

    def load_agent(self, agent: str) -> AgentRecords:
        """Several statements of one snapshot."""

        def read(db: Mongo, session: ClientSession) -> AgentRecords:
            place = self._look(db, session)
            records = db[place.records] if place is not None else None
            return mongo_agents.load(records, self._read_lease(db, agent, session), agent, session)

        try:
            return self._write(read, is_history_needed=False)
        except StoreUnavailable as exc:
            raise StoreUnavailable(exc.store, exc.problem) from exc  # nothing was written, whatever became of the commit

    def write(self, lease: Lease, changes: Sequence[Change]) -> None:
        """One transaction that writes the lease's document too: a takeover and a write conflict there."""

        def write(db: Mongo, session: ClientSession) -> None:
            place = self._look(db, session)
            if place is None:
                raise StoreUnusable(self.name, "it has no records of this collection; create_records() makes them")
            mongo_agents.write(
                self.name,
                db,
                self._address.collection,
                db[place.records],
                place.dimension,
                lease,
                changes,
                session,
            )

        self._write(write, is_history_needed=False)

    # --- audit entries ---

    def append_entry(self, entry: NewEntry) -> Entry:
        def write(db: Mongo, session: ClientSession) -> Entry:
            head = self._hold_head(db, session)
            if entry.kind == "settled" and entry.decision_id:
                written = self._find_link(db, {"kind": "settled", "decision_id": entry.decision_id}, session)
                if written is not None:
                    raise DecisionIdReused(written)
            return self._append(db, head, entry, session)

        return self._write(write)

    def append_observed(self, entry: NewEntry) -> Entry | None:
        wanted = {
            "chain": self.chain,
            "agent": entry.agent,
            "seq": stored_number(entry.seq or 0),
            "kind": {"$in": list(LOOKED_AT)},
        }

        def write(db: Mongo, session: ClientSession) -> Entry | None:
            head = self._hold_head(db, session)
            rows = db[ENTRIES].find(wanted, _LINK, session=session).sort("number", -1).limit(ENDINGS_LOOKED_AT)
            known = tuple(show_entry(link_of(row)) for row in rows)
            if (written := find_observed(known, entry)) or is_ours(known):
                return written
            return self._append(db, head, entry, session)

        return self._write(write)

    def find_settled_entry(self, decision_id: str) -> Entry | None:
        if not can_be_stored(decision_id):
            return None
        with self._connect() as db:
            return self._find_link(db, {"kind": "settled", "decision_id": decision_id}) or self._nothing(db, None)

    def list_entries(
        self,
        *,
        limit: int,
        before: int | None = None,
        agent: str | None = None,
        seq: int | None = None,
        kinds: Collection[str] | None = None,
    ) -> tuple[Entry, ...]:
        wanted: dict[str, Any] = {"chain": self.chain}
        wanted |= {} if before is None else {"number": {"$lt": stored_number(before)}}
        wanted |= {} if agent is None else {"agent": agent}
        wanted |= {} if seq is None else {"seq": stored_number(seq)}
        wanted |= {} if kinds is None else {"kind": {"$in": list(kinds)}}
        if limit < 1 or (agent is not None and not can_be_stored(agent)):
            return ()
        with self._connect() as db:
            rows = db[ENTRIES].find(wanted, _LINK).sort("number", -1).limit(limit)
            return tuple(show_entry(link_of(row)) for row in rows) or self._nothing(db, ())

    def iterate_links(self, *, after: int = 0) -> Iterator[Link]:
        if not after:  # also what was put before the first one, and what has no number at all
            yield from self._read_links({"$not": {"$gte": -inf}}, may_be_none=True)
        numbers: dict[str, object] = {"$gt": stored_number(after)} if after else {"$gte": -inf}
        is_begun = False
        while links := self._read_links(numbers, may_be_none=is_begun):
            is_begun = True
            yield from links
            numbers = {"$gt": stored_number(links[-1].number)}

    def _read_links(self, numbers: Document, *, may_be_none: bool = False) -> list[Link]:
        wanted = {"chain": self.chain, "number": numbers}
        with self._connect() as db:
            rows = db[ENTRIES].find(wanted, _ROW).sort("number", 1).limit(LINKS_PER_BATCH)
            links = [filed(row) for row in rows]
            return links if links or may_be_none else self._nothing(db, [])

    def remove_entries(self, last: ChainHead, entry: NewEntry) -> Entry:
        def write(db: Mongo, session: ClientSession) -> Entry:
            held = self._hold_head(db, session)
            at = {"chain": self.chain, "number": Int64(last.number)}
            found = db[ENTRIES].find_one(at, {"hash": 1}, session=session)
            if problem := cannot_remove(self.name, last, held.head, found["hash"] if found else None):
                raise problem
            db[ENTRIES].delete_many({"chain": self.chain, "number": {"$lte": Int64(last.number)}}, session=session)
            return self._append(db, held, entry, session)

        return self._write(write)

    def read_head(self) -> ChainHead:
        with self._connect() as db:
            head = db[HEADS].find_one({"_id": self.chain}) or self._nothing(db, None)
        return ChainHead(chain=self.chain, number=int(head["number"]) if head else 0, hash=head["hash"] if head else GENESIS)

    def _find_link(self, db: Mongo, wanted: Mapping[str, object], session: ClientSession | None = None) -> Entry | None:
        row = db[ENTRIES].find_one({"chain": self.chain, **wanted}, _LINK, sort=[("number", -1)], session=session)
        return show_entry(link_of(row)) if row else None

    def _nothing(self, db: Mongo, empty: T) -> T:
        """Where nothing was found: that is so only where both of our collections are there, or none is.

        Raises:
            StoreUnusable: half of the history is gone, or hidden from us.
        """
        found = mongo_setup.find_history(db)
        if len(found) == 1:
            (gone,) = {ENTRIES, HEADS} - found
            raise StoreUnusable(
                self.name,
                f"the history of decisions cannot be read: collection {gone} is not there any more, or we may not read it",
            )
        return empty

    def _hold_head(self, db: Mongo, session: ClientSession) -> _Head:
        """The chain's head and the store's time. Written before it is believed, and before anything else is: of two who append, the second
        is told at once to start again, instead of after all its work."""
        fields = {"number": {"$ifNull": ["$number", Int64(0)]}, "hash": {"$ifNull": ["$hash", GENESIS]}, "at": "$$NOW"}
        head = db[HEADS].find_one_and_update(
            {"_id": self.chain}, [{"$set": fields}], upsert=True, return_document=ReturnDocument.AFTER, session=session
        )
        if head is None:
            raise StoreUnusable(self.name, "an upsert of the audit chain's head answered nothing")
        return _Head(ChainHead(chain=self.chain, number=int(head["number"]), hash=head["hash"]), read_time(head["at"]))

    def _append(self, db: Mongo, held: _Head, new: NewEntry, session: ClientSession) -> Entry:
        entry = seal(new, held.head, held.at)
        try:
            db[ENTRIES].insert_one(_entry_fields(entry), session=session)
        except DuplicateKeyError as exc:
            raise StoreUnusable(self.name, "the audit chain's head does not fit its entries; run verify_audit") from exc
        db[HEADS].update_one({"_id": self.chain}, {"$set": {"number": Int64(entry.number), "hash": entry.hash}}, session=session)
        return entry

    # --- records ---

    def _look(self, db: Mongo, session: ClientSession | None = None) -> Place | None:
        """What the registry says; remembered once Recall has written its first record. None before."""
        if self._known is None:
            row = db[REGISTRY].find_one({"_id": self._address.collection}, {"coll": 1, "dim": 1}, session=session)
            if row is None:
                return None
            records, dimension = row.get("coll"), row.get("dim")
            if not (isinstance(records, str) and isinstance(dimension, int) and 0 < dimension <= 16_000):
                raise StoreUnusable(
                    self.name,
                    f"the registry's document of {self._address.collection} is not Recall's: coll {records!r}, dim {dimension!r}",
                )
            self._known = Place(records=records, dimension=dimension)
        return self._known

    def _lease_id(self, agent: str) -> str:
        return lease_id(self._address.collection, agent)

    def _with_lease(self) -> shapes.Stages:
        return shapes.with_lease(LEASES, self._address.collection)

    def _readings(self, stages: shapes.Stages) -> list[Document]:
        return self._aggregate([*stages, *self._with_lease()])

    def _newest(
        self, agent: str, record: str, kind: str, *, limit: int, before: int | None, then: shapes.Stages | None = None
    ) -> list[Document]:
        if limit < 1 or not can_be_stored(agent):
            return []
        return self._aggregate([*shapes.newest(agent, record, kind, before=before, limit=limit), *(then or [])])

    def _find(self, wanted: Document, *, limit: int) -> list[Document]:
        if limit < 1:
            return []
        return self._read(lambda records: records.find(wanted, {"m": 1, "md": 1}, batch_size=_ROWS).sort("_id", 1).limit(limit))

    def _aggregate(self, stages: shapes.Stages) -> list[Document]:
        return self._read(lambda records: records.aggregate(stages, batchSize=_ROWS, allowDiskUse=True))

    def _read(self, read: Callable[[Documents[dict[str, Any]]], Iterator[Document]]) -> list[Document]:
        with self._connect() as db:
            place = self._look(db)
            return list(read(db[place.records])) if place is not None else []

    def _reading(self, row: Document) -> Reading:
        now = read_time(row["now"])
        lease = read_lease(self._address.collection, row["lease"][0], now) if row["lease"] else None
        return Reading(action=_decoded(decode_action, row), lease=lease, read_at=now)

    # --- connections, transactions, errors ---

    @contextmanager
    def _connect(self, *, is_write: bool = False, within_s: float | None = None) -> Iterator[Mongo]:
        """The database for one use, all of which takes no longer than one answer may; a transaction sets limits of its own."""
        answer_s = within_s or self._timeouts.answer_s
        try:
            answer_s = answer_s if is_write else for_read(answer_s)
            with self._clients.ask() as client, nullcontext() if within_s == inf else pymongo.timeout(answer_s):
                yield database_of(client, self._address)
        except LeftAlone as exc:
            raise StoreUnavailable(self.name, str(exc)) from exc
        except CommitUnanswered as exc:
            raise store_error(
                self.name, self._address, exc.cause, answer_s=self._timeouts.commit_s, may_be_written=True
            ) from exc.cause
        except PyMongoError as exc:
            self._known = None
            waited_s = self._timeouts.answer_s if within_s == inf else answer_s
            raise store_error(self.name, self._address, exc, answer_s=waited_s, is_write=is_write) from exc

    def _write(self, write: Callable[[Mongo, ClientSession], T], *, is_history_needed: bool = True) -> T:
        until = monotonic() + self._timeouts.write_s
        with self._connect(is_write=True, within_s=inf) as db:
            with pymongo.timeout(min(seconds_left(until), self._timeouts.answer_s)):
                self._check_writable(db, is_history_needed=is_history_needed)
            with db.client.start_session() as session:
                return in_transaction(session, lambda: write(db, session), self._timeouts, until=until)

    def _check_writable(self, db: Mongo, *, is_history_needed: bool) -> None:
        """Without its unique indexes an entries collection would come into being by the first insert. No round trip for an agent's own writes."""
        is_prepared = not is_history_needed or mongo_setup.is_prepared(db)
        if is_standalone(db.client):
            raise StoreReadOnly(self.name, NO_REPLICA_SET)
        if is_secondary(db.client):
            raise StoreReadOnly(self.name, STANDBY)
        if not is_prepared:
            self._nothing(db, None)
            raise StoreReadOnly(self.name, mongo_setup.not_prepared(self.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
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


class _Head(NamedTuple):
    """The chain's head as nobody else can move it before our commit."""

    head: ChainHead
    at: Instant


def _decoded(decode: Callable[[str, object], T], document: Document) -> T | Unreadable:
    """One record, decoded for itself alone: what cannot be is told with its id and spoils no list."""
    try:
        return decode(record_id(document), read_metadata(document))
    except RecordUnreadable as exc:
        return unreadable(exc.record_id, exc.problem)


def link_of(row: Document) -> Link:
    """An entry's document as it stands; what is not of its kind stands for nothing."""
    number: Any = row.get("number")
    text, prev, sha = (row.get(name) for name in ("text", "prev", "hash"))
    is_number = isinstance(number, int | float) and not isinstance(number, bool) and isfinite(number)
    return Link(
        number=number if is_number else 0,
        text=text if isinstance(text, str) else "",
        prev=prev if isinstance(prev, str) else "",
        hash=sha if isinstance(sha, str) else "",
    )


def filed(row: Document) -> Link:
    """The same, with what searches go by compared."""
    link = link_of(row)
    try:
        said = _entry_fields(read_entry(link))
    except (ValueError, TypeError, AttributeError, OverflowError):
        return link  # the text itself is none of ours, which says more
    return link._replace(misfiled=next((name for name in _SEARCHABLE if not _says(row.get(name), said[name])), ""))


def _says(found: object, said: object) -> bool:
    """As MongoDB compares: a truth is no number."""
    return found == said and isinstance(found, bool) == isinstance(said, bool)


def _entry_fields(entry: Entry) -> dict[str, Any]:
    """An entry's document. What stands beside `text` is for searching: what BSON cannot hold is replaced there, never in `text`."""
    searchable = {
        name: getattr(entry, name).encode("utf-8", "replace").decode()
        for name in ("kind", "actor", "agent", "tool", "decision_id", "outcome")
    }
    chained = {"chain": entry.chain, "number": Int64(entry.number), "text": entry.text, "prev": entry.prev, "hash": entry.hash}
    seq = None if entry.seq is None else stored_number(entry.seq)
    return {**chained, **searchable, "at": shapes.stored_time(entry.at), "seq": seq}
