"""bench/RESULTS.md: each kind of run replaces its own section and no other's."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import __main__ as command
from bench.report import Goal, Report, make_row
from bench.results import readme_table, write_results


def a_report(p50: float) -> Report:
    report = Report(versions={"postgresql": "18.6"}, data={"agents": 10, "prefix": "agent"}, options={"jobs": 1})
    for actions in (1_000, 1_000_000):
        more = {"rows_read": 5, "size": 2_500, "floor": 0.5, "actions": actions, "open_calls": 50}
        report.rows.append(make_row("growth", "a page | or two", [p50 * actions / 1_000], round_trips=2, **more))
    report.goals.append(Goal(name="a page", wanted="< 1", found=f"{p50}", is_met=False))
    report.remarks.append("Flower was not measured: there is none.")
    return report


def test_a_run_replaces_its_own_section_and_leaves_the_others(tmp_path: Path) -> None:
    file = tmp_path / "RESULTS.md"

    write_results(file, a_report(1.0), effort="quick", seconds=100)
    write_results(file, a_report(2.0), effort="full", seconds=900)
    write_results(file, a_report(3.0), effort="quick", seconds=110)

    text = file.read_text()
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        "## `./run bench --full`",
        "## `./run bench --quick`",
    ]
    assert [line for line in text.splitlines() if line.startswith("| a page |")] == [
        "| a page | < 1 | 2.0 | **missed** |",
        "| a page | < 1 | 3.0 | **missed** |",
    ]
    assert [one.name for one in tmp_path.iterdir()] == ["RESULTS.md"]


def test_a_section_says_machine_versions_date_command_and_how_it_grows(tmp_path: Path) -> None:
    file = tmp_path / "RESULTS.md"

    write_results(file, a_report(1.0), effort="usual", seconds=100)

    text = file.read_text()
    assert all(words in text for words in ("## `./run bench`", "CPUs", "postgresql 18.6", "100 s", "10 agents"))
    assert "| what | 1k/50 | 1M/50 | largest : smallest |" in text
    assert "| a page \\| or two | 1.00 | 1,000 | 1000.00 |" in text
    assert "| a page \\| or two | 1,000 | 50 | 1 | 1.00 | 1.00 | 1.00 | 2 | 5 | 2.5 | 0.50 | 2.0 |  |" in text
    assert "Flower was not measured: there is none." in text


def test_the_readmes_table_tells_each_goal_once_as_the_largest_run_found_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "RESULTS.md"
    monkeypatch.setattr(command, "FILE", file)
    for effort, ratio, is_met in (("quick", "0.41", False), ("full", "0.30 | or so", True)):
        report = a_report(1.0)
        report.goals.append(Goal(name="settle: p50 in parts of the client's", wanted="<= 0.33", found=ratio, is_met=is_met))
        if effort == "quick":
            report.goals.append(Goal(name="memory: a web process after the run", wanted="< 160 MB", found="170 MB", is_met=False))
        write_results(file, report, effort=effort, seconds=1)

    assert command.main(["readme"]) == 0

    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()[2:]]
    assert [(row[1], row[-1]) for row in rows] == [
        ("<= 0.33", "`./run bench settle --full`"),
        ("< 160 MB", "`./run bench growth --quick`"),
    ]
    assert "0.30" in readme_table(file)
    assert rows[1][2] == "170 MB (missed)"


def test_without_results_the_readmes_table_is_empty(tmp_path: Path) -> None:
    assert readme_table(tmp_path / "RESULTS.md").count("\n") == 1
