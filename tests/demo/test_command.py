"""`./run demo` where it cannot start: one clear line, and the exit code of the contract."""

from __future__ import annotations

import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from demo.__main__ import doubtful_agent, require_free, resume, the_agent
from demo.home import Home, Refused
from demo.stage import ROOT, inherited
from tests.recall_writer import RecallWriter


def demo(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "demo", *arguments]
    return subprocess.run(line, cwd=ROOT, env=inherited() | environment, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    "arguments", [["--nonsense"], ["--store", "oracle"], ["--resume"], ["--fresh", "--resume", "ops-agent-1"]]
)
def test_wrong_usage_is_2(arguments: list[str]) -> None:
    refused = demo(*arguments)
    assert (refused.returncode, refused.stdout) == (2, "")


def test_a_port_that_is_no_number_is_wrong_usage_and_named() -> None:
    refused = demo(DEMO_PORT="http")
    assert refused.returncode == 2
    assert "DEMO_PORT is 'http'" in refused.stderr


BOTH = {"main": {"support-agent-7", "billing-agent-2"}, "ops": {"support-agent-7", "ops-agent-1"}}


@pytest.mark.parametrize(
    ("wanted", "store"),
    [("billing-agent-2", "main"), ("ops-agent-1", "ops"), ("ops/support-agent-7", "ops"), ("main/support-agent-7", "main")],
)
def test_an_agent_is_named_by_its_id_or_with_its_store(wanted: str, store: str) -> None:
    part = the_agent(wanted, BOTH)
    assert (part.store, part.agent) == (store, wanted.rpartition("/")[2])


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("support-agent-7", "support-agent-7 is the id of 2 agents; say main/support-agent-7 or ops/support-agent-7"),
        (
            "ops/billing-agent-2",
            "no agent 'ops/billing-agent-2' here; there are main/billing-agent-2, main/support-agent-7, ops/",
        ),
        ("support-agent-3", "no agent 'support-agent-3' here"),
    ],
)
def test_an_agent_that_is_nobody_or_two_is_refused_with_those_that_there_are(wanted: str, said: str) -> None:
    with pytest.raises(Refused, match=said):
        the_agent(wanted, BOTH)


def test_where_there_is_one_store_agents_are_told_without_it() -> None:
    with pytest.raises(Refused, match=r"there are ops-agent-1, support-agent-7$"):
        the_agent("x", {"main": {"support-agent-7", "ops-agent-1", "somebody-else"}})


def test_the_agent_to_try_is_one_in_doubt_of_whichever_shift_and_not_the_one_at_work(pg_url: str) -> None:
    with RecallWriter(pg_url) as records:
        records.create()
        records.action("ops-agent-4", 1, tool="open_ticket", status="done")
        records.action("outreach-agent-1", 1, tool="send_email")
        records.action("support-agent-47", 1, tool="send_email")

    assert doubtful_agent({"main": pg_url}) == "support-agent-47"


def test_an_agent_of_another_store_than_the_running_demos_is_not_resumed(tmp_path: Path) -> None:
    home = Home(tmp_path)
    stores = "main=postgres://c@127.0.0.1:1/records ops=mongodb://c:p@127.0.0.1:1/records?authSource=admin"
    with home.held():
        home.tell(url="", username="", password="", token="", database_url="", stores=stores)
        with pytest.raises(Refused, match="the running demo is of --store both, not mongo"):
            resume(home, "ops-agent-1", store="mongo")


def test_a_port_that_is_taken_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(Refused, match="taken; set DEMO_PORT"):
        require_free(taken.getsockname()[1], patience=timedelta(0))
