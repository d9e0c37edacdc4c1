"""The console's own history: what people change here, what is refused, shown and taken out. One chain, in the console's database.

What is about an action stands in its store's chain instead (contract, Audit entries).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from django.contrib.auth.models import AbstractBaseUser
from django.db import connection, transaction

from actions.errors import StoreError
from actions.records import Entry, NewEntry
from actions.redaction import redact_text, redact_value
from actions.rules import as_column
from console.stores import UnknownStore, console_chain, get_store

log = logging.getLogger(__name__)

MAX_TEXT = 2_000
A_COMMAND = "a command"
"""Who acts where somebody who holds the machine does: the console cannot know who."""


def admin(by: AbstractBaseUser | None) -> str:
    """How somebody who administers stands in entries; None is a command's."""
    return f"admin {by.get_username()}" if by is not None else A_COMMAND


def person(by: AbstractBaseUser) -> str:
    """How somebody stands in entries where no role matters: what they change concerns themselves."""
    return f"user {by.get_username()}"


def record(
    kind: str,
    *,
    actor: str,
    tool: str = "",
    agent: str = "",
    seq: int | None = None,
    outcome: str = "",
    reason: str = "",
    detail: Mapping[str, object] | None = None,
) -> Entry:
    """Put one step into the chain, in the open transaction of what it tells of: both are committed, or neither. Call it last in there.

    Texts are redacted here. `detail` holds JSON values; where something was changed, `changed: {name: [before, after]}`.

    Raises:
        StoreError: the chain cannot be written (never prepared, no right to insert); the transaction must not be committed.
    """
    entry = NewEntry(
        kind=kind,
        actor=as_column(actor)[:200],
        tool=redact_text(as_column(tool))[:MAX_TEXT],
        agent=as_column(agent)[:MAX_TEXT],
        seq=seq,
        outcome=outcome,
        reason=redact_text(as_column(reason))[:MAX_TEXT],
        detail=redact_value(dict(detail or {})),
    )
    return _append(entry)


def _append(entry: NewEntry) -> Entry:
    """In a savepoint where a transaction is open: what fails in it fails alone, and whoever goes on without the entry commits what they mean."""
    with transaction.atomic(durable=not connection.in_atomic_block):
        return console_chain().append_on(connection.connection, entry)


def changes(before: Mapping[str, object], after: Mapping[str, object]) -> dict[str, list[object]]:
    """What differs, as `[before, after]` by name; a name that only one of them has is None in the other."""
    names = sorted(before.keys() | after.keys())
    return {name: [before.get(name), after.get(name)] for name in names if before.get(name) != after.get(name)}


def enter_beside(store: str, entry: NewEntry, *, or_here: bool = True) -> Entry | None:
    """Put a step about an action into its store's chain; into the console's own where that one cannot be written, naming the store.

    A transaction of the store's own: it stands whether or not the caller's commits. The console's is the caller's, where one is open: then
    this comes last in there. None: it is in neither, and nothing hangs on it. Where the store's answer was lost it may be in both.
    """
    try:
        return get_store(store).append_entry(entry)
    except (StoreError, UnknownStore) as exc:
        problem = str(exc)
        log.warning("entry %s of %s/%s is not in the history of store %s: %s", entry.kind, entry.agent, entry.seq, store, problem)
    if not or_here:
        return None
    try:
        return _append(replace(entry, detail={"of": {"store": store}, **entry.detail}))
    except StoreError as exc:
        log.warning("entry %s of %s/%s is in no history: %s", entry.kind, entry.agent, entry.seq, exc)
        return None
