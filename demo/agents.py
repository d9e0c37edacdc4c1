"""One of the demo's agents: `python -m demo.agents run --agent ID --world DIR --script NAME`, and DEMO_RECORDS_URL.

A real LangGraph agent whose calls Recall records on PostgreSQL or MongoDB; only its model is scripted, so no key and no network are
needed. It can be killed inside a tool (`--kill-in TOOL --kill before|after`) or left hanging there (`--hang TOOL`).
`--resume` prints the briefing its model reads and what it does next.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demo.addresses import is_mongo
from demo.caution import Seen, Sight
from demo.scripts import SCRIPTS
from demo.stage import RECORDS_URL

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage
    from recall_langgraph import RecallResume

POLL_S = 0.2
CARRY_ON = "Your last process stopped. Please carry on with your task."


def isolate() -> None:
    """Forget what the caller's environment says about other Recall stores, models and tracing: the demo uses none."""
    for name in [n for n in os.environ if n.startswith(("RECALL_", "POLIGN_")) and n != "RECALL_BIN"]:
        del os.environ[name]
    os.environ["LANGSMITH_TRACING"] = os.environ["LANGCHAIN_TRACING_V2"] = "false"
    warnings.filterwarnings("ignore")  # create_react_agent has moved; the new one lacks the hooks Recall needs


def load() -> None:
    """Import all that an agent needs, so that processes forked from this one need not."""
    isolate()
    for library in ("langgraph.prebuilt", "polign_recall", "recall_langgraph", "demo.model", "demo.tools"):
        importlib.import_module(library)


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m demo.agents")
    run = parser.add_subparsers(dest="command", required=True).add_parser("run", help="run one agent")
    run.add_argument("--agent", required=True, metavar="ID")
    run.add_argument("--world", required=True, type=Path, metavar="DIR", help="where the effects are written")
    run.add_argument("--script", required=True, choices=sorted(SCRIPTS))
    run.add_argument("--lease", type=float, default=5, metavar="SECONDS")
    run.add_argument("--kill-in", default="", metavar="TOOL", help="SIGKILL inside this tool")
    run.add_argument("--kill", choices=("before", "after"), default="after", help="its effect")
    run.add_argument("--hang", default="", metavar="TOOL", help="never return from this tool")
    run.add_argument("--resume", action="store_true", help="carry on, and print the briefing and what is done next")
    run.add_argument("--no-wait", action="store_true", help="refuse when another process holds the lease")
    if not os.environ.get(RECORDS_URL):
        parser.error(
            f"{RECORDS_URL} is not set; it names the PostgreSQL with pgvector, or the MongoDB, where the records are kept"
        )
    return parser.parse_args(argv)


@contextmanager
def opened(args: argparse.Namespace) -> Iterator[RecallResume]:
    """The agent, resumed: its lease taken, and handed over at the end. Waits for a live lease unless told not to."""
    from polign_recall import Client
    from recall_langgraph import RecallResume

    url = os.environ[RECORDS_URL]
    with Client(agent=True, backend="mongodb" if is_mongo(url) else "pgvector", backend_url=url) as client:
        resume = RecallResume(args.agent, client=client, lease_ttl=args.lease)
        open_when_free(resume, wait=not args.no_wait)
        with resume:
            yield resume


def open_when_free(resume: RecallResume, *, wait: bool) -> None:
    from polign_recall import RecallError

    while True:
        try:
            resume.open()
            return
        except RecallError as exc:
            if exc.code != "lease_held" or not wait:
                raise
            time.sleep(POLL_S)


def build_graph(resume: RecallResume, args: argparse.Namespace) -> Any:
    """The graph: Recall's hooks around a scripted model, and durable tools."""
    from langgraph.prebuilt import create_react_agent
    from recall_langgraph import recall_tools

    from demo.model import ScriptedModel
    from demo.tools import CLASSES, Fate, Hands, build_tools
    from demo.world import World

    fate = Fate(kill_in=args.kill_in, after=args.kill == "after", hang=args.hang)
    hands = Hands(World(args.world), fate, lambda line: print(f"{args.agent}: {line}", flush=True))
    tools = resume.durable(build_tools(hands), classes=CLASSES)
    return create_react_agent(
        ScriptedModel(script=SCRIPTS[args.script]),
        [*tools, *recall_tools(resume)],
        pre_model_hook=resume.pre_model_hook,
        post_model_hook=resume.post_model_hook,
    )


def messages_of(graph: Any, user: str) -> Iterator[BaseMessage]:
    """Every message of one run, as it arrives: calls, results, last words."""
    updates = graph.stream({"messages": [("user", user)]}, {"recursion_limit": 100}, stream_mode="updates")
    for update in updates:
        for change in update.values():
            yield from (change or {}).get("messages", [])


def work(resume: RecallResume, args: argparse.Namespace) -> None:
    """Do the task; say in one line how it ended."""
    script = SCRIPTS[args.script]
    words = ""
    for message in messages_of(build_graph(resume, args), CARRY_ON if resume.context.turn_seq else script.user):
        words = str(message.content)
    print(f"{args.agent}: {words}", flush=True)


def carry_on(resume: RecallResume, args: argparse.Namespace) -> None:
    """Print what the model reads, what it decides about each call of its plan, and what it then does."""
    from demo.model import seen_by

    graph = build_graph(resume, args)  # the durable tools must be known before the briefing: some calls are run again
    print(f"{args.agent} resumes. Its model reads:\n")
    print("\n".join(f"  | {visible(line)}".rstrip() for line in resume.briefing.splitlines()))
    seen = seen_by(SCRIPTS[args.script], [resume.briefing_message()])
    print("\nNot repeated, because the model sees what became of it:\n")
    print(listed(known for known in seen if not known.to_call))
    print("\nDone again, because it did not happen:\n")
    print(listed(known for known in seen if known.sight is Sight.FAILED))
    print("\nDone now:\n")
    for message in messages_of(graph, CARRY_ON):
        print("\n".join(f"  {line}" for line in lines_of(message)), flush=True)


def listed(seen: Iterable[Seen]) -> str:
    return "\n".join(f"  {known.step.tool}: {visible(known.why)}" for known in seen) or "  nothing"


def lines_of(message: BaseMessage) -> list[str]:
    """A message for the reader of the demo: a call, its result, or the model's words."""
    from langchain_core.messages import AIMessage, ToolMessage

    if isinstance(message, ToolMessage):
        return [f"  -> {visible(str(message.content))}"]
    said = [f'"{visible(str(message.content))}"'] if message.content else []
    calls = message.tool_calls if isinstance(message, AIMessage) else []
    return said + [f"{call['name']}({written(call['args'])})" for call in calls]


def written(args: Mapping[str, object]) -> str:
    return visible(", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in args.items()))


def visible(text: str) -> str:
    """The text with everything a terminal would act on, or not show, written as an escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def main(argv: list[str]) -> int:
    args = parse(argv)
    isolate()
    from polign_recall import RecallError

    try:
        with opened(args) as resume:
            (carry_on if args.resume else work)(resume, args)
    except RecallError as exc:
        said = "is at work, and so nobody else can resume it" if exc.code == "lease_held" else "cannot go on"
        print(f"{args.agent} {said}: {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
