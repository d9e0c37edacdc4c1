"""An agent's process of its own: `python -m tests.store.agent_process URL AGENT`. Begins a call, says so, waits for a line, and ends it."""

from __future__ import annotations

import sys

from actions.errors import ActionsError
from actions.records import NewTurn
from actions.store import open_agent_store
from agents.harness import DurableAgent


def main(url: str, agent_id: str) -> None:
    agent = DurableAgent.resume(open_agent_store(url), agent_id, holder="frozen:1:aaaa")
    action = agent.begin_action("send_email", {"to": "ann"}, "external")
    print("begun", flush=True)
    sys.stdin.readline()
    for gesture in (
        lambda: agent.end_action(action, "done", turn=NewTurn("tool", "mine")),
        lambda: agent.begin_action("send_email", {"to": "ben"}, "external"),
        lambda: agent.record_turn("user", "late"),
    ):
        try:
            gesture()
            print("written", flush=True)
        except ActionsError as exc:
            print(type(exc).__name__, agent.is_lost, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
