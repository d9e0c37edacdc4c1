"""`./run demo --store both`: one queue over PostgreSQL and MongoDB, and one agent id in both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from local import processes
from tests.demo.whole import PATIENCE, Demo, copy_of_the_tree

pytestmark = pytest.mark.xdist_group("whole-demo-on-both")
TWINS = ["main/support-agent-7", "ops/support-agent-7"]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    with copy_of_the_tree(tmp_path_factory.mktemp("a new")) as folder:
        started = Demo(folder, "--store", "both")
        yield started
        processes.stop(started.process)


def test_one_queue_lists_the_doubts_of_both_stores(demo: Demo) -> None:
    (main, ops) = demo.said["stores"].split(" ")
    assert main.startswith("main=postgres://")
    assert ops.startswith("ops=mongodb://")
    doubts = [item for item in demo.actions("?class=external") if item["state"] in ("interrupted", "unknown")]
    for store in ("main", "ops"):
        assert len([item for item in doubts if item["store"] == store]) >= 3
    assert sorted(f"{item['store']}/{item['agent']}" for item in doubts if item["agent"] == "support-agent-7") == TWINS


def test_the_commands_know_both_stores(demo: Demo) -> None:
    checked = demo.run("check_stores")

    assert (checked.returncode, checked.stderr) == (0, "")
    (main, ops) = checked.stdout.splitlines()  # no warning beside them
    assert main.startswith("main: PostgreSQL ")
    assert ops.startswith("ops: MongoDB ")
    assert main.endswith("; can be settled")
    assert ops.endswith("; can be settled")


def test_nothing_of_it_is_for_other_users_to_read(demo: Demo) -> None:
    assert demo.telling_command_lines("on-both/mongo/password") == []
    for folder in (".data", ".data/on-both", ".data/on-both/world", ".data/on-both/logs", ".data/on-both/mongo"):
        assert (demo.folder / folder).stat().st_mode & 0o066 == 0, folder


def of_agents(tickets: Path) -> list[str]:
    """What the demo's runs do meanwhile is left out."""
    return [line for line in tickets.read_text().splitlines() if "Refund of order" not in line]


def test_an_id_of_two_agents_is_refused_and_its_store_tells_them_apart(demo: Demo) -> None:
    tickets = demo.folder / ".data/on-both/world/tickets.jsonl"
    before = of_agents(tickets)

    settled = demo.run("settle", "ops", "support-agent-7", "1", "done", "--reason", "T-1 is in the tracker", "--user", "demo")
    refused = demo.run("demo", "--resume", "support-agent-7")
    resumed = demo.run("demo", "--resume", "ops/support-agent-7")

    assert (settled.returncode, settled.stdout.split()[0]) == (0, "written"), settled.stderr
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert all(twin in refused.stderr for twin in TWINS)
    assert resumed.returncode == 0, resumed.stderr
    assert "(settled after a crash: done; operator demo: T-1 is in the tracker)" in resumed.stdout
    assert of_agents(tickets) == before
    assert [f"{item['store']}/{item['agent']}" for item in demo.actions() if item["agent"] == "support-agent-7"] == TWINS[:1]


def test_told_to_stop_it_ends_everything_and_keeps_its_data_apart(demo: Demo, tmp_path: Path) -> None:
    processes.wait_until(lambda: bool(demo.actions("?tool=send_receipt&state=done")), what="the receipt's end", timeout=PATIENCE)
    assert demo.run("verify_audit").stdout.splitlines()[-1].startswith("intact: ")
    file = tmp_path / "settled.jsonl"
    exported = demo.run("export_audit", "--format", "jsonl", "--kind", "settled", "--output", str(file))
    assert exported.returncode == 0, exported.stderr
    assert len(file.read_text().splitlines()) == 2  # a person's and a resolver's

    assert demo.end() == (0, [])

    assert not demo.file.exists()
    assert (demo.folder / ".data/on-both/mongo/data").is_dir()
    assert not (demo.folder / ".data/postgres").exists()  # the place of another --store
