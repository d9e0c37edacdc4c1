"""Rows of runs as their services would leave them, for tests of what is shown."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import uuid4

from django.utils import timezone

from agents.runs import Gate, call_digest
from console.models import Approval, Run, RunEvent
from tests.console.shown_kinds import REFUND


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
