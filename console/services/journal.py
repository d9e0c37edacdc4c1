"""The console's own history: what people change here, what is refused, shown and taken out. One chain, in the console's database.

What is about an action stands in its store's chain instead (contract, Audit entries).
"""

from __future__ import annotations

from collections.abc import Mapping

from django.db import connection, transaction

from actions.records import Entry, NewEntry
from actions.redaction import redact_text, redact_value
from console.services.deliver import as_column
from console.stores import console_chain

MAX_TEXT = 2_000


def record(
    kind: str,
    *,
    actor: str,
    tool: str = "",
    agent: str = "",
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
        outcome=outcome,
        reason=redact_text(as_column(reason))[:MAX_TEXT],
        detail=redact_value(dict(detail or {})),
    )
    if connection.in_atomic_block:
        return console_chain().append_on(connection.connection, entry)
    with transaction.atomic(durable=True):
        return console_chain().append_on(connection.connection, entry)


def changes(before: Mapping[str, object], after: Mapping[str, object]) -> dict[str, list[object]]:
    """What differs, as `[before, after]` by name; a name that only one of them has is None in the other."""
    names = sorted(before.keys() | after.keys())
    return {name: [before.get(name), after.get(name)] for name in names if before.get(name) != after.get(name)}
