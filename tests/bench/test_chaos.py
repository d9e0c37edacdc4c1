"""The chaos test in small: web, beat, two workers, broker and database side by side, some of them killed while runs go on."""

from __future__ import annotations

from bench.chaos.command import ALL, KILLS, Asked, bench_chaos, render


def test_every_run_ends_with_each_effect_once_whatever_is_killed_meanwhile() -> None:
    told: list[str] = []

    outcome = bench_chaos(Asked(runs=4, seconds=8, seed=3, file=None), told.append)

    assert outcome.faults == [], told
    assert outcome.done == 4
    assert set(outcome.killed) == {*KILLS, ALL}
    assert outcome.killed[ALL] == 1
    assert outcome.gates == 2
    assert render(outcome).splitlines()[-1].startswith("met")
