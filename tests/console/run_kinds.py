"""Run types of the tests: a scripted model that makes the calls of its input, one turn after the other; effects are lines of files outside.

A tool stops where a file `stop-before-<whom>` or `stop-after-<whom>` stands in the folder of effects, says so by `at-...`, and goes on once
the file is gone; with `vague-<tool>` it does not know whether it happened, with `fails-<tool>` it fails. With `dies` the process is gone as soon
as the model has spoken.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode
from pydantic import BaseModel, ConfigDict, Field

from agents.runs import Expiry, Gate, Limits, Recovery, RunTool, RunType, Undo

MODULE = "tests.console.run_kinds"
EFFECTS = "RUN_EFFECTS"
Call = tuple[str, dict[str, Any]]


class Errand(BaseModel):
    """`turns`: what the model calls, turn by turn; `breaks` in which turn it raises while a file `broken` stands."""

    model_config = ConfigDict(extra="forbid")

    turns: list[list[Call]] = Field(max_length=50)
    breaks: int | None = None


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    turns: list[Any]
    breaks: int | None


# --- the world -------------------------------------------------------------------------------------------------------


def folder() -> Path:
    return Path(os.environ[EFFECTS])


def effects(tool: str) -> list[dict[str, Any]]:
    """What this tool has done, in order."""
    file = folder() / f"{tool}.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _stop(point: str) -> None:
    if (folder() / f"stop-{point}").exists():
        (folder() / f"at-{point}").touch()
        while (folder() / f"stop-{point}").exists():
            time.sleep(0.02)


def _happens(tool: str, key: str, **what: Any) -> str:
    place = next(iter(str(value) for name, value in what.items() if name != "amount"))
    _stop(f"before-{place}")
    if (folder() / f"fails-{tool}").exists():
        raise RuntimeError("it was refused")
    with (folder() / f"{tool}.jsonl").open("a") as file:
        file.write(json.dumps({"key": key, **what}) + "\n")
    _stop(f"after-{place}")
    if (folder() / f"vague-{tool}").exists():
        raise TimeoutError("no answer within 5 s")
    return f"{tool} {key[:8]}"


def look_up(order: str) -> str:
    """Look an order up."""
    with (folder() / "look_up.jsonl").open("a") as file:
        file.write(json.dumps({"order": order}) + "\n")
    return f"order {order} is there"


def send(to: str, idempotency_key: str) -> str:
    """Send an email."""
    return _happens("send", idempotency_key, to=to)


def pay(amount: float, to: str, idempotency_key: str) -> str:
    """Pay somebody."""
    return _happens("pay", idempotency_key, amount=amount, to=to)


def take_back(payment: str, idempotency_key: str) -> str:
    """Take a payment back."""
    return _happens("take_back", idempotency_key, payment=payment)


def book(item: str, idempotency_key: str) -> str:
    """Book something; the same key is the same booking."""
    if any(one["key"] == idempotency_key for one in effects("book")):
        return f"book {idempotency_key[:8]}"
    return _happens("book", idempotency_key, item=item)


def of_payment(args: Mapping[str, Any], result: str) -> Mapping[str, Any] | None:
    return {"payment": result}


# --- the graph -------------------------------------------------------------------------------------------------------


class Died(BaseException):
    """As far as anybody who looks from outside can tell, the process was killed here."""


class _Says(BaseChatModel):
    """A model as LangChain's callbacks hear it."""

    said: AIMessage

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(self, messages: list[Any], stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self.said)])


def _start(given: Errand) -> dict[str, Any]:
    return {"messages": [HumanMessage("do your errands", id="h0")], "turns": given.turns, "breaks": given.breaks}


def _model(state: State) -> dict[str, Any]:
    turn = sum(isinstance(message, AIMessage) for message in state["messages"])
    if turn == state["breaks"] and (folder() / "broken").exists():
        raise ValueError("the model broke: api_key=sk-live-0123456789abcdef0123")
    if turn < len(state["turns"]):
        made = [{"name": name, "args": args, "id": f"c{turn}-{n}"} for n, (name, args) in enumerate(state["turns"][turn])]
        said = AIMessage("", tool_calls=made, id=f"m{turn}")
    else:
        told = [str(message.content) for message in state["messages"] if isinstance(message, ToolMessage)]
        said = AIMessage(f"done: {'; '.join(told)}", id=f"m{turn}")
    heard = _Says(said=said).invoke(state["messages"])
    if (folder() / "dies").exists():
        raise Died
    return {"messages": [heard]}


def _build(tools: Sequence[Any], hooks: Any, checkpointer: Any) -> Any:
    graph = StateGraph(State)
    graph.add_node("model", _model)
    graph.add_node("record", hooks.record_node)
    graph.add_node("tools", ToolNode(list(tools)))
    graph.add_edge(START, "model")
    graph.add_edge("model", "record")
    graph.add_conditional_edges("record", lambda state: "tools" if state["messages"][-1].tool_calls else END)
    graph.add_edge("tools", "model")
    return graph.compile(checkpointer=checkpointer)


def _result(state: Mapping[str, Any]) -> str:
    return str(state["messages"][-1].content)


TOOLS = (
    RunTool(look_up, "pure"),
    RunTool(send, "external", is_reversible=True),
    RunTool(
        pay,
        "external",
        gate=Gate(when="args.amount > 1000.0", description="more than 1000"),
        compensate=Undo("take_back", of_payment),
        moves_money=True,
    ),
    RunTool(take_back, "external", only_undoes=True),
    RunTool(book, "idempotent"),
)


def _kind(name: str, tools: tuple[RunTool, ...] = TOOLS, **more: Any) -> RunType:
    return RunType(
        name=name,
        version=1,
        input=Errand,
        tools=tools,
        build=_build,
        start=_start,
        result=_result,
        cost=lambda message: Decimal("0.01"),
        **more,
    )


def paying(**gate: Any) -> tuple[RunTool, ...]:
    """The same tools; every payment asks, as this gate says."""
    return tuple(
        RunTool(pay, "external", gate=Gate(**gate), compensate=tool.compensate, moves_money=True) if tool.name == "pay" else tool
        for tool in TOOLS
    )


# --- for tests of pages and rights: declared as any other, and never advanced ----------------------------------------


class Refund(BaseModel):
    """What a refund is given."""

    order: str = Field(min_length=1, max_length=40, pattern=r"^[^!]*$", description="The number of the order")
    amount: Decimal = Field(gt=0, le=1_000_000)
    channel: Literal["mail", "letter"] = "mail"
    notify: bool = True
    tags: list[str] = []


def _refund() -> RunType:
    def look_up(order: str) -> str:
        """Look an order up."""
        return order

    def pay(
        order: str,
        amount: float,
        currency: str = "",
        to: str = "",
        note: str = "",
        iban: str = "",
        api_key: str = "",
        idempotency_key: str = "",
    ) -> str:
        """Pay."""
        return idempotency_key

    def take_back(order: str, idempotency_key: str = "") -> str:
        """Take a payment back."""
        return idempotency_key

    def send_fax(to: str) -> str:
        """Send a fax."""
        return to

    gate = Gate(when="args.amount > 1000.0", expires_after=timedelta(hours=1), description="Large refunds are looked at.")
    undo = Undo("take_back", lambda args, result: {"order": args["order"]})
    return RunType(
        name="refund",
        version=1,
        title="Refund",
        input=Refund,
        build=lambda tools, hooks, checkpointer: None,
        start=lambda given: {},
        tools=(
            RunTool(look_up, "pure"),
            RunTool(pay, "external", gate=gate, compensate=undo, moves_money=True),
            RunTool(take_back, "external", only_undoes=True),
            RunTool(send_fax, "external"),
        ),
        limits=Limits(steps=20, cost=Decimal(2)),
    )


REFUND = _refund()
RUN_TYPES = (
    _kind("errand"),
    _kind("four-eyes", paying(needs_another=True)),
    _kind("hurried", paying(expires_after=timedelta(hours=1))),
    _kind("patient", paying(expires_after=timedelta(hours=1), on_expiry=Expiry.ASK_AGAIN)),
    _kind("yes-or-no", paying(allowed=("approve", "reject"))),
    _kind("short", limits=Limits(steps=3)),
    _kind("cheap", limits=Limits(cost=Decimal("0.02"))),
    _kind("brief", limits=Limits(busy=timedelta(milliseconds=1))),
    _kind("anew", recovery=Recovery.RESTART),
    _kind("soon", resume_within=timedelta(minutes=5)),
    _kind("careless", may_end_with_open_calls=True),
    _kind("tidy", compensates_itself=True),
    REFUND,
)
