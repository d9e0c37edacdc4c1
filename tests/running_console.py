"""The console as a process of its own: uvicorn, for real browsers and for real agents."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.request import urlopen

from local.processes import free_port


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
        server.wait(timeout=60)


def wait_until_answering(url: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        assert server.poll() is None, "the console did not start"
        try:
            with urlopen(url):
                return
        except OSError:  # nobody listens yet, or whoever does has just begun
            time.sleep(0.1)
    raise AssertionError("the console did not answer within 240 s")
