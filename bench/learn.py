"""`learn`: every open call of all agents, through us and by resuming each agent with the real client."""

from __future__ import annotations

from actions.queries import MAX_ROWS_PER_STORE
from actions.records import OPEN_STATUSES
from bench.ground import Ground
from bench.plan import Plan
from bench.report import Goal, Report, clock, make_row, measure

GOAL = 1_000


def bench_learn(ground: Ground, plan: Plan, report: Report) -> None:
    """Ours: one read of every open call with its lease, decoded. Theirs: one resume for each agent, without taking the lease.

    The client has no list of agents and no other way to ask. One process asks for all; it never has to give anything back.
    """
    with ground.store() as store:
        found = len(store.read_actions(OPEN_STATUSES, limit=MAX_ROWS_PER_STORE).readings)
        ours = measure(lambda: store.read_actions(OPEN_STATUSES, limit=MAX_ROWS_PER_STORE), times=plan.reads)
    agents = len(ground.lives)
    sample = ground.lives[:: max(1, agents // plan.resumes)][: plan.resumes]
    with ground.client() as client:
        client.resume("warms-up", defer_lease=True)
        theirs = [clock(lambda agent=life.agent: client.resume(agent, defer_lease=True)) for life in sample]  # type: ignore[misc]
    mine = make_row("learn", f"Settle: all {found:,} open calls of {agents:,} agents", ours)
    one = make_row("learn", "Recall: resume of one agent, lease deferred", theirs)
    whole = sum(theirs) / len(theirs) * agents
    is_whole = len(sample) == agents
    how = "all agents measured" if is_whole else f"extrapolated from {len(sample):,} agents"
    ratio = whole / mine.p50
    all_of_them = make_row("learn", f"Recall: resumes of {agents:,} agents", [whole], note=f"{how}; {ratio:,.0f} times ours")
    report.rows += [mine, one, all_of_them]
    report.goals.append(
        Goal(
            name=f"learn: every open call of {agents:,} agents, times faster than resuming each ({how})",
            wanted=f">= {GOAL:,}",
            found=f"{ratio:,.0f}",
            is_met=ratio >= GOAL,
        )
    )
