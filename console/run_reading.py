"""Reads of runs shaped for a screen: one run's events, the run behind an agent. Nothing here writes."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.http import Http404

from console.access import Person, Right, may_all
from console.models import Run
from console.run_lines import EventLine, event_line
from console.services.run_rows import tools_of
from console.services.runs import get_run

EVENTS_SHOWN = 100
STEPS_LOOKED_AT = 200


def find_visible_run(run_id: str, by: Person) -> Run | None:
    """The run, for somebody who may see it; None for everybody else, and where there is none."""
    if not isinstance(by, User):
        return None
    try:
        return get_run(run_id, by=by)
    except Http404:
        return None


def may_operate(run: Run, by: Person) -> bool:
    """Whether this person may do something about it: settle every tool of its type."""
    return may_all(by, Right.SETTLE, store=run.store, tools=tools_of(run))


def run_of_agent(store: str, agent: str, by: Person) -> Run | None:
    """The run whose agent this is, for somebody who may see it."""
    if not Run.objects.filter(store=store, run_id=agent).exists():
        return None
    return find_visible_run(agent, by)


def events_of(run: Run, *, before: int | None = None) -> tuple[list[EventLine], int | None]:
    """Events of a run, newest first, and the number before which older ones stand."""
    rows = run.events.order_by("-number")
    if before is not None:
        rows = rows.filter(number__lt=before)
    found, steps = list(rows[: EVENTS_SHOWN + 1]), _steps(run)
    lines = [event_line(event, steps.get(event.number, 0)) for event in found[:EVENTS_SHOWN]]
    return lines, lines[-1].number if len(found) > EVENTS_SHOWN else None


def step_events(run: Run) -> list[EventLine]:
    """The newest steps of a run: which call was begun in which."""
    steps = _steps(run)
    found = run.events.filter(kind="step").order_by("-number")[:STEPS_LOOKED_AT]
    return [event_line(event, steps.get(event.number, 0)) for event in found]


def _steps(run: Run) -> dict[int, int]:
    """Which step of the graph an event tells of, by the event's number."""
    numbers = run.events.filter(kind="step").order_by("number").values_list("number", flat=True)
    return {number: step for step, number in enumerate(numbers, start=1)}
