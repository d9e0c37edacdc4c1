"""Durable tools and hooks in real LangGraph graphs: prebuilt agents, graphs of one's own, interrupts, crashes and restored checkpoints."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import BaseTool, InjectedToolArg, StructuredTool, ToolException, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState, ToolNode, ToolRuntime, create_react_agent, tools_condition
from langgraph.types import Command, interrupt

from actions.errors import StoreUnavailable
from actions.keys import action_key
from actions.records import ActionStatus, Change, Lease
from actions.store.base import AgentStore
from actions.store.memory import MemoryStore
from agents.calls import TOLD
from agents.harness import DurableAgent, End, Resolver
from agents.langgraph import BRIEFING_ID, GraphHooks, durable_tools
from agents.runs import Gate
from agents.tools import EndUnrecorded, ToolsRefused, UnclassifiedTool
from tests.agents.records import AGENT, actions_of, interrupted, turns_of
from tests.agents.scripted import ScriptedModel, calling
from tests.agents.values import nested

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:create_react_agent")

Build = Callable[[ScriptedModel, Sequence[BaseTool], GraphHooks, Any], Any]
THREAD = {"configurable": {"thread_id": "1"}}
GO = {"messages": [HumanMessage("Tell Ann.", id="m1")]}


@pytest.fixture
def store() -> AgentStore:
    return MemoryStore("main")


@pytest.fixture
def agent(store: AgentStore) -> DurableAgent:
    return DurableAgent.resume(store, AGENT)


@tool
def look_up(order: str) -> dict[str, int]:
    """Look an order up."""
    return {"total": 4200}


@tool
def send_email(to: str, idempotency_key: Annotated[str, InjectedToolArg]) -> str:
    """Send an email."""
    if to == "nobody":
        raise LookupError("no mailbox")
    return f"sent to {to} under {idempotency_key}"


CLASSES = {"look_up": "pure", "send_email": "external"}


def prebuilt(model: ScriptedModel, tools: Sequence[BaseTool], hooks: GraphHooks, saver: Any) -> Any:
    return create_react_agent(
        model, tools, pre_model_hook=hooks.pre_model_hook, post_model_hook=hooks.post_model_hook, checkpointer=saver
    )


def of_langchain(model: ScriptedModel, tools: Sequence[BaseTool], hooks: GraphHooks, saver: Any) -> Any:
    return create_agent(model, tools, system_prompt="Be brief.", middleware=[hooks.middleware()], checkpointer=saver)


def of_ones_own(model: ScriptedModel, tools: Sequence[BaseTool], hooks: GraphHooks, saver: Any) -> Any:
    """All calls of one message in one node, as tools_condition routes them."""

    def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.bind_tools(tools).invoke(hooks.with_briefing(state["messages"]))]}

    graph = StateGraph(MessagesState)
    graph.add_node("note", hooks.record_node)
    graph.add_node("model", ask)
    graph.add_node("said", hooks.record_node)
    graph.add_node("tools", ToolNode(list(tools)))
    graph.add_edge(START, "note")
    graph.add_edge("note", "model")
    graph.add_edge("model", "said")
    graph.add_conditional_edges("said", tools_condition)
    graph.add_edge("tools", "note")
    return graph.compile(checkpointer=saver)


@pytest.fixture(params=[prebuilt, of_langchain, of_ones_own], ids=lambda build: build.__name__)
def build(request: pytest.FixtureRequest) -> Build:
    found: Build = request.param
    return found


def run(graph: Any, given: Any, *, is_async: bool = False, config: Any = None) -> dict[str, Any]:
    done = asyncio.run(graph.ainvoke(given, config)) if is_async else graph.invoke(given, config)
    return dict(done)


def process(
    store: AgentStore, tools: Sequence[Any], classes: Mapping[str, str], *, resolver: Resolver | None = None
) -> tuple[DurableAgent, list[BaseTool], GraphHooks]:
    agent = DurableAgent.resume(store, AGENT)
    made = durable_tools(agent, tools, classes, resolver=resolver)
    return agent, made, GraphHooks(agent, made)


# --- the build ---


def test_a_tool_without_a_class_stops_the_build_and_metadata_may_name_it(agent: DurableAgent) -> None:
    marked = StructuredTool.from_function(lambda: "", name="marked", description="Marked.", metadata={"recall_class": "pure"})

    with pytest.raises(UnclassifiedTool) as refused:
        durable_tools(agent, [look_up, send_email, marked], {"look_up": "pure"})

    assert refused.value.tools == ("send_email",)


def test_a_function_without_a_docstring_is_described_by_its_name_and_called(agent: DurableAgent, store: AgentStore) -> None:
    def weigh_parcel(number: int) -> str:
        return f"{number} kg"

    (made,) = durable_tools(agent, [weigh_parcel], {"weigh_parcel": "pure"})

    assert (made.name, made.description) == ("weigh_parcel", "weigh parcel")
    assert made.invoke({"number": 3}) == "3 kg"
    assert [one.tool for one in agent.recent_actions(5)] == ["weigh_parcel"]


@pytest.mark.parametrize("wrong", [{**CLASSES, "other": "pure"}, {**CLASSES, "look_up": "idempotent"}])
def test_wrong_declarations_stop_the_build(agent: DurableAgent, wrong: dict[str, str]) -> None:
    with pytest.raises(ToolsRefused):
        durable_tools(agent, [look_up, send_email], wrong)


def test_tools_of_another_agent_or_made_twice_are_refused(agent: DurableAgent, store: AgentStore) -> None:
    tools = durable_tools(agent, [look_up], {"look_up": "pure"})

    with pytest.raises(ToolsRefused, match="already durable: look_up"):
        durable_tools(agent, tools, {"look_up": "pure"})
    with pytest.raises(ToolsRefused):
        GraphHooks(agent, [*tools, *durable_tools(agent, [send_email], {"send_email": "external"})])
    with pytest.raises(ToolsRefused):
        GraphHooks(DurableAgent.resume(store, "other"), tools)


def with_a_plain_key(invoice: str, idempotency_key: str = "") -> str:
    """Save an invoice."""
    return f"saved {invoice} under {idempotency_key}"


SCHEMA = {
    "type": "object",
    "properties": {"invoice": {"type": "string"}, "idempotency_key": {"type": "string"}},
    "required": ["invoice", "idempotency_key"],
}


@pytest.mark.parametrize(
    "given",
    [
        with_a_plain_key,
        tool("with_a_plain_key")(with_a_plain_key),
        StructuredTool.from_function(with_a_plain_key, args_schema=SCHEMA),
    ],
    ids=["function", "tool", "JSON schema"],
)
def test_the_model_is_not_shown_the_key_in_any_kind_of_tool(agent: DurableAgent, store: AgentStore, given: Any) -> None:
    (made,) = durable_tools(agent, [given], {"with_a_plain_key": "idempotent"})
    model = ScriptedModel(calling(("with_a_plain_key", {"invoice": "I-1", "idempotency_key": "made up"})), AIMessage("done"))

    said = run(create_agent(model, [made]), GO)

    shown = model.schemas["with_a_plain_key"]
    assert (list(shown["properties"]), shown["required"]) == (["invoice"], ["invoice"])
    assert said["messages"][-2].content == f"saved I-1 under {action_key(AGENT, 1)}"
    assert actions_of(store)[0].args == '{"invoice": "I-1"}'


# --- a run ---


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_run_leaves_its_calls_closed_and_each_message_as_one_turn(
    agent: DurableAgent, store: AgentStore, build: Build, is_async: bool
) -> None:
    tools = durable_tools(agent, [look_up, send_email], CLASSES)
    hooks = GraphHooks(agent, tools)
    model = ScriptedModel(
        calling(("look_up", {"order": "A-17"}), text="Looking."),
        calling(("send_email", {"to": "ann"}), first=2),
        AIMessage("All done."),
    )
    agent.update_working_state(goal="Tell everybody")
    agent.refresh()

    run(build(model, tools, hooks, None), GO, is_async=is_async)

    key = action_key(AGENT, 2)
    assert [(action.tool, action.args, action.status) for action in actions_of(store)] == [
        ("look_up", '{"order": "A-17"}', ActionStatus.DONE),
        ("send_email", '{"to": "ann"}', ActionStatus.DONE),
    ]
    assert [(turn.role, turn.name, turn.content) for turn in turns_of(store)] == [
        ("user", "", "Tell Ann."),
        ("assistant", "", 'Looking.\nlook_up(order="A-17")'),
        ("tool", "look_up", '{"total": 4200}'),
        ("assistant", "", 'send_email(to="ann")'),
        ("tool", "send_email", f"sent to ann under {key}"),
        ("assistant", "", "All done."),
    ]
    assert [turn.message_id for turn in turns_of(store) if turn.role == "tool"] == ["tool-call:c1", "tool-call:c2"]
    assert all(isinstance(asked[0], SystemMessage) and "Goal: Tell everybody" in str(asked[0].content) for asked in model.asked)
    assert all(sum(message.type == "system" for message in asked) == 1 for asked in model.asked)
    assert hooks.still_open() == ""


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_parallel_calls_of_one_message_are_open_at_once_and_one_that_fails_closes_only_itself(
    agent: DurableAgent, store: AgentStore, is_async: bool
) -> None:
    together = threading.Barrier(3, timeout=60)

    def send(to: str) -> str:
        """Send."""
        together.wait()
        assert all(action.is_open for action in actions_of(store))
        together.wait()
        if to == "b":
            raise LookupError(to)
        return f"sent to {to}"

    tools = durable_tools(agent, [send], {"send": "external"})
    hooks = GraphHooks(agent, tools)
    calls = [{"name": "send", "args": {"to": to}, "id": f"c-{to}", "type": "tool_call"} for to in "abc"]
    node = ToolNode(tools, handle_tool_errors=True)
    graph = StateGraph(MessagesState)
    graph.add_node("tools", node)
    graph.add_node("record", hooks.record_node)
    graph.add_edge(START, "tools")
    graph.add_edge("tools", "record")

    said = run(graph.compile(), {"messages": [AIMessage("", tool_calls=calls, id="m2")]}, is_async=is_async)

    assert [message.status for message in said["messages"][1:]] == ["success", "error", "success"]
    ends = {json.loads(action.args)["to"]: action.result or action.error for action in actions_of(store)}
    assert ends == {"a": "sent to a", "b": "LookupError: b", "c": "sent to c"}
    tool_turns = {turn.message_id: turn.content for turn in turns_of(store) if turn.role == "tool"}
    assert tool_turns == {
        "tool-call:c-a": "sent to a",
        "tool-call:c-b": "failed: LookupError: b",
        "tool-call:c-c": "sent to c",
    }
    assert len(turns_of(store)) == 4


def test_what_the_graph_puts_in_reaches_the_tool_and_is_not_recorded(agent: DurableAgent, store: AgentStore) -> None:
    @tool
    def count(what: str, state: Annotated[dict[str, Any], InjectedState], runtime: ToolRuntime) -> str:
        """Count."""
        return f"{len(state['messages'])} {runtime.tool_call_id}"

    tools = durable_tools(agent, [count], {"count": "pure"})
    model = ScriptedModel(calling(("count", {"what": "messages"})), AIMessage("done"))

    said = run(create_agent(model, tools), GO)

    assert said["messages"][-2].content == "2 c1"
    assert actions_of(store)[0].args == '{"what": "messages"}'


@pytest.mark.parametrize("with_id", [True, False])
def test_an_error_that_the_tool_handles_itself_is_a_failed_call(agent: DurableAgent, store: AgentStore, with_id: bool) -> None:
    @tool
    def send(to: str) -> str:
        """Send."""
        raise ToolException("no mailbox")

    send.handle_tool_error = True
    (made,) = durable_tools(agent, [send], {"send": "external"})

    if with_id:
        said = made.invoke({"name": "send", "args": {"to": "ann"}, "id": "c1", "type": "tool_call"})
        assert (said.status, said.content) == ("error", "no mailbox")
    else:
        with pytest.raises(ToolException):
            made.invoke({"to": "ann"})

    (action,) = actions_of(store)
    assert action.status is ActionStatus.FAILED
    assert "no mailbox" in action.error


@pytest.mark.parametrize(
    "handler", [True, "it did not work", lambda exc: f"sorry: {exc}"], ids=["its text", "one text", "a function"]
)
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("wraps", ["because of", "while handling", "without"])
def test_a_time_out_that_the_tool_words_and_handles_itself_is_no_failure(
    agent: DurableAgent, store: AgentStore, handler: Any, is_async: bool, wraps: str
) -> None:
    def fail(to: str) -> str:
        try:
            raise TimeoutError("no answer")
        except TimeoutError as exc:
            if wraps == "without":  # the tool says that what came before does not matter
                raise ToolException("no mailbox") from None
            if wraps == "because of":
                raise ToolException("no mailbox") from exc
            raise ToolException("no mailbox")  # noqa: B904 - as many do

    async def later(to: str) -> str:
        """Send."""
        return fail(to)

    @tool
    def send(to: str) -> str:
        """Send."""
        return fail(to)

    inner = StructuredTool.from_function(coroutine=later, name="send") if is_async else send
    inner.handle_tool_error = handler
    (made,) = durable_tools(agent, [inner], {"send": "external"})
    call = {"name": "send", "args": {"to": "ann"}, "id": "c1", "type": "tool_call"}

    said = asyncio.run(made.ainvoke(call)) if is_async else made.invoke(call)

    told = {True: "no mailbox", "it did not work": "it did not work"}.get(handler, "sorry: no mailbox")
    assert (said.status, said.content) == ("error", told)
    (action,) = actions_of(store)
    assert action.status is (ActionStatus.FAILED if wraps == "without" else ActionStatus.UNKNOWN)
    assert [turn.role for turn in turns_of(store)] == (["tool"] if wraps == "without" else [])


@pytest.mark.parametrize("stop", [KeyboardInterrupt, asyncio.CancelledError])
def test_what_stops_a_process_leaves_the_call_open(agent: DurableAgent, store: AgentStore, stop: type[BaseException]) -> None:
    def send(to: str) -> str:
        """Send."""
        raise stop

    (made,) = durable_tools(agent, [send], {"send": "external"})

    with pytest.raises(stop):
        made.invoke({"to": "ann"})

    assert actions_of(store)[0].status is ActionStatus.STARTED
    assert turns_of(store) == []


def test_a_tool_that_answers_a_command_is_recorded_with_its_message(agent: DurableAgent, store: AgentStore) -> None:
    @tool
    def transfer(to: str, runtime: ToolRuntime) -> Command[Any]:
        """Transfer."""
        return Command(update={"messages": [ToolMessage(f"transferred to {to}", tool_call_id=runtime.tool_call_id)]})

    tools = durable_tools(agent, [transfer], {"transfer": "external"})
    run(create_agent(ScriptedModel(calling(("transfer", {"to": "billing"})), AIMessage("done")), tools), GO)

    assert actions_of(store)[0].result == "transferred to billing"


# --- interrupts ---


def test_a_call_that_the_graph_interrupts_is_abandoned_and_its_later_run_is_another_action(
    store: AgentStore, build: Build
) -> None:
    sent: list[str] = []

    @tool
    def ask(question: str) -> str:
        """Ask a person."""
        return str(interrupt(question))

    @tool
    def send(to: str) -> str:
        """Send."""
        sent.append(to)
        return f"sent to {to}"

    _, tools, hooks = process(store, [ask, send], {"ask": "external", "send": "external"})
    model = ScriptedModel(calling(("send", {"to": "ann"}), ("ask", {"question": "Really?"})), AIMessage("done"))
    graph = build(model, tools, hooks, InMemorySaver())

    run(graph, GO, config=THREAD)
    by_tool = {action.tool: action for action in actions_of(store)}
    assert by_tool["ask"].status is ActionStatus.ABANDONED
    assert by_tool["ask"].resolution == "stopped by the graph; LangGraph runs it again on resume"
    said = run(graph, Command(resume="yes"), config=THREAD)

    assert sent == ["ann"]  # LangGraph runs the node again, with the call that was over
    assert [message.content for message in said["messages"][-3:]] == ["sent to ann", "yes", "done"]
    assert [(action.tool, action.status) for action in actions_of(store)[2:]] == [("ask", ActionStatus.DONE)]
    assert [turn.name for turn in turns_of(store) if turn.role == "tool"] == ["send", "ask"]


# --- after a crash ---


def test_the_first_briefing_comes_after_what_a_crash_left_is_settled(store: AgentStore, build: Build) -> None:
    saved: list[str] = []

    @tool
    def save(invoice: str, idempotency_key: str) -> str:
        """Save."""
        saved.append(idempotency_key)
        return "saved"

    left = interrupted(store, "save", {"invoice": "I-1"}, "idempotent")
    interrupted(store, "send_email", {"to": "ann"}, "external")
    interrupted(store, "send_email", {"to": "bob"}, "external")
    _, tools, hooks = process(
        store,
        [save, send_email],
        {"save": "idempotent", "send_email": "external"},
        resolver=lambda action: End("failed", error="not sent", resolution="not in Sent") if "ann" in action.args else None,
    )
    model = ScriptedModel(AIMessage("All done."))

    run(build(model, tools, hooks, None), GO)

    briefing = str(model.asked[0][0].content)
    assert saved == [left.key]
    assert "(settled after a crash: done; re-run with the same key after a crash) saved" in briefing
    assert "(settled after a crash: failed; not in Sent) failed: not sent" in briefing
    assert briefing.index("## Unfinished actions") < briefing.index("## Your most recent turns")
    assert briefing.count("may or may not have happened") + briefing.count("Not known whether this happened") == 1
    assert "do not report it as done" in briefing
    assert "action 3, send_email (external, unknown)" in hooks.still_open()


def test_the_turns_before_the_crash_stand_before_what_the_settling_wrote_and_that_before_what_is_new(store: AgentStore) -> None:
    interrupted(store, "send_email", {"to": "ann"}, "external")
    _, tools, hooks = process(store, [send_email], {"send_email": "external"}, resolver=lambda _: End("done", "204"))

    run(prebuilt(ScriptedModel(AIMessage("ok")), tools, hooks, None), GO)

    assert [turn.role for turn in turns_of(store)] == ["tool", "user", "assistant"]


def test_a_restored_checkpoint_repeats_no_call_that_was_over_or_may_have_happened(store: AgentStore) -> None:
    """LangGraph itself calls an unfinished node's tools again on `invoke(None)`, without asking the model."""
    made: list[str] = []
    is_first = True

    @tool
    def send(to: str) -> str:
        """Send."""
        made.append(f"send {to}")
        if is_first and to == "bob":
            raise KeyboardInterrupt
        return f"sent to {to}"

    @tool
    def save(invoice: str, idempotency_key: str) -> str:
        """Save."""
        made.append(f"save {invoice} {idempotency_key}")
        if is_first:
            raise KeyboardInterrupt
        return "saved"

    classes = {"send": "external", "save": "idempotent"}
    saver = InMemorySaver()
    agent, tools, hooks = process(store, [send, save], classes)
    model = ScriptedModel(calling(("send", {"to": "ann"}), ("send", {"to": "bob"}), ("save", {"invoice": "I-1"})))
    graph = of_ones_own(model, tools, hooks, saver)
    with pytest.raises(KeyboardInterrupt):  # stands for SIGKILL, which no code of ours sees either
        run(graph, GO, config={**THREAD, "max_concurrency": 1})
    agent.release()
    before = list(made)
    is_first = False

    _, tools, hooks = process(store, [send, save], classes)
    model = ScriptedModel(AIMessage("done"))
    said = run(of_ones_own(model, tools, hooks, saver), None, config=THREAD)

    told = {message.tool_call_id: message for message in said["messages"] if isinstance(message, ToolMessage)}
    assert told["c1"].content == "sent to ann"
    assert told["c2"].status == "error"
    assert "not called: send was called with these arguments before a crash (action 2" in str(told["c2"].content)
    assert made.count("send ann") == made.count("send bob") == 1
    assert before + [call for call in made[len(before) :] if call.startswith("save")] == made
    keys = {call.split()[-1] for call in made if call.startswith("save")}
    assert len(keys) == 1  # however often it was made, it was one invoice
    assert told["c3"].content == "saved"


def ctrl_c(agent: DurableAgent) -> None:
    raise KeyboardInterrupt


def no_answer(agent: DurableAgent) -> None:
    raise TimeoutError("no answer")


def cut_off(agent: DurableAgent) -> None:
    """The tool returns, and its end cannot be written."""
    store: Any = agent._store
    store.is_down = True


class Flaky(MemoryStore):
    is_down = False

    def write(self, lease: Lease, changes: Sequence[Change]) -> None:
        if self.is_down:
            raise StoreUnavailable("main", "the connection was lost", may_be_written=True)
        super().write(lease, changes)


@pytest.mark.parametrize("stop", [ctrl_c, no_answer, cut_off])
@pytest.mark.parametrize(("action_class", "times"), [("external", 1), ("idempotent", 2)])
def test_a_graph_that_goes_on_in_the_same_process_repeats_no_call_that_was_left_open(
    build: Build, action_class: str, times: int, stop: Callable[[DurableAgent], None]
) -> None:
    """Nobody resumed and no model was asked: LangGraph makes the call of the stopped node again by itself."""
    store = Flaky("main")
    made: list[str] = []

    @tool
    def send(to: str, idempotency_key: str) -> str:
        """Send."""
        made.append(idempotency_key)
        if len(made) == 1:
            stop(agent)
        return "sent"

    agent, tools, hooks = process(store, [send], {"send": action_class})
    model = ScriptedModel(calling(("send", {"to": "ann"})), AIMessage("ok"))
    graph = build(model, tools, hooks, InMemorySaver())
    with pytest.raises((KeyboardInterrupt, TimeoutError, EndUnrecorded)):
        run(graph, GO, config=THREAD)
    store.is_down = False

    said = run(graph, None, config=THREAD)

    assert made == [action_key(AGENT, 1)] * times
    (action,) = actions_of(store)
    (told,) = (message for message in said["messages"] if isinstance(message, ToolMessage))
    briefing = str(model.asked[-1][0].content)
    if action_class == "external":
        assert action.is_open
        assert told.status == "error"
        assert "not called: send was made with these arguments already (action 1" in str(told.content)
        assert "## Unfinished actions" in briefing
        assert action.key in briefing
    else:
        assert (action.status, action.result, told.content) == (ActionStatus.DONE, "sent", "sent")
        assert "## Unfinished actions" not in briefing


def test_call_ids_that_one_message_uses_twice_make_each_call_once(agent: DurableAgent, store: AgentStore, build: Build) -> None:
    sent: list[str] = []

    @tool
    def send(to: str) -> str:
        """Send."""
        sent.append(to)
        return f"sent to {to}"

    @tool
    def ask() -> str:
        """Ask a person."""
        return str(interrupt("really?"))

    tools = durable_tools(agent, [send, ask], {"send": "external", "ask": "external"})
    hooks = GraphHooks(agent, tools)
    calls = [{"name": "send", "args": {"to": to}, "id": "same"} for to in ("ann", "ben", "ann")]
    message = AIMessage("", tool_calls=[*calls, {"name": "ask", "args": {}, "id": "other"}])
    graph = build(ScriptedModel(message, AIMessage("ok")), tools, hooks, InMemorySaver())

    run(graph, GO, config=THREAD)
    run(graph, Command(resume="yes"), config=THREAD)

    assert sorted(sent) == ["ann", "ben"]


@pytest.mark.parametrize("value", ["x" * 1_100_000, nested(5_000)], ids=["over 1 MiB", "deep"])
def test_arguments_that_no_record_can_keep_are_told_to_the_model_and_nothing_is_called(
    agent: DurableAgent, store: AgentStore, build: Build, value: Any
) -> None:
    @tool
    def send(what: Any) -> str:
        """Send."""
        raise AssertionError("it ran")

    tools = durable_tools(agent, [send], {"send": "external"})
    model = ScriptedModel(calling(("send", {"what": value})), AIMessage("I give up"))

    said = run(build(model, tools, GraphHooks(agent, tools), None), GO)

    (told,) = (message for message in said["messages"] if isinstance(message, ToolMessage))
    assert told.status == "error"
    assert str(told.content).startswith("not called: arguments ")
    assert actions_of(store) == []
    assert [turn.role for turn in turns_of(store)] == ["user", "assistant", "tool", "assistant"]


def test_a_generator_is_refused_as_a_tool(agent: DurableAgent) -> None:
    @tool
    def lazy() -> Any:
        """Lazy."""
        yield "a"

    with pytest.raises(ToolsRefused, match="not over when it returns; return the whole result: lazy"):
        durable_tools(agent, [lazy], {"lazy": "external"})


def test_a_call_that_the_model_decides_after_its_briefing_is_made_although_an_equal_one_was_settled(store: AgentStore) -> None:
    sent: list[str] = []

    @tool
    def send(to: str) -> str:
        """Send."""
        sent.append(to)
        return "sent"

    interrupted(store, "send", {"to": "ann"}, "external")
    _, tools, hooks = process(store, [send], {"send": "external"}, resolver=lambda _: End("done", "204"))

    run(of_ones_own(ScriptedModel(calling(("send", {"to": "ann"})), AIMessage("ok")), tools, hooks, None), GO)

    assert sent == ["ann"]


@pytest.mark.parametrize("build", [of_langchain, of_ones_own])  # create_react_agent itself takes the second for answered
def test_call_ids_that_a_provider_uses_again_are_other_calls(agent: DurableAgent, store: AgentStore, build: Build) -> None:
    tools = durable_tools(agent, [send_email], {"send_email": "external"})
    hooks = GraphHooks(agent, tools)
    model = ScriptedModel(calling(("send_email", {"to": "ann"})), calling(("send_email", {"to": "ann"})), AIMessage("done"))

    run(build(model, tools, hooks, None), GO)

    assert [action.result for action in actions_of(store)] == [f"sent to ann under {action_key(AGENT, n)}" for n in (1, 2)]


def test_a_restart_on_the_same_thread_records_no_message_twice_and_none_too_few(store: AgentStore, build: Build) -> None:
    saver = InMemorySaver()
    agent, tools, hooks = process(store, [send_email], {"send_email": "external"})
    model = ScriptedModel(calling(("send_email", {"to": "ann"})), AIMessage("done"))
    run(build(model, tools, hooks, saver), GO, config=THREAD)
    agent.release()
    before = turns_of(store)

    _, tools, hooks = process(store, [send_email], {"send_email": "external"})
    again = {"messages": [HumanMessage("And Bob?", id="m9")]}
    run(build(ScriptedModel(AIMessage("No.")), tools, hooks, saver), again, config=THREAD)

    assert turns_of(store)[: len(before)] == before
    assert [turn.content for turn in turns_of(store)[len(before) :]] == ["And Bob?", "No."]


def test_a_briefing_in_the_state_is_replaced_by_that_of_this_process(store: AgentStore) -> None:
    agent, _, hooks = process(store, [], {})
    old = SystemMessage("an older process was told this", id=BRIEFING_ID)

    update = hooks.briefing_node.invoke({"messages": [old, HumanMessage("Hi.", id="m1")]})
    briefed = hooks.with_briefing([old, HumanMessage("Hi.")])

    assert [message.content for message in update["messages"][1:]] == [agent.briefing.text, "Hi."]
    assert [message.content for message in briefed] == [agent.briefing.text, "Hi."]
    assert hooks.record([old]) == 0


def test_long_arguments_are_left_out_of_a_turns_brief_and_kept_in_its_content(agent: DurableAgent, store: AgentStore) -> None:
    hooks = GraphHooks(agent)
    body = "x" * 5_000

    assert hooks.record([calling(("send", {"to": "ann", "body": body}), text="Writing."), AIMessage([])]) == 1

    (turn,) = turns_of(store)
    assert turn.brief == 'Writing.\nsend(to="ann", body=<5000 chars>)'
    assert body in turn.content


def test_a_call_of_recall_langgraph_that_left_its_turn_is_closed_with_it(store: AgentStore) -> None:
    with DurableAgent.resume(store, AGENT) as died:
        died.begin_action("send_email", {"to": "ann"}, "external")
        died.record_turn("tool", "sent", name="send_email", message_id="tool-call:c1")
    _, _, hooks = process(store, [send_email], {"send_email": "external"}, resolver=lambda _: End("failed", error="no"))

    hooks.briefing_message()

    (action,) = actions_of(store)
    assert (action.status, action.result, action.resolution) == (ActionStatus.DONE, "sent", TOLD.format(1))
    assert len(turns_of(store)) == 1


# --- gates ---


def test_a_gate_is_answered_in_the_process_that_asked(agent: DurableAgent, store: AgentStore, build: Build) -> None:
    tools = durable_tools(agent, [look_up, send_email], CLASSES, gates={"send_email": Gate(description="It leaves the house.")})
    model = ScriptedModel(calling(("send_email", {"to": "ann"})), AIMessage("Done."))
    graph = build(model, tools, GraphHooks(agent, tools), InMemorySaver())

    run(graph, GO, config=THREAD)
    (question,) = graph.get_state(THREAD).interrupts
    assert actions_of(store) == []
    answer = {"decisions": [{"type": "approve"}], "digests": question.value["digests"]}
    run(graph, Command(resume={question.id: answer}), config=THREAD)

    assert graph.get_state(THREAD).interrupts == ()
    assert [(action.tool, action.status) for action in actions_of(store)] == [("send_email", ActionStatus.DONE)]
