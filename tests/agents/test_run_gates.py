"""Gates of a run: what is asked, what an answer does and does not do, and that nothing beside a gate runs twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import interrupt
from pydantic import AfterValidator

from actions.records import ActionStatus
from agents.gates import EDITED, check_edit, needs_approval
from agents.runs import Gate, RunTool, RunTypeRefused, check_run_type
from agents.steps import Answer, AskedCall, StepState
from tests.agents.records import actions_of, operator_settles
from tests.agents.refunds import BUILDS, PAY, RUN, TELL, Line, Talk, World, refund, told, tools_of

ALWAYS = Gate(description="Money leaves the house.")
PAY_MORE = ("pay", {"order": "A-18", "amount": 30})


def said(*answers: tuple[AskedCall, dict[str, Any]]) -> dict[str, list[Answer]]:
    """Answers in the shape of `advance`, each for a call that was asked about."""
    found: dict[str, list[Answer]] = {}
    for asked, answer in answers:
        found.setdefault(asked.interrupt_id, []).append(Answer(**{"digest": asked.digest, **answer}))
    return found


APPROVE = {"type": "approve"}


@pytest.mark.parametrize("build", BUILDS)
def test_gates_of_one_turn_are_asked_at_once_and_what_stands_beside_them_runs_once(line: Line, world: World, build: str) -> None:
    kind = refund(world, [PAY, TELL, PAY_MORE], build=build, tools=tools_of(world, pay_gate=ALWAYS))

    asks = line.until(kind, StepState.ASKS)
    first, second = asks.asked

    assert [(call.tool, call.args, call.call_id, call.allowed) for call in asks.asked] == [
        ("pay", PAY[1], "c1", ("approve", "edit", "reject", "respond")),
        ("pay", PAY_MORE[1], "c3", ("approve", "edit", "reject", "respond")),
    ]
    assert (first.description, first.digest != second.digest) == ("Money leaves the house.", True)
    assert [action.tool for action in actions_of(line.store, RUN) if action.tool == "pay"] == []
    half = line.step(kind, said((first, APPROVE)))
    again = line.step(kind)
    assert (half.state, again.state) == (StepState.ASKS, StepState.ASKS)
    assert second in again.asked

    last = line.to_the_end(kind, answers=said((first, APPROVE), (second, APPROVE)))[-1]

    assert last.state is StepState.DONE
    assert sorted(world.effects) == ["pay", "pay", "tell"]
    assert sorted(action.tool for action in actions_of(line.store, RUN)) == ["pay", "pay", "tell"]


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"type": "reject", "message": "too much"}, "User rejected the tool call for `pay` with reason: too much"),
        ({"type": "reject"}, "User rejected the tool call for `pay` with id c1. The tool was not executed."),
        ({"type": "respond", "message": "paid by hand"}, "paid by hand"),
    ],
)
def test_what_is_refused_begins_no_action_and_the_model_reads_it(
    quick: Line, world: World, build: str, answer: dict[str, Any], words: str
) -> None:
    kind = refund(world, [PAY], build=build, tools=tools_of(world, pay_gate=ALWAYS))
    (asked,) = quick.until(kind, StepState.ASKS).asked

    quick.until(kind, StepState.DONE, answers=said((asked, answer)))

    message = told(quick.state(kind))["c1"]
    assert str(message.content).startswith(words)
    assert message.status == ("success" if answer["type"] == "respond" else "error")
    assert (world.effects, actions_of(quick.store, RUN)) == ([], [])


@pytest.mark.parametrize("build", BUILDS)
def test_an_edit_is_what_is_recorded_and_called_and_the_model_is_told(quick: Line, world: World, build: str) -> None:
    kind = refund(world, [PAY], build=build, tools=tools_of(world, pay_gate=ALWAYS))
    (asked,) = quick.until(kind, StepState.ASKS).asked

    quick.until(kind, StepState.DONE, answers=said((asked, {"type": "edit", "args": {"order": "A-17", "amount": 5}})))

    assert [effect["amount"] for effect in world.details] == [5]
    assert [action.args for action in actions_of(quick.store, RUN)] == ['{"amount": 5, "order": "A-17"}'] or [
        action.args for action in actions_of(quick.store, RUN)
    ] == ['{"order": "A-17", "amount": 5}']
    content = str(told(quick.state(kind))["c1"].content)
    assert content.startswith("A person changed the arguments of this call before it was made")
    assert content.endswith("pay done")


@pytest.mark.parametrize("build", BUILDS)
def test_each_gate_of_a_turn_is_answered_in_its_own_way_and_the_model_reads_exactly_that(
    quick: Line, world: World, build: str
) -> None:
    calls = [("pay", {"order": f"A-{number}", "amount": number}) for number in (1, 2, 3, 4)]
    kind = refund(world, [*calls[:2], TELL, *calls[2:]], build=build, tools=tools_of(world, pay_gate=ALWAYS))
    approved, edited, rejected, responded = quick.until(kind, StepState.ASKS).asked
    assert told(quick.state(kind)) == {}
    answers = said(
        (approved, APPROVE),
        (edited, {"type": "edit", "args": {"order": "A-2", "amount": 20}}),
        (rejected, {"type": "reject", "message": "not that one"}),
        (responded, {"type": "respond", "message": "paid by hand"}),
    )

    quick.until(kind, StepState.DONE, answers=answers)

    assert {name: (str(message.content), message.status) for name, message in told(quick.state(kind)).items()} == {
        "c1": ("pay done", "success"),
        "c2": (EDITED.format(tool="pay", args='{"order": "A-2", "amount": 20}') + "\n\npay done", "success"),
        "c3": ("tell done", "success"),
        "c4": ("User rejected the tool call for `pay` with reason: not that one", "error"),
        "c5": ("paid by hand", "success"),
    }
    assert sorted((one["tool"], one.get("amount", 0)) for one in world.details) == [("pay", 1), ("pay", 20), ("tell", 0)]
    assert sorted(action.tool for action in actions_of(quick.store, RUN)) == ["pay", "pay", "tell"]


@pytest.mark.parametrize("build", BUILDS)
def test_what_was_answered_before_the_run_was_cancelled_counts_for_nothing_even_where_the_graph_has_it(
    quick: Line, world: World, build: str
) -> None:
    def breaks(order: str, amount: float) -> str:
        """Pay."""
        raise LookupError("no such account")

    kind = refund(
        world, [PAY, TELL], build=build, tools=(RunTool(named(breaks, "pay"), "external", gate=ALWAYS), tools_of(world)[2])
    )
    (asked,) = quick.until(kind, StepState.ASKS).asked
    assert quick.step(kind, said((asked, APPROVE))).state is StepState.FAILED
    kind = replace(kind, tools=tools_of(world, pay_gate=ALWAYS))

    (anew,) = quick.step(kind, said((asked, APPROVE)), cancels=1).asked

    assert (anew.digest != asked.digest, anew.args, "pay" in world.effects) == (True, asked.args, False)
    assert quick.step(kind, said((anew, APPROVE)), cancels=2).asked[0].digest not in (asked.digest, anew.digest)
    (last,) = quick.step(kind, cancels=1).asked
    assert last == anew
    quick.until(kind, StepState.DONE, answers=said((last, APPROVE)), cancels=1)
    assert sorted(world.effects) == ["pay", "tell"]


def named(tool: Any, name: str) -> Any:
    tool.__name__ = name
    return tool


def test_an_answer_to_something_else_reaches_nobody_and_the_question_stays(quick: Line, world: World) -> None:
    kind = refund(world, [PAY], tools=tools_of(world, pay_gate=ALWAYS))
    (asked,) = quick.until(kind, StepState.ASKS).asked

    for answer in (
        {"type": "approve", "digest": "0" * 64},
        {"type": "edit", "args": {"order": "A-17", "amount": "much"}},
        {"type": "shrug"},
    ):
        step = quick.step(kind, said((asked, answer)))
        assert (step.state, step.asked, step.checkpoint) == (StepState.ASKS, (asked,), "")
        assert step.problem.endswith("it is asked again")

    assert world.effects == []


def test_a_rule_that_changed_since_asks_again_and_the_earlier_answer_counts_for_nothing(quick: Line, world: World) -> None:
    old = refund(world, [PAY], tools=tools_of(world, pay_gate=ALWAYS))
    (asked,) = quick.until(old, StepState.ASKS).asked
    kind = replace(old, tools=tools_of(world, pay_gate=replace(ALWAYS, needs_another=True)))

    step = quick.step(kind, said((asked, APPROVE)))

    (anew,) = step.asked
    assert (step.state, world.effects) == (StepState.ASKS, [])
    assert anew.digest != asked.digest
    assert quick.until(kind, StepState.DONE, answers=said((anew, APPROVE))).result == "All done."
    assert world.effects == ["pay"]


def test_a_gate_that_is_gone_asks_nobody(quick: Line, world: World) -> None:
    old = refund(world, [PAY], tools=tools_of(world, pay_gate=ALWAYS))
    quick.until(old, StepState.ASKS)

    quick.until(replace(old, tools=tools_of(world)), StepState.DONE)

    assert world.effects == ["pay"]


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("now", [None, Gate(when="args.amount > 1000.0")])
@pytest.mark.parametrize(
    ("answer", "effects", "words"),
    [
        ({"type": "reject", "message": "not him"}, [], "User rejected the tool call for `pay` with reason: not him"),
        ({"type": "respond", "message": "paid by hand"}, [], "paid by hand"),
        (
            {"type": "edit", "args": {"order": "A-17", "amount": 5}},
            [5],
            EDITED.format(tool="pay", args='{"order": "A-17", "amount": 5}') + "\n\npay done",
        ),
        (APPROVE, [20], "pay done"),
    ],
)
def test_what_a_person_said_holds_for_a_call_that_no_rule_asks_about_any_more(
    quick: Line, world: World, build: str, now: Gate | None, answer: dict[str, Any], effects: list[int], words: str
) -> None:
    kind = refund(world, [PAY], build=build, tools=tools_of(world, pay_gate=ALWAYS))
    (asked,) = quick.until(kind, StepState.ASKS).asked

    quick.until(replace(kind, tools=tools_of(world, pay_gate=now)), StepState.DONE, answers=said((asked, answer)))

    assert [effect["amount"] for effect in world.details] == effects
    assert str(told(quick.state(kind))["c1"].content) == words


LESS = {"type": "edit", "args": {"order": "A-17", "amount": 5}}
LEAST = {"type": "edit", "args": {"order": "A-17", "amount": 1}}


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("since", ["cancelled", "another version", "gate gone"])
@pytest.mark.parametrize(
    ("first", "second"),
    [(LESS, APPROVE), (APPROVE, LESS), (LESS, LEAST), *((one, {"type": "reject", "message": "no"}) for one in (APPROVE, LESS))],
)
def test_a_call_that_happened_is_not_made_again_in_whatever_form_it_is_agreed_to_since(
    quick: Line, world: World, build: str, since: str, first: dict[str, Any], second: dict[str, Any]
) -> None:
    def pay(order: str, amount: float, idempotency_key: str) -> str:
        """Pay, and hear nothing of it."""
        world.happens("pay", idempotency_key, order=order, amount=amount)
        raise TimeoutError

    kind = refund(world, [PAY], build=build, tools=(RunTool(pay, "external", gate=ALWAYS), tools_of(world)[2]))
    (asked,) = quick.until(kind, StepState.ASKS).asked
    answers = said((asked, first))
    assert quick.step(kind, answers).state is StepState.OPEN_CALLS
    operator_settles(quick.store, 1, ActionStatus.DONE, result="paid", agent=RUN)
    gate = None if since == "gate gone" else ALWAYS
    kind = replace(kind, version=1 + (since == "another version"), tools=(RunTool(pay, "external", gate=gate), kind.tools[1]))
    more: dict[str, Any] = {"let_through": {("pay", "c1"): [first.get("args", PAY[1])]}, "cancels": int(since == "cancelled")}

    last = quick.to_the_end(kind, answers=answers, **more)[-1]
    if last.state is StepState.ASKS:
        last = quick.to_the_end(kind, answers=said((last.asked[0], second)), **more)[-1]

    assert last.state is StepState.DONE, last
    assert [effect["amount"] for effect in world.details] == [5 if first is LESS else 20]
    notice = EDITED.format(tool="pay", args='{"order": "A-17", "amount": 5}') + "\n\n" if first is LESS else ""
    assert str(told(quick.state(kind))["c1"].content) == f"{notice}paid"


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("first", [{"type": "reject", "message": "once is enough"}, LESS])
def test_of_two_calls_that_look_alike_each_keeps_what_was_said_of_it_through_a_crash(
    quick: Line, world: World, build: str, first: dict[str, Any]
) -> None:
    dies = True

    def pay(order: str, amount: float, idempotency_key: str) -> str:
        """Pay; of the whole amount nothing is heard."""
        done = world.happens("pay", idempotency_key, order=order, amount=amount)
        if dies and amount == 20:
            raise TimeoutError
        return done

    kind = refund(world, [PAY, PAY], build=build, tools=(RunTool(pay, "external", gate=ALWAYS),))
    answers = said(*zip(quick.until(kind, StepState.ASKS).asked, (first, APPROVE), strict=True))
    let_through = {("pay", "c1"): [LESS["args"]] if first is LESS else [], ("pay", "c2"): [PAY[1]]}
    assert quick.step(kind, answers, let_through=let_through).state is StepState.OPEN_CALLS
    (opened,) = [one for one in actions_of(quick.store, RUN) if one.is_open]
    operator_settles(quick.store, opened.seq, ActionStatus.DONE, result="paid", agent=RUN)
    dies = False

    quick.until(kind, StepState.DONE, answers=answers, let_through=let_through)

    assert sorted(effect["amount"] for effect in world.details) == ([5, 20] if first is LESS else [20])
    messages = told(quick.state(kind))
    assert str(messages["c1"].content).startswith("A person changed" if first is LESS else "User rejected the tool call")
    assert messages["c2"].content == "paid"


def test_calls_of_one_message_with_one_id_are_each_asked_about_and_the_same_one_once(quick: Line, world: World) -> None:
    other = ("pay", {"order": "A-18", "amount": 999_999})

    def build(tools: Sequence[Any], hooks: Any, saver: Any) -> Any:
        def model(state: MessagesState) -> dict[str, Any]:
            calls = [{"name": name, "args": args, "id": "c1"} for name, args in (PAY, PAY, other, TELL)]
            return {"messages": [AIMessage("", tool_calls=calls)]}

        graph = StateGraph(MessagesState)
        graph.add_node("model", model)
        graph.add_node("tools", ToolNode(list(tools)))
        graph.add_edge(START, "model")
        graph.add_edge("model", "tools")
        return graph.compile(checkpointer=saver)

    kind = refund(world, graph=build, tools=tools_of(world, pay_gate=ALWAYS, tell_gate=ALWAYS))
    first, second, third = quick.until(kind, StepState.ASKS).asked

    assert [(call.tool, call.args) for call in (first, second, third)] == [PAY, other, TELL]
    reject = {"type": "reject", "message": "no"}
    quick.to_the_end(kind, answers=said((first, APPROVE), (second, reject), (third, reject)))
    assert [(effect["tool"], effect["amount"]) for effect in world.details] == [("pay", 20)]


@pytest.mark.parametrize(
    ("when", "args", "is_asked"),
    [
        ("", {}, True),
        ("args.amount > 1000.0", {"amount": 1000}, False),
        ("args.amount > 1000.0", {"amount": 1000.5}, True),
        ("args.amount > 1000.0", {"amount": "many"}, True),
        ("args.amount > 1000.0", {}, True),
        ("args.amount", {"amount": 1}, True),
    ],
)
def test_a_condition_that_is_not_plainly_false_asks(when: str, args: dict[str, Any], is_asked: bool) -> None:
    assert needs_approval(Gate(when=when), args) is is_asked


def test_a_condition_that_cannot_be_read_is_refused_at_registration(world: World) -> None:
    with pytest.raises(RunTypeRefused, match="condition of the gate of pay cannot be read"):
        check_run_type(refund(world, tools=tools_of(world, pay_gate=Gate(when="args.amount >"))))


def test_an_edit_is_checked_against_the_tools_own_schema(world: World) -> None:
    kind = refund(world)

    assert check_edit(kind, "pay", {"order": "A-17", "amount": 5}) == []
    assert check_edit(kind, "pay", {"order": "A-17"}) == ["amount: Field required"]
    assert check_edit(kind, "pay", {"order": "A-17", "amount": "much", "idempotency_key": "mine"}) == [
        "idempotency_key: pay takes no such argument",
        "amount: Input should be a valid number",
    ]
    for amount in (True, "5", None, [5]):
        assert check_edit(kind, "pay", {"order": "A-17", "amount": amount}) == ["amount: Input should be a valid number"]
    assert check_edit(kind, "pay", {"order": "\ud800", "amount": 5}) == ["the arguments hold half a character, or are no JSON"]
    assert check_edit(kind, "burn", {}) == ["run type refund has no tool burn"]
    for number in (2**64, -(2**63) - 1, 10**400):
        assert check_edit(kind, "pay", {"order": "A-17", "amount": number}) == [
            "a whole number has more than 64 bits, which no state of a graph keeps"
        ]
    (too_long,) = check_edit(kind, "pay", {"order": "x" * 1_048_577, "amount": 5})
    assert "the limit is 1048576" in too_long


def test_a_check_of_the_tools_own_that_breaks_refuses_the_edit(world: World) -> None:
    def odd(amount: Annotated[float, AfterValidator(lambda amount: {}[amount])]) -> str:
        """Check by what there is not."""
        return str(amount)

    kind = refund(world, tools=(RunTool(odd, "external", gate=ALWAYS),))

    assert check_edit(kind, "odd", {"amount": 5.0}) == ["what odd checks about its arguments broke: KeyError"]


# --- what others ask ---


def with_langchains_own(mode: str, model: Any) -> Any:
    def build(tools: Sequence[Any], hooks: Any, saver: Any) -> Any:
        asks = HumanInTheLoopMiddleware(
            interrupt_on={"pay": {"allowed_decisions": ["approve", "edit", "reject"]}}, interrupt_mode=mode
        )
        return create_agent(model, tools, middleware=[asks, hooks.middleware()], checkpointer=saver)

    return build


@pytest.mark.parametrize("mode", ["batched", "per_call"])
def test_langchains_own_middleware_asks_in_the_same_rows(line: Line, world: World, mode: str) -> None:
    turns = [PAY, TELL, PAY_MORE]
    kind = refund(world, graph=with_langchains_own(mode, Talk(turns)()))

    first, second = line.until(kind, StepState.ASKS).asked

    assert [(call.tool, call.args, call.allowed) for call in (first, second)] == [
        ("pay", PAY[1], ("approve", "edit", "reject")),
        ("pay", PAY_MORE[1], ("approve", "edit", "reject")),
    ]
    edit = {"type": "edit", "args": {"order": "A-17", "amount": 5}}
    line.until(kind, StepState.DONE, answers=said((first, edit), (second, {"type": "reject", "message": "no"})))
    assert sorted((effect["tool"], effect.get("amount")) for effect in world.details) == [("pay", 5), ("tell", None)]


def test_a_question_that_is_no_call_of_a_tool_fails_the_run_with_a_sentence(quick: Line, world: World) -> None:
    def build(tools: Sequence[Any], hooks: Any, saver: Any) -> Any:
        graph = StateGraph(MessagesState)
        graph.add_node("ask", lambda state: {"messages": [interrupt("Which colour?")]})
        graph.add_edge(START, "ask")
        return graph.compile(checkpointer=saver)

    step = quick.until(refund(world, graph=build), StepState.FAILED)

    assert step.problem.startswith("the graph stopped to ask something that is no call of a tool")


def test_gated_calls_that_a_node_makes_itself_are_asked_one_after_the_other_and_made_once(quick: Line, world: World) -> None:
    def build(tools: Sequence[Any], hooks: Any, saver: Any) -> Any:
        pay = next((tool for tool in tools if tool.name == "pay"), None)

        def node(state: MessagesState) -> dict[str, Any]:
            assert pay is not None
            return {"messages": [("ai", pay.invoke(PAY[1]) + pay.invoke(PAY[1]))]}

        graph = StateGraph(MessagesState)
        graph.add_node("node", node)
        graph.add_edge(START, "node")
        return graph.compile(checkpointer=saver)

    kind = refund(world, graph=build, tools=tools_of(world, pay_gate=ALWAYS))
    (first,) = quick.until(kind, StepState.ASKS).asked
    (second,) = quick.step(kind, said((first, APPROVE))).asked

    assert world.effects == ["pay"]
    assert quick.step(kind, said((second, APPROVE))).result == "pay donepay done"
    assert world.effects == ["pay", "pay"]
