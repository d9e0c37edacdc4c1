"""A server that speaks MongoDB's protocol, on 127.0.0.1, started by us and gone with us. For demo, tests and benchmarks.

SecantusDB in a process of its own: no package brings a `mongod`. `MONGO_URL` points the tests at a real replica set instead.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from pymongo import MongoClient
from pymongo.errors import PyMongoError

from local import processes
from local.postgres import write_private

SUPERUSER = "settle"
_PROGRAM = Path(__file__).with_name("mongo_server.py")
_ROOM = 2 * 1024**3
"""Bytes free in memory, else data that nobody wants back lie on the disk."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Mongo:
    """Where a server is and as whom we may do everything there; says nothing about who started it."""

    base: str  # scheme, user, password and hosts
    options: str  # what follows the question mark

    @classmethod
    def from_url(cls, url: str) -> Mongo:
        base, _, options = url.partition("?")
        scheme, _, rest = base.partition("://")
        place, _, database = rest.partition("/")
        if "@" in place and "authSource=" not in options:  # else it would be whichever database is named next
            options = "&".join(filter(None, [options, f"authSource={database or 'admin'}"]))
        return cls(base=f"{scheme}://{place}", options=options)

    def url(self, database: str = "admin") -> str:
        """The superuser's address of one database. It comes into being when something is written there."""
        return f"{self.base}/{quote(database, safe='')}{'?' if self.options else ''}{self.options}"

    def client(self) -> MongoClient[dict[str, Any]]:
        return MongoClient(self.url(), serverSelectionTimeoutMS=2000, tz_aware=True)

    def version(self) -> str:
        """What the server calls itself; SecantusDB says which MongoDB it stands in for, and its own version."""
        with self.client() as client:
            info = client.admin.command("buildInfo")
            own = info.get("secantusVersion")
            return f"{info['version']} (SecantusDB {own})" if own else str(info["version"])

    def drop_database(self, name: str) -> None:
        """Harmless when it is not there."""
        with self.client() as client:
            client.drop_database(name)


class RunningMongo:
    """A server of ours. Leaving the block stops it, and removes its data when they were temporary."""

    def __init__(self, server: Mongo, process: subprocess.Popen[bytes], *, home: Path, keep: bool) -> None:
        self.server = server
        self.process = process
        self._home = home
        self._keep = keep

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def url(self, database: str = "admin") -> str:
        return self.server.url(database)

    def stop(self) -> None:
        processes.stop(self.process, sent=signal.SIGTERM if self._keep else signal.SIGKILL)
        if not self._keep:
            shutil.rmtree(self._home, ignore_errors=True)


def start(data_dir: Path | None = None, *, standalone: bool = False) -> RunningMongo:
    """Start a server whose data stay in `data_dir`, or, without one, a forgetful one in a temporary folder.

    A replica set of one, for transactions need one; with `standalone` none.

    Raises:
        ServerError: it did not come up; nothing is left running.
    """
    home = data_dir or processes.temporary_folder("mongo", parent=processes.in_memory(room=_ROOM))
    home.mkdir(parents=True, exist_ok=True)
    home.chmod(0o700)
    password, port, log = _password(home / "password"), home / "port", home / "mongo.log"
    wished = port.read_text() if port.exists() else "0"  # the last one if we can, so that addresses printed yesterday still work
    port.unlink(missing_ok=True)
    options = [*(["--standalone"] if standalone else []), *([] if data_dir else ["--forgetful"])]
    process = processes.spawn(
        [sys.executable, _PROGRAM, home, "--port", wished, *options],
        env=os.environ | {"SETTLE_MONGO_USER": SUPERUSER, "SETTLE_MONGO_PASSWORD": password},
        cwd=home,
        log=log,
    )
    try:
        processes.wait_until(port.exists, what="SecantusDB", process=process, log=log)
        server = Mongo.from_url(f"mongodb://{SUPERUSER}:{password}@127.0.0.1:{port.read_text()}/?directConnection=true")
        processes.wait_until(lambda: _answers(server), what="SecantusDB", process=process, log=log)
    except BaseException:
        processes.stop(process, sent=signal.SIGKILL)
        if data_dir is None:
            shutil.rmtree(home, ignore_errors=True)
        raise
    return RunningMongo(server, process, home=home, keep=data_dir is not None)


def _password(file: Path) -> str:
    if not file.exists():
        write_private(file, secrets.token_urlsafe(24))
    return file.read_text()


def _answers(server: Mongo) -> bool:
    try:
        with server.client() as client:
            client.admin.command("ping")
            return True
    except PyMongoError:
        return False
