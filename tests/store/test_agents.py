"""The agents' side of the contract, over memory, PostgreSQL and MongoDB: leases, fenced writes, numbers, and what a crash leaves behind."""

from __future__ import annotations

import gc
import json
import threading
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, cast

import pytest

from actions.errors import (
    ActionNotFound,
    ActionNotOpen,
    InvalidRecord,
    LeaseLive,
    LeaseLost,
    LeaseNotHeld,
    RecordUnreadable,
    StoreUnavailable,
    WriteConflict,
)
from actions.keys import action_key
from actions.records import Action, ActionClass, ActionRef, ActionStatus, Change, Condition, Lease, NewTurn, Turn
from actions.store.base import AgentStore
from actions.times import SECOND
from agents.harness import DurableAgent, End
from tests.store.agent_gestures import AGENT, LosingAnswers, freeze, other_store_of, process, store_of
from tests.store.conftest import Backend, fenced
from tests.store.gestures import decide, race, until

pytestmark = fenced
MINUTE = timedelta(minutes=1)
PATIENCE_S = 60  # of a test that would otherwise hang where it should fail


def an_action(seq: int, agent: str = AGENT) -> Action:
    return Action(
        agent=agent,
        seq=seq,
        tool="send_email",
        action_class=ActionClass.EXTERNAL,
        key=action_key(agent, seq),
        args="{}",
        status=ActionStatus.STARTED,
        epoch=1,
        written_epoch=1,
        started_at=SECOND,
    )


def a_turn(seq: int, agent: str = AGENT) -> Turn:
    return Turn(agent=agent, seq=seq, role="user", content="hello", at=SECOND)


def take(store: AgentStore, holder: str, agent: str = AGENT) -> Lease:
    return store.acquire_lease(agent, holder=holder, ttl=MINUTE)


def state_of(backend: Backend) -> tuple[dict[str, Any], int]:
    return {key: backend.recall.metadata_of(key) for key in backend.recall.record_ids()}, backend.recall.revision()


# --- the lease -------------------------------------------------------------------------------------------------------


def test_a_lease_is_taken_renewed_and_released_and_each_raises_the_epoch(backend: Backend) -> None:
    store = store_of(backend)

    lease = take(store, "pod-a:1:aaaa")
    renewed = store.renew_lease(lease, ttl=2 * MINUTE)

    assert (lease.epoch, lease.is_live, lease.holder) == (1, True, "pod-a:1:aaaa")
    assert 59 * SECOND < lease.expires_at - lease.read_at <= 60 * SECOND
    assert (renewed.epoch, renewed.expires_at > lease.expires_at) == (2, True)
    store.release_lease(renewed)
    assert backend.recall.lease_of(AGENT) == ("pod-a:1:aaaa", 3, "released")
    assert take(store, "pod-b:1:bbbb").epoch == 4


def test_a_live_lease_is_given_to_nobody_not_even_to_its_own_holder(backend: Backend) -> None:
    store = store_of(backend)
    held = take(store, "pod-a:1:aaaa")

    for holder in ("pod-b:1:bbbb", "pod-a:1:aaaa"):
        with pytest.raises(LeaseLive) as caught:
            take(store, holder)
        assert (caught.value.lease.holder, caught.value.lease.epoch) == (held.holder, held.epoch)
        assert abs(caught.value.lease.expires_at - held.expires_at) < 1_000_000

    assert backend.recall.lease_of(AGENT) == ("pod-a:1:aaaa", 1, "live")


def test_an_expired_lease_is_renewed_where_nobody_took_it_over_and_is_lost_where_somebody_did(backend: Backend) -> None:
    store = store_of(backend)
    lease = take(store, "pod-a:1:aaaa")
    backend.recall.lease(AGENT, lease.holder, lease.epoch, "expired")

    renewed = store.renew_lease(lease, ttl=MINUTE)

    assert (renewed.epoch, renewed.is_live) == (2, True)
    backend.recall.lease(AGENT, lease.holder, renewed.epoch, "expired")
    take(store, "pod-b:1:bbbb")
    for late in (lease, renewed):
        with pytest.raises(LeaseLost):
            store.renew_lease(late, ttl=MINUTE)
        store.release_lease(late)
    assert backend.recall.lease_of(AGENT) == ("pod-b:1:bbbb", 3, "live")


def test_a_renewal_whose_answer_was_lost_is_asked_for_again_under_the_epoch_that_it_may_have_made(backend: Backend) -> None:
    store = store_of(backend)
    lease = take(store, "pod-a:1:aaaa")
    store.renew_lease(lease, ttl=MINUTE)  # the answer never arrived

    with pytest.raises(LeaseLost):
        store.renew_lease(lease, ttl=MINUTE)
    assert store.renew_lease(lease, ttl=MINUTE, in_doubt=1).epoch == 3

    store.release_lease(lease, in_doubt=2)
    assert backend.recall.lease_of(AGENT) == ("pod-a:1:aaaa", 4, "released")
    with pytest.raises(LeaseLost):
        store.renew_lease(lease, ttl=MINUTE, in_doubt=9)


def test_of_two_who_take_a_lease_at_one_moment_exactly_one_has_it(backend: Backend) -> None:
    store, other = store_of(backend), other_store_of(backend)
    for number in range(8):
        agent = f"a{number}"
        answers = race(partial(take, store, "pod-a:1:aaaa", agent), partial(take, other, "pod-b:1:bbbb", agent))

        taken = [answer for answer in answers if isinstance(answer, Lease)]
        refused = [answer for answer in answers if isinstance(answer, LeaseLive)]
        assert (len(taken), len(refused)) == (1, 1), answers
        assert refused[0].lease.holder == taken[0].holder
        assert backend.recall.lease_of(agent) == (taken[0].holder, 1, "live")


# --- writing ---------------------------------------------------------------------------------------------------------


def test_a_write_is_all_or_nothing_and_moves_the_revision_by_its_records(backend: Backend) -> None:
    store = store_of(backend)
    lease = take(store, "pod-a:1:aaaa")
    before = backend.recall.revision()

    store.write(lease, [Change(an_action(1), Condition.NEW), Change(a_turn(1), Condition.NEW)])

    written = state_of(backend)
    assert sorted(written[0]) == [f"{AGENT}:act:1", f"{AGENT}:turn:1"]
    assert written[1] == before + 2
    ended = replace(an_action(1), status=ActionStatus.DONE, ended_at=SECOND)
    for refused in (
        [Change(ended, Condition.OPEN), Change(a_turn(1), Condition.NEW)],
        [Change(a_turn(2), Condition.NEW), Change(an_action(1), Condition.NEW)],
    ):
        with pytest.raises(WriteConflict):
            store.write(lease, refused)
    with pytest.raises(ActionNotFound):
        store.write(lease, [Change(a_turn(2), Condition.NEW), Change(an_action(7), Condition.OPEN)])
    assert state_of(backend) == written
    store.write(lease, [Change(ended, Condition.OPEN), Change(a_turn(2), Condition.NEW)])
    closed = state_of(backend)
    with pytest.raises(ActionNotOpen) as caught:
        store.write(lease, [Change(a_turn(3), Condition.NEW), Change(ended, Condition.OPEN)])
    assert caught.value.action.status is ActionStatus.DONE
    assert state_of(backend) == closed


@pytest.mark.parametrize("fence", ["taken over", "released", "another holder", "an older row"])
def test_a_write_that_comes_too_late_changes_nothing(backend: Backend, fence: str) -> None:
    store = store_of(backend)
    lease = take(store, "pod-a:1:aaaa")
    store.write(lease, [Change(an_action(1), Condition.NEW)])
    late = store.renew_lease(lease, ttl=MINUTE)
    match fence:
        case "taken over":
            backend.recall.lease(AGENT, "pod-b:1:bbbb", 3, "live")
        case "released":
            store.release_lease(late)
        case "another holder":
            late = replace(late, holder="pod-b:1:bbbb")
        case "an older row":
            late = replace(late, epoch=9)
    before = state_of(backend)

    for condition, record in (
        (Condition.NEW, an_action(2)),
        (Condition.OPEN, replace(an_action(1), status=ActionStatus.DONE)),
        (Condition.ANY, a_turn(1)),
    ):
        with pytest.raises(LeaseLost):
            store.write(late, [Change(record, condition)])

    assert state_of(backend) == before


def test_an_expired_lease_that_nobody_took_over_still_writes(backend: Backend) -> None:
    store = store_of(backend)
    lease = take(store, "pod-a:1:aaaa")
    backend.recall.lease(AGENT, lease.holder, lease.epoch, "expired")

    store.write(lease, [Change(an_action(1), Condition.NEW)])

    assert backend.recall.record_ids() == [f"{AGENT}:act:1"]


def test_a_takeover_and_a_write_at_one_moment_never_both_win_and_leave_a_half(backend: Backend) -> None:
    store, other = store_of(backend), other_store_of(backend)
    for number in range(8):
        agent = f"a{number}"
        lease = take(store, "pod-a:1:aaaa", agent)
        backend.recall.lease(agent, lease.holder, lease.epoch, "expired")
        changes = [Change(an_action(1, agent), Condition.NEW), Change(a_turn(1, agent), Condition.NEW)]

        wrote, taken = race(partial(store.write, lease, changes), partial(take, other, "pod-b:1:bbbb", agent))

        assert isinstance(taken, Lease), taken
        loaded = other.load_agent(agent)
        assert isinstance(wrote, LeaseLost) or wrote is None
        assert (loaded.newest_action, loaded.newest_turn) == ((0, 0) if isinstance(wrote, LeaseLost) else (1, 1))
        with pytest.raises(LeaseLost):
            store.write(lease, [Change(a_turn(2, agent), Condition.NEW)])


def test_what_a_process_starts_from_is_read_whole(backend: Backend) -> None:
    store, recall = store_of(backend), backend.recall
    assert store.load_agent(AGENT).newest_turn == 0
    recall.action(AGENT, 1, status="done", result="ok")
    for seq in (2, 70):
        recall.action(AGENT, seq, status="unknown" if seq == 70 else "started")
    for seq in range(1, 4):
        recall.turn(AGENT, seq)
    recall.action("another", 90)
    recall.lease(AGENT, epoch=4)

    loaded = store.load_agent(AGENT)

    assert [action.seq for action in loaded.open_actions] == [2, 70]
    assert [turn.seq for turn in loaded.turns] == [3, 2, 1]
    assert (loaded.newest_turn, loaded.newest_action) == (3, 70)
    assert loaded.lease is not None
    assert (loaded.lease.epoch, loaded.lease.is_live) == (4, False)


def test_a_record_that_cannot_be_read_stops_the_resume_and_the_lease_is_given_back(backend: Backend) -> None:
    backend.recall.action(AGENT, 1, body="no JSON")
    before = state_of(backend)

    with pytest.raises(RecordUnreadable):
        DurableAgent.resume(store_of(backend), AGENT)

    lease = backend.recall.lease_of(AGENT)
    assert lease is not None
    assert lease[2] == "released"
    assert state_of(backend) == before


# --- an agent's process ----------------------------------------------------------------------------------------------


def test_an_agent_works_crashes_and_goes_on_at_the_next_number(backend: Backend) -> None:
    store = store_of(backend)
    first = DurableAgent.resume(store, AGENT)
    assert "starting for the first time" in first.briefing.text
    sent = first.begin_action(" send_email ", {"to": "ann", "cc": None}, "external")
    ended = first.end_action(sent, "done", result={"id": 7}, turn=NewTurn("tool", "sent", name="send_email"))
    first.record_turn("user", "and ben", message_id=" m1 ")
    first.update_working_state(goal="mail all", plan=["ann", "ben"], step=1)
    first.milestone("ann has it")
    first.set_pointer("repo", "git_ref", {"branch": "main", "sha": " "}, note="here")
    for kind in ("external", "pure", "idempotent"):
        first.begin_action("next", "not { JSON", kind)
    assert (sent.tool, sent.args, sent.key) == ("send_email", '{"cc": null, "to": "ann"}', action_key(AGENT, 1))
    assert (ended.status, ended.result, store.get_action(AGENT, 1).action) == ("done", '{"id": 7}', ended)
    freeze(first, backend)

    with process(other_store_of(backend)) as second:
        opened = {action.action_class.value: action for action in second.pending_actions()}
        assert {kind: action.status.value for kind, action in opened.items()} == {"external": "unknown", "idempotent": "started"}
        assert opened["external"].resolution == "interrupted; no resolver to check whether it happened"
        given_up = store.get_action(AGENT, 3).action
        assert isinstance(given_up, Action)
        assert (given_up.status, given_up.resolution) == ("abandoned", "interrupted; pure, not run again")
        assert "[tool send_email #1] sent" in second.briefing.text
        assert "Goal: mail all" in second.briefing.text
        assert "- repo (git_ref): branch=main (here)" in second.briefing.text
        assert second.begin_action("send_email", None, ActionClass.PURE).seq == 5
        assert second.record_turn("assistant", "again").seq == 3
        assert second.working_state is not None
        state = second.update_working_state(focus="ben")
        assert (state.version, state.goal, state.plan, state.last_milestone) == (3, "mail all", ("ann", "ben"), "ann has it")
        assert (state.turn_seq, state.action_seq) == (3, 5)
        assert [turn.content for turn in second.recent_turns(2)] == ["and ben", "again"]
    with pytest.raises(LeaseLost):
        first.end_action(2, "done")
    assert first.is_lost
    with pytest.raises(LeaseNotHeld):
        second.record_turn("user", "too late")


def test_arguments_results_and_turns_that_overflow_are_written_with_their_outputs(backend: Backend) -> None:
    store = store_of(backend)
    with process(store) as agent:
        long = "ä" * 4001
        action = agent.begin_action("send", long, "external")
        agent.end_action(action, "done", result=long + "r")
        turn = agent.record_turn("user", long + "t")
        kept = agent.store_output("kept")
        named = agent.store_output("one", ref="named")
        agent.store_output("two", ref="named", summary="s")

        loaded = store.load_agent(AGENT)
        stored = store.get_action(AGENT, 1).action
        assert isinstance(stored, Action)
        assert (stored.args_ref, stored.result_ref) == ("act-1-args", "act-1-result")
        assert stored.args.endswith("...\n[... 2001 more tokens stored as output act-1-args]")
        assert loaded.turns[0] == turn
        assert {output.ref for output in loaded.outputs} == {"act-1-args", "act-1-result", turn.output_ref, kept.ref, "named"}
        assert agent.get_output("act-1-args").content == long
        assert agent.get_output(turn.output_ref).content == long + "t"
        assert (agent.get_output("named").content, named.summary) == ("two", "one...")
    with process(store, output_threshold=-1) as agent:
        assert agent.begin_action("send", long, "external").args == long


@pytest.mark.parametrize(
    "wrong",
    [
        lambda agent: agent.begin_action(" ", {}, "pure"),
        lambda agent: agent.begin_action("t" * 129, {}, "pure"),
        lambda agent: agent.begin_action("tool", {}, "harmless"),
        lambda agent: agent.begin_action("tool", "x" * 1_048_577, "pure"),
        lambda agent: agent.begin_action("tool", {1: "a", "b": 2}, "pure"),
        lambda agent: agent.end_action(1, "started"),
        lambda agent: agent.end_action(1, "done", result="x" * 1_048_577),
        lambda agent: agent.end_action(1, "done", turn=NewTurn("narrator", "x")),
        lambda agent: agent.record_turn("user", "x" * 1_048_577),
        lambda agent: agent.record_turn("user", "x", message_id="m" * 257),
        lambda agent: agent.record_turn("user", "x", brief="ä" * 2049),
        lambda agent: agent.store_output("x", ref="a:b"),
        lambda agent: agent.store_output("x" * 1_048_577),
        lambda agent: agent.set_pointer("p", "nowhere", {"id": "1"}),
        lambda agent: agent.set_pointer("p", "git_ref", {"sha": "  ", "uri": "x"}),
        lambda agent: agent.set_pointer("", "external", {"id": "1"}),
        lambda agent: agent.remove_pointer("p q"),
        lambda agent: agent.update_working_state(plan="one text"),
        lambda agent: agent.update_working_state(step=-1),
    ],
)
def test_what_recall_could_not_keep_is_refused_in_one_line_before_anything_is_written(backend: Backend, wrong: Any) -> None:
    with process(store_of(backend)) as agent:
        agent.begin_action("send_email", {}, "external")
        before = state_of(backend)

        with pytest.raises(InvalidRecord) as caught:
            wrong(agent)

        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 300
        assert state_of(backend) == before
        assert agent.begin_action("send_email", {}, "external").seq == 2


def test_texts_that_are_no_json_or_no_utf_8_are_kept_as_near_as_utf_8_can(backend: Backend) -> None:
    store = store_of(backend)
    with process(store) as agent:
        odd = 'x\x00"\\\u2028 <&> \ud83d\ude00 \ud800!'
        action = agent.begin_action("send\ud800", odd, "external")
        agent.end_action(action, "failed", error=odd, resolution=odd)
        agent.record_turn("user", odd, name=odd)
        agent.begin_action("send", {"when": timedelta(1), "odd": "\ud800"}, "external")
    kept = 'x\x00"\\\u2028 <&> \U0001f600 \ufffd!'

    loaded = store.load_agent(AGENT)
    stored = store.get_action(AGENT, 1).action
    assert isinstance(stored, Action)
    assert (stored.tool, stored.args, stored.error, stored.resolution) == ("send\ufffd", kept, kept, kept)
    assert (loaded.turns[0].content, loaded.turns[0].name) == (kept, kept)
    assert json.loads(loaded.open_actions[0].args) == {"when": "1 day, 0:00:00", "odd": "\ud800"}


@pytest.mark.parametrize("agent_id", ["", "a:b", "x" * 129, "a b", "ä", None])
def test_an_agent_id_that_recall_refuses_is_refused(backend: Backend, agent_id: Any) -> None:
    with pytest.raises(InvalidRecord):
        DurableAgent.resume(store_of(backend), agent_id)
    with pytest.raises(InvalidRecord):
        DurableAgent.resume(store_of(backend), AGENT, holder="a\x00b")
    assert backend.recall.lease_of(AGENT) is None


def test_an_end_replaces_result_and_error_and_keeps_an_earlier_resolution(backend: Backend) -> None:
    store = store_of(backend)
    with process(store) as agent:
        action = agent.begin_action("send_email", {}, "external")
        doubtful = agent.end_action(action, "unknown", error="timeout", resolution="asked nobody")
        assert (doubtful.ended_at, doubtful.error) == (None, "timeout")
        ended = agent.end_action(action.seq, "done", result="ok")
        assert (ended.error, ended.result, ended.resolution) == ("", "ok", "asked nobody")
        assert ended.ended_at is not None
        before = state_of(backend)
        with pytest.raises(ActionNotOpen) as caught:
            agent.end_action(action, "done", result="ok")
        assert caught.value.action == ended
        with pytest.raises(ActionNotFound):
            agent.end_action(9, "done")
        assert state_of(backend) == before


def test_an_action_that_was_closed_behind_the_agents_back_is_not_overwritten(backend: Backend) -> None:
    with process(store_of(backend)) as agent:
        action = agent.begin_action("send_email", {}, "external")
        backend.recall.action(AGENT, 1, status="done", result="by somebody")
        before = state_of(backend)

        with pytest.raises(ActionNotOpen):
            agent.end_action(action, "failed", error="mine", turn=NewTurn("tool", "mine"))

        assert state_of(backend) == before


def test_a_turn_that_stands_behind_the_agents_back_is_not_overwritten(backend: Backend) -> None:
    with process(store_of(backend)) as agent:
        backend.recall.turn(AGENT, 1, content="of somebody")
        before = state_of(backend)

        with pytest.raises(WriteConflict):
            agent.record_turn("user", "mine")

        assert state_of(backend) == before
        agent.refresh()
        assert agent.record_turn("user", "mine").seq == 2


def test_reconcile_writes_each_end_with_the_turn_that_tells_it(backend: Backend) -> None:
    store = store_of(backend)
    first = DurableAgent.resume(store, AGENT)
    for tool in ("sent", "not_sent", "given_up", "cannot_tell", "raises", "nonsense"):
        first.begin_action(tool, {}, "external")
    first.begin_action("look", {}, "pure")
    freeze(first, backend)
    asked: list[str] = []

    def resolver(action: Action) -> object:
        asked.append(action.tool)
        answers = {
            "sent": End("done", "x" * 9000, resolution="message-id 1204 " + "ä" * 4000),
            "not_sent": End("failed", error=" bounced", resolution="mailbox"),
            "given_up": End("abandoned", resolution="too old"),
            "cannot_tell": None,
            "nonsense": End("perhaps"),
        }
        if action.tool == "raises":
            raise TimeoutError("the mailbox did not answer")
        return answers[action.tool]

    with process(store, resolver=resolver) as agent:
        turns = {turn.name: turn for turn in agent.recent_turns()}
        opened = agent.pending_actions()
        briefing = agent.briefing.text
        once = state_of(backend)
        assert agent.reconcile(lambda action: None) == ()
        assert state_of(backend) == once

    assert asked == ["sent", "not_sent", "given_up", "cannot_tell", "raises", "nonsense"]
    assert [(action.tool, action.status.value) for action in opened] == [
        ("cannot_tell", "unknown"),
        ("raises", "unknown"),
        ("nonsense", "unknown"),
    ]
    assert sorted(turns) == ["given_up", "not_sent", "sent"]
    assert len(turns["sent"].brief.encode()) in (4095, 4096)
    assert turns["sent"].content.endswith("stored as output act-1-result]")
    assert turns["not_sent"].content == "failed:  bounced"
    assert turns["not_sent"].brief == "(settled after a crash: failed; mailbox) failed:  bounced"
    assert turns["given_up"].brief == "(settled after a crash: abandoned; too old) abandoned"
    assert "(settled after a crash: failed; mailbox)" in briefing
    assert "given_up({})" not in briefing


@pytest.mark.parametrize("when", ["reconcile", "acquire"])
def test_a_resolver_may_write_by_the_agent_in_a_thread_of_its_own(backend: Backend, when: str) -> None:
    store = store_of(backend)
    first = DurableAgent.resume(store, AGENT)
    first.begin_action("send_email", {}, "external")
    freeze(first, backend)

    def resolver(action: Action) -> End:
        writer = threading.Thread(target=agent.record_turn, args=("user", "asking the mailbox"), daemon=True)
        writer.start()
        writer.join(PATIENCE_S)
        assert not writer.is_alive()
        return End("done", "message 204")

    with process(store, resolver=resolver, defer_lease=True) as agent:
        if when == "acquire":
            agent.acquire()
        else:
            agent._resolver = None
            agent.acquire()
            assert [action.seq for action in agent.reconcile(resolver)] == [1]

        assert [turn.content for turn in agent.recent_turns()] == ["asking the mailbox", "message 204"]
        assert agent.pending_actions() == ()


def test_others_begin_and_end_their_calls_while_a_resolver_hangs(backend: Backend) -> None:
    store = store_of(backend)
    first = DurableAgent.resume(store, AGENT)
    first.begin_action("send_email", {}, "external")
    freeze(first, backend)
    asked, answer = threading.Event(), threading.Event()
    closed: list[Action] = []

    def resolver(action: Action) -> End:
        asked.set()
        return End("done", "message 204") if answer.wait(PATIENCE_S) else End("failed", error="nobody else could write")

    with process(store) as agent:
        reconciling = threading.Thread(target=lambda: closed.extend(agent.reconcile(resolver)), daemon=True)
        reconciling.start()
        assert asked.wait(PATIENCE_S)

        ended = agent.end_action(agent.begin_action("open_ticket", {}, "external"), "done", turn=NewTurn("tool", "ticket 7"))
        answer.set()
        reconciling.join(PATIENCE_S)

        assert (ended.seq, ended.status) == (2, ActionStatus.DONE)
        assert [(action.seq, action.result) for action in closed] == [(1, "message 204")]
        assert [turn.content for turn in agent.recent_turns()] == ["ticket 7", "message 204"]


@pytest.mark.parametrize("status", ["failed", "unknown"])
@pytest.mark.parametrize("answer", [End("done", "message 204"), None])
def test_an_action_that_moved_while_a_resolver_was_asked_is_left_as_it_is(
    backend: Backend, status: str, answer: End | None
) -> None:
    store = store_of(backend)
    first = DurableAgent.resume(store, AGENT)
    first.begin_action("save_invoice", {}, "idempotent")
    freeze(first, backend)

    def resolver(action: Action) -> End | None:
        agent.end_action(action, status, error="the agent knows better", resolution="it was told")
        return answer

    with process(store) as agent:
        assert agent.reconcile(resolver) == ()

        (action,) = agent.recent_actions()
        assert (action.status, action.result, action.error) == (ActionStatus(status), "", "the agent knows better")
        assert action.resolution == "it was told"
        assert agent.recent_turns() == ()


@pytest.mark.parametrize("end", [End("failed", error="not in the mailbox"), None])
def test_calls_that_this_process_is_in_are_not_reconciled_and_those_it_is_out_of_are(backend: Backend, end: End | None) -> None:
    store = LosingAnswers(store_of(backend))
    first = DurableAgent.resume(store_of(backend), AGENT)
    first.begin_action("left_by_a_crash", {}, "external")
    freeze(first, backend)
    asked: list[str] = []

    def resolver(action: Action) -> End | None:
        asked.append(action.tool)
        return end

    with process(cast("AgentStore", store)) as agent:
        unsure = agent.begin_action("unsure", {}, "external")
        agent.end_action(unsure, "unknown")
        store.lose_before = True
        with pytest.raises(StoreUnavailable):
            agent.begin_action("never_run", {}, "external")
        agent.begin_action("never_run", {}, "external")
        store.lose_before = True
        with pytest.raises(StoreUnavailable):
            agent.end_action(3, "done")
        running = [agent.begin_action("running", {}, kind) for kind in ("external", "idempotent", "pure")]
        before = {f"{AGENT}:act:{action.seq}": backend.recall.metadata_of(f"{AGENT}:act:{action.seq}") for action in running}

        closed = agent.reconcile(resolver)

        assert asked == ["left_by_a_crash", "unsure", "never_run"]
        assert [action.seq for action in closed] == ([] if end is None else [1, 2, 3])
        assert {key: backend.recall.metadata_of(key) for key in before} == before
        assert [agent.end_action(action, "done").status for action in running] == [ActionStatus.DONE] * 3
        assert all(action.status is ActionStatus.UNKNOWN for action in agent.pending_actions())


def test_all_open_actions_are_settled_at_the_resume_however_many(backend: Backend) -> None:
    store = store_of(backend)
    lease = take(store, "pod-a:1:aaaa")
    kinds = [ActionClass.EXTERNAL, ActionClass.PURE]
    for start in range(1, 421, 105):  # Recall itself would settle 200
        changes = [replace(an_action(seq), action_class=kinds[seq % 2]) for seq in range(start, start + 105)]
        store.write(lease, [Change(action, Condition.NEW) for action in changes])
    store.release_lease(lease)

    with process(store) as agent:
        opened = agent.pending_actions()
        assert len(opened) == 210
        assert {action.status for action in opened} == {ActionStatus.UNKNOWN}
        assert agent.begin_action("next", {}, "pure").seq == 421


def test_a_deferred_agent_changes_nothing_until_it_has_the_lease(backend: Backend) -> None:
    store = store_of(backend)
    first = DurableAgent.resume(store, AGENT)
    first.begin_action("send_email", {}, "external")
    waiting = DurableAgent.resume(other_store_of(backend), AGENT, defer_lease=True)
    before = state_of(backend)
    with pytest.raises(LeaseLive):
        waiting.acquire()
    with pytest.raises(LeaseNotHeld):
        waiting.record_turn("user", "not mine yet")
    assert "Interrupted. It may or may not have happened." in waiting.briefing.text
    assert state_of(backend) == before
    first.release()
    decide(backend.store, ActionRef(store.name, AGENT, 1))

    with waiting:
        waiting.acquire()
        assert waiting.pending_actions() == ()
        assert "settled after a crash: done" in waiting.briefing.text
        assert waiting.record_turn("user", "mine now").seq == 2


def test_an_agent_that_was_evicted_writes_nothing_more_and_says_so_for_ever(backend: Backend) -> None:
    store = store_of(backend)
    agent = DurableAgent.resume(store, AGENT)
    agent.begin_action("send_email", {}, "external")
    backend.recall.lease(AGENT, "console:ana:1", 7, "released")
    before = state_of(backend)

    for _ in range(2):
        with pytest.raises(LeaseLost):
            agent.end_action(1, "done")
        assert agent.is_lost
    agent.release()

    assert state_of(backend) == before
    assert backend.recall.lease_of(AGENT) == ("console:ana:1", 7, "released")
    assert [action.seq for action in agent.pending_actions()] == [1]


# --- answers that were lost ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_written", [True, False])
def test_a_gesture_whose_answer_was_lost_is_asked_for_again_and_written_once(backend: Backend, is_written: bool) -> None:
    store = LosingAnswers(store_of(backend))
    with process(cast("AgentStore", store)) as agent:

        def again(gesture: Any) -> Any:
            store.lose_after, store.lose_before = is_written, not is_written
            with pytest.raises(StoreUnavailable) as caught:
                gesture()
            assert caught.value.may_be_written
            return gesture()

        action = again(lambda: agent.begin_action("send_email", "x" * 9000, "external"))
        ended = again(lambda: agent.end_action(action, "done", result="ok", turn=NewTurn("tool", "sent")))
        turn = again(lambda: agent.record_turn("user", "t" * 9000))
        state = again(lambda: agent.update_working_state(goal="g"))
        output = again(lambda: agent.store_output("kept"))

        assert (action.seq, ended.status, turn.seq, state.version) == (1, "done", 2, 1)
        assert [each for each in backend.recall.record_ids() if ":act:" in each or ":turn:" in each or ":ws:" in each] == [
            f"{AGENT}:act:1",
            f"{AGENT}:turn:1",
            f"{AGENT}:turn:2",
            f"{AGENT}:ws:1",
            f"{AGENT}:ws:head",
        ]
        assert [each.ref for each in store_of(backend).list_outputs(AGENT, limit=9)] == [  # type: ignore[union-attr]
            "act-1-args",
            turn.output_ref,
            output.ref,
        ]


@pytest.mark.parametrize("is_written", [True, False])
def test_something_else_after_a_lost_answer_takes_no_number_twice(backend: Backend, is_written: bool) -> None:
    store = LosingAnswers(store_of(backend))
    with process(cast("AgentStore", store)) as agent:
        store.lose_after, store.lose_before = is_written, not is_written
        with pytest.raises(StoreUnavailable):
            agent.begin_action("send_email", {"to": "ann"}, "external")

        other = agent.begin_action("send_email", {"to": "ben"}, "external")

        assert other.seq == (2 if is_written else 1)
        assert [action.seq for action in agent.pending_actions()] == list(range(1, other.seq + 1))
        store.lose_after, store.lose_before = is_written, not is_written
        with pytest.raises(StoreUnavailable):
            agent.end_action(other, "done", turn=NewTurn("tool", "sent"))
        assert agent.record_turn("user", "next").seq == (2 if is_written else 1)
        if is_written:
            with pytest.raises(ActionNotOpen):
                agent.end_action(other, "failed", error="no")
        else:
            assert agent.end_action(other, "failed", error="no").status is ActionStatus.FAILED


def test_a_write_that_arrives_after_it_was_looked_for_keeps_its_number(backend: Backend) -> None:
    store = LosingAnswers(store_of(backend))
    with process(cast("AgentStore", store)) as agent:
        store.lose_before = True
        with pytest.raises(StoreUnavailable):
            agent.begin_action("send_email", {"to": "ann"}, "external")
        late = agent._writes.doubt.plan.changes  # type: ignore[union-attr]
        agent._writes.clear_doubt(agent._writes.doubt)  # type: ignore[arg-type]
        assert agent.lease is not None
        store_of(backend).write(agent.lease, late)

        other = agent.begin_action("send_email", {"to": "ben"}, "external")

        assert other.seq == 2
        assert [json.loads(action.args)["to"] for action in agent.pending_actions()] == ["ann", "ben"]


def test_a_write_that_surely_failed_is_no_doubt(backend: Backend) -> None:
    class Down(LosingAnswers):
        def write(self, lease: Lease, changes: Any) -> None:
            raise StoreUnavailable("main", "no connection")

    with process(cast("AgentStore", Down(store_of(backend)))) as agent:
        with pytest.raises(StoreUnavailable):
            agent.record_turn("user", "hello")
        assert agent._writes.doubt is None
    assert backend.recall.record_ids() == []


# --- keeping it alive ------------------------------------------------------------------------------------------------


def test_a_lease_that_is_due_is_renewed_before_the_write(backend: Backend) -> None:
    with process(store_of(backend), lease_ttl=timedelta(hours=1)) as agent:  # its own thread renews nothing in this test
        assert agent._keeper is not None
        agent._keeper._granted_at -= 21 * 60  # more than a third

        action = agent.begin_action("send_email", {}, "external")

        assert (action.epoch, backend.recall.lease_of(AGENT)) == (2, (agent.holder, 2, "live"))
        agent._keeper._granted_at -= 21 * 60
        backend.recall.lease(AGENT, "pod-b:1:bbbb", 9, "live")
        with pytest.raises(LeaseLost):
            agent.end_action(action, "done")
        assert agent.is_lost


def test_the_lease_is_kept_alive_in_the_background_and_no_more_after_the_release(backend: Backend) -> None:
    agent = DurableAgent.resume(store_of(backend), AGENT, lease_ttl=timedelta(milliseconds=300))
    assert agent._keeper is not None
    thread = agent._keeper._thread
    until(lambda: (backend.recall.lease_of(AGENT) or ("", 0, ""))[1] >= 4)

    agent.release()
    thread.join(PATIENCE_S)

    assert not thread.is_alive()
    lease = backend.recall.lease_of(AGENT)
    assert lease is not None
    assert lease[2] == "released"


def test_an_agent_that_is_forgotten_is_not_kept_alive(backend: Backend) -> None:
    agent = DurableAgent.resume(store_of(backend), AGENT)
    assert agent._keeper is not None
    thread = agent._keeper._thread

    del agent
    gc.collect()
    thread.join(PATIENCE_S)

    assert not thread.is_alive()
    assert backend.recall.lease_of(AGENT) is not None


def test_several_threads_of_one_agent_take_each_number_once(backend: Backend) -> None:
    with process(store_of(backend)) as agent:

        def work(name: str) -> list[int]:
            began = [agent.begin_action(name, {}, "external") for _ in range(6)]
            return [agent.end_action(action, "done", turn=NewTurn("tool", name)).seq for action in began]

        one, two = race(partial(work, "one"), partial(work, "two"))

        assert sorted(one + two) == list(range(1, 13))  # type: ignore[operator]
        assert [turn.seq for turn in agent.recent_turns()] == list(range(1, 13))
        assert agent.pending_actions() == ()
