"""The run type of the chaos test: four calls in turn, whose effects are lines in files that no process of ours owns."""

from __future__ import annotations

import json
import os
import random
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import BaseModel, ConfigDict, Field

from actions.resolvers.base import Canary, Finding, Match, MatchedBy, Reply
from agents.runs import Gate, Limits, RunTool, RunType, Undo

FOLDER = "CHAOS_WORLD"
TOOLS = ("look", "save", "send", "note")
EFFECTS = ("save", "send", "note")
UNDOES = ("unsend",)
LONGEST_S = 0.25
"""Each call takes up to so long before its effect and after it, so that a kill finds it there."""


class Given(BaseModel):
    """Which one it is; every second one has to be approved."""

    model_config = ConfigDict(extra="forbid")

    number: int = Field(ge=1)


# --- tools ------------------------------------------------------------------------------------------------------------


def look(number: int) -> str:
    """Only read."""
    _pause()
    return f"number {number}"


def save(number: int, idempotency_key: str = "") -> str:
    """Store something; the same key again stores nothing more."""
    _pause()
    if idempotency_key not in keys("save"):
        _happen("save", number, idempotency_key)
    _pause()
    return "saved"


def send(number: int, is_gated: bool, idempotency_key: str = "") -> str:
    """Send something; every call sends."""
    return _external("send", number, idempotency_key)


def note(number: int, idempotency_key: str = "") -> str:
    """Write something down; every call writes."""
    return _external("note", number, idempotency_key)


def unsend(number: int, idempotency_key: str = "") -> str:
    """What would take a sending back; nobody does here."""
    return _external("unsend", number, idempotency_key)


def _external(tool: str, number: int, key: str) -> str:
    _pause()
    _happen(tool, number, key)
    _pause()
    return f"{tool}: {number}"


def _pause() -> None:
    time.sleep(random.uniform(0, LONGEST_S))


def _happen(tool: str, number: int, key: str) -> None:
    line = json.dumps({"number": number, "key": key, "at": time.time()}) + "\n"
    with (_folder() / f"{tool}.jsonl").open("a") as out:
        out.write(line)
        out.flush()
        os.fsync(out.fileno())


def effects(tool: str, folder: Path | None = None) -> list[dict[str, Any]]:
    """What this tool did, in order."""
    path = (folder or _folder()) / f"{tool}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def keys(tool: str) -> set[str]:
    return {effect["key"] for effect in effects(tool)}


def _folder() -> Path:
    return Path(os.environ[FOLDER])


def find(action: Any) -> Finding:
    """The resolver of the external tools: it reads the files. What is not there after the window did not happen."""
    found = [effect for effect in effects(action.tool) if effect["key"] == action.key]
    # Without a field to compare, what was found would wait for a person, who is not there.
    matches = tuple(
        Match(object_id=f"{action.tool}-{effect['number']}", by=MatchedBy.KEY, reference=str(effect["number"]))
        for effect in found
    )
    return Finding(reply=Reply.ANSWERED, matches=matches, canary=Canary.FOUND, is_complete=True, asked_at=0)


# --- graph ------------------------------------------------------------------------------------------------------------


class Model(BaseChatModel):
    """Makes the four calls in turn; what answered is not called again."""

    @property
    def _llm_type(self) -> str:
        return "scripted-chaos"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Model:
        return self

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=_next(messages))])


def _next(messages: Sequence[BaseMessage]) -> AIMessage:
    number = next(int(m.additional_kwargs["number"]) for m in messages if isinstance(m, HumanMessage) and m.additional_kwargs)
    answered = {message.name for message in messages if isinstance(message, ToolMessage)}
    for tool in TOOLS:
        if tool not in answered:
            args = {"number": number} | ({"is_gated": number % 2 == 0} if tool == "send" else {})
            return AIMessage(content="", tool_calls=[{"name": tool, "args": args, "id": f"call_{uuid.uuid4().hex[:12]}"}])
    return AIMessage(content=f"number {number} is done")


def start(given: Given) -> Mapping[str, Any]:
    return {"messages": [HumanMessage(content="Go.", additional_kwargs={"number": given.number})]}


def build(tools: Sequence[Any], hooks: Any, checkpointer: Any) -> Any:
    from langchain.agents import create_agent

    return create_agent(Model(), list(tools), middleware=[hooks.middleware()], checkpointer=checkpointer)


def back(args: Mapping[str, Any], result: str) -> Mapping[str, Any]:
    return {"number": args["number"]}


CHAOS = RunType(
    name="chaos",
    version=1,
    input=Given,
    build=build,
    start=start,
    limits=Limits(steps=200),
    tools=(
        RunTool(look, "pure"),
        RunTool(save, "idempotent"),
        RunTool(send, "external", gate=Gate(when="args.is_gated"), compensate=Undo("unsend", back)),
        RunTool(note, "external", is_reversible=True),
        RunTool(unsend, "external", only_undoes=True),
    ),
)
RUN_TYPES = (CHAOS,)
