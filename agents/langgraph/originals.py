"""Tools as their authors wrote them: what their parameters are, and how one is called and recorded."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache, wraps
from typing import Annotated, Any

from langchain_core.tools import BaseTool, InjectedToolArg
from langchain_core.tools import tool as as_tool
from pydantic import BaseModel, create_model

from actions.records import ActionClass
from agents.calls import KEY_ARGUMENT, UNSURE, ToolCalls, ToolsRefused, is_unfinished, result_text
from agents.harness import DurableAgent
from agents.langgraph.messages import text_of
from agents.ledger import Ledger
from agents.runs import COMPENSATES
from agents.tools import run_coroutine


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
    original = original_of(tool)
    return ToolCalls(
        agent=agent,
        tool=original.name,
        action_class=ActionClass(action_class),
        takes_key=KEY_ARGUMENT in parameters_of(original),
        rerun=_rerun_of(original),
        may_hide_errors=bool(original.handle_tool_error or original.handle_validation_error),
        ledger=ledger,
        compensate=compensate,
        unsure=unsure,
    )


def original_of(tool: BaseTool | Callable[..., Any]) -> BaseTool:
    """A function becomes the tool that LangChain makes of it."""
    return tool if isinstance(tool, BaseTool) else _of_function(tool)


@lru_cache(maxsize=512)
def _of_function(function: Callable[..., Any]) -> BaseTool:
    """Made once, since its schema costs milliseconds and a step needs every tool of its run: whoever wraps it changes nothing in it.

    LangChain refuses a function without a docstring, which would be in the middle of a run; the model then reads its name in words.
    """
    if (function.__doc__ or "").strip():
        return as_tool(function)
    return as_tool(description=getattr(function, "__name__", "tool").replace("_", " "))(function)


def is_generator(tool: BaseTool) -> bool:
    """Whether it would return before it is over."""
    functions = (getattr(tool, "func", None), getattr(tool, "coroutine", None))
    return any(inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function) for function in functions)


def raising(tool: BaseTool) -> BaseTool:
    """The same, but for its handlers of errors: what goes wrong in it is raised."""
    return tool.model_copy(update={"handle_tool_error": False, "handle_validation_error": False})


def noting(tool: BaseTool, caught: list[Exception]) -> BaseTool:
    """The same tool with its own way of handling errors, which are noted: an error may have come of a time-out."""
    given = tool.handle_tool_error
    if not given:
        return tool

    def handle(exc: Exception) -> Any:
        caught.append(exc)
        if callable(given):
            return given(exc)  # type: ignore[arg-type]  # only a ToolException gets here
        return given if isinstance(given, str) else exc.args[0] if exc.args else "Tool execution error"

    return tool.model_copy(update={"handle_tool_error": handle})


def returning(tool: BaseTool, returned: list[Any]) -> BaseTool:
    """The same tool, which puts down what it returned: LangChain may fail to make a message of that, and it happened all the same."""
    copied = tool.model_copy()
    run, run_async = copied._run, copied._arun

    @wraps(run)
    def noted(*args: Any, **kwargs: Any) -> Any:
        result = run(*args, **kwargs)
        if not inspect.isawaitable(result) and not is_unfinished(result):
            returned.append(result)
        return result

    @wraps(run_async)
    async def noted_async(*args: Any, **kwargs: Any) -> Any:
        result = await run_async(*args, **kwargs)
        if not is_unfinished(result):
            returned.append(result)
        return result

    object.__setattr__(copied, "_run", noted)  # of this copy alone; pydantic has no field for it
    object.__setattr__(copied, "_arun", noted_async)
    return copied


def parameters_of(tool: BaseTool) -> set[str]:
    """All parameters, those that the model does not see included."""
    schema = tool.args_schema
    if isinstance(schema, dict):
        return set(schema.get("properties", {}))
    return set(getattr(tool.get_input_schema(), "model_fields", {}))


def filled_in_of(tool: BaseTool) -> set[str]:
    """Parameters that the graph fills in."""
    return set() if isinstance(tool.args_schema, dict) else parameters_of(tool) - set(tool.args)


def without_key(tool: BaseTool) -> Any:
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


def _rerun_of(tool: BaseTool) -> Callable[[Mapping[str, Any], str], str]:
    def rerun(arguments: Mapping[str, Any], key: str) -> str:
        returned: list[Any] = []
        bare = returning(raising(tool), returned)
        given = {name: value for name, value in arguments.items() if name != COMPENSATES or name in parameters_of(tool)}
        given[KEY_ARGUMENT] = key
        is_async_only = getattr(tool, "coroutine", None) is not None and getattr(tool, "func", None) is None
        try:
            return text_of(run_coroutine(lambda: bare.arun(given)) if is_async_only else bare.run(given), None)
        except Exception:
            if returned:
                return result_text(returned[-1])
            raise

    return rerun
