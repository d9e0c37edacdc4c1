"""The statements of an agent's own process on PostgreSQL: its lease, what it starts from, and its writes, each one statement."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from psycopg import errors

from actions.errors import ActionNotOpen, LeaseLive, LeaseLost, StoreUnusable, WriteConflict
from actions.records import Action, ActionRef, AgentRecords, Change, Condition, Lease
from actions.store.base import ActionStore
from actions.store.closing import readable
from actions.store.codec import decode_action, decode_output, decode_pointer, decode_turn, encode_changes, load_metadata
from actions.store.loading import MAX_LOADED_OUTPUTS, MAX_LOADED_POINTERS, MAX_LOADED_TURNS, agent_records
from actions.store.postgres_connection import Connection
from actions.store.postgres_database import Database
from actions.store.postgres_rows import decoded, lease_of_row

_LIMITS = {"pointers": MAX_LOADED_POINTERS, "outputs": MAX_LOADED_OUTPUTS, "turns": MAX_LOADED_TURNS}
_ATTEMPTS = 3
"""A lease that was held and is free when we look at it is asked for again; one that keeps changing is somebody else's."""


def held(lease: Lease, in_doubt: int) -> dict[str, Any]:
    """By what a statement knows a lease that we hold."""
    return {
        "agent": lease.agent,
        "holder": lease.holder,
        "epoch": lease.epoch,
        "last_epoch": min(lease.epoch + in_doubt, 2**63 - 1),
    }


def acquire(database: Database, connection: Connection, params: Mapping[str, Any]) -> Lease:
    for _ in range(_ATTEMPTS):
        row = database.execute_alone(connection, "acquire_lease", params)
        lease = lease_of_row(row or database.first(connection, "find_lease", params) or (None,) * 5)
        if row and lease:
            return lease
        if lease and lease.is_live:
            raise LeaseLive(lease)
    raise WriteConflict(database.name, f"the lease of agent {params['agent']} can neither be taken nor read")


def load(database: Database, connection: Connection, records: str | None, agent: str, params: Mapping[str, Any]) -> AgentRecords:
    rows = database.all(connection, "load_agent", {**params, **_LIMITS}, records) if records is not None else []
    by_kind: dict[str, list[tuple[str, str]]] = {}
    for kind, record_id, text in rows:
        by_kind.setdefault(kind, []).append((record_id, text))

    def largest(kind: str) -> int:
        return next((int(number) for number, _ in by_kind.get(kind, []) if number is not None), 0)

    head = next(((record_id, load_metadata(text)) for record_id, text in by_kind.get("head", [])), None)
    pointers = (decoded(decode_pointer, *row) for row in sorted(by_kind.get("pointer", [])))
    turns = [decoded(decode_turn, *row) for row in by_kind.get("turn", [])]
    return agent_records(
        agent,
        lease=next((_lease(*row) for row in by_kind.get("lease", [])), None),
        largest_turn=largest("largest_turn"),
        largest_action=largest("largest_action"),
        head=head,
        open_actions=[decoded(decode_action, *row) for row in by_kind.get("action", [])],
        pointers=[pointer for pointer in pointers if pointer is not None],
        outputs=[decoded(decode_output, *row) for row in sorted(by_kind.get("output", []))],
        turns=sorted(turns, key=lambda turn: turn.seq or 0, reverse=True),
    )


class Writing(NamedTuple):
    """An agent's write, ready to be sent: which statement, what it is given, how many records."""

    lease: Lease
    statement: str
    params: Mapping[str, Any]
    records: int


def prepare_write(lease: Lease, changes: Sequence[Change]) -> Writing:
    """All that needs no connection, so that none is held meanwhile."""
    stored = encode_changes(changes, epoch=lease.epoch)
    given = [{"id": each.record_id, "condition": each.condition.value, "metadata": each.metadata} for each in stored]
    statement = "write_new" if all(each.condition is Condition.NEW for each in stored) else "write_records"
    params = {**held(lease, 0), "records": len(stored), "changes": json.dumps(given)}
    return Writing(lease, statement, params, len(stored))


def write(database: Database, connection: Connection, records: str, params: Mapping[str, Any], writing: Writing) -> int:
    """How many records were written: all, or 0 where an action that should be open is not. One round trip and one commit."""
    lease, values = writing.lease, {**params, **writing.params}
    try:
        fenced, allowed, written, moved = database.execute_alone(connection, writing.statement, values, records) or (0, 0, 0, 0)
    except errors.UniqueViolation as exc:
        raise WriteConflict(database.name, f"a record of agent {lease.agent} that should be new is there already") from exc
    if not fenced:
        raise LeaseLost(lease)
    if not allowed:
        return 0
    if (written, moved) != (writing.records, 1):
        raise StoreUnusable(database.name, f"of {writing.records} records {written} were there to write, of 1 revision {moved}")
    return writing.records


def explain_not_open(store: ActionStore, changes: Sequence[Change]) -> None:
    """Nothing was written, because an action that should be open is not: which one, and what it is now. Always raises."""
    opened = [change.record for change in changes if change.condition is Condition.OPEN and isinstance(change.record, Action)]
    for action in opened:
        found = readable(store.get_action(action.agent, action.seq).action)
        if not found.is_open:
            raise ActionNotOpen(ActionRef(store.name, action.agent, action.seq), found)
    raise WriteConflict(store.name, "an action that was closed a moment ago is open again")


def _lease(agent: str, text: str) -> Lease | None:
    holder, epoch, expires_at, now = json.loads(text)
    return lease_of_row((agent, holder, epoch, Decimal(expires_at), Decimal(now)))
