"""Processes of a run that are killed with SIGKILL at a point, forked from one that has imported everything already."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agents import calls, compensation
from agents.harness import DurableAgent
from agents.runs import Gate
from agents.steps import Answer, StepState, advance
from tests.agents.refunds import GIVEN, PAY, RUN, TELL, World, opened_line, refund, tools_of
from tests.interop.driver import expire_lease

POINTS = (
    "before begin of pay",
    "before effect of pay",
    "after effect of pay",
    "after end of pay",
    "before checkpoint",
    "after checkpoint",
)
GATED = Gate(description="Money leaves the house.")
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["tests.agents.dying"])


def kind_of(world: World, build: str, *, gated: bool = False) -> Any:
    """Pay, tell Ann, pay more, all in one message."""
    more = ("pay", {"order": "A-18", "amount": 30})
    return refund(world, [PAY, TELL, more], build=build, tools=tools_of(world, pay_gate=GATED if gated else None))


def killed_at(work: Callable[..., None], point: str, url: str, file: Path, *given: Any) -> None:
    """Runs `work` in a process of its own, which must be killed there; then its lease is let expire."""
    process = _forks.Process(target=work, args=(point, url, str(file), *given))
    process.start()
    process.join(180)
    assert process.exitcode == -signal.SIGKILL, process.exitcode
    expire_lease(url, RUN)


def run_to_the_point(point: str, url: str, file: str, build: str, answers: dict[str, list[Answer]] | None = None) -> None:
    """Steps of a run in one process that dies at `point`."""
    world = World(Path(file), point)
    _die_in_records(world)
    with opened_line("postgres", url) as line:
        _die_in_checkpoints(world, line.saver)
        with DurableAgent.resume(line.store, RUN) as agent:
            state = StepState.GOING
            while state is StepState.GOING:
                kind = kind_of(world, build, gated=answers is not None)
                state = advance(kind, RUN, GIVEN, answers or {}, agent=agent, checkpointer=line.saver).state


def undo_to_the_point(point: str, url: str, file: str, make: Callable[[World], Any]) -> None:
    """Compensations in one process that dies at `point`."""
    world = World(Path(file), point)
    _die_in_records(world)
    with opened_line("postgres", url) as line, DurableAgent.resume(line.store, RUN) as agent:
        state = compensation.UndoState.GOING
        while state is compensation.UndoState.GOING:
            state = compensation.undo_next(make(world), RUN, agent=agent, resolver=None).state


def _die_in_records(world: World) -> None:
    begin, returned = calls.ToolCalls.begin, calls.ToolCalls.returned

    def dying_begin(self: Any, *args: Any) -> Any:
        world.reach(f"before begin of {self.tool}")
        return begin(self, *args)

    def dying_returned(self: Any, *args: Any, **named: Any) -> None:
        returned(self, *args, **named)
        world.reach(f"after end of {self.tool}")

    calls.ToolCalls.begin = dying_begin  # type: ignore[method-assign]
    calls.ToolCalls.returned = dying_returned  # type: ignore[method-assign]


def _die_in_checkpoints(world: World, saver: Any) -> None:
    """Around the checkpoint of the step that made calls."""
    base = type(saver)

    class Dying(base):  # type: ignore[misc,valid-type]
        def put(self, *args: Any, **named: Any) -> Any:
            is_after_calls = "tell" in world.effects
            if is_after_calls:
                world.reach("before checkpoint")
            written = super().put(*args, **named)
            if is_after_calls:
                world.reach("after checkpoint")
            return written

    saver.__class__ = Dying
