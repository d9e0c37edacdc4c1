"""Real Celery workers of a test, that can be killed; and a way to hold one in the middle of a settle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.conf import settings as django_settings
from django.db import connection

from console.celery import app
from local import processes
from tests.recall_writer import RecallWriter
from tests.servers import POSTGRES_URL

ROOT = Path(__file__).resolve().parents[2]
SWEEPS = ("console.tasks.sweep", "console.tasks.sweep_inquiries", "console.tasks.sweep_runs")
Worker = Callable[..., "subprocess.Popen[bytes]"]
"""Starts one of so many processes with these variables of the environment beside its own."""


@pytest.fixture
def worker(transactional_db: None, postgres: RecallWriter, tmp_path: Path) -> Iterator[Worker]:
    """Starts Celery with beat, with this test's database and store and the run's broker. Whatever still runs is killed."""
    database = django_settings.DATABASES["default"]["NAME"]
    environment = {
        **os.environ,
        "DATABASE_URL": os.environ[POSTGRES_URL].rsplit("/", 1)[0] + f"/{database}",
        "ACTION_STORES": f"main={django_settings.ACTION_STORES['main']}",
    }
    running: list[subprocess.Popen[bytes]] = []

    def start(at_once: int = 2, **settings: str) -> subprocess.Popen[bytes]:
        sweep_now()
        process = processes.spawn(
            [
                sys.executable,
                "-m",
                "celery",
                "-A",
                "console",
                "worker",
                "-B",
                "-c",
                str(at_once),
                "-l",
                "info",
                "-s",
                tmp_path / "beat",
            ],
            cwd=ROOT,
            env=environment | settings,
            log=tmp_path / f"worker-{len(running)}.log",
        )
        running.append(process)
        return process

    app.control.purge()
    yield start
    for process in running:
        kill(process)
    app.control.purge()


def sweep_now() -> None:
    """What beat sends every two seconds, now: the next worker that is up takes it."""
    for name in SWEEPS:
        app.send_task(name)


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to the worker and its children at once: nobody gets to say goodbye."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(60)


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 150) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"still not: {what}"
        time.sleep(0.1)


@contextmanager
def lease_row_held(postgres: RecallWriter, agent: str) -> Iterator[Callable[[], bool]]:
    """Somebody holds the agent's lease row in a transaction; answers whether somebody else waits for it."""
    with psycopg.connect(postgres.url) as holder:
        holder.execute(f"SELECT 1 FROM {postgres.schema}.recall_leases WHERE name = %s FOR UPDATE", [agent])

        yield lambda: somebody_waits_for(holder, postgres)
        holder.rollback()


def wait_until_somebody_waits_for_us() -> None:
    """For what the transaction of this test holds: of locks it learns at once, whatever it began with."""
    deadline = time.monotonic() + 60
    with connection.cursor() as cursor:
        while time.monotonic() < deadline:
            cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))")
            if cursor.fetchone()[0]:
                return
    raise AssertionError("nobody waits for a row of ours")


def somebody_waits_for(holder: psycopg.Connection[Any], postgres: RecallWriter) -> bool:
    """Whether a statement waits for what this connection holds, in whichever database. Other tests' processes wait for theirs on the same
    server; and it is asked on a connection of its own, since within one transaction the answer never changes."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))"
    return bool(postgres.run(waiting, [holder.info.backend_pid])[0][0])
