"""What each store can be used for, asked at most every half minute: a banner must not cost a round trip per page."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

from actions.records import StoreCheck
from actions.side_by_side import ask_each
from console.stores import ActionStore

FRESH_S = 30.0
FRESH_BAD_S = 5.0
"""What could not be used is asked about sooner: somebody may just have mended it."""


class _Answer(NamedTuple):
    check: StoreCheck
    asked_at: float  # monotonic


_lock = threading.Lock()
_answers: WeakKeyDictionary[ActionStore, _Answer] = WeakKeyDictionary()


def recent_check(store: ActionStore) -> StoreCheck:
    """The store's check, up to half a minute old; a few seconds where it says no.

    For words on a screen only: whether a settle is possible, the settle itself finds out.
    """
    if (check := _fresh(store)) is not None:
        return check
    answer = _Answer(store.check(), time.monotonic())
    with _lock:
        _answers[store] = answer
    return answer.check


def recent_checks(stores: Sequence[ActionStore]) -> dict[str, StoreCheck]:
    """The same for several stores, by name; those that have to be asked are asked side by side."""
    ask_each([store for store in stores if _fresh(store) is None], recent_check)
    return {store.name: recent_check(store) for store in stores}


def _fresh(store: ActionStore) -> StoreCheck | None:
    with _lock:
        answer = _answers.get(store)
    if answer is None or time.monotonic() - answer.asked_at > (FRESH_S if answer.check.can_settle else FRESH_BAD_S):
        return None
    return answer.check


def forget() -> None:
    """Ask anew; after a store was prepared, and between tests."""
    with _lock:
        _answers.clear()
