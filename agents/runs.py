"""What a durable run is made of, declared in code: its graph, its tools with their classes, gates and compensations, its limits.

    REFUND = RunType(
        name="refund", version=1, input=Refund, build=build_refund, start=first_state,
        tools=(
            RunTool(look_up, "pure"),
            RunTool(pay, "external", gate=Gate(when="args.amount > 1000.0"), compensate=Undo("take_back", of_payment), moves_money=True),
            RunTool(take_back, "external", only_undoes=True),
        ),
    )

Nothing here runs anything: `agents/steps.py` advances a run by one graph step, `agents/compensation.py` walks one backward. A run is an agent
of the store, named by its run id, so the key of each call is a digest of run id and step, and a restart, a new run id, collides with nothing.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from actions.errors import ActionsError
from actions.records import Action, ActionClass
from actions.resolvers.cel import Expression, InvalidExpression
from actions.summary import names_in, problem_of_summary
from agents.calls import KEY_ARGUMENT, warn_of_tools

if TYPE_CHECKING:
    from decimal import Decimal

    from pydantic import BaseModel

log = logging.getLogger(__name__)

DECISIONS = ("approve", "edit", "reject", "respond")
"""LangChain's human-in-the-loop decisions, in its order."""
COMPENSATES = "compensates"
"""In the recorded arguments of a compensation: the number of the action that it takes back. No tool may have a parameter of that name."""
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")


class RunTypeRefused(ActionsError, ValueError):
    """The declaration cannot work as it stands. Nothing was registered; the message names every problem."""


class Expiry(StrEnum):
    """What becomes of a run whose approval nobody gave in time. Silence is never consent, nor a denial that the model is told of."""

    FAIL = "fail"  # the run fails; resuming it asks again
    ASK_AGAIN = "ask_again"  # the same question anew


class Recovery(StrEnum):
    """What is done by itself about a run whose worker died."""

    RESUME = "resume"  # go on from the last checkpoint
    RESTART = "restart"  # a new run from the beginning; never once a call that moves money has happened


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A person has to agree before the call is made. `when` is CEL over `args`, true where one has to; empty: always.

    A condition that cannot be evaluated for a call counts as true: nobody agreed to what could not be read.
    """

    when: str = ""
    allowed: tuple[str, ...] = DECISIONS
    needs_another: bool = False  # four eyes: an approver, and not who started the run
    expires_after: timedelta | None = None  # None: it waits
    on_expiry: Expiry = Expiry.FAIL
    description: str = ""  # what the person reads above the arguments


@dataclass(frozen=True, slots=True)
class Undo:
    """The tool that takes a call back, and its arguments made of the call's (whole arguments, result text). None: nothing to take back.

    Where a person settled the call, the result is what they wrote, if anything: a function that finds in it no number that it can be sure of
    raises, and the walk backward stops and asks.
    """

    tool: str
    arguments: Callable[[Mapping[str, Any], str], Mapping[str, Any] | None]


@dataclass(frozen=True, slots=True)
class RunTool:
    """One tool of a run type. `tool` is a function or a LangChain tool; a parameter `idempotency_key` is filled in and hidden."""

    tool: Any
    action_class: str
    gate: Gate | None = field(default=None, kw_only=True)
    compensate: Undo | None = field(default=None, kw_only=True)
    moves_money: bool = field(default=False, kw_only=True)  # once one has happened, the run is never restarted by itself
    is_reversible: bool = field(default=False, kw_only=True)  # an external call that does no harm if it stays
    only_undoes: bool = field(default=False, kw_only=True)  # not offered to the graph; called only to compensate

    @property
    def name(self) -> str:
        return str(getattr(self.tool, "name", None) or getattr(self.tool, "__name__", ""))

    @property
    def is_design_gap(self) -> bool:
        """An irreversible external call that nobody confirms and nothing takes back."""
        is_final = self.action_class == ActionClass.EXTERNAL and not self.is_reversible and not self.only_undoes
        return is_final and self.gate is None and self.compensate is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a run may use. Reaching one fails the run between two steps, never in the middle of a call."""

    steps: int = 100
    busy: timedelta = timedelta(minutes=30)  # in steps; waiting for people does not count
    cost: Decimal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunType:
    """What is registered. Callables must be quick, except the graph's own nodes and tools.

    `build(tools, hooks, checkpointer)` compiles the graph, anew for each step: `tools` are the durable ones, `hooks` the GraphHooks that
    brief the model and record its messages (give them to the agent, else a killed step cannot tell which calls it made). `start(input)`
    is the graph's first state; `result(state)` what the run came to, as text; `cost(message)` what one message of the model cost.
    `summary` says in one sentence what a run is for, with names of its input in braces: `Refund of {amount} EUR, order {order}`.
    """

    name: str
    version: int
    input: type[BaseModel]
    tools: tuple[RunTool, ...]
    build: Callable[[Sequence[Any], Any, Any], Any]
    start: Callable[[Any], Mapping[str, Any]]
    result: Callable[[Mapping[str, Any]], str] = lambda state: ""
    cost: Callable[[Any], Decimal] | None = None
    limits: Limits = Limits()
    recovery: Recovery = Recovery.RESUME
    resume_within: timedelta | None = None  # after that the world has moved: restart, where nothing forbids it
    compensates_itself: bool = False  # a failed or cancelled run is walked backward without being asked
    may_end_with_open_calls: bool = False  # else "done" waits until every call is settled
    title: str = ""
    summary: str = ""  # empty: the title and the first values of the input

    def tool(self, name: str) -> RunTool | None:
        return next((tool for tool in self.tools if tool.name == name), None)

    @property
    def design_gaps(self) -> tuple[str, ...]:
        return tuple(tool.name for tool in self.tools if tool.is_design_gap)


def check_run_type(kind: RunType, *, is_strict: bool = False) -> None:
    """Refuse a declaration that cannot work; warn of each design gap, or refuse it too where `is_strict`.

    Raises:
        RunTypeRefused: it names every problem. Nothing was registered.
    """
    names = [tool.name for tool in kind.tools]
    classes = {word.value for word in ActionClass}
    problems = (
        [] if _NAME.fullmatch(kind.name) else [f"{kind.name!r} is no name: lower-case letters, digits, - and _, at most 63"]
    )
    problems += _problems_of_summary(kind)
    problems += [f"two tools are named {name}" for name in dict.fromkeys(names) if names.count(name) > 1]
    for tool in kind.tools:
        if tool.action_class not in classes:
            problems.append(f"{tool.name} has class {tool.action_class!r}; use one of {', '.join(sorted(classes))}")
        problems += _problems_of_function(tool)
        if COMPENSATES in _parameters(tool.tool):
            problems.append(
                f"{tool.name} has a parameter {COMPENSATES}, which is kept for what the records say of a compensation"
            )
        if tool.compensate is not None:
            problems += _problems_of_undo(kind, tool, tool.compensate)
        if tool.gate is not None:
            problems += _problems_of_gate(tool, tool.gate)
    if is_strict:
        problems += [f"{name} cannot be undone: give it a gate or a compensation" for name in kind.design_gaps]
    if problems:
        raise RunTypeRefused(f"run type {kind.name}: {'; '.join(problems)}")
    for name in kind.design_gaps:
        log.warning("design gap: %s of run type %s cannot be undone and has neither a gate nor a compensation", name, kind.name)
    warn_of_tools(
        names,
        {tool.name: tool.action_class for tool in kind.tools},
        takes_key={tool.name for tool in kind.tools if KEY_ARGUMENT in _all_parameters(tool.tool)},
        undone={tool.name for tool in kind.tools if tool.compensate is not None},
    )


def call_digest(tool: str, args: Mapping[str, Any], gate: Gate, *, type_version: int, cancels: int = 0) -> str:
    """What an approval is bound to: tool, whole arguments and the rule that asked. SHA-256 of canonical JSON, hex.

    `cancels`: how often the run was cancelled so far; who agreed before somebody stopped it did not agree to its going on.
    """
    rule = [gate.when, list(gate.allowed), gate.needs_another, type_version, *([cancels] if cancels else [])]
    text = json.dumps([tool, args, rule], sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()


def read_input(kind: RunType, given: Mapping[str, Any]) -> BaseModel:
    """A run's input as its type's model has it: read as JSON, so that a strict model takes a date or an exact amount written as text.

    Raises:
        ValidationError: it does not fit. Anything else: a check of the type's own broke.
    """
    return kind.input.model_validate_json(json.dumps(given))


def has_moved_money(kind: RunType, actions: Iterable[Action]) -> bool:
    """Whether a call of a tool marked so has happened, or may have. A tool that the type has no more may have been marked."""
    tools = {tool.name: tool for tool in kind.tools}

    def counts(action: Action) -> bool:
        tool = tools.get(action.tool)
        return tool.moves_money if tool is not None else action.action_class is not ActionClass.PURE

    return any(counts(action) and action.status not in ("failed", "abandoned") for action in actions)


def _parameters(tool: Any) -> Iterable[str]:
    """Of a function or a LangChain tool, as the model or a caller names them."""
    found = getattr(tool, "args", None)
    if isinstance(found, Mapping):
        return found
    try:
        return inspect.signature(tool).parameters
    except (TypeError, ValueError):
        return ()


def _all_parameters(tool: Any) -> Iterable[str]:
    """Those too that a LangChain tool does not show to the model."""
    schema = getattr(tool, "args_schema", None)
    return [*_parameters(tool), *(getattr(schema, "model_fields", None) or ())]


def _problems_of_summary(kind: RunType) -> list[str]:
    if problem := problem_of_summary(kind.summary):
        return [f"its summary: {problem}"]
    known = {given for name, one in kind.input.model_fields.items() for given in (name, one.alias)}
    return [
        f"its summary names {name}, which is not in its input"
        for name in sorted(names_in(kind.summary))
        if name.partition(".")[0] not in known
    ]


def _problems_of_function(tool: RunTool) -> list[str]:
    """What would fail the first step of every run."""
    problems = []
    if not tool.name:
        problems.append(f"{type(tool.tool).__name__} has no name: wrap it in a function")
    if inspect.isgeneratorfunction(tool.tool) or inspect.isasyncgenfunction(tool.tool):
        problems.append(f"{tool.name} is a generator: it is not over when it returns; return the whole result")
    if tool.action_class == ActionClass.IDEMPOTENT and KEY_ARGUMENT not in _all_parameters(tool.tool):
        problems.append(f"{tool.name} is idempotent but takes no {KEY_ARGUMENT}: a repeat could not be told from a second call")
    return problems


def _problems_of_undo(kind: RunType, tool: RunTool, undo: Undo) -> list[str]:
    target = kind.tool(undo.tool)
    if target is None:
        return [f"{tool.name} is undone by {undo.tool}, which is not among the tools"]
    if undo.tool == tool.name:
        return [f"{tool.name} would undo itself"]
    return [f"{undo.tool} undoes {tool.name} and is pure"] if target.action_class == ActionClass.PURE else []


def _problems_of_gate(tool: RunTool, gate: Gate) -> list[str]:
    unknown = [word for word in gate.allowed if word not in DECISIONS]
    problems = [f"the gate of {tool.name} allows {word!r}; use {', '.join(DECISIONS)}" for word in unknown]
    if not gate.allowed:
        problems.append(f"the gate of {tool.name} allows no decision")
    if gate.when:
        try:
            Expression(gate.when, names=["args"])
        except InvalidExpression as exc:
            problems.append(f"the condition of the gate of {tool.name} cannot be read: {exc}")
    return problems
