"""One trial: an agent's process is killed at a point, a new one resumes and finishes, and what is left is judged from outside."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

from actions.records import Action
from actions.store.base import ActionStore
from bench.forks import Forks
from bench.kill.agent import AFTER_RETURN, BEFORE_EFFECT, EFFECTS, Life, Records, Said, live
from bench.kill.rows import Cell, Outcome, judge
from demo.world import World


class TrialFailed(Exception):
    """A resumed process did not finish, or something is not as it must be. The trial is not counted."""


class NotKilled(TrialFailed):
    """The first process ended before it came to its point, so that there was no trial: it may be made again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where trials are made: the records, as agents and as we open them, a folder for the worlds, and who decides, if anybody does."""

    records: Records
    store: ActionStore
    folder: Path
    lease_s: float
    forks: Forks
    decide: Callable[[str, World], None] | None = None


def run_trial(site: Site, cell: Cell, number: int) -> Outcome:
    """Kill, decide where the setup has somebody who does, resume, judge.

    An operator decides before the agent resumes in every other trial, and in the rest after it has resumed and stopped before the call in doubt.

    Raises:
        NotKilled: a process was not killed at its point.
        TrialFailed: a resumed one did not finish. The folder stays, with its log.
    """
    setup, tool, point = cell
    agent = f"kill-{uuid4().hex[:16]}"
    folder = site.folder / agent
    folder.mkdir(mode=0o700)
    life = Life(agent=agent, setup=setup, records=site.records, folder=folder, lease_s=site.lease_s)
    _live(site, replace(life, tool=tool, point=point), ends=-signal.SIGKILL)
    _check_place(site, life, tool, point)
    if setup == "durable+operator":
        if site.decide is None:
            raise TrialFailed("there is no operator")
        if number % 2:
            _live(site, life, ends=0)
        site.decide(agent, World(folder))
    _live(site, life, ends=0)
    said = Said(**json.loads((folder / "said.json").read_text()))
    outcome = judge(effects_in(World(folder)), actions_of(site.store, agent), is_finished=said.is_finished)
    shutil.rmtree(folder)
    return outcome


def _check_place(site: Site, life: Life, tool: str, point: str) -> None:
    """That it died where it should: by what stands in the world, and by its newest record."""
    stored = len(effects_in(World(life.folder)).get(tool, ()))
    wanted = 1 if tool in EFFECTS and point != BEFORE_EFFECT else 0
    if stored != wanted:
        raise NotKilled(f"{life.setup}, {tool} {point}: killed with {stored} effects stored, not {wanted} (see {life.folder})")
    if life.setup == "ordinary":
        return
    newest = max(actions_of(site.store, life.agent), key=lambda action: action.seq, default=None)
    if newest is None or newest.tool != tool or newest.is_open == (point == AFTER_RETURN):
        raise NotKilled(f"{life.setup}, {tool} {point}: killed elsewhere; the newest action is {newest}")


def effects_in(world: World) -> dict[str, list[str]]:
    """Of each tool the keys of its effects, as often as they are stored."""
    return {tool: [str(effect["key"]) for effect in world.effects(file)] for tool, file in EFFECTS.items()}


def actions_of(store: ActionStore, agent: str) -> list[Action]:
    """Every action of the agent, as the store has it."""
    found = [reading.action for reading in store.list_agent_actions(agent, limit=100)]
    actions = [action for action in found if isinstance(action, Action)]
    if len(actions) != len(found):
        raise TrialFailed(f"agent {agent} has a record that cannot be read")
    return actions


def _live(site: Site, life: Life, *, ends: int) -> None:
    code = site.forks.run(live, life)
    if code != ends:
        kind = TrialFailed if ends == 0 else NotKilled
        where = f"{life.setup}, {life.tool or 'resumed'} {life.point}"
        raise kind(f"{where}: ended with {code}, not {ends}: {_complaint(life.folder / 'agent.log')}")


def _complaint(log: Path) -> str:
    """The line of a traceback that says what it is."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    said = [line for line in lines if line and not line.startswith((" ", "During task"))]
    return f"{said[-1][:300]} (see {log})" if said else f"it said nothing (see {log})"
