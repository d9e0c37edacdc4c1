"""`./run demo` as a newcomer types it: on a copy of the tree in a path with a space, from nothing to a settled call and its agent's reply."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from local import postgres, processes

ROOT = Path(__file__).resolve().parents[2]
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

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = processes.free_port()
        self.environment = {k: v for k, v in os.environ.items() if k not in SETTINGS} | {"DEMO_PORT": str(self.port)}
        self.log = folder / "demo.log"
        self.process = processes.spawn([folder / "run", "demo"], env=self.environment, cwd=folder, log=self.log)
        self.file = folder / ".data/demo.json"
        processes.wait_until(
            self.file.exists, what="the demo", process=self.process, log=self.log, timeout=timedelta(seconds=150)
        )
        self.said: dict[str, str] = json.loads(self.file.read_text())

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.folder / "run", *arguments], env=self.environment, capture_output=True, text=True, check=False, timeout=90
        )

    def actions(self, query: str = "") -> list[dict[str, Any]]:
        answer = httpx.get(
            f"{self.said['url']}/api/v1/actions{query}",
            headers={"Authorization": f"Bearer {self.said['token']}"},
            trust_env=False,
            timeout=20,
        )
        items: list[dict[str, Any]] = answer.raise_for_status().json()["items"]
        return items

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    folder = tmp_path_factory.mktemp("a new") / "check out"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    (folder / ".venv").symlink_to(ROOT / ".venv")
    started = Demo(folder)
    yield started
    processes.stop(started.process)
    postgres.remove_data(folder / ".data/postgres")  # as root they may lie elsewhere


@pytest.mark.xdist_group("whole-demo")
def test_the_demo_says_where_it_is_and_has_calls_in_doubt(demo: Demo) -> None:
    assert set(demo.said) == {"url", "username", "password", "token", "database_url", "stores"}
    assert demo.file.stat().st_mode & 0o777 == 0o600
    doubts = [item for item in demo.actions("?class=external") if item["state"] in ("interrupted", "unknown")]
    assert len(doubts) >= 3
    assert {"send_email", "create_payment", "open_ticket"} <= {item["tool"] for item in doubts}
    assert [item["tool"] for item in demo.actions("?state=in_flight")] == ["send_email"]


@pytest.mark.xdist_group("whole-demo")
def test_nothing_of_it_is_for_other_users_to_read(demo: Demo) -> None:
    drawn = json.loads((demo.folder / ".data/demo.secrets.json").read_text())
    secrets = {*drawn.values(), demo.said["token"], demo.said["password"]}
    lines = [" ".join(process.cmdline()) for process in demo.descendants()]
    assert not [line for line in lines if any(secret in line for secret in secrets)]
    assert not any("://" in line and "@" in line for line in lines)
    # Nobody else can list `.data`; root's server, which runs as `nobody`, passes through it to its own folder.
    assert (demo.folder / ".data").stat().st_mode & 0o066 == 0
    for folder in (".data/logs", ".data/world"):
        assert (demo.folder / folder).stat().st_mode & 0o777 == 0o700, folder


@pytest.mark.xdist_group("whole-demo")
def test_beat_is_a_process_of_its_own(demo: Demo) -> None:
    lines = [process.cmdline() for process in psutil.Process(demo.process.pid).children()]
    assert [line for line in lines if "beat" in line]
    assert not [line for line in lines if "worker" in line and ("-B" in line or "--beat" in line)]


@pytest.mark.xdist_group("whole-demo")
def test_a_settled_call_is_in_the_agents_history_and_not_repeated(demo: Demo) -> None:
    doubt = next(item for item in demo.actions() if item["tool"] == "create_payment")
    ledger = demo.folder / ".data/world/payments.jsonl"

    settled = demo.run(
        "settle", doubt["store"], doubt["agent"], str(doubt["seq"]), "done", "--reason", "seen at the bank", "--user", "demo"
    )
    before = ledger.read_text()
    resumed = demo.run("demo", "--resume", doubt["agent"])

    assert settled.returncode == 0, settled.stderr
    assert settled.stdout.split()[0] == "written"
    assert resumed.returncode == 0, resumed.stderr
    assert "(settled after a crash: done; operator demo: seen at the bank)" in resumed.stdout
    assert ledger.read_text() == before
    assert demo.run("verify_audit").stdout.splitlines()[-1].startswith("intact: ")


@pytest.mark.xdist_group("whole-demo")
def test_a_second_demo_is_refused_and_the_first_one_goes_on(demo: Demo) -> None:
    second = demo.run("demo")

    assert second.returncode == 1
    assert len(second.stderr.strip().splitlines()) == 1
    assert demo.process.poll() is None
    assert demo.actions()


@pytest.mark.xdist_group("whole-demo")
def test_told_to_stop_it_ends_everything_that_it_started(demo: Demo) -> None:
    started = demo.descendants()
    assert started

    demo.process.send_signal(signal.SIGTERM)

    assert demo.process.wait(60) == 0
    gone, alive = psutil.wait_procs(started, timeout=20)
    assert (len(gone), [" ".join(process.cmdline())[:200] for process in alive]) == (len(started), [])
    assert not demo.file.exists()
