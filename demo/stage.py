"""Plays the cast: starts each agent's process, a few at a time, and sees them die. All of them are gone when it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

from demo.cast import Part
from demo.home import Refused
from local import processes

ROOT = Path(__file__).resolve().parent.parent
AT_ONCE = max(2, os.cpu_count() or 2)
# What a shell may carry and the demo's processes may not see: other stores; and "no bytecode", which would make each of them
# compile its libraries anew (they lie in an environment of our own).
_FOREIGN = frozenset(
    "CSRF_TRUSTED_ORIGINS RECALL_BACKEND RECALL_BACKEND_URL RECALL_BACKEND_KEY RECALL_COLLECTION PYTHONDONTWRITEBYTECODE".split()
)


def inherited() -> dict[str, str]:
    """The environment for the demo's processes."""
    return {name: value for name, value in os.environ.items() if name not in _FOREIGN}


def command(part: Part, *, url: str, world: Path, resume: bool = False) -> list[str | Path]:
    """The command line of one agent's process."""
    line: list[str | Path] = [sys.executable, "-m", "demo.agents", "run", "--agent", part.agent, "--script", part.script]
    line += ["--url", url, "--world", world, "--lease", str(part.lease_s)]
    if resume:
        return [*line, "--resume", "--no-wait"]
    if part.kill_in:
        line += ["--kill-in", part.kill_in, "--kill", "after" if part.after else "before"]
    return [*line, "--hang", part.hang] if part.hang else line


@dataclass(frozen=True, slots=True)
class _Running:
    part: Part
    process: subprocess.Popen[bytes]
    log: Path


class Stage:
    """Where agents run. Call `pump` often; it never waits."""

    def __init__(self, *, url: str, world: Path, logs: Path, tell: Callable[[str], None]) -> None:
        self._url = url
        self._world = world
        self._logs = logs
        self._tell = tell
        self._waiting: deque[Part] = deque()
        self._running: list[_Running] = []
        self._live: list[_Running] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        for actor in (*self._running, *self._live):
            processes.stop(actor.process, patience=timedelta(seconds=2))

    def enter(self, parts: Iterable[Part]) -> None:
        self._waiting.extend(parts)

    @property
    def is_over(self) -> bool:
        """Nobody waits for a turn and nobody plays, but for those who are to stay alive."""
        return not self._waiting and not self._running

    def pump(self) -> None:
        """Look after those who have ended, then start those for whom there is room.

        Raises:
            Refused: an agent ended otherwise than its part says.
        """
        for actor in [actor for actor in self._running if actor.process.poll() is not None]:
            self._running.remove(actor)
            self._bow(actor)
        for actor in [actor for actor in self._running if actor.part.hang and _said_last_words(actor)]:
            self._running.remove(actor)
            self._live.append(actor)
            self._tell(f"{actor.part.agent} stays alive inside {actor.part.hang}")
        while self._waiting and len(self._running) < AT_ONCE:
            self._running.append(self._start(self._waiting.popleft()))

    def _start(self, part: Part) -> _Running:
        log = self._logs / f"{part.agent}.log"
        line = command(part, url=self._url, world=self._world)
        return _Running(part, processes.spawn(line, env=inherited(), cwd=ROOT, log=log), log)

    def _bow(self, actor: _Running) -> None:
        part, code = actor.part, actor.process.returncode
        if code != (-signal.SIGKILL if part.kill_in else 0):
            raise Refused(f"agent {part.agent} ended with exit code {code}; see {actor.log}")
        if not part.kill_in:
            self._tell(f"{part.agent} {'was resumed and cannot tell either' if part.is_resumed else 'finished its task'}")
            return
        self._tell(f"{part.agent} was killed in {part.kill_in}, {'after' if part.after else 'before'} its effect")
        if part.is_resumed:
            # It waits until the dead process's lease is over, then finds that it cannot tell.
            self._waiting.append(part.as_resumed)


def _said_last_words(actor: _Running) -> bool:
    return actor.log.exists() and f"{actor.part.hang} takes its time" in actor.log.read_text(errors="replace")
