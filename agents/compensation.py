"""Walk a run backward: each call that happened and has a compensation is taken back by it, newest first, once.

A compensation is an action of the run's agent like any other, with its own class and key. Its recorded arguments say which call it takes
back, so what was undone is read from the records alone, whoever died in between.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from actions.records import Action, ActionClass, ActionStatus
from actions.redaction import redact_text
from agents import calls
from agents.calls import EndUnrecorded, ToolCalls
from agents.ends import one_line
from agents.harness import DurableAgent, Resolver
from agents.runs import COMPENSATES, RunTool, RunType

MAX_ACTIONS = 10_000
"""How many actions of a run are looked at; one that has more is not walked backward by this."""


class UndoStepState(StrEnum):
    """Where taking back one call is."""

    WAITING = "waiting"
    HAPPENED = "happened"  # taken back
    FAILED = "failed"  # the compensation failed; going on tries it once more
    IN_DOUBT = "in_doubt"  # nobody knows whether the call, or its compensation, happened: settle it first
    NOTHING_TO_UNDO = "nothing_to_undo"  # the type names no compensation, or it answers that there is nothing to take back


class UndoState(StrEnum):
    """What `undo_next` came to."""

    GOING = "going"  # one was taken back; there may be more
    DONE = "done"  # nothing is left
    STOPPED = "stopped"  # a compensation failed: a person has to say how to go on
    OPEN_CALLS = "open_calls"  # a call is in doubt: nothing was made


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoStep:
    """One call that happened, or may have, and what takes it back. `problem` says why its arguments could not be made, redacted."""

    call: Action
    tool: str = ""
    args: Mapping[str, Any] | None = None
    state: UndoStepState
    undone_by: Action | None = None  # the newest compensation of it
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoOutcome:
    """What one `undo_next` did. `step` is what it was about; None where nothing is left."""

    state: UndoState
    step: UndoStep | None = None
    problem: str = ""  # one clean line, redacted
    calls: tuple[Action, ...] = ()  # begun or settled in it, by number


def plan(
    kind: RunType, actions: Sequence[Action], results: Mapping[int, str], args: Mapping[int, str] | None = None
) -> tuple[UndoStep, ...]:
    """What walking a run backward comes to, newest call first. Pure, but for the type's own functions that make arguments.

    `actions` are all of the run, `results` the whole results of those that overflowed, by number, `args` their whole arguments. Calls that
    did not happen (failed, given up) and pure ones are left out.
    """
    whole = args or {}
    undoing: dict[int, Action] = {}
    for action in sorted(actions, key=lambda action: action.seq):
        if (undone := compensated(action, whole.get(action.seq))) is not None:
            undoing[undone] = action
    steps = []
    for action in sorted(actions, key=lambda action: -action.seq):
        tool = kind.tool(action.tool)
        if compensated(action, whole.get(action.seq)) is not None or _did_not_happen(action):
            continue
        step = _step(action, tool, undoing.get(action.seq), results, whole)
        if tool is None and step.state is UndoStepState.NOTHING_TO_UNDO and not step.problem:
            gone = f"run type {kind.name} has no tool {redact_text(action.tool)} any more, so nobody can say what takes it back"
            step = replace(step, state=UndoStepState.WAITING, problem=gone)
        steps.append(step)
    return tuple(steps)


def undo_next(kind: RunType, run_id: str, *, agent: DurableAgent, resolver: Resolver | None = None) -> UndoOutcome:
    """Take back the newest call that is not yet: settle what is open, then make one compensation, recorded before it runs.

    A compensation that failed is made again, as another action: calling this after STOPPED is how a person says to go on. One that is in
    doubt is never made again before it is settled. Needs the agent of the run, whose lease this process keeps.

    Raises:
        LeaseLost, LeaseNotHeld, StoreUnavailable: as every write; call it again, nothing is taken back twice.
    """
    if agent.agent != run_id:
        raise ValueError(f"agent {agent.agent} is not that of run {run_id}")
    from agents.langgraph import recorded_calls  # LangGraph, which nobody needs who only shows runs

    first_new = agent.newest_action + 1
    tools = {tool.name: recorded_calls(agent, tool.tool, tool.action_class) for tool in kind.tools}
    known = {action.seq: action for action in calls.settle(agent, tools.values(), resolver=resolver)}
    outcome = _undo_next(kind, agent, tools)
    known |= {action.seq: action for action in agent.recent_actions(agent.newest_action - first_new + 1)}
    return replace(outcome, calls=tuple(known[seq] for seq in sorted(known)))


def _undo_next(kind: RunType, agent: DurableAgent, tools: Mapping[str, ToolCalls]) -> UndoOutcome:
    steps = plan(kind, *read_run(agent))
    if agent.pending_actions():
        doubted = next((step for step in steps if step.state is UndoStepState.IN_DOUBT), None)
        return UndoOutcome(state=UndoState.OPEN_CALLS, step=doubted, problem="a call is in doubt; it is settled first")
    step = next((step for step in steps if step.state in (UndoStepState.WAITING, UndoStepState.FAILED)), None)
    if step is None:
        return UndoOutcome(state=UndoState.DONE)
    if step.problem or step.args is None:
        return UndoOutcome(state=UndoState.STOPPED, step=step, problem=step.problem)
    return _take_back(agent, step, tools[step.tool])


def read_run(agent: DurableAgent) -> tuple[tuple[Action, ...], dict[int, str], dict[int, str]]:
    """What `plan` needs of a run: its actions, and the whole results and arguments of those that overflowed. Needs no lease."""
    actions = agent.recent_actions(MAX_ACTIONS)
    results = {action.seq: agent.get_output(action.result_ref).content for action in actions if action.result_ref}
    args = {action.seq: agent.get_output(action.args_ref).content for action in actions if action.args_ref}
    return actions, results, args


def compensated(action: Action, whole_args: str | None = None) -> int | None:
    """The number of the action that this one takes back; None where it is no compensation."""
    try:
        args = json.loads(whole_args if whole_args is not None else action.args)
    except ValueError:
        return None
    number = args.get(COMPENSATES) if isinstance(args, dict) else None
    return number if isinstance(number, int) and not isinstance(number, bool) and 0 < number < action.seq else None


def _step(
    call: Action, tool: RunTool | None, undone_by: Action | None, results: Mapping[int, str], whole: Mapping[int, str]
) -> UndoStep:
    undo = tool.compensate if tool else None
    step = UndoStep(call=call, tool=undo.tool if undo else "", state=UndoStepState.NOTHING_TO_UNDO, undone_by=undone_by)
    if call.is_open or (undone_by is not None and undone_by.is_open):
        return replace(step, state=UndoStepState.IN_DOUBT)
    if undone_by is not None and undone_by.status is ActionStatus.DONE:
        return replace(step, state=UndoStepState.HAPPENED)
    if undone_by is not None and undone_by.status is ActionStatus.ABANDONED:
        return replace(step, problem=redact_text(f"given up: {undone_by.resolution}"))
    if undo is None:
        return step
    state = UndoStepState.WAITING if undone_by is None else UndoStepState.FAILED
    try:
        given = json.loads(whole.get(call.seq, call.args) or "{}")
        if not isinstance(given, dict):
            raise TypeError("the recorded arguments name no parameters")
        args = undo.arguments(given, results.get(call.seq, call.result))
    except Exception as exc:  # whatever the type's own function raises
        return replace(step, state=state, problem=f"what {undo.tool} is to be given cannot be told: {one_line(exc)}")
    return step if args is None else replace(step, state=state, args=dict(args))


def _did_not_happen(action: Action) -> bool:
    return action.action_class is ActionClass.PURE or action.status in (ActionStatus.FAILED, ActionStatus.ABANDONED)


def _take_back(agent: DurableAgent, step: UndoStep, recorded: ToolCalls) -> UndoOutcome:
    args = dict(step.args or {})
    action = recorded.begin({**args, COMPENSATES: step.call.seq})
    try:
        result = recorded.rerun(args, action.key)
    except Exception as exc:
        recorded.raised(action, exc)
        is_open = any(one.seq == action.seq for one in agent.pending_actions())
        state, now = (UndoState.OPEN_CALLS, UndoStepState.IN_DOUBT) if is_open else (UndoState.STOPPED, UndoStepState.FAILED)
        return UndoOutcome(state=state, step=replace(step, state=now, undone_by=action), problem=one_line(exc))
    try:
        recorded.returned(action, result)
    except EndUnrecorded as exc:
        raise exc.__cause__ or exc from exc
    return UndoOutcome(state=UndoState.GOING, step=replace(step, state=UndoStepState.HAPPENED, undone_by=action))
