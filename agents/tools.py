"""Plain callables as durable tools: each call is recorded before it runs and closed when it returns; the model never sees the key.

agent = DurableAgent.resume(store, "support-7")
tools = durable([look_up, save_invoice, send_email], agent=agent,
                classes={"look_up": "pure", "save_invoice": "idempotent", "send_email": "external"})
settle(tools, agent=agent, resolver=sent_folder)      # before the model reads agent.briefing
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import re
import threading
import typing
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

from actions.records import Action, ActionClass
from agents import calls
from agents.calls import KEY_ARGUMENT, UNSURE, EndUnrecorded, ToolCalls, ToolsRefused, UnclassifiedTool, still_open
from agents.harness import DurableAgent, Resolver
from agents.ledger import Ledger

__all__ = ["EndUnrecorded", "ToolsRefused", "UnclassifiedTool", "calls_of", "durable", "settle", "still_open"]

_ATTRIBUTE = "__durable_calls__"
_DESCRIBED = re.compile(rf"(?::param\s+(?:[^:]*\s)?{KEY_ARGUMENT}\s*:|{KEY_ARGUMENT}\s*(?:\([^)]*\))?\s*:)")

Tool = Callable[..., Any]


def durable(
    tools: Sequence[Tool],
    *,
    classes: Mapping[str, str],
    agent: DurableAgent,
    compensate: Mapping[str, str] | None = None,
    ledger: Ledger | None = None,
    unsure: tuple[type[Exception], ...] = UNSURE,
) -> list[Tool]:
    """The tools, in order, each call an action of this agent. Functions stay functions, and async ones async; names are `__name__`.

    A tool with a parameter `idempotency_key` gets the action's key in it, the same on every retry; signature, annotations and docstring
    no longer show it. A call whose arguments do not fit raises TypeError and records nothing. What the tool raises closes the call as
    `failed` and is raised; `unsure` are exceptions after which nobody knows (a time-out is no failure, nor an error that came of one, unless
    it was raised `from None`): the call stays open as `unknown`. So does one that returns a generator; what it returns to be awaited is
    recorded once it was. A killed process, Ctrl-C, or a cancelled task leaves the action open, for the next resume to settle.

    `classes` are pure, idempotent or external, for every tool. `compensate` names the tool that undoes a tool. `ledger` keeps notes of
    external calls (agents/ledger.py says what they prove).

    Raises:
        UnclassifiedTool: it names every tool without a class. Nothing was wrapped.
        ToolsRefused: the declarations contradict each other or the tools. Nothing was wrapped.
    """
    undo = dict(compensate or {})
    _refuse_what_cannot_be_wrapped(tools)
    signatures = {_name(tool): inspect.signature(tool) for tool in tools}
    keyed = {name for name, signature in signatures.items() if _takes_key(signature)}
    names = [_name(tool) for tool in tools]
    calls.check_tools(names, classes, takes_key=keyed, compensate=undo)
    calls.warn_of_tools(names, classes, takes_key=keyed, undone=undo)
    wrapped = []
    for tool in tools:
        name = _name(tool)
        shown = _Shown(tool, takes_key=name in keyed)
        recorded = ToolCalls(
            agent=agent,
            tool=name,
            action_class=ActionClass(classes[name]),
            takes_key=name in keyed,
            rerun=functools.partial(_rerun, tool, shown),
            ledger=ledger,
            compensate=undo.get(name, ""),
            unsure=unsure,
        )
        wrapped.append(_wrap(tool, shown, recorded))
    return wrapped


def settle(tools: Sequence[Tool], *, agent: DurableAgent, resolver: Resolver | None = None) -> tuple[Action, ...]:
    """Settle what a crash left open, before the model reads `agent.briefing`; answers those that were closed. See `agents.calls.settle`.

    Async tools are run again in an event loop of their own; from within a running loop call this by `asyncio.to_thread`.
    """
    return calls.settle(agent, [calls_of(tool) for tool in tools], resolver=resolver)


def calls_of(tool: Tool) -> ToolCalls:
    """How a durable tool records its calls: its class, its key, what undoes it. Raises TypeError for any other callable."""
    found = getattr(tool, _ATTRIBUTE, None)
    if not isinstance(found, ToolCalls):
        raise TypeError(f"{_name(tool)} is not durable; give what `durable` answered")
    return found


def _wrap(tool: Tool, shown: _Shown, recorded: ToolCalls) -> Tool:
    if _is_async(tool):

        async def call_async(*args: Any, **kwargs: Any) -> Any:
            arguments = shown.read(args, kwargs)
            action = await asyncio.to_thread(recorded.begin, arguments)
            return await _awaited(shown.call(arguments, action.key), action, recorded)

        return shown.dress(call_async, recorded)

    def call(*args: Any, **kwargs: Any) -> Any:
        arguments = shown.read(args, kwargs)
        action = recorded.begin(arguments)
        try:
            result = shown.call(arguments, action.key)
        except Exception as exc:
            recorded.raised(action, exc)
            raise
        if inspect.isawaitable(result):  # an async tool behind a decorator or a lambda: it is over when it was awaited
            return _awaited(result, action, recorded)
        if calls.is_unfinished(result):
            raise recorded.unfinished(action, result)
        recorded.returned(action, calls.result_text(result))
        return result

    return shown.dress(call, recorded)


async def _awaited(work: Awaitable[Any], action: Action, recorded: ToolCalls) -> Any:
    try:
        result = await work
    except Exception as exc:
        await asyncio.to_thread(recorded.raised, action, exc)
        raise
    if calls.is_unfinished(result):
        raise await asyncio.to_thread(recorded.unfinished, action, result)
    await asyncio.to_thread(recorded.returned, action, calls.result_text(result))
    return result


class _Shown:
    """A tool as the model sees it: everything but the key."""

    def __init__(self, tool: Tool, *, takes_key: bool) -> None:
        self._tool = tool
        self._takes_key = takes_key
        self._whole = inspect.signature(tool)
        hints = _hints(tool)
        parameters = [
            parameter.replace(annotation=hints.get(parameter.name, parameter.annotation))
            for parameter in self._whole.parameters.values()
            if not takes_key or parameter.name != KEY_ARGUMENT
        ]
        answer = hints.get("return", self._whole.return_annotation)
        self._signature = self._whole.replace(parameters=parameters, return_annotation=answer)
        self._hints = {name: hint for name, hint in hints.items() if not takes_key or name != KEY_ARGUMENT}

    def read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments by parameter. Raises TypeError where they do not fit."""
        return dict(self._signature.bind(*args, **kwargs).arguments)

    def call(self, arguments: Mapping[str, Any], key: str) -> Any:
        given = {**arguments, KEY_ARGUMENT: key} if self._takes_key else dict(arguments)
        ordered = {name: given[name] for name in self._whole.parameters if name in given}
        bound = inspect.BoundArguments(self._whole, ordered)
        return self._tool(*bound.args, **bound.kwargs)

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Raises TypeError where recorded arguments no longer fit the tool, before it is run."""
        bound = inspect.BoundArguments(self._signature, dict(arguments))
        if unknown := set(arguments) - set(self._signature.parameters):
            raise TypeError(f"{_name(self._tool)} takes no {', '.join(sorted(unknown))} any more")
        self._signature.bind(*bound.args, **bound.kwargs)

    def dress(self, wrapper: Any, recorded: ToolCalls) -> Tool:
        functools.update_wrapper(wrapper, self._tool, assigned=("__module__", "__name__", "__qualname__"), updated=())
        del wrapper.__wrapped__  # whoever unwraps would call without a record
        wrapper.__name__ = recorded.tool
        wrapper.__doc__ = _without_key(inspect.getdoc(self._tool)) if self._takes_key else inspect.getdoc(self._tool)
        wrapper.__signature__ = self._signature
        wrapper.__annotations__ = self._hints
        setattr(wrapper, _ATTRIBUTE, recorded)
        return typing.cast("Tool", wrapper)


def _rerun(tool: Tool, shown: _Shown, arguments: Mapping[str, Any], key: str) -> str:
    shown.check(arguments)
    if _is_async(tool):
        return calls.result_text(run_coroutine(lambda: shown.call(arguments, key)))
    result = shown.call(arguments, key)
    if inspect.isawaitable(result):
        result = run_coroutine(lambda: _whole(result))
    if calls.is_unfinished(result):
        raise TypeError(f"it returned a {type(result).__name__}, which is not over when it returns")
    return calls.result_text(result)


async def _whole(work: Awaitable[Any]) -> Any:
    return await work


def run_coroutine(make: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run a coroutine to its end in a thread and loop of its own, whether or not the caller's thread has a running loop."""
    answered: list[Any] = []
    failed: list[BaseException] = []

    async def run() -> None:
        answered.append(await make())

    def target() -> None:
        try:
            asyncio.run(run())
        except BaseException as exc:  # handed to the caller's thread below
            failed.append(exc)

    thread = threading.Thread(target=target, name="durable-tool")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return answered[0]


def _refuse_what_cannot_be_wrapped(tools: Sequence[Tool]) -> None:
    problems = []
    for tool in tools:
        if not callable(tool):
            problems.append(f"{tool!r} is no callable; LangChain's tools go through agents.langgraph")
        elif isinstance(getattr(tool, _ATTRIBUTE, None), ToolCalls):
            problems.append(f"{_name(tool)} is durable already")
        elif any(check(_function(tool)) for check in (inspect.isgeneratorfunction, inspect.isasyncgenfunction)):
            problems.append(f"{_name(tool)} is a generator: it is not over when it returns; return the whole result")
        else:
            try:
                inspect.signature(tool)
            except (TypeError, ValueError) as exc:
                problems.append(f"the parameters of {_name(tool)} cannot be told ({exc}); wrap it in a function of your own")
    if problems:
        raise ToolsRefused("; ".join(problems))


def _takes_key(signature: inspect.Signature) -> bool:
    found = signature.parameters.get(KEY_ARGUMENT)
    return found is not None and found.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _name(tool: Any) -> str:
    while isinstance(tool, functools.partial):
        tool = tool.func
    return str(getattr(tool, "__name__", None) or type(tool).__name__)


def _function(tool: Any) -> Any:
    """What is really called: an object's `__call__`, the function inside a partial."""
    while isinstance(tool, functools.partial):
        tool = tool.func
    return tool if inspect.isroutine(tool) or inspect.isclass(tool) else type(tool).__call__


def _is_async(tool: Tool) -> bool:
    return inspect.iscoroutinefunction(_function(tool))


def _hints(tool: Tool) -> dict[str, Any]:
    """Annotations as types: as text they could not be understood outside their own module. Those that nobody can resolve stay as written."""
    function = _function(tool)
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception:  # a name that exists for type checkers only, or whatever evaluating an annotation raises
        return dict(getattr(function, "__annotations__", {}))


def _without_key(text: str | None) -> str | None:
    """A docstring without the lines about the key, in the ways of Google, NumPy and Sphinx."""
    if text is None:
        return None
    kept: list[str] = []
    skipped_indent: int | None = None
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        if skipped_indent is not None and line.strip() and indent > skipped_indent:
            continue
        skipped_indent = indent if _DESCRIBED.match(line.strip()) else None
        if skipped_indent is None:
            kept.append(line)
    return _without_empty_heading("\n".join(kept)).strip()


def _without_empty_heading(text: str) -> str:
    return re.sub(r"\n[ \t]*(?:Args|Arguments|Parameters):?[ \t]*(?:\n[ \t]*-+)?[ \t]*(?=\n\s*\n|\n*\Z)", "", text)
