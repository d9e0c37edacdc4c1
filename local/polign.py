"""A real polign_db on 127.0.0.1, started by us and gone with us. For tests and benchmarks; the package polign-db brings the binary."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Self

import polign_db

from local import processes
from local.postgres import write_private

_ROOM = 512 * 1024 * 1024
"""Bytes free in memory, else its data lie on the disk: it waits for that at every write."""


class RunningPolign:
    """A server of ours. Leaving the block stops it and removes its data."""

    def __init__(self, base: str, process: subprocess.Popen[bytes], *, home: Path, key: str) -> None:
        self.base = base  # http://127.0.0.1:port
        self.process = process
        self.key = key  # empty where it asks for none
        self.leases = home / "data/.agent-lease"  # one folder a collection, one an agent, one file an epoch
        self._home = home

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def url(self, collection: str = "recall_lexical_v1") -> str:
        """The address as ACTION_STORES has it."""
        scheme, _, place = self.base.partition("://")
        return f"polign+{scheme}://{f':{self.key}@' if self.key else ''}{place}/?collection={collection}"

    def stop(self) -> None:
        processes.stop(self.process, sent=signal.SIGKILL)
        shutil.rmtree(self._home, ignore_errors=True)


def server_version() -> str:
    """Of the binary; the server itself does not say."""
    return version("polign-db")


def start(*, asks_for_key: bool = False) -> RunningPolign:
    """Start a forgetful server in a temporary folder; with `asks_for_key` it lets in nobody else.

    Raises:
        ServerError: it did not come up; nothing is left running.
    """
    home = processes.temporary_folder("polign", parent=processes.in_memory(room=_ROOM))
    runtime, log, key = home / "run.json", home / "polign.log", f"plgn_{secrets.token_hex(8)}_{secrets.token_hex(32)}"
    command: list[str | Path] = [polign_db.find_bin("polign-server"), "-store", f"fs:{home / 'data'}", "-runtime-file", runtime]
    command += ["-http", "127.0.0.1:0", "-grpc", "127.0.0.1:0", "-telemetry=false", "-maintain", "0"]
    if asks_for_key:
        write_private(home / "key", key)
        command += ["-require-data-key", "-bootstrap-key-file", home / "key"]
    process = processes.spawn(command, env=os.environ, cwd=home, log=log)
    try:
        processes.wait_until(runtime.exists, what="polign_db", process=process, log=log)
        base: str = json.loads(runtime.read_text())["url"]
        processes.wait_for_http(f"{base}/readyz", process=process, log=log)
    except BaseException:
        processes.stop(process, sent=signal.SIGKILL)
        shutil.rmtree(home, ignore_errors=True)
        raise
    return RunningPolign(base, process, home=home, key=key if asks_for_key else "")
