"""When sweeps last ran. Everything that waits is found by one, so a sweep that stands still is said on every page."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import connection

SWEEP = "sweep"
"""The one by which decisions, corrections and batches go on. Every page says so when it is late."""
LATE_AFTER = timedelta(minutes=1)

_NOTE = """
INSERT INTO console_sweep AS s (name, ran_at) VALUES (%s, statement_timestamp())
ON CONFLICT (name) DO UPDATE SET ran_at = excluded.ran_at WHERE s.ran_at < excluded.ran_at
"""
_IS_DUE = (
    "SELECT NOT EXISTS (SELECT FROM console_sweep WHERE name = %s AND ran_at > statement_timestamp() - make_interval(secs => %s))"
)


def note_sweep(name: str) -> None:
    """A sweep has come to its end. One statement; of several workers the latest counts."""
    with connection.cursor() as cursor:
        cursor.execute(_NOTE, [name])


def is_due(name: str, every: timedelta) -> bool:
    """Whether a sweep has not come to its end for so long, by the database's clock. One statement; twice at one moment is the sweep's matter."""
    with connection.cursor() as cursor:
        cursor.execute(_IS_DUE, [name, every.total_seconds()])
        return bool(cursor.fetchone()[0])


def is_late(ran_at: datetime | None, now: datetime | None) -> bool:
    """Whether it is longer ago than LATE_AFTER, both by the database's clock. Nothing is said of a sweep that no row tells of: `migrate` makes
    the first."""
    return ran_at is not None and now is not None and now - ran_at > LATE_AFTER
