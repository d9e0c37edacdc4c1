"""How calls were settled in a range: by whom, in what time, tool by tool and in stretches of time."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from actions.records import ActionRef, Entry
from actions.times import SECOND, Instant, from_datetime, parse_rfc3339
from console.access import is_possible
from console.models import Inquiry
from console.services.decisions import of_actions
from console.services.insight_histories import MAX_LISTED, Asked, ref_of

PEOPLE, RESOLVERS, AGENTS = "people", "resolvers", "agents"
BY = (PEOPLE, RESOLVERS, AGENTS)
_BY_ACTOR = {"operator": PEOPLE, "resolver": RESOLVERS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """How long something took, in seconds, over `count` cases; None where there is none."""

    count: int
    median_s: float | None = None
    p95_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledTool:
    """How the calls of one tool that ended in the range were settled."""

    tool: str
    people: int
    resolvers: int
    agents: int
    took: Took  # from begun to settled here

    @property
    def total(self) -> int:
        return self.people + self.resolvers + self.agents

    @property
    def share(self) -> int:
        """Per cent that resolvers settled by themselves."""
        return round(100 * self.resolvers / self.total) if self.total else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A stretch of the range, from `at` on, and how many calls were settled in it by whom."""

    at: datetime
    people: int
    resolvers: int
    agents: int


def took(seconds: Sequence[float]) -> Took:
    """Median and 95th percentile (nearest rank); never less than no time, whatever two clocks say."""
    if not seconds:
        return Took(count=0)
    ordered = sorted(max(0.0, one) for one in seconds)
    rank = math.ceil(0.95 * len(ordered)) - 1
    return Took(count=len(ordered), median_s=statistics.median(ordered), p95_s=ordered[rank])


def settled_by(entry: Entry) -> str:
    """Who settled it; empty where nobody of those that are told apart here."""
    return AGENTS if entry.kind == "observed" else _BY_ACTOR.get(entry.actor.partition(" ")[0], "")


def took_both(settled: Sequence[tuple[str, Entry]], asked_at: Mapping[ActionRef, Instant]) -> tuple[Took, Took]:
    """From begun to settled, and from first asked about to settled: over those of which it is known."""
    seen = [(entry.at - asked_at[ref]) / SECOND for name, entry in settled if (ref := ref_of(name, entry)) in asked_at]
    return took(_since_begun(settled)), took(seen)


def list_first_asked(settled: Sequence[tuple[str, Entry]]) -> dict[ActionRef, Instant]:
    """When each of these calls was first seen open by whoever asks resolvers; only tools that have one are looked for. One statement."""
    wanted = {ref for name, entry in settled if is_possible(ref := ref_of(name, entry))}
    rows = of_actions(Inquiry.objects.all(), wanted).only("store", "agent", "seq", "created_at") if wanted else ()
    return {row.ref: from_datetime(row.created_at) for row in rows if row.ref in wanted}


def list_settled_tools(ended: Sequence[tuple[str, Entry]]) -> tuple[SettledTool, ...]:
    """A line for each tool, most settled first, at most MAX_LISTED."""
    by_tool: dict[str, list[tuple[str, Entry]]] = defaultdict(list)
    for name, entry in ended:
        by_tool[entry.tool].append((name, entry))
    lines = []
    for tool, of_tool in by_tool.items():
        counts = Counter(settled_by(entry) for _, entry in of_tool)
        begun = _since_begun([one for one in of_tool if one[1].kind == "settled"])
        lines.append(
            SettledTool(tool=tool, people=counts[PEOPLE], resolvers=counts[RESOLVERS], agents=counts[AGENTS], took=took(begun))
        )
    return tuple(sorted(lines, key=lambda line: (-line.total, line.tool))[:MAX_LISTED])


def list_slots(ended: Sequence[tuple[str, Entry]], asked: Asked, zone: ZoneInfo) -> tuple[tuple[Slot, ...], bool]:
    """Hours of a range of up to two days, days up to a quarter, else weeks; days begin at midnight where the person is."""
    length = asked.until - asked.since
    is_hourly = length <= timedelta(days=2)
    days = 1 if length <= timedelta(days=92) else 7
    local = asked.since.astimezone(zone)
    starts: list[datetime] = []
    if is_hourly:
        at = asked.since.replace(minute=0, second=0, microsecond=0)
        while at < asked.until:
            starts.append(at)
            at += timedelta(hours=1)
    else:
        day = datetime(local.year, local.month, local.day)  # noqa: DTZ001 - of the wall clock; the zone is put on below
        while (at := day.replace(tzinfo=zone)) < asked.until:
            starts.append(at)
            day += timedelta(days=days)
    edges = [from_datetime(start) for start in starts]
    counts: list[Counter[str]] = [Counter() for _ in starts]
    for _, entry in ended:
        counts[max(0, bisect_right(edges, entry.at) - 1)][settled_by(entry)] += 1
    return tuple(
        Slot(at=start, people=n[PEOPLE], resolvers=n[RESOLVERS], agents=n[AGENTS])
        for start, n in zip(starts, counts, strict=True)
    ), is_hourly


def _since_begun(settled: Sequence[tuple[str, Entry]]) -> list[float]:
    return [(entry.at - began) / SECOND for _, entry in settled if (began := _began(entry)) is not None]


def _began(entry: Entry) -> Instant | None:
    """When its call began; None in entries of the time before they said it."""
    said = entry.detail.get("started_at")
    try:
        return parse_rfc3339(said) if isinstance(said, str) else None
    except ValueError:
        return None
