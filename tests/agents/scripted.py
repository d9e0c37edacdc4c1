"""A model that says what a test wrote down, and remembers what it was asked with."""

from __future__ import annotations

from typing import Any

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult


def calling(*calls: tuple[str, dict[str, Any]], text: str = "", first: int = 1) -> AIMessage:
    """A message that calls tools; the ids of its calls are c1, c2 ... from `first`."""
    made = [{"name": name, "args": args, "id": f"c{number}"} for number, (name, args) in enumerate(calls, start=first)]
    return AIMessage(content=text, tool_calls=made)


class ScriptedModel(BaseChatModel):
    """Says one message after the other. `asked` are the messages it was given each time, `schemas` the tools it was shown."""

    script: list[AIMessage]
    asked: list[list[BaseMessage]] = []
    schemas: dict[str, Any] = {}

    def __init__(self, *script: AIMessage) -> None:
        super().__init__(script=list(script), asked=[], schemas={})  # type: ignore[call-arg]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> ScriptedModel:
        for tool in tools:
            schema = tool.tool_call_schema
            self.schemas[tool.name] = schema if isinstance(schema, dict) else schema.model_json_schema()
        return self

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        self.asked.append(messages)
        return ChatResult(generations=[ChatGeneration(message=self.script.pop(0))])
