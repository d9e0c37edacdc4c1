"""The process that plays the cast: it loads the agents' libraries once, then forks a process for each agent, a few at a time.

`python -m demo.troupe --world DIR --logs DIR PARTS`, with the parts as JSON and RECORDS_URLS in the environment. Tells in a line what happens,
CURTAIN when all have played but for those who are to stay alive, and stays for these. Agents die with it.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from demo import agents
from demo.addresses import stores_in
from demo.cast import HANGS, Part, called
from demo.stage import CURTAIN, RECORDS_URL, RECORDS_URLS, TOLD, arguments

AT_ONCE = max(2, os.cpu_count() or 2)
POLL_S = 0.02
_PR_SET_PDEATHSIG = 1


class Troupe:
    """The agents' processes, by their ids."""

    def __init__(self, parts: list[Part], *, urls: Mapping[str, str], world: Path, logs: Path) -> None:
        self._urls = urls
        self._world = world
        self._logs = logs
        self._waiting = deque(parts)
        self._playing: dict[int, Part] = {}

    def play(self) -> None:
        """Play every part; SystemExit, with the reason, when an agent ends otherwise than its part says."""
        while self._waiting or self._playing:
            while self._waiting and len(self._playing) < AT_ONCE:
                self._start(self._waiting.popleft())
            self._see_who_lives()
            self._see_who_ended()
            time.sleep(POLL_S)
        tell(CURTAIN)

    def _start(self, part: Part) -> None:
        self._log(part).open("wb" if part.hang else "ab").close()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            _die_with(parent)
            self._become(part)
        self._playing[pid] = part

    def _become(self, part: Part) -> NoReturn:
        """Be the agent, in a process that was forked for it; whatever happens, never return."""
        code = 1
        try:
            _print_into(self._log(part))
            os.environ[RECORDS_URL] = self._urls[part.store]
            code = agents.main(arguments(part, world=self._world))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)

    def _log(self, part: Part) -> Path:
        return self._logs / f"{self._called(part).replace('/', '.')}.log"

    def _called(self, part: Part) -> str:
        return called(part, self._urls)

    def _see_who_lives(self) -> None:
        for pid, part in list(self._playing.items()):
            if part.hang and HANGS.format(tool=part.hang) in self._log(part).read_text(errors="replace"):
                del self._playing[pid]
                tell(f"{self._called(part)} stays alive inside {part.hang} (process {pid})")

    def _see_who_ended(self) -> None:
        for pid, part in list(self._playing.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del self._playing[pid]
                self._bow(part, os.waitstatus_to_exitcode(status))

    def _bow(self, part: Part, code: int) -> None:
        if code != (-signal.SIGKILL if part.kill_in else 0):
            sys.exit(f"agent {self._called(part)} ended with exit code {code}; see {self._log(part)}")
        if not part.kill_in:
            tell(f"{self._called(part)} {'was resumed and cannot tell either' if part.is_resumed else 'finished its task'}")
            return
        tell(f"{self._called(part)} was killed in {part.kill_in}, {'after' if part.after else 'before'} its effect")
        if part.is_resumed:
            # It waits until the dead process's lease is over, then finds that it cannot tell.
            self._waiting.append(part.as_resumed)


def tell(line: str) -> None:
    print(f"{TOLD}{line}", flush=True)


def _die_with(parent: int) -> None:
    """Linux ends this process with its parent. Elsewhere only a stop in good order does."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
        if os.getppid() != parent:  # it died before we could ask
            os._exit(1)


def _print_into(log: Path) -> None:
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m demo.troupe")
    parser.add_argument("--world", required=True, type=Path)
    parser.add_argument("--logs", required=True, type=Path)
    parser.add_argument("parts")
    args = parser.parse_args(argv)
    parts = [Part(**part) for part in json.loads(args.parts)]
    agents.load()
    Troupe(parts, urls=stores_in(os.environ[RECORDS_URLS]), world=args.world, logs=args.logs).play()
    if any(part.hang for part in parts):
        signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
