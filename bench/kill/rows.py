"""What the kill test counts: one outcome for each trial, rows for programs, a table for people. Pure but for the file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from actions.records import Action, ActionStatus
from bench.kill.agent import CLASSES, EFFECTS, POINTS, SETUPS
from local.postgres import write_private

SETTLING = ("durable+resolver", "durable+operator")
"""Setups in which somebody can say what happened: nothing may be left waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one trial left, seen from outside: the world's files, the action records, and what the agent said last.

    `twice`: an effect (an email, an invoice) is stored more than once. `never`: an effect is missing although the agent reports the task as
    done, or the effect's call is recorded as done, or nothing is left open that could stand for it. `waiting`: an action is still open, so
    that nobody knows yet, and the agent said so. `wrong`: an action says `done` and nothing is stored under its key, or `failed` or
    `abandoned` and something is. All effects count, not only those of the tool in which the agent was killed.
    """

    twice: bool
    never: bool
    waiting: bool
    wrong: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Trials of one setup, killed in one tool at one point: how many of them were so (see `Outcome`)."""

    store: str
    setup: str
    tool: str
    point: str
    trials: int = 0
    twice: int = 0
    never: int = 0
    waiting: int = 0
    wrong: int = 0

    def plus(self, outcome: Outcome) -> Row:
        return replace(
            self,
            trials=self.trials + 1,
            twice=self.twice + outcome.twice,
            never=self.never + outcome.never,
            waiting=self.waiting + outcome.waiting,
            wrong=self.wrong + outcome.wrong,
        )


Cell = tuple[str, str, str]
"""Setup, tool, point."""


def judge(effects: Mapping[str, Sequence[str]], actions: Iterable[Action], *, is_finished: bool) -> Outcome:
    """`effects`: of each tool that has some, the keys under which they are stored, as often as they are; "" for one without a key."""
    every = list(actions)
    opened = any(action.is_open for action in every)
    known = [action for action in every if action.tool in effects]
    said_done = {action.tool for action in known if action.status is ActionStatus.DONE}
    missing = {tool for tool in effects if not effects[tool]}
    return Outcome(
        twice=any(len(keys) > 1 for keys in effects.values()),
        never=any(is_finished or tool in said_done or not opened for tool in missing),
        waiting=opened,
        wrong=any(_is_wrong(action, effects[action.tool]) for action in known),
    )


def _is_wrong(action: Action, keys: Sequence[str]) -> bool:
    if action.is_open:
        return False
    return (action.status is ActionStatus.DONE) != (action.key in keys)


@dataclass(slots=True)
class Tally:
    """The rows of one store, and the file in which they stand; what is in it already is gone on with."""

    store: str
    file: Path | None = None
    about: dict[str, Any] = field(default_factory=dict)
    rows: dict[Cell, Row] = field(default_factory=dict)

    def read(self) -> None:
        """Take over what an earlier run has finished.

        Raises:
            ValueError: the file is something else. It is left as it is.
        """
        if self.file is None or not self.file.exists():
            return
        try:
            told = json.loads(self.file.read_text())
            rows = [Row(**row) for row in told["rows"]]
        except (KeyError, TypeError, ValueError) as exc:
            raise ValueError(f"{self.file} holds no rows of this test; name another file") from exc
        if foreign := {row.store for row in rows} - {self.store}:
            raise ValueError(f"{self.file} holds rows of {', '.join(sorted(foreign))}; name another file for {self.store}")
        self.rows = {(row.setup, row.tool, row.point): row for row in rows}

    def left(self, cell: Cell, trials: int) -> range:
        """The numbers of the trials that are still to be made."""
        return range(self.of(cell).trials, trials)

    def of(self, cell: Cell) -> Row:
        setup, tool, point = cell
        return self.rows.get(cell) or Row(store=self.store, setup=setup, tool=tool, point=point)

    def add(self, cell: Cell, outcome: Outcome) -> None:
        """Count one trial, and write the file anew, whole or not at all."""
        self.rows[cell] = self.of(cell).plus(outcome)
        if self.file is not None:
            write_private(self.file, json.dumps(self.as_json(), indent=2) + "\n")

    def as_json(self) -> dict[str, Any]:
        return {"bench": "kill", **self.about, "rows": [asdict(row) for row in self.in_order()]}

    def in_order(self) -> list[Row]:
        return [self.rows[cell] for cell in cells() if cell in self.rows]


def cells(setups: Sequence[str] = SETUPS, tools: Sequence[str] = tuple(CLASSES), points: Sequence[str] = POINTS) -> list[Cell]:
    return [(setup, tool, point) for setup in setups for tool in tools for point in points]


TITLES = {
    "lookup_order": "lookup_order (pure)",
    "save_invoice": "save_invoice (idempotent)",
    "send_email": "send_email (external)",
}
_COUNTS = ("trials", "twice", "never", "waiting", "wrong")


def render(rows: Sequence[Row]) -> str:
    """A table for each tool: its setups, all three points together."""
    wide = max(map(len, SETUPS))
    lines = []
    for tool, title in TITLES.items():
        lines += [f"killed in {title}", f"  {'':{wide}}" + "".join(f"{name:>9}" for name in _COUNTS)]
        for setup in SETUPS:
            if mine := [row for row in rows if (row.setup, row.tool) == (setup, tool)]:
                sums = [sum(getattr(row, name) for row in mine) for name in _COUNTS]
                lines.append(f"  {setup:{wide}}" + "".join(f"{number:>9}" for number in sums))
        lines.append("")
    return "\n".join([*lines, *verdicts(rows)])


def verdicts(rows: Sequence[Row]) -> list[str]:
    """What was promised, and whether it was found."""
    durable = [row for row in rows if row.setup.startswith("durable")]
    settling = [row for row in rows if row.setup in SETTLING]
    risky = [row for row in rows if row.setup == "ordinary" and row.point == "after-effect" and row.tool in EFFECTS]
    promises = [
        ("durable tools: nothing twice, nothing lost, no wrong outcome", durable, _sum(durable, "twice", "never", "wrong") == 0),
        ("with a resolver or an operator: nothing left waiting", settling, _sum(settling, "waiting") == 0),
        ("ordinary tools: every kill after an effect doubles it", risky, all(row.twice == row.trials for row in risky)),
    ]
    return [f"{'met   ' if is_met else 'MISSED'}  {says}" for says, judged, is_met in promises if judged]


def _sum(rows: Iterable[Row], *names: str) -> int:
    return sum(getattr(row, name) for row in rows for name in names)
