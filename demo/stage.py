"""Where the cast plays, seen from the demo: one process (demo/troupe.py) that is told the parts, and what it tells of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

from demo.addresses import action_stores
from demo.cast import Part
from demo.home import Refused
from local import processes

ROOT = Path(__file__).resolve().parent.parent
CURTAIN = "curtain"
# Where agents keep their records, with passwords: in the environment, for command lines are everybody's to read.
RECORDS_URL = "DEMO_RECORDS_URL"  # one agent's
RECORDS_URLS = "DEMO_RECORDS_URLS"  # the troupe's: of every store, as ACTION_STORES has them
TOLD = "* "  # so begin the lines that are meant for us; others are complaints
# What a shell may carry and the demo's processes may not see: other stores; and "no bytecode", which would make each of them
# compile its libraries anew (they lie in an environment of our own).
_FOREIGN = frozenset(
    "CSRF_TRUSTED_ORIGINS RECALL_BACKEND RECALL_BACKEND_URL RECALL_BACKEND_KEY RECALL_COLLECTION PYTHONDONTWRITEBYTECODE".split()
)


def inherited() -> dict[str, str]:
    """The environment for the demo's processes."""
    return {name: value for name, value in os.environ.items() if name not in _FOREIGN}


def arguments(part: Part, *, world: Path, resume: bool = False) -> list[str]:
    """What demo/agents.py is to do for a part; with `resume`, what the killed agent's next process is to do. RECORDS_URL says where."""
    line = ["run", "--agent", part.agent, "--script", part.script]
    line += ["--world", str(world), "--lease", str(part.lease_s)]
    if resume:
        return [*line, "--resume", "--no-wait"]
    if part.kill_in:
        line += ["--kill-in", part.kill_in, "--kill", "after" if part.after else "before"]
    return [*line, "--hang", part.hang] if part.hang else line


def resuming(part: Part, *, world: Path) -> list[str]:
    """The command line of a killed agent's next process; it needs RECORDS_URL in its environment."""
    return [sys.executable, "-m", "demo.agents", *arguments(part, world=world, resume=True)]


class Stage:
    """The play. Call `pump` often; it never waits. All agents are gone when the stage is left."""

    def __init__(self, *, urls: Mapping[str, str], world: Path, logs: Path, tell: Callable[[str], None]) -> None:
        self._line: list[str | Path] = [sys.executable, "-m", "demo.troupe", "--world", world, "--logs", logs]
        self._env = inherited() | {RECORDS_URLS: action_stores(urls)}
        self._log = logs / "agents.log"
        self._tell = tell
        self._troupe: subprocess.Popen[bytes] | None = None
        self._told = 0  # bytes of the log
        self._last = ""
        self.is_over = False  # everybody has played, but for those who are to stay alive

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        if self._troupe is not None:
            processes.stop(self._troupe, patience=timedelta(seconds=2))

    def enter(self, parts: Iterable[Part]) -> None:
        """Let the play begin, once."""
        self._log.unlink(missing_ok=True)
        line = [*self._line, json.dumps([asdict(part) for part in parts])]
        self._troupe = processes.spawn(line, env=self._env, cwd=ROOT, log=self._log)

    def require_alive(self) -> None:
        """Notice that the agents' process ended after the play.

        Raises:
            Refused: it did; whoever was to stay alive is gone with it.
        """
        if self._troupe is not None and self._troupe.poll() is not None:
            raise Refused(f"the agents' process ended with exit code {self._troupe.returncode}; see {self._log}")

    def pump(self) -> None:
        """Tell what has happened meanwhile.

        Raises:
            Refused: an agent ended otherwise than its part says.
        """
        code = self._troupe.poll() if self._troupe else None
        for line in self._new_lines():
            self._last = line
            if line == TOLD + CURTAIN:
                self.is_over = True
            elif line.startswith(TOLD):
                self._tell(line.removeprefix(TOLD))
        if code:
            raise Refused(self._last or f"the agents' process ended with exit code {code}; see {self._log}")

    def _new_lines(self) -> list[str]:
        with self._log.open("rb") as log:
            log.seek(self._told)
            whole, newline, _ = log.read().rpartition(b"\n")
        self._told += len(whole + newline)
        return whole.decode(errors="replace").splitlines()
