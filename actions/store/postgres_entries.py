"""One chain of audit entries in a PostgreSQL database: append, find, list, walk. Beside a store's own records, or in the console's database.

Several chains may stand in one database; each entry belongs to one, and each chain has one head, which whoever appends holds till the commit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import errors, sql

from actions.errors import DecisionIdReused, StoreReadOnly, StoreUnusable, WriteConflict
from actions.records import ChainHead, Entry, Link, NewEntry
from actions.store import postgres_setup
from actions.store.audit import GENESIS, seal, show_entry
from actions.store.base import cannot_remove
from actions.store.closing import ENDINGS, ENDINGS_LOOKED_AT
from actions.store.observing import LOOKED_AT, find_observed, is_ours
from actions.store.postgres_connection import Connection, Timeouts, parse_address, store_error
from actions.store.postgres_database import Database, Sent
from actions.store.postgres_rows import can_be_stored, entry_columns, link_of_row, read_instant

LINKS_PER_BATCH = 1_000
REMOVING_S = 60
FIRST_NUMBER = -(2**63)


class DecisionIdTaken(Exception):
    """Another connection's `settled` entry with this decision id was committed before ours. Nothing was written."""


class PostgresEntries:
    """The entries of one chain. Where the schema was never prepared they are none; where something of it is hidden from us, that is said.

    Whole operations (`append`, `list_entries` ...) use a connection of their own; those that take one are for a settle's transaction.
    """

    def __init__(self, database: Database, chain: str) -> None:
        self.chain = chain
        self.name = database.name
        self.is_known = False  # both tables were there and readable when we last looked
        self._database = database
        database.when_moved(self._forget)

    # --- whole operations ---

    def prepare(self) -> tuple[str, ...]:
        """Create the schema, or say that it is in place. Raises StoreReadOnly as `ActionStore.prepare` does."""
        with self._database.connect(is_write=True) as connection:
            lines = postgres_setup.prepare(connection, self.name)
        self._forget()
        return lines

    def require_prepared(self) -> None:
        """Before a settle that is written elsewhere begins. Raises StoreReadOnly, StoreUnusable as `require` does."""
        if not self.is_known:
            self._database.read(self.require)

    def check(self) -> postgres_setup.EntriesCheck:
        return self._database.read(lambda connection: postgres_setup.check_entries(connection, self.name))

    def close(self) -> None:
        self._database.close()

    def append(self, new: NewEntry) -> Entry:
        """Append one entry, in a transaction of its own.

        Raises:
            DecisionIdTaken: it is a `settled` one, and its decision id has one already. Nothing was written.
            StoreReadOnly: not prepared or no right to insert. Nothing was written.
            StoreUnavailable: `.may_be_written` tells whether the entry may be there.
        """
        return self._append(new, is_begun=False)

    def append_alone(self, new: NewEntry) -> Entry:
        """As `ActionStore.append_entry`."""
        try:
            return self.append(new)
        except DecisionIdTaken as exc:
            written = self.find_settled(new.decision_id)
            if written is None:
                raise WriteConflict(self.name, f"decision id {new.decision_id} is being written by somebody else") from exc
            raise DecisionIdReused(written) from exc

    def append_settling(self, new: NewEntry) -> Entry:
        """Append the intent of a settle that is about to write. A decision may have several: one for each attempt that got so far.

        Raises:
            DecisionIdReused: this id has begun to write another decision. Nothing was written.
            As `append` otherwise.
        """
        return self._append(new, is_begun=True)

    def append_settled(self, new: NewEntry) -> Entry:
        """Append a decision's `settled` entry, or answer the one that it has already: there is never a second. Raises as `append` otherwise."""
        try:
            return self._append(new, is_begun=False)
        except DecisionIdTaken:
            written = self.find_settled(new.decision_id)
            if written is None:
                raise WriteConflict(
                    self.name, f"the entry of decision {new.decision_id} can neither be written nor read"
                ) from None
            return written

    def append_corrected(self, new: NewEntry) -> Entry:
        """Append a correction's entry, or answer the one that it has already about the same action. Raises as `append`."""

        def write(connection: Connection) -> Entry:
            self.require(connection)
            with self.transaction(connection):
                sealed = self.seal(connection, new)  # under the head, so that of two at one moment the second sees the first
                for known in self.list_endings_on(connection, new.agent, new.seq or 0, ENDINGS):
                    if (known.kind, known.decision_id) == (new.kind, new.decision_id):
                        return known
                return self._put(connection, sealed)

        return self._database.write(write)

    def append_observed(self, new: NewEntry) -> Entry | None:
        """As `ActionStore.append_observed`."""

        def write(connection: Connection) -> Entry | None:
            self.require(connection)
            with self.transaction(connection):
                sealed = self.seal(connection, new)  # as in append_corrected
                known = self.list_endings_on(connection, new.agent, new.seq or 0, LOOKED_AT)
                if (written := find_observed(known, new)) or is_ours(known):
                    return written
                return self._put(connection, sealed)

        return self._database.write(write)

    def list_endings(self, agent: str, seq: int) -> tuple[Entry, ...]:
        """As `list_endings_on`, on a connection of its own."""
        return self._database.read(lambda c: self.list_endings_on(c, agent, seq, ENDINGS)) if can_be_stored(agent) else ()

    def find_settled(self, decision_id: str) -> Entry | None:
        return self._database.read(lambda c: self.find_settled_on(c, decision_id)) if can_be_stored(decision_id) else None

    def remove_entries(self, last: ChainHead, new: NewEntry) -> Entry:
        """As `ActionStore.remove_entries`. The trigger is the owner's to lift, for this transaction alone."""

        def write(connection: Connection) -> Entry:
            self.require(connection)
            connection.allow_more(REMOVING_S)
            with self.transaction(connection):
                sealed = self.seal(connection, new)
                head = ChainHead(chain=self.chain, number=sealed.number - 1, hash=sealed.prev)
                params = {"chain": self.chain, "number": last.number}
                row = self._database.first(connection, "find_entry_hash", params)
                if problem := cannot_remove(self.name, last, head, row[0] if row else None):
                    raise problem
                connection.execute(f"SET LOCAL statement_timeout = '{REMOVING_S}s'")
                connection.execute(self._database.text("lift_finality"))
                connection.execute(self._database.text("remove_entries"), params)
                connection.execute(self._database.text("restore_finality"))
                if self._database.one(connection, "append_entry", entry_columns(sealed)) != (1, 1):
                    raise WriteConflict(self.name, "the audit chain's head moved")
                return sealed

        return self._database.write(write)

    def list_settling(self, agent: str, seq: int, *, limit: int) -> tuple[Entry, ...]:
        """The newest intents about one action, whoever's, newest first."""

        def read(connection: Connection) -> tuple[Entry, ...]:
            params = {"chain": self.chain, "agent": agent, "seq": seq, "limit": limit}
            rows = self._database.all(connection, "list_settling_entries", params) if self.can_read(connection) else []
            return tuple(show_entry(Link(*row)) for row in rows)

        return self._database.read(read) if can_be_stored(agent) else ()

    def find_of_action(self, agent: str, seq: int) -> Entry | None:
        """The newest `settled` entry about one action."""
        return self._database.read(lambda c: self.find_of_action_on(c, agent, seq)) if can_be_stored(agent) else None

    def list_entries(
        self,
        *,
        limit: int,
        before: int | None = None,
        agent: str | None = None,
        seq: int | None = None,
        kinds: Collection[str] | None = None,
    ) -> tuple[Entry, ...]:
        given = {"before": before, "agent": agent, "seq": seq, "kinds": None if kinds is None else list(kinds)}
        conditions = tuple(name for name, value in given.items() if value is not None)

        def read(connection: Connection) -> tuple[Entry, ...]:
            if not self.can_read(connection):
                return ()
            params = {"chain": self.chain, **given, "limit": limit}
            rows = connection.execute(self._list_statement(conditions), params).fetchall()
            return tuple(show_entry(Link(*row)) for row in rows)

        return self._database.read(read) if agent is None or can_be_stored(agent) else ()

    def iterate_links(self, *, after: int = 0) -> Iterator[Link]:
        after = after or FIRST_NUMBER  # a row that was put before the first one is a row too
        while links := self._read_links(after):
            yield from links
            after = links[-1].number

    def read_head(self) -> ChainHead:
        def read(connection: Connection) -> ChainHead:
            row = self._first(connection, "read_head") if self.can_read(connection) else None
            number, hash_ = row or (0, GENESIS)
            return ChainHead(chain=self.chain, number=number, hash=hash_)

        return self._database.read(read)

    # --- on a connection of the caller's ---

    def append_on(self, connection: Any, new: NewEntry) -> Entry:
        """As `OwnChain.append_on`."""
        try:
            self.require(connection)
            return self._put(connection, self.seal(connection, new))
        except psycopg.Error as exc:
            raise store_error(self.name, self._database.address, exc, is_write=True) from exc

    @contextmanager
    def transaction(self, connection: Connection, *, in_pipeline: bool = False) -> Iterator[None]:
        """All or nothing, with what only our unique indexes can notice told in words. Raises DecisionIdTaken as `append` does."""
        try:
            with self._database.transaction(connection, in_pipeline=in_pipeline):
                yield
        except errors.UniqueViolation as exc:
            raise _chain_error(self.name, exc) from exc

    def seal(self, connection: Connection, new: NewEntry) -> Entry:
        """Hold the chain's head; the next link after it, at the database's time. Whoever appends it must do so in this transaction."""
        return self.seal_after(self.send_head(connection), new)

    def send_head(self, connection: Connection) -> Sent:
        """The first half of `seal`: ask for the chain's head; it is held as soon as the server comes to this."""
        return self._database.send(connection, "lock_head", {"chain": self.chain, "genesis": GENESIS})

    def seal_after(self, head: Sent, new: NewEntry) -> Entry:
        """The second half of `seal`."""
        number, hash_, now = self._database.answer(head)
        return seal(new, ChainHead(chain=self.chain, number=number, hash=hash_), read_instant(now))

    def find_settled_on(self, connection: Connection, decision_id: str) -> Entry | None:
        row = None
        if self.can_read(connection):
            row = self._first(connection, "find_settled_entry", decision_id=decision_id)
        return show_entry(Link(*row)) if row else None

    def find_of_action_on(self, connection: Connection, agent: str, seq: int) -> Entry | None:
        row = self._first(connection, "find_entry_of_action", agent=agent, seq=seq) if self.can_read(connection) else None
        return show_entry(Link(*row)) if row else None

    def list_endings_on(self, connection: Connection, agent: str, seq: int, kinds: Collection[str]) -> tuple[Entry, ...]:
        """The entries of these kinds about one action, newest first, at most ENDINGS_LOOKED_AT."""
        if not self.can_read(connection):
            return ()
        params = {"chain": self.chain, "agent": agent, "seq": seq, "kinds": list(kinds), "limit": ENDINGS_LOOKED_AT}
        return tuple(show_entry(Link(*row)) for row in self._database.all(connection, "list_endings", params))

    def can_read(self, connection: Connection) -> bool:
        """Whether this database was prepared. A history that we may not read is never an empty one."""
        if self.is_known:
            return True
        found, readable = self._count(connection)
        if found and readable != 2:
            raise StoreUnusable(self.name, postgres_setup.no_history(connection))
        return found == 2

    def require(self, connection: Connection) -> None:
        """Before anything is written.

        Raises:
            StoreReadOnly, StoreUnusable: the schema is not there, only half there, or hidden from us. Nothing was written.
        """
        if self.is_known:
            return
        found, readable = self._count(connection)
        if found == 1:
            raise StoreUnusable(self.name, postgres_setup.no_history(connection))
        if readable != 2:
            raise StoreReadOnly(self.name, postgres_setup.not_prepared(connection, self.name))

    # --- inside ---

    def _append(self, new: NewEntry, *, is_begun: bool) -> Entry:
        def write(connection: Connection) -> Entry:
            self.require(connection)
            with self.transaction(connection):
                sealed = self.seal(connection, new)
                if is_begun:
                    self._refuse_reuse(connection, new)
                return self._put(connection, sealed)

        return self._database.write(write)

    def _put(self, connection: Connection, sealed: Entry) -> Entry:
        counts = self._database.one(connection, "append_entry", entry_columns(sealed))
        if counts != (1, 1):
            raise WriteConflict(self.name, "the audit chain's head moved")
        return sealed

    def _refuse_reuse(self, connection: Connection, new: NewEntry) -> None:
        """Under the head, so that of two who begin at one moment the second sees the first."""
        params = {"chain": self.chain, "decision_id": new.decision_id}
        for row in self._database.all(connection, "find_settling_entries", params):
            begun = show_entry(Link(*row))
            if begun.content_digest != new.content_digest:
                raise DecisionIdReused(begun)

    def _read_links(self, after: int) -> list[Link]:
        def read(connection: Connection) -> list[Link]:
            params = {"chain": self.chain, "after": after, "limit": LINKS_PER_BATCH}
            rows = self._database.all(connection, "iterate_links", params) if self.can_read(connection) else []
            return [link_of_row(row) for row in rows]

        return self._database.read(read)

    def _first(self, connection: Connection, statement: str, **params: Any) -> tuple[Any, ...] | None:
        return self._database.first(connection, statement, {"chain": self.chain, **params})

    def _count(self, connection: Connection) -> tuple[int, int]:
        """How many of our two tables are there, and how many of them we may read."""
        row = self._database.one(connection, "find_tables", {"schema": self._database.address.schema})
        found, readable = row[2:4]
        self.is_known = readable == 2
        return found, readable

    def _list_statement(self, conditions: tuple[str, ...]) -> str:
        texts = {
            "before": "number < %(before)s",
            "agent": "agent = %(agent)s",
            "seq": "seq = %(seq)s",
            "kinds": "kind = ANY(%(kinds)s)",
        }
        joined = sql.SQL(" AND ").join([sql.SQL("true"), *(sql.SQL(texts[name]) for name in conditions)])
        return self._database.text("list_entries", conditions=joined)

    def _forget(self) -> None:
        self.is_known = False


def open_entries(name: str, url: str, chain: str, timeouts: Timeouts | None = None) -> PostgresEntries:
    """A chain in a database of its own connections; `name` is the store's, for messages. Nothing connects before the first use.

    Raises:
        StoreUnusable: the address is malformed; the sentence does not repeat it.
    """
    return PostgresEntries(Database(name, parse_address(name, url), timeouts), chain)


def _chain_error(name: str, exc: errors.UniqueViolation) -> Exception:
    """Which uniqueness was violated: a decision id written by another connection is an answer, anything else is a fault."""
    if exc.diag.constraint_name == "entries_decision":
        return DecisionIdTaken(str(exc))
    return StoreUnusable(
        name,
        f"the audit chain's head does not fit its entries ({exc.diag.constraint_name}); run verify_audit",
    )
