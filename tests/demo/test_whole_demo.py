"""`./run demo` as a newcomer types it: on a copy of the tree in a path with a space, from nothing to a settled call and its agent's reply."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from local import processes
from tests.demo.whole import PATIENCE, Demo, command_line, copy_of_the_tree

pytestmark = pytest.mark.xdist_group("whole-demo")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    with copy_of_the_tree(tmp_path_factory.mktemp("a new")) as folder:
        started = Demo(folder)
        yield started
        processes.stop(started.process)


def test_the_demo_says_where_it_is_and_has_calls_in_doubt(demo: Demo) -> None:
    people = {"username", "password", "second_username", "second_password"}
    assert set(demo.said) == {*people, "url", "token", "database_url", "stores"}
    assert demo.file.stat().st_mode & 0o777 == 0o600
    doubts = [item for item in demo.actions("?class=external") if item["state"] in ("interrupted", "unknown")]
    assert len(doubts) >= 3
    assert {"send_email", "create_payment", "open_ticket"} <= {item["tool"] for item in doubts}
    assert [item["tool"] for item in demo.actions("?state=in_flight")] == ["send_email"]


def test_nothing_of_it_is_for_other_users_to_read(demo: Demo) -> None:
    assert demo.telling_command_lines() == []
    # Nobody else can list `.data`; root's server, which runs as `nobody`, passes through it to its own folder.
    assert (demo.folder / ".data").stat().st_mode & 0o066 == 0
    for folder in (".data/logs", ".data/world"):
        assert (demo.folder / folder).stat().st_mode & 0o777 == 0o700, folder


def test_beat_is_a_process_of_its_own(demo: Demo) -> None:
    lines = [command_line(process).split() for process in psutil.Process(demo.process.pid).children()]
    assert [line for line in lines if "beat" in line]
    assert not [line for line in lines if "worker" in line and ("-B" in line or "--beat" in line)]


def of_this(file: Path, text: str) -> list[str]:
    """The effects that speak of it; the demo's runs go on meanwhile."""
    return [line for line in file.read_text().splitlines() if json.dumps(text) in line]


def test_a_settled_call_is_in_the_agents_history_and_not_repeated(demo: Demo) -> None:
    doubt = next(item for item in demo.actions() if item["tool"] == "create_payment")
    reference = json.loads(doubt["args"])["reference"]
    ledger = demo.folder / ".data/world/payments.jsonl"

    settled = demo.run(
        "settle", doubt["store"], doubt["agent"], str(doubt["seq"]), "done", "--reason", "seen at the bank", "--user", "demo"
    )
    before = of_this(ledger, reference)
    resumed = demo.run("demo", "--resume", doubt["agent"])

    assert settled.returncode == 0, settled.stderr
    assert settled.stdout.split()[0] == "written"
    assert resumed.returncode == 0, resumed.stderr
    assert "(settled after a crash: done; operator demo: seen at the bank)" in resumed.stdout
    assert of_this(ledger, reference) == before
    assert demo.run("verify_audit").stdout.splitlines()[-1].startswith("intact: ")


def test_each_tool_has_somebody_to_ask_and_a_receipt_is_settled_by_that_alone(demo: Demo) -> None:
    open_calls = [item for item in demo.actions("?class=external") if item["state"] in ("interrupted", "unknown")]
    asked = [demo.ask(one) for one in open_calls if one["tool"] in ("send_email", "create_payment", "open_ticket")]

    verdicts = {(one["agent"], one["tool"]): demo.verdict_after(one, before) for one, before in asked}

    assert {tool for _, tool in verdicts} == {"send_email", "create_payment", "open_ticket"}
    found = {agent for (agent, _), verdict in verdicts.items() if verdict["grade"] == "exact"}
    had_an_effect = {"support-agent-7", "billing-agent-2", "billing-agent-9", "ops-agent-4"}
    assert found == had_an_effect & {agent for agent, _ in verdicts}  # a test settled one before
    assert len(found) >= 3
    assert {agent for (agent, _), verdict in verdicts.items() if verdict["outcome"] == "done"} == found
    processes.wait_until(lambda: bool(demo.actions("?tool=send_receipt&state=done")), what="the receipt's end", timeout=PATIENCE)
    (settled,) = demo.actions("?tool=send_receipt&state=done")
    receipt = demo.action(settled)
    assert settled["agent"] == "receipt-agent-8"
    assert receipt["resolution"].startswith("resolver sent-folder: found by our key")
    # Nothing else was settled without a person.
    assert {agent for agent, _ in verdicts} <= {item["agent"] for item in demo.actions("?class=external")}


def test_a_second_demo_is_refused_and_the_first_one_goes_on(demo: Demo) -> None:
    second = demo.run("demo")

    assert second.returncode == 1
    assert len(second.stderr.strip().splitlines()) == 1
    assert demo.process.poll() is None
    assert demo.actions()


def test_told_to_stop_it_ends_everything_that_it_started(demo: Demo) -> None:
    assert demo.end() == (0, [])
    assert not demo.file.exists()
