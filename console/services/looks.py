"""What a sweep sees of each store: whether it answers, how many calls are open in which state, how long its history is.

So that whoever asks for numbers never asks a store, and is never held up by one.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

from django.db import connection

from actions.errors import StoreError
from actions.queries import MAX_ROWS_PER_STORE
from actions.records import OPEN_STATUSES, Watch
from actions.rules import state_of_reading
from actions.store.base import ActionStore
from console.stores import list_stores

log = logging.getLogger(__name__)


class _Seen(NamedTuple):
    watch: Watch
    states: str
    is_capped: bool


_seen: WeakKeyDictionary[ActionStore, _Seen] = WeakKeyDictionary()
"""By store: the last look of this process; only to spare the store a read that would see the same."""

_UP = """
INSERT INTO console_store_look (store, is_up, looked_at, entries, states, is_capped) VALUES (%s, true, statement_timestamp(), %s, %s, %s)
ON CONFLICT (store) DO UPDATE SET is_up = true, looked_at = excluded.looked_at,
    entries = excluded.entries, states = excluded.states, is_capped = excluded.is_capped
"""
_DOWN = """
INSERT INTO console_store_look (store, is_up, looked_at, entries, states, is_capped) VALUES (%s, false, statement_timestamp(), 0, '{}', false)
ON CONFLICT (store) DO UPDATE SET is_up = false, looked_at = excluded.looked_at
"""


def look_at_stores() -> int:
    """Look at every store once; how many answered. Of one that does not, what was last known of it stays.

    Bounded: the cheap numbers of each, and at most MAX_ROWS_PER_STORE open rows of those in which something moved.
    """
    return sum(_look(store) for store in list_stores())


def forget() -> None:
    """Look anew; between tests."""
    _seen.clear()


def _look(store: ActionStore) -> bool:
    try:
        seen = _read(store)
    except StoreError as exc:
        log.warning("store %s does not answer: %s", store.name, exc.problem)
        _write(_DOWN, [store.name])
        return False
    _seen[store] = seen
    _write(_UP, [store.name, seen.watch.entries, seen.states, seen.is_capped])
    return True


def _read(store: ActionStore) -> _Seen:
    watch, before = store.read_watch(), _seen.get(store)
    if before is not None and _is_same(before.watch, watch):
        return before._replace(watch=watch)
    read = store.read_actions(OPEN_STATUSES, limit=MAX_ROWS_PER_STORE)
    states = Counter(state_of_reading(reading, leases_known=store.leases_known).value for reading in read.readings)
    return _Seen(watch, json.dumps(states, sort_keys=True), read.is_truncated)


def _is_same(old: Watch, new: Watch) -> bool:
    """Nothing was written and no lease has come, gone or run out: an expiry that moves says each of these."""
    return (old.revision, old.next_expiry) == (new.revision, new.next_expiry)


def _write(statement: str, values: Sequence[str | int]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
