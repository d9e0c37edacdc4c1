"""How long a PostgreSQL server is waited for, by our own clock.

A server that is stopped, or a network that swallows everything, answers nothing for ever; none of the server's own timeouts helps then.
"""

from __future__ import annotations

from collections.abc import Generator
from math import inf
from time import monotonic
from typing import Any

import psycopg

from actions.store.deadlines import LeftAlone, Silence, Timeouts, Use

__all__ = ["Connection", "DeadlinePassed", "LeftAlone", "Silence", "Timeouts", "Use"]


class DeadlinePassed(psycopg.OperationalError):
    """We wait no longer, and the connection is closed. `.is_silence`: one statement got no answer for as long as any may take."""

    def __init__(self, said: str, *, is_silence: bool) -> None:
        self.is_silence = is_silence
        super().__init__(said)


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection on which nothing is waited for beyond a deadline. `allow` says how long from now; each use of it starts with that."""

    is_kept = False  # it was open before this use
    may_be_repeated = True  # nothing was begun on it that must not be asked twice
    fell_silent_at: float | None = None  # when the statement was sent that got no answer
    _answer_s = inf
    _allowed_s = inf
    _until = inf

    def allow(self, seconds: float, *, answer_s: float) -> None:
        self._until, self._allowed_s, self._answer_s = monotonic() + seconds, seconds, answer_s

    def allow_more(self, seconds: float) -> None:
        """For COMMIT, whose outcome should be known."""
        self._until, self._allowed_s = self._until + seconds, self._allowed_s + seconds

    def allow_for_ever(self) -> None:
        self._until = self._answer_s = inf

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **kwargs: Any) -> Any:
        """Everything that psycopg waits for on a connection goes through here; it wakes up ten times a second."""
        return super().wait(self._watch(gen), *args, **kwargs)

    def _watch(self, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        began = monotonic()
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                now = monotonic()
                if now >= began + self._answer_s:
                    self.fell_silent_at = began
                    self._give_up(f"did not answer within {self._answer_s:g} s", is_silence=True)
                if now >= self._until:
                    self._give_up(f"took longer than {self._allowed_s:g} s in all and was given up", is_silence=False)
                wanted = gen.send(ready)
        except StopIteration as answer:
            return answer.value

    def _give_up(self, said: str, *, is_silence: bool) -> None:
        self.close()  # what may still come belongs to nobody
        raise DeadlinePassed(said, is_silence=is_silence)
