"""The console as a process of its own: uvicorn, for real browsers and for real agents."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.error import URLError
from urllib.request import urlopen

PATIENCE_S = 120
"""How long a start may take; on a machine with much else to do it takes half a minute."""


@contextmanager
def running_console(*, database_url: str, stores: str, more: Mapping[str, str] | None = None) -> Iterator[str]:
    """Its address; it is stopped afterwards. `stores` is the text of ACTION_STORES, `more` other settings."""
    port = free_port()
    environment = {
        **os.environ,
        "DATABASE_URL": database_url,
        "ACTION_STORES": stores,
        "CELERY_BROKER_URL": "memory://",
        **(more or {}),
    }
    command = [sys.executable, "-m", "uvicorn", "console.asgi:application", "--port", str(port), "--log-level", "warning"]
    command += ["--timeout-graceful-shutdown", "1"]
    server = subprocess.Popen(command, env=environment)
    try:
        wait_until_answering(f"http://127.0.0.1:{port}/healthz", server)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(timeout=PATIENCE_S)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_answering(url: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        assert server.poll() is None, "the console did not start"
        try:
            with urlopen(url):
                return
        except URLError:
            time.sleep(0.1)
    raise AssertionError(f"the console did not answer within {PATIENCE_S:.0f} s")
