"""A really running console, and an operator who decides in it through its API by looking at the mail log."""

from __future__ import annotations

import base64
import os
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from bench.kill.agent import NEVER_SENT, PATIENCE_S, POLL_S, Records
from demo.addresses import action_stores
from demo.stage import ROOT, inherited
from demo.world import MAIL, World
from local.processes import ProcessGroup, ServerError, free_port, spawn, stop, wait_for_http

STORE = "kill"
OPERATOR = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """Somebody with a token of the console at this address. Safe in several threads."""

    http: httpx.Client

    def decide(self, agent: str, world: World) -> None:
        """Look at what is open of this agent until nothing is left to decide: each email that is in doubt is looked up by its key.

        A call whose agent may still be alive is left until its lease is over; so is a decision that met the agent's lease (it is withdrawn).

        Raises:
            ServerError: the console refused a decision, or something was left after a minute.
        """
        until = time.monotonic() + PATIENCE_S
        while opened := self._opened(agent):
            for item in opened:
                if item["state"] in ("interrupted", "unknown"):
                    self._decide(item, was_sent=world.has(MAIL, item["key"]))
            if time.monotonic() > until:
                raise ServerError(f"the operator could not settle {opened[0]['agent']}, action {opened[0]['seq']}")
            time.sleep(POLL_S)

    def _opened(self, agent: str) -> list[dict[str, Any]]:
        query = {"agent": agent, "store": STORE, "class": "external"}
        answer = self.http.get("/api/v1/actions", params=query)
        if answer.status_code != httpx.codes.OK:
            raise ServerError(f"the console answered {answer.status_code} to a list of open calls: {answer.text[:200]}")
        items: list[dict[str, Any]] = answer.json()["items"]
        return items

    def _decide(self, item: dict[str, Any], *, was_sent: bool) -> None:
        place = f"/api/v1/actions/{item['store']}/{item['agent']}/{item['seq']}/decision"
        said = {"outcome": "done", "reason": "found in the mail log", "result": "sent"}
        never = {"outcome": "failed", "reason": NEVER_SENT, "error": "never sent"}
        decision = (said if was_sent else never) | {"decision_id": uuid4().hex, "seen": item["digest"]}
        answer = self.http.post(place, json=decision)
        if answer.status_code == httpx.codes.ACCEPTED:  # nobody delivers it here: there is no worker
            self.http.delete(place)
        elif answer.status_code not in (httpx.codes.CREATED, httpx.codes.PRECONDITION_FAILED):
            raise ServerError(f"the console answered {answer.status_code} to a decision: {answer.text[:200]}")


@contextmanager
def console(records: Records, database: str, folder: Path) -> Iterator[Operator]:
    """Prepare the store and the console's own empty database, start the web server, and stop it at the end.

    Raises:
        ServerError: it could not be prepared, or did not come up.
    """
    port, token = free_port(), folder / "token"
    env = {
        **inherited(),
        "DEMO": "1",  # plain HTTP, on this machine
        "DEBUG": "0",
        "DATABASE_URL": database,
        "ACTION_STORES": action_stores({STORE: records.ours}),
        "CELERY_BROKER_URL": "memory://",
        "SECRET_KEY": secrets.token_urlsafe(48),
        "SECRETS_KEY": _key(),
        "AUDIT_SIGNING_KEY": _key(),
        "ALLOWED_HOSTS": "127.0.0.1",
        "BASE_URL": f"http://127.0.0.1:{port}",
        "EMAIL_URL": "console:",
    }
    log = folder / "console.log"
    preparing = spawn([sys.executable, "-m", "bench.kill.operator", token], env=env, cwd=ROOT, log=log)
    try:
        if preparing.wait(PATIENCE_S * 2) != 0:
            raise ServerError(f"the console could not be prepared; see {log}")
    finally:
        stop(preparing)
    with ProcessGroup() as servers:
        line = [sys.executable, "-m", "uvicorn", "console.asgi:application", "--port", str(port), "--no-access-log"]
        web = servers.spawn("web", line, env=env, cwd=ROOT, log=log)
        wait_for_http(f"http://127.0.0.1:{port}/healthz", process=web, log=log)
        headers = {"Authorization": f"Bearer {token.read_text()}"}
        base = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=base, headers=headers, trust_env=False, timeout=30) as http:
            yield Operator(http=http)


def _key() -> str:
    return base64.b64encode(secrets.token_bytes(32)).decode()


def prepare(token: Path) -> None:
    """In a process of its own: tables, the store's history, and an operator's token, in this file."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")
    import django
    from django.core.management import call_command

    django.setup()
    from django.contrib.auth.models import User

    from console.models import Grant, Role
    from console.services.tokens import create_user_token

    call_command("migrate", interactive=False, verbosity=0)
    call_command("prepare_store", STORE)
    user = User.objects.create_user(OPERATOR)
    Grant.objects.create(user=user, role=Role.OPERATOR, store="", tool="")
    token.touch(mode=0o600)
    token.write_text(create_user_token(user))


if __name__ == "__main__":
    prepare(Path(sys.argv[1]))
