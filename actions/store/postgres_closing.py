"""What a settle or a correction does within its transaction, statement by statement, in the order of recall-records 9.1.

The transaction itself is the store's; what is to be written, closing.py says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from psycopg import errors

from actions.errors import ActionNotFound, ActionNotOpen, LeaseLive, WriteConflict
from actions.keys import args_ref
from actions.records import Action, ActionEnd, ActionRef, Correction, Entry, Lease, Link, NewEntry, Settled, Turn, Unreadable
from actions.store.audit import show_entry
from actions.store.base import SETTLE_TTL, check_epoch
from actions.store.closing import (
    ENDINGS,
    MARKED_TURNS,
    Closing,
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
    Metadata,
    action_id,
    decode_action,
    decode_output,
    decode_turn,
    head_id,
    load_metadata,
    output_id,
    turn_id,
)
from actions.store.postgres_connection import Connection
from actions.store.postgres_database import Database, Row, Sent
from actions.store.postgres_entries import PostgresEntries
from actions.store.postgres_rows import can_be_stored, decoded, entry_columns, lease_of_row, read_instant, reading_of_row
from actions.times import Instant

_ENDED = ("status", "epoch", "body")
"""What an end changes in an action's metadata."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """What stood in the database when we looked."""

    has_registry: bool  # Recall's registry and leases
    records: str | None  # table of the agents collection; None until Recall has written its first record
    dimension: int
    read_at: Instant


class Written(Exception):
    """This decision id has its entry already. An exception, because what was taken meanwhile must be rolled back."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        super().__init__(entry.decision_id)


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


class PostgresClosing:
    """Statements on a connection whose transaction has begun (bar `look_before`); every refusal rolls all of them back."""

    def __init__(self, database: Database, entries: PostgresEntries, *, where: Mapping[str, Any]) -> None:
        """`where`: the parameters that name the collection and its chain in every statement."""
        self.name = database.name
        self._database = database
        self._entries = entries
        self._where = dict(where)

    def settle(
        self,
        connection: Connection,
        tables: Tables,
        ref: ActionRef,
        end: ActionEnd,
        entry: NewEntry,
        holder: str,
        seen: str | None,
        claim: str | None,
        marker: str,
    ) -> Settled:
        taken = self._send_lease(connection, ref.agent, holder)
        locking = self._send_lock(connection, tables, ref, holder)
        chain = self._entries.send_head(connection)
        epoch, found = self._lease_of(connection, taken, ref.agent)
        locked = self._locked(connection, tables, ref, locking)
        action = readable(locked.action)
        if not action.is_open:
            # Closed while we waited for the lease; perhaps by this very decision, delivered twice.
            if written := self._entries.find_settled_on(connection, entry.decision_id):
                raise Written(written)
            raise ActionNotOpen(ref, action, self._entries.find_of_action_on(connection, ref.agent, ref.seq))
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
            told=self._find_marked_turn(connection, tables, ref.agent, marker),
        )
        return self._write_closing(connection, tables, ref, closing, chain, holder, epoch)

    def correct(
        self,
        connection: Connection,
        tables: Tables,
        ref: ActionRef,
        correction: Correction,
        entry: NewEntry,
        holder: str,
        basis: int | None,
    ) -> Settled:
        params = self._where | {"id": action_id(ref.agent, ref.seq)}
        row = self._database.first(connection, "get_action", params, tables.records)
        if row is None:
            raise ActionNotFound(ref)
        reading = reading_of_row(row)
        endings = self._entries.list_endings_on(connection, ref.agent, ref.seq, ENDINGS)
        told = check_correctable(ref, readable(reading.action), endings, entry, basis=basis)
        if isinstance(told, Settled):
            return told
        if reading.lease is not None and reading.lease.is_live:
            raise LeaseLive(reading.lease)
        check_epoch(self.name, reading.lease)
        epoch, found = self._lease_of(connection, self._send_lease(connection, ref.agent, holder), ref.agent)
        locked = self._locked(connection, tables, ref, self._send_lock(connection, tables, ref, holder))
        action = readable(locked.action)
        endings = self._entries.list_endings_on(connection, ref.agent, ref.seq, ENDINGS)
        told = check_correctable(ref, action, endings, entry, basis=basis)
        if isinstance(told, Settled):
            raise Written(told.entry)
        newest = locked.newest_turn()
        closing = plan_correction(action, correction, entry, told=told, newest=newest, found=found, epoch=epoch, at=locked.now)
        return self._write_closing(connection, tables, ref, closing, self._entries.send_head(connection), holder, epoch)

    def _write_closing(
        self, connection: Connection, tables: Tables, ref: ActionRef, closing: Closing, chain: Sent, holder: str, epoch: int
    ) -> Settled:
        """Statements 5 and 6 of a settle: the records, and all that is left."""
        sealed = self._entries.seal_after(chain, closing.entry)
        release = {"lease_agent": ref.agent, "holder": holder, "epoch": epoch, "records": closing.records_written}
        try:
            written = self._send_records(connection, tables, ref, closing)
            finished = self._database.send(connection, "settle_finish", self._where | entry_columns(sealed) | release)
            self._check_written(self._database.answer(written), ref, closing)
        except errors.UniqueViolation as exc:
            if exc.diag.table_name != tables.records:
                raise  # of an entry, which the transaction tells in words
            raise WriteConflict(
                self.name, f"turn {closing.turn_seq} of agent {ref.agent} exists although we hold its lease"
            ) from exc
        counts = self._database.answer(finished)
        if counts != (1, 1, 1, 1):
            raise WriteConflict(self.name, f"of entry, head, lease and revision {counts} rows were there to write")
        return Settled(entry=sealed, turn_seq=closing.turn_seq, is_repeat=False)

    def look_before(self, connection: Connection, tables: Tables, ref: ActionRef, entry: NewEntry) -> None:
        """Statement 1 of a settle, before its transaction: refuse where no lease is needed to know why: written by this decision id before,
        not there, closed for good, held. Locks nothing."""
        params = self._where | {"id": action_id(ref.agent, ref.seq), "agent": ref.agent, "decision_id": entry.decision_id}
        row = self._database.one(connection, "settle_look", params, tables.records)
        if row[0] is not None:
            raise Written(show_entry(Link(*row[:4])))
        if row[4] is None:
            raise ActionNotFound(ref)
        action = readable(decoded(decode_action, action_id(ref.agent, ref.seq), row[4]))
        if not action.is_open:
            raise ActionNotOpen(ref, action, self._entries.find_of_action_on(connection, ref.agent, ref.seq))
        lease = lease_of_row(row[5:10])
        if lease is not None and lease.is_live:
            raise LeaseLive(lease)
        check_epoch(self.name, lease)

    def _send_lease(self, connection: Connection, agent: str, holder: str) -> Sent:
        """Statement 2."""
        params = self._where | {"agent": agent, "holder": holder, "ttl": SETTLE_TTL}
        return self._database.send(connection, "settle_take_lease", params)

    def _lease_of(self, connection: Connection, taken: Sent, agent: str) -> tuple[int, Lease | None]:
        """Its answer: our epoch, and the lease as it was before."""
        epoch, *before = self._database.answer(taken)
        lease = lease_of_row(before)
        if epoch is None:
            # Without `lease`: the row is newer than our statement's snapshot; read it as it is now.
            lease = lease or lease_of_row(self._database.one(connection, "find_lease", self._where | {"agent": agent}))
            if lease is None:
                raise WriteConflict(self.name, f"the lease of agent {agent} can neither be taken nor read")
            raise LeaseLive(lease)
        return epoch, lease

    def _send_lock(self, connection: Connection, tables: Tables, ref: ActionRef, holder: str) -> Sent:
        """Statement 3. It may be on its way before it is known whether the lease is ours: where it is not, it locks nothing."""
        ids = [action_id(ref.agent, ref.seq), output_id(ref.agent, args_ref(ref.seq))]
        params = self._where | {"agent": ref.agent, "holder": holder, "head": head_id(ref.agent), "ids": ids}
        return self._database.send(connection, "settle_lock_records", params, tables.records)

    def _locked(self, connection: Connection, tables: Tables, ref: ActionRef, locking: Sent) -> _Locked:
        """Its answer: the action, its whole arguments and the agent's newest turn as nobody else can change them any more."""
        record_id, head = action_id(ref.agent, ref.seq), head_id(ref.agent)
        rows = {row[0]: row for row in locking.cursor.fetchall()}
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

    def _find_marked_turn(self, connection: Connection, tables: Tables, agent: str, marker: str) -> Turn | None:
        if not marker:
            return None
        params = {"agent": agent, "limit": MARKED_TURNS}
        rows = self._database.all(connection, "list_turns", params, tables.records)
        return find_told((decoded(decode_turn, record_id, text) for record_id, text in rows), marker)

    def _whole_args(self, connection: Connection, tables: Tables, action: Action | Unreadable, texts: dict[str, str]) -> str:
        if isinstance(action, Unreadable):
            return ""
        key = output_id(action.agent, action.args_ref)
        if action.args_ref and key not in texts and can_be_stored(key):
            # An output of an unusual name.
            texts |= dict(self._database.all(connection, "read_records", {"ids": [key]}, tables.records))
        return whole_args(action, decoded(decode_output, key, texts[key]) if key in texts else None)

    def _send_records(self, connection: Connection, tables: Tables, ref: ActionRef, closing: Closing) -> Sent:
        """Statement 5."""
        new_turn = turn_id(ref.agent, closing.turn_seq)
        key, metadata = next(iter(_outputs_of(closing, new_turn).items()), (None, None))
        params = {
            "action_id": action_id(ref.agent, ref.seq),
            "action": None if closing.action is None else json.dumps({name: closing.action[name] for name in _ENDED}),
            "turn_id": new_turn,
            "turn": json.dumps(closing.inserted[new_turn]) if new_turn in closing.inserted else None,
            "output_id": key,
            "output": None if metadata is None else json.dumps(metadata),
            "dim": tables.dimension,
        }
        return self._database.send(connection, "settle_write", params, tables.records)

    def _check_written(self, counts: Row, ref: ActionRef, closing: Closing) -> None:
        outputs = len(_outputs_of(closing, turn_id(ref.agent, closing.turn_seq)))
        if counts != (int(closing.action is not None), len(closing.inserted) - outputs, outputs):
            raise WriteConflict(self.name, f"action {ref} vanished while it was settled")


def _outputs_of(closing: Closing, new_turn: str) -> Mapping[str, Metadata]:
    return {key: metadata for key, metadata in closing.inserted.items() if key != new_turn}
