"""A whole demo, started by `./run demo` on a copy of the tree in a path with a space, for the tests that look at it from outside."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import psutil

from local import postgres, processes

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = timedelta(seconds=120)
"""Of whoever waits for what a worker of the demo does."""
SETTINGS = (
    "DATABASE_URL",
    "ACTION_STORES",
    "CELERY_BROKER_URL",
    "DEBUG",
    "DEMO",
    "SECRET_KEY",
    "SECRETS_KEY",
    "AUDIT_SIGNING_KEY",
)


class Demo:
    """A demo that was started here, and what it wrote for others."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.port = processes.free_port()
        self.environment = {k: v for k, v in os.environ.items() if k not in SETTINGS} | {"DEMO_PORT": str(self.port)}
        self.log = folder / "demo.log"
        self.process = processes.spawn([folder / "run", "demo", *arguments], env=self.environment, cwd=folder, log=self.log)
        self.file = folder / ".data/demo.json"
        processes.wait_until(
            self.file.exists, what="the demo", process=self.process, log=self.log, timeout=timedelta(seconds=300)
        )
        self.said: dict[str, str] = json.loads(self.file.read_text())

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.folder / "run", *arguments], env=self.environment, capture_output=True, text=True, check=False, timeout=180
        )

    def actions(self, query: str = "") -> list[dict[str, Any]]:
        """Of its agents: what its runs do meanwhile is left out."""
        answer = httpx.get(
            f"{self.said['url']}/api/v1/actions{query}",
            headers={"Authorization": f"Bearer {self.said['token']}"},
            trust_env=False,
            timeout=60,
        )
        items: list[dict[str, Any]] = answer.raise_for_status().json()["items"]
        return [item for item in items if not item["agent"].startswith("run-")]

    def action(self, item: dict[str, Any]) -> dict[str, Any]:
        return self._call("GET", item)

    def ask(self, item: dict[str, Any]) -> tuple[dict[str, Any], int]:
        """Ask now; answers the action and how many verdicts there were before."""
        before = len(self.action(item)["verdicts"])
        self._call("POST", item, "/resolve")
        return item, before

    def verdict_after(self, item: dict[str, Any], before: int) -> dict[str, Any]:
        processes.wait_until(
            lambda: len(self.action(item)["verdicts"]) > before, what=f"a verdict about {item['agent']}", timeout=PATIENCE
        )
        verdict: dict[str, Any] = self.action(item)["verdicts"][-1]
        return verdict

    def _call(self, method: str, item: dict[str, Any], more: str = "") -> dict[str, Any]:
        answer = httpx.request(
            method,
            f"{self.said['url']}/api/v1/actions/{item['store']}/{item['agent']}/{item['seq']}{more}",
            headers={"Authorization": f"Bearer {self.said['token']}"},
            trust_env=False,
            timeout=60,
        )
        answer.raise_for_status()
        return answer.json() if answer.content else {}

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def telling_command_lines(self, *kept: str) -> list[str]:
        """Of its processes those whose command lines, which everybody can read, hold a secret; `kept` are files of one secret each."""
        drawn = json.loads(next((self.folder / ".data").rglob("demo.secrets.json")).read_text())
        outside = json.loads(next((self.folder / ".data").rglob("outside.json")).read_text())
        drawn |= {name: outside[name] for name in ("mail_password", "payments_key", "tickets_token")}
        secrets = {*drawn.values(), self.said["token"], self.said["password"]}
        secrets |= {(self.folder / ".data" / file).read_text() for file in kept}
        lines = [command_line(process) for process in self.descendants()]
        return [line for line in lines if any(secret in line for secret in secrets) or ("://" in line and "@" in line)]

    def end(self) -> tuple[int, list[str]]:
        """Tell it to stop; its exit code, and which of its processes are still there a little later."""
        started = self.descendants()
        assert started
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(120)
        _, alive = psutil.wait_procs(started, timeout=60)
        return code, [command_line(process)[:200] for process in alive]


def command_line(process: psutil.Process) -> str:
    """Nothing of one that has just ended: a database's connections come and go."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


@contextmanager
def copy_of_the_tree(parent: Path) -> Iterator[Path]:
    """As a newcomer has it, with our environment; whatever a demo kept there is removed afterwards."""
    folder = parent / "check out"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    (folder / ".venv").symlink_to(ROOT / ".venv")
    try:
        yield folder
    finally:
        for data in (".data/postgres", ".data/on-both/postgres"):
            postgres.remove_data(folder / data)  # as root they may lie elsewhere
