"""A run advanced step by step: what a step does, what it does not do while calls are open, and that no crash makes an effect twice."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.base import uuid6
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import RetryPolicy
from pydantic import BaseModel, ConfigDict

from actions.errors import LeaseLost, LeaseNotHeld, StoreUnavailable
from actions.records import ActionStatus
from agents import checkpoints
from agents.harness import DurableAgent, End
from agents.runs import RunTool, RunTypeRefused, check_run_type
from agents.steps import Answer, Meter, StepState, advance, read_lost, read_trajectory, state_problem
from tests.agents.dying import POINTS, killed_at, kind_of, run_to_the_point
from tests.agents.records import actions_of, operator_settles
from tests.agents.refunds import BUILDS, GIVEN, PAY, RUN, TELL, Line, Talk, World, opened_line, refund, told, tools_of


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


def test_what_is_unwise_is_said_once_and_no_step_builds_a_tools_schema_again(
    world: World, line: Line, caplog: pytest.LogCaptureFixture
) -> None:
    schemas: list[list[Any]] = []

    def build(tools: Sequence[Any], hooks: Any, saver: Any) -> Any:
        schemas.append([tool.args_schema for tool in tools])
        return BUILDS["create_agent"](Talk([PAY], [TELL])())(tools, hooks, saver)

    def pay_by_hand(order: str) -> str:
        """Pay without a key."""
        return order

    kind = refund(world, graph=build, tools=(*tools_of(world), RunTool(pay_by_hand, "external", is_reversible=True)))
    with caplog.at_level("WARNING", "agents.calls"):
        check_run_type(kind)
        steps = line.to_the_end(kind)

    assert steps[-1].state is StepState.DONE
    assert len(schemas) >= len(steps) > 1
    assert all(one is first for later in schemas for one, first in zip(later, schemas[0], strict=True))
    said = [record.getMessage().split(":")[0] for record in caplog.records if record.name == "agents.calls"]
    assert said == ["pay_by_hand takes no idempotency_key"]


@pytest.mark.parametrize(
    ("summary", "problem"),
    [("Refund of {amount", "a single {"), ("Refund of {amuont}", "its summary names amuont, which is not in its input")],
)
def test_a_summary_that_cannot_be_filled_in_is_refused(world: World, summary: str, problem: str) -> None:
    with pytest.raises(RunTypeRefused, match=re.escape(problem)):
        check_run_type(replace(refund(world), summary=summary))


def test_a_tool_that_would_fail_the_first_step_of_every_run_is_refused(world: World) -> None:
    def lazy(order: str) -> Iterator[str]:
        """Not over when it returns."""
        yield order

    def keyless(order: str) -> str:
        """Repeat as you like."""
        return order

    with pytest.raises(RunTypeRefused) as refused:
        check_run_type(refund(world, tools=(RunTool(lazy, "pure"), RunTool(keyless, "idempotent"))))

    for problem in ("lazy is a generator", "keyless is idempotent but takes no idempotency_key"):
        assert problem in str(refused.value)


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
@pytest.mark.parametrize("point", POINTS[2:3])
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


# --- what a step meets ---


def nodes(*made: tuple[str, Any], state: Any = MessagesState) -> Any:
    """A graph of nodes in a row, each made of the tools by name."""

    def build(tools: Sequence[Any], hooks: Any, saver: Any) -> Any:
        by_name = {tool.name: tool for tool in tools}
        graph = StateGraph(state)
        for name, make in made:
            graph.add_node(name, make(by_name))
        for before, (after, _) in zip([START, *(name for name, _ in made)], made, strict=False):
            graph.add_edge(before, after)
        return graph.compile(checkpointer=saver)

    return build


def saying(text: str) -> Any:
    return lambda tools: lambda state: {"messages": [AIMessage(text)]}


def paying(tools: Any) -> Any:
    """Calls a tool as code does, without a call id."""
    return lambda state: {"messages": [AIMessage(tools["pay"].invoke(PAY[1]) + tools["tell"].invoke(TELL[1]))]}


@pytest.mark.parametrize("status", [ActionStatus.DONE, ActionStatus.FAILED, ActionStatus.ABANDONED])
def test_a_call_made_by_code_is_known_again_after_a_crash(quick: Line, world: World, status: ActionStatus) -> None:
    kind = refund(world, graph=nodes(("first", saying("Hello.")), ("pay", paying)))
    quick.step(kind)
    with quick.process() as died:  # as a process leaves it that was killed between the call's record and its end
        checkpoints.enter(quick.saver, checkpoints.find_newest(quick.saver, RUN), {"newest_action": 0, "newest_turn": 0})
        died.begin_action("pay", PAY[1], "external")

    stopped = quick.step(kind)
    operator_settles(quick.store, 1, status, result="paid" if status is ActionStatus.DONE else "", agent=RUN)
    step = quick.step(kind)

    assert (stopped.state, [action.seq for action in stopped.open_calls], stopped.checkpoint) == (StepState.OPEN_CALLS, [1], "")
    if status is ActionStatus.ABANDONED:
        assert (step.state, world.effects) == (StepState.FAILED, [])
        assert "somebody has given the call up" in step.problem
    else:
        assert step.result == ("paidtell done" if status is ActionStatus.DONE else "pay donetell done")
        assert world.effects == (["tell"] if status is ActionStatus.DONE else ["pay", "tell"])


def test_a_node_that_raises_fails_the_run_in_one_clean_line_and_resuming_tries_only_what_failed(
    quick: Line, world: World
) -> None:
    raises = True

    def failing(tools: Any) -> Any:
        def node(state: Any) -> Any:
            said = tools["pay"].invoke(PAY[1])
            if raises:
                raise ValueError("password=hunter2 is wrong\nat line 7")
            return {"messages": [AIMessage(said)]}

        return node

    kind = refund(world, graph=nodes(("pay", failing)))
    failed = quick.step(kind)
    raises = False
    again = quick.step(kind)

    assert failed.state is StepState.FAILED
    assert failed.problem.startswith("ValueError:")
    assert "hunter2" not in failed.problem
    assert "\n" not in failed.problem
    assert [action.tool for action in failed.calls] == ["pay"]
    assert (again.state, again.result, again.calls) == (StepState.DONE, "pay done", ())
    assert world.effects == ["pay"]


def test_a_tool_that_raised_is_tried_again_when_the_run_is_resumed(quick: Line, world: World) -> None:
    tries: list[str] = []

    def pay(order: str, amount: float) -> str:
        """Pay."""
        tries.append(order)
        if len(tries) == 1:
            raise LookupError("no such account")
        return "paid"

    kind = refund(world, [PAY, TELL], build="tool_node", tools=(RunTool(pay, "external"), tools_of(world)[2]))
    failed = quick.until(kind, StepState.FAILED)
    quick.until(kind, StepState.DONE)

    assert failed.problem == "LookupError: no such account"
    assert (len(tries), world.effects) == (2, ["tell"])


class Unprintable:
    def __str__(self) -> str:
        raise LookupError("detached from its session")

    __repr__ = __str__


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("how", ["sync", "async", "no pair"])
def test_a_tool_that_returned_has_happened_whatever_langchain_makes_of_what_it_gave(
    quick: Line, world: World, build: str, how: str
) -> None:
    def happens(order: str, amount: float, idempotency_key: str) -> Any:
        world.happens("pay", idempotency_key, order=order, amount=amount)
        return "no pair" if how == "no pair" else Unprintable()

    def pay(order: str, amount: float, idempotency_key: str) -> Any:
        """Pay."""
        return happens(order, amount, idempotency_key)

    async def pay_later(order: str, amount: float, idempotency_key: str) -> Any:
        """Pay."""
        return happens(order, amount, idempotency_key)

    paying = StructuredTool.from_function(
        func=pay,
        coroutine=pay_later if how == "async" else None,
        response_format="content_and_artifact" if how == "no pair" else "content",
    )
    kind = refund(world, [PAY], build=build, tools=(RunTool(paying, "external"),))

    failed = quick.until(kind, StepState.FAILED)
    quick.until(kind, StepState.DONE)

    assert ("response_format" if how == "no pair" else "detached") in failed.problem
    assert world.effects == ["pay"]
    (action,) = actions_of(quick.store, RUN)
    result = "no pair" if how == "no pair" else "<a Unprintable that cannot be written as text>"
    assert (action.status, action.result) == (ActionStatus.DONE, result)
    assert str(told(quick.state(kind))["c1"].content) == result


@pytest.mark.parametrize("cost", ["NaN", "Infinity", "-1", "1e20"])
def test_a_cost_that_is_no_amount_fails_the_step_and_says_so(quick: Line, world: World, cost: str) -> None:
    kind = replace(refund(world, [PAY]), cost=lambda message: Decimal(cost))

    step = quick.until(kind, StepState.FAILED)

    assert step.problem == f"what the step cost cannot be told: ValueError: a message cannot cost {Decimal(cost)}"
    assert (step.cost, world.effects) == (Decimal(0), [])


def test_input_is_read_as_the_json_that_it_is(quick: Line, world: World) -> None:
    class Strict(BaseModel):
        model_config = ConfigDict(strict=True)
        order: date

    kind = replace(refund(world), input=Strict, start=lambda given: {"messages": [AIMessage(repr(given.order))]})

    with quick.process() as agent:
        step = advance(kind, RUN, {"order": "2026-11-30"}, {}, agent=agent, checkpointer=quick.saver)

    assert step.state is not StepState.FAILED, step.problem
    assert quick.state(kind).values["messages"][0].content == "datetime.date(2026, 11, 30)"


@pytest.mark.parametrize("may_end", [False, True])
def test_a_time_out_is_no_failure_and_an_open_call_lets_no_run_be_done(quick: Line, world: World, may_end: bool) -> None:
    def pay(order: str) -> str:
        """Pay."""
        raise TimeoutError

    def node(tools: Any) -> Any:
        def call(state: Any) -> Any:
            with suppress(TimeoutError):
                tools["pay"].invoke({"order": "A-17"})
            return {"messages": [AIMessage("Done, I think.")]}

        return call

    kind = refund(world, graph=nodes(("pay", node)), tools=(RunTool(pay, "external"),), may_end_with_open_calls=may_end)

    for step in (quick.step(kind), quick.step(kind)):
        assert step.state is (StepState.DONE if may_end else StepState.OPEN_CALLS)
        assert [action.status for action in step.open_calls] == [ActionStatus.UNKNOWN]
    settled = quick.step(kind, resolver=lambda action: End("done", "204"))
    assert (settled.state, [action.status for action in settled.calls]) == (StepState.DONE, [ActionStatus.DONE])


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"graph": nodes(("other", saying("Hello.")))}, "the graph has no node second any more"),
        (
            {"graph": nodes(("first", saying("")), ("second", saying("")), state=dict)},
            "the graph's state has no messages any more",
        ),
        ({"graph": lambda *_: 1 / 0}, "the graph cannot be built: ZeroDivisionError"),
    ],
)
def test_a_checkpoint_that_no_longer_loads_fails_the_run_with_a_sentence_and_changes_nothing(
    quick: Line, world: World, changed: dict[str, Any], words: str
) -> None:
    old = refund(world, graph=nodes(("first", saying("Hello.")), ("second", saying("Bye."))))
    quick.step(old)
    kind = refund(world, **changed)

    step = quick.step(kind)

    assert (step.state, step.checkpoint) == (StepState.FAILED, "")
    assert words in step.problem
    assert state_problem(kind, RUN, checkpointer=quick.saver) == step.problem
    assert state_problem(old, RUN, checkpointer=quick.saver) == ""
    assert quick.step(old).result == "Bye."


def test_bytes_that_nobody_can_read_fail_the_run_and_offer_a_restart(quick: Line, world: World) -> None:
    class Broken(InMemorySaver):
        def list(self, *args: Any, **named: Any) -> Any:
            raise ValueError("unpack failed: password=hunter2")

    quick.saver = Broken()

    step = quick.step(refund(world))

    assert step.state is StepState.FAILED
    assert step.problem.startswith("the last checkpoint can no longer be read (ValueError: unpack failed")
    assert step.problem.endswith("restart the run, or bring the earlier code back and resume it")
    assert "hunter2" not in step.problem


def test_input_that_does_not_fit_fails_before_anything_is_written(quick: Line, world: World) -> None:
    with quick.process() as agent:
        step = advance(refund(world), RUN, {"order": 5}, {}, agent=agent, checkpointer=quick.saver)

    assert step.state is StepState.FAILED
    assert step.problem.startswith("the run's input does not fit its type any more: ValidationError")
    assert read_trajectory(refund(world), RUN, checkpointer=quick.saver) == ()


def test_the_trajectory_names_the_nodes_of_each_checkpoint_newest_first(line: Line, world: World) -> None:
    kind = refund(world, [PAY, TELL], build="tool_node")
    steps = line.to_the_end(kind)

    stored = read_trajectory(kind, RUN, checkpointer=line.saver)

    assert [step.nodes for step in stored] == [("model",), ("tools",), ("model",), (), ()]
    assert [step.number for step in stored] == [3, 2, 1, 0, -1]
    assert [step.checkpoint for step in reversed(steps)] == [step.checkpoint for step in stored[:3]]
    assert read_trajectory(kind, RUN, checkpointer=line.saver, limit=1) == stored[:1]


def test_a_node_that_langgraph_tries_again_repeats_no_call_that_happened_or_may_have(quick: Line, world: World) -> None:
    tried: list[str] = []

    def ask(what: str) -> str:
        """Ask."""
        tried.append(what)
        raise TimeoutError

    def node(state: Any) -> Any:
        by_name["pay"].invoke(PAY[1])
        by_name["pay"].invoke(PAY[1])  # as code means it: twice
        by_name["ask"].invoke({"what": "more"})

    def build(tools: Sequence[Any], hooks: Any, saver: Any) -> Any:
        by_name.update({tool.name: tool for tool in tools})
        graph = StateGraph(MessagesState)
        graph.add_node("node", node, retry_policy=RetryPolicy(max_attempts=3, initial_interval=0, retry_on=Exception))
        graph.add_edge(START, "node")
        return graph.compile(checkpointer=saver)

    by_name: dict[str, Any] = {}
    kind = refund(world, graph=build, tools=(*tools_of(world), RunTool(ask, "external")))

    step = quick.step(kind)

    assert (step.state, tried, world.effects) == (StepState.OPEN_CALLS, ["more"], ["pay", "pay"])
    assert [(action.tool, action.status) for action in step.calls] == [
        ("pay", ActionStatus.DONE),
        ("pay", ActionStatus.DONE),
        ("ask", ActionStatus.UNKNOWN),
    ]


# --- what it costs ---


def test_what_a_tools_own_model_says_costs_too_and_a_step_that_fails_costs_what_was_said(quick: Line, world: World) -> None:
    from tests.agents.scripted import ScriptedModel

    def asks(tools: Any) -> Any:
        def node(state: Any) -> Any:
            said = ScriptedModel(AIMessage("a"), AIMessage("b"))
            said.invoke("one")
            said.invoke("two")
            if fails:
                raise ValueError("no")
            return {"messages": [AIMessage("both")]}

        return node

    kind = refund(world, graph=nodes(("first", saying("Hello.")), ("asks", asks)))
    fails = True
    first, failed = quick.step(kind), quick.step(kind)
    fails = False
    meter = Meter(kind.cost, attempt="here")
    last = quick.step(kind, meter=meter)

    assert (first.cost, failed.state, failed.cost) == (Decimal("0.5"), StepState.FAILED, Decimal(1))
    assert (last.state, last.cost, meter.spent) == (StepState.DONE, Decimal(1), Decimal(1))
    lost = read_lost(kind, RUN, checkpointer=quick.saver, attempts=["here"], limit=5)
    assert [step.cost for step in lost.steps if step.nodes] == [Decimal(1), Decimal("0.5")]
    others = read_lost(kind, RUN, checkpointer=quick.saver, attempts=[], limit=5)
    assert [step.cost for step in others.steps if step.nodes] == [Decimal(0), Decimal("0.5")]
    assert lost.cost == 0


# --- the lease ---


def test_who_lost_the_lease_writes_no_checkpoint_and_another_goes_on(line: Line, world: World) -> None:
    thief: list[Any] = []

    def pay(order: str, amount: float, idempotency_key: str) -> str:
        """Pay."""
        said = world.happens("pay", idempotency_key)
        if not thief:
            agent.release()
            thief.append(DurableAgent.resume(line.store, RUN))
        return said

    kind = refund(world, [PAY], build="tool_node", tools=(RunTool(pay, "external"),))
    line.step(kind)
    before = read_trajectory(kind, RUN, checkpointer=line.saver)
    agent = DurableAgent.resume(line.store, RUN)

    with pytest.raises((LeaseLost, LeaseNotHeld)):
        advance(kind, RUN, GIVEN, {}, agent=agent, checkpointer=line.saver)

    assert read_trajectory(kind, RUN, checkpointer=line.saver) == before
    thief[0].release()
    assert line.step(kind).state is StepState.OPEN_CALLS
    operator_settles(line.store, 1, ActionStatus.DONE, agent=RUN)
    line.until(kind, StepState.DONE)
    assert world.effects == ["pay"]


def test_a_checkpoint_of_an_older_lease_that_comes_late_is_passed_over(line: Line, world: World) -> None:
    """A process was frozen between looking at its lease and writing: nothing of ours can keep that checkpoint out of the database."""
    kind = refund(world, [PAY], [TELL], build="tool_node")
    line.step(kind)
    stale = checkpoints.find_newest(line.saver, RUN)
    line.to_the_end(kind)
    late = {**stale.checkpoint, "id": str(uuid6())}
    line.saver.put(stale.config, late, {**stale.metadata, checkpoints.EPOCH: 1}, stale.checkpoint["channel_versions"])
    assert checkpoints.find_newest(line.saver, RUN).checkpoint["id"] == late["id"]

    step = line.step(kind)

    assert (step.state, step.result) == (StepState.DONE, "All done.")
    assert world.effects == ["pay", "tell"]


@pytest.mark.parametrize("method", ["list", "put", "put_writes"])
def test_a_database_of_checkpoints_that_does_not_answer_fails_no_run(quick: Line, world: World, method: str) -> None:
    kind = refund(world, [PAY], [TELL], build="tool_node")
    quick.step(kind)
    whole = quick.saver

    class OperationalError(Exception):
        """A driver's."""

    class Gone(InMemorySaver):
        pass

    def gone(*args: Any, **named: Any) -> Any:
        raise OperationalError("server closed the connection; password=hunter2")

    setattr(Gone, method, gone)
    quick.saver = copy.copy(whole)
    quick.saver.__class__ = Gone

    with pytest.raises(StoreUnavailable) as raised:
        quick.step(kind)

    assert "hunter2" not in str(raised.value)
    quick.saver = whole
    quick.until(kind, StepState.DONE)
    assert world.effects == ["pay", "tell"]
