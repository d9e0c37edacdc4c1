"""Messages of a graph and turns of an agent: what of the one stands in the other. The shapes are those that recall-langgraph 0.3 writes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ChatMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.types import Command

from agents import calls

BRIEF_ARGUMENT_CHARS = 200
_CHAT_ROLES = ("system", "user", "assistant", "tool")


def messages_of(state: Any) -> list[BaseMessage]:
    messages = state.get("messages") if isinstance(state, Mapping) else getattr(state, "messages", None)
    if messages is None:
        raise ValueError("the graph's state has no messages")
    return list(messages)


def identity_of(message: BaseMessage) -> str:
    """Its id, which `add_messages` gives to every message; by what it says in a list made by hand."""
    if message.id:
        return message.id
    said = json.dumps([message.type, message.content, getattr(message, "tool_call_id", None)], default=str, sort_keys=True)
    return f"sha256:{hashlib.sha256(said.encode()).hexdigest()}"


def turn_of(message: BaseMessage) -> tuple[str, str, str]:
    """Role, content and name of a message's turn, as recall-langgraph 0.3 writes them."""
    text = content_of(message.content)
    if isinstance(message, HumanMessage):
        return "user", text, ""
    if isinstance(message, ToolMessage):
        return "tool", text or calls.result_text(message.content), message.name or ""
    if isinstance(message, SystemMessage):
        return "system", text, ""
    if isinstance(message, ChatMessage) and message.role in _CHAT_ROLES:
        return message.role, text, ""
    return "assistant", _with_calls(message, text, limit=None), ""


def brief_of(message: BaseMessage) -> str:
    """The model's calls with long arguments left out; empty for any other message. The turn itself has them whole."""
    if not isinstance(message, AIMessage) or not message.tool_calls:
        return ""
    return _with_calls(message, content_of(message.content), limit=BRIEF_ARGUMENT_CHARS)


def text_of(output: Any, call_id: str | None) -> str:
    """What a tool gave, as the model reads it."""
    if isinstance(output, ToolMessage):
        return content_of(output.content) or calls.result_text(output.content)
    if isinstance(output, Command):
        update = output.update if isinstance(output.update, Mapping) else {}
        told = [message for message in update.get("messages", ()) if isinstance(message, ToolMessage)]
        own = [message for message in told if call_id is None or message.tool_call_id == call_id]
        return "\n".join(text_of(message, call_id) for message in own) or calls.result_text(str(output))
    if isinstance(output, list) and any(isinstance(item, (ToolMessage, Command)) for item in output):
        return "\n".join(text_of(item, call_id) for item in output)
    return calls.result_text(output)


def tool_message(tool: str, text: str, call_id: str, *, is_error: bool = False) -> ToolMessage:
    return ToolMessage(content=text, name=tool, tool_call_id=call_id, status="error" if is_error else "success")


def _with_calls(message: BaseMessage, text: str, *, limit: int | None) -> str:
    made = message.tool_calls if isinstance(message, AIMessage) else []
    return "\n".join([*([text] if text else []), *(_call_text(call, limit) for call in made)])


def _call_text(call: Mapping[str, Any], limit: int | None) -> str:
    """`name(argument="value", ...)`, without the call's id."""
    shown = []
    for name, value in (call.get("args") or {}).items():
        try:
            text = json.dumps(value, ensure_ascii=False, default=str)
        except (TypeError, ValueError, RecursionError):  # what no record can keep is told to the model, and is no reason to stop
            text = calls.result_text(value)
        if limit is not None and len(text) > limit:
            text = f"<{len(value) if isinstance(value, str) else len(text)} chars>"
        shown.append(f"{name}={text}")
    return f"{call['name']}({', '.join(shown)})"


def content_of(content: Any) -> str:
    """The text of a message: a string, or the readable blocks of a list."""
    if isinstance(content, str):
        return content
    return "\n".join(text for block in content if (text := _block(block))) if isinstance(content, list) else ""


def _block(block: Any) -> str:
    if isinstance(block, str):
        return block
    if not isinstance(block, Mapping):
        return ""
    if isinstance(block.get("text"), str):
        return str(block["text"])
    kind = block.get("type")
    return "" if kind in (None, "tool_use", "tool_call") else f"[{kind}]"
