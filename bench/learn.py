"""`learn`: every open call of all agents, through us and by resuming each agent with the real client."""

from __future__ import annotations

from dataclasses import replace

from actions.queries import MAX_ROWS_PER_STORE
from actions.records import OPEN_STATUSES, Reading
from actions.store.base import ActionStore
from bench.ground import Ground
from bench.plan import Plan
from bench.report import Goal, Report, clock, make_row

GOAL = 1_000


def bench_learn(ground: Ground, plan: Plan, report: Report) -> None:
    """Ours: one read of every open call with its lease, decoded. Theirs: one resume for each agent, without taking the lease.

    The client has no list of agents and no other way to ask. One process asks for all; it never has to give anything back. Both sides
    are judged warm, as a console that looks again and again is; what ours takes when it has decoded no record yet stands beside it.
    """
    agents = len(ground.lives)
    sample = ground.lives[:: max(1, agents // plan.resumes)][: plan.resumes]
    first: list[float] = []
    again: list[float] = []
    theirs: list[float] = []
    with ground.store() as store, ground.client() as client:
        found = len(read_open(store))
        client.resume("warms-up", defer_lease=True)
        for number, life in enumerate(sample):
            theirs.append(clock(lambda agent=life.agent: client.resume(agent, defer_lease=True)))  # type: ignore[misc]
            # In between, so that both sides are measured on the same machine in the same mood.
            if number % max(1, len(sample) // plan.reads) == 0:
                first.append(read_open_anew(ground))
                again.append(clock(lambda: read_open(store)))
    one = make_row("learn", "Recall: resume of one agent, lease deferred", theirs)
    whole = sum(theirs) / len(theirs) * agents
    how = "all agents measured" if len(sample) == agents else f"extrapolated from {len(sample):,} agents"
    cold = make_row("learn", f"Settle: all {found:,} open calls of {agents:,} agents, the first time", first)
    warm = make_row("learn", "Settle: the same again", again)
    report.rows += [
        replace(cold, note=f"{whole / cold.p50:,.0f} times faster than all resumes"),
        replace(warm, note=f"{whole / warm.p50:,.0f} times faster than all resumes"),
        one,
        make_row("learn", f"Recall: resumes of {agents:,} agents", [whole], note=how),
    ]
    ratio = whole / warm.p50
    report.goals.append(
        Goal(
            name=f"learn: every open call of {agents:,} agents, times faster than resuming each (both warm; {how})",
            wanted=f">= {GOAL:,}",
            found=f"{ratio:,.0f}",
            is_met=ratio >= GOAL,
        )
    )


def read_open(store: ActionStore) -> tuple[Reading, ...]:
    return store.read_actions(OPEN_STATUSES, limit=MAX_ROWS_PER_STORE).readings


def read_open_anew(ground: Ground) -> float:
    """Milliseconds of a store's first read."""
    with ground.new_store() as store:
        return clock(lambda: read_open(store))
