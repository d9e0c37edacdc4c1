"""A real process of an agent that stands still past its lease, is taken over, and goes on: it writes nothing more."""

from __future__ import annotations

import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from actions.store import open_agent_store
from agents.harness import DurableAgent, End
from local.processes import wait_until
from tests.mongo_writer import MongoWriter
from tests.recall_writer import RecallWriter
from tests.store.conftest import with_option

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("kind", ["postgres", "mongo"])
def test_a_frozen_process_that_was_taken_over_writes_nothing_more(kind: str, request: pytest.FixtureRequest) -> None:
    address = request.getfixturevalue({"postgres": "records_url", "mongo": "documents_url"}[kind])
    url = with_option(address, f"collection=c{uuid4().hex[:12]}")
    store = open_agent_store(url)
    store.create_records()
    command = [sys.executable, "-m", "tests.store.agent_process", url, "agent"]
    with (
        {"postgres": RecallWriter, "mongo": MongoWriter}[kind](url) as recall,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as frozen,
    ):
        assert frozen.stdin is not None
        assert frozen.stdout is not None
        try:
            assert frozen.stdout.readline() == "begun\n"
            frozen.send_signal(signal.SIGSTOP)
            stat = Path(f"/proc/{frozen.pid}/stat")
            wait_until(
                lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", what="the stop", timeout=timedelta(seconds=60)
            )
            recall.lease("agent", "frozen:1:aaaa", 1, "expired")
            with DurableAgent.resume(store, "agent", resolver=lambda action: End("failed", error="bounced")) as taken_over:
                taken_over.record_turn("user", "and now?")
                before = {key: recall.metadata_of(key) for key in recall.record_ids()}

                frozen.send_signal(signal.SIGCONT)
                frozen.stdin.write("\n")
                frozen.stdin.close()

                assert frozen.stdout.read().split() == ["LeaseLost", "True"] * 3
                assert {key: recall.metadata_of(key) for key in recall.record_ids()} == before
                assert recall.lease_of("agent") == (taken_over.holder, 2, "live")
            assert [turn.content for turn in taken_over.recent_turns()] == ["failed: bounced", "and now?"]
        finally:
            frozen.kill()
    store.close()
