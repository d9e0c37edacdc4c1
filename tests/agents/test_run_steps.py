"""A run advanced step by step: what a step does, what it does not do while calls are open, and that no crash makes an effect twice."""

from __future__ import annotations

from decimal import Decimal

import pytest

from actions.records import ActionStatus
from agents.steps import Answer, StepState
from tests.agents.dying import POINTS, killed_at, kind_of, run_to_the_point
from tests.agents.records import actions_of, operator_settles
from tests.agents.refunds import BUILDS, PAY, RUN, TELL, Line, World, opened_line, refund, told


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


# --- killed ---


def settled_by_hand(line: Line, world: World) -> int:
    """Every open call, as a person who looks at the file settles it; answers how many there were."""
    keys = {effect["key"] for effect in world.details}
    opened = [action for action in actions_of(line.store, RUN) if action.is_open]
    for action in opened:
        happened = action.key in keys
        status = ActionStatus.DONE if happened else ActionStatus.FAILED
        operator_settles(line.store, action.seq, status, result="found" if happened else "", agent=RUN)
    return len(opened)


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("point", POINTS)
def test_a_run_killed_anywhere_goes_on_in_another_process_with_each_effect_once(
    pg_url: str, world: World, point: str, build: str
) -> None:
    killed_at(run_to_the_point, point, pg_url, world.file, build)
    kind = kind_of(world, build)

    with opened_line("postgres", pg_url) as line:
        last = line.to_the_end(kind)[-1]
        if last.state is StepState.OPEN_CALLS:
            made = list(world.effects)
            assert line.step(kind).state is StepState.OPEN_CALLS
            assert world.effects == made
            assert settled_by_hand(line, world) == len(last.open_calls)
            last = line.to_the_end(kind)[-1]

        assert last.state is StepState.DONE, last
        assert sorted(world.effects) == ["pay", "pay", "tell"]
        done = [action for action in actions_of(line.store, RUN) if action.status is ActionStatus.DONE]
        assert sorted(action.key for action in done) == sorted(effect["key"] for effect in world.details)
        assert {str(message.status) for message in told(line.state(kind)).values()} == {"success"}


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("point", POINTS[2:5])
def test_a_call_that_was_approved_and_killed_is_neither_made_nor_asked_about_again(
    pg_url: str, world: World, point: str, build: str
) -> None:
    kind = kind_of(world, build, gated=True)
    with opened_line("postgres", pg_url) as line:
        answers: dict[str, list[Answer]] = {}
        for asked in line.until(kind, StepState.ASKS).asked:
            answers.setdefault(asked.interrupt_id, []).append(Answer(type="approve", digest=asked.digest))

        killed_at(run_to_the_point, point, pg_url, world.file, build, answers)
        settled_by_hand(line, world)
        last = line.to_the_end(kind, answers=answers)[-1]

        assert last.state is StepState.DONE, last
        assert sorted(world.effects) == ["pay", "pay", "tell"]
