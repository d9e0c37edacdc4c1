"""The processes of the chaos test: PostgreSQL, broker, web server, beat and two workers, each killed and started again where it was."""

from __future__ import annotations

import base64
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from bench.chaos.runs import FOLDER
from demo.stage import ROOT, inherited
from local import postgres, processes, valkey
from local.postgres import RunningPostgres
from local.processes import ServerError, free_port
from local.valkey import RunningValkey

STORE = "chaos"
WORKERS = ("worker-1", "worker-2")
LEASE_S = 2
PATIENCE_S = 120


@dataclass(slots=True)
class Stage:
    """Everything that runs. `folder` holds data and logs; `world` the effects, which nothing here touches."""

    folder: Path
    postgres: RunningPostgres
    valkey: RunningValkey
    environment: Mapping[str, str]
    port: int
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def database(self) -> str:
        return self.environment["DATABASE_URL"]

    def start(self, name: str) -> None:
        """Start one of web, beat and the workers."""
        line = {
            "web": ["uvicorn", "console.asgi:application", "--port", str(self.port), "--no-access-log"],
            "beat": ["celery", "--app", "console", "beat", "--pidfile", ""],
        }.get(
            name, ["celery", "--app", "console", "worker", "--concurrency", "2", "--loglevel", "info", "--hostname", f"{name}@%h"]
        )
        self.running[name] = processes.spawn(
            [sys.executable, "-m", *line], env=self.environment, cwd=ROOT, log=self.folder / f"{name}.log"
        )

    def kill(self, name: str) -> None:
        """SIGKILL to it and its children at once."""
        process = self.running[name]
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def deploy(self, name: str) -> None:
        """SIGTERM, as a deploy sends it; killed after ten seconds."""
        processes.stop(self.running[name])

    def kill_broker(self) -> None:
        """SIGKILL, and a new one on the same socket that knows nothing of what the old one held."""
        self.valkey.process.send_signal(signal.SIGKILL)
        self.valkey.process.wait()
        self.valkey = valkey.start(self.folder / "valkey", socket_path=self.valkey.socket_path)

    def kill_database(self) -> None:
        """Everything in the server is killed at once; the next one recovers from its log, on the same port."""
        os.killpg(self.postgres.process.pid, signal.SIGKILL)
        self.postgres.process.wait()
        self.postgres = postgres.start(self.folder / "postgres")

    def stop(self) -> None:
        for process in reversed(self.running.values()):
            processes.stop(process)
        self.valkey.stop()
        self.postgres.stop()


def open_stage(folder: Path) -> Stage:
    """Start the servers and prepare the console.

    Raises:
        ServerError: something did not come up; nothing is left running.
    """
    world = folder / "world"
    world.mkdir()
    server = postgres.start(folder / "postgres")
    try:
        broker = valkey.start(folder / "valkey")
    except BaseException:
        server.stop()
        raise
    port = free_port()
    records = server.create_database("records")
    with postgres.connect(records) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
    environment = {
        **inherited(),
        "DEMO": "1",  # plain HTTP, on this machine
        "DEBUG": "0",
        "DATABASE_URL": server.create_database("settle"),
        "ACTION_STORES": f"{STORE}={records}",
        "CELERY_BROKER_URL": broker.url(),
        "SECRET_KEY": secrets.token_urlsafe(48),
        "SECRETS_KEY": _key(),
        "AUDIT_SIGNING_KEY": _key(),
        "ALLOWED_HOSTS": "127.0.0.1",
        "BASE_URL": f"http://127.0.0.1:{port}",
        "EMAIL_URL": "console:",
        "RUN_TYPES": "bench.chaos.runs",
        "RUN_LEASE_S": str(LEASE_S),
        "RESOLVER_CALLABLES": "bench.chaos.runs.find",
        FOLDER: str(world),
    }
    stage = Stage(folder=folder, postgres=server, valkey=broker, environment=environment, port=port)
    try:
        _prepare(stage)
        for name in ("web", "beat", *WORKERS):
            stage.start(name)
        processes.wait_for_http(f"{stage.url}/healthz", process=stage.running["web"], log=folder / "web.log")
    except BaseException:
        stage.stop()
        raise
    return stage


def _prepare(stage: Stage) -> None:
    log = stage.folder / "prepare.log"
    line = [sys.executable, "-m", "bench.chaos.prepare", str(stage.folder / "token")]
    preparing = processes.spawn(line, env=stage.environment, cwd=ROOT, log=log)
    try:
        if preparing.wait(PATIENCE_S) != 0:
            raise ServerError(f"the console could not be prepared; see {log}")
    finally:
        processes.stop(preparing, patience=timedelta(seconds=1))


def _key() -> str:
    return base64.b64encode(secrets.token_bytes(32)).decode()
