"""A run type for tests: look up, pay, tell. What its tools do to the world is a line in a file, with the key of the call."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from pydantic import BaseModel

from actions.store import open_store
from actions.store.memory import MemoryStore
from agents.checkpoints import config_of
from agents.harness import DurableAgent, Resolver
from agents.langgraph import GraphHooks
from agents.runs import Gate, RunTool, RunType
from agents.steps import Answer, Step, StepState, advance
from tests.agents.scripted import ScriptedModel, calling

RUN = "run-1"
GIVEN = {"order": "A-17"}
PAY = ("pay", {"order": "A-17", "amount": 20})
TELL = ("tell", {"to": "ann"})


class Order(BaseModel):
    order: str


class World:
    """A file that nobody's process owns; `die_at` kills the process that reaches such a point."""

    def __init__(self, file: Path, die_at: str = "") -> None:
        self.file = file
        self.die_at = die_at

    def happens(self, tool: str, key: str, **what: Any) -> str:
        self.reach(f"before effect of {tool}")
        with self.file.open("a") as file:
            file.write(json.dumps({"tool": tool, "key": key, **what}) + "\n")
        self.reach(f"after effect of {tool}")
        return f"{tool} done"

    def reach(self, point: str) -> None:
        if point == self.die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    @property
    def effects(self) -> list[str]:
        """Which tools had an effect, in order."""
        return [effect["tool"] for effect in self.details]

    @property
    def details(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.file.read_text().splitlines()] if self.file.exists() else []


def tools_of(world: World, *, pay_gate: Gate | None = None, tell_gate: Gate | None = None) -> tuple[RunTool, ...]:
    def look_up(order: str) -> str:
        """Look an order up."""
        return f"{order}: 20 EUR"

    def pay(order: str, amount: float, idempotency_key: str) -> str:
        """Pay an amount back."""
        return world.happens("pay", idempotency_key, order=order, amount=amount)

    def tell(to: str, idempotency_key: str) -> str:
        """Send an email."""
        return world.happens("tell", idempotency_key, to=to)

    return (
        RunTool(look_up, "pure"),
        RunTool(pay, "external", gate=pay_gate, moves_money=True),
        RunTool(tell, "external", gate=tell_gate),
    )


def built_with_create_agent(model: Any) -> Callable[[Sequence[Any], Any, Any], Any]:
    """Each call of a message is a task of its own."""
    return lambda tools, hooks, saver: create_agent(model, tools, middleware=[hooks.middleware()], checkpointer=saver)


def built_with_a_tool_node(model: Any) -> Callable[[Sequence[Any], Any, Any], Any]:
    """All calls of a message are one task."""

    def build(tools: Sequence[Any], hooks: Any, saver: Any) -> Any:
        def ask(state: MessagesState) -> dict[str, Any]:
            hooks.record(state["messages"])
            said = model.bind_tools(tools).invoke(hooks.with_briefing(state["messages"]))
            hooks.record([said])
            return {"messages": [said]}

        graph = StateGraph(MessagesState)
        graph.add_node("model", ask)
        graph.add_node("tools", ToolNode(list(tools), handle_tool_errors=False))
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", tools_condition, ["tools", END])
        graph.add_edge("tools", "model")
        return graph.compile(checkpointer=saver)

    return build


BUILDS = {"create_agent": built_with_create_agent, "tool_node": built_with_a_tool_node}


class Talk:
    """A model whose next message depends on the conversation alone, so that a process that begins anew says the same."""

    def __init__(self, *turns: Sequence[tuple[str, dict[str, Any]]]) -> None:
        self.turns = turns

    def __call__(self) -> ScriptedModel:
        return _Scripted(self.turns)


class _Scripted(ScriptedModel):
    turns: Any = ()

    def __init__(self, turns: Any) -> None:
        super().__init__()
        self.turns = turns

    def _generate(self, messages: list[Any], stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        number = sum(isinstance(message, AIMessage) for message in messages)
        first = 1 + sum(len(turn) for turn in self.turns[:number])
        is_over = number >= len(self.turns)
        said = AIMessage("All done.") if is_over else calling(*self.turns[number], first=first)
        self.script.append(said)
        return super()._generate(messages, stop, run_manager, **kwargs)


def refund(
    world: World, *turns: Sequence[tuple[str, dict[str, Any]]], build: str = "create_agent", tools: Any = None, **declared: Any
) -> RunType:
    model = Talk(*turns)()
    return RunType(
        name="refund",
        version=declared.pop("version", 1),
        input=Order,
        tools=tools if tools is not None else tools_of(world),
        build=declared.pop("graph", None) or BUILDS[build](model),
        start=lambda given: {"messages": [HumanMessage(f"Refund {given.order}.", id="m1")]},
        result=lambda state: str(state["messages"][-1].content),
        cost=lambda message: Decimal("0.5"),
        **declared,
    )


def told(state: Any) -> dict[str, ToolMessage]:
    """The tools' messages in a state, by call id."""
    return {message.tool_call_id: message for message in state.values["messages"] if isinstance(message, ToolMessage)}


class Line:
    """A run whose every step is made by a process of its own."""

    def __init__(self, store: Any, saver: Any) -> None:
        self.store = store
        self.saver = saver

    @contextmanager
    def process(self) -> Iterator[DurableAgent]:
        with DurableAgent.resume(self.store, RUN) as agent:
            yield agent

    def step(
        self, kind: RunType, answers: dict[str, Sequence[Answer]] | None = None, *, resolver: Resolver | None = None, **more: Any
    ) -> Step:
        with self.process() as agent:
            return advance(kind, RUN, GIVEN, answers or {}, agent=agent, checkpointer=self.saver, resolver=resolver, **more)

    def state(self, kind: RunType) -> Any:
        """What the last checkpoint holds."""
        return kind.build([], GraphHooks(DurableAgent.resume(MemoryStore("none"), RUN)), self.saver).get_state(config_of(RUN))

    def until(self, kind: RunType, state: StepState, **options: Any) -> Step:
        """Steps until one comes to this, which must be the first that is not `going`."""
        last = self.to_the_end(kind, **options)[-1]
        assert last.state is state, last
        return last

    def to_the_end(self, kind: RunType, **options: Any) -> list[Step]:
        steps = [self.step(kind, **options)]
        while steps[-1].state is StepState.GOING:
            steps.append(self.step(kind, **options))
        return steps


@contextmanager
def opened_line(kind: str, url: str) -> Iterator[Line]:
    """Records and checkpoints in memory, or both in one PostgreSQL database."""
    if kind == "memory":
        yield Line(MemoryStore("main"), InMemorySaver())
        return
    with ExitStack() as opened:
        store = open_store(url, name="main")
        opened.callback(store.close)
        store.create_records()
        store.prepare()
        saver = opened.enter_context(PostgresSaver.from_conn_string(url))
        saver.setup()
        yield Line(store, saver)
