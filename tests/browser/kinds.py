"""The errand of `tests/console/run_kinds.py` as a console knows it that advances none: without its graph, whose libraries import slowly."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from agents.runs import Gate, RunTool, RunType

MODULE = __name__


class Errand(BaseModel):
    """What the model calls, turn by turn."""

    turns: list[list[Any]]


def pay(amount: float, to: str, idempotency_key: str) -> str:
    """Pay somebody."""
    raise AssertionError("nobody calls it in this process")


RUN_TYPES = (
    RunType(
        name="errand",
        version=1,
        input=Errand,
        build=lambda tools, hooks, checkpointer: None,
        start=lambda given: {},
        tools=(RunTool(pay, "external", gate=Gate(when="args.amount > 1000.0", description="more than 1000"), moves_money=True),),
    ),
)
