"""The demo's folder: what it keeps between starts, what it tells others, and the lock that only one demo holds."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from demo.kinds import STORES
from local import postgres


class Refused(Exception):
    """The demo cannot do what was asked; the message says why, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Secrets:
    """What is drawn once and then kept: passwords and keys."""

    password: str  # the demo user's
    console_password: str  # the console's role in PostgreSQL
    agents_password: str  # the agents' role
    secret_key: str
    secrets_key: str
    audit_signing_key: str

    @classmethod
    def draw(cls) -> Secrets:
        return cls(
            password=secrets.token_urlsafe(9),
            console_password=secrets.token_urlsafe(18),
            agents_password=secrets.token_urlsafe(18),
            secret_key=secrets.token_urlsafe(48),
            secrets_key=base64.b64encode(secrets.token_bytes(32)).decode(),
            audit_signing_key=base64.b64encode(secrets.token_bytes(32)).decode(),
        )


class Home:
    """`.data/` and the files in it. What a demo keeps, each `--store` keeps for itself: decisions about other agents would be none of its own."""

    def __init__(self, folder: Path, kind: str = "postgres") -> None:
        self.folder = folder
        self.kind = kind
        self.kept = folder if kind == "postgres" else folder / f"on-{kind}"
        self.postgres = self.kept / "postgres"
        self.mongo = self.kept / "mongo"
        self.valkey = self.kept / "valkey"
        self.world = self.kept / "world"
        self.logs = self.kept / "logs"
        self.token = self.kept / "demo.token"
        self.outside = self.kept / "outside.json"
        self._secrets = self.kept / "demo.secrets.json"
        self.demo = folder / "demo.json"
        self.environment = folder / "demo.env.json"
        self._lock = folder / "demo.lock"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Be the only demo in this folder.

        Raises:
            Refused: another one runs.
        """
        for folder in (self.folder, self.kept):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._close_to_others()
        with self._lock.open("a+") as lock:
            if not _locked(lock):
                raise Refused(f"a demo is already running ({self._who()}); stop that one first")
            lock.truncate(0)
            lock.write(f"process {os.getpid()}")
            lock.flush()
            self.forget_address()
            heir = self._leave_to_an_heir()
            try:
                yield
            finally:
                self.forget_address()
                heir.communicate()

    def _close_to_others(self) -> None:
        """The folders are their owner's. Root's server runs as `nobody`, who must pass through to its data, and can list nothing."""
        for folder in (self.folder, self.kept):
            folder.chmod(0o711 if os.geteuid() == 0 else 0o700)

    def make_private_folders(self) -> None:
        """For logs and for the world: both tell what agents did, and to whom."""
        for folder in (self.logs, self.world):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.chmod(0o700)

    def _leave_to_an_heir(self) -> subprocess.Popen[bytes]:
        """A process that takes the address away when we end without doing so, killed for example: it sees our end of its pipe close."""
        line = ["sh", "-c", 'cat >/dev/null; rm -f -- "$@"', "sh", str(self.demo), str(self.environment)]
        return subprocess.Popen(line, stdin=subprocess.PIPE, start_new_session=True)

    def _who(self) -> str:
        who = self._lock.read_text()
        return f"{who}, {told['url']}" if (told := self._told()) else who

    def running(self) -> Mapping[str, str]:
        """What the running demo tells.

        Raises:
            Refused: there is none, or it is still starting.
        """
        try:
            with self._lock.open("a+") as lock:
                is_running = not _locked(lock)
        except FileNotFoundError:
            is_running = False
        if not is_running:
            raise Refused("no demo is running here; start one with ./run demo")
        told = self._told()
        if told is None:
            raise Refused("the demo is still starting; try again when it has printed its address")
        return told

    def _told(self) -> Mapping[str, str] | None:
        try:
            told: Mapping[str, str] = json.loads(self.demo.read_text())
        except (FileNotFoundError, ValueError):
            return None
        return told

    def tell_environment(self, environment: Mapping[str, str]) -> None:
        """For commands that are given no DATABASE_URL."""
        postgres.write_private(self.environment, json.dumps(environment, indent=2) + "\n")

    def tell(
        self, *, url: str, username: str, password: str, token: str, database_url: str, stores: str, second: str = ""
    ) -> None:
        """The last thing a start does: others wait for this file."""
        told = {"url": url, "username": username, "password": password}
        told |= {"token": token, "database_url": database_url, "stores": stores}
        if second:
            told |= {"second_username": second, "second_password": password}
        postgres.write_private(self.demo, json.dumps(told, indent=2) + "\n")

    def forget_address(self) -> None:
        self.demo.unlink(missing_ok=True)
        self.environment.unlink(missing_ok=True)

    def forget_everything(self) -> None:
        """Begin anew with this `--store`; the lock stays, and what the others keep."""
        postgres.remove_data(self.postgres)
        for folder in (self.mongo, self.valkey, self.world, self.logs):
            shutil.rmtree(folder, ignore_errors=True)
        for file in (self._secrets, self.token, self.outside):
            file.unlink(missing_ok=True)
        self._close_to_others()

    def others(self) -> list[str]:
        """Which other `--store` has something kept here."""
        return [kind for kind in STORES if kind != self.kind and Home(self.folder, kind)._secrets.exists()]

    def secrets(self) -> Secrets:
        """Those of the first start."""
        if not self._secrets.exists():
            postgres.write_private(self._secrets, json.dumps(asdict(Secrets.draw()), indent=2) + "\n")
        return Secrets(**json.loads(self._secrets.read_text()))


def _locked(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
