"""The change numbers of the console: raised with whatever a screen shows beside the records, read by the watcher."""

from __future__ import annotations

from django.db import connection

from console.models import Change

PEOPLE = "-people"
"""The number of roles and sessions; no store can be called so. When it moves, every event stream ends and is asked for anew."""


def bump(store: str) -> None:
    """Say that decisions or notes of this store changed. Call it last in the transaction that changes them: its row is everybody's."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO console_change AS c (store, number) VALUES (%s, 1) ON CONFLICT (store) DO UPDATE SET number = c.number + 1",
            [store],
        )


def read_changes() -> dict[str, int]:
    """The change number of every store that has one."""
    return dict(Change.objects.values_list("store", "number"))
