"""Decisions on their way to a store that is not configured any more: there is no action to show, but they can be withdrawn."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from django.http import HttpRequest, HttpResponse

from actions.records import ActionRef
from console.access import Person, Right, may
from console.addresses import action_address
from console.htmx import render_part
from console.models import Decision
from console.services.decisions import list_stranded


@dataclass(frozen=True, slots=True, kw_only=True)
class Stranded:
    """One such decision as a list shows it."""

    decision: Decision
    withdraw_url: str  # empty where this person may not, or no address names the action


def stranded_lines(user: Person, rows: Iterable[Decision]) -> tuple[Stranded, ...]:
    return tuple(Stranded(decision=row, withdraw_url=_withdraw_url(user, row)) for row in rows)


def stranded_page(request: HttpRequest, ref: ActionRef) -> HttpResponse | None:
    """The page of an action whose store is gone while a decision about it is on its way; None where there is none for this person."""
    lines = stranded_lines(request.user, [row for row in list_stranded(request.user) if row.ref == ref])
    context = {"ref": ref, "stranded": lines}
    return render_part(request, "decisions/stranded.html", "decisions/_stranded.html", context) if lines else None


def _withdraw_url(user: Person, row: Decision) -> str:
    if not may(user, Right.SETTLE, store=row.store, tool=row.tool):
        return ""
    return action_address(row.store, row.agent, row.seq, view="decision-withdraw")
