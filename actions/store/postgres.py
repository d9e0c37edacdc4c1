"""The PostgreSQL store: psycopg 3, statements by name from queries.sql. Reads are single statements; a settle is one transaction of six.

Rules of the records are in recall-records 9.1; how errors are told is in postgres_connection.py, what is ours to create in
postgres_setup.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar, cast

import psycopg
from psycopg import errors, sql

from actions.errors import (
    ActionNotFound,
    ActionNotOpen,
    LeaseLive,
    LeaseMoved,
    StoreError,
    StoreReadOnly,
    StoreUnavailable,
    StoreUnusable,
    WriteConflict,
)
from actions.keys import args_ref
from actions.records import (
    Action,
    ActionEnd,
    ActionRef,
    ActionsRead,
    ActionStatus,
    ChainHead,
    Entry,
    Lease,
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
from actions.store import postgres_setup
from actions.store.audit import GENESIS, seal, show_entry
from actions.store.base import SETTLE_TTL, check_epoch
from actions.store.closing import Closing, answer_repeat, check_seen, newest_turn, plan_closing, readable, whole_args
from actions.store.codec import (
    Metadata,
    action_id,
    decode_action,
    decode_output,
    decode_pointer,
    decode_turn,
    decode_working_state,
    head_id,
    load_metadata,
    output_id,
    turn_id,
)
from actions.store.deadlines import LeftAlone
from actions.store.evicting import answer_eviction, eviction_entry, require_held
from actions.store.postgres_connection import (
    DEFAULT_SCHEMA,
    Connection,
    ProcessConnections,
    Timeouts,
    is_lost,
    parse_address,
    store_error,
)
from actions.store.postgres_rows import (
    action_by_values,
    can_be_stored,
    decoded,
    decoded_action,
    entry_columns,
    lease_in_microseconds,
    lease_of_row,
    link_of_row,
    read_instant,
    reading_of_row,
)
from actions.store.postgres_statements import compose
from actions.times import Instant

Row = tuple[Any, ...]
T = TypeVar("T")

LINKS_PER_BATCH = 1_000
FIRST_NUMBER = -(2**63)
MAX_DECODED = 20_000
"""How many short actions stay decoded: as many as a queue reads of one store; about two kilobytes each."""
MAX_DECODED_CHARS = 2_000
_MOVED = (errors.UndefinedTable, errors.UndefinedColumn, errors.InvalidSchemaName)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """What stood in the database when we looked."""

    has_registry: bool  # Recall's registry and leases
    records: str | None  # table of the agents collection; None until Recall has written its first record
    dimension: int
    has_audit: bool  # ours, and we may read it
    read_at: Instant


class PostgresStore:
    """ActionStore over Recall's tables. Connects on first use; safe to share between threads and across fork.

    Nobody waits for a server longer than `timeouts` say; one that did not answer is left alone for a while, then one caller asks it again.
    """

    leases_known = True

    def __init__(self, url: str, *, name: str = "main", timeouts: Timeouts | None = None) -> None:
        self.name = name
        self._address = parse_address(name, url)
        self._timeouts = timeouts or Timeouts()
        self._connections = ProcessConnections(self._address.conninfo, self._timeouts)
        self._known: Tables | None = None
        self._texts: dict[tuple[str, ...], str] = {}
        # A queue is read again and again, and few of its rows have changed: each text is decoded once.
        self._decode_short = lru_cache(maxsize=MAX_DECODED)(action_by_values)

    @property
    def chain(self) -> str:
        return f"{self._address.schema}.{self._address.collection}"

    # --- the store itself ---

    def check(self) -> StoreCheck:
        try:
            return self._read(lambda connection: postgres_setup.check(connection, self._address, self.name))
        except StoreError as exc:
            return StoreCheck(is_reachable=not isinstance(exc, StoreUnavailable), why_not=exc.problem)

    def prepare(self, *, index: bool = False) -> tuple[str, ...]:
        with self._connect(is_write=True) as connection:
            lines = postgres_setup.prepare(connection, self.name)
            if index:
                connection.allow_for_ever()  # a big table takes as long as it takes
                tables = self._look(connection)
                lines += postgres_setup.prepare_index(connection, self._address, tables.records, self.name)
        self._known = None
        return lines

    def close(self) -> None:
        self._connections.close()

    def read_watch(self) -> Watch:
        def read(connection: Connection) -> Watch:
            tables = self._look(connection)
            if not tables.has_registry:
                return Watch(revision=0, next_expiry=None, entries=0, read_at=tables.read_at)
            statement = "read_watch" if tables.has_audit else "read_watch_without_audit"
            revision, expiry, entries, now = self._one(connection, statement, tables, self._where())
            if entries is True:
                self._known = None  # prepared meanwhile: the next reading counts
            next_expiry = None if expiry is None else read_instant(expiry)
            return Watch(
                revision=revision,
                next_expiry=next_expiry,
                entries=int(entries) if tables.has_audit else 0,
                read_at=read_instant(now),
            )

        return self._read(read)

    # --- reads over all agents ---

    def read_actions(self, statuses: Collection[ActionStatus], *, limit: int, agent: str | None = None) -> ActionsRead:
        def read(connection: Connection) -> ActionsRead:
            tables = self._look(connection)
            if tables.records is None or not statuses:
                return ActionsRead(readings=(), is_truncated=False)
            params = self._where() | {"limit": limit + 1, "agent": agent}
            rows = connection.execute(self._actions_statement(tables, statuses, of_agent=agent is not None), params).fetchall()
            return ActionsRead(readings=tuple(map(self._listed, rows[:limit])), is_truncated=len(rows) > limit)

        return self._read(read) if agent is None or can_be_stored(agent) else ActionsRead(readings=(), is_truncated=False)

    def read_outputs(self, wanted: Collection[tuple[str, str]]) -> Mapping[tuple[str, str], Output | Unreadable]:
        keys = {output_id(agent, ref): (agent, ref) for agent, ref in wanted}

        def read(connection: Connection) -> Mapping[tuple[str, str], Output | Unreadable]:
            rows = self._records(connection, "read_records", {"ids": list(keys)})
            return {keys[record_id]: decoded(decode_output, record_id, text) for record_id, text in rows}

        keys = {record_id: key for record_id, key in keys.items() if can_be_stored(record_id)}
        return self._read(read) if keys else {}

    def get_action(self, agent: str, seq: int) -> Reading:
        def read(connection: Connection) -> list[Row]:
            return self._records(connection, "get_action", self._where() | {"id": action_id(agent, seq)})

        rows = self._read(read) if can_be_stored(agent) else []
        if not rows:
            raise ActionNotFound(ActionRef(self.name, agent, seq))
        return reading_of_row(rows[0])

    def _listed(self, row: Row) -> Reading:
        """One row of `read_actions`: metadata as text only where they are not as Recall writes them."""
        record_id, text, body, *values = row[:8]
        if text is None:
            decode = self._decode_short if len(body) <= MAX_DECODED_CHARS else action_by_values
            action = decode(record_id, body, *values)
        else:
            action = decoded_action(record_id, text)
        return Reading(action=action, lease=lease_in_microseconds(row[8:]), read_at=row[-1] * 1000)

    # --- one agent ---

    def find_lease(self, agent: str) -> Lease | None:
        def read(connection: Connection) -> Lease | None:
            tables = self._look(connection)
            row = self._first(connection, "find_lease", tables, self._where() | {"agent": agent}) if tables.has_registry else None
            return lease_of_row(row) if row else None

        return self._read(read) if can_be_stored(agent) else None

    def list_turns(self, agent: str, *, limit: int, before: int | None = None) -> tuple[Turn | Unreadable, ...]:
        params = {"agent": agent, "limit": limit, "before": before}
        rows = self._read_records("list_turns", params) if can_be_stored(agent) else []
        return tuple(decoded(decode_turn, record_id, text) for record_id, text in rows)

    def list_agent_actions(self, agent: str, *, limit: int, before: int | None = None) -> tuple[Reading, ...]:
        params = self._where() | {"agent": agent, "limit": limit, "before": before}
        rows = self._read_records("list_agent_actions", params) if can_be_stored(agent) else []
        return tuple(map(reading_of_row, rows))

    def find_working_state(self, agent: str) -> WorkingState | Unreadable | None:
        rows = self._read_records("read_records", {"ids": [head_id(agent)]}) if can_be_stored(agent) else []
        return decoded(decode_working_state, *rows[0]) if rows else None

    def list_pointers(self, agent: str, *, limit: int = 1000) -> tuple[Pointer | Unreadable, ...]:
        rows = self._read_records("list_pointers", {"agent": agent, "limit": limit}) if can_be_stored(agent) else []
        pointers = (decoded(decode_pointer, record_id, text) for record_id, text in rows)
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
    ) -> Settled:
        """Six statements under READ COMMITTED, in the order of recall-records 9.1; every refusal rolls all of them back."""

        def write(connection: Connection) -> Settled:
            tables = self._look(connection)
            if not tables.has_audit:
                self._require_audit(connection)
            if tables.records is None or not can_be_stored(ref.agent):
                raise ActionNotFound(ref)
            with self._transaction(connection):
                return self._settle(connection, tables, ref, end, entry, holder, seen, claim)

        try:
            return self._write(write)
        except _Written as exc:
            return answer_repeat(exc.entry, entry)
        except _DecisionIdTaken as exc:
            # Another connection wrote this id between our first statement and our last.
            written = self.find_settled_entry(entry.decision_id)
            if written is None:
                raise WriteConflict(self.name, f"decision id {entry.decision_id} is being written by somebody else") from exc
            return answer_repeat(written, entry)

    def _settle(
        self,
        connection: Connection,
        tables: Tables,
        ref: ActionRef,
        end: ActionEnd,
        entry: NewEntry,
        holder: str,
        seen: str | None,
        claim: str | None,
    ) -> Settled:
        self._look_before(connection, tables, ref, entry)
        epoch, found = self._take_lease(connection, tables, ref.agent, holder)
        locked = self._lock_action(connection, tables, ref)
        action = readable(locked.action)
        if not action.is_open:
            # Closed while we waited for the lease; perhaps by this very decision, delivered twice.
            self._refuse_repeat(connection, tables, entry)
            raise ActionNotOpen(ref, action, self._entry_of(connection, tables, ref))
        check_seen(ref, action, locked.args, seen=seen, claim=claim)
        closing = plan_closing(
            action,
            locked.metadata,
            end,
            entry,
            args=locked.args,
            newest=locked.newest_turn(),
            found=found,
            epoch=epoch,
            at=locked.now,
            seen=seen,
            claim=claim,
        )
        self._write_records(connection, tables, ref, closing)
        sealed = self._seal(connection, closing.entry)
        release = {"lease_agent": ref.agent, "holder": holder, "epoch": epoch, "records": closing.records_written}
        counts = self._one(connection, "settle_finish", tables, self._where() | entry_columns(sealed) | release)
        if counts != (1, 1, 1, 1):
            raise WriteConflict(self.name, f"of entry, head, lease and revision {counts} rows were there to write")
        return Settled(entry=sealed, turn_seq=closing.turn_seq, is_repeat=False)

    def _look_before(self, connection: Connection, tables: Tables, ref: ActionRef, entry: NewEntry) -> None:
        """Statement 1: refuse where no lease is needed to know why: written by this decision id before, not there, closed for good, held."""
        params = self._where() | {"id": action_id(ref.agent, ref.seq), "agent": ref.agent, "decision_id": entry.decision_id}
        row = self._one(connection, "settle_look", tables, params)
        if row[0] is not None:
            raise _Written(show_entry(Link(*row[:4])))
        if row[4] is None:
            raise ActionNotFound(ref)
        action = readable(decoded(decode_action, action_id(ref.agent, ref.seq), row[4]))
        if not action.is_open:
            raise ActionNotOpen(ref, action, self._entry_of(connection, tables, ref))
        lease = lease_of_row(row[5:10])
        if lease is not None and lease.is_live:
            raise LeaseLive(lease)
        check_epoch(self.name, lease)

    def _take_lease(self, connection: Connection, tables: Tables, agent: str, holder: str) -> tuple[int, Lease | None]:
        """Statement 2: our epoch, and the lease as it was before."""
        params = self._where() | {"agent": agent, "holder": holder, "ttl": SETTLE_TTL}
        epoch, *before = self._one(connection, "settle_take_lease", tables, params)
        lease = lease_of_row(before)
        if epoch is None:
            # Without `lease`: the row is newer than our statement's snapshot; read it as it is now.
            lease = lease or lease_of_row(self._one(connection, "find_lease", tables, params))
            if lease is None:
                raise WriteConflict(self.name, f"the lease of agent {agent} can neither be taken nor read")
            raise LeaseLive(lease)
        return epoch, lease

    def _lock_action(self, connection: Connection, tables: Tables, ref: ActionRef) -> _Locked:
        """Statement 3: the action, its whole arguments and the agent's newest turn as nobody else can change them any more."""
        record_id, head = action_id(ref.agent, ref.seq), head_id(ref.agent)
        params = {"agent": ref.agent, "head": head, "ids": [record_id, output_id(ref.agent, args_ref(ref.seq))]}
        rows = {row[0]: row for row in self._all(connection, "settle_lock_records", tables, params)}
        if record_id not in rows:
            raise ActionNotFound(ref)
        _, text, largest, head_text, now = rows[record_id]
        action = decoded(decode_action, record_id, text)
        return _Locked(
            action=action,
            metadata=cast("Metadata", load_metadata(text)),  # of a readable action: an object
            args=self._whole_args(connection, tables, action, {key: row[1] for key, row in rows.items()}),
            largest_turn=largest,
            head=None if head_text is None else (head, load_metadata(head_text)),
            now=read_instant(now),
        )

    def _whole_args(self, connection: Connection, tables: Tables, action: Action | Unreadable, texts: dict[str, str]) -> str:
        if isinstance(action, Unreadable):
            return ""
        key = output_id(action.agent, action.args_ref)
        if action.args_ref and key not in texts and can_be_stored(key):
            texts |= dict(self._all(connection, "read_records", tables, {"ids": [key]}))  # an output of an unusual name
        return whole_args(action, decoded(decode_output, key, texts[key]) if key in texts else None)

    def _refuse_repeat(self, connection: Connection, tables: Tables, entry: NewEntry) -> None:
        row = self._first(connection, "find_settled_entry", tables, self._where() | {"decision_id": entry.decision_id})
        if row:
            raise _Written(show_entry(Link(*row)))

    def _write_records(self, connection: Connection, tables: Tables, ref: ActionRef, closing: Closing) -> None:
        """Statement 4."""
        new_turn = turn_id(ref.agent, closing.turn_seq)
        outputs = [(key, metadata) for key, metadata in closing.inserted.items() if key != new_turn]
        key, metadata = outputs[0] if outputs else (None, None)
        params = {
            "action_id": action_id(ref.agent, ref.seq),
            "action": json.dumps({name: closing.action[name] for name in ("status", "epoch", "body")}),
            "turn_id": new_turn,
            "turn": json.dumps(closing.inserted[new_turn]),
            "output_id": key,
            "output": None if metadata is None else json.dumps(metadata),
            "dim": tables.dimension,
        }
        try:
            counts = self._one(connection, "settle_write", tables, params)
        except errors.UniqueViolation as exc:
            raise WriteConflict(
                self.name, f"turn {closing.turn_seq} of agent {ref.agent} exists although we hold its lease"
            ) from exc
        if counts != (1, 1, len(outputs)):
            raise WriteConflict(self.name, f"action {ref} vanished while it was settled")

    def _entry_of(self, connection: Connection, tables: Tables, ref: ActionRef) -> Entry | None:
        row = self._first(connection, "find_entry_of_action", tables, self._where() | {"agent": ref.agent, "seq": ref.seq})
        return show_entry(Link(*row)) if row else None

    def evict(self, agent: str, *, holder: str, entry: NewEntry) -> Entry:
        """The lease's row first: whoever else writes it was before us, and is seen, or waits."""

        def write(connection: Connection) -> Entry:
            self._require_audit(connection)
            tables = self._look(connection)
            if not tables.has_registry or not can_be_stored(agent):
                raise LeaseMoved(agent, holder, None)
            params = self._where() | {"agent": agent, "decision_id": entry.decision_id}
            with self._transaction(connection):
                row = self._first(connection, "evict_lock_lease", tables, params)
                if written := self._first(connection, "find_eviction", None, params):
                    return answer_eviction(show_entry(Link(*written)), entry)
                found = require_held(self.name, agent, holder, lease_of_row(row) if row else None)
                sealed = self._seal(connection, eviction_entry(entry, found))
                release = {"lease_agent": agent, "holder": holder, "epoch": found.epoch}
                counts = self._one(connection, "evict_finish", tables, self._where() | entry_columns(sealed) | release)
                if counts != (1, 1, 1):
                    raise WriteConflict(self.name, f"of entry, head and lease {counts} rows were there to write")
                return sealed

        return self._write(write)

    # --- audit entries ---

    def append_entry(self, entry: NewEntry) -> Entry:
        def write(connection: Connection) -> Entry:
            self._require_audit(connection)
            with self._transaction(connection):
                sealed = self._seal(connection, entry)
                counts = self._one(connection, "append_entry", None, entry_columns(sealed))
                if counts != (1, 1):
                    raise WriteConflict(self.name, "the audit chain's head moved")
                return sealed

        return self._write(write)

    def find_settled_entry(self, decision_id: str) -> Entry | None:
        def read(connection: Connection) -> Entry | None:
            params = self._where() | {"decision_id": decision_id}
            row = self._first(connection, "find_settled_entry", None, params) if self._has_audit(connection) else None
            return show_entry(Link(*row)) if row else None

        return self._read(read) if can_be_stored(decision_id) else None

    def list_entries(
        self, *, limit: int, before: int | None = None, agent: str | None = None, seq: int | None = None
    ) -> tuple[Entry, ...]:
        given = {"before": before, "agent": agent, "seq": seq}
        conditions = tuple(name for name, value in given.items() if value is not None)

        def read(connection: Connection) -> tuple[Entry, ...]:
            if not self._has_audit(connection):
                return ()
            params = self._where() | given | {"limit": limit}
            rows = connection.execute(self._entries_statement(conditions), params).fetchall()
            return tuple(show_entry(Link(*row)) for row in rows)

        return self._read(read) if agent is None or can_be_stored(agent) else ()

    def iterate_links(self, *, after: int = 0) -> Iterator[Link]:
        after = after or FIRST_NUMBER  # a row that was put before the first one is a row too
        while links := self._read_links(after):
            yield from links
            after = links[-1].number

    def _read_links(self, after: int) -> list[Link]:
        def read(connection: Connection) -> list[Link]:
            params = self._where() | {"after": after, "limit": LINKS_PER_BATCH}
            rows = self._all(connection, "iterate_links", None, params) if self._has_audit(connection) else []
            return [link_of_row(row) for row in rows]

        return self._read(read)

    def read_head(self) -> ChainHead:
        def read(connection: Connection) -> ChainHead:
            row = self._first(connection, "read_head", None, self._where()) if self._has_audit(connection) else None
            number, hash_ = row or (0, GENESIS)
            return ChainHead(chain=self.chain, number=number, hash=hash_)

        return self._read(read)

    def _seal(self, connection: Connection, new: NewEntry) -> Entry:
        """Statement 5: hold the chain's head; the next link after it, at the store's time."""
        number, hash_, now = self._one(connection, "lock_head", None, self._where() | {"genesis": GENESIS})
        return seal(new, ChainHead(chain=self.chain, number=number, hash=hash_), read_instant(now))

    # --- tables ---

    def _look(self, connection: Connection) -> Tables:
        """What stands in the database; remembered once Recall's records are there."""
        if self._known is not None:
            return self._known
        # A schema named in the address that is not there is a slip of the pen; the default one is not there until Recall's first agent.
        schema = self._address.schema
        has_schema, registry, _, readable, now = self._one(connection, "find_tables", None, {"schema": schema})
        if not has_schema and schema != DEFAULT_SCHEMA:
            raise StoreUnusable(
                self.name, f"there is no schema {schema}; Recall makes it with its first agent: check the name in the address"
            )
        if registry == 1:
            raise StoreUnusable(
                self.name, f"what stands in schema {schema} is not Recall's: its registry or its leases are missing"
            )
        row = self._first(connection, "find_collection", None, self._where()) if registry else None
        if row is not None and not (isinstance(row[0], str) and isinstance(row[1], int) and 0 < row[1] <= 16_000):
            raise StoreUnusable(self.name, f"the registry's row of {self._address.collection} is not Recall's: {str(row)[:120]}")
        tables = Tables(
            has_registry=registry == 2,
            records=row[0] if row else None,
            dimension=row[1] if row else 0,
            has_audit=readable == 2,
            read_at=read_instant(now),
        )
        self._known = tables if row else None
        return tables

    def _has_audit(self, connection: Connection) -> bool:
        """Whether this store was prepared, whatever became of Recall's own tables. A history that we may not read is never an empty one."""
        if self._known is not None and self._known.has_audit:
            return True
        found, readable = self._count_audit(connection)
        if found and readable != 2:
            raise StoreUnusable(self.name, postgres_setup.no_history(connection))
        return found == 2

    def _require_audit(self, connection: Connection) -> None:
        found, readable = self._count_audit(connection)
        if found == 1:
            raise StoreUnusable(self.name, postgres_setup.no_history(connection))
        if readable != 2:
            raise StoreReadOnly(self.name, postgres_setup.not_prepared(connection, self.name))

    def _count_audit(self, connection: Connection) -> tuple[int, int]:
        """How many of our two tables are there, and how many of them we may read."""
        known = self._known
        if known is not None and known.has_audit:
            return 2, 2
        found, readable = self._one(connection, "find_tables", None, {"schema": self._address.schema})[2:4]
        if known is not None and readable == 2:
            self._known = replace(known, has_audit=True)
        return found, readable

    # --- connections, statements, errors ---

    def _read(self, read: Callable[[Connection], T]) -> T:
        return self._use(read, is_write=False)

    def _write(self, write: Callable[[Connection], T]) -> T:
        return self._use(write, is_write=True)

    def _use(self, work: Callable[[Connection], T], *, is_write: bool) -> T:
        try:
            with self._connect(is_write=is_write, may_find_dead=True) as connection:
                return self._look_again(connection, work)
        except _FoundDead:
            # The server was restarted, or somebody closed what was idle; no transaction had begun.
            with self._connect(is_write=is_write, is_fresh=True) as connection:
                return self._look_again(connection, work)

    def _look_again(self, connection: Connection, work: Callable[[Connection], T]) -> T:
        """Tables may be dropped and made anew while we run: forget what we knew and try once more. Nothing was written."""
        try:
            return work(connection)
        except _MOVED:
            self._known = None
            return work(connection)

    @contextmanager
    def _connect(self, *, is_write: bool = False, is_fresh: bool = False, may_find_dead: bool = False) -> Iterator[Connection]:
        """A connection for one use, with its deadline. `may_find_dead`: the caller asks again where a kept one is dead (_FoundDead)."""
        used: Connection | None = None
        try:
            with self._connections.borrow(is_fresh=is_fresh) as used:
                used.allow(self._timeouts.write_s if is_write else self._timeouts.read_s, answer_s=self._timeouts.answer_s)
                yield used
        except LeftAlone as exc:
            raise StoreUnavailable(self.name, str(exc)) from exc
        except _CommitUnanswered as exc:
            raise store_error(self.name, self._address, exc.cause, may_be_written=True) from exc.cause
        except psycopg.Error as exc:
            self._known = None
            if may_find_dead and used is not None and used.is_kept and used.may_be_repeated and is_lost(used, exc):
                raise _FoundDead from exc
            raise store_error(self.name, self._address, exc, is_write=is_write) from exc

    @contextmanager
    def _transaction(self, connection: Connection) -> Iterator[None]:
        """All or nothing; says so when the answer to COMMIT was lost."""
        connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
        connection.may_be_repeated = False
        try:
            yield
        except BaseException as exc:
            if not connection.closed:
                with suppress(psycopg.Error):  # where it cannot be said, the server rolls back when the connection is gone
                    connection.rollback()
            if isinstance(exc, errors.UniqueViolation):
                raise _chain_error(self.name, exc) from exc
            raise
        connection.allow_more(self._timeouts.commit_s)
        try:
            connection.execute("COMMIT")
        except psycopg.Error as exc:
            if connection.closed:
                raise _CommitUnanswered(exc) from exc
            raise

    def _where(self) -> dict[str, Any]:
        return {"collection": self._address.collection, "chain": self.chain}

    def _read_records(self, statement: str, params: Mapping[str, Any]) -> list[Row]:
        return self._read(lambda connection: self._records(connection, statement, params))

    def _records(self, connection: Connection, statement: str, params: Mapping[str, Any]) -> list[Row]:
        tables = self._look(connection)
        return self._all(connection, statement, tables, params) if tables.records is not None else []

    def _all(self, connection: Connection, statement: str, tables: Tables | None, params: Mapping[str, Any]) -> list[Row]:
        return connection.execute(self._text(statement, tables), params).fetchall()

    def _first(self, connection: Connection, statement: str, tables: Tables | None, params: Mapping[str, Any]) -> Row | None:
        return connection.execute(self._text(statement, tables), params).fetchone()

    def _one(self, connection: Connection, statement: str, tables: Tables | None, params: Mapping[str, Any]) -> Row:
        row = self._first(connection, statement, tables, params)
        if row is None:
            raise StoreUnusable(self.name, f"{statement} answered no row")
        return row

    def _text(self, statement: str, tables: Tables | None, **parts: sql.Composable) -> str:
        """A statement with its table names in; made once for each."""
        key = (statement, (tables.records if tables else None) or "", *(part.as_string(None) for part in parts.values()))
        if key not in self._texts:
            self._texts[key] = compose(statement, self._address.schema, tables.records if tables else None, **parts)
        return self._texts[key]

    def _actions_statement(self, tables: Tables, statuses: Collection[ActionStatus], *, of_agent: bool) -> str:
        """Statuses stand in the text: a partial index is used only where the planner sees its condition's constants."""
        values = sorted(status.value for status in statuses)
        pairs = [sql.Literal(json.dumps({"record": "action", "status": value})) for value in values]
        return self._text(
            "read_actions",
            tables,
            contained=sql.SQL(" OR ").join(sql.SQL("metadata @> {}::jsonb").format(pair) for pair in pairs),
            statuses=sql.SQL(", ").join(map(sql.Literal, values)),
            of_agent=sql.SQL("metadata @> jsonb_build_object('recall_agent', %(agent)s::text)" if of_agent else "true"),
        )

    def _entries_statement(self, conditions: Collection[str]) -> str:
        texts = {
            "before": "number < %(before)s",
            "agent": "agent = %(agent)s",
            "seq": "seq = %(seq)s",
        }
        joined = sql.SQL(" AND ").join([sql.SQL("true"), *(sql.SQL(texts[name]) for name in conditions)])
        return self._text("list_entries", None, conditions=joined)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Locked:
    """What a settle found once it had the lease."""

    action: Action | Unreadable
    metadata: Metadata
    args: str
    largest_turn: int
    head: tuple[str, object] | None
    now: Instant

    def newest_turn(self) -> int:
        return newest_turn(self.largest_turn, self.head)


class _Written(Exception):
    """This decision id has its entry already. An exception, because what was taken meanwhile must be rolled back."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        super().__init__(entry.decision_id)


class _FoundDead(Exception):
    """A connection that was kept is gone, and nothing was begun on it: ask once more on a new one."""


class _DecisionIdTaken(Exception):
    """Another connection's settle with this decision id was committed before ours."""


class _CommitUnanswered(Exception):
    """COMMIT was sent; nobody knows what became of it."""

    def __init__(self, cause: psycopg.Error) -> None:
        self.cause = cause
        super().__init__(str(cause))


def _chain_error(name: str, exc: errors.UniqueViolation) -> Exception:
    """Which uniqueness was violated: a decision id written by another connection is an answer, anything else is a fault."""
    if exc.diag.constraint_name == "entries_decision":
        return _DecisionIdTaken(str(exc))
    return StoreUnusable(
        name,
        f"the audit chain's head does not fit its entries ({exc.diag.constraint_name}); run verify_audit",
    )
