"""What was measured, as a table for people and as JSON for programs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One thing measured, in milliseconds."""

    bench: str
    name: str
    n: int
    p50: float
    p95: float
    max: float
    round_trips: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A promise of the issue and what was found."""

    name: str
    wanted: str
    found: str
    is_met: bool


@dataclass(slots=True)
class Report:
    """Everything of one run."""

    versions: dict[str, str]
    data: dict[str, Any]
    options: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def measure(work: Callable[[], object], *, times: int, warm_up: int = 3) -> list[float]:
    """Durations in milliseconds of so many runs, after some that do not count."""
    for _ in range(warm_up):
        work()
    return [clock(work) for _ in range(times)]


def clock(work: Callable[[], object]) -> float:
    began = time.perf_counter_ns()
    work()
    return (time.perf_counter_ns() - began) / 1e6


def make_row(bench: str, name: str, samples: Sequence[float], *, round_trips: int | None = None, note: str = "") -> Row:
    ordered = sorted(samples)
    return Row(
        bench=bench,
        name=name,
        n=len(ordered),
        p50=percentile(ordered, 50),
        p95=percentile(ordered, 95),
        max=ordered[-1],
        round_trips=round_trips,
        note=note,
    )


def percentile(ordered: Sequence[float], percent: int) -> float:
    """The nearest-rank percentile of sorted samples."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def render(report: Report) -> str:
    """The whole report as text."""
    lines = [f"{name} {value}" for name, value in report.versions.items()]
    parts = [f"{report.date}  {', '.join(lines)}", _data(report.data), "", _table(report.rows)]
    if report.goals:
        parts += ["", *(_goal(goal) for goal in report.goals)]
    return "\n".join(parts)


def _data(data: dict[str, Any]) -> str:
    return ", ".join(f"{value:,} {name.replace('_', ' ')}" for name, value in data.items() if name != "seed")


def _table(rows: Sequence[Row]) -> str:
    head = ("bench", "what", "n", "p50 ms", "p95 ms", "max ms", "trips", "")
    body = [
        (
            row.bench,
            row.name,
            f"{row.n}",
            _ms(row.p50),
            _ms(row.p95),
            _ms(row.max),
            "" if row.round_trips is None else f"{row.round_trips}",
            row.note,
        )
        for row in rows
    ]
    widths = [max(len(line[column]) for line in (head, *body)) for column in range(len(head))]
    return "\n".join(_line(line, widths) for line in (head, *body))


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    shown = [
        cell.rjust(width) if 2 <= column <= 6 else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(shown).rstrip()


def _ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.2f}"


def _goal(goal: Goal) -> str:
    return f"{'met   ' if goal.is_met else 'MISSED'}  {goal.name}: wanted {goal.wanted}, found {goal.found}"
