"""`memory`: what the whole demo holds; and what a process holds, in shares of what it has with others (PSS)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from bench.ground import Ground
from bench.plan import Plan
from bench.report import Goal, Report, Row
from local import processes
from local.processes import ServerError

ROOT = Path(__file__).resolve().parent.parent
WEB_MB, DEMO_MB = 160, 600
READY_S = 120
_NOT_TAKEN = shutil.ignore_patterns(".venv", ".git", ".data", ".tools", "node_modules", ".*_cache", "tests", "docs")


def pss_mb(pid: int) -> float:
    """Megabytes of one process; what it shares with others counts in parts. 0 where it is gone.

    Raises:
        ServerError: this system does not tell (only Linux does).
    """
    try:
        said = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        if not Path("/proc/self/smaps_rollup").exists():
            raise ServerError("memory: this system does not tell a process's share of memory") from None
        return 0.0
    found = re.search(r"^Pss:\s+(\d+) kB", said, re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0


def bench_memory(ground: Ground, plan: Plan, report: Report) -> None:
    """A copy of this checkout plays its own demo, with data of its own, until it is ready; then every process of it is asked."""
    home = processes.temporary_folder("demo", mode=0o755)
    log = home / "demo.log"
    try:
        shutil.copytree(ROOT, home / "settle", ignore=_NOT_TAKEN)
        began = time.monotonic()
        environment = os.environ | {"DEMO_PORT": str(processes.free_port())}
        process = processes.spawn([sys.executable, "-m", "demo"], env=environment, cwd=home / "settle", log=log)
        try:
            _wait_until_ready(process, log)
            ready_s = time.monotonic() - began
            held: dict[str, float] = {}
            for one in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]:
                name = _name_of(one)
                held[name] = held.get(name, 0.0) + pss_mb(one.pid)
        finally:
            processes.stop(process, patience=timedelta(seconds=30))
    finally:
        shutil.rmtree(home, ignore_errors=True)
    whole = sum(held.values())
    parts = ", ".join(f"{name} {mb:.0f}" for name, mb in sorted(held.items(), key=lambda item: -item[1]))
    report.rows.append(
        Row(bench="memory", name="the whole demo, MB", unit="MB", n=1, p50=whole, p95=whole, max=whole, note=parts)
    )
    report.rows.append(
        Row(bench="memory", name="the demo, from start to ready, s", unit="s", n=1, p50=ready_s, p95=ready_s, max=ready_s)
    )
    report.goals.append(
        Goal(name="memory: the whole demo", wanted=f"< {DEMO_MB} MB", found=f"{whole:.0f} MB", is_met=whole < DEMO_MB)
    )


def _wait_until_ready(process: subprocess.Popen[bytes], log: Path) -> None:
    def is_ready() -> bool:
        return log.exists() and "] ready" in log.read_text(errors="replace")

    processes.wait_until(is_ready, what="the demo", process=process, log=log, timeout=timedelta(seconds=READY_S))


def _name_of(process: psutil.Process) -> str:
    try:
        line = " ".join(process.cmdline())
    except psutil.Error:
        return "ended"
    names = {"uvicorn": "web", "beat": "beat", "worker": "worker", "providers": "providers", "postgres": "postgresql"}
    names |= {"valkey": "valkey", "mongo": "mongodb", "-m demo": "demo"}
    return next((name for part, name in names.items() if part in line), "others")
