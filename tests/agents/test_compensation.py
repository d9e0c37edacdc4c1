"""A run walked backward: newest first, each call once, and what stops it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from actions.records import ActionStatus
from agents.compensation import UndoOutcome, UndoState, UndoStepState, compensated, plan, read_run, undo_next
from agents.harness import DurableAgent
from agents.runs import RunTool, RunType, RunTypeRefused, Undo, check_run_type, has_moved_money
from agents.steps import StepState
from tests.agents.dying import killed_at, undo_to_the_point
from tests.agents.records import actions_of, operator_settles
from tests.agents.refunds import PAY, RUN, TELL, Line, World, opened_line, refund, tools_of

PAY_MORE = ("pay", {"order": "A-18", "amount": 30})


def undoable(world: World, *, fails: Sequence[str] = (), cuts: Sequence[str] = (), action_class: str = "external") -> RunType:
    """Paying is undone by taking back, telling by nothing. `cuts`: orders of which it happens, and the answer is lost."""

    def take_back(order: str, because: str, idempotency_key: str) -> str:
        """Take money back."""
        if order in fails:
            raise LookupError(f"password=hunter2 no payment of {order}\nat line 7")
        said = world.happens("take_back", idempotency_key, order=order, because=because)
        if order in cuts:
            raise ConnectionResetError("reset by peer")
        return said

    look_up, pay, tell = tools_of(world)
    undo = Undo("take_back", lambda args, result: {"order": args["order"], "because": result})
    tools = (look_up, replace(pay, compensate=undo), tell, RunTool(take_back, action_class, only_undoes=True))
    return refund(world, [PAY], [TELL], [PAY_MORE], tools=tools)


def idempotent_undo(world: World) -> RunType:
    return undoable(world, action_class="idempotent")


def undo(line: Line, kind: RunType) -> UndoOutcome:
    with line.process() as agent:
        return undo_next(kind, RUN, agent=agent)


def planned(line: Line, kind: RunType) -> list[tuple[str, UndoStepState]]:
    """As a page previews it, without the lease."""
    agent = DurableAgent.resume(line.store, RUN, defer_lease=True)
    return [(step.call.tool, step.state) for step in plan(kind, *read_run(agent))]


def test_calls_that_happened_are_taken_back_newest_first_each_once(line: Line, world: World) -> None:
    kind = undoable(world)
    line.until(kind, StepState.DONE)
    assert planned(line, kind) == [
        ("pay", UndoStepState.WAITING),
        ("tell", UndoStepState.NOTHING_TO_UNDO),
        ("pay", UndoStepState.WAITING),
    ]

    outcomes = [undo(line, kind) for _ in range(4)]

    assert [outcome.state for outcome in outcomes] == [UndoState.GOING, UndoState.GOING, UndoState.DONE, UndoState.DONE]
    undone = [effect for effect in world.details if effect["tool"] == "take_back"]
    assert [(effect["order"], effect["because"]) for effect in undone] == [("A-18", "pay done"), ("A-17", "pay done")]
    made = [action for action in actions_of(line.store, RUN) if action.tool == "take_back"]
    assert [(compensated(action), action.key, action.status) for action in made] == [
        (3, undone[0]["key"], ActionStatus.DONE),
        (1, undone[1]["key"], ActionStatus.DONE),
    ]
    assert planned(line, kind) == [
        ("pay", UndoStepState.HAPPENED),
        ("tell", UndoStepState.NOTHING_TO_UNDO),
        ("pay", UndoStepState.HAPPENED),
    ]


def test_a_compensation_that_fails_stops_and_going_on_tries_it_once_more(quick: Line, world: World) -> None:
    quick.until(undoable(world), StepState.DONE)

    stopped = undo(quick, undoable(world, fails=["A-18"]))

    assert (stopped.state, stopped.step and stopped.step.state) == (UndoState.STOPPED, UndoStepState.FAILED)
    assert stopped.problem.startswith("LookupError:")
    assert "hunter2" not in stopped.problem
    assert "\n" not in stopped.problem
    assert world.effects.count("take_back") == 0
    assert [undo(quick, undoable(world)).state for _ in range(3)] == [UndoState.GOING, UndoState.GOING, UndoState.DONE]
    assert [effect["order"] for effect in world.details if effect["tool"] == "take_back"] == ["A-18", "A-17"]


def test_a_compensation_whose_connection_was_cut_is_in_doubt_and_is_not_made_again(quick: Line, world: World) -> None:
    quick.until(undoable(world), StepState.DONE)

    cut = undo(quick, undoable(world, cuts=["A-18"]))
    again = undo(quick, undoable(world))

    assert [(one.state, one.step and one.step.state) for one in (cut, again)] == [
        (UndoState.OPEN_CALLS, UndoStepState.IN_DOUBT)
    ] * 2
    assert [effect["order"] for effect in world.details if effect["tool"] == "take_back"] == ["A-18"]
    (made,) = [action for action in actions_of(quick.store, RUN) if action.tool == "take_back"]
    assert made.is_open
    assert [[(one.seq, one.status) for one in outcome.calls] for outcome in (cut, again)] == [
        [(made.seq, ActionStatus.UNKNOWN)],
        [],
    ]


def test_a_compensation_that_returned_has_happened_whatever_langchain_makes_of_what_it_gave(quick: Line, world: World) -> None:
    class Unprintable:
        def __str__(self) -> str:
            raise LookupError("detached from its session")

    def take_back(order: str, because: str, idempotency_key: str) -> Any:
        """Take money back."""
        world.happens("take_back", idempotency_key, order=order, because=because)
        return [Unprintable()]

    kind = undoable(world)
    quick.until(kind, StepState.DONE)
    kind = replace(kind, tools=(*kind.tools[:3], RunTool(take_back, "external", only_undoes=True)))

    assert [undo(quick, kind).state for _ in range(3)] == [UndoState.GOING, UndoState.GOING, UndoState.DONE]
    assert world.effects.count("take_back") == 2


def test_a_tool_that_the_type_has_no_more_stops_the_walk_and_may_have_moved_money(quick: Line, world: World) -> None:
    kind = undoable(world)
    quick.until(kind, StepState.DONE)
    look_up, _, tell, take_back = kind.tools
    kind = replace(kind, tools=(look_up, tell, take_back))

    stopped = undo(quick, kind)

    assert (stopped.state, stopped.step and stopped.step.call.seq) == (UndoState.STOPPED, 3)
    assert stopped.problem == "run type refund has no tool pay any more, so nobody can say what takes it back"
    assert world.effects.count("take_back") == 0
    assert has_moved_money(kind, actions_of(quick.store, RUN))
    assert not has_moved_money(kind, [one for one in actions_of(quick.store, RUN) if one.tool != "pay"])


def test_a_call_in_doubt_stops_before_anything_is_taken_back(line: Line, world: World) -> None:
    kind = undoable(world)
    line.until(kind, StepState.DONE)
    with line.process() as died:
        died.begin_action("pay", {"order": "A-19", "amount": 1}, "external")

    stopped = undo(line, kind)

    assert stopped.state is UndoState.OPEN_CALLS
    assert stopped.step is not None
    assert (stopped.step.call.seq, stopped.step.state) == (4, UndoStepState.IN_DOUBT)
    assert world.effects.count("take_back") == 0
    operator_settles(line.store, 4, ActionStatus.FAILED, agent=RUN)
    assert undo(line, kind).state is UndoState.GOING


@pytest.mark.parametrize("answer", [None, KeyError("no order")])
def test_arguments_that_say_nothing_is_to_be_undone_or_cannot_be_made(quick: Line, world: World, answer: Any) -> None:
    def arguments(args: Any, result: str) -> Any:
        if answer is not None:
            raise answer

    kind = undoable(world)
    quick.until(kind, StepState.DONE)
    tools = [replace(tool, compensate=Undo("take_back", arguments)) if tool.name == "pay" else tool for tool in kind.tools]

    outcome = undo(quick, replace(kind, tools=tuple(tools)))

    assert outcome.state is (UndoState.DONE if answer is None else UndoState.STOPPED)
    assert "take_back" not in [action.tool for action in actions_of(quick.store, RUN)]
    assert ("cannot be told: KeyError" in outcome.problem) is (answer is not None)


def test_a_model_cannot_make_a_call_look_like_a_compensation(quick: Line, world: World) -> None:
    kind = replace(undoable(world), build=refund(world, [("pay", {**PAY[1], "compensates": 1})], [PAY_MORE]).build)
    quick.until(kind, StepState.DONE)

    assert [compensated(action) for action in actions_of(quick.store, RUN)] == [None, None]


def test_a_tool_whose_parameter_is_called_so_is_refused_at_registration(world: World) -> None:
    def odd(compensates: int) -> str:
        """Odd."""
        return ""

    with pytest.raises(RunTypeRefused, match="odd has a parameter compensates"):
        check_run_type(refund(world, tools=(RunTool(odd, "pure"),)))


@pytest.mark.parametrize("make", [undoable, idempotent_undo])
@pytest.mark.parametrize("point", [f"{point} of take_back" for point in ("before begin", "after effect", "after end")])
def test_a_walk_that_is_killed_goes_on_and_takes_nothing_back_twice(
    pg_url: str, world: World, point: str, make: Callable[[World], RunType]
) -> None:
    kind = make(world)
    with opened_line("postgres", pg_url) as line:
        line.until(kind, StepState.DONE)

        killed_at(undo_to_the_point, point, pg_url, world.file, make)
        outcome = undo(line, kind)
        if outcome.state is UndoState.OPEN_CALLS:
            assert world.effects.count("take_back") == 1
            operator_settles(line.store, 4, ActionStatus.DONE, result="taken back", agent=RUN)
        while outcome.state is not UndoState.DONE:
            outcome = undo(line, kind)

        undone = [effect for effect in world.details if effect["tool"] == "take_back"]
        assert list(dict.fromkeys(effect["order"] for effect in undone)) == ["A-18", "A-17"]
        assert len({effect["key"] for effect in undone}) == 2  # an idempotent one may be made again, under its own key
        assert make is idempotent_undo or len(undone) == 2
        assert [state for tool, state in planned(line, kind) if tool == "pay"] == [UndoStepState.HAPPENED] * 2
