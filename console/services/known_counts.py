"""Remembering how many calls a store held in doubt, so that there is something true to say while it does not answer."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterable
from typing import NamedTuple

from django.db import Error as ConsoleDatabaseError
from django.db import connection

from actions.queries import StoreStatus
from console.access import Person, Right, may
from console.models import KnownCount

log = logging.getLogger(__name__)

CHANGED_AFTER_S = 5
"""A count that has changed is written at most so often, by each process and for each store."""
SAME_AFTER_S = 60
"""The same count again is written at most so often, by all processes together."""


class _Written(NamedTuple):
    said: tuple[int, bool]  # how many, and whether there were more
    at: float  # monotonic


_lock = threading.Lock()
_written: dict[str, _Written] = {}

_REMEMBER = """
INSERT INTO console_known_count AS known (store, in_doubt, is_capped, counted_at)
SELECT *, statement_timestamp() FROM unnest(%s::varchar[], %s::int[], %s::boolean[])
ON CONFLICT (store) DO UPDATE
SET in_doubt = excluded.in_doubt, is_capped = excluded.is_capped, counted_at = excluded.counted_at
WHERE (known.in_doubt, known.is_capped) <> (excluded.in_doubt, excluded.is_capped)
   OR known.counted_at < excluded.counted_at - make_interval(secs => %s)
"""


def remember(statuses: Iterable[StoreStatus]) -> None:
    """Keep the counts of the stores that answered: one statement for all of them, and none where there is nothing new to say.

    Never in the way of what was asked: a database that cannot be written just now is logged, and the count is lost.
    """
    new = _worth_writing({s.name: (s.in_doubt, s.is_truncated) for s in statuses if s.in_doubt is not None})
    if not new:
        return
    counts, are_capped = [count for count, _ in new.values()], [is_capped for _, is_capped in new.values()]
    try:
        with connection.cursor() as cursor:
            cursor.execute(_REMEMBER, (list(new), counts, are_capped, SAME_AFTER_S))
    except ConsoleDatabaseError as exc:
        log.warning("the counts of %s were not kept: %s", ", ".join(new), type(exc).__name__)


def last_known(user: Person, stores: Collection[str]) -> dict[str, KnownCount]:
    """What was last known of these stores, for somebody who may see every tool of them: the others could count what is hidden from them."""
    names = [store for store in stores if may(user, Right.READ, store=store)]
    return {row.store: row for row in KnownCount.objects.filter(store__in=names)} if names else {}


def forget() -> None:
    """Write anew; between tests."""
    with _lock:
        _written.clear()


def _worth_writing(counts: dict[str, tuple[int, bool]]) -> dict[str, tuple[int, bool]]:
    """Those that this process has not written a moment ago; they count as written from here on."""
    now, new = time.monotonic(), {}
    with _lock:
        for store, count in counts.items():
            last = _written.get(store)
            pause = SAME_AFTER_S if last is not None and last.said == count else CHANGED_AFTER_S
            if last is None or now - last.at >= pause:
                _written[store] = _Written(count, now)
                new[store] = count
    return new
