"""Runs for tests: started, and advanced in this process as a worker does it."""

from __future__ import annotations

import json
from typing import Any

from django.contrib.auth.models import User

from console.models import Run
from console.services.advancing import advance_run
from console.services.run_rows import list_events
from console.services.runs import start_run
from tests.console.run_kinds import Call


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


def kinds_of(run: Run) -> list[str]:
    return [event.kind for event in list_events(run)]


def details_of(run: Run, kind: str) -> list[dict[str, Any]]:
    return [json.loads(event.detail) for event in list_events(run) if event.kind == kind]
