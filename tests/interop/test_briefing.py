"""The next briefing that we show, and the one that the real Recall then gives to the agent: the same text, byte for byte."""

from __future__ import annotations

import pytest
from polign_recall import ResumedAgent

from actions.records import OPEN_STATUSES, Action, ActionStatus, Output, Pointer, Turn, WorkingState
from actions.store.base import ActionStore
from agents.briefing import MAX_OUTPUTS, MAX_TURNS, TOKEN_BUDGET, Briefing, as_resumed, write_briefing
from tests.interop.decisions import an_end, decide
from tests.interop.driver import Recall, crash

pytestmark = pytest.mark.interop

HOSTILE = 'Grüße\u00a0 & <b>"q"</b>\n\n  \u2003two\x1clines\u200b \U0001f4b8 '


def next_briefing(store: ActionStore, agent: str, budget: int = TOKEN_BUDGET) -> Briefing:
    """Made of what our store reads, before anybody resumes."""
    state = store.find_working_state(agent)
    readings = store.read_actions(OPEN_STATUSES, limit=400, agent=agent).readings
    return write_briefing(
        agent,
        working_state=state if isinstance(state, WorkingState) else None,
        actions=as_resumed(r.action for r in readings if isinstance(r.action, Action)),
        pointers=[pointer for pointer in store.list_pointers(agent) if isinstance(pointer, Pointer)],
        outputs=[output for output in store.list_outputs(agent, limit=MAX_OUTPUTS) if isinstance(output, Output)],
        turns=[turn for turn in store.list_turns(agent, limit=MAX_TURNS) if isinstance(turn, Turn)],
        budget=budget,
    )


def everything(agent: ResumedAgent) -> None:
    agent.update_working_state(
        goal=f"  {HOSTILE}", plan=["", " a ", "b\nc"], progress="p", focus="", decisions=["d"], open_questions=["q"]
    )
    agent.milestone(" half \n way ")
    for number in range(1, 12):
        agent.record_turn("user", f"turn {number}\n", name=" ann " if number % 2 else "")
    agent.record_turn("tool", "x" * 9000, name="big tool")
    agent.record_turn("tool", "y" * 9000, name="big", brief=f" {HOSTILE}")
    agent.store_output(HOSTILE * 90, ref="ref1")
    agent.set_pointer("z-repo", "git_ref", {"sha": "abc", "repo": "r", "zeta": "1", "alpha": "2"}, note=" the fix ")
    agent.set_pointer("a-ext", "external", {"url": "http://x/?a=1&b=2", "id": "7"})
    agent.begin_action("look", "pure", {"q": 1})
    agent.begin_action("save", "idempotent", {"k": "v", "n": HOSTILE})
    for args in ("a" * 300, "a" * 301, "ab" + "é" * 300, "z" * 9000, "", HOSTILE):
        agent.begin_action("send_email", "external", args)
    agent.begin_action("charge", "external", {"a": 1})
    agent.end_action(9, "unknown", resolution="a resolver said no", error="timeout")
    agent.begin_action("kept", "idempotent")
    agent.end_action(10, "unknown")
    agent.begin_action("done", "external", {"a": 1})
    agent.end_action(11, "done", result="r" * 9000)


def test_it_is_what_the_next_process_reads(recall: Recall, store: ActionStore) -> None:
    running = recall.resume("full")
    everything(running)
    crash(running, recall.url)

    ours = next_briefing(store, "full")

    theirs = recall.resume("full").context
    assert ours.text == theirs.briefing
    assert (ours.tokens, ours.turns_left_out, ours.outputs_left_out) == (theirs.tokens, 0, 0)


def test_it_is_so_after_a_settle_of_ours(recall: Recall, store: ActionStore) -> None:
    running = recall.resume("settled")
    running.record_turn("user", "Tell Ann")
    for tool in ("send_email", "send_email", "open_ticket"):
        running.begin_action(tool, "external", {"to": "ann@example.com"})
    crash(running, recall.url)
    decide(store, "settled", 1, an_end(ActionStatus.DONE, reason="found in the Sent folder"))
    decide(store, "settled", 2, an_end(ActionStatus.FAILED, reason=HOSTILE, error="550 mailbox full"))

    ours = next_briefing(store, "settled")

    assert "found in the Sent folder" in ours.text
    assert ours.text == recall.resume("settled").context.briefing


@pytest.mark.parametrize("has_actions", [False, True])
def test_it_is_so_for_an_agent_that_has_said_nothing_yet(recall: Recall, store: ActionStore, has_actions: bool) -> None:
    running = recall.resume("new")
    if has_actions:
        running.begin_action("save", "idempotent", "x")
    running.release()

    assert next_briefing(store, "new").text == recall.resume("new").context.briefing


def test_the_same_turns_and_outputs_fit_into_any_budget(recall: Recall, store: ActionStore) -> None:
    running = recall.resume("many")
    for number in range(1, 90):
        running.record_turn("user", f"{number} {'w' * number * 8}")
    for number in range(12):
        running.store_output("zz" * 200, tool="t", ref=f"r{number}")
    running.release()

    for budget in (1, 100, 150, 300, 1000, 3000, TOKEN_BUDGET):
        ours = next_briefing(store, "many", budget)
        resumed = recall.resume("many", token_budget=budget)
        theirs = resumed.context
        assert ours.text == theirs.briefing, budget
        assert (ours.turns_left_out, ours.outputs_left_out) == (theirs.omitted["turns"], theirs.omitted["outputs"])
        resumed.release()
        resumed.client.close()
