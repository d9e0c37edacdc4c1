"""A run advanced step by step: what a step does, what it does not do while calls are open, and that no crash makes an effect twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from actions.store.base import AgentStore
from actions.store.memory import MemoryStore
from agents.harness import DurableAgent, Resolver
from agents.runs import RunType
from agents.steps import Answer, Step, StepState, advance
from tests.agents.records import actions_of
from tests.agents.refunds import BUILDS, GIVEN, PAY, RUN, TELL, World, refund


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "effects.jsonl")


@pytest.fixture
def store() -> AgentStore:
    return MemoryStore("main")


class Line:
    """A run whose every step is made by a process of its own."""

    def __init__(self, store: AgentStore, saver: Any) -> None:
        self.store = store
        self.saver = saver

    @contextmanager
    def process(self) -> Iterator[DurableAgent]:
        with DurableAgent.resume(self.store, RUN) as agent:
            yield agent

    def step(
        self, kind: RunType, answers: dict[str, Sequence[Answer]] | None = None, *, resolver: Resolver | None = None
    ) -> Step:
        with self.process() as agent:
            return advance(kind, RUN, GIVEN, answers or {}, agent=agent, checkpointer=self.saver, resolver=resolver)

    def to_the_end(self, kind: RunType, **options: Any) -> list[Step]:
        steps = [self.step(kind, **options)]
        while steps[-1].state is StepState.GOING:
            steps.append(self.step(kind, **options))
        return steps


@pytest.fixture
def line(store: AgentStore) -> Line:
    return Line(store, InMemorySaver())


@pytest.mark.parametrize("build", BUILDS)
def test_each_step_is_one_superstep_and_the_last_says_what_the_run_came_to(line: Line, world: World, build: str) -> None:
    kind = refund(world, [PAY], [TELL], build=build)

    steps = line.to_the_end(kind)

    assert [step.state for step in steps] == [*[StepState.GOING] * (len(steps) - 1), StepState.DONE]
    assert [step.nodes for step in steps if step.nodes == ("tools",)] == [("tools",)] * 2
    assert [[action.tool for action in step.calls] for step in steps if step.calls] == [["pay"], ["tell"]]
    assert len({step.checkpoint for step in steps}) == len(steps)
    assert steps[-1].result == "All done."
    assert sum((step.cost for step in steps), Decimal(0)) == Decimal("1.5")
    assert world.effects == ["pay", "tell"]
    assert [action.key for action in actions_of(line.store, RUN)] == [effect["key"] for effect in world.details]
    again = line.step(kind)
    assert (again.state, again.calls, again.checkpoint) == (StepState.DONE, (), "")
    assert world.effects == ["pay", "tell"]
