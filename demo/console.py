"""The console's processes in the demo: its settings, its preparation, web server and worker, and what its API tells."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx

from demo.addresses import Addresses, action_stores
from demo.home import Home, Refused, Secrets
from demo.outside import HOST, Outside
from demo.stage import ROOT, inherited
from local.processes import ProcessGroup

PROVIDERS = "providers"
_SWEEP_AGE = re.compile(r'^settle_sweep_age_seconds\{sweep="sweep"\} (\S+)$', re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Console:
    """One console, running or about to. Its processes belong to `servers` and end with it."""

    home: Home
    servers: ProcessGroup
    environment: Mapping[str, str]
    port: int

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def prepare(self, addresses: Addresses, kept: Secrets) -> subprocess.Popen[bytes]:
        """Begin to make tables, user, audit schema and token, with the owner's rights on every store."""
        owners = action_stores({store.name: store.owner for store in addresses.stores})
        return self._spawn(
            "prepare",
            ["demo.prepare", str(self.home.token), str(self.home.outside)],
            {"ACTION_STORES": owners, "DEMO_PASSWORD": kept.password},
        )

    def start_providers(self) -> None:
        """Start what resolvers ask: mailbox, payment provider, tracker."""
        line = [sys.executable, "-m", "demo.providers", str(self.home.outside), str(self.home.world)]
        self.servers.spawn(PROVIDERS, line, env=inherited(), cwd=ROOT, log=self.log(PROVIDERS))

    def start(self) -> None:
        """Start the web server, one worker, and beat beside it: inside the worker it could die and nobody would notice."""
        line = ["uvicorn", "console.asgi:application", "--host", HOST, "--port", str(self.port), "--no-access-log"]
        self._spawn("web", [*line, "--timeout-graceful-shutdown", "3"])  # a page that is left open would keep it for ever
        self._spawn("worker", ["celery", "--app", "console", "worker", "--concurrency", "1", "--loglevel", "info"])
        beat = ["celery", "--app", "console.beat", "beat", "--pidfile", ""]
        self._spawn("beat", [*beat, "--loglevel", "info"])

    def _spawn(self, name: str, module: list[str], more: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        env = {**inherited(), **self.environment, **(more or {})}
        return self.servers.spawn(name, [sys.executable, "-m", *module], env=env, cwd=ROOT, log=self.log(name))

    def log(self, name: str) -> Path:
        return self.home.logs / f"{name}.log"

    def require_alive(self) -> None:
        """Notice what ended by itself; a preparation that went well may.

        Raises:
            Refused: a process of the console has ended that should not.
        """
        for name, code in self.servers.ended().items():
            if name != "prepare" or code != 0:
                raise Refused(f"the process {name!r} ended with exit code {code}; see {self.log(name)}")

    def answers(self) -> bool:
        try:
            return _get(f"{self.url}/healthz").is_success
        except httpx.HTTPError:
            return False

    def works(self, token: str, *, since: float) -> bool:
        """Whether a worker has swept since a moment of time.monotonic: who asks a resolver right after it should not wait for that."""
        said = _get(f"{self.url}/metrics", Authorization=f"Bearer {token}").text
        ages = [float(age) for age in _SWEEP_AGE.findall(said)]
        return any(age < time.monotonic() - since for age in ages)

    def calls(self, token: str, *, state: str, store: str, **filters: str) -> list[dict[str, Any]]:
        """A store's calls in one of these states, by the API; the first fifty of them.

        Raises:
            Refused: it answers anything but a list.
        """
        query = urlencode({"state": state, "store": store, **filters})
        answer = _get(f"{self.url}/api/v1/actions?{query}", Authorization=f"Bearer {token}")
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            self.home.token.unlink(missing_ok=True)
            raise Refused("the demo's token has been withdrawn; the next start makes a new one")
        if not answer.is_success:
            raise Refused(f"{answer.url} answered {answer.status_code}; see {self.log('web')}")
        items: list[dict[str, Any]] = answer.json()["items"]
        return items

    def start_run(self, token: str, *, order: str, amount: float) -> str:
        """Start the refund of an order, or find that of an earlier start; its run id.

        Raises:
            Refused: it answers anything but a run.
        """
        body = {"type": "refund", "input": {"order": order, "amount": amount}, "idempotency_key": f"demo-{order}"}
        with httpx.Client(trust_env=False, timeout=10) as client:
            answer = client.post(f"{self.url}/api/v1/runs", json=body, headers={"Authorization": f"Bearer {token}"})
        if answer.status_code != httpx.codes.ACCEPTED:
            raise Refused(f"{answer.url} answered {answer.status_code}; see {self.log('web')}")
        return str(answer.json()["id"])


def _get(url: str, **headers: str) -> httpx.Response:
    with httpx.Client(trust_env=False, timeout=10) as client:  # a proxy has no business between us and this machine
        return client.get(url, headers=headers)


def environment(addresses: Addresses, kept: Secrets, outside: Outside, *, broker: str, port: int, world: Path) -> dict[str, str]:
    """The console's settings, as environment variables."""
    first = addresses.stores[0]
    return {
        "DEMO": "1",
        "DEBUG": "0",
        "DATABASE_URL": addresses.console,
        "ACTION_STORES": action_stores({store.name: store.console for store in addresses.stores}),
        "CELERY_BROKER_URL": broker,
        "SECRET_KEY": kept.secret_key,
        "SECRETS_KEY": kept.secrets_key,
        "AUDIT_SIGNING_KEY": kept.audit_signing_key,
        "ALLOWED_HOSTS": f"{HOST} localhost",
        "BASE_URL": f"http://{HOST}:{port}",
        "EMAIL_URL": "console:",
        "RESOLVER_ALLOWED_HOSTS": outside.allowed_hosts,
        "RUN_TYPES": "demo.runs",
        "RUN_STORE": first.name,
        "RUN_STORE_URL": first.agents,
        "DEMO_WORLD": str(world),
    }
