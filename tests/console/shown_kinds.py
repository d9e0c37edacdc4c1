"""A run type for tests of pages and rights: declared as any other, and never advanced."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Any, Literal

from pydantic import BaseModel, Field

from agents.runs import Gate, Limits, RunTool, RunType, Undo

MODULE = __name__


class Refund(BaseModel):
    """What a refund is given."""

    order: str = Field(min_length=1, max_length=40, pattern=r"^[^!]*$", description="The number of the order")
    amount: Decimal = Field(gt=0, le=1_000_000)
    channel: Literal["mail", "letter"] = "mail"
    notify: bool = True
    tags: list[str] = []


def look_up(order: str) -> str:
    return order


def pay(order: str, amount: float, note: str = "", idempotency_key: str = "") -> str:
    return idempotency_key


def take_back(order: str, idempotency_key: str = "") -> str:
    return idempotency_key


def send_fax(to: str) -> str:
    return to


def of_payment(args: Mapping[str, Any], result: str) -> Mapping[str, Any]:
    return {"order": args["order"]}


REFUND = RunType(
    name="refund",
    version=1,
    title="Refund",
    input=Refund,
    build=lambda tools, hooks, checkpointer: None,
    start=lambda given: {},
    tools=(
        RunTool(look_up, "pure"),
        RunTool(
            pay,
            "external",
            gate=Gate(when="args.amount > 1000.0", expires_after=timedelta(hours=1), description="Large refunds are looked at."),
            compensate=Undo("take_back", of_payment),
            moves_money=True,
        ),
        RunTool(take_back, "external", only_undoes=True),
        RunTool(send_fax, "external"),
    ),
    limits=Limits(steps=20, cost=Decimal(2)),
)
RUN_TYPES = (REFUND,)
