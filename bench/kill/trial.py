"""One trial: an agent's process is killed at a point, a new one resumes and finishes, and what is left is judged from outside."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.context import ForkServerContext
from pathlib import Path
from uuid import uuid4

from actions.records import Action
from actions.store.base import ActionStore
from bench.kill.agent import EFFECTS, Life, Records, Said, live, preload
from bench.kill.rows import Cell, Outcome, judge
from demo.world import World


class TrialFailed(Exception):
    """A process did not end as it should: the trial says nothing, and is not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where trials are made: the records, as agents and as we open them, a folder for the worlds, and who decides, if anybody does."""

    records: Records
    store: ActionStore
    folder: Path
    lease_s: float
    forks: ForkServerContext
    decide: Callable[[str, World], None] | None = None


def warm(kind: str) -> ForkServerContext:
    """A process that has imported everything, from which each agent is forked: only the first start is slow."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(preload(kind))
    return context


def run_trial(site: Site, cell: Cell, number: int) -> Outcome:
    """Kill, decide where the setup has somebody who does, resume, judge.

    An operator decides before the agent resumes in every other trial, and in the rest after it has resumed and stopped before the call in doubt.

    Raises:
        TrialFailed: a process was not killed at its point, or a resumed one did not finish. The folder stays, with its log.
    """
    setup, tool, point = cell
    agent = f"kill-{uuid4().hex[:16]}"
    folder = site.folder / agent
    folder.mkdir(mode=0o700)
    life = Life(agent=agent, setup=setup, records=site.records, folder=folder, lease_s=site.lease_s)
    _live(site, replace(life, tool=tool, point=point), ends=-signal.SIGKILL)
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
    process = site.forks.Process(target=live, args=(life,), daemon=True)
    process.start()
    process.join()
    if process.exitcode != ends:
        log = life.folder / "agent.log"
        last = log.read_text(errors="replace").splitlines()[-1:] if log.exists() else []
        said = f": {last[0]}" if last else ""
        raise TrialFailed(
            f"{life.setup}, {life.tool or 'resumed'} {life.point}: ended with {process.exitcode}, not {ends}{said} (see {log})"
        )
