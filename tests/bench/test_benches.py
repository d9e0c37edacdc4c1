"""Every benchmark runs, on little data, against a server of its own."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

from bench import __main__ as command
from bench.plan import Plan
from bench.shape import Shape

SMALL = Shape(agents=120, actions=1_800, open_actions=40, turns=300)


@pytest.mark.interop
def test_every_benchmark_measures_and_judges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        command, "make_plan", lambda effort, jobs: Plan(shape=SMALL, reads=2, settles=4, resumes=8, jobs=jobs, entries=2_500)
    )
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)

    code = command.main(["--quick", "--jobs", "2", "--json", str(tmp_path / "report.json")])

    report = json.loads((tmp_path / "report.json").read_text())
    assert code == 0
    assert {row["bench"] for row in report["rows"]} == set(command.BENCHES)
    assert all(0 < row["p50"] <= row["p95"] <= row["max"] for row in report["rows"])
    judged = {goal["name"].partition(":")[0]: goal for goal in report["goals"]}
    assert judged.keys() == {"queue", "settle", "learn", "calls", "audit"}
    assert {goal["name"]: goal["is_met"] for goal in report["goals"]}["queue: open calls listed"]
    assert report["versions"]["recall"] == "0.23.0"
    assert "settle  Recall: resume, end_action, record_turn, release, 2 at once" in capsys.readouterr().out
    # multiprocessing keeps a folder of its own until the process that forked ends, which is this one.
    assert [left.name for left in tmp_path.iterdir() if not left.name.startswith("pymp-")] == ["report.json"]
