"""One read for all who ask the same at one moment. Knows no server.

A hundred screens that hear of a change ask a store for the same rows within a second; each of these reads would hold all rows once more.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class _Read(Generic[T]):
    """One read, and what it brought: `has_value` once it went well."""

    def __init__(self) -> None:
        self.is_over = threading.Event()
        self.has_value = False
        self.value: T


class _Reads(Generic[T]):
    """Of one process, by what is asked: the read that is under way and, where somebody waits for it to end, the next one."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_key: dict[Hashable, tuple[_Read[T], _Read[T] | None]] = {}


class Together(Generic[T]):
    """Shares reads between threads. Safe across fork: a child shares nothing with its parent.

    Whoever asks while such a read is under way takes part in the next one, so everybody gets what was read after they asked.
    """

    def __init__(self) -> None:
        self._by_process: dict[int, _Reads[T]] = {}

    def read(self, key: Hashable, work: Callable[[], T], *, within_s: float) -> T:
        """What `work` reads; what is read must be the same for everybody who asks with this `key`, and nobody may change it.

        Nobody waits for others longer than `within_s`: then, and where the read of the others failed, it does its own. Raises what `work`
        raises, and never the error of somebody else's.
        """
        reads = self._by_process.get(os.getpid()) or self._by_process.setdefault(os.getpid(), _Reads())
        with reads.lock:
            running, next_one = reads.by_key.get(key, (None, None))
            mine = next_one or _Read[T]()
            if running is None:
                reads.by_key[key] = (mine, None)
            elif next_one is None:
                reads.by_key[key] = (running, mine)
        if running is not None and next_one is not None:
            if mine.is_over.wait(within_s) and mine.has_value:
                return mine.value
            return work()
        if running is not None and not running.is_over.wait(within_s) and _gave_up(reads, key, mine):
            return work()
        try:
            mine.value = work()
            mine.has_value = True
            return mine.value
        finally:
            _end(reads, key, mine)


def _gave_up(reads: _Reads[T], key: Hashable, mine: _Read[T]) -> bool:
    """Leave the place of the next read, if it has not become the one that is under way."""
    with reads.lock:
        running, next_one = reads.by_key.get(key, (None, None))
        if running is None or next_one is not mine:
            return False
        reads.by_key[key] = (running, None)
    mine.is_over.set()
    return True


def _end(reads: _Reads[T], key: Hashable, mine: _Read[T]) -> None:
    with reads.lock:
        _, next_one = reads.by_key[key]
        if next_one is None:
            del reads.by_key[key]
        else:
            reads.by_key[key] = (next_one, None)
    mine.is_over.set()
