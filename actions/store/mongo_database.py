"""One MongoDB database as we use it: a connection for each use, transactions, and where Recall keeps the records there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import TypeVar

import pymongo
from pymongo.client_session import ClientSession
from pymongo.errors import PyMongoError

from actions.errors import StoreReadOnly, StoreUnavailable, StoreUnusable
from actions.store import mongo_setup
from actions.store.deadlines import LeftAlone, Timeouts, for_read
from actions.store.mongo_connection import (
    NO_REPLICA_SET,
    STANDBY,
    Address,
    CommitUnanswered,
    Mongo,
    ProcessClients,
    database_of,
    in_transaction,
    is_secondary,
    is_standalone,
    seconds_left,
    store_error,
)
from actions.store.mongo_setup import REGISTRY

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where Recall keeps the records of one collection, by its registry."""

    records: str
    dimension: int


class MongoDatabase:
    """Connects on first use; safe to share between threads and across fork.

    Nobody waits for a server longer than `timeouts` say; one that did not answer is left alone for a while, then one caller asks it again.
    `name` is the store's, for messages. Every use raises StoreUnavailable, StoreReadOnly and StoreUnusable as the contract has them.
    """

    def __init__(self, name: str, address: Address, timeouts: Timeouts | None = None) -> None:
        self.name = name
        self.address = address
        self._timeouts = timeouts or Timeouts()
        self._clients = ProcessClients(address, self._timeouts)
        self._place: Place | None = None

    def close(self) -> None:
        self._clients.close()

    def patience(self) -> float:
        """How many seconds a read may take from now; none where whoever asks has waited long enough."""
        try:
            return for_read(self._timeouts.answer_s)
        except LeftAlone:
            return 0.0

    @contextmanager
    def connect(self, *, is_write: bool = False, within_s: float | None = None) -> Iterator[Mongo]:
        """The database for one use, all of which takes no longer than one answer may; a transaction sets limits of its own."""
        answer_s = within_s or self._timeouts.answer_s
        try:
            answer_s = answer_s if is_write else for_read(answer_s)
            with self._clients.ask() as client, nullcontext() if within_s == inf else pymongo.timeout(answer_s):
                yield database_of(client, self.address)
        except LeftAlone as exc:
            raise StoreUnavailable(self.name, str(exc)) from exc
        except CommitUnanswered as exc:
            raise store_error(
                self.name, self.address, exc.cause, answer_s=self._timeouts.commit_s, may_be_written=True
            ) from exc.cause
        except PyMongoError as exc:
            self._place = None
            waited_s = self._timeouts.answer_s if within_s == inf else answer_s
            raise store_error(self.name, self.address, exc, answer_s=waited_s, is_write=is_write) from exc

    def write(self, work: Callable[[Mongo, ClientSession], T], *, is_history_needed: bool = True) -> T:
        """One transaction, begun again from its first statement whenever another writer came first."""
        until = monotonic() + self._timeouts.write_s
        with self.connect(is_write=True, within_s=inf) as db:
            with pymongo.timeout(min(seconds_left(until), self._timeouts.answer_s)):
                self._check_writable(db, is_history_needed=is_history_needed)
            with db.client.start_session() as session:
                return in_transaction(session, lambda: work(db, session), self._timeouts, until=until)

    def find_place(self, db: Mongo, session: ClientSession | None = None) -> Place | None:
        """What the registry says; remembered once Recall has written its first record. None before."""
        place = self._place  # once: whoever meets an error meanwhile forgets it, and none would mean that there are no records
        if place is None:
            row = db[REGISTRY].find_one({"_id": self.address.collection}, {"coll": 1, "dim": 1}, session=session)
            if row is None:
                return None
            records, dimension = row.get("coll"), row.get("dim")
            if not (isinstance(records, str) and isinstance(dimension, int) and 0 < dimension <= 16_000):
                raise StoreUnusable(
                    self.name,
                    f"the registry's document of {self.address.collection} is not Recall's: coll {records!r}, dim {dimension!r}",
                )
            self._place = place = Place(records=records, dimension=dimension)
        return place

    @property
    def knows_place(self) -> bool:
        return self._place is not None

    def forget_place(self) -> None:
        """What we knew of the registry may be true no more."""
        self._place = None

    def _check_writable(self, db: Mongo, *, is_history_needed: bool) -> None:
        """Without its unique indexes an entries collection would come into being by the first insert. No round trip for an agent's own writes."""
        is_prepared = not is_history_needed or mongo_setup.is_prepared(db)
        if is_standalone(db.client):
            raise StoreReadOnly(self.name, NO_REPLICA_SET)
        if is_secondary(db.client):
            raise StoreReadOnly(self.name, STANDBY)
        if not is_prepared:
            mongo_setup.require_whole_history(db, self.name)
            raise StoreReadOnly(self.name, mongo_setup.not_prepared(self.name))
