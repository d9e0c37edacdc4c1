"""The MongoDB store: pymongo. Reads are single statements on the primary; a settle is one transaction that also writes the lease document.

Rules of the records are in recall-records 9.2; what documents look like is in mongo_documents.py, what a settle writes of them in
mongo_closing.py, the history in mongo_entries.py, connections in mongo_database.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from bson import Int64
from pymongo.client_session import ClientSession
from pymongo.collection import Collection as Documents
from pymongo.errors import OperationFailure

from actions.errors import (
    ActionNotFound,
    ActionNotOpen,
    LeaseLive,
    LeaseLost,
    StoreError,
    StoreUnavailable,
    StoreUnusable,
    WriteConflict,
)
from actions.records import (
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
from actions.store import mongo_agents, mongo_closing, mongo_records, mongo_setup
from actions.store import mongo_documents as shapes
from actions.store.base import check_epoch
from actions.store.closing import (
    ENDINGS,
    Closing,
    answer_repeat,
    check_correctable,
    check_seen,
    newest_turn,
    plan_closing,
    plan_correction,
    readable,
)
from actions.store.codec import (
    action_id,
    decode_output,
    decode_pointer,
    decode_turn,
    decode_working_state,
    head_id,
    output_id,
)
from actions.store.deadlines import Timeouts
from actions.store.evicting import EVICTED, answer_eviction, eviction_entry, require_held
from actions.store.mongo_connection import PREPARE_TIMEOUT_S, UNAUTHORIZED, Mongo, parse_address
from actions.store.mongo_database import MongoDatabase, Place
from actions.store.mongo_documents import (
    Document,
    can_be_stored,
    decoded,
    lease_id,
    read_lease,
    read_metadata,
    read_reading,
    read_time,
)
from actions.store.mongo_entries import HeldHead, MongoEntries
from actions.store.mongo_setup import HEADS, LEASES, REGISTRY
from actions.store.together import Together

_ROWS = 20_001
"""What was asked for comes in one answer, as far as 16 MB hold it."""


class MongoStore:
    """ActionStore and AgentStore over Recall's collections. Connects on first use; safe to share between threads and across fork.

    Nobody waits for a server longer than `timeouts` say; one that did not answer is left alone for a while, then one caller asks it again.
    """

    leases_known = True

    def __init__(self, url: str, *, name: str = "main", timeouts: Timeouts | None = None) -> None:
        self.name = name
        self._address = parse_address(name, url)
        self._database = MongoDatabase(name, self._address, timeouts)
        self._together = Together[ActionsRead]()
        self._entries = MongoEntries(self._database, self.chain)

    @property
    def chain(self) -> str:
        return f"{self._address.database}.{self._address.collection}"

    # --- the store itself ---

    def check(self) -> StoreCheck:
        try:
            with self._database.connect() as db:
                return mongo_setup.check(db, self._address, self.name)
        except StoreError as exc:
            return StoreCheck(is_reachable=not isinstance(exc, StoreUnavailable), why_not=exc.problem)

    def prepare(self, *, index: bool = False) -> tuple[str, ...]:
        with self._database.connect(is_write=True) as db:
            is_there = mongo_setup.is_in_place(db)
        if is_there:
            lines = mongo_setup.lines_in_place()
        else:
            with self._database.connect(
                is_write=True, within_s=PREPARE_TIMEOUT_S
            ) as db:  # indexes of a long history take what they take
                lines = mongo_setup.prepare(db, self.name)
        return (*lines, *(["index of open actions: not needed, Recall's own on md serves"] if index else []))

    def close(self) -> None:
        self._database.close()

    def read_watch(self) -> Watch:
        stages = shapes.watched(self._address.collection, self.chain, registry=REGISTRY, leases=LEASES, heads=HEADS)
        with self._database.connect() as db:
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
        if not statuses or (agent is not None and not can_be_stored(agent)):
            return ActionsRead(readings=(), is_truncated=False)

        def read() -> ActionsRead:
            rows = self._readings([*shapes.actions_with(statuses, agent=agent), {"$limit": limit + 1}])
            return ActionsRead(readings=tuple(map(self._reading, rows[:limit])), is_truncated=len(rows) > limit)

        if agent is not None:
            return read()
        return self._together.read((frozenset(statuses), limit), read, within_s=self._database.patience())

    def read_outputs(self, wanted: Collection[tuple[str, str]]) -> Mapping[tuple[str, str], Output | Unreadable]:
        keys = {output_id(agent, ref): (agent, ref) for agent, ref in wanted}
        ids = [key for key in keys if can_be_stored(key)]
        rows = self._find({"_id": {"$in": ids}}, limit=len(ids))
        return {keys[row["_id"]]: decoded(decode_output, row) for row in rows}

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
        with self._database.connect() as db:
            rows = list(db[LEASES].aggregate(stages, batchSize=_ROWS))
        leases = tuple(read_lease(self._address.collection, row, read_time(row["now"])) for row in rows[:limit])
        return LeasesRead(leases=leases, is_truncated=len(rows) > limit)

    def read_last_turns(self, agents: Collection[str]) -> Mapping[str, Turn | Unreadable]:
        """Two statements: which turns, by the numbers in their ids, and those turns."""
        wanted = sorted({agent for agent in agents if can_be_stored(agent)})
        newest = {row["turn"]: row["_id"] for row in self._aggregate(shapes.last_turns(wanted))} if wanted else {}
        rows = self._find({"_id": {"$in": list(newest)}}, limit=len(newest))
        return {newest[row["_id"]]: decoded(decode_turn, row) for row in rows}

    # --- one agent ---

    def find_lease(self, agent: str) -> Lease | None:
        if not can_be_stored(agent):
            return None
        with self._database.connect() as db:
            return self._read_lease(db, agent)

    def _read_lease(self, db: Mongo, agent: str, session: ClientSession | None = None) -> Lease | None:
        stages = [{"$match": {"_id": lease_id(self._address.collection, agent)}}, {"$addFields": {"now": "$$NOW"}}]
        rows = list(db[LEASES].aggregate(stages, session=session))
        return read_lease(self._address.collection, rows[0], read_time(rows[0]["now"])) if rows else None

    def list_turns(self, agent: str, *, limit: int, before: int | None = None) -> tuple[Turn | Unreadable, ...]:
        return tuple(decoded(decode_turn, row) for row in self._newest(agent, "turn", "turn", limit=limit, before=before))

    def list_agent_actions(self, agent: str, *, limit: int, before: int | None = None) -> tuple[Reading, ...]:
        rows = self._newest(agent, "action", "act", limit=limit, before=before, then=self._with_lease())
        return tuple(map(self._reading, rows))

    def find_working_state(self, agent: str) -> WorkingState | Unreadable | None:
        rows = self._find({"_id": head_id(agent)}, limit=1) if can_be_stored(agent) else []
        return decoded(decode_working_state, rows[0]) if rows else None

    def list_working_states(self, agent: str, *, limit: int, before: int | None = None) -> tuple[WorkingState | Unreadable, ...]:
        rows = self._newest(agent, "working_state", "ws", limit=limit, before=before)
        return tuple(decoded(decode_working_state, row) for row in rows)

    def list_outputs(self, agent: str, *, limit: int) -> tuple[Output | Unreadable, ...]:
        rows = self._find(shapes.outputs_of(agent), limit=limit) if can_be_stored(agent) else []
        return tuple(decoded(decode_output, row) for row in rows)

    def list_pointers(self, agent: str, *, limit: int = 1000) -> tuple[Pointer | Unreadable, ...]:
        rows = self._find(shapes.pointers_of(agent), limit=limit) if can_be_stored(agent) else []
        pointers = (decoded(decode_pointer, row) for row in rows)
        return tuple(pointer for pointer in pointers if pointer is not None)

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
            written = self._entries.find_on(db, {"kind": "settled", "decision_id": entry.decision_id}, session)
            if written is not None:
                return answer_repeat(written, entry)
            place = self._database.find_place(db, session)
            if place is None or not can_be_stored(ref.agent):
                raise ActionNotFound(ref)
            found = mongo_closing.look_at_action(self._database, db, place, ref, session)
            action = readable(found.action)
            if not action.is_open:
                raise ActionNotOpen(
                    ref, action, self._entries.find_on(db, {"kind": "settled", "agent": ref.agent, "seq": ref.seq}, session)
                )
            if found.lease is not None and found.lease.is_live:
                raise LeaseLive(found.lease)
            check_epoch(self.name, found.lease)
            check_seen(ref, action, found.args, seen=seen, claim=claim)
            head = self._entries.hold_head(db, session)
            newest = newest_turn(mongo_closing.find_largest_turn(db, place, ref.agent, session), found.head())
            epoch = mongo_closing.take_lease(self._database, db, ref.agent, holder, found.lease, session)
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
                told=mongo_closing.find_marked_turn(db, place, ref.agent, marker, session),
            )
            return self._close(db, place, ref, closing, holder, epoch, head, session)

        return self._database.write(write)

    def correct(
        self, ref: ActionRef, correction: Correction, *, entry: NewEntry, holder: str, basis: int | None = None
    ) -> Settled:
        """As a settle, but for the action's document, which is only read: of two corrections the second finds lease and head changed."""

        def write(db: Mongo, session: ClientSession) -> Settled:
            place = self._database.find_place(db, session)
            if place is None or not can_be_stored(ref.agent):
                raise ActionNotFound(ref)
            found = mongo_closing.look_at_action(self._database, db, place, ref, session)
            action = readable(found.action)
            endings = self._entries.list_endings_on(db, ref.agent, ref.seq, ENDINGS, session)
            told = check_correctable(ref, action, endings, entry, basis=basis)
            if isinstance(told, Settled):
                return told
            if found.lease is not None and found.lease.is_live:
                raise LeaseLive(found.lease)
            check_epoch(self.name, found.lease)
            head = self._entries.hold_head(db, session)
            newest = newest_turn(mongo_closing.find_largest_turn(db, place, ref.agent, session), found.head())
            epoch = mongo_closing.take_lease(self._database, db, ref.agent, holder, found.lease, session)
            closing = plan_correction(
                action, correction, entry, told=told, newest=newest, found=found.lease, epoch=epoch, at=found.now
            )
            return self._close(db, place, ref, closing, holder, epoch, head, session)

        return self._database.write(write)

    def _close(
        self,
        db: Mongo,
        place: Place,
        ref: ActionRef,
        closing: Closing,
        holder: str,
        epoch: int,
        head: HeldHead,
        session: ClientSession,
    ) -> Settled:
        mongo_closing.write_records(self._database, db, place, ref, closing, session)
        sealed = self._entries.append_on(db, head, closing.entry, session)
        mongo_closing.release(self._database, db, place, ref.agent, holder, epoch, closing.records_written, session)
        return Settled(entry=sealed, turn_seq=closing.turn_seq, is_repeat=False)

    def evict(self, agent: str, *, holder: str, entry: NewEntry) -> Entry:
        """Runs again whenever the holder's renewal or fenced write, or another settle, came first: all of them write the lease or the head."""

        def write(db: Mongo, session: ClientSession) -> Entry:
            known = {"kind": EVICTED, "agent": agent, "decision_id": entry.decision_id}
            written = self._entries.find_on(db, known, session) if can_be_stored(agent) else None
            if written is not None:
                return answer_eviction(written, entry)
            lease = self._read_lease(db, agent, session) if can_be_stored(agent) else None
            found = require_held(self.name, agent, holder, lease)
            head = self._entries.hold_head(db, session)
            taken = db[LEASES].update_one(
                {"_id": lease_id(self._address.collection, agent), "epoch": Int64(found.epoch), "holder": holder},
                {"$inc": {"epoch": Int64(1)}, "$set": {"expires_at": shapes.RELEASED_DATE}},
                session=session,
            )
            if taken.matched_count != 1:
                raise WriteConflict(self.name, f"the lease of agent {agent} moved while it was taken away")
            return self._entries.append_on(db, head, eviction_entry(entry, found), session)

        return self._database.write(write)

    # --- what an agent's process writes ---

    def create_records(self) -> tuple[str, ...]:
        if self._database.knows_place:
            return ()
        with self._database.connect(is_write=True) as db:
            is_there = self._database.find_place(db) is not None
        if is_there:
            return ()
        with self._database.connect(is_write=True, within_s=PREPARE_TIMEOUT_S) as db:
            return mongo_records.create(db, self._address, self.name)

    def acquire_lease(self, agent: str, *, holder: str, ttl: timedelta) -> Lease:
        with self._database.connect(is_write=True) as db:
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
        with self._database.connect(is_write=True) as db:
            renewed = mongo_agents.renew(db[LEASES], self._address.collection, lease, ttl, in_doubt)
        if renewed is None:
            raise LeaseLost(lease)
        return renewed

    def release_lease(self, lease: Lease, *, in_doubt: int = 0) -> None:
        with self._database.connect(is_write=True) as db:
            mongo_agents.release(db[LEASES], self._address.collection, lease, in_doubt)

    def load_agent(self, agent: str) -> AgentRecords:
        """Several statements of one snapshot."""

        def read(db: Mongo, session: ClientSession) -> AgentRecords:
            place = self._database.find_place(db, session)
            records = db[place.records] if place is not None else None
            return mongo_agents.load(records, self._read_lease(db, agent, session), agent, session)

        try:
            return self._database.write(read, is_history_needed=False)
        except StoreUnavailable as exc:
            raise StoreUnavailable(exc.store, exc.problem) from exc  # nothing was written, whatever became of the commit

    def write(self, lease: Lease, changes: Sequence[Change]) -> None:
        """One transaction that writes the lease's document too: a takeover and a write conflict there."""

        def write(db: Mongo, session: ClientSession) -> None:
            place = self._database.find_place(db, session)
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

        self._database.write(write, is_history_needed=False)

    # --- audit entries ---

    def append_entry(self, entry: NewEntry) -> Entry:
        return self._entries.append_entry(entry)

    def append_observed(self, entry: NewEntry) -> Entry | None:
        return self._entries.append_observed(entry)

    def find_settled_entry(self, decision_id: str) -> Entry | None:
        return self._entries.find_settled(decision_id)

    def list_entries(
        self,
        *,
        limit: int,
        before: int | None = None,
        agent: str | None = None,
        seq: int | None = None,
        kinds: Collection[str] | None = None,
    ) -> tuple[Entry, ...]:
        return self._entries.list_entries(limit=limit, before=before, agent=agent, seq=seq, kinds=kinds)

    def iterate_links(self, *, after: int = 0) -> Iterator[Link]:
        return self._entries.iterate_links(after=after)

    def remove_entries(self, last: ChainHead, entry: NewEntry) -> Entry:
        return self._entries.remove_entries(last, entry)

    def read_head(self) -> ChainHead:
        return self._entries.read_head()

    # --- records ---

    def _with_lease(self) -> shapes.Stages:
        return shapes.with_lease(LEASES, self._address.collection)

    def _readings(self, stages: shapes.Stages) -> list[Document]:
        return self._aggregate([*stages, *self._with_lease()])

    def _reading(self, row: Document) -> Reading:
        return read_reading(self._address.collection, row)

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
        with self._database.connect() as db:
            place = self._database.find_place(db)
            return list(read(db[place.records])) if place is not None else []
