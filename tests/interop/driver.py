"""The real Recall 0.23: its Python client and its binary on one database, and what may befall them."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import psycopg
from polign_recall import Client, ResumedAgent

from local.processes import wait_until
from tests.interop.rows import rows_of

PATIENCE = timedelta(seconds=60)


class Recall:
    """Clients of one store, each with a binary of its own; `close` ends those that still live, frozen ones too."""

    def __init__(self, url: str, *, env: Mapping[str, str] | None = None) -> None:
        self.url = url
        self._env = dict(env or {})
        self._clients: list[Client] = []

    def open(self) -> Client:
        client = Client(
            agent=True,
            backend=backend_of(self.url),
            backend_url=address_of(self.url),
            env=self._env,
            timeout=PATIENCE.total_seconds(),
        )
        self._clients.append(client)
        return client

    def resume(self, agent: str, **options: Any) -> ResumedAgent:
        """The agent's next process."""
        return self.open().resume(agent, **options)

    def close(self) -> None:
        for client in self._clients:
            process = client._process
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGCONT)
            client.close()


def backend_of(url: str) -> str:
    """What Recall calls the kind of database that an address leads to."""
    if url.startswith("polign+"):
        return "polign"
    return "mongodb" if url.startswith("mongodb") else "pgvector"


def address_of(url: str) -> str:
    """An address as Recall reads it: a polign_db's without what is ours."""
    return url.removeprefix("polign+").partition("?")[0] if url.startswith("polign+") else url


def binary_of(agent: ResumedAgent) -> subprocess.Popen[bytes]:
    process = agent.client._process
    assert process is not None
    return process


def kill(agent: ResumedAgent) -> None:
    """SIGKILL for the agent's binary: its lease is handed over by nobody and stays live until it expires."""
    binary_of(agent).kill()
    binary_of(agent).wait()


def freeze(agent: ResumedAgent) -> None:
    """SIGSTOP, and wait until the kernel says that every thread of the binary stands still."""
    binary = binary_of(agent)
    binary.send_signal(signal.SIGSTOP)
    with open(f"/proc/{binary.pid}/stat") as stat:
        wait_until(lambda: _state(stat) == "T", what="the frozen binary", timeout=PATIENCE)


def _state(stat: Any) -> str:
    stat.seek(0)
    return str(stat.read()).rpartition(")")[2].split()[0]


def thaw(agent: ResumedAgent) -> None:
    binary_of(agent).send_signal(signal.SIGCONT)


def expire_lease(url: str, agent: str) -> None:
    """What waiting out a dead process's lease comes to, without the wait."""
    rows_of(url).expire_lease(agent)


def crash(agent: ResumedAgent, url: str) -> None:
    """The agent's machine went away, some time ago."""
    kill(agent)
    expire_lease(url, agent.agent_id)


def records_of(url: str, agent: str) -> dict[str, dict[str, Any]]:
    """The metadata of every record of an agent exactly as they are stored, by record id."""
    return rows_of(url).records(agent)


def lease_of(url: str, agent: str) -> tuple[str, int, bool, bool]:
    """Holder, epoch, live, released, by the server's clock."""
    return rows_of(url).lease(agent)


def revision(url: str) -> int:
    return rows_of(url).revision()


def wait_for_lock_waiters(connection: psycopg.Connection[Any], count: int) -> None:
    """Until so many other sessions of this database wait for a lock, in the order in which they came."""

    def are_waiting() -> bool:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        ).fetchone()
        return row is not None and row[0] >= count

    wait_until(are_waiting, what=f"{count} sessions waiting for a lock", timeout=PATIENCE)


def wait_until_true(is_so: Callable[[], bool], what: str) -> None:
    wait_until(is_so, what=what, timeout=PATIENCE)
