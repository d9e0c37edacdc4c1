"""Advance a run by one step of its graph, with everything that a step may meet: calls left open, gates, limits, a graph that raises.

The checkpointer is passed in, since it needs a driver. LangGraph keeps the graph's state; the records keep what became of each call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Any

from actions.records import Action
from agents.harness import DurableAgent, Resolver
from agents.runs import RunType


class StepState(StrEnum):
    """What a step came to."""

    GOING = "going"  # there is a next step
    ASKS = "asks"  # one or more gates wait for a person: `asked`
    OPEN_CALLS = "open_calls"  # calls are in doubt: nothing was run, or nothing more is; `open_calls`
    DONE = "done"
    FAILED = "failed"  # `problem` says why; resuming begins this step again


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedCall:
    """One call that waits for a person. `interrupt_id` and `position` name its place; the other fields are LangChain's request."""

    interrupt_id: str
    position: int
    call_id: str
    tool: str
    args: Mapping[str, Any]
    digest: str
    description: str
    allowed: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a person said of one asked call, in LangChain's words: `type` approve, edit, reject or respond."""

    type: str
    digest: str  # of what they saw
    args: Mapping[str, Any] | None = None  # of an edit
    message: str = ""  # of a rejection or a response


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one step did. `checkpoint` is the id under which LangGraph kept the state; empty where none was written."""

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
) -> Step:
    """One step: settle what is open, then one superstep of the graph from its last checkpoint (`given` is the input of the first).

    `answers`, by interrupt id, in the order of its calls, are handed in once: where the graph does not wait for them they are left out.
    """
    raise NotImplementedError
