"""`audit`: a long history, verified, exported and verified again offline, each by one process; and its pages, filter by filter."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from bench.chain import fill
from bench.ground import Ground
from bench.pages import ROOT, prepare_console, require_ok, served, settings
from bench.plan import Plan
from bench.report import Goal, Report, Row, make_row, measure
from local.processes import ServerError

GOAL_MB = 200
DATABASE = "console_audit"  # `pages` has its own, and its person in it
FILTERS: Mapping[str, Mapping[str, str]] = {
    "the newest": {},
    "of an agent": {"agent": "agent-7"},
    "of an agent with few": {"agent": "agent-rare"},
    "of a person": {"actor": "operator ana"},
    "of a person with few": {"actor": "operator rare"},
    "of a kind": {"kind": "waiting"},
    "of a kind with few": {"kind": "evicted"},
    "by outcome": {"outcome": "failed"},
    "since a day": {"since": "2026-11-28"},
    "of a day long past": {"since": "2026-11-27T00:00", "until": "2026-11-28"},
    "a text that many say": {"text": "sent folder"},
    "a text that nobody says": {"text": "no such words"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One finished process: what it said last, how long it took, and the most memory that it ever held."""

    last_line: str
    seconds: float
    peak_mb: float


def bench_audit(ground: Ground, plan: Plan, report: Report) -> None:
    """Each walk is the command that an auditor runs, in a process of its own: its time and memory are the process's, start included."""
    with ground.store() as store:
        head = fill(ground.url, store.read_head(), plan.entries)
    count = head.number
    prepare_console(ground, DATABASE)
    environment = settings(ground, "http://127.0.0.1", DATABASE)
    out = ground.log.with_name("history.jsonl")
    walks: dict[str, list[str]] = {
        "verify_audit": ["manage.py", "verify_audit", "--store", "main"],
        "export_audit": ["manage.py", "export_audit", "--format", "jsonl", "--output", str(out), "--store", "main"],
        "offline: actions.store.audit verify": ["-m", "actions.store.audit", "verify", str(out)],
    }
    try:
        for name, line in walks.items():
            ran = run(line, environment)
            report.rows.append(_row(f"{name}, {count:,} entries", ran, count))
            report.goals.append(
                Goal(
                    name=f"audit: peak memory of {name} at {count:,} entries",
                    wanted=f"< {GOAL_MB} MB",
                    found=f"{ran.peak_mb:.0f} MB",
                    is_met=ran.peak_mb < GOAL_MB,
                )
            )
    finally:
        for path in (out, Path(f"{out}.manifest.json")):
            path.unlink(missing_ok=True)
    with served(ground, DATABASE) as console:
        for name, query in FILTERS.items():
            report.rows.append(_page(console.browser, name, query, plan.reads))
        report.rows.append(_page(console.browser, "deep inside", {"cursor": cursor_at(count // 2)}, plan.reads))


_LAUNCHER = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(code)
"""
"""Between us and what is measured: a process's peak begins, on Linux, with what its parent held."""


def run(arguments: Sequence[str], environment: Mapping[str, str]) -> Ran:
    """One Python process to its end.

    Raises:
        ServerError: it failed; the message is its last line.
    """
    began = time.perf_counter()
    line = [sys.executable, "-I", "-S", "-c", _LAUNCHER, sys.executable, *arguments]
    ran = subprocess.run(line, env=dict(environment), cwd=ROOT, capture_output=True, text=True, check=False)
    lines, told = ran.stdout.strip().splitlines(), ran.stderr.strip().splitlines()
    if ran.returncode != 0:
        raise ServerError(f"{' '.join(arguments[:2])} failed: {(lines[-1:] or told[-2:-1] or [''])[0][:200]}")
    return Ran(last_line=lines[-1] if lines else "", seconds=time.perf_counter() - began, peak_mb=int(told[-1]) / 1024)


def cursor_at(number: int) -> str:
    """Where a page of the history goes on below this entry, as its link says it."""
    from console.history import write_cursor

    return write_cursor({"main": number, "console": 1})


def _row(name: str, ran: Ran, count: int) -> Row:
    note = f"{count / ran.seconds:,.0f} entries/s, peak {ran.peak_mb:.0f} MB"
    return make_row("audit", name, [ran.seconds * 1000], note=note)


def _page(browser: httpx.Client, name: str, query: Mapping[str, str], times: int) -> Row:
    def fetch() -> httpx.Response:
        return browser.get("/history/", params=dict(query))

    require_ok(fetch())
    return make_row("audit", f"page: {name}", measure(fetch, times=times))
