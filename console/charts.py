"""The shapes of small charts, as numbers for a template: no script, no style. Whole widths are per cent, so that a chart is as wide as its place.

A part is never told by its colour: `FILLS` are solid, hatched and hollow, and the numbers stand beside each bar and in a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

FILLS = ("solid", "hatch", "hollow")
ROW = 34
"""Height of a bar with its words above it, in pixels."""
HEIGHT = 96
"""Of the columns, without what stands below them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A rectangle: of a bar `x` and `width` in per cent, of a column `y` and `height` in pixels."""

    fill: str
    x: str = ""
    width: str = ""
    y: str = ""
    height: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    label: str
    says: str  # its number, in words
    y: int  # of the words
    y_bar: int
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    bars: tuple[Bar, ...]
    height: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Columns of one width, each stacked from below."""

    columns: tuple[tuple[Part, ...], ...]
    highest: int
    height: int = HEIGHT


def bars(rows: Iterable[tuple[str, str, Sequence[float]]], *, is_share: bool = False) -> Bars:
    """A bar for each (label, says, parts). The longest is the whole width; with `is_share` each is, whatever it sums up to."""
    rows = list(rows)
    longest = max((sum(parts) for _, _, parts in rows), default=0)
    made = []
    for number, (label, says, parts) in enumerate(rows):
        whole = (sum(parts) if is_share else longest) or 1
        at, found = 0.0, []
        for fill, part in zip(FILLS, parts, strict=False):
            if part:
                found.append(Part(fill=fill, x=_per_cent(at / whole), width=_per_cent(part / whole)))
            at += part
        made.append(Bar(label=label, says=says, y=number * ROW + 14, y_bar=number * ROW + 20, parts=tuple(found)))
    return Bars(bars=tuple(made), height=max(1, len(rows)) * ROW)


def columns(rows: Sequence[Sequence[int]]) -> Columns:
    """A column for each row of parts, from left to right."""
    highest = max((sum(parts) for parts in rows), default=0)
    wide = 1 / max(1, len(rows))
    found = []
    for number, parts in enumerate(rows):
        top, stacked = float(HEIGHT), []
        for fill, part in zip(FILLS, parts, strict=False):
            if part:
                height = HEIGHT * part / highest
                top -= height
                stacked.append(
                    Part(
                        fill=fill,
                        x=_per_cent(wide * (number + 0.1)),
                        width=_per_cent(wide * 0.8),
                        y=f"{top:.2f}",
                        height=f"{height:.2f}",
                    )
                )
        found.append(tuple(stacked))
    return Columns(columns=tuple(found), highest=highest)


def _per_cent(share: float) -> str:
    return f"{100 * share:.3f}%"
