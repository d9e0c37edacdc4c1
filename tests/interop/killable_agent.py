"""A LangGraph agent that sends one email by a durable tool, and can be told to die inside it: `python -m tests.interop.killable_agent`.

Its model is scripted and careful: it calls the tool unless its history or briefing shows that the email was sent, or may have been.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import psutil
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool, InjectedToolArg, tool
from recall_langgraph import RecallResume

from tests.interop.driver import backend_of


class CarefulModel(BaseChatModel):
    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> CarefulModel:
        return self

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        answer = AIMessage(content="Nothing left to do.")
        if not is_sent_or_in_doubt(messages):
            call = {"name": "send_email", "args": {"to": "ann@example.com", "subject": "Refund"}, "id": f"call_{len(messages)}"}
            answer = AIMessage(content="", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=answer)])


def is_sent_or_in_doubt(messages: list[BaseMessage]) -> bool:
    if any(isinstance(message, ToolMessage) for message in messages):
        return True
    text = "\n".join(str(message.content) for message in messages)
    told = re.findall(r"\[tool send_email #\d+\] (.*)", text)
    if told:
        return not told[-1].startswith(("(settled after a crash: failed", "(settled after a crash: abandoned"))
    return re.search(r"^\d+\. send_email\(", text, re.MULTILINE) is not None


def send_email_tool(effects: Path, *, dies: bool) -> BaseTool:
    @tool
    def send_email(to: str, subject: str, idempotency_key: Annotated[str, InjectedToolArg] = "") -> str:
        """Send an email."""
        with effects.open("a") as outbox:
            outbox.write(json.dumps({"to": to, "subject": subject, "key": idempotency_key}) + "\n")
        if dies:
            die()
        return "sent"

    return send_email


def die() -> None:
    """SIGKILL for the binary, so that it cannot hand the lease over, then for this process: a machine that went away."""
    for child in psutil.Process().children(recursive=True):
        child.kill()
    os.kill(os.getpid(), signal.SIGKILL)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--agent", required=True)
    parser.add_argument("--effects", required=True, type=Path)
    parser.add_argument("--dies", action="store_true")
    args = parser.parse_args(argv)
    os.environ["LANGSMITH_TRACING"] = os.environ["LANGCHAIN_TRACING_V2"] = "false"
    warnings.filterwarnings("ignore")  # create_react_agent has moved; the new one lacks the hooks that Recall needs
    from langgraph.prebuilt import create_react_agent

    with RecallResume(args.agent, backend=backend_of(args.url), backend_url=args.url, lease_ttl=1) as resume:
        tools = resume.durable([send_email_tool(args.effects, dies=args.dies)], classes={"send_email": "external"})
        graph = create_react_agent(
            CarefulModel(), tools, pre_model_hook=resume.pre_model_hook, post_model_hook=resume.post_model_hook
        )
        answer = graph.invoke({"messages": [("user", "Tell Ann about her refund.")]})
        said = {
            "briefing": resume.briefing,
            "answer": str(answer["messages"][-1].content),
            "calls": [call["name"] for message in answer["messages"] for call in getattr(message, "tool_calls", [])],
            "open": [action.seq for action in resume.open_actions()],
        }
    print(json.dumps(said))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
