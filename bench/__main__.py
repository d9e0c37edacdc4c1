"""`./run bench [NAME] [--quick|--full] [--jobs N] [--json FILE]`: starts what it needs, prints a table, stops it.

A whole run also writes its section of bench/RESULTS.md. `kill` and `chaos` count instead of measuring, and run only when they are named:
bench/kill/, bench/chaos/.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType

import httpx
import psycopg
from polign_recall import RecallError

from actions.errors import ActionsError
from bench.audit import bench_audit
from bench.beside import bench_flower
from bench.calls import bench_calls
from bench.chaos import command as chaos
from bench.documents import bench_documents
from bench.ground import Ground, laid
from bench.growth import bench_growth
from bench.kill import command as kill
from bench.learn import bench_learn
from bench.memory import bench_memory
from bench.pages import bench_pages
from bench.plan import Plan, make_plan
from bench.reads import bench_action, bench_queue
from bench.report import Report, render
from bench.results import FILE, readme_table, write_results
from bench.settle import bench_settle
from bench.shape import Shape
from local.processes import ServerError

# In the order in which they run: those that write come last.
BENCHES: dict[str, Callable[[Ground, Plan, Report], None]] = {
    "queue": bench_queue,
    "action": bench_action,
    "learn": bench_learn,
    "settle": bench_settle,
    "calls": bench_calls,
    "pages": bench_pages,
    "audit": bench_audit,
    "documents": bench_documents,
    "growth": bench_growth,
    "flower": bench_flower,
    "memory": bench_memory,
}

FAILURES = (ServerError, ActionsError, RecallError, OSError, psycopg.Error, httpx.HTTPError, subprocess.TimeoutExpired)
_stopped: list[int] = []
"""The exit code once somebody stopped us: what fails from then on, because Ctrl-C reached a client's own server too, is no failure."""
FEW = Shape(agents=120, actions=1_800, open_actions=40, turns=300)
OWN_DATA = frozenset({"audit", "documents", "growth", "flower", "memory"})
"""Benchmarks that bring their own: records would only be laid for nothing."""
README = "readme"
KILL = "kill"
CHAOS = "chaos"
TRIALS = {"quick": 1, "usual": 20, "full": 20}


def main(argv: list[str]) -> int:
    args = parse(argv)
    if args.name == README:
        if not FILE.exists():
            print(f"bench: there is no {FILE.name} yet; ./run bench writes it", file=sys.stderr)
            return 1
        print(readme_table(FILE))
        return 0
    if args.name == CHAOS:
        runs, seconds = chaos.EFFORTS[args.effort]
        return chaos.main(chaos.Asked(runs=runs, seconds=seconds, seed=args.seed, file=args.json), tell)
    if args.name == KILL:
        return kill.main(
            kill.Asked(store=args.store, trials=args.trials or TRIALS[args.effort], jobs=args.jobs, file=args.json), tell
        )
    plan = make_plan(args.effort, args.jobs)
    if args.name in OWN_DATA:
        plan = replace(plan, shape=FEW)
    began, failed = time.monotonic(), list[str]()
    try:
        with laid(plan.shape, tell) as ground:
            report = Report(versions=ground.versions, data=asdict(plan.shape), options={"effort": args.effort, "jobs": args.jobs})
            try:
                for name in [args.name] if args.name else [name for name in BENCHES if name not in plan.without]:
                    tell(f"{name} ...")
                    try:
                        BENCHES[name](ground, plan, report)
                    except FAILURES as exc:
                        if args.name or _stopped:
                            raise
                        # What was measured for an hour is not thrown away for the last of it.
                        failed.append(name)
                        report.remarks.append(f"{name} was not measured to its end: {_first_line(exc)}")
                report.remarks += [f"{name} is measured without --quick only." for name in plan.without if args.name is None]
            finally:
                show(report, args.json)
            if args.name is None:
                write_results(FILE, report, effort=args.effort, seconds=time.monotonic() - began)
    except FAILURES as exc:
        if _stopped:
            return _stopped[0]
        print(f"bench: {_first_line(exc)}", file=sys.stderr)
        return 1
    return 1 if failed else 0


def _first_line(exc: BaseException) -> str:
    return (str(exc).splitlines() or [type(exc).__name__])[0]


def stop(number: int, frame: FrameType | None) -> None:
    """Leave by the door, so that everything that was started is stopped."""
    _stopped.append(128 + number)
    sys.exit(128 + number)


def show(report: Report, file: Path | None) -> None:
    """What was measured, also when a later benchmark failed."""
    print(render(report), flush=True)
    if file:
        file.write_text(json.dumps(report.as_json(), indent=2) + "\n")


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="run bench",
        description="What Settle costs and how it grows, beside the real Recall client. Without a NAME everything is measured, and the run "
        "writes its own section of bench/RESULTS.md; a NAME alone prints and writes nothing.",
        epilog="Without --quick or --full: stores of up to 100,000 actions, some ten minutes for everything.",
    )
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        choices=[*BENCHES, README, KILL, CHAOS],
        help=f"one of {', '.join(BENCHES)}; or {README}: the README's table, out of bench/RESULTS.md, nothing is measured; or {KILL}, {CHAOS}",
    )
    effort = parser.add_mutually_exclusive_group()
    effort.add_argument("--quick", dest="effort", action="store_const", const="quick", help="fewer samples; under two minutes")
    effort.add_argument(
        "--full",
        dest="effort",
        action="store_const",
        const="full",
        help="a million actions, every agent resumed; some eleven minutes",
    )
    parser.add_argument(
        "--jobs", type=_positive, metavar="N", help="so many at once: settles, on both sides (1), or trials of kill (4)"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write the report to this file; kill goes on with what is in it"
    )
    only_kill = parser.add_argument_group(
        "kill", "Kills agents in the middle of their calls; writes records of its own into the store."
    )
    only_kill.add_argument(
        "--store", default="", metavar="URL", help="postgres://... or mongodb://...; without it a PostgreSQL of its own"
    )
    only_kill.add_argument("--trials", type=_positive, metavar="N", help="for each setup, tool and point; 20, or 1 with --quick")
    only_chaos = parser.add_argument_group("chaos", "Durable runs while workers, broker and database are killed at random.")
    only_chaos.add_argument("--seed", type=int, metavar="N", help="what is killed when; the same again with the same (0)")
    parser.set_defaults(effort="usual")
    args = parser.parse_args(argv)
    if args.name != KILL and (args.store or args.trials):
        parser.error("--store and --trials belong to kill")
    if args.name != CHAOS and args.seed is not None:
        parser.error("--seed belongs to chaos")
    if args.name in (README, CHAOS) and args.jobs:
        parser.error(f"--jobs means nothing to {args.name}")
    if args.json and (problem := _unwritable(args.json)):
        parser.error(f"--json {args.json}: {problem}")
    args.seed = args.seed or 0
    args.jobs = args.jobs or (4 if args.name == KILL else 1)
    return args


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 1_000_000):
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is no whole number from 1 on")
    return int(text)


def _unwritable(file: Path) -> str:
    """Why nothing can be written there, found out before an hour of measuring and not after it; empty where it can."""
    if file.is_dir():
        return "that is a folder"
    if not file.parent.is_dir():
        return "there is no such folder"
    return "" if os.access(file if file.exists() else file.parent, os.W_OK) else "it cannot be written"


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, stop)
    sys.exit(main(sys.argv[1:]))
