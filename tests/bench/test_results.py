"""bench/RESULTS.md: each kind of run replaces its own section and no other's."""

from __future__ import annotations

from pathlib import Path

from bench.report import Goal, Report, make_row
from bench.results import write_results


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
