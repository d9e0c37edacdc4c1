"""Numbers that only grow, over all processes: counted here in memory, added to the console's database now and then.

Counts, not records: what a process counted and did not write yet is lost with it. What happened stands in the history.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping, Sequence

from django.conf import settings
from django.core.signals import request_finished
from django.db import Error as ConsoleDatabaseError
from django.db import connection
from django.dispatch import receiver

log = logging.getLogger(__name__)

LABELS: Mapping[str, tuple[str, ...]] = {
    "settle_decisions_total": ("state", "outcome"),
    "settle_corrections_total": ("state", "outcome"),
    "settle_refusals_total": ("why",),
    "settle_resolver_questions_total": ("resolver",),
    "settle_resolver_verdicts_total": ("resolver", "outcome", "grade"),
    "settle_resolver_failures_total": ("resolver",),
    "settle_resolver_waits_total": ("resolver",),
    "settle_settle_seconds_bucket": ("store", "le"),
    "settle_settle_seconds_sum": ("store",),
}
"""What there is to count, and by what. Never an agent, an argument or the name of a tool."""
MOST = 200
"""How many sets of labels one number has at most, in one process; those after it count under `other`."""
BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

_Key = tuple[str, tuple[str, ...]]
_lock = threading.Lock()
_counted: dict[_Key, float] = {}
_known: set[_Key] = set()
_flushed_at = 0.0

_ADD = """
INSERT INTO console_tally AS t (name, labels, value)
SELECT * FROM unnest(%s::varchar[], %s::varchar[], %s::float8[])
ON CONFLICT (name, labels) DO UPDATE SET value = t.value + excluded.value
"""


def count(name: str, *labels: str, by: float = 1.0) -> None:
    """One more. No statement: it is written with `flush`."""
    key = (name, tuple(label[:63] for label in labels))
    if len(labels) != len(LABELS[name]):
        raise ValueError(f"{name} has the labels {', '.join(LABELS[name])}")
    with _lock:
        if key not in _known and sum(known[0] == name for known in _known) >= MOST:
            key = (name, ("other",) * len(labels))
        _known.add(key)
        _counted[key] = _counted.get(key, 0.0) + by


def observe_settle(store: str, seconds: float) -> None:
    """How long a store took to write one decision."""
    bound = next((f"{bound:g}" for bound in BOUNDS if seconds <= bound), "+Inf")
    count("settle_settle_seconds_bucket", store, bound)
    count("settle_settle_seconds_sum", store, by=seconds)


def flush() -> None:
    """Write what was counted, in one statement, in the same order in every process. What cannot be written now is kept for the next time."""
    global _flushed_at
    with _lock:
        _flushed_at = time.monotonic()
        counted = sorted(_counted.items())
        _counted.clear()
    if not counted:
        return
    names, values = [name for (name, _), _ in counted], [value for _, value in counted]
    try:
        with connection.cursor() as cursor:
            cursor.execute(_ADD, (names, [json.dumps(labels) for (_, labels), _ in counted], values))
    except ConsoleDatabaseError as exc:
        log.warning("what was counted is not written: %s", type(exc).__name__)
        with _lock:
            for key, value in counted:
                _counted[key] = _counted.get(key, 0.0) + value
    finally:
        if not connection.in_atomic_block:
            connection.close()  # nobody else gives it back at the end of a request or a task


def forget() -> None:
    """Count anew; between tests."""
    with _lock:
        _counted.clear()
        _known.clear()


@receiver(request_finished)
def flush_now_and_then(**_: object) -> None:
    """After the answer has been sent."""
    if _counted and time.monotonic() - _flushed_at >= settings.TALLY_EVERY_S:
        flush()


def read_tallies() -> dict[str, dict[tuple[str, ...], float]]:
    """Everything that was written, by name and labels. One statement, of at most some thousand rows."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    with connection.cursor() as cursor:
        cursor.execute("SELECT name, labels, value FROM console_tally ORDER BY name, labels LIMIT 5000")
        rows: Sequence[tuple[str, str, float]] = cursor.fetchall()
    for name, labels, value in rows:
        if name in LABELS:
            found.setdefault(name, {})[tuple(json.loads(labels))] = value
    return found
