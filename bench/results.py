"""bench/RESULTS.md: one section for each kind of whole run, written by the run itself and never by hand."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path

from bench.report import TEXT_COLUMNS, Report, say_data, tables

FILE = Path(__file__).with_name("RESULTS.md")
HEAD = "# What Settle costs\n\nWritten by `./run bench`, never by hand: each kind of run replaces its own section.\n"
ORDER = ("full", "usual", "quick")


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
