"""One process of the kill test's agent: a LangGraph agent with three tools in turn, in one of five setups, perhaps killed at a point.

The model, the tools and the graph are the same in every setup; what differs is who records. The model is scripted and cautious (demo/caution.py):
it reads the briefing and the results since, does again what was settled as failed, and repeats nothing that is done or in doubt.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from demo.agents import CARRY_ON, isolate, messages_of
from demo.scripts import Script, Step
from demo.world import INVOICES, MAIL, World
from local.postgres import write_private

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool

    from agents.harness import DurableAgent, End

SETUPS = ("ordinary", "durable", "durable+resolver", "durable+operator", "recall-langgraph")
CLASSES = {"lookup_order": "pure", "save_invoice": "idempotent", "send_email": "external"}
BEFORE_EFFECT, AFTER_EFFECT, AFTER_RETURN = POINTS = ("before-effect", "after-effect", "after-return")
EFFECTS = {"save_invoice": INVOICES, "send_email": MAIL}
"""Where the tools that change something leave their effects; looking an order up changes nothing."""

NEVER_SENT = "not in the mail log"
PATIENCE_S = 60
POLL_S = 0.1
PRELOADED = ["bench.kill.agent", "langgraph.prebuilt", "recall_langgraph", "demo.model", "agents.langgraph"]
STORES = {"postgres": "actions.store.postgres", "mongodb": "actions.store.mongo"}

SCRIPT = Script(
    user="Invoice order A-1042 and tell the customer.",
    steps=(
        Step(tool="lookup_order", args={"order": "A-1042"}),
        Step(tool="save_invoice", args={"invoice": "INV-1042", "total": 74.5}),
        Step(tool="send_email", args={"to": "ada@example.com", "subject": "Your invoice INV-1042"}),
    ),
    closing="The invoice is saved and the customer knows.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Where agents keep their records: a kind of server, its address as the real client takes it, and the (memory) collection."""

    kind: str  # postgres or mongodb
    url: str
    collection: str

    @property
    def ours(self) -> str:
        """The address as `open_agent_store` takes it."""
        return f"{self.url}{'&' if '?' in self.url else '?'}collection={self.collection}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """What one process is to do, and where it is killed; nowhere when `tool` is empty."""

    agent: str
    setup: str
    records: Records
    folder: Path  # the world's files, and `said.json`
    lease_s: float
    tool: str = ""
    point: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a process that was not killed says at its end."""

    last_words: str

    @property
    def is_finished(self) -> bool:
        """Whether it reports the task as done."""
        return self.last_words == SCRIPT.closing


def preload(kind: str) -> list[str]:
    """What the process imports from which the agents are forked."""
    return [*PRELOADED, STORES[kind]]


def live(life: Life) -> None:
    """Be the agent's process, from start to end; forked for it alone."""
    os.setpgid(0, 0)  # whatever it starts dies with it
    signal.alarm(PATIENCE_S * 2)
    log = os.open(life.folder / "agent.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    isolate()
    with opened(life) as graph:
        words = ""
        for message in messages_of(graph.graph, CARRY_ON if graph.has_history else SCRIPT.user):
            words = str(message.content)
    write_private(life.folder / "said.json", json.dumps(asdict(Said(last_words=words))))
    sys.stdout.flush()


def die() -> None:
    """SIGKILL for this process and all that it started (Recall's own process is one): a machine that went away."""
    os.killpg(0, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Graph:
    graph: Any
    has_history: bool


@contextmanager
def opened(life: Life) -> Iterator[Graph]:
    """The graph of this setup over the resumed agent, whose lease is given back at the end."""
    with recall_agent(life) if life.setup == "recall-langgraph" else our_agent(life) as graph:
        yield graph


@contextmanager
def our_agent(life: Life) -> Iterator[Graph]:
    from actions.store import open_agent_store
    from agents.langgraph import GraphHooks, durable_tools

    tools: Sequence[BaseTool] = build_tools(life)
    with contextlib.closing(open_agent_store(life.records.ours)) as store, resumed(store, life) as agent:
        has_history = bool(agent.recent_turns(1))
        if life.setup != "ordinary":
            resolver = sent_folder(life) if life.setup == "durable+resolver" else None
            tools = durable_tools(agent, tools, CLASSES, resolver=resolver)
        yield Graph(build_graph(life, tools, GraphHooks(agent, tools if life.setup != "ordinary" else ())), has_history)


@contextmanager
def recall_agent(life: Life) -> Iterator[Graph]:
    """The real package and its binary, without a resolver, as `durable`."""
    from polign_recall import Client, RecallError
    from recall_langgraph import RecallResume

    backend = "mongodb" if life.records.kind == "mongodb" else "pgvector"
    env = {"RECALL_COLLECTION": life.records.collection}
    with Client(agent=True, backend=backend, backend_url=life.records.url, env=env) as client:
        resume = RecallResume(life.agent, client=client, lease_ttl=life.lease_s)
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                resume.open()
                break
            except RecallError as exc:
                if exc.code != "lease_held" or time.monotonic() > until:
                    raise
            time.sleep(POLL_S)
        with resume:
            tools = resume.durable(build_tools(life), classes=CLASSES)
            yield Graph(build_graph(life, tools, resume), resume.context.turn_seq > 0)


def resumed(store: Any, life: Life) -> DurableAgent:
    """The agent, as soon as the dead process's lease has run out."""
    from actions.errors import LeaseLive
    from agents.harness import DurableAgent

    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return DurableAgent.resume(store, life.agent, lease_ttl=timedelta(seconds=life.lease_s))
        except LeaseLive:
            if time.monotonic() > until:
                raise
        time.sleep(POLL_S)


def build_graph(life: Life, tools: Sequence[Any], hooks: Any) -> Any:
    from langchain_core.messages import ToolMessage
    from langgraph.prebuilt import create_react_agent

    from demo.model import ScriptedModel

    class MortalModel(ScriptedModel):
        def _generate(self, messages: list[Any], *args: Any, **kwargs: Any) -> Any:
            newest = messages[-1]
            if isinstance(newest, ToolMessage) and (newest.name, AFTER_RETURN) == (life.tool, life.point):
                die()
            return super()._generate(messages, *args, **kwargs)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it has moved; the new one has no hooks, which Recall's package needs
        return create_react_agent(
            MortalModel(script=SCRIPT), list(tools), pre_model_hook=hooks.pre_model_hook, post_model_hook=hooks.post_model_hook
        )


def build_tools(life: Life) -> list[BaseTool]:
    from langchain_core.tools import InjectedToolArg, tool

    world = World(life.folder)
    key_of = Annotated[str, InjectedToolArg]

    def strike(name: str, point: str) -> None:
        if (name, point) == (life.tool, life.point):
            die()

    def lookup_order(order: str) -> str:
        """Look an order up."""
        strike("lookup_order", BEFORE_EFFECT)
        found = json.dumps({"order": order, "email": "ada@example.com", "total": 74.5})
        strike("lookup_order", AFTER_EFFECT)
        return found

    def save_invoice(invoice: str, total: float, idempotency_key: str = "") -> str:
        """Save an invoice. The same key again saves nothing more."""
        strike("save_invoice", BEFORE_EFFECT)
        if not (idempotency_key and world.has(INVOICES, idempotency_key)):
            world.append(INVOICES, idempotency_key, {"invoice": invoice, "total": total})
        strike("save_invoice", AFTER_EFFECT)
        return f"saved {invoice}"

    def send_email(to: str, subject: str, idempotency_key: str = "") -> str:
        """Send an email."""
        strike("send_email", BEFORE_EFFECT)
        world.append(MAIL, idempotency_key, {"to": to, "subject": subject})
        strike("send_email", AFTER_EFFECT)
        return "sent"

    for function in (save_invoice, send_email):  # by hand: annotations here are texts, which nobody could look up
        function.__annotations__["idempotency_key"] = key_of
    return [tool(lookup_order), tool(save_invoice), tool(send_email)]


def sent_folder(life: Life) -> Any:
    """A resolver that looks the key up in the mail log, which holds every email that was ever sent."""
    from agents.harness import End

    def resolve(action: Any) -> End | None:
        if action.tool != "send_email":
            return None
        if World(life.folder).has(MAIL, action.key):
            return End("done", result="sent", resolution="found in the mail log")
        return End("failed", error="never sent", resolution=NEVER_SENT)

    return resolve
