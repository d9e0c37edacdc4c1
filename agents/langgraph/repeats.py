"""Calls that LangGraph makes again by itself, without asking the model: how one is recognised among those that were made before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langgraph.runtime import get_runtime

from actions.arguments import canonical_arguments
from actions.limits import value_text
from actions.records import Action, ActionClass, ActionStatus, Turn

STOPPED = "stopped by the graph; LangGraph runs it again on resume"
_CORRECTION = "correction: action "


@dataclass(frozen=True, slots=True, kw_only=True)
class Entered:
    """What the records held when a step of a run was begun for the first time: what is newer is of this step, however often it is begun."""

    newest_action: int = 0
    newest_turn: int = 0
    is_retry: bool = False  # an attempt ended with an error: what failed in it is tried again
    cancels: int = 0  # how often the run was cancelled: what a person said before counts for nothing
    # With which arguments people let a call through in this step, by tool and call id, whatever they or others said of it since.
    let_through: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the model, as LangGraph would make it again by itself."""

    id: str  # empty: it has none, and is told from others by what it was given alone
    tool: str
    args: str  # comparable


def comparable(arguments: Mapping[str, Any] | str) -> str:
    """Arguments as text, the same for the same values in whichever order."""
    return canonical_arguments(value_text("arguments", arguments))


def current_attempt() -> tuple[str, int] | None:
    """The task of the graph that is running, and which attempt at it this is; None outside of a graph."""
    try:
        found = get_runtime().execution_info
    except (RuntimeError, KeyError):
        return None
    return (found.task_id, found.node_attempt) if found is not None else None


def may_run_again(action: Action) -> bool:
    """What did not happen, or changes nothing, or was stopped by the graph before it was over."""
    if action.status is ActionStatus.ABANDONED:
        return action.action_class is ActionClass.PURE or action.resolution == STOPPED
    return action.status is ActionStatus.FAILED or (action.action_class is ActionClass.PURE and action.is_open)


def told_by(turns: Sequence[Turn], actions: Sequence[Action]) -> dict[int, Turn]:
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
