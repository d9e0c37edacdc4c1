"""Every benchmark runs, on little data, against a server of its own."""

from __future__ import annotations

import json
import signal
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from polign_recall import RecallError

from bench import __main__ as command
from bench.ground import Ground
from bench.plan import Plan
from bench.report import Report
from bench.shape import Shape

SMALL = Shape(agents=120, actions=1_800, open_actions=40, turns=300)
TINY = Plan(
    shape=SMALL,
    reads=2,
    settles=4,
    resumes=8,
    crashes=1,
    jobs=1,
    entries=2_500,
    sizes=(200,),
    opens=(60,),
    pages=1,
    bulk=3,
    sweep=5,
    crowd=16,
    crowd_s=30.0,  # until its calls are through, which is soon
    browsers=3,
    fetchers=2,
    changes=1,
    without=(
        "growth",
        "flower",
        "memory",
    ),  # the first has a test of its own; what the others start is measured as it is, or not at all
)
OF_GROWTH = frozenset({"templates", "fan-out", "crowd", "bulk", "sweep", "memory", "beside"})
"""What is measured in the stores of `growth`; the memory there is a web process's."""


@pytest.fixture
def report_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[dict[str, Any], str]]:
    """Run the command on little data: its report, and what it printed."""

    def run(*arguments: str) -> tuple[dict[str, Any], str]:
        monkeypatch.setattr(command, "make_plan", lambda effort, jobs: replace(TINY, jobs=jobs))
        monkeypatch.setattr(command, "FILE", tmp_path / "RESULTS.md")
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        monkeypatch.setattr(tempfile, "tempdir", None)
        assert command.main([*arguments, "--json", str(tmp_path / "report.json")]) == 0
        return json.loads((tmp_path / "report.json").read_text()), capsys.readouterr().out

    return run


@pytest.mark.interop
def test_every_benchmark_measures_and_judges(report_of: Callable[..., tuple[dict[str, Any], str]], tmp_path: Path) -> None:
    report, shown = report_of("--quick", "--jobs", "2")

    assert {row["bench"] for row in report["rows"]} == set(command.BENCHES) - set(TINY.without)
    assert all(0 < row["p50"] <= row["p95"] <= row["max"] for row in report["rows"])
    judged = {goal["name"].partition(":")[0]: goal for goal in report["goals"]}
    assert judged.keys() == {"queue", "settle", "learn", "calls", "audit"}
    assert {goal["name"]: goal["is_met"] for goal in report["goals"]}["queue: open calls listed"]
    assert report["versions"]["recall"] == "0.23.0"
    assert "Recall: resume, end_action, record_turn, release, 2 at once" in shown
    written = (tmp_path / "RESULTS.md").read_text()
    assert written.count("## `./run bench --quick --jobs 2`") == 1
    assert "| queue | first page |" in written
    # multiprocessing keeps a folder of its own until the process that forked ends, which is this one.
    left = {one.name for one in tmp_path.iterdir() if not one.name.startswith("pymp-")}
    assert left == {"report.json", "RESULTS.md"}


@pytest.mark.interop
def test_what_fails_because_it_was_stopped_ends_everything_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = []

    def stopped(ground: Ground, plan: Plan, report: Report) -> None:
        begun.append("stopped")
        try:
            command.stop(signal.SIGINT, None)
        finally:
            raise RecallError("[Errno 32] Broken pipe", code="transport_error")  # Ctrl-C reached its server as well

    monkeypatch.setattr(command, "BENCHES", {"calls": stopped, "queue": lambda *_: begun.append("another")})
    monkeypatch.setattr(command, "make_plan", lambda effort, jobs: replace(TINY, without=()))
    monkeypatch.setattr(command, "FILE", tmp_path / "RESULTS.md")
    monkeypatch.setattr(command, "_stopped", [])

    assert command.main(["--quick"]) == 130

    assert begun == ["stopped"]
    assert not (tmp_path / "RESULTS.md").exists()
    assert "Broken pipe" not in capsys.readouterr().err


@pytest.mark.interop
def test_the_growth_table_tells_of_every_page_what_it_asks_and_a_crowd_loses_nothing(
    report_of: Callable[..., tuple[dict[str, Any], str]], tmp_path: Path
) -> None:
    report, shown = report_of("growth", "--quick")

    assert {row["bench"] for row in report["rows"]} == {"growth", *OF_GROWTH}
    pages = [row for row in report["rows"] if row["bench"] == "growth"]
    assert all(row["floor"] > 0 and row["round_trips"] > 0 and row["rows_read"] > 0 and row["size"] > 0 for row in pages)
    is_met = {goal["name"]: goal["is_met"] for goal in report["goals"]}
    assert [is_met[f"crowd: settles {what}"] for what in ("lost", "doubled")] == [True, True]
    assert is_met["fan-out: of 2 browsers that ask at once, refused"]
    assert "growth: p50 in ms at so many actions / so many of them open" in shown
    assert [one.name for one in tmp_path.iterdir()] == ["report.json"]  # only a whole run writes results
