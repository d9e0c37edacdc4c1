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
    crashes: int  # of each side, each as long as a lease
    jobs: int
    entries: int = 20_000  # of the history that `audit` walks
    sizes: tuple[int, ...] = (10_000, 100_000)  # actions in the stores of `growth`
    opens: tuple[int, ...] = (50, 500)  # of them open, one after the other in each of these stores
    pages: int = 20  # samples of a page there
    bulk: int = 500
    sweep: int = 1_000
    crowd: int = 400  # calls that eight operators settle at once
    crowd_s: float = 5.0
    browsers: int = 200  # that hear of a change
    fetchers: int = 200  # of them, that fetch the list at the same moment
    changes: int = 3  # that they hear of
    tasks: int = 10_000  # that Flower is told of
    without: tuple[str, ...] = ()  # benchmarks that a whole run leaves out


def make_plan(effort: str, jobs: int) -> Plan:
    """`quick` (under two minutes), `usual`, or `full`: a million actions in the largest store, every agent resumed, a longer history."""
    if effort == "quick":
        return Plan(
            shape=Shape(actions=20_000, turns=10_000),
            reads=6,
            settles=20,
            resumes=60,
            crashes=1,
            jobs=jobs,
            entries=1_500,
            sizes=(1_000, 10_000),
            opens=(200,),
            browsers=100,
            fetchers=30,
            changes=2,
            pages=4,
            bulk=60,
            sweep=60,
            crowd=300,
            without=("flower", "memory"),
        )
    if effort == "full":
        return Plan(
            shape=Shape(),
            reads=40,
            settles=200,
            resumes=10_000,
            crashes=10,
            jobs=jobs,
            entries=200_000,
            sizes=(10_000, 100_000, 1_000_000),
            opens=(50, 500, 5_000),
            pages=10,
            crowd=6_000,
            crowd_s=30.0,
            tasks=20_000,
        )
    return Plan(shape=Shape(), reads=60, settles=200, resumes=1_000, crashes=5, jobs=jobs, entries=50_000)
