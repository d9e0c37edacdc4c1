"""What was seen of who held an agent, read: takeovers for a time line, the last resume for a list. Absent for the time nobody watched."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from console.models import Observation

MAX_SEEN = 200
"""Holders of one agent that a time line knows of, the newest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenResume:
    """When a holder was first seen with an agent. It had it before that, by at most the time between two looks where somebody watched."""

    holder: str  # text of others
    at: datetime


def resumes_of(agents: Collection[tuple[str, str]]) -> dict[tuple[str, str], SeenResume]:
    """The newest holder of each of these agents (store, agent), where it was seen alive. One query, none for no agents."""
    wanted = set(agents)
    if not wanted:
        return {}
    rows = (
        Observation.objects.filter(store__in={store for store, _ in wanted}, agent__in={agent for _, agent in wanted})
        .order_by("store", "agent", "-lowest_epoch", "-id")
        .distinct("store", "agent")
    )
    return {
        (row.store, row.agent): SeenResume(holder=row.holder, at=row.first_seen_at)
        for row in rows
        if (row.store, row.agent) in wanted and row.was_seen_live
    }


def holders_of(store: str, agent: str) -> tuple[Observation, ...]:
    """The holders seen of one agent, newest first, at most MAX_SEEN. One query."""
    return tuple(Observation.objects.filter(store=store, agent=agent).order_by("-lowest_epoch", "-id")[:MAX_SEEN])
