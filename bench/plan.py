"""How thorough a run is."""

from __future__ import annotations

from dataclasses import dataclass

from bench.shape import Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Data and numbers of samples; `jobs` is how many operators, or clients, work at once where that matters."""

    shape: Shape
    reads: int
    settles: int
    resumes: int
    jobs: int
    entries: int = 20_000  # of the history that `audit` walks


def make_plan(effort: str, jobs: int) -> Plan:
    """`quick` (under two minutes), `usual`, or `full`: the goals' data in all three, more samples and a longer history in the last."""
    if effort == "quick":
        return Plan(shape=Shape(), reads=25, settles=60, resumes=200, jobs=jobs)
    if effort == "full":
        return Plan(
            shape=Shape(actions=1_000_000, turns=600_000), reads=200, settles=400, resumes=10_000, jobs=jobs, entries=1_000_000
        )
    return Plan(shape=Shape(), reads=100, settles=200, resumes=1_000, jobs=jobs, entries=100_000)
