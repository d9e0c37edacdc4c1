"""Runs for tests: started, and advanced in this process as a worker does it; or rows alone, as their services would leave them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import uuid4

from django.contrib.auth.models import User
from django.utils import timezone
from langchain_core.messages import ToolMessage

from agents.checkpoints import config_of
from agents.runs import Gate, call_digest
from console.models import Approval, Run, RunEvent
from console.services.advancing import advance_run
from console.services.run_rows import list_events
from console.services.runs import start_run
from console.stores import run_checkpoints
from tests.console.run_kinds import REFUND, Call


def errand(*turns: list[Call] | Call, breaks: int | None = None) -> dict[str, Any]:
    """An input: a call is a turn of one call."""
    return {"turns": [list(turn) if isinstance(turn, list) else [turn] for turn in turns], "breaks": breaks}


SEND: Call = ("send", {"to": "ann"})
SEND_BOB: Call = ("send", {"to": "bob"})
PAY: Call = ("pay", {"amount": 120.0, "to": "ACME"})
PAY_MUCH: Call = ("pay", {"amount": 5000.0, "to": "ACME"})
LOOK: Call = ("look_up", {"order": "A-1"})
BOOK: Call = ("book", {"item": "room"})


def start(by: User, *turns: list[Call] | Call, kind: str = "errand", **more: Any) -> Run:
    return start_run(kind, errand(*turns, **more), by=by)[0]


def drive(run: Run, steps: int = 60) -> Run:
    """Advance it as long as a step is due at once."""
    for _ in range(steps):
        if not advance_run(run.pk):
            break
    run.refresh_from_db()
    return run


def calls_told(run: Run) -> dict[str, str]:
    """What the model has been told of its calls, by call id: the tools' messages in the last checkpoint."""
    with run_checkpoints() as saver:
        newest = saver.get_tuple(config_of(run.run_id))
    said = newest.checkpoint["channel_values"]["messages"] if newest else []
    return {one.tool_call_id: str(one.content) for one in said if isinstance(one, ToolMessage)}


def kinds_of(run: Run) -> list[str]:
    return [event.kind for event in list_events(run)]


def details_of(run: Run, kind: str) -> list[dict[str, Any]]:
    return [json.loads(event.detail) for event in list_events(run) if event.kind == kind]


# --- rows alone ------------------------------------------------------------------------------------------------------


def a_run(run_id: str = "", *, by: str = "ana", given: Mapping[str, Any] | None = None, **fields: Any) -> Run:
    return Run.objects.create(
        run_id=run_id or uuid4().hex,
        store="main",
        type=fields.pop("type", "refund"),
        type_version=1,
        input=json.dumps(given or {"order": "A-17", "amount": 1200}),
        started_by=by,
        content="0" * 64,
        **fields,
    )


def an_approval(run: Run, *, tool: str = "pay", args: Mapping[str, Any] | None = None, **fields: Any) -> Approval:
    given = args or {"order": "A-17", "amount": 1200.5, "currency": "EUR", "to": "ACME"}
    gate = next((one.gate for one in REFUND.tools if one.name == tool and one.gate), Gate())
    return Approval.objects.create(
        **{
            "approval_id": uuid4().hex,
            "run": run,
            "interrupt_id": uuid4().hex,
            "call_id": "call-1",
            "tool": tool,
            "args": json.dumps(given),
            "digest": call_digest(tool, given, gate, type_version=1),
            "description": "Large refunds are looked at.",
            "allowed": ["approve", "edit", "reject", "respond"],
            "asked_at": timezone.now() - timedelta(minutes=5),
            **fields,
        }
    )


def an_event(run: Run, kind: str, *, by: str = "", **detail: Any) -> RunEvent:
    return RunEvent.objects.create(
        run=run, number=run.events.count() + 1, at=timezone.now(), kind=kind, by=by, detail=json.dumps(detail)
    )
