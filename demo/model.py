"""The scripted chat model: no network, no chance. It makes the calls of its script that are still to be made, carefully."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from demo.caution import Result, Seen, last_words, look, next_step, results_in, unfinished_in
from demo.scripts import Script, Step


def seen_by(script: Script, messages: Sequence[BaseMessage]) -> list[Seen]:
    """What a model that reads these messages, the briefing among them, knows of each step of its script."""
    briefing = "\n".join(str(message.content) for message in messages if isinstance(message, SystemMessage))
    since = [Result(tool=m.name or "", text=str(m.content)) for m in messages if isinstance(m, ToolMessage)]
    return look(script.steps, [*results_in(briefing), *since], unfinished_in(briefing))


class ScriptedModel(BaseChatModel):
    """Plays a script. What it sees as done, open or given up it does not repeat; what was settled as failed it does."""

    script: Script

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> ScriptedModel:
        """The script knows its tools already."""
        return self

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        seen = seen_by(self.script, messages)
        step = next_step(seen)
        answer = AIMessage(content=last_words(seen, self.script.closing)) if step is None else _call(step)
        return ChatResult(generations=[ChatGeneration(message=answer)])


def _call(step: Step) -> AIMessage:
    call = {"name": step.tool, "args": dict(step.args), "id": f"call_{uuid.uuid4().hex[:12]}"}
    return AIMessage(content=step.say, tool_calls=[call])
