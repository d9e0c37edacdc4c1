"""Recall's own Python client on our MCP server, and its own binary before and after it, on the same records."""

from __future__ import annotations

import pytest
from polign_recall import ActionEnd, Client, RecallError

from actions.keys import action_key
from tests.agents.mcp_clients import COMMAND
from tests.interop.driver import Recall, expire_lease

pytestmark = pytest.mark.interop


def ours(url: str) -> Client:
    return Client(command=[*COMMAND, "--store", url], agent=True, timeout=120)


def test_recalls_client_works_with_our_server_and_the_two_hand_over(pg_url: str) -> None:
    recall = Recall(pg_url)
    with ours(pg_url) as client:
        agent = client.resume("handed", lease_ttl=30)
        assert agent.context.fresh
        agent.update_working_state(goal="refunds", plan=["look", "pay"])
        first = agent.begin_action("send_email", "external", {"to": "ann@example.com"})
        assert (first.seq, first.key, first.open) == (1, action_key("handed", 1), True)
        with pytest.raises(RecallError) as held:
            recall.resume("handed")
        assert held.value.code == "lease_held"
        agent.record_turn("user", "Tell Ann.", message_id="m-1")
    # The client closed without a word about the agent: its session ended, and the lease with it.

    theirs = recall.resume("handed", lease_ttl=30)
    assert [(action.seq, action.status) for action in theirs.pending_actions()] == [(1, "unknown")]
    assert theirs.context.working_state is not None
    assert theirs.context.working_state.plan == ("look", "pay")
    assert [turn.message_id for turn in theirs.recent_turns()] == ["m-1"]
    second = theirs.begin_action("open_ticket", "external", {"title": "x" * 9_000})
    assert (second.seq, second.args_ref) == (2, "act-2-args")
    theirs.record_turn("assistant", "I opened a ticket.")
    with ours(pg_url) as client, pytest.raises(RecallError) as held:
        client.resume("handed")
    assert held.value.code == "lease_held"
    theirs.release()

    with ours(pg_url) as client:
        agent = client.resume("handed")
        ends = {1: ActionEnd("done", result="message-id 1204", resolution="found"), 2: None}
        report = agent.reconcile(lambda action: ends[action.seq])
        assert [(action.seq, action.status) for action in report.closed] == [(1, "done")]
        assert [action.seq for action in report.open] == [2]
        assert agent.fetch_output("act-2-args").content == '{"title": "' + "x" * 9_000 + '"}'
        assert [turn.seq for turn in agent.recent_turns()] == [1, 2, 3]
        assert "(settled after a crash: done; found) message-id 1204" in agent.context.briefing
        told = agent.context
        assert agent.release()

    again = recall.resume("handed")
    assert again.context.briefing == told.briefing
    assert (again.context.turn_seq, [action.seq for action in again.pending_actions()]) == (3, [2])
    recall.close()


def test_recalls_client_understands_what_ours_refuses(pg_url: str) -> None:
    with ours(pg_url) as stalled, ours(pg_url) as next_one:
        agent = stalled.resume("codes")
        with pytest.raises(RecallError, match="already resumed in this session"):
            stalled.resume("codes")
        waiting = next_one.resume("codes", defer_lease=True)
        with pytest.raises(RecallError) as early:
            waiting.record_turn("user", "x")
        assert early.value.code == "lease_not_held"
        assert not waiting.acquire()
        expire_lease(pg_url, "codes")
        assert waiting.acquire()
        with pytest.raises(RecallError) as late:
            agent.record_turn("user", "x")
        assert late.value.code == "lease_lost"
        assert waiting.recent_turns() == []
