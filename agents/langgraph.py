"""A resumed agent in a LangGraph graph: tools whose calls are actions, and hooks that brief the model and record its messages as turns.

    agent = DurableAgent.resume(store, "support-7")
    tools = durable_tools(agent, [look_up, send_email], {"look_up": "pure", "send_email": "external"}, resolver=sent_folder)
    hooks = GraphHooks(agent, tools)
    create_agent(model, tools, middleware=[hooks.middleware()])                       # langchain
    create_react_agent(model, tools, pre_model_hook=hooks.pre_model_hook, post_model_hook=hooks.post_model_hook)

It stands beside a checkpointer and replaces none. What a crash left open is settled before the first briefing and before the first call.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, get_type_hints

from langchain_core.messages import AIMessage, BaseMessage, ChatMessage, HumanMessage, RemoveMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import BaseTool, InjectedToolArg
from langchain_core.tools import tool as as_tool
from langgraph.config import get_config
from langgraph.errors import GraphBubbleUp, GraphInterrupt, ParentCommand
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.prebuilt import ToolRuntime
from langgraph.runtime import get_runtime
from langgraph.types import Command
from pydantic import BaseModel, ConfigDict, create_model

from actions.arguments import canonical_arguments
from actions.errors import ActionsError, InvalidRecord
from actions.limits import value_text
from actions.records import Action, ActionClass, ActionStatus, Turn
from actions.turns import BRIEF_BYTES, cut_bytes
from agents import calls
from agents.calls import KEY_ARGUMENT, UNSURE, ToolCalls, ToolsRefused
from agents.gates import GatedCall, ask, edited_args, needs_approval, refusal, tell_of_edit
from agents.harness import DurableAgent, Resolver
from agents.ledger import Ledger
from agents.runs import COMPENSATES, Gate
from agents.tools import run_coroutine

STOPPED = "stopped by the graph; LangGraph runs it again on resume"
BRIEFING_ID = "recall-briefing"
"""The id of the briefing's message: recall-langgraph's, so that a state handed over holds one briefing and not two."""
CLASS_METADATA = "recall_class"
BRIEF_ARGUMENT_CHARS = 200
_TURNS_READ = 200
_ACTIONS_READ = 200
PULL = "__pregel_pull"
"""In the path of a task that a state started, and no Send: a node that makes every call of a message."""
_CORRECTION = "correction: action "
_CHAT_ROLES = ("system", "user", "assistant", "tool")


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
    given = [_made(tool) for tool in tools]
    if twice := [tool.name for tool in given if isinstance(tool, DurableTool)]:
        raise ToolsRefused(f"already durable: {', '.join(twice)}")
    if lazy := [tool.name for tool in given if _is_generator(tool)]:
        raise ToolsRefused(f"a generator is not over when it returns; return the whole result: {', '.join(lazy)}")
    undo = dict(compensate or {})
    named = {tool.name: str(tool.metadata[CLASS_METADATA]) for tool in given if tool.metadata and CLASS_METADATA in tool.metadata}
    declared = {**named, **(classes or {})}
    keyed = {tool.name for tool in given if KEY_ARGUMENT in _properties(tool)}
    names = [tool.name for tool in given]
    calls.check_tools(names, declared, takes_key=keyed, compensate=undo)
    if warns:
        calls.warn_of_tools(names, declared, takes_key=keyed, undone=undo)
    process = _Process(agent, resolver, gates=gates, type_version=type_version)
    for tool in given:
        recorded = recorded_calls(
            agent, tool, declared[tool.name], ledger=ledger, compensate=undo.get(tool.name, ""), unsure=unsure
        )
        process.tools.append(_wrap(tool, recorded, process))
    return list(process.tools)


def recorded_calls(
    agent: DurableAgent,
    tool: BaseTool | Callable[..., Any],
    action_class: str,
    *,
    ledger: Ledger | None = None,
    compensate: str = "",
    unsure: tuple[type[Exception], ...] = UNSURE,
) -> ToolCalls:
    """How the calls of one tool are recorded, for whoever calls it without a graph. Not checked as `durable_tools` checks."""
    made = _made(tool)
    return ToolCalls(
        agent=agent,
        tool=made.name,
        action_class=ActionClass(action_class),
        takes_key=KEY_ARGUMENT in _properties(made),
        rerun=_rerun_of(made),
        may_hide_errors=bool(made.handle_tool_error or made.handle_validation_error),
        ledger=ledger,
        compensate=compensate,
        unsure=unsure,
    )


class CallNotMade(ActionsError):
    """A call without a call id was not made: a person refused it, gave it up, or nobody knows whether it happened before. Nothing was begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entered:
    """What the records held when a step of a run was begun for the first time: what is newer is of this step, however often it is begun."""

    newest_action: int = 0
    newest_turn: int = 0
    is_retry: bool = False  # an attempt ended with an error: what failed in it is tried again
    cancels: int = 0  # how often the run was cancelled: what a person said before counts for nothing


class DurableTool(BaseTool):
    """A tool of which every call is an action. Made by `durable_tools`."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    inner: BaseTool
    calls: Any  # ToolCalls; Any, since pydantic would copy a frozen record
    process: Any

    @property
    def func(self) -> Any:
        """Only to be looked at: ToolNode finds in its annotations what it has to inject."""
        return getattr(self.inner, "func", None)

    @property
    def coroutine(self) -> Any:
        return getattr(self.inner, "coroutine", None)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("a durable tool is called by invoke or run, which record the call")

    def run(self, tool_input: str | dict[str, Any], *args: Any, tool_call_id: str | None = None, **kwargs: Any) -> Any:
        """Record, run, record. Without a call id the tool's own handlers of errors are not asked: an error is raised."""
        allowed = self.process.allowed(self, tool_call_id, self._arguments(tool_input))
        arguments = allowed.arguments
        if (known := self._answer(arguments, tool_call_id)) is not None:
            return allowed.told(known)
        call = _Call(tool_call_id or "", self.name, _comparable(self._shown(arguments)))
        if allowed.is_refused:
            self.process.ended(call)
            return allowed.refused()
        try:
            action = self._begin(arguments, call)
            try:
                output = self._called(tool_call_id).run(
                    self._given(arguments, action), *args, tool_call_id=tool_call_id, **kwargs
                )
            except Exception as exc:
                self._stopped(action, exc, call)
                raise
            return allowed.told(self._returned(action, output, call))
        finally:
            self.process.left(call)

    async def arun(self, tool_input: str | dict[str, Any], *args: Any, tool_call_id: str | None = None, **kwargs: Any) -> Any:
        """As `run`; the records are written in threads. A cancelled task leaves the action open."""
        allowed = self.process.allowed(self, tool_call_id, self._arguments(tool_input))
        arguments = allowed.arguments
        if (known := await asyncio.to_thread(self._answer, arguments, tool_call_id)) is not None:
            return allowed.told(known)
        call = _Call(tool_call_id or "", self.name, _comparable(self._shown(arguments)))
        if allowed.is_refused:
            self.process.ended(call)
            return allowed.refused()
        try:
            action = await asyncio.to_thread(self._begin, arguments, call)
            try:
                output = await self._called(tool_call_id).arun(
                    self._given(arguments, action), *args, tool_call_id=tool_call_id, **kwargs
                )
            except Exception as exc:
                await asyncio.to_thread(self._stopped, action, exc, call)
                raise
            return allowed.told(await asyncio.to_thread(self._returned, action, output, call))
        finally:
            self.process.left(call)

    def _answer(self, arguments: Mapping[str, Any], call_id: str | None) -> Any:
        """What is said instead of a call; None: it is to be made."""
        try:
            value_text("arguments", self._shown(arguments))
        except InvalidRecord as exc:
            if not call_id:
                raise
            return ToolMessage(content=f"not called: {exc}", name=self.name, tool_call_id=call_id, status="error")
        return self.process.answer(self, call_id, arguments)

    def _begin(self, arguments: Mapping[str, Any], call: _Call) -> Action:
        """The record of this call; an idempotent one that this process left open is made again under its own."""
        action: Action | None = self.process.left_open(call) if self.calls.action_class is ActionClass.IDEMPOTENT else None
        if action is None:
            try:
                action = self.calls.begin(self._shown(arguments))
            except BaseException:
                self.process.ended(call)
                raise
        self.process.began(call, action)
        return action

    def _arguments(self, tool_input: str | dict[str, Any]) -> dict[str, Any]:
        return dict(tool_input) if isinstance(tool_input, dict) else {next(iter(self.args), "input"): tool_input}

    def _shown(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """What the model gave: no key, nothing that the graph put in, and not what only a compensation's record says."""
        hidden = _hidden(self.inner) | {KEY_ARGUMENT, *({COMPENSATES} - _properties(self.inner))}
        return {name: value for name, value in arguments.items() if name not in hidden and not isinstance(value, ToolRuntime)}

    def _as_returned(self, result: str) -> Any:
        """A recorded result as the tool returned it to whoever called it without a call id: text, or the JSON that it was recorded as."""
        function = self.func or self.coroutine
        try:
            if function is not None and get_type_hints(function).get("return") is str:
                return result
            return json.loads(result)
        except (ValueError, NameError, TypeError):
            return result

    def _given(self, arguments: Mapping[str, Any], action: Action) -> dict[str, Any]:
        return {**arguments, KEY_ARGUMENT: action.key} if self.calls.takes_key else dict(arguments)

    def _called(self, call_id: str | None) -> BaseTool:
        """Without a call id a handled error would come back as plain content, and be taken for a result."""
        return self.inner if call_id else _raising(self.inner)

    def _stopped(self, action: Action, exc: Exception, call: _Call) -> None:
        if isinstance(exc, ParentCommand):  # the tool is over; where the graph goes on is its result
            self.calls.returned(action, _text_of(exc.args[0], call.id or None), call_id=call.id)
        elif isinstance(exc, GraphBubbleUp):
            self.calls.stopped(action, exc, STOPPED)
            self.process.ended(call)
            return
        elif not self.calls.raised(action, exc, call_id=call.id):
            return
        self.process.told(call.id)
        self.process.ended(call)

    def _returned(self, action: Action, output: Any, call: _Call) -> Any:
        text = _text_of(output, call.id or None)
        if isinstance(output, ToolMessage) and output.status == "error":
            if not self.calls.reported(action, None, text, call_id=call.id):
                return output
        else:
            self.calls.returned(action, text, call_id=call.id)
        self.process.returned(call, output)
        return output


@dataclass(frozen=True, slots=True, kw_only=True)
class _Allowed:
    """A call after its gate: as it is to be made, and what a person said of it, if one was asked."""

    arguments: Mapping[str, Any]
    call: GatedCall | None = None
    decision: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_refused(self) -> bool:
        return self.decision.get("type") in ("reject", "respond")

    def refused(self) -> Any:
        """What the graph gets instead. A call without an id is made by code, which could take a refusal for a result: that is an error."""
        assert self.call is not None  # noqa: S101 - only a gated call is refused
        said = refusal(self.call, self.decision)
        if self.call.call_id:
            return said
        if self.decision["type"] == "respond":
            return self.decision["message"]
        raise CallNotMade(f"{self.call.tool} was not called: {said.content if said else ''}")

    def told(self, output: Any) -> Any:
        """What the tool gave, with a word of what a person changed."""
        edited = edited_args(self.decision) if self.decision else None
        if self.call is None or edited is None or not self.call.call_id:
            return output
        return tell_of_edit(output, self.call.tool, edited, self.call.call_id)


class GraphHooks:
    """The hooks of one agent in one process: the briefing goes in front of what the model reads, its messages become turns.

    `tools` are those of `durable_tools`, whose turns are written with their actions and not a second time. An agent without durable tools
    gives none, and its `resolver` here. Messages are told apart by their ids; each is recorded once, also after a restart on the same
    thread of a checkpointer (of the newest 200 turns). Safe in several threads.
    """

    def __init__(self, agent: DurableAgent, tools: Sequence[BaseTool] = (), *, resolver: Resolver | None = None) -> None:
        of_tools = [tool.process for tool in tools if isinstance(tool, DurableTool)]
        self._process: _Process = of_tools[0] if of_tools else _Process(agent, resolver)
        if any(process is not self._process for process in of_tools) or self._process.agent is not agent:
            raise ToolsRefused("the tools were made by different calls of durable_tools, or for another agent")
        self._process.has_hooks = True
        self._agent = agent
        self._lock = threading.Lock()
        self._recorded: set[str] | None = None  # None until the first messages were compared with the records

    # --- for prebuilt agents ---

    @property
    def pre_model_hook(self) -> RunnableLambda[Any, Any]:
        """For `create_react_agent`: records what came since, and gives the model the briefing and the messages; the state stays as it is."""
        return RunnableLambda(self._before, afunc=_threaded(self._before), name="pre_model_hook")

    @property
    def post_model_hook(self) -> RunnableLambda[Any, Any]:
        """For `create_react_agent`: records the model's message before its calls are run."""
        return RunnableLambda(self._after, afunc=_threaded(self._after), name="post_model_hook")

    def middleware(self) -> Any:
        """The same for `langchain.agents.create_agent`; one more in its list of middleware, the last, so that it sees what the model sees."""
        from agents.langchain_middleware import DurableMiddleware

        return DurableMiddleware(self)

    # --- for graphs of your own ---

    @property
    def record_node(self) -> RunnableLambda[Any, Any]:
        """A node that records every message that is not recorded yet; the state stays as it is."""
        return RunnableLambda(self._after, afunc=_threaded(self._after), name="record")

    @property
    def briefing_node(self) -> RunnableLambda[Any, Any]:
        """A node that puts the briefing first in the state, in place of an older one. `with_briefing` keeps it out of the state."""
        return RunnableLambda(self._brief_state, afunc=_threaded(self._brief_state), name="briefing")

    def with_briefing(self, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        """The briefing and these messages, for the model; an older briefing among them goes."""
        return [self.briefing_message(), *(message for message in messages if message.id != BRIEFING_ID)]

    def briefing_message(self) -> SystemMessage:
        """The briefing, once what a crash left open is settled: unfinished actions first, within the agent's token budget.

        Raises:
            LeaseLost, StoreUnavailable: as `agents.calls.settle`; the model is not to be asked.
        """
        self._process.asks_model()
        return SystemMessage(content=self._agent.briefing.text, id=BRIEFING_ID)

    def record(self, messages: Sequence[BaseMessage]) -> int:
        """Record each message that is not recorded yet, in order, as a turn; answers how many. Without text there is nothing to record.

        Raises:
            LeaseLost: another process has the agent. What came before in the list is recorded.
            StoreUnavailable: the same; recording again goes on from there.
        """
        count = 0
        with self._lock:
            if self._recorded is None:
                self._recorded = self._recorded_before(messages)
            for message in messages:
                identity = _identity(message)
                if identity in self._recorded or message.id == BRIEFING_ID:
                    continue
                if not (isinstance(message, ToolMessage) and self._process.has_turn(message.tool_call_id)):
                    count += self._record_one(message)
                self._recorded.add(identity)
        return count

    def enter(self, step: Entered) -> tuple[Action, ...]:
        """Begin a step of a run (agents/steps.py), once for each process: settle what is open, and know what the step repeats.

        Answers what was closed. Raises as `agents.calls.settle`.
        """
        self._process.enter(step)
        return self._process.settle()

    def said(self, tool_calls: Sequence[Mapping[str, Any]]) -> None:
        """The calls of the model's newest message: those behind gates are asked about at once where one task makes them all."""
        self._process.newest_calls = tuple(tool_calls)

    def still_open(self) -> str:
        """What to say beside the model's last word while calls are open; empty when none is. Reads the store."""
        return calls.still_open(self._agent)

    def _record_one(self, message: BaseMessage) -> int:
        role, content, name = _turn_of(message)
        if not content and role != "tool":
            return 0
        brief = _brief_of(message)
        self._agent.record_turn(
            role,
            calls.storable(content),
            name=name,
            message_id=calls.message_id(message.id or ""),
            brief=cut_bytes(brief, BRIEF_BYTES) if brief != content else "",
        )
        return 1

    def _recorded_before(self, messages: Sequence[BaseMessage]) -> set[str]:
        """What a checkpointer restored. Turns are recorded in order, so all up to the last known message are in the records."""
        known = self._process.known_before()
        last = -1
        for index, message in enumerate(messages):
            ids = {calls.message_id(message.id)} if message.id else set()
            if isinstance(message, ToolMessage):
                ids.add(calls.call_turn_id(message.tool_call_id))
            last = index if ids & known else last
        return {_identity(message) for message in messages[: last + 1]}

    def _before(self, state: Any) -> dict[str, Any]:
        messages = _messages(state)
        briefing = self.with_briefing(messages)  # first: settling may write turns, which belong before what is new
        self.record(messages)
        return {"llm_input_messages": briefing}

    def _after(self, state: Any) -> dict[str, Any]:
        self.record(_messages(state))
        return {}

    def _brief_state(self, state: Any) -> dict[str, Any]:
        return {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), *self.with_briefing(_messages(state))]}


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of the model, as LangGraph would make it again by itself."""

    id: str  # empty: nobody can tell it from another
    tool: str
    args: str  # empty: not known


class _Process:
    """What the tools and hooks of one agent share while this process has it."""

    def __init__(
        self, agent: DurableAgent, resolver: Resolver | None, *, gates: Mapping[str, Gate] | None = None, type_version: int = 0
    ) -> None:
        self.agent = agent
        self.tools: list[DurableTool] = []
        self.newest_calls: tuple[Mapping[str, Any], ...] = ()
        self._gates = dict(gates or {})
        self._type_version = type_version
        self._decided: dict[tuple[str, ...], list[Mapping[str, Any]] | GraphInterrupt] = {}
        self.has_hooks = False
        self._resolver = resolver
        self._lock = threading.RLock()
        self._is_settled = False
        self._step: Entered | None = None
        self._before: tuple[Turn, ...] = ()  # what earlier processes recorded
        self._turns: set[str] = set()  # calls whose turn was written with their end
        # What LangGraph may run again by itself: calls that came back, and those of which something else is known.
        self._outputs: dict[_Call, Any] = {}
        self._repeats: list[Action] = []
        # Of this process, since the model was asked: calls that run, and those of which no end is recorded.
        self._running: dict[_Call, Action | None] = {}
        self._left_open: dict[_Call, Action] = {}
        self._is_briefing_old = False
        self._made: list[tuple[str, int, Action]] = []  # by this process: task, attempt at it, the call

    def enter(self, step: Entered) -> None:
        """Before anything else: which step of a run this process is in."""
        self._step = step

    def settle(self) -> tuple[Action, ...]:
        """Once for each process; answers what was closed."""
        with self._lock:
            if self._is_settled:
                return ()
            opened = {action.seq for action in self.agent.pending_actions()}
            self._before = self.agent.recent_turns(_TURNS_READ)
            closed = calls.settle(self.agent, [tool.calls for tool in self.tools], resolver=self._resolver)
            if self._step is not None or self.has_hooks:
                self._know_repeats(opened)
            self._is_settled = True
            return closed

    def known_before(self) -> set[str]:
        """The ids of messages that earlier processes recorded."""
        self.settle()
        return {turn.message_id for turn in self._before if turn.message_id}

    def asks_model(self) -> None:
        """From here on a call is what the model decided after reading its briefing, never a repetition. What was left open since is in there.

        Not in a step of a run: another branch of the same step may still have its calls to repeat, and none is made twice.
        """
        self.settle()
        with self._lock:
            if self._is_briefing_old:
                self.agent.refresh()
                self._is_briefing_old = False
            if self._step is None:
                self._outputs.clear()
                self._repeats.clear()
                self._left_open.clear()

    def allowed(self, tool: DurableTool, call_id: str | None, arguments: dict[str, Any]) -> _Allowed:
        """The call as it is to be made, once a person has agreed where the tool has a gate.

        Asked even where the call turns out to be a repetition: LangGraph hands answers out in the order in which a task asks.

        Raises:
            GraphInterrupt: nobody has answered yet.
        """
        gate, shown = self._gates.get(tool.name), tool._shown(arguments)
        if gate is None or not needs_approval(gate, shown):
            return _Allowed(arguments=arguments)
        call = self._gated(tool.name, shown, call_id or "", gate)
        with self._lock:
            if call_id:
                together = self._asked_with(call)
                decision = self._decisions(together)[[one.call_id for one in together].index(call_id)]
            else:
                (decision,) = ask([call])
        hidden = {name: value for name, value in arguments.items() if name not in shown}
        edited = edited_args(decision)
        return _Allowed(arguments=arguments if edited is None else {**hidden, **edited}, call=call, decision=decision)

    def _decisions(self, together: Sequence[GatedCall]) -> list[Mapping[str, Any]]:
        """Asked once for each task: its calls run side by side, and LangGraph tells questions of one task apart by their order."""
        place = (get_config()["configurable"].get("checkpoint_ns", ""), *(call.call_id for call in together))
        found = self._decided.get(place)
        if found is None:
            try:
                found = ask(together)
            except GraphInterrupt as exc:
                found = exc
            self._decided[place] = found
        if isinstance(found, GraphInterrupt):
            raise GraphInterrupt(*found.args)
        return found

    def _asked_with(self, call: GatedCall) -> list[GatedCall]:
        """The gated calls of the same message, where one task makes them all; else the call alone."""
        path = (get_config().get("metadata") or {}).get("langgraph_path") or ("",)
        if path[0] != PULL:
            return [call]
        together = []
        for other in self.newest_calls:
            gate = self._gates.get(str(other["name"]))
            if gate is not None and needs_approval(gate, other["args"]):
                together.append(self._gated(str(other["name"]), other["args"], str(other.get("id") or ""), gate))
        is_among = sum(other == call for other in together) == 1 and sum(other.call_id == call.call_id for other in together) == 1
        return together if is_among else [call]

    def _gated(self, tool: str, args: Mapping[str, Any], call_id: str, gate: Gate) -> GatedCall:
        cancels = self._step.cancels if self._step else 0
        return GatedCall(tool=tool, args=args, call_id=call_id, gate=gate, type_version=self._type_version, cancels=cancels)

    def answer(self, tool: DurableTool, call_id: str | None, arguments: Mapping[str, Any]) -> Any:
        """What the graph gets instead of a call that it repeats by itself, without asking the model; None: it is to be run.

        LangGraph runs a whole node again that was interrupted or killed, with the calls that were over as well. A call that came back is
        answered with what it gave, one that was settled meanwhile with that; one that may have happened, in this process or an earlier one, is
        answered with that, and so is a second call by the same id beside the first. What was settled as failed may be run again. Outside of a
        run's step only with hooks, which know when the model was asked, and with call ids.
        """
        self.settle()
        if self._step is None and (call_id is None or not self.has_hooks):
            return None
        with self._lock:
            args = _comparable(tool._shown(arguments))
            call = _Call(call_id or "", tool.name, args)
            if call_id and call in self._outputs:
                return self._outputs[call]
            if call_id and call in self._running:
                return self._told_instead(tool, self._running[call], call_id, "is being made by this very id")
            if call in self._left_open and tool.calls.action_class is ActionClass.EXTERNAL:
                return self._told_instead(tool, self._left_open[call], call_id, "was made with these arguments already")
            for action in self._repeats:
                if action.tool == tool.name and _comparable(self._whole_args(action)) == args:
                    self._repeats.remove(action)
                    return self._told_instead(tool, action, call_id, "was called with these arguments before a crash")
            if (earlier := self._of_earlier_attempt(tool.name, args)) is not None:
                return self._told_instead(tool, earlier, call_id, "was called with these arguments before")
            if call_id:
                self._running[call] = None
        return None

    def _of_earlier_attempt(self, tool: str, args: str) -> Action | None:
        """A call that this task made before it was tried again by LangGraph's own retry policy, as it stands now; each once an attempt."""
        task, attempt = _attempt() or ("", 1)
        for made in self._made if attempt > 1 else ():
            of_task, of_attempt, action = made
            if of_task != task or of_attempt >= attempt or action.tool != tool or _comparable(self._whole_args(action)) != args:
                continue
            now = next((one for one in self.agent.recent_actions(_ACTIONS_READ) if one.seq == action.seq), action)
            if not _may_run_again(now):
                self._made[self._made.index(made)] = (task, attempt, action)
                return now
        return None

    # Single steps on dictionaries, without the lock: an event loop must not wait for one that is held while a store answers.

    def began(self, call: _Call, action: Action) -> None:
        self._running[call] = action
        if (attempt := _attempt()) is not None:
            self._made.append((*attempt, action))

    def ended(self, call: _Call) -> None:
        """Its end is recorded, or it was not begun: the graph may make it again."""
        self._running.pop(call, None)
        self._left_open.pop(call, None)

    def left(self, call: _Call) -> None:
        """Nobody is in it any more. Where no end was recorded it stays open, and may have happened."""
        if (action := self._running.get(call)) is not None:
            self._is_briefing_old = True
            if call.id and self.has_hooks:
                self._left_open[call] = action  # before it is taken out below: whoever asks meanwhile finds it in one of the two
        self._running.pop(call, None)

    def left_open(self, call: _Call) -> Action | None:
        return self._left_open.get(call)

    def returned(self, call: _Call, output: Any) -> None:
        self.told(call.id)
        if call.id:
            self._outputs[call] = output
        self.ended(call)

    def told(self, call_id: str) -> None:
        if call_id:
            self._turns.add(call_id)

    def has_turn(self, call_id: str) -> bool:
        return call_id in self._turns

    def _know_repeats(self, opened: Collection[int]) -> None:
        """Every call of the step, or since the model's newest message: by call id where its turn tells it, else by what it was given.

        In a run the number of its actions at the step's first beginning is known. Elsewhere the turns tell: each call that was closed left
        one behind the message that it belongs to, whoever closed it, so no clock is asked.
        """
        step, turns = self._step, self._turns_since()
        limit = _ACTIONS_READ if step is None else max(_ACTIONS_READ, self.agent.newest_action - step.newest_action)
        actions = self.agent.recent_actions(limit)
        of_turn = _told_by(turns, actions)
        since = {*opened, *of_turn} if step is None else {one.seq for one in actions if one.seq > step.newest_action}
        forgets_failed = step is not None and step.is_retry
        for action in actions:
            if action.seq not in since:
                continue
            turn = of_turn.get(action.seq)
            if turn is not None and turn.message_id.startswith(calls.CALL_TURN):
                if action.status is ActionStatus.FAILED and forgets_failed:
                    continue
                call_id = turn.message_id.removeprefix(calls.CALL_TURN)
                is_error = action.status is ActionStatus.FAILED
                said = _tool_message(action.tool, calls.whole_turn(self.agent, turn), call_id, is_error=is_error)
                self._outputs[_Call(call_id, action.tool, _comparable(self._whole_args(action)))] = said
            elif not _may_run_again(action):
                self._repeats.append(action)

    def _turns_since(self) -> list[Turn]:
        """The tools' turns since the model's newest message, or of the step; settling now has added some."""
        turns = list(self.agent.recent_turns(_TURNS_READ))
        if self._step is not None:
            turns = [turn for turn in turns if turn.seq > self._step.newest_turn]
        else:
            newest = max((index for index, turn in enumerate(turns) if turn.role == "assistant"), default=-1)
            turns = turns[newest + 1 :]
        return [turn for turn in turns if turn.role == "tool"]

    def _told_instead(self, tool: DurableTool, action: Action | None, call_id: str | None, how: str) -> Any:
        if action is not None and action.status is ActionStatus.DONE:
            result = self.agent.get_output(action.result_ref).content if action.result_ref else action.result
            return _tool_message(tool.name, result or "done", call_id) if call_id else tool._as_returned(result)
        if action is not None and action.status is ActionStatus.ABANDONED:
            why = f"somebody has given the call up (action {action.seq}: {action.resolution or 'no reason given'})"
        else:
            which = f" (action {action.seq}, key {action.key})" if action is not None else ""
            why = f"{tool.name} {how}{which}, and nobody knows whether it happened. Check before repeating it."
        if call_id is None:
            raise CallNotMade(f"{tool.name} was not called: {why}")
        return _tool_message(tool.name, f"not called: {why}", call_id, is_error=True)

    def _whole_args(self, action: Action) -> str:
        return self.agent.get_output(action.args_ref).content if action.args_ref else action.args


def _told_by(turns: Sequence[Turn], actions: Sequence[Action]) -> dict[int, Turn]:
    """The turn that was written together with each action's end, by the action's number: the nearest pairs, whose times are of one clock."""
    pairs = sorted(
        (abs((action.ended_at or 0) - turn.at), turn.seq, action.seq, turn)
        for turn in turns
        for action in actions
        if action.tool == turn.name and action.ended_at is not None and not turn.content.startswith(_CORRECTION)
    )
    found: dict[int, Turn] = {}
    used: set[int] = set()
    for _, turn_seq, action_seq, turn in pairs:
        if action_seq not in found and turn_seq not in used:
            found[action_seq] = turn
            used.add(turn_seq)
    return found


def _attempt() -> tuple[str, int] | None:
    """The task of the graph that is running, and which attempt at it this is; None outside of a graph."""
    try:
        found = get_runtime().execution_info
    except (RuntimeError, KeyError):
        return None
    return (found.task_id, found.node_attempt) if found is not None else None


def _may_run_again(action: Action) -> bool:
    """What did not happen, or changes nothing, or was stopped by the graph before it was over."""
    if action.status is ActionStatus.ABANDONED:
        return action.action_class is ActionClass.PURE or action.resolution == STOPPED
    return action.status is ActionStatus.FAILED or (action.action_class is ActionClass.PURE and action.is_open)


def _tool_message(tool: str, text: str, call_id: str, *, is_error: bool = False) -> ToolMessage:
    return ToolMessage(content=text, name=tool, tool_call_id=call_id, status="error" if is_error else "success")


def _comparable(arguments: Mapping[str, Any] | str) -> str:
    return canonical_arguments(value_text("arguments", arguments))


def _made(tool: BaseTool | Callable[..., Any]) -> BaseTool:
    return tool if isinstance(tool, BaseTool) else _of_function(tool)


@lru_cache(maxsize=512)
def _of_function(function: Callable[..., Any]) -> BaseTool:
    """Made once, since its schema costs milliseconds and a step needs every tool of its run: whoever wraps it changes nothing in it."""
    return as_tool(function)


def _is_generator(tool: BaseTool) -> bool:
    functions = (getattr(tool, "func", None), getattr(tool, "coroutine", None))
    return any(inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function) for function in functions)


def _wrap(tool: BaseTool, recorded: ToolCalls, process: _Process) -> DurableTool:
    return DurableTool(
        name=tool.name,
        description=tool.description,
        args_schema=_without_key(tool) if recorded.takes_key else tool.args_schema,
        return_direct=tool.return_direct,
        response_format=tool.response_format,
        tags=tool.tags,
        metadata=tool.metadata,
        extras=tool.extras,
        inner=tool,
        calls=recorded,
        process=process,
    )


def _rerun_of(tool: BaseTool) -> Callable[[Mapping[str, Any], str], str]:
    def rerun(arguments: Mapping[str, Any], key: str) -> str:
        raising = _raising(tool)
        given = {name: value for name, value in arguments.items() if name != COMPENSATES or name in _properties(tool)}
        given[KEY_ARGUMENT] = key
        is_async_only = getattr(tool, "coroutine", None) is not None and getattr(tool, "func", None) is None
        output = run_coroutine(lambda: raising.arun(given)) if is_async_only else raising.run(given)
        return _text_of(output, None)

    return rerun


def _raising(tool: BaseTool) -> BaseTool:
    return tool.model_copy(update={"handle_tool_error": False, "handle_validation_error": False})


def _properties(tool: BaseTool) -> set[str]:
    """All parameters, those that the model does not see included."""
    schema = tool.args_schema
    if isinstance(schema, dict):
        return set(schema.get("properties", {}))
    return set(getattr(tool.get_input_schema(), "model_fields", {}))


def _hidden(tool: BaseTool) -> set[str]:
    """Parameters that the graph fills in."""
    return set() if isinstance(tool.args_schema, dict) else _properties(tool) - set(tool.args)


def _without_key(tool: BaseTool) -> Any:
    """The schema with the key injected, or gone: a model that was asked for it would make one up."""
    schema = tool.args_schema
    if isinstance(schema, dict):
        properties = {name: value for name, value in schema["properties"].items() if name != KEY_ARGUMENT}
        required = [name for name in schema.get("required", []) if name != KEY_ARGUMENT]
        return {**schema, "properties": properties, "required": required}
    full = tool.get_input_schema()
    if KEY_ARGUMENT not in tool.args:
        return full
    if not issubclass(full, BaseModel):
        raise ToolsRefused(f"{tool.name}: annotate {KEY_ARGUMENT} with InjectedToolArg; its schema is of an older pydantic")
    return _with_hidden_key(full)


@lru_cache(maxsize=512)
def _with_hidden_key(full: type[BaseModel]) -> Any:
    field = full.model_fields[KEY_ARGUMENT]
    return create_model(full.__name__, __base__=full, **{KEY_ARGUMENT: (Annotated[field.annotation, InjectedToolArg], field)})  # type: ignore[call-overload]


def _text_of(output: Any, call_id: str | None) -> str:
    """What a tool gave, as the model reads it."""
    if isinstance(output, ToolMessage):
        return _content(output.content) or calls.result_text(output.content)
    if isinstance(output, Command):
        update = output.update if isinstance(output.update, Mapping) else {}
        told = [message for message in update.get("messages", ()) if isinstance(message, ToolMessage)]
        own = [message for message in told if call_id is None or message.tool_call_id == call_id]
        return "\n".join(_text_of(message, call_id) for message in own) or calls.result_text(str(output))
    if isinstance(output, list) and any(isinstance(item, (ToolMessage, Command)) for item in output):
        return "\n".join(_text_of(item, call_id) for item in output)
    return calls.result_text(output)


def _messages(state: Any) -> list[BaseMessage]:
    messages = state.get("messages") if isinstance(state, Mapping) else getattr(state, "messages", None)
    if messages is None:
        raise ValueError("the graph's state has no messages")
    return list(messages)


def _identity(message: BaseMessage) -> str:
    """Its id, which `add_messages` gives to every message; by what it says in a list made by hand."""
    if message.id:
        return message.id
    said = json.dumps([message.type, message.content, getattr(message, "tool_call_id", None)], default=str, sort_keys=True)
    return f"sha256:{hashlib.sha256(said.encode()).hexdigest()}"


def _turn_of(message: BaseMessage) -> tuple[str, str, str]:
    """Role, content and name of a message's turn, as recall-langgraph 0.3 writes them."""
    text = _content(message.content)
    if isinstance(message, HumanMessage):
        return "user", text, ""
    if isinstance(message, ToolMessage):
        return "tool", text or calls.result_text(message.content), message.name or ""
    if isinstance(message, SystemMessage):
        return "system", text, ""
    if isinstance(message, ChatMessage) and message.role in _CHAT_ROLES:
        return message.role, text, ""
    return "assistant", _with_calls(message, text, limit=None), ""


def _brief_of(message: BaseMessage) -> str:
    """The model's calls with long arguments left out; empty for any other message. The turn itself has them whole."""
    if not isinstance(message, AIMessage) or not message.tool_calls:
        return ""
    return _with_calls(message, _content(message.content), limit=BRIEF_ARGUMENT_CHARS)


def _with_calls(message: BaseMessage, text: str, *, limit: int | None) -> str:
    made = message.tool_calls if isinstance(message, AIMessage) else []
    return "\n".join([*([text] if text else []), *(_call_text(call, limit) for call in made)])


def _call_text(call: Mapping[str, Any], limit: int | None) -> str:
    """`name(argument="value", ...)`, without the call's id."""
    shown = []
    for name, value in (call.get("args") or {}).items():
        try:
            text = json.dumps(value, ensure_ascii=False, default=str)
        except (TypeError, ValueError, RecursionError):  # what no record can keep is told to the model, and is no reason to stop
            text = calls.result_text(value)
        if limit is not None and len(text) > limit:
            text = f"<{len(value) if isinstance(value, str) else len(text)} chars>"
        shown.append(f"{name}={text}")
    return f"{call['name']}({', '.join(shown)})"


def _content(content: Any) -> str:
    """The text of a message: a string, or the readable blocks of a list."""
    if isinstance(content, str):
        return content
    return "\n".join(text for block in content if (text := _block(block))) if isinstance(content, list) else ""


def _block(block: Any) -> str:
    if isinstance(block, str):
        return block
    if not isinstance(block, Mapping):
        return ""
    if isinstance(block.get("text"), str):
        return str(block["text"])
    kind = block.get("type")
    return "" if kind in (None, "tool_use", "tool_call") else f"[{kind}]"


def _threaded(work: Callable[[Any], dict[str, Any]]) -> Callable[[Any], Awaitable[dict[str, Any]]]:
    async def run(state: Any) -> dict[str, Any]:
        return await asyncio.to_thread(work, state)

    return run
