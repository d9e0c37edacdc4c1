"""`./run bench chaos [--quick|--full] [--json FILE]`: runs through two workers while everything they need is killed at random."""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from shutil import rmtree
from typing import Any

import httpx
import psycopg

from bench.chaos.runs import EFFECTS, UNDOES, effects
from bench.chaos.stage import STORE, WORKERS, Stage, open_stage
from local import processes
from local.processes import ServerError

FINAL = ("done", "failed", "cancelled")
PATIENCE_S = 180.0
"""So long no run may come a step further once nothing is killed any more; then what has not ended counts as stuck. A slow machine is no fault."""
POLL_S = 0.2
KILLS = {"worker": 6, "deploy": 2, "broker": 2, "database": 1}
"""What is killed, and how often beside the others: first each once, then at random."""
ALL = "all at once"
"""The last kill, in the last second, or later where not everything had its turn: both workers, broker and database. Nothing comes after it that
could push a run on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be run."""

    runs: int
    seconds: float
    seed: int
    file: Path | None


EFFORTS = {"quick": (10, 15.0), "usual": (50, 60.0), "full": (50, 60.0)}


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What was counted: effects in files outside, gates and ends in the tables, resumes in each run's replay, which has to explain them alone."""

    runs: int
    seconds: float
    seed: int
    killed: dict[str, int] = field(default_factory=dict)
    done: int = 0
    not_done: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    never: list[str] = field(default_factory=list)
    gates: int = 0
    asked_again: list[str] = field(default_factory=list)
    resumes: int = 0
    unexplained: list[str] = field(default_factory=list)
    took_s: float = 0.0

    @property
    def faults(self) -> list[str]:
        return [*self.not_done, *self.twice, *self.never, *self.asked_again, *self.unexplained]


def main(asked: Asked, tell: Callable[[str], None]) -> int:
    try:
        outcome = bench_chaos(asked, tell)
    except (ServerError, OSError, psycopg.Error, httpx.HTTPError) as exc:
        print(f"bench: {next(iter(str(exc).splitlines()), type(exc).__name__)}", file=sys.stderr)
        return 1
    print(render(outcome), flush=True)
    if asked.file:
        asked.file.write_text(json.dumps(asdict(outcome), indent=2) + "\n")
    return 1 if outcome.faults else 0


def bench_chaos(asked: Asked, tell: Callable[[str], None]) -> Outcome:
    """Start the runs, kill for so many seconds, let the rest end, count.

    Raises:
        ServerError: a server did not come up.
    """
    folder = processes.temporary_folder("chaos", mode=0o711)
    outcome = Outcome(runs=asked.runs, seconds=asked.seconds, seed=asked.seed)
    try:
        stage = open_stage(folder)
        try:
            token = (folder / "token").read_text()
            with httpx.Client(
                base_url=stage.url, headers={"Authorization": f"Bearer {token}"}, trust_env=False, timeout=10
            ) as http:
                _play(stage, http, asked, outcome, tell)
                _count(stage, http, outcome)
        finally:
            stage.stop()
    except BaseException:
        tell(f"data and logs stay in {folder}")
        raise
    if outcome.faults:
        tell(f"data and logs stay in {folder}")
    else:
        rmtree(folder, ignore_errors=True)
    return outcome


def _play(stage: Stage, http: httpx.Client, asked: Asked, outcome: Outcome, tell: Callable[[str], None]) -> None:
    chance = random.Random(asked.seed)
    targets = _targets(chance)
    began = time.monotonic()
    started: dict[int, str] = {}
    killed: Counter[str] = Counter()
    next_kill, last_kill, pace = began + 2, began + asked.seconds - 1, min(1.0, asked.seconds / 20)
    last, ended, steps, moved, moved_at = "", 0, 0, (0, 0), began
    while True:
        now = time.monotonic()
        for number in range(1, asked.runs + 1):
            if number not in started and (run := _start(http, number)):
                started[number] = run
        _approve(http)
        is_last = now >= last_kill and sum(killed.values()) >= len(KILLS)
        if not killed[ALL] and (is_last or now >= next_kill):
            target = ALL if is_last else next(targets)
            _strike(stage, target, chance)
            killed[target] += 1
            next_kill = time.monotonic() + chance.uniform(1, 4) * pace
        _keep_alive(stage)
        ended, steps = _ended(stage) or (ended, steps)
        if (ended, steps) != moved:
            moved, moved_at = (ended, steps), now
        line = f"{ended} of {asked.runs} ended, killed: {_listed(killed)}"
        if line != last:
            tell(line)
            last = line
        if killed[ALL] and ended == asked.runs:
            break
        if now > max(began + asked.seconds, moved_at) + PATIENCE_S:
            break
        time.sleep(POLL_S)
    outcome.killed = dict(killed)
    outcome.took_s = round(time.monotonic() - began, 1)


def _targets(chance: random.Random) -> Iterator[str]:
    yield from chance.sample(list(KILLS), len(KILLS))
    while True:
        yield chance.choices(list(KILLS), weights=list(KILLS.values()))[0]


def _strike(stage: Stage, target: str, chance: random.Random) -> None:
    """It goes, and comes back."""
    names = WORKERS if target == ALL else (chance.choice(WORKERS),) if target in ("worker", "deploy") else ()
    for name in names:
        stage.deploy(name) if target == "deploy" else stage.kill(name)
    if target in ("database", ALL):
        stage.kill_database()
    if target in ("broker", ALL):
        stage.kill_broker()
    for name in names:
        stage.start(name)


def _keep_alive(stage: Stage) -> None:
    """As whatever runs the processes of a deployment would."""
    for name, process in list(stage.running.items()):
        if process.poll() is not None:
            stage.start(name)


def _start(http: httpx.Client, number: int) -> str:
    """Its run id; empty where nobody knows whether it was started: the same key asks again."""
    body = {"type": "chaos", "input": {"number": number}, "idempotency_key": f"chaos-{number}"}
    with suppress(httpx.HTTPError):
        answer = http.post("/api/v1/runs", json=body)
        if answer.status_code == httpx.codes.ACCEPTED:
            return str(answer.json()["id"])
        if answer.status_code < 500:
            raise ServerError(f"a run was refused: {answer.status_code} {answer.text[:200]}")
    return ""


def _approve(http: httpx.Client) -> None:
    """What a person does: say yes to all that waits."""
    with suppress(httpx.HTTPError):
        answer = http.get("/api/v1/approvals")
        for item in answer.json()["items"] if answer.status_code == httpx.codes.OK else ():
            http.post(f"/api/v1/approvals/{item['id']}", json={"decision": "approve", "seen": item["digest"]})


def _ended(stage: Stage) -> tuple[int, int] | None:
    """How many runs have ended, and how many steps all have made; None while the database is away."""
    counts = "SELECT count(*) FILTER (WHERE status = ANY(%s)), coalesce(sum(steps), 0) FROM console_run"
    with suppress(psycopg.Error):
        ((ended, steps),) = _rows(stage, counts, [list(FINAL)])
        return int(ended), int(steps)
    return None


def _rows(stage: Stage, statement: str, values: list[Any] | None = None) -> list[tuple[Any, ...]]:
    with psycopg.connect(stage.database, connect_timeout=2) as connection:
        return connection.execute(statement, values or []).fetchall()


def _count(stage: Stage, http: httpx.Client, outcome: Outcome) -> None:
    runs = _rows(stage, "SELECT id, run_id, input, status, problem, resumes FROM console_run ORDER BY id")
    by_number = {
        json.loads(given)["number"]: (pk, run, status, problem, resumes) for pk, run, given, status, problem, resumes in runs
    }
    seen = {tool: Counter(effect["number"] for effect in effects(tool, stage.folder / "world")) for tool in EFFECTS}
    for number in range(1, outcome.runs + 1):
        pk, run, status, problem, resumes = by_number.get(number, (0, "", "never started", "", 0))
        outcome.done += status == "done"
        if status != "done":
            outcome.not_done.append(f"run {number} ({run}) is {status}: {problem}")
        for tool in EFFECTS:
            times = seen[tool][number]
            if times > 1:
                outcome.twice.append(f"run {number} ({run}): {tool} happened {times} times")
            if times == 0 and status == "done":
                outcome.never.append(f"run {number} ({run}): {tool} never happened")
        asked = _rows(stage, "SELECT state FROM console_approval WHERE run_id = %s", [pk])
        outcome.gates += len(asked)
        if len(asked) != (1 if number % 2 == 0 else 0):
            outcome.asked_again.append(f"run {number} ({run}): its gate was asked {len(asked)} times")
        _count_resumes(outcome, number, run, resumes, _replay(http, run))
    for tool in UNDOES:
        if effects(tool, stage.folder / "world"):
            outcome.twice.append(f"{tool} happened, which nobody asked for")


def _replay(http: httpx.Client, run: str) -> list[dict[str, Any]]:
    """Its replay as an auditor downloads it; empty where it is not whole."""
    if not run:
        return []
    with suppress(httpx.HTTPError):
        answer = http.get(f"/api/v1/agents/{STORE}/{run}/replay")
        lines = [json.loads(line) for line in answer.text.splitlines()] if answer.status_code == httpx.codes.OK else []
        return lines if lines and lines[-1].get("kind") == "replay_end" else []
    return []


def _count_resumes(outcome: Outcome, number: int, run: str, lost: int, replay: list[dict[str, Any]]) -> None:
    """Each begins with a reason: a worker that was lost (as often as the row counted), or calls that were settled after the run had stopped for
    them."""
    events = [line for line in replay if line.get("kind") == "run"]
    reasons = [line["detail"].get("reason") for line in events if line["event"] == "resumed"]
    told = sum("lost" in line["detail"] for line in events if line["event"] == "resumed")
    stops = sum(line["event"] == "parked" and line["detail"].get("why") == "open_calls" for line in events)
    outcome.resumes += len(reasons)
    if not replay:
        outcome.unexplained.append(f"run {number} ({run}): it has no whole replay")
    elif told != lost or not all(reasons) or len(reasons) - told > stops:
        outcome.unexplained.append(
            f"run {number} ({run}): {lost} workers lost, {stops} stops, and {len(reasons)} resumes: {reasons}"
        )


def _listed(killed: Counter[str]) -> str:
    return ", ".join(f"{what} {times}" for what, times in sorted(killed.items())) or "nothing yet"


def render(outcome: Outcome) -> str:
    """The table, and each fault in a line."""
    rows = {
        "runs": outcome.runs,
        "killed": _listed(Counter(outcome.killed)),
        "took": f"{outcome.took_s} s",
        "done": outcome.done,
        "effects twice": len(outcome.twice),
        "effects never": len(outcome.never),
        "gates asked": outcome.gates,
        "gates asked again": len(outcome.asked_again),
        "resumes": outcome.resumes,
        "resumes unexplained": len(outcome.unexplained),
    }
    lines = [f"{name:<22}{value}" for name, value in rows.items()]
    verdict = "missed" if outcome.faults else "met"
    said = "every run ends done, each effect exactly once, each gate asked once, each resume explained"
    return "\n".join([*lines, "", f"{verdict:<8}{said} (seed {outcome.seed})", *outcome.faults])
