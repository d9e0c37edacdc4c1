"""Processes that are killed or end by themselves, forked from one that has imported everything: only the first start is slow."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from typing import Any


class Forks:
    """Runs functions in processes of their own. Safe in several threads."""

    def __init__(self, preload: Sequence[str]) -> None:
        """`preload`: modules that the first start imports; they must not connect to anything or start threads."""
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(preload))
        # Each start collects what has ended, of other threads too: who reads an exit code second finds 255.
        self._lock = threading.Lock()

    def run(self, target: Callable[..., None], *args: Any) -> int | None:
        """Call this in a new process, wait for its end, and answer how it ended: an exit code, or minus the signal."""
        with self._lock:
            process = self._context.Process(target=target, args=args, daemon=True)
            process.start()
        wait([process.sentinel])
        with self._lock:
            process.join()
            return process.exitcode
