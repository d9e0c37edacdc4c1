"""An agent of ours that can be told to die inside a tool: `python -m tests.agents.killable`; what it prints is what recall-langgraph's twin
(tests/interop/killable_agent.py) prints, whose careful model and email it has.

With `--plain` there is no graph: a script calls an idempotent and an external tool, each unless a turn or an open action speaks of it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from actions.records import Action
from actions.store import open_store
from agents.calls import still_open
from agents.harness import DurableAgent, End, Resolver
from agents.tools import durable, settle

TTL = timedelta(seconds=2)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--agent", required=True)
    parser.add_argument("--effects", required=True, type=Path)
    parser.add_argument("--dies", nargs="?", const="send_email", default="")
    parser.add_argument("--resolver", action="store_true")
    parser.add_argument("--plain", action="store_true")
    args = parser.parse_args(argv)
    os.environ["LANGSMITH_TRACING"] = os.environ["LANGCHAIN_TRACING_V2"] = "false"
    store = open_store(args.url, name="main")
    resolver = sent_folder(args.effects) if args.resolver else None
    with DurableAgent.resume(store, args.agent, lease_ttl=TTL) as agent:  # type: ignore[arg-type]  # PostgreSQL's and Mongo's are
        run = run_plainly if args.plain else run_in_a_graph
        said = run(agent, args.effects, args.dies, resolver)
        said["open"] = [action.seq for action in agent.pending_actions()]
        said["still_open"] = still_open(agent)
    print(json.dumps(said))
    store.close()
    return 0


def run_plainly(agent: DurableAgent, effects: Path, dies: str, resolver: Resolver | None) -> dict[str, Any]:
    tools = durable(tools_over(effects, dies), classes={"save_invoice": "idempotent", "send_email": "external"}, agent=agent)
    settle(tools, agent=agent, resolver=resolver)
    briefing = agent.briefing.text
    called = []
    for tool, given in zip(tools, ({"invoice": "I-1"}, {"to": "ann@example.com", "subject": "Refund"}), strict=True):
        name = tool.__name__
        told = [turn.content for turn in agent.recent_turns(200) if turn.name == name]
        is_open = any(action.tool == name for action in agent.pending_actions())
        if not is_open and not (told and not told[-1].startswith("failed")):
            called.append(name)
            tool(**given)
    return {"briefing": briefing, "calls": called}


def run_in_a_graph(agent: DurableAgent, effects: Path, dies: str, resolver: Resolver | None) -> dict[str, Any]:
    from langchain.agents import create_agent  # here, so that a plain script starts without it

    from agents.langgraph import GraphHooks, durable_tools
    from tests.interop.killable_agent import CarefulModel

    tools = durable_tools(agent, tools_over(effects, dies)[1:], {"send_email": "external"}, resolver=resolver)
    hooks = GraphHooks(agent, tools)
    graph = create_agent(CarefulModel(), tools, middleware=[hooks.middleware()])
    answer = graph.invoke({"messages": [("user", "Tell Ann about her refund.")]})
    calls = [call["name"] for message in answer["messages"] for call in getattr(message, "tool_calls", [])]
    return {"briefing": agent.briefing.text, "calls": calls}


def tools_over(effects: Path, dies: str) -> Sequence[Callable[..., str]]:
    def happens(tool: str, key: str, **what: str) -> str:
        with effects.open("a") as file:
            file.write(json.dumps({**what, "tool": tool, "key": key}) + "\n")
        if dies == tool:
            os.kill(os.getpid(), signal.SIGKILL)
        return "sent"

    def save_invoice(invoice: str, idempotency_key: str) -> str:
        """Save an invoice."""
        return happens("save_invoice", idempotency_key, invoice=invoice)

    def send_email(to: str, subject: str, idempotency_key: str) -> str:
        """Send an email."""
        return happens("send_email", idempotency_key, to=to, subject=subject)

    return [save_invoice, send_email]


def sent_folder(effects: Path) -> Resolver:
    def look(action: Action) -> End:
        keys = [json.loads(line)["key"] for line in effects.read_text().splitlines()]
        if action.key in keys:
            return End("done", "sent", resolution="found in the Sent folder")
        return End("failed", error="never sent", resolution="not in the Sent folder")

    return look


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
