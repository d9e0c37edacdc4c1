"""One chain of audit entries in a MongoDB database, beside a store's own records: append, find, list, walk."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from math import inf, isfinite
from typing import Any, NamedTuple, TypeVar

from bson import Int64
from pymongo import ReturnDocument
from pymongo.client_session import ClientSession
from pymongo.errors import DuplicateKeyError

from actions.errors import DecisionIdReused, StoreUnusable
from actions.records import ChainHead, Entry, Link, NewEntry
from actions.store import mongo_setup
from actions.store.audit import GENESIS, read_entry, seal, show_entry
from actions.store.base import cannot_remove
from actions.store.closing import ENDINGS_LOOKED_AT
from actions.store.mongo_connection import Mongo
from actions.store.mongo_database import MongoDatabase
from actions.store.mongo_documents import Document, can_be_stored, read_time, stored_number, stored_time
from actions.store.mongo_setup import ENTRIES, HEADS
from actions.store.observing import LOOKED_AT, find_observed, is_ours
from actions.times import Instant

T = TypeVar("T")

LINKS_PER_BATCH = 1_000
_SEARCHABLE = ("at", "kind", "actor", "agent", "seq", "tool", "decision_id", "outcome")
_LINK = {"_id": 0, "number": 1, "text": 1, "prev": 1, "hash": 1}
_ROW = _LINK | dict.fromkeys(_SEARCHABLE, 1)


class HeldHead(NamedTuple):
    """The chain's head as nobody else can move it before our commit."""

    head: ChainHead
    at: Instant


class MongoEntries:
    """The entries of one chain. Where nothing was ever prepared they are none; where half of it is gone or hidden from us, that is said.

    Whole operations (`append_entry`, `list_entries` ...) use a connection of their own; those that take one are for a store's transaction.
    """

    def __init__(self, database: MongoDatabase, chain: str) -> None:
        self.chain = chain
        self.name = database.name
        self._database = database

    def append_entry(self, entry: NewEntry) -> Entry:
        def write(db: Mongo, session: ClientSession) -> Entry:
            head = self.hold_head(db, session)
            if entry.kind == "settled" and entry.decision_id:
                written = self.find_on(db, {"kind": "settled", "decision_id": entry.decision_id}, session)
                if written is not None:
                    raise DecisionIdReused(written)
            return self.append_on(db, head, entry, session)

        return self._database.write(write)

    def append_observed(self, entry: NewEntry) -> Entry | None:
        def write(db: Mongo, session: ClientSession) -> Entry | None:
            head = self.hold_head(db, session)
            known = self.list_endings_on(db, entry.agent, entry.seq or 0, LOOKED_AT, session)
            if (written := find_observed(known, entry)) or is_ours(known):
                return written
            return self.append_on(db, head, entry, session)

        return self._database.write(write)

    def find_settled(self, decision_id: str) -> Entry | None:
        if not can_be_stored(decision_id):
            return None
        with self._database.connect() as db:
            return self.find_on(db, {"kind": "settled", "decision_id": decision_id}) or self._nothing(db, None)

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
        with self._database.connect() as db:
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

    def remove_entries(self, last: ChainHead, entry: NewEntry) -> Entry:
        def write(db: Mongo, session: ClientSession) -> Entry:
            held = self.hold_head(db, session)
            at = {"chain": self.chain, "number": Int64(last.number)}
            found = db[ENTRIES].find_one(at, {"hash": 1}, session=session)
            if problem := cannot_remove(self.name, last, held.head, found["hash"] if found else None):
                raise problem
            db[ENTRIES].delete_many({"chain": self.chain, "number": {"$lte": Int64(last.number)}}, session=session)
            return self.append_on(db, held, entry, session)

        return self._database.write(write)

    def read_head(self) -> ChainHead:
        with self._database.connect() as db:
            head = db[HEADS].find_one({"_id": self.chain}) or self._nothing(db, None)
        return ChainHead(chain=self.chain, number=int(head["number"]) if head else 0, hash=head["hash"] if head else GENESIS)

    # --- in a transaction of the store ---

    def hold_head(self, db: Mongo, session: ClientSession) -> HeldHead:
        """The chain's head and the store's time. Written before it is believed, and before anything else is: of two who append, the second
        is told at once to start again, instead of after all its work."""
        fields = {"number": {"$ifNull": ["$number", Int64(0)]}, "hash": {"$ifNull": ["$hash", GENESIS]}, "at": "$$NOW"}
        head = db[HEADS].find_one_and_update(
            {"_id": self.chain}, [{"$set": fields}], upsert=True, return_document=ReturnDocument.AFTER, session=session
        )
        if head is None:
            raise StoreUnusable(self.name, "an upsert of the audit chain's head answered nothing")
        return HeldHead(ChainHead(chain=self.chain, number=int(head["number"]), hash=head["hash"]), read_time(head["at"]))

    def append_on(self, db: Mongo, held: HeldHead, new: NewEntry, session: ClientSession) -> Entry:
        entry = seal(new, held.head, held.at)
        try:
            db[ENTRIES].insert_one(fields_of(entry), session=session)
        except DuplicateKeyError as exc:
            raise StoreUnusable(self.name, "the audit chain's head does not fit its entries; run verify_audit") from exc
        db[HEADS].update_one({"_id": self.chain}, {"$set": {"number": Int64(entry.number), "hash": entry.hash}}, session=session)
        return entry

    def find_on(self, db: Mongo, wanted: Mapping[str, object], session: ClientSession | None = None) -> Entry | None:
        """The newest of this chain that is so."""
        row = db[ENTRIES].find_one({"chain": self.chain, **wanted}, _LINK, sort=[("number", -1)], session=session)
        return show_entry(link_of(row)) if row else None

    def list_endings_on(
        self, db: Mongo, agent: str, seq: int, kinds: Collection[str], session: ClientSession
    ) -> tuple[Entry, ...]:
        """The entries of these kinds about one action, newest first, at most ENDINGS_LOOKED_AT."""
        wanted = {"chain": self.chain, "agent": agent, "seq": stored_number(seq), "kind": {"$in": list(kinds)}}
        rows = db[ENTRIES].find(wanted, _LINK, session=session).sort("number", -1).limit(ENDINGS_LOOKED_AT)
        return tuple(show_entry(link_of(row)) for row in rows)

    def _read_links(self, numbers: Document, *, may_be_none: bool = False) -> list[Link]:
        wanted = {"chain": self.chain, "number": numbers}
        with self._database.connect() as db:
            rows = db[ENTRIES].find(wanted, _ROW).sort("number", 1).limit(LINKS_PER_BATCH)
            links = [filed(row) for row in rows]
            return links if links or may_be_none else self._nothing(db, [])

    def _nothing(self, db: Mongo, empty: T) -> T:
        mongo_setup.require_whole_history(db, self.name)
        return empty


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
        said = fields_of(read_entry(link))
    except (ValueError, TypeError, AttributeError, OverflowError):
        return link  # the text itself is none of ours, which says more
    return link._replace(misfiled=next((name for name in _SEARCHABLE if not _says(row.get(name), said[name])), ""))


def _says(found: object, said: object) -> bool:
    """As MongoDB compares: a truth is no number."""
    return found == said and isinstance(found, bool) == isinstance(said, bool)


def fields_of(entry: Entry) -> dict[str, Any]:
    """An entry's document. What stands beside `text` is for searching: what BSON cannot hold is replaced there, never in `text`."""
    searchable = {
        name: getattr(entry, name).encode("utf-8", "replace").decode()
        for name in ("kind", "actor", "agent", "tool", "decision_id", "outcome")
    }
    chained = {"chain": entry.chain, "number": Int64(entry.number), "text": entry.text, "prev": entry.prev, "hash": entry.hash}
    seq = None if entry.seq is None else stored_number(entry.seq)
    return {**chained, **searchable, "at": stored_time(entry.at), "seq": seq}
