"""What a team would have without a console: Django's admin over the same table; Flower, which shows tasks and not calls."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import django
import httpx

from bench.ground import Ground
from bench.plan import Plan
from bench.report import Report, make_row, measure
from local import processes, valkey
from local.processes import ProcessGroup, ServerError

ROOT = Path(__file__).resolve().parent.parent
FLOWER = "flower==2.0.1"
INSTALL_S = 60
TOLD_S = 120
OURS = "queue, first page"
_TABLE = {"draw": "1", "start": "0", "length": "50", "search[value]": ""}
_TABLE |= {"order[0][column]": "0", "order[0][dir]": "asc", "columns[0][data]": "name"}


def measure_admin(ground: Ground, report: Report, size: int, open_calls: int, *, times: int) -> None:
    """Its changelist of open calls and of everything, 50 to a page, counts included, by the same server under the same uvicorn."""
    port, password = processes.free_port(), secrets.token_urlsafe(24)
    environment = os.environ | {"BENCH_ADMIN_URL": ground.url, "BENCH_ADMIN_PASSWORD": password}
    done = subprocess.run(
        [sys.executable, "-m", "bench.admin_site"],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode != 0:
        raise ServerError(f"Django's admin: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
    url = f"http://127.0.0.1:{port}"
    with ProcessGroup() as group:
        line = [sys.executable, "-m", "uvicorn", "bench.admin_site:application", "--port", str(port), "--log-level", "warning"]
        process = group.spawn("admin", line, env=environment, cwd=ROOT, log=ground.log.with_name("admin.log"))
        processes.wait_for_http(f"{url}/admin/login/", process=process)
        with httpx.Client(base_url=url, timeout=120) as browser:
            _log_in(browser, password)
            pages = {
                "changelist of open calls": "/admin/admin/record/?open=yes",
                "changelist of all records": "/admin/admin/record/",
            }
            for name, path in pages.items():
                samples = measure(lambda path=path: _fetch(browser, path), times=max(3, times // 2), warm_up=1)  # type: ignore[misc]
                ours = next(row for row in report.rows if (row.name, row.actions, row.open_calls) == (OURS, size, open_calls))
                row = make_row(
                    "beside",
                    f"Django admin {django.get_version()}: {name}",
                    samples,
                    size=len(browser.get(path).content),
                    actions=size,
                    open_calls=open_calls,
                )
                report.rows.append(replace(row, note=f"our queue's first page is {ours.p50 / row.p50:.2f} of it"))


def bench_flower(ground: Ground, plan: Plan, report: Report) -> None:
    """Flower in a venv of its own, told of as many tasks as there are actions; one line where it cannot be installed."""
    python = ROOT / ".tools" / "flower" / "bin" / "python"
    if (why_not := _installed(python)) is not None:
        report.remarks.append(f"Flower was not measured: {why_not}.")
        return
    port = processes.free_port()
    with valkey.start() as broker, ProcessGroup() as group:
        line = [str(python), "-m", "celery", f"--broker={broker.url()}", "flower", "--address=127.0.0.1", f"--port={port}"]
        process = group.spawn(
            "flower",
            [*line, f"--max_tasks={plan.tasks}", "--logging=warning"],
            env=os.environ | {"FLOWER_UNAUTHENTICATED_API": "true"},
            cwd=ground.log.parent,
            log=ground.log.with_name("flower.log"),
        )
        url = f"http://127.0.0.1:{port}"
        processes.wait_for_http(f"{url}/healthcheck", process=process)
        time.sleep(1.0)  # it has said that it is there before it listens to events
        told = subprocess.run(
            [sys.executable, "-c", _TELL, broker.url(), str(plan.tasks)],
            capture_output=True,
            text=True,
            timeout=TOLD_S,
            check=False,
        )
        if told.returncode != 0:
            raise ServerError(f"flower: {(told.stderr.strip().splitlines() or ['?'])[-1]}")
        with httpx.Client(base_url=url, timeout=60) as browser:
            known = _wait_until_known(browser, plan.tasks)

            def table() -> httpx.Response:
                answer = browser.get("/tasks/datatable", params=_TABLE)
                answer.raise_for_status()
                return answer

            samples = measure(table, times=max(3, plan.pages))
    report.rows.append(make_row("beside", f"{FLOWER.replace('==', ' ')}: 50 of {known:,} tasks, from its memory", samples))


def _installed(python: Path) -> str | None:
    """None where it is there; else why not, in a few words. Tried once in each run."""
    if python.exists():
        return None
    uv = shutil.which("uv") or str(ROOT / ".tools" / "bin" / "uv")
    home = python.parent.parent
    install = [uv, "pip", "install", "-q", "--python", str(python), FLOWER, "celery[redis]"]
    for line in ([uv, "venv", "-q", "--clear", "--python", sys.executable, str(home)], install):
        try:
            done = subprocess.run(line, capture_output=True, text=True, timeout=INSTALL_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as exc:
            shutil.rmtree(home, ignore_errors=True)
            return f"it could not be installed ({type(exc).__name__})"
        if done.returncode != 0:
            shutil.rmtree(home, ignore_errors=True)
            return "it could not be installed from the package index"
    return None


_TELL = """
import sys, time, uuid
from celery import Celery
app = Celery(broker=sys.argv[1])
with app.connection_for_write() as connection, app.events.Dispatcher(connection, hostname="bench@bench", buffer_while_offline=False) as tell:
    tell.send("worker-online", freq=2)
    for number in range(int(sys.argv[2])):
        key = uuid.uuid4().hex
        tell.send("task-received", uuid=key, name="send_email", args="()", kwargs="{}", retries=0, eta=None)
        tell.send("task-succeeded", uuid=key, result="'ok'", runtime=0.1)
"""


def _wait_until_known(browser: httpx.Client, wanted: int) -> int:
    """How many tasks it knows once no more come."""
    known, still, until = -1, 0, time.monotonic() + TOLD_S
    while still < 2 and time.monotonic() < until:
        answer = browser.get("/tasks/datatable", params=_TABLE | {"length": "1"})
        answer.raise_for_status()
        now = int(answer.json()["recordsTotal"])
        still = still + 1 if now == known else 0
        known = now
        if known >= wanted:
            break
        time.sleep(0.5)
    if known < 1:
        raise ServerError("flower: it has heard of no task")
    return known


def _fetch(browser: httpx.Client, path: str) -> httpx.Response:
    answer = browser.get(path)
    if answer.status_code != httpx.codes.OK:
        raise ServerError(f"Django's admin: {path} answered {answer.status_code}")
    return answer


def _log_in(browser: httpx.Client, password: str) -> None:
    form = browser.get("/admin/login/")
    found = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', form.text)
    fields = {"username": "admin", "password": password, "csrfmiddlewaretoken": found[1] if found else "", "next": "/admin/"}
    answer = browser.post("/admin/login/", data=fields, headers={"Referer": str(form.url)})
    if answer.status_code != httpx.codes.FOUND:
        raise ServerError(f"Django's admin: logging in was answered {answer.status_code}")
