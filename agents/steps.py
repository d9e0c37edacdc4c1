"""Advance a run by one step of its graph, with everything that a step may meet: calls left open, gates, limits, a graph that raises.

The checkpointer is passed in, since it needs a driver. LangGraph keeps the graph's state; the records keep what became of each call.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import StrEnum
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage
from langgraph.errors import GraphBubbleUp
from langgraph.types import Command

from actions.errors import ActionsError, LeaseLost, LeaseNotHeld, StoreUnavailable
from actions.records import Action
from actions.store.memory import MemoryStore
from agents import checkpoints
from agents.checkpoints import StoredStep
from agents.ends import one_line
from agents.gates import Answer, AskedCall, OtherQuestion, Question, answered_before, read_question, response_to
from agents.harness import DurableAgent, Resolver
from agents.langgraph import Entered, GraphHooks, durable_tools
from agents.runs import RunType, read_input
from agents.spending import Meter, cost_of

__all__ = [
    "Answer",
    "AskedCall",
    "Lost",
    "Meter",
    "Step",
    "StepState",
    "StoredStep",
    "advance",
    "one_line",
    "read_lost",
    "read_trajectory",
    "state_problem",
]

log = logging.getLogger(__name__)

RESTART = "restart the run, or bring the earlier code back and resume it"


class StepState(StrEnum):
    """What a step came to."""

    GOING = "going"  # there is a next step
    ASKS = "asks"  # one or more gates wait for a person: `asked`
    OPEN_CALLS = "open_calls"  # calls are in doubt: nothing was run, or nothing more is; `open_calls`
    DONE = "done"
    FAILED = "failed"  # `problem` says why; resuming begins this step again


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one step did. `checkpoint` is the id under which LangGraph kept the state; empty where none was written.

    `cost` is of this attempt, whatever it came to: what its models were heard to say or what came into the state, whichever is more.
    """

    state: StepState
    checkpoint: str = ""
    nodes: tuple[str, ...] = ()
    asked: tuple[AskedCall, ...] = ()
    open_calls: tuple[Action, ...] = ()
    problem: str = ""
    result: str = ""
    cost: Decimal = Decimal(0)
    calls: tuple[Action, ...] = field(default=())  # begun or settled in this step, by number


def advance(
    kind: RunType,
    run_id: str,
    given: Mapping[str, Any],
    answers: Mapping[str, Sequence[Answer]],
    *,
    agent: DurableAgent,
    checkpointer: Any,
    resolver: Resolver | None = None,
    cancels: int = 0,
    let_through: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]] | None = None,
    meter: Meter | None = None,
) -> Step:
    """One step: settle what is open, then one superstep of the graph from its last checkpoint (`given` is the input of the first).

    `answers`, by interrupt id, in the order of its calls, are handed in once: where the graph does not wait for them they are left out.
    Give those of every answered question of the run: what a crash kept from reaching the graph is handed in then. The agent is the run's,
    resumed by this process, which keeps its lease for the whole step. A step that is begun again repeats no call that happened or may have.
    `cancels`: how often the run was cancelled so far; what was answered before counts for nothing. `let_through`, by tool and call id: with
    which arguments people let a call through since the last checkpoint; made so by an attempt that was lost, it is not made again.
    `meter` hears what the attempt costs, for whoever has to know that also of one that raises.

    Raises:
        LeaseLost, LeaseNotHeld: another process has the run. What this one did stands in the records; no checkpoint was written after that.
        StoreUnavailable: of the records or, as store "checkpoints", of the checkpoints. Advance again; nothing is made twice.
    """
    saver = checkpoints.fenced(checkpointer, agent)
    first_new = agent.newest_action + 1
    heard = meter or Meter(kind.cost)
    run = _Run(kind, run_id, agent, saver, cancels=cancels, meter=heard)
    try:
        before = checkpoints.find_newest(saver, run_id)
    except ActionsError:
        raise
    except Exception as exc:
        return _failed(f"the last checkpoint can no longer be read ({one_line(exc)}); {RESTART}")
    heard.note = lambda cost: checkpoints.note_spent(saver, run_id, before, heard.attempt, cost)
    tools = durable_tools(
        agent,
        [tool.tool for tool in kind.tools],
        {tool.name: tool.action_class for tool in kind.tools},
        resolver=resolver,
        gates={tool.name: tool.gate for tool in kind.tools if tool.gate is not None},
        type_version=kind.version,
        warns=False,
    )
    hooks = GraphHooks(agent, tools, resolver=resolver)
    try:
        settled = hooks.enter(replace(_entered(saver, before, agent, cancels), let_through=let_through or {}))
        step = run.step(before, given, answers, tools, hooks)
    except GraphBubbleUp as exc:  # a graph that drains or hands over to a parent that it has not
        step = _failed(one_line(exc))
    known = {action.seq: action for action in settled}
    known |= {action.seq: action for action in agent.recent_actions(agent.newest_action - first_new + 1)}
    return replace(step, calls=tuple(known[seq] for seq in sorted(known)), cost=max(step.cost, heard.spent))


def read_trajectory(kind: RunType, run_id: str, *, checkpointer: Any, limit: int = 200) -> tuple[StoredStep, ...]:
    """The newest steps of a run, newest first, at most `limit`. Needs no lease. Raises what the checkpointer raises."""
    return checkpoints.list_steps(checkpointer, run_id, limit=limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """What attempts left that nobody told of: their checkpoints, newest first, and what the step cost that none of them brought to its end."""

    steps: tuple[StoredStep, ...] = ()
    cost: Decimal = Decimal(0)


def read_lost(kind: RunType, run_id: str, *, checkpointer: Any, attempts: Collection[str], limit: int) -> Lost:
    """The newest checkpoints with their cost, at most `limit`, for whoever goes on after these attempts were lost. Needs no lease.

    What other attempts noted was counted by whoever made them. Raises what the checkpointer raises.
    """

    def cost(before: Any, one: Any) -> Decimal:
        unheard = _cost_between(kind, before, one) - checkpoints.spent_by(before)
        return checkpoints.spent_by(before, attempts) + max(unheard, Decimal(0))

    newest = checkpoints.find_newest(checkpointer, run_id)
    if newest is None:
        return Lost()
    steps = checkpoints.list_steps(checkpointer, run_id, limit=limit, cost=cost)
    return Lost(steps=steps, cost=checkpoints.spent_by(newest, attempts))


def _cost_between(kind: RunType, before: Any, one: Any) -> Decimal:
    """By the messages that came into the state; nothing where the type cannot tell."""
    if kind.cost is None:
        return Decimal(0)
    known = {message.id for message in _messages_of(before.checkpoint["channel_values"])}
    said = [message for message in _messages_of(one.checkpoint["channel_values"]) if message.id not in known]
    try:
        return sum((cost_of(kind.cost, message) for message in said), Decimal(0))
    except Exception as exc:
        log.warning("what a step cost cannot be told: %s", one_line(exc))
        return Decimal(0)


def state_problem(kind: RunType, run_id: str, *, checkpointer: Any) -> str:
    """Why the run's last checkpoint no longer loads with the code as it is now, in a sentence; empty where it does. Changes nothing."""
    agent = DurableAgent.resume(MemoryStore("none"), run_id, defer_lease=True)
    classes = {tool.name: tool.action_class for tool in kind.tools}
    tools = durable_tools(agent, [tool.tool for tool in kind.tools], classes, warns=False)
    run = _Run(kind, run_id, agent, checkpointer, cancels=0, meter=Meter(None))
    try:
        newest = checkpoints.find_newest(checkpointer, run_id)
    except Exception as exc:
        return f"the last checkpoint can no longer be read ({one_line(exc)}); {RESTART}"
    loaded = run.load(newest, tools, GraphHooks(agent, tools))
    return loaded.problem


class _Loaded(NamedTuple):
    """A graph and what it makes of its last checkpoint; one of them missing is a problem."""

    graph: Any = None
    state: Any = None
    problem: str = ""


class _Run:
    """One run while it makes one step."""

    def __init__(self, kind: RunType, run_id: str, agent: DurableAgent, saver: Any, *, cancels: int, meter: Meter) -> None:
        self._kind = kind
        self._run_id = run_id
        self._agent = agent
        self._saver = saver
        self._cancels = cancels
        self._config: dict[str, Any] = {"configurable": {"thread_id": run_id}, "callbacks": [meter]}

    def step(
        self,
        before: Any,
        given: Mapping[str, Any],
        answers: Mapping[str, Sequence[Answer]],
        tools: Sequence[Any],
        hooks: GraphHooks,
    ) -> Step:
        opened = self._agent.pending_actions()
        loaded = self.load(before, tools, hooks)
        if loaded.problem:
            return _failed(loaded.problem, open_calls=opened)
        if before is not None and not loaded.state.tasks:  # `next` leaves out tasks whose writes await the checkpoint
            return self._ended(loaded.state, opened)
        if opened:
            return Step(state=StepState.OPEN_CALLS, open_calls=opened)
        entry: Any = None
        answered: list[tuple[AskedCall, Mapping[str, Any]]] = []
        if loaded.state is not None and loaded.state.interrupts:
            try:
                questions = self._questions(loaded.state)
            except OtherQuestion as exc:
                return _failed(str(exc))
            entry, problem = self._answered(questions, answers)
            if entry is None and not any(question.is_outdated for question in questions):
                return Step(state=StepState.ASKS, asked=_asked(questions), problem=problem)
            answered = [pair for one in questions for pair in answered_before(one, answers.get(one.interrupt_id, ()))]
        hooks.said(_newest_calls(loaded.state), answered)
        if before is None:
            try:
                entry = self._kind.start(read_input(self._kind, given))
            except Exception as exc:
                return _failed(f"the run's input does not fit its type any more: {one_line(exc)}")
        problem = self._run(loaded.graph, entry)
        return self._after(loaded, before, problem)

    def load(self, newest: Any, tools: Sequence[Any], hooks: GraphHooks) -> _Loaded:
        """Build the graph, and read the checkpoint with it."""
        offered = {tool.name for tool in self._kind.tools if not tool.only_undoes}
        try:
            graph = self._kind.build([tool for tool in tools if tool.name in offered], hooks, self._saver)
        except ActionsError:
            raise
        except Exception as exc:
            return _Loaded(problem=f"the graph cannot be built: {one_line(exc)}; {RESTART}")
        if newest is None:
            return _Loaded(graph)
        if lost := checkpoints.lost_parts(newest, graph):
            return _Loaded(problem=f"the last checkpoint no longer loads: {lost}; {RESTART}")
        try:
            return _Loaded(graph, graph.get_state(self._config))
        except ActionsError:
            raise
        except Exception as exc:
            return _Loaded(problem=f"the last checkpoint no longer loads ({one_line(exc)}); {RESTART}")

    def _questions(self, state: Any) -> list[Question]:
        return [read_question(self._kind, asked, cancels=self._cancels) for asked in state.interrupts]

    def _answered(
        self, questions: Sequence[Question], answers: Mapping[str, Sequence[Answer]]
    ) -> tuple[Command[Any] | None, str]:
        """What the graph is resumed with: the questions all of whose calls are answered. Why an answer is left out is said."""
        resume, problems = {}, []
        for question in questions:
            response, problem = response_to(self._kind, question, answers.get(question.interrupt_id, ()))
            if response is not None:
                resume[question.interrupt_id] = response
            elif problem:
                problems.append(problem)
        return Command(resume=resume) if resume else None, "; ".join(problems)

    def _run(self, graph: Any, entry: Any) -> str:
        """One superstep; what it failed with, empty where it did not."""
        try:
            graph.invoke(entry, self._config, interrupt_after="*", durability="sync")
        except Exception as exc:
            self._raise_what_is_no_failure(exc)
            return one_line(exc)
        self._raise_what_is_no_failure(None)
        return ""

    def _raise_what_is_no_failure(self, exc: Exception | None) -> None:
        """A lease that was lost or a store that does not answer says nothing about the run, however deep in the graph it was noticed."""
        seen: set[int] = set()
        cause: BaseException | None = exc
        while cause is not None and id(cause) not in seen:
            if isinstance(cause, (LeaseLost, LeaseNotHeld, StoreUnavailable)):
                raise cause
            seen.add(id(cause))
            cause = cause.__cause__ or cause.__context__
        self._agent.hold()  # a graph may have caught it

    def _after(self, loaded: _Loaded, before: Any, problem: str) -> Step:
        opened = self._agent.pending_actions()
        newest = checkpoints.find_newest(self._saver, self._run_id)
        step = Step(state=StepState.GOING, open_calls=opened)
        if newest is not None and (before is None or newest.checkpoint["id"] != before.checkpoint["id"]):
            step = replace(step, checkpoint=newest.checkpoint["id"], nodes=checkpoints.nodes_between(before, newest))
        if problem:
            return replace(step, state=StepState.OPEN_CALLS if opened else StepState.FAILED, problem=problem)
        state = loaded.graph.get_state(self._config)
        try:
            step = replace(step, cost=self._cost(loaded.state, state))
        except Exception as exc:
            return replace(step, state=StepState.FAILED, problem=f"what the step cost cannot be told: {one_line(exc)}")
        if not state.tasks:
            ended = self._ended(state, opened)
            return replace(step, state=ended.state, problem=ended.problem, result=ended.result)
        if state.interrupts:
            try:
                step = replace(step, state=StepState.ASKS, asked=_asked(self._questions(state)))
            except OtherQuestion as exc:
                return replace(step, state=StepState.OPEN_CALLS if opened else StepState.FAILED, problem=str(exc))
        return replace(step, state=StepState.OPEN_CALLS) if opened else step

    def _ended(self, state: Any, opened: tuple[Action, ...]) -> Step:
        """The graph has no next step. Not done while a call is open, unless the type allows it."""
        if opened and not self._kind.may_end_with_open_calls:
            return Step(state=StepState.OPEN_CALLS, open_calls=opened)
        try:
            return Step(state=StepState.DONE, open_calls=opened, result=str(self._kind.result(state.values)))
        except Exception as exc:
            return _failed(f"what the run came to cannot be told: {one_line(exc)}", open_calls=opened)

    def _cost(self, before: Any, after: Any) -> Decimal:
        if self._kind.cost is None:
            return Decimal(0)
        known = {message.id for message in _said(before)}
        return sum((cost_of(self._kind.cost, message) for message in _said(after) if message.id not in known), Decimal(0))


def _entered(saver: Any, before: Any, agent: DurableAgent, cancels: int) -> Entered:
    if before is None:
        return Entered(cancels=cancels)
    now = {"newest_action": agent.newest_action, "newest_turn": agent.newest_turn}
    is_retry = any(channel == "__error__" for _, channel, _ in before.pending_writes or ())
    kept = checkpoints.enter(saver, before, now)
    return Entered(newest_action=kept["newest_action"], newest_turn=kept["newest_turn"], is_retry=is_retry, cancels=cancels)


def _said(state: Any) -> list[AIMessage]:
    return _messages_of(getattr(state, "values", None) or {})


def _messages_of(values: Any) -> list[AIMessage]:
    """The model's messages in a state, wherever it keeps them."""
    kept = values.values() if isinstance(values, Mapping) else vars(values).values()
    return [message for value in kept if isinstance(value, (list, tuple)) for message in value if isinstance(message, AIMessage)]


def _asked(questions: Sequence[Question]) -> tuple[AskedCall, ...]:
    return tuple(call for question in questions for call in question.calls)


def _newest_calls(state: Any) -> list[Mapping[str, Any]]:
    """The calls of the model's newest message, which a node that makes them all in one task asks about at once."""
    values = getattr(state, "values", None)
    messages = values.get("messages") if isinstance(values, Mapping) else getattr(values, "messages", None)
    newest = next((message for message in reversed(messages or ()) if isinstance(message, AIMessage)), None)
    return [dict(call) for call in newest.tool_calls] if newest else []


def _failed(problem: str, *, open_calls: tuple[Action, ...] = ()) -> Step:
    return Step(state=StepState.FAILED, problem=problem, open_calls=open_calls)
