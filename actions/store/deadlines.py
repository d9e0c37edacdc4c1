"""How long any server is waited for, by our own clock, and who asks it again once it did not answer. No driver in here."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import ceil, inf
from time import monotonic


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Seconds by the client's clock. How long a connection may take to open stands in the store's address (connect_timeout)."""

    answer_s: float = 8  # one statement, COMMIT too; the server itself gives up a slow one before that
    read_s: float = 10  # all statements of one read
    write_s: float = 12  # all statements of one settle, waiting for locks included
    commit_s: float = 3  # what COMMIT has at least, on top of that
    pause_s: float = 5  # a store that did not answer is left alone for so long


class LeftAlone(Exception):
    """The server was not asked, because it did not answer a moment ago, or whoever asks has waited long enough."""


_until: ContextVar[float] = ContextVar("until", default=inf)


@contextmanager
def reads_within(seconds: float) -> Iterator[None]:
    """All reads of this context together end within so long, whichever servers they ask: a page asks several times, and nobody waits for it
    as long as for all of them. What writes is not cut short."""
    token = _until.set(monotonic() + seconds)
    try:
        yield
    finally:
        _until.reset(token)


def for_read(seconds: float) -> float:
    """How long a read may take that may take `seconds` by itself.

    Raises:
        LeftAlone: nothing of the context's time is left. Nothing was asked.
    """
    left = _until.get() - monotonic()
    if left <= 0:
        raise LeftAlone("was not asked any more: this page has waited long enough for answers; load it again")
    return min(seconds, left)


@dataclass(slots=True)
class Use:
    """One use of a server. `silent_since`: when the question was sent that got no answer; None while every one was answered."""

    began: float
    silent_since: float | None = None


class Silence:
    """Who may ask a server that did not answer: nobody for a while, then one at a time until it answers. Belongs to one process."""

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self._lock = threading.Lock()
        self._until: float | None = None  # None: it answers
        self._is_probed = False
        self._last_heard = -inf  # when the newest of the uses began that were answered

    def check(self) -> None:
        """Raises LeftAlone where asking now would be refused."""
        with self._lock:
            self._refuse()

    @contextmanager
    def ask(self) -> Iterator[Use]:
        """Around one use: raises LeftAlone, or lets it through and learns from it whether the server answers."""
        use = Use(monotonic())
        with self._lock:
            self._refuse()
            is_probe = self._until is not None
            self._is_probed = self._is_probed or is_probe
        try:
            yield use
        finally:
            with self._lock:
                self._learn(use, is_probe=is_probe)

    def fell_silent(self, asked_at: float) -> None:
        """Outside of `ask`: what was asked then got no answer."""
        with self._lock:
            self._learn(Use(asked_at, silent_since=asked_at), is_probe=False)

    def heard(self, asked_at: float) -> None:
        """Outside of `ask`: what was asked then was answered."""
        with self._lock:
            self._last_heard = max(self._last_heard, asked_at)

    def _learn(self, use: Use, *, is_probe: bool) -> None:
        if is_probe:
            self._is_probed = False
        if use.silent_since is None:
            self._last_heard = max(self._last_heard, use.began)
            if is_probe:
                self._until = None
        elif self._last_heard <= use.silent_since:  # else somebody was answered who asked later: only this connection is dead
            self._until = monotonic() + self._pause_s

    def _refuse(self) -> None:
        if self._until is None:
            return
        left = self._until - monotonic()
        if left > 0:
            raise LeftAlone(f"did not answer a moment ago; asked again in {ceil(left)} s")
        if self._is_probed:
            raise LeftAlone("did not answer a moment ago; it is being asked again right now")
