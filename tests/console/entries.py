"""The console's own history as the transaction of a test sees it: what was not committed yet is there too."""

from __future__ import annotations

from django.db import connection

from actions.records import Entry, Link
from actions.store.audit import show_entry


def console_entries(kind: str = "", *, after: int = 0) -> list[Entry]:
    """Newest first; of one kind, or all."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT number, text, prev, hash FROM settle_audit.entries WHERE chain = 'console' AND number > %s ORDER BY number DESC",
            [after],
        )
        found = [show_entry(Link(*row)) for row in cursor.fetchall()]
    return [entry for entry in found if kind in ("", entry.kind)]
