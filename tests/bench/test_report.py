"""The benchmark's command line and its figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import __main__ as command
from bench.calls import ratio_of
from bench.ground import _testimony
from bench.report import Goal, Report, make_row, percentile, render


def test_percentiles_are_samples_that_were_measured() -> None:
    samples = [float(n) for n in range(1, 101)]

    assert (percentile(samples, 50), percentile(samples, 95), percentile(samples, 100)) == (50, 95, 100)
    assert percentile([7.0], 95) == 7


def test_what_slows_both_sides_for_a_while_is_no_difference_between_them() -> None:
    theirs = [4.0] * 40 + [400.0] * 10 + [40.0] * 45
    ours = [time / 4 for time in theirs[:-1]] + [9000.0]

    assert ratio_of(ours, theirs) == 0.25
    assert ratio_of([2.0, 2.0, 9.0], theirs) == 2.0 / 40
    assert ratio_of([1.0, 2.0], [4.0, 8.0]) == 0.25


def test_an_unknown_benchmark_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["nonsense"])

    assert ended.value.code == 2
    assert "queue" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--quick", "--full"],
        ["--jobs", "0"],
        ["--jobs", "many"],
        ["--jobs", "-1"],
        ["queue", "--seed", "3"],
        ["readme", "--jobs", "2"],
        ["queue", "--json", "/nowhere/report.json"],  # found out before anything is measured
        ["queue", "--json", "/"],
    ],
)
def test_impossible_options_are_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.parse(arguments)

    assert ended.value.code == 2
    assert "_positive" not in capsys.readouterr().err


def test_without_results_there_is_no_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "FILE", tmp_path / "RESULTS.md")

    assert command.main(["readme"]) == 1
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "bench: there is no RESULTS.md yet; ./run bench writes it\n")


def test_the_report_shows_rows_and_goals_and_is_json() -> None:
    report = Report(versions={"recall": "0.23.0"}, data={"agents": 10}, options={"jobs": 1})
    report.rows.append(make_row("queue", "first page", [3.0, 1.0, 2.0], round_trips=1))
    report.goals.append(Goal(name="queue: full scans", wanted="0", found="2", is_met=False))
    shown = render(report)

    assert "queue  first page  3    2.00    3.00    3.00           1" in shown
    assert "MISSED  queue: full scans: wanted 0, found 2" in shown
    assert json.loads(json.dumps(report.as_json()))["rows"][0]["p50"] == 2.0


def test_a_servers_log_tells_statements_and_full_scans() -> None:
    plan = {"Query Text": "x", "Plan": {"Node Type": "Limit", "Plans": [{"Node Type": "Seq Scan", "Relation Name": RECORDS}]}}
    log = (
        "2026-11-29 18:00:00.000 UTC [1] LOG:  statement: BEGIN\n"
        "2026-11-29 18:00:00.001 UTC [1] LOG:  execute <unnamed>: SELECT *\n\tFROM records\n"
        "2026-11-29 18:00:00.001 UTC [1] DETAIL:  Parameters: $1 = 'x'\n"
        "2026-11-29 18:00:00.002 UTC [1] LOG:  duration: 1.0 ms  plan:\n\t"
        + json.dumps(plan, indent=2).replace("\n", "\n\t")
        + "\n"
    )
    told = _testimony(log)

    assert told.statements == ("BEGIN", "SELECT *\n\tFROM records")
    assert told.full_scans == 1


RECORDS = "recall_lexical_v1_agents"
