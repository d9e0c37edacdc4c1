"""`pages`: the console itself, as uvicorn serves it to somebody who is logged in, and decisions through its API."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import httpx

from actions import queries
from actions.queries import ActionFilter, ActionItem
from bench.ground import Ground
from bench.inside import CALLABLE
from bench.plan import Plan
from bench.reads import in_doubt
from bench.report import Report, make_row, measure
from local import processes
from local.postgres import Postgres
from local.processes import ProcessGroup, ServerError

ROOT = Path(__file__).resolve().parent.parent
CONSOLE_DATABASE, PREPARED = "console", "console_prepared"
USER = "bench"
COMMAND_TIMEOUT_S = 120
_passes: dict[str, tuple[str, str]] = {}
"""By server: the only copies of what was drawn for it."""
WARM_UP = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Console:
    """A running console: a browser that is logged in, and a program that has a token."""

    browser: httpx.Client
    program: httpx.Client
    url: str
    pid: int  # of the web process
    environment: Mapping[str, str]  # for more processes of the same console


def bench_pages(ground: Ground, plan: Plan, report: Report) -> None:
    """Whole answers of one web process, without a network: middleware, session, rights, reading, templates."""
    with ground.store() as store:
        items = queries.list_actions([store], in_doubt(), limit=200).items
        listed = queries.list_actions([store], ActionFilter(), limit=50).items
    item = listed[0]
    with served(ground) as console:
        browser, program = console.browser, console.program
        pages: dict[str, Callable[[], httpx.Response]] = {
            "the queue": lambda: browser.get("/"),
            "the queue's rows, by htmx": lambda: browser.get("/", headers={"HX-Request": "true", "HX-Target": "queue"}),
            "an action": lambda: browser.get(path_of(item)),
            "an agent": lambda: browser.get(f"/agents/{item.store}/{item.agent}/"),
            "the history": lambda: browser.get("/history/"),
            "API: open actions": lambda: program.get("/api/v1/actions"),
            "API: one action": lambda: program.get(f"/api/v1{path_of(item)[:-1]}"),
        }
        for name, fetch in pages.items():
            require_ok(fetch())
            report.rows.append(make_row("pages", name, measure(fetch, times=plan.reads)))
        to_decide = iter(items)
        decide = decider(program, to_decide)
        report.rows.append(
            make_row("pages", "API: a decision", measure(decide, times=min(plan.settles, len(items) - WARM_UP), warm_up=WARM_UP))
        )


def decider(program: httpx.Client, items: Iterator[ActionItem]) -> Callable[[], None]:
    """Settle the next call in doubt, as a program does. Each has an agent that nobody holds."""

    def decide() -> None:
        item = next(items)
        body = {"outcome": "done", "reason": "found in the Sent folder", "decision_id": uuid4().hex, "seen": item.digest}
        answer = program.post(f"/api/v1{path_of(item)}decision", json=body)
        if answer.status_code != 201:
            raise ServerError(f"a decision about {item.ref} was answered {answer.status_code}: {answer.text[:200]}")

    return decide


def path_of(item: ActionItem) -> str:
    return f"/actions/{item.store}/{item.agent}/{item.seq}/"


def require_ok(answer: httpx.Response) -> None:
    if answer.status_code != httpx.codes.OK:
        raise ServerError(f"{answer.request.url} answered {answer.status_code}")


@contextlib.contextmanager
def served(ground: Ground, database: str = CONSOLE_DATABASE) -> Iterator[Console]:
    """Copy a migrated database with a user in it who has every role, start uvicorn, log in; stop it afterwards."""
    port = processes.free_port()
    url = f"http://127.0.0.1:{port}"
    password, token = prepare_console(ground, database)
    environment = settings(ground, url, database)
    with ProcessGroup() as group:
        line = [sys.executable, "-m", "uvicorn", "console.asgi:application", "--port", str(port), "--log-level", "warning"]
        process = group.spawn("web", line, env=environment, cwd=ROOT, log=ground.log.with_name("web.log"))
        processes.wait_for_http(f"{url}/healthz", process=process)
        with (
            httpx.Client(base_url=url, timeout=30) as browser,
            httpx.Client(base_url=url, timeout=30, headers={"Authorization": f"Bearer {token}"}) as program,
        ):
            log_in(browser, password)
            yield Console(browser=browser, program=program, url=url, pid=process.pid, environment=environment)


def prepare_console(ground: Ground, database: str) -> tuple[str, str]:
    """A console's database, where it is not there yet: a copy of the one that the first who needs it makes. Its user's password and token."""
    server = Postgres.from_url(ground.url)
    known = _passes.get(server.url())
    if known is None:
        environment = settings(ground, "http://127.0.0.1", PREPARED)
        manage(environment, "migrate", "--verbosity", "0")
        password = secrets.token_urlsafe(24)
        manage(environment, "create_user", USER, "--superuser", stdin=password)
        known = _passes[server.url()] = password, manage(environment, "create_token", USER)
    if not server.database_exists(database):
        server.create_database(database, template=PREPARED)
    return known


def settings(ground: Ground, url: str, database: str = CONSOLE_DATABASE) -> dict[str, str]:
    """As in production, over plain http."""
    key = "YmVuY2gtYmVuY2gtYmVuY2gtYmVuY2gtYmVuY2gtYiE="
    return os.environ | {
        "DEBUG": "0",
        "DEMO": "1",
        "DATABASE_URL": ground.database(database),
        "ACTION_STORES": f"main={ground.url}",
        "CELERY_BROKER_URL": "memory://",
        "SECRET_KEY": secrets.token_urlsafe(48),
        "SECRETS_KEY": key,
        "AUDIT_SIGNING_KEY": key,
        "ALLOWED_HOSTS": "127.0.0.1",
        "CSRF_TRUSTED_ORIGINS": "",
        "BASE_URL": url,
        "EMAIL_URL": "memory:",
        "RESOLVER_CALLABLES": CALLABLE,
    }


def manage(environment: Mapping[str, str], *arguments: str, stdin: str = "") -> str:
    """Run one command of manage.py; its output.

    Raises:
        ServerError: it failed; the message is the last line that it said.
    """
    line = [sys.executable, "manage.py", *arguments]
    done = subprocess.run(
        line, env=environment, cwd=ROOT, input=stdin, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        raise ServerError(f"manage.py {arguments[0]} failed: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
    return done.stdout.strip()


def log_in(browser: httpx.Client, password: str) -> None:
    form = browser.get("/login/")
    found = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', form.text)
    fields = {"username": USER, "password": password, "csrfmiddlewaretoken": found[1] if found else ""}
    answer = browser.post("/login/", data=fields, headers={"Referer": str(form.url)})
    if answer.status_code != httpx.codes.FOUND:
        raise ServerError(f"logging in was answered {answer.status_code}")
