"""A run advanced step by step: what a step does, what it does not do while calls are open, and that no crash makes an effect twice."""

from __future__ import annotations

from decimal import Decimal

import pytest

from agents.steps import StepState
from tests.agents.records import actions_of
from tests.agents.refunds import BUILDS, PAY, RUN, TELL, World, refund


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
