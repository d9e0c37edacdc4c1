"""bench/RESULTS.md: one section for each kind of whole run, written by the run itself and never by hand."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from bench.report import TEXT_COLUMNS, Report, say_data, tables

FILE = Path(__file__).with_name("RESULTS.md")
HEAD = "# What Settle costs\n\nWritten by `./run bench`, never by hand: each kind of run replaces its own section.\n"
ORDER = ("full", "usual", "quick")
README_LINES = (
    ("settle: p50", "settle", "one decision, closed, told and audited, in parts of Recall's resume, end, turn and release"),
    ("calls: begin + end", "calls", "begin + end of a call, in parts of Recall's client"),
    ("learn: ", "learn", "every open call of 10,000 agents, times faster than resuming each"),
    ("growth: queue, first page at", "growth", "the queue's first page beside its floor"),
    ("growth: queue, first page, ", "growth", "the same in the largest store, in parts of the smallest"),
    ("growth: settle, ", "growth", "a settle through the API, likewise"),
    ("crowd: settles lost", "growth", "eight operators at once, each call offered to two: lost"),
    ("crowd: settles doubled", "growth", "doubled"),
    ("memory: a web process", "growth", "a web process after all of that"),
    ("memory: the whole demo", "memory", "the whole demo"),
)
"""How the goal begins, which benchmark finds it, and what the README calls it."""


def write_results(file: Path, report: Report, *, effort: str, seconds: float) -> None:
    """Replace this effort's section; the others stay as they are. Whole or not at all."""
    text = file.read_text() if file.exists() else HEAD
    found = {effort: section for effort in ORDER if (section := _section(text, effort))}
    found[effort] = _begin(effort) + as_markdown(report, effort=effort, seconds=seconds) + _end(effort)
    new = file.with_name(f"{file.name}.new")
    new.write_text("\n".join([HEAD, *(found[effort] for effort in ORDER if effort in found)]))
    new.replace(file)


def as_markdown(report: Report, *, effort: str, seconds: float) -> str:
    jobs = report.options.get("jobs", 1)
    command = " ".join(
        ["./run bench", *([] if effort == "usual" else [f"--{effort}"]), *([f"--jobs {jobs}"] if jobs > 1 else [])]
    )
    versions = ", ".join(f"{name} {value}" for name, value in report.versions.items())
    laid = f"Where nothing else is said: {say_data(report.data)}."
    parts = [f"## `{command}`", f"{report.date}, {seconds:.0f} s. {machine()}. {versions}. {laid}"]
    parts += [
        "\n".join(["| goal | wanted | found | |", "| --- | --- | --- | --- |", *goals])
        for goals in [
            [_cells((goal.name, goal.wanted, goal.found, "met" if goal.is_met else "**missed**")) for goal in report.goals]
        ]
        if goals
    ]
    parts += report.remarks
    for title, head, body in tables(report):
        parts += [*([f"### {title}"] if title else []), _as_table(head, body)]
    return "\n\n".join(parts)


def machine() -> str:
    """What was measured on, without naming whose it is."""
    model = re.search(r"^model name\s*:\s*(.+)$", _read("/proc/cpuinfo"), re.MULTILINE)
    memory = re.search(r"^MemTotal:\s+(\d+) kB", _read("/proc/meminfo"), re.MULTILINE)
    parts = [
        f"{os.cpu_count()} CPUs{f' ({model[1].strip()})' if model else ''}",
        *([f"{int(memory[1]) / 1024**2:.0f} GB"] if memory else []),
        f"{platform.system()} {platform.release().split('-')[0]}",
        f"load {os.getloadavg()[0]:.1f} at the end",
    ]
    return ", ".join(parts)


def readme_table(file: Path) -> str:
    """The table of the README: of each line the goal as the largest run found it, with the command that finds it again."""
    found = {effort: _goals(_section(file.read_text(), effort)) for effort in ORDER} if file.exists() else {}
    lines = []
    for beginning, bench, what in README_LINES:
        effort, goal = next(
            ((effort, goal) for effort in ORDER for goal in found.get(effort, ()) if goal[0].startswith(beginning)), ("", None)
        )
        if goal is not None:
            option = "" if effort == "usual" else f" --{effort}"
            said = f"{goal[2]}{'' if goal[3] == 'met' else ' (missed)'}"
            lines.append(_cells((what, goal[1], said, f"`./run bench {bench}{option}`")))
    return "\n".join([_cells(("what", "wanted", "found", "by")), _cells(["---"] * 4), *lines])


def _goals(section: str) -> list[list[str]]:
    """The rows of the first table: goal, wanted, found, whether it is met."""
    lines = section.partition("| goal |")[2].splitlines()[2:]
    return [
        [cell.strip(" *").replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in takewhile(lambda line: line.startswith("|"), lines)
    ]


def _as_table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    rule = ["---" if name in TEXT_COLUMNS else "---:" for name in head]
    return "\n".join([_cells(head), _cells(rule), *map(_cells, body)])


def _cells(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _section(text: str, effort: str) -> str:
    begin, end = _begin(effort), _end(effort)
    if begin not in text or end not in text:
        return ""
    return text[text.index(begin) : text.index(end) + len(end)]


def _begin(effort: str) -> str:
    return f"<!-- {effort} -->\n\n"


def _end(effort: str) -> str:
    return f"\n\n<!-- end of {effort} -->\n"


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
