"""The hooks of `agents.langgraph` as middleware of LangChain's `create_agent`; apart, because a graph of one's own needs no langchain."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from langchain.agents.middleware import AgentMiddleware
from langchain.agents.middleware.types import ModelRequest, ModelResponse
from langchain_core.messages import SystemMessage

if TYPE_CHECKING:
    from agents.langgraph import GraphHooks


class DurableMiddleware(AgentMiddleware[Any, Any, Any]):
    """Records what came before the model is asked and what it says before its calls are run; the briefing follows the system prompt."""

    def __init__(self, hooks: GraphHooks) -> None:
        super().__init__()
        self._hooks = hooks

    def before_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        self._hooks.briefing_message()  # first: settling may write turns, which belong before what is new
        self._hooks.record(state["messages"])
        return None

    async def abefore_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        return await asyncio.to_thread(self.before_model, state, runtime)

    def after_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        self._hooks.record(state["messages"])
        return None

    async def aafter_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        return await asyncio.to_thread(self.after_model, state, runtime)

    def wrap_model_call(self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]) -> Any:
        return handler(self._briefed(request))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> Any:
        return await handler(await asyncio.to_thread(self._briefed, request))

    def _briefed(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        """In the one system message: some providers take no second."""
        briefing = self._hooks.briefing_message()
        own = request.system_message
        if own is None:
            return request.override(system_message=briefing)
        blocks = [*own.content_blocks, {"type": "text", "text": f"\n\n{briefing.content}"}]
        content = f"{own.content}\n\n{briefing.content}" if isinstance(own.content, str) else blocks
        return request.override(system_message=SystemMessage(content=content, id=own.id))
