"""A durable tool: every call of it is an action, recorded before it runs and closed when it returns."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, get_type_hints

from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool
from langgraph.errors import GraphBubbleUp, ParentCommand
from langgraph.prebuilt import ToolRuntime
from pydantic import ConfigDict

from actions.errors import InvalidRecord
from actions.limits import value_text
from actions.records import Action, ActionClass
from agents.calls import KEY_ARGUMENT, result_text
from agents.langgraph.asking import Allowed, Asking
from agents.langgraph.messages import text_of
from agents.langgraph.originals import filled_in_of, noting, parameters_of, raising, returning
from agents.langgraph.repeats import STOPPED, Call, comparable
from agents.runs import COMPENSATES


class DurableTool(BaseTool):
    """A tool of which every call is an action. Made by `durable_tools`."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    inner: BaseTool
    calls: Any  # ToolCalls; Any, since pydantic would copy a frozen record
    process: Any  # Process, which knows its tools

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
        allowed = self._allowed(tool_input, tool_call_id)
        arguments = allowed.arguments
        if (known := self._answer(allowed, tool_call_id)) is not None:
            return allowed.told(*known)
        call, caught, returned = self.call_of(arguments, tool_call_id), list[Exception](), list[Any]()
        if allowed.is_refused:
            self.process.ended(call)
            return allowed.refused()
        try:
            action = self._begin(arguments, call)
            try:
                output = returning(self._called(tool_call_id, caught), returned).run(
                    self._given(arguments, action), *args, tool_call_id=tool_call_id, **kwargs
                )
            except Exception as exc:
                self._stopped(action, exc, call, returned)
                raise
            return allowed.told(self._returned(action, output, call, caught))
        finally:
            self.process.left(call)

    async def arun(self, tool_input: str | dict[str, Any], *args: Any, tool_call_id: str | None = None, **kwargs: Any) -> Any:
        """As `run`; the records are written in threads. A cancelled task leaves the action open."""
        allowed = self._allowed(tool_input, tool_call_id)
        arguments = allowed.arguments
        if (known := await asyncio.to_thread(self._answer, allowed, tool_call_id)) is not None:
            return allowed.told(*known)
        call, caught, returned = self.call_of(arguments, tool_call_id), list[Exception](), list[Any]()
        if allowed.is_refused:
            self.process.ended(call)
            return allowed.refused()
        try:
            action = await asyncio.to_thread(self._begin, arguments, call)
            try:
                output = await returning(self._called(tool_call_id, caught), returned).arun(
                    self._given(arguments, action), *args, tool_call_id=tool_call_id, **kwargs
                )
            except Exception as exc:
                await asyncio.to_thread(self._stopped, action, exc, call, returned)
                raise
            return allowed.told(await asyncio.to_thread(self._returned, action, output, call, caught))
        finally:
            self.process.left(call)

    def _allowed(self, tool_input: str | dict[str, Any], call_id: str | None) -> Allowed:
        arguments = dict(tool_input) if isinstance(tool_input, dict) else {next(iter(self.args), "input"): tool_input}
        asking: Asking = self.process.asking
        return asking.allowed(self.name, arguments, shown=self.shown(arguments), call_id=call_id)

    def _answer(self, allowed: Allowed, call_id: str | None) -> tuple[Any, Mapping[str, Any] | None] | None:
        """What is said instead of a call, and with which arguments that was made; None: it is to be made."""
        try:
            value_text("arguments", self.shown(allowed.arguments))
        except InvalidRecord as exc:
            if not call_id:
                raise
            return ToolMessage(content=f"not called: {exc}", name=self.name, tool_call_id=call_id, status="error"), None
        known: tuple[Any, Mapping[str, Any]] | None = self.process.answer(self, call_id, allowed.forms)
        return known

    def _begin(self, arguments: Mapping[str, Any], call: Call) -> Action:
        """The record of this call; an idempotent one that this process left open is made again under its own."""
        action: Action | None = self.process.left_open(call) if self.calls.action_class is ActionClass.IDEMPOTENT else None
        if action is None:
            try:
                action = self.calls.begin(self.shown(arguments))
            except BaseException:
                self.process.ended(call)
                raise
        self.process.began(call, action)
        return action

    def shown(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """What the model gave: no key, nothing that the graph put in, and not what only a compensation's record says."""
        hidden = filled_in_of(self.inner) | {KEY_ARGUMENT, *({COMPENSATES} - parameters_of(self.inner))}
        return {name: value for name, value in arguments.items() if name not in hidden and not isinstance(value, ToolRuntime)}

    def call_of(self, arguments: Mapping[str, Any], call_id: str | None) -> Call:
        return Call(call_id or "", self.name, comparable(self.shown(arguments)))

    def as_returned(self, result: str) -> Any:
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

    def _called(self, call_id: str | None, caught: list[Exception]) -> BaseTool:
        """Without a call id a handled error would come back as plain content, and be taken for a result. `caught`: what it handles itself."""
        return noting(self.inner, caught) if call_id else raising(self.inner)

    def _stopped(self, action: Action, exc: Exception, call: Call, returned: Sequence[Any]) -> None:
        """`returned`: what the tool itself gave, where that came to its end and LangChain made nothing of it."""
        if returned and not isinstance(exc, GraphBubbleUp):
            self.calls.returned(action, result_text(returned[-1]), call_id=call.id)
        elif isinstance(exc, ParentCommand):  # the tool is over; where the graph goes on is its result
            self.calls.returned(action, text_of(exc.args[0], call.id or None), call_id=call.id)
        elif isinstance(exc, GraphBubbleUp):
            self.calls.stopped(action, exc, STOPPED)
            self.process.ended(call)
            return
        elif not self.calls.raised(action, exc, call_id=call.id):
            return
        self.process.told(call.id)
        self.process.ended(call)

    def _returned(self, action: Action, output: Any, call: Call, caught: list[Exception]) -> Any:
        text = text_of(output, call.id or None)
        if isinstance(output, ToolMessage) and output.status == "error":
            if not self.calls.reported(action, caught[-1] if caught else None, text, call_id=call.id):
                return output
        else:
            self.calls.returned(action, text, call_id=call.id)
        self.process.returned(call, output)
        return output
