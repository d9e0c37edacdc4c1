"""An agent that lives, cannot tell what became of its calls, and asks the console: `python -m tests.agents.live_agent`.

It says one JSON line for each line that it is told: first which calls it left open, then what its reconcile closed, then what a second one did.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from agents.console_resolver import console_resolver
from tests.interop.driver import backend_of

CALLS = ("send_email", "create_payment", "open_ticket")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser()
    for name in ("kind", "url", "agent", "console", "token"):
        parser.add_argument(f"--{name}", required=True)
    args = parser.parse_args(argv)
    resolver = console_resolver(args.console, args.token, timeout_s=60)
    with KINDS[args.kind](args, resolver) as (agent, reconcile):
        seqs = []
        for tool in CALLS:
            action = begin(args.kind, agent, tool)
            agent.end_action(action.seq, "unknown", resolution="the connection was lost")
            seqs.append(action.seq)
        say({"open": seqs})
        sys.stdin.readline()
        # One of them it finds out about itself, and not as the operator did.
        agent.end_action(seqs[2], "failed", error="the tracker says no")
        closed = reconcile()
        turns = [(turn.name, turn.content, turn.brief) for turn in agent.recent_turns(10)]
        say(
            {
                "closed": [(one.seq, str(one.status), one.result, one.resolution) for one in closed],
                "open": [one.seq for one in agent.pending_actions()],
                "turns": turns,
            }
        )
        sys.stdin.readline()
    return 0


def begin(kind: str, agent: Any, tool: str) -> Any:
    args = {"to": "ann@example.com", "note": "\u00e9 <b>&", "amount": 12}
    return agent.begin_action(tool, "external", args) if kind == "recall" else agent.begin_action(tool, args, "external")


@contextmanager
def recalls(args: argparse.Namespace, resolver: Any) -> Iterator[tuple[Any, Any]]:
    """recall-langgraph, as it is installed."""
    from recall_langgraph import RecallResume

    with RecallResume(args.agent, backend=backend_of(args.url), backend_url=args.url, lease_ttl=60, resolver=resolver) as resume:
        yield resume.agent, lambda: resume.settle().closed


@contextmanager
def ours(args: argparse.Namespace, resolver: Any) -> Iterator[tuple[Any, Any]]:
    from actions.store import open_agent_store
    from agents.harness import DurableAgent

    store = open_agent_store(args.url)
    with DurableAgent.resume(store, args.agent) as agent:
        yield agent, lambda: agent.reconcile(resolver)
    store.close()


KINDS = {"recall": recalls, "ours": ours}


def say(what: Any) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
