"""A resumed agent in a LangGraph graph: tools whose calls are actions, and hooks that brief the model and record its messages as turns.

    agent = DurableAgent.resume(store, "support-7")
    tools = durable_tools(agent, [look_up, send_email], {"look_up": "pure", "send_email": "external"}, resolver=sent_folder)
    hooks = GraphHooks(agent, tools)
    create_agent(model, tools, middleware=[hooks.middleware()])                       # langchain
    create_react_agent(model, tools, pre_model_hook=hooks.pre_model_hook, post_model_hook=hooks.post_model_hook)

It stands beside a checkpointer and replaces none. What a crash left open is settled before the first briefing and before the first call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from langchain_core.tools import BaseTool

from agents import calls
from agents.calls import KEY_ARGUMENT, UNSURE, ToolCalls, ToolsRefused
from agents.harness import DurableAgent, Resolver
from agents.langgraph.asking import CallNotMade
from agents.langgraph.hooks import BRIEFING_ID, GraphHooks
from agents.langgraph.originals import is_generator, original_of, parameters_of, recorded_calls, without_key
from agents.langgraph.process import Process
from agents.langgraph.repeats import Entered
from agents.langgraph.tools import DurableTool
from agents.ledger import Ledger
from agents.runs import Gate

__all__ = ["BRIEFING_ID", "CallNotMade", "Entered", "GraphHooks", "durable_tools", "recorded_calls"]

CLASS_METADATA = "recall_class"


def durable_tools(
    agent: DurableAgent,
    tools: Sequence[BaseTool | Callable[..., Any]],
    classes: Mapping[str, str] | None = None,
    *,
    resolver: Resolver | None = None,
    ledger: Ledger | None = None,
    compensate: Mapping[str, str] | None = None,
    unsure: tuple[type[Exception], ...] = UNSURE,
    gates: Mapping[str, Gate] | None = None,
    type_version: int = 0,
    warns: bool = True,
) -> list[BaseTool]:
    """LangChain tools (or functions that become such) whose calls are actions of this agent; give them to the graph instead of the originals.

    The class comes from `classes`, else from the tool's `metadata["recall_class"]`. A parameter `idempotency_key` is filled with the
    action's key and hidden from the model, annotated `InjectedToolArg` or not. Only what the model gave is recorded as arguments. A tool
    that the graph interrupts is closed as `abandoned`. Arguments that no record can keep are told to the model, and nothing is called; the
    rest is as in `agents.tools.durable`.

    A tool with a gate asks before its call is recorded (agents/gates.py), through LangGraph's interrupt, so the graph needs a checkpointer.
    What a person changed is what is recorded and called; of a call that was refused nothing is recorded.

    `warns`: say in the log what is unwise about them; a run type said it when it was registered.

    Raises:
        UnclassifiedTool: it names every tool without a class. Nothing was wrapped.
        ToolsRefused: the declarations contradict each other or the tools. Nothing was wrapped.
    """
    given = [original_of(tool) for tool in tools]
    if twice := [tool.name for tool in given if isinstance(tool, DurableTool)]:
        raise ToolsRefused(f"already durable: {', '.join(twice)}")
    if lazy := [tool.name for tool in given if is_generator(tool)]:
        raise ToolsRefused(f"a generator is not over when it returns; return the whole result: {', '.join(lazy)}")
    undo = dict(compensate or {})
    named = {tool.name: str(tool.metadata[CLASS_METADATA]) for tool in given if tool.metadata and CLASS_METADATA in tool.metadata}
    declared = {**named, **(classes or {})}
    keyed = {tool.name for tool in given if KEY_ARGUMENT in parameters_of(tool)}
    names = [tool.name for tool in given]
    calls.check_tools(names, declared, takes_key=keyed, compensate=undo)
    if warns:
        calls.warn_of_tools(names, declared, takes_key=keyed, undone=undo)
    process = Process(agent, resolver, gates=gates, type_version=type_version)
    for tool in given:
        recorded = recorded_calls(
            agent, tool, declared[tool.name], ledger=ledger, compensate=undo.get(tool.name, ""), unsure=unsure
        )
        process.tools.append(_wrap(tool, recorded, process))
    return list(process.tools)


def _wrap(tool: BaseTool, recorded: ToolCalls, process: Process) -> DurableTool:
    return DurableTool(
        name=tool.name,
        description=tool.description,
        args_schema=without_key(tool) if recorded.takes_key else tool.args_schema,
        return_direct=tool.return_direct,
        response_format=tool.response_format,
        tags=tool.tags,
        metadata=tool.metadata,
        extras=tool.extras,
        inner=tool,
        calls=recorded,
        process=process,
    )
