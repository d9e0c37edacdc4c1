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
    """One thing measured, in milliseconds unless `unit` says otherwise. What was not looked at is None."""

    bench: str
    name: str
    n: int
    p50: float
    p95: float
    max: float
    round_trips: int | None = None  # statements, BEGIN and COMMIT among them
    note: str = ""
    unit: str = "ms"
    rows_read: int | None = None  # that scans touched
    size: int | None = None  # bytes of the answer
    floor: float | None = None  # p50 of the same statements by the bare driver
    actions: int | None = None  # in the store, of a row of the growth table
    open_calls: int | None = None


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
    remarks: list[str] = field(default_factory=list)  # what was not measured, and why
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


def make_row(
    bench: str, name: str, samples: Sequence[float], *, round_trips: int | None = None, note: str = "", **more: Any
) -> Row:
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
        **more,
    )


def percentile(ordered: Sequence[float], percent: int) -> float:
    """The nearest-rank percentile of sorted samples."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def render(report: Report) -> str:
    """The whole report as text."""
    lines = [f"{name} {value}" for name, value in report.versions.items()]
    parts = [f"{report.date}  {', '.join(lines)}", say_data(report.data)]
    for title, head, body in tables(report):
        parts += ["", *([title] if title else []), _table(head, body)]
    if report.goals:
        parts += ["", *(_goal(goal) for goal in report.goals)]
    parts += report.remarks
    return "\n".join(parts)


Table = tuple[str, tuple[str, ...], list[tuple[str, ...]]]
TEXT_COLUMNS = frozenset({"bench", "what", ""})


def tables(report: Report) -> list[Table]:
    """Title, head and rows of each: what stands alone, how it grows, and what each page of the growing stores consists of."""
    plain = [row for row in report.rows if row.actions is None]
    grown = [row for row in report.rows if row.actions is not None]
    found: list[Table] = []
    if plain:
        head = ("bench", "what", "n", "p50 ms", "p95 ms", "max ms", "statements", "")
        found.append(("", head, [_plain(row) for row in plain]))
    if grown:
        found += [_growth(grown), _details(grown)]
    return found


def _plain(row: Row) -> tuple[str, ...]:
    trips = "" if row.round_trips is None else f"{row.round_trips}"
    return (row.bench, row.name, f"{row.n}", _ms(row.p50), _ms(row.p95), _ms(row.max), trips, row.note)


def _growth(rows: Sequence[Row]) -> Table:
    """p50 of each page at each place, and what the largest store costs in parts of the smallest with as many open."""
    places = sorted({_place(row) for row in rows})
    by_place = {(row.name, _place(row)): row for row in rows}
    sizes = sorted({actions for actions, _ in places})
    body = []
    for name in dict.fromkeys(row.name for row in rows):
        cells = [by_place.get((name, place)) for place in places]
        ratios = [
            f"{many.p50 / few.p50:.2f}"
            for open_calls in sorted({open_calls for _, open_calls in places})
            if (few := by_place.get((name, (sizes[0], open_calls)))) and (many := by_place.get((name, (sizes[-1], open_calls))))
        ]
        body.append((name, *("" if row is None else _ms(row.p50) for row in cells), " / ".join(ratios)))
    head = ("what", *(f"{_short(actions)}/{_short(open_calls)}" for actions, open_calls in places), "largest : smallest")
    return "growth: p50 in ms at so many actions / so many of them open", head, body


def _details(rows: Sequence[Row]) -> Table:
    head = ("what", "actions", "open", "n", "p50", "p95", "max", "statements", "rows read", "kB", "bare ms", "of it", "")
    body: list[tuple[str, ...]] = [
        (
            row.name,
            f"{row.actions:,}",
            f"{row.open_calls:,}",
            f"{row.n}",
            _ms(row.p50),
            _ms(row.p95),
            _ms(row.max),
            _number(row.round_trips),
            _number(row.rows_read),
            "" if row.size is None else f"{row.size / 1000:,.1f}",
            "" if row.floor is None else _ms(row.floor),
            "" if not row.floor else f"{row.p50 / row.floor:.1f}",
            row.note,
        )
        for row in rows
    ]
    return "growth, page by page; bare: the same statements by the driver alone", head, body


def _place(row: Row) -> tuple[int, int]:
    return row.actions or 0, row.open_calls or 0


def _short(number: int) -> str:
    return f"{number // 1_000_000}M" if number >= 1_000_000 else f"{number // 1_000}k" if number >= 1_000 else f"{number}"


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def say_data(data: dict[str, Any]) -> str:
    """What was laid, in one line."""
    numbers = {name: value for name, value in data.items() if isinstance(value, int) and name != "seed"}
    return ", ".join(f"{value:,} {name.replace('_', ' ')}" for name, value in numbers.items())


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    widths = [max(len(line[column]) for line in (head, *body)) for column in range(len(head))]
    return "\n".join(_line(line, head, widths) for line in (head, *body))


def _line(cells: Sequence[str], head: Sequence[str], widths: Sequence[int]) -> str:
    shown = [
        cell.ljust(width) if name in TEXT_COLUMNS else cell.rjust(width)
        for cell, name, width in zip(cells, head, widths, strict=True)
    ]
    return "  ".join(shown).rstrip()


def _ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.2f}"


def _goal(goal: Goal) -> str:
    return f"{'met   ' if goal.is_met else 'MISSED'}  {goal.name}: wanted {goal.wanted}, found {goal.found}"
