"""A graph is killed inside its tools node, a person settles its calls, and the next process runs the node again: nothing happens twice."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver

from actions.records import ActionStatus
from actions.store import open_store
from actions.store.base import ActionStore
from actions.store.memory import MemoryStore
from tests.agents.records import actions_of, operator_settles, turns_of
from tests.agents.scripted import ScriptedModel, calling
from tests.agents.test_langgraph import GO, THREAD, of_langchain, of_ones_own, process, run

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Killed(BaseException):
    """Stands for SIGKILL, which no code of ours sees either."""


@pytest.fixture(params=["memory", "postgres"])
def store(request: pytest.FixtureRequest) -> Iterator[ActionStore]:
    if request.param == "memory":
        yield MemoryStore("main")
        return
    opened = open_store(request.getfixturevalue("pg_url"), name="main")
    opened.create_records()
    opened.prepare()
    yield opened
    opened.close()


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("build", [of_langchain, of_ones_own], ids=["a task for each call", "one task"])
def test_each_call_is_answered_with_what_was_settled_and_only_a_failed_one_is_made_again(
    store: ActionStore, build: Any, is_async: bool
) -> None:
    sent: list[str] = []
    together, together_async = threading.Barrier(5, timeout=60), asyncio.Barrier(5)
    is_first = True

    def send(to: str) -> str:
        """Send."""
        sent.append(to)
        if is_first:
            together.wait()
            if to == "eve":
                return "sent to eve"
            raise Killed
        return f"sent to {to} again"

    async def send_async(to: str) -> str:
        """Send."""
        sent.append(to)
        if is_first:
            await together_async.wait()
            if to == "eve":
                return "sent to eve"
            await asyncio.sleep(0)
            raise Killed
        return f"sent to {to} again"

    tool = StructuredTool.from_function(send, coroutine=send_async, name="send", description="Send.")
    saver = InMemorySaver()
    agent, tools, hooks = process(store, [tool], {"send": "external"})
    everybody = [("send", {"to": to}) for to in ("ann", "bob", "cat", "dan", "eve")]
    with pytest.raises(Killed):
        run(build(ScriptedModel(calling(*everybody)), tools, hooks, saver), GO, is_async=is_async, config=THREAD)
    agent.release()
    seqs = {action.args: action.seq for action in actions_of(store) if action.is_open}
    operator_settles(store, seqs['{"to": "ann"}'], ActionStatus.DONE, result="204")
    operator_settles(store, seqs['{"to": "bob"}'], ActionStatus.FAILED)
    operator_settles(store, seqs['{"to": "cat"}'], ActionStatus.ABANDONED)
    is_first = False

    _, tools, hooks = process(store, [tool], {"send": "external"})
    model = ScriptedModel(AIMessage("done"))
    said = run(build(model, tools, hooks, saver), None, is_async=is_async, config=THREAD)

    assert sorted(sent) == ["ann", "bob", "bob", "cat", "dan", "eve"]
    told = {message.tool_call_id: message for message in said["messages"] if isinstance(message, ToolMessage)}
    assert (told["c1"].content, told["c1"].status) == ("204", "success")
    assert told["c2"].content == "sent to bob again"
    assert told["c3"].content == "not called: somebody has given the call up (action {}: operator ana: looked it up)".format(
        seqs['{"to": "cat"}']
    )
    assert "nobody knows whether it happened" in str(told["c4"].content)
    assert [action.status for action in actions_of(store) if action.args == '{"to": "dan"}'] == [ActionStatus.UNKNOWN]


@pytest.mark.parametrize("build", [of_langchain, of_ones_own], ids=["a task for each call", "one task"])
def test_equal_calls_are_matched_one_to_one_and_a_call_of_an_earlier_message_answers_none(store: ActionStore, build: Any) -> None:
    sent: list[str] = []
    together = threading.Barrier(2, timeout=60)
    dies = False

    def send(to: str) -> str:
        """Send."""
        sent.append(to)
        if dies:
            together.wait()
            raise Killed
        return f"number {len(sent)}"

    saver = InMemorySaver()
    tool = StructuredTool.from_function(send)
    ann = ("send", {"to": "ann"})
    agent, tools, hooks = process(store, [tool], {"send": "external"})

    class DiesLater(ScriptedModel):
        def _generate(self, *args: Any, **kwargs: Any) -> Any:
            nonlocal dies
            dies = len(self.script) == 1
            return super()._generate(*args, **kwargs)

    model = DiesLater(calling(ann), calling(ann, ann, first=2))
    with pytest.raises(Killed):
        run(build(model, tools, hooks, saver), GO, config=THREAD)
    agent.release()
    operator_settles(store, 2, ActionStatus.DONE, result="the second")
    operator_settles(store, 3, ActionStatus.FAILED)
    dies = False

    _, tools, hooks = process(store, [tool], {"send": "external"})
    said = run(build(ScriptedModel(AIMessage("done")), tools, hooks, saver), None, config=THREAD)

    contents = sorted(str(message.content) for message in said["messages"] if isinstance(message, ToolMessage))
    assert contents == ["number 1", "number 4", "the second"]
    assert len(sent) == 4
    assert [turn.content for turn in turns_of(store) if turn.role == "tool"].count("number 4") == 1
