"""Start other programs so that none outlives us, stop them in order, and wait until they answer. Linux and POSIX; knows no server."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import IO, Self

_PR_SET_PDEATHSIG = 1
_TEMPORARY_PREFIX = "settle-"
_LOWEST_PORT = 12_000


class ServerError(Exception):
    """A server could not be started or did not answer. It has been stopped; the message ends with the last lines of its log."""


def spawn(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    log: Path | None = None,
    user: str | None = None,
    signal_when_orphaned: signal.Signals = signal.SIGTERM,
) -> subprocess.Popen[bytes]:
    """Start `command` in a session of its own; the kernel signals it when this process dies, even by SIGKILL.

    Raises:
        RuntimeError: called from another thread than the main one. Nothing was started: the kernel's promise ends with the
            thread that made the child.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("servers are started from the main thread: the kernel ends them with the thread that started them")
    other = pwd.getpwnam(user) if user is not None else None
    with _opened_log(log) as output:
        return subprocess.Popen(
            [str(part) for part in command],
            env=None if env is None else dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if output is not None else None,
            start_new_session=True,  # Ctrl-C reaches us alone, and we stop them in order
            preexec_fn=_die_with_parent(signal_when_orphaned),
            user=other.pw_uid if other else None,
            group=other.pw_gid if other else None,
            extra_groups=[] if other else None,
        )


@contextlib.contextmanager
def _opened_log(log: Path | None) -> Iterator[IO[bytes] | None]:
    if log is None:
        yield None
        return
    with log.open("ab") as output:
        yield output


def _die_with_parent(sent: signal.Signals) -> Callable[[], None] | None:
    """What the child runs between fork and exec: after setuid, which would clear the setting again."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    parent = os.getpid()

    def ask_the_kernel() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, int(sent))
        if os.getppid() != parent:  # it died before we could ask
            os._exit(1)

    return ask_the_kernel


def stop(
    process: subprocess.Popen[bytes], *, sent: signal.Signals = signal.SIGTERM, patience: timedelta = timedelta(seconds=10)
) -> None:
    """Ask a process to end, wait, then kill what is left of its session. Harmless when it has ended already."""
    if process.poll() is None:
        process.send_signal(sent)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience.total_seconds())
    # Its children may live on after it: a worker's, for example.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class ProcessGroup:
    """Named processes, stopped in the reverse order of their start, whatever happens."""

    def __init__(self) -> None:
        self._processes: dict[str, tuple[subprocess.Popen[bytes], signal.Signals]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def spawn(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        log: Path | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
    ) -> subprocess.Popen[bytes]:
        process = spawn(command, env=env, cwd=cwd, log=log, signal_when_orphaned=stop_signal)
        self._processes[name] = (process, stop_signal)
        return process

    def ended(self) -> dict[str, int]:
        """Names and exit codes of those that have ended by themselves."""
        codes = {name: process.poll() for name, (process, _) in self._processes.items()}
        return {name: code for name, code in codes.items() if code is not None}

    def stop(self) -> None:
        while self._processes:
            _, (process, sent) = self._processes.popitem()
            stop(process, sent=sent)


def free_port() -> int:
    """A port of 127.0.0.1 that was free a moment ago. Somebody may take it first: start again with another.

    Where that is known it is none of those that the kernel gives to whoever connects or asks for any: nobody gets it by chance before its
    server is up, or while it is restarted.
    """
    lowest_given = _lowest_given_port()
    for _ in range(100 if lowest_given > 2 * _LOWEST_PORT else 0):
        port = _LOWEST_PORT + secrets.randbelow(lowest_given - _LOWEST_PORT)
        with contextlib.suppress(OSError):
            return _bound(port)
    return _bound(0)


def _lowest_given_port() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def _bound(port: int) -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))
        found: int = probe.getsockname()[1]
        return found


def wait_until(
    is_ready: Callable[[], bool],
    *,
    what: str,
    process: subprocess.Popen[bytes] | None = None,
    log: Path | None = None,
    timeout: timedelta = timedelta(seconds=30),
) -> None:
    """Poll until `is_ready`.

    Raises:
        ServerError: `process` ended first, or the time is over. The process, if it lives, was left running.
    """
    deadline = time.monotonic() + timeout.total_seconds()
    while not is_ready():
        if process is not None and process.poll() is not None:
            raise ServerError(f"{what} ended with exit code {process.returncode} while starting{_tail(log)}")
        if time.monotonic() > deadline:
            raise ServerError(f"{what} did not answer within {timeout.total_seconds():g} s{_tail(log)}")
        time.sleep(0.02)


def wait_for_port(port: int, *, process: subprocess.Popen[bytes] | None = None, log: Path | None = None) -> None:
    def is_ready() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
        return False

    wait_until(is_ready, what=f"port {port}", process=process, log=log)


def wait_for_http(url: str, *, process: subprocess.Popen[bytes] | None = None, log: Path | None = None) -> None:
    """Wait until `url` answers with any status below 400. It is on this machine: no proxy has any business in between."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def is_ready() -> bool:
        with contextlib.suppress(OSError), opener.open(url, timeout=5):
            return True
        return False

    wait_until(is_ready, what=url, process=process, log=log)


def _tail(log: Path | None) -> str:
    if log is None or not log.exists():
        return ""
    lines = log.read_text(errors="replace").splitlines()
    return ":\n" + "\n".join(lines[-12:])


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def temporary_folder(purpose: str, *, mode: int = 0o700, parent: Path | None = None) -> Path:
    """A new folder whose name tells our process id, so that the next call removes what a killed run left behind."""
    parent = parent or Path(tempfile.gettempdir())
    _remove_orphaned_folders(parent)
    folder = Path(tempfile.mkdtemp(prefix=f"{_TEMPORARY_PREFIX}{purpose}-{os.getpid()}-", dir=parent))
    folder.chmod(mode)
    return folder


def in_memory(*, room: int) -> Path | None:
    """A folder in memory where so many bytes are free, for data that nobody wants back: they wait for no disk. None where there is none."""
    shared = Path("/dev/shm")
    has_room = os.access(shared, os.W_OK | os.X_OK) and shutil.disk_usage(shared).free > room
    return shared if has_room else None


def _remove_orphaned_folders(parent: Path) -> None:
    for folder in parent.glob(f"{_TEMPORARY_PREFIX}*-*-*"):
        pid = folder.name.split("-")[-2]
        with contextlib.suppress(FileNotFoundError):  # another run removes the same orphans
            if pid.isdigit() and not is_alive(int(pid)) and folder.stat().st_uid == os.getuid():
                shutil.rmtree(folder, ignore_errors=True)
