"""The hooks of a graph: what its model reads before it is asked, and its messages as turns."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage, RemoveMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import BaseTool
from langgraph.graph.message import REMOVE_ALL_MESSAGES

from actions.records import Action
from actions.turns import BRIEF_BYTES, cut_bytes
from agents import calls
from agents.calls import ToolsRefused
from agents.gates import AskedCall
from agents.harness import DurableAgent, Resolver
from agents.langgraph.messages import brief_of, identity_of, messages_of, turn_of
from agents.langgraph.process import Process
from agents.langgraph.repeats import Entered
from agents.langgraph.tools import DurableTool

BRIEFING_ID = "recall-briefing"
"""The id of the briefing's message: recall-langgraph's, so that a state handed over holds one briefing and not two."""


class GraphHooks:
    """The hooks of one agent in one process: the briefing goes in front of what the model reads, its messages become turns.

    `tools` are those of `durable_tools`, whose turns are written with their actions and not a second time. An agent without durable tools
    gives none, and its `resolver` here. Messages are told apart by their ids; each is recorded once, also after a restart on the same
    thread of a checkpointer (of the newest 200 turns). Safe in several threads.
    """

    def __init__(self, agent: DurableAgent, tools: Sequence[BaseTool] = (), *, resolver: Resolver | None = None) -> None:
        of_tools = [tool.process for tool in tools if isinstance(tool, DurableTool)]
        self._process: Process = of_tools[0] if of_tools else Process(agent, resolver)
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
                identity = identity_of(message)
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

    def said(self, tool_calls: Sequence[Mapping[str, Any]], answered: Sequence[tuple[AskedCall, Mapping[str, Any]]] = ()) -> None:
        """The calls of the model's newest message: those behind gates are asked about at once where one task makes them all.

        `answered`: what people said of calls under another rule; it holds for those that none asks about any more.
        """
        self._process.asking.newest_calls, self._process.asking.answered = tuple(tool_calls), tuple(answered)

    def still_open(self) -> str:
        """What to say beside the model's last word while calls are open; empty when none is. Reads the store."""
        return calls.still_open(self._agent)

    def _record_one(self, message: BaseMessage) -> int:
        role, content, name = turn_of(message)
        if not content and role != "tool":
            return 0
        brief = brief_of(message)
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
        return {identity_of(message) for message in messages[: last + 1]}

    def _before(self, state: Any) -> dict[str, Any]:
        messages = messages_of(state)
        briefing = self.with_briefing(messages)  # first: settling may write turns, which belong before what is new
        self.record(messages)
        return {"llm_input_messages": briefing}

    def _after(self, state: Any) -> dict[str, Any]:
        self.record(messages_of(state))
        return {}

    def _brief_state(self, state: Any) -> dict[str, Any]:
        return {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), *self.with_briefing(messages_of(state))]}


def _threaded(work: Callable[[Any], dict[str, Any]]) -> Callable[[Any], Awaitable[dict[str, Any]]]:
    async def run(state: Any) -> dict[str, Any]:
        return await asyncio.to_thread(work, state)

    return run
