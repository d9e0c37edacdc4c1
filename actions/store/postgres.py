"""The PostgreSQL store: psycopg 3, statements by name from queries.sql. Reads are single statements; a settle is one look and one transaction
of five, a correction a transaction of eight.

Rules of the records are in recall-records 9.1; what a settle does within its transaction is in postgres_closing.py, how errors are told in
postgres_connection.py, what is ours to create in postgres_setup.py.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Any

from psycopg import sql

from actions.errors import (
    ActionNotFound,
    LeaseLost,
    LeaseMoved,
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
from actions.store import postgres_agents, postgres_records, postgres_setup
from actions.store.audit import show_entry
from actions.store.closing import (
    answer_repeat,
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
from actions.store.evicting import answer_eviction, eviction_entry, require_held
from actions.store.postgres_closing import PostgresClosing, Tables, Written
from actions.store.postgres_connection import DEFAULT_SCHEMA, Connection, Timeouts, parse_address
from actions.store.postgres_database import Database, Row
from actions.store.postgres_entries import DecisionIdTaken, PostgresEntries
from actions.store.postgres_rows import (
    MAX_DECODED_CHARS,
    action_by_values,
    can_be_stored,
    decoded,
    decoded_action,
    entry_columns,
    lease_in_microseconds,
    lease_of_row,
    read_instant,
    reading_of_row,
)
from actions.store.together import Together

MAX_DECODED = 20_000
"""How many short actions stay decoded: as many as a queue reads of one store; about two kilobytes each."""
LARGEST = 2**63 - 1
"""Of PostgreSQL's integers; no turn's number has more than 18 digits."""


class PostgresStore:
    """ActionStore and AgentStore over Recall's tables. Connects on first use; safe to share between threads and across fork.

    Nobody waits for a server longer than `timeouts` say; one that did not answer is left alone for a while, then one caller asks it again.
    """

    leases_known = True

    def __init__(self, url: str, *, name: str = "main", timeouts: Timeouts | None = None) -> None:
        self.name = name
        self._address = parse_address(name, url)
        self._database = Database(name, self._address, timeouts)
        self._database.when_moved(self._forget)
        self._entries = PostgresEntries(self._database, f"{self._address.schema}.{self._address.collection}")
        self._closing = PostgresClosing(self._database, self._entries, where=self._where())
        self._known: Tables | None = None
        self._together = Together[ActionsRead]()
        # A queue is read again and again, and few of its rows have changed: each text is decoded once.
        self._decode_short = lru_cache(maxsize=MAX_DECODED)(action_by_values)

    @property
    def chain(self) -> str:
        return self._entries.chain

    # --- the store itself ---

    def check(self) -> StoreCheck:
        try:
            return self._database.read(lambda connection: postgres_setup.check(connection, self._address, self.name))
        except StoreError as exc:
            return StoreCheck(is_reachable=not isinstance(exc, StoreUnavailable), why_not=exc.problem)

    def prepare(self, *, index: bool = False) -> tuple[str, ...]:
        lines = self._entries.prepare()
        if index:
            with self._database.connect(is_write=True) as connection:
                connection.allow_for_ever()  # a big table takes as long as it takes
                tables = self._look(connection)
                lines += postgres_setup.prepare_index(connection, self._address, tables.records, self.name)
        self._known = None
        return lines

    def close(self) -> None:
        self._database.close()

    def read_watch(self) -> Watch:
        def read(connection: Connection) -> Watch:
            tables = self._look(connection)
            if not tables.has_registry:
                return Watch(revision=0, next_expiry=None, entries=0, read_at=tables.read_at)
            is_prepared = self._entries.is_known
            statement = "read_watch" if is_prepared else "read_watch_without_audit"
            revision, expiry, entries, now = self._database.one(connection, statement, self._where(), tables.records)
            if entries is True:
                self._known = None  # prepared meanwhile: the next reading counts
            next_expiry = None if expiry is None else read_instant(expiry)
            return Watch(
                revision=revision,
                next_expiry=next_expiry,
                entries=int(entries) if is_prepared else 0,
                read_at=read_instant(now),
            )

        return self._database.read(read)

    # --- reads over all agents ---

    def read_actions(self, statuses: Collection[ActionStatus], *, limit: int, agent: str | None = None) -> ActionsRead:
        def read(connection: Connection) -> ActionsRead:
            tables = self._look(connection)
            if tables.records is None or not statuses:
                return ActionsRead(readings=(), is_truncated=False)
            params = self._where() | {"limit": limit + 1, "agent": agent}
            rows = connection.execute(self._actions_statement(tables, statuses, of_agent=agent is not None), params).fetchall()
            return ActionsRead(readings=tuple(map(self._listed, rows[:limit])), is_truncated=len(rows) > limit)

        if agent is not None:
            return self._database.read(read) if can_be_stored(agent) else ActionsRead(readings=(), is_truncated=False)
        key = frozenset(statuses), limit
        return self._together.read(key, lambda: self._database.read(read), within_s=self._database.patience())

    def read_outputs(self, wanted: Collection[tuple[str, str]]) -> Mapping[tuple[str, str], Output | Unreadable]:
        keys = {output_id(agent, ref): (agent, ref) for agent, ref in wanted}

        def read(connection: Connection) -> Mapping[tuple[str, str], Output | Unreadable]:
            rows = self._records(connection, "read_records", {"ids": list(keys)})
            return {keys[record_id]: decoded(decode_output, record_id, text) for record_id, text in rows}

        keys = {record_id: key for record_id, key in keys.items() if can_be_stored(record_id)}
        return self._database.read(read) if keys else {}

    def get_action(self, agent: str, seq: int) -> Reading:
        def read(connection: Connection) -> list[Row]:
            return self._records(connection, "get_action", self._where() | {"id": action_id(agent, seq)})

        rows = self._database.read(read) if can_be_stored(agent) else []
        if not rows:
            raise ActionNotFound(ActionRef(self.name, agent, seq))
        return reading_of_row(rows[0])

    def read_leases(self, *, limit: int) -> LeasesRead:
        def read(connection: Connection) -> LeasesRead:
            if not self._look(connection).has_registry:
                return LeasesRead(leases=(), is_truncated=False)
            rows = self._database.all(connection, "read_leases", self._where() | {"limit": limit + 1})
            leases = tuple(lease for row in rows[:limit] if (lease := lease_in_microseconds(row)) is not None)
            return LeasesRead(leases=leases, is_truncated=len(rows) > limit)

        return self._database.read(read)

    def read_last_turns(self, agents: Collection[str]) -> Mapping[str, Turn | Unreadable]:
        wanted = sorted({agent for agent in agents if can_be_stored(agent)})
        rows = self._read_records("read_last_turns", {"agents": wanted}) if wanted else []
        return {agent: decoded(decode_turn, record_id, text) for agent, record_id, text in rows}

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
            if not tables.has_registry:
                return None
            row = self._database.first(connection, "find_lease", self._where() | {"agent": agent})
            return lease_of_row(row) if row else None

        return self._database.read(read) if can_be_stored(agent) else None

    def list_turns(self, agent: str, *, limit: int, before: int | None = None) -> tuple[Turn | Unreadable, ...]:
        params = {"agent": agent, "limit": limit, "before": None if before is None else min(before, LARGEST)}
        statement = "list_turns" if before is None else "list_turns_before"
        rows = self._read_records(statement, params) if can_be_stored(agent) else []
        return tuple(decoded(decode_turn, record_id, text) for record_id, text in rows)

    def list_agent_actions(self, agent: str, *, limit: int, before: int | None = None) -> tuple[Reading, ...]:
        params = self._where() | {"agent": agent, "limit": limit, "before": before}
        rows = self._read_records("list_agent_actions", params) if can_be_stored(agent) else []
        return tuple(map(reading_of_row, rows))

    def find_working_state(self, agent: str) -> WorkingState | Unreadable | None:
        rows = self._read_records("read_records", {"ids": [head_id(agent)]}) if can_be_stored(agent) else []
        return decoded(decode_working_state, *rows[0]) if rows else None

    def list_working_states(self, agent: str, *, limit: int, before: int | None = None) -> tuple[WorkingState | Unreadable, ...]:
        params = {"agent": agent, "limit": limit, "before": before}
        rows = self._read_records("list_working_states", params) if can_be_stored(agent) else []
        return tuple(decoded(decode_working_state, record_id, text) for record_id, text in rows)

    def list_outputs(self, agent: str, *, limit: int) -> tuple[Output | Unreadable, ...]:
        rows = self._read_records("list_outputs", {"agent": agent, "limit": limit}) if can_be_stored(agent) else []
        return tuple(decoded(decode_output, record_id, text) for record_id, text in rows)

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
        marker: str = "",
    ) -> Settled:
        """Six statements under READ COMMITTED (seven with a marker) and four round trips: a look that locks nothing; lease, records and the
        chain's head, in this order; what is written; COMMIT. Every refusal rolls all of them back."""

        def write(connection: Connection) -> Settled:
            tables = self._look(connection)
            self._entries.require(connection)
            if tables.records is None or not can_be_stored(ref.agent):
                raise ActionNotFound(ref)
            self._closing.look_before(connection, tables, ref, entry)
            with self._entries.transaction(connection, in_pipeline=True):
                return self._closing.settle(connection, tables, ref, end, entry, holder, seen, claim, marker)

        try:
            return self._database.write(write)
        except Written as exc:
            return answer_repeat(exc.entry, entry)
        except DecisionIdTaken as exc:
            # Another connection wrote this id between our first statement and our last.
            written = self.find_settled_entry(entry.decision_id)
            if written is None:
                raise WriteConflict(self.name, f"decision id {entry.decision_id} is being written by somebody else") from exc
            return answer_repeat(written, entry)

    def correct(
        self, ref: ActionRef, correction: Correction, *, entry: NewEntry, holder: str, basis: int | None = None
    ) -> Settled:
        """Eight statements under READ COMMITTED. What stands in the history is read once more under the lease: whoever else corrects an
        action of this agent, or settles one, has committed by then or waits."""

        def write(connection: Connection) -> Settled:
            tables = self._look(connection)
            self._entries.require(connection)
            if tables.records is None or not can_be_stored(ref.agent):
                raise ActionNotFound(ref)
            with self._entries.transaction(connection):
                return self._closing.correct(connection, tables, ref, correction, entry, holder, basis)

        try:
            return self._database.write(write)
        except Written as exc:
            return answer_repeat(exc.entry, entry)

    def evict(self, agent: str, *, holder: str, entry: NewEntry) -> Entry:
        """The lease's row first: whoever else writes it was before us, and is seen, or waits."""

        def write(connection: Connection) -> Entry:
            self._entries.require(connection)
            tables = self._look(connection)
            if not tables.has_registry or not can_be_stored(agent):
                raise LeaseMoved(agent, holder, None)
            params = self._where() | {"agent": agent, "decision_id": entry.decision_id}
            with self._entries.transaction(connection):
                row = self._database.first(connection, "evict_lock_lease", params)
                if written := self._database.first(connection, "find_eviction", params):
                    return answer_eviction(show_entry(Link(*written)), entry)
                found = require_held(self.name, agent, holder, lease_of_row(row) if row else None)
                sealed = self._entries.seal(connection, eviction_entry(entry, found))
                release = {"lease_agent": agent, "holder": holder, "epoch": found.epoch}
                counts = self._database.one(connection, "evict_finish", self._where() | entry_columns(sealed) | release)
                if counts != (1, 1, 1):
                    raise WriteConflict(self.name, f"of entry, head and lease {counts} rows were there to write")
                return sealed

        return self._database.write(write)

    # --- what an agent's process writes ---

    def create_records(self) -> tuple[str, ...]:
        if self._known is not None:
            return ()
        try:
            if self._database.read(self._look).records is not None:
                return ()
        except StoreUnusable:
            pass  # no such schema yet, or half of it; what cannot be mended says so again
        lines = self._database.write(lambda connection: postgres_records.create(self._database, connection))
        self._forget()
        self._database.read(self._look)
        return lines

    def acquire_lease(self, agent: str, *, holder: str, ttl: timedelta) -> Lease:
        params = self._where() | {"agent": agent, "holder": holder, "ttl": ttl}
        return self._database.write(lambda connection: postgres_agents.acquire(self._database, connection, params))

    def renew_lease(self, lease: Lease, *, ttl: timedelta, in_doubt: int = 0) -> Lease:
        params = self._where() | postgres_agents.held(lease, in_doubt) | {"ttl": ttl}
        row = self._database.write(lambda connection: self._database.execute_alone(connection, "renew_lease", params))
        if row is None or (renewed := lease_of_row(row)) is None:
            raise LeaseLost(lease)
        return renewed

    def release_lease(self, lease: Lease, *, in_doubt: int = 0) -> None:
        params = self._where() | postgres_agents.held(lease, in_doubt)
        self._database.write(lambda connection: self._database.execute_alone(connection, "release_lease", params))

    def load_agent(self, agent: str) -> AgentRecords:
        params = self._where() | {"agent": agent, "head": head_id(agent)}
        return self._database.read(
            lambda connection: postgres_agents.load(self._database, connection, self._look(connection).records, agent, params)
        )

    def write(self, lease: Lease, changes: Sequence[Change]) -> None:
        """One statement, which is a transaction by itself."""
        writing = postgres_agents.prepare_write(lease, changes)

        def write(connection: Connection) -> int:
            tables = self._look(connection)
            if tables.records is None:
                raise StoreUnusable(self.name, "it has no records of this collection; create_records() makes them")
            return postgres_agents.write(
                self._database, connection, tables.records, self._where() | {"dim": tables.dimension}, writing
            )

        if not self._database.write(write):
            postgres_agents.explain_not_open(self, changes)

    # --- audit entries ---

    def append_entry(self, entry: NewEntry) -> Entry:
        return self._entries.append_alone(entry)

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

    # --- tables ---

    def _look(self, connection: Connection) -> Tables:
        """What stands in the database; remembered once Recall's records are there."""
        if (known := self._known) is not None:  # once: whoever meets an error meanwhile forgets it
            return known
        # A schema named in the address that is not there is a slip of the pen; the default one is not there until Recall's first agent.
        schema = self._address.schema
        has_schema, registry, _, readable, now = self._database.one(connection, "find_tables", {"schema": schema})
        if not has_schema and schema != DEFAULT_SCHEMA:
            raise StoreUnusable(
                self.name, f"there is no schema {schema}; Recall makes it with its first agent: check the name in the address"
            )
        if registry == 1:
            raise StoreUnusable(
                self.name, f"what stands in schema {schema} is not Recall's: its registry or its leases are missing"
            )
        row = self._database.first(connection, "find_collection", self._where()) if registry else None
        if row is not None and not (isinstance(row[0], str) and isinstance(row[1], int) and 0 < row[1] <= 16_000):
            raise StoreUnusable(self.name, f"the registry's row of {self._address.collection} is not Recall's: {str(row)[:120]}")
        self._entries.is_known = readable == 2
        tables = Tables(
            has_registry=registry == 2,
            records=row[0] if row else None,
            dimension=row[1] if row else 0,
            read_at=read_instant(now),
        )
        self._known = tables if row else None
        return tables

    def _forget(self) -> None:
        self._known = None

    # --- statements ---

    def _where(self) -> dict[str, Any]:
        return {"collection": self._address.collection, "chain": self.chain}

    def _read_records(self, statement: str, params: Mapping[str, Any]) -> list[Row]:
        return self._database.read(lambda connection: self._records(connection, statement, params))

    def _records(self, connection: Connection, statement: str, params: Mapping[str, Any]) -> list[Row]:
        tables = self._look(connection)
        return self._database.all(connection, statement, params, tables.records) if tables.records is not None else []

    def _actions_statement(self, tables: Tables, statuses: Collection[ActionStatus], *, of_agent: bool) -> str:
        """Statuses stand in the text: a partial index is used only where the planner sees its condition's constants."""
        values = sorted(status.value for status in statuses)
        pairs = [sql.Literal(json.dumps({"record": "action", "status": value})) for value in values]
        return self._database.text(
            "read_actions",
            tables.records,
            contained=sql.SQL(" OR ").join(sql.SQL("metadata @> {}::jsonb").format(pair) for pair in pairs),
            statuses=sql.SQL(", ").join(map(sql.Literal, values)),
            of_agent=sql.SQL("metadata @> jsonb_build_object('recall_agent', %(agent)s::text)" if of_agent else "true"),
        )
