"""recall-langgraph end to end: killed inside a tool, settled by us, carried on by a new process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from actions import queries
from actions.keys import action_key
from actions.records import ActionEnd, ActionRef, ActionState, ActionStatus
from actions.store.base import ActionStore
from tests.interop.decisions import an_end, chain_of, decide
from tests.interop.driver import wait_until_true

pytestmark = pytest.mark.interop

ROOT = Path(__file__).parents[2]


class Agent:
    """Processes of one agent, one after the other, and what they did to the world."""

    def __init__(self, url: str, name: str, folder: Path) -> None:
        self.name = name
        self._effects = folder / f"{name}.jsonl"
        self._line = [
            sys.executable,
            "-m",
            "tests.interop.killable_agent",
            "--url",
            url,
            "--agent",
            name,
            "--effects",
            str(self._effects),
        ]

    def die(self) -> None:
        ended = subprocess.run([*self._line, "--dies"], cwd=ROOT, capture_output=True, text=True, timeout=180)
        assert ended.returncode == -signal.SIGKILL, ended.stderr

    def carry_on(self) -> dict[str, Any]:
        ended = subprocess.run(self._line, cwd=ROOT, capture_output=True, text=True, timeout=180)
        assert ended.returncode == 0, ended.stderr
        return dict(json.loads(ended.stdout.splitlines()[-1]))

    def emails(self) -> list[str]:
        """The keys under which emails were sent."""
        return [json.loads(line)["key"] for line in self._effects.read_text().splitlines()]


def settled_life(url: str, store: ActionStore, folder: Path, name: str, end: ActionEnd) -> tuple[Agent, dict[str, Any]]:
    """Killed inside `send_email`, settled with this end, carried on."""
    agent = Agent(url, name, folder)
    agent.die()
    ref = ActionRef("main", name, 1)
    wait_until_true(lambda: queries.get_action(store, ref).state is ActionState.INTERRUPTED, "the dead agent's lease to expire")
    item = queries.get_action(store, ref)
    assert item.action is not None
    assert item.action.key == action_key(name, 1)
    assert agent.emails() == [item.action.key]
    decide(store, name, 1, end)
    return agent, agent.carry_on()


def test_a_call_settled_as_done_is_not_repeated_and_one_settled_as_failed_is(
    url: str, store: ActionStore, tmp_path: Path
) -> None:
    done = an_end(ActionStatus.DONE, reason="found in the Sent folder")
    failed = an_end(ActionStatus.FAILED, reason="not in the Sent folder", error="never sent")
    with ThreadPoolExecutor() as pool:  # two agents at once, for the sake of the second core
        lives = [
            pool.submit(settled_life, url, store, tmp_path, name, end)
            for name, end in (("mail-done", done), ("mail-failed", failed))
        ]
        (kept, knew), (repeated, learned) = (life.result() for life in lives)

    assert knew["calls"] == []
    assert kept.emails() == [action_key("mail-done", 1)]
    assert "(settled after a crash: done; operator ana: found in the Sent folder) done" in knew["briefing"]
    assert learned["calls"] == ["send_email"]
    assert repeated.emails() == [action_key("mail-failed", 1), action_key("mail-failed", 2)]
    assert "(settled after a crash: failed; operator ana: not in the Sent folder) failed: never sent" in learned["briefing"]
    assert knew["open"] == learned["open"] == []
    again = queries.get_action(store, ActionRef("main", "mail-failed", 2))
    assert again.state is ActionState.DONE
    assert chain_of(store).is_intact


def test_without_a_decision_the_next_process_leaves_the_call_open(url: str, store: ActionStore, tmp_path: Path) -> None:
    """What the console is for: the careful agent can only say that it does not know."""
    agent = Agent(url, "mail-unsettled", tmp_path)
    agent.die()
    ref = ActionRef("main", "mail-unsettled", 1)
    wait_until_true(lambda: queries.get_action(store, ref).state is ActionState.INTERRUPTED, "the dead agent's lease to expire")

    said = agent.carry_on()

    assert said["calls"] == []
    assert said["open"] == [1]
    assert len(agent.emails()) == 1
    assert queries.get_action(store, ref).state is ActionState.UNKNOWN
    decide(store, "mail-unsettled", 1, an_end(ActionStatus.DONE))
    assert agent.carry_on()["open"] == []
    assert len(agent.emails()) == 1
