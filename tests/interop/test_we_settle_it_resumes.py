"""We settle an action of a dead agent; its next process, a real one, resumes from what we wrote."""

from __future__ import annotations

import json
from typing import Any

import pytest
from polign_recall import ActionEnd as RecallEnd
from polign_recall import RecallError

from actions import queries
from actions.correct import WasRead, correct, find_told, make_correction, preview_correction, was_read
from actions.errors import ActionNotFound, ActionNotOpen, InvalidDecision
from actions.records import ActionClass, ActionRef, ActionState, ActionStatus, NewEntry, Output
from actions.settle import preview_turn
from actions.store.base import ActionStore
from tests.interop.decisions import OPERATOR, REASON, an_end, chain_of, decide, settled_entries
from tests.interop.driver import Recall, crash, lease_of, records_of, revision
from tests.interop.rows import rows_of

pytestmark = pytest.mark.interop

AGENT = "support-7"
HOSTILE = 'Grüße & <b>"quotes"</b> \\ line\u2028para\u2029 \x07 \U0001f4b8'
LONG = "Ergebnis: größer, " * 800

ENDS = {
    "done": an_end(ActionStatus.DONE, result="message-id 1204"),
    "done-without-result": an_end(ActionStatus.DONE),
    "done-hostile": an_end(ActionStatus.DONE, reason=HOSTILE, result=HOSTILE),
    "done-long": an_end(ActionStatus.DONE, result=LONG),
    "failed": an_end(ActionStatus.FAILED, error="550 mailbox full"),
    "failed-by-reason": an_end(ActionStatus.FAILED, reason=HOSTILE),
    "reason-longer-than-a-brief": an_end(ActionStatus.DONE, reason="알" * 1990),  # 5,970 bytes; Recall takes briefs of 4,096
    "abandoned": an_end(ActionStatus.ABANDONED, reason="nobody can find out"),
}
RECALLS_OWN = [name for name in ENDS if name not in ("abandoned", "reason-longer-than-a-brief")]


def crash_in_send_email(recall: Recall, agent: str = AGENT, *, turns: int = 3) -> None:
    """A process that recorded some turns and died inside `send_email`."""
    running = recall.resume(agent)
    for number in range(1, turns + 1):
        running.record_turn("user", f"turn {number}")
    running.begin_action("send_email", "external", {"to": "ann@example.com", "subject": "Refund <881> & more"})
    crash(running, recall.url)


@pytest.mark.parametrize("name", ENDS)
def test_the_next_process_reads_the_outcome_as_previewed(recall: Recall, store: ActionStore, name: str) -> None:
    end = ENDS[name]
    crash_in_send_email(recall)
    shown = queries.get_action(store, ActionRef("main", AGENT, 1))
    assert shown.state is ActionState.INTERRUPTED
    assert shown.action is not None
    preview = preview_turn(shown.action, end)

    settled = decide(store, AGENT, 1, end)

    assert lease_of(recall.url, AGENT)[2:] == (False, True)
    resumed = recall.resume(AGENT)
    turn = resumed.context.recent_turns[-1]
    assert resumed.context.pending_actions == ()
    assert (turn.seq, turn.role, turn.name, turn.content, turn.brief, turn.message_id, turn.output_ref) == (
        4, "tool", "send_email", preview.content, preview.brief, "", "",
    )  # fmt: skip
    assert f"[tool send_email #4] {preview.brief}" in resumed.context.briefing
    assert [t.content for t in resumed.context.recent_turns[:-1]] == ["turn 1", "turn 2", "turn 3"]
    assert settled.turn_seq == resumed.context.turn_seq == 4
    assert resumed.record_turn("user", "go on").seq == 5
    assert resumed.begin_action("send_email", "external").seq == 2
    assert settled_entries(store, AGENT, 1) == 1
    assert chain_of(store).is_intact


@pytest.mark.parametrize("name", ENDS)
def test_what_we_closed_stays_closed_for_recall(recall: Recall, store: ActionStore, name: str) -> None:
    crash_in_send_email(recall)
    decide(store, AGENT, 1, ENDS[name])
    before = records_of(recall.url, AGENT)

    with pytest.raises(RecallError, match=rf"action 1 \(send_email\) already ended {ENDS[name].status}"):
        recall.resume(AGENT).end_action(1, "done", "sent twice")

    assert records_of(recall.url, AGENT) == before


@pytest.mark.parametrize("name", RECALLS_OWN)
def test_our_records_are_those_of_recalls_own_reconcile(recall: Recall, store: ActionStore, name: str) -> None:
    """Two agents of one past; one is reconciled by a resolver in the real client, the other settled by us."""
    end = ENDS[name]
    for agent in ("theirs", "ours"):
        crash_in_send_email(recall, agent)

    theirs = recall.resume("theirs")
    theirs.reconcile(lambda action: RecallEnd(end.status, result=end.result, error=end.error, resolution=end.resolution))
    theirs.release()
    decide(store, "ours", 1, end)

    wanted = {key.replace("theirs", "ours"): without_times(row) for key, row in records_of(recall.url, "theirs").items()}
    found = {key: without_times(row) for key, row in records_of(recall.url, "ours").items()}
    wanted["ours:act:1"]["body"]["key"] = found["ours:act:1"]["body"]["key"]
    assert found == wanted
    assert lease_of(recall.url, "ours")[1:] == lease_of(recall.url, "theirs")[1:]


def without_times(metadata: dict[str, Any]) -> dict[str, Any]:
    """A record with its body as a value, without whose it is and when it was written."""
    body = {name: value for name, value in json.loads(metadata["body"]).items() if name not in ("at", "started_at", "ended_at")}
    return {**metadata, "recall_agent": "", "body": body}


def test_a_result_over_8000_bytes_is_an_output_that_recall_fetches(recall: Recall, store: ActionStore) -> None:
    crash_in_send_email(recall)
    before = revision(recall.url)

    decide(store, AGENT, 1, ENDS["done-long"])

    resumed = recall.resume(AGENT)
    assert resumed.fetch_output("act-1-result").content == LONG
    assert resumed.fetch_output("act-1-result").tool == "send_email"
    assert len(resumed.context.recent_turns[-1].content.encode()) < 500
    assert [output.ref for output in resumed.context.outputs] == ["act-1-result"]
    assert revision(recall.url) == before + 3
    output = store.read_outputs([(AGENT, "act-1-result")])[AGENT, "act-1-result"]
    assert isinstance(output, Output)
    assert output.content == LONG


def test_a_settle_moves_the_revision_by_the_records_that_it_wrote(recall: Recall, store: ActionStore) -> None:
    crash_in_send_email(recall)
    before = revision(recall.url)

    decide(store, AGENT, 1, ENDS["done"])

    assert revision(recall.url) == before + 2


@pytest.mark.parametrize("with_working_state", [False, True], ids=["no-head", "head-hint"])
@pytest.mark.parametrize("turns", [0, 1, 63, 64, 65, 70, 128])
def test_the_turns_number_is_right_around_recalls_page_boundary(
    recall: Recall, store: ActionStore, turns: int, with_working_state: bool
) -> None:
    running = recall.resume(AGENT)
    for number in range(1, turns + 1):
        running.record_turn("user", f"turn {number}")
        if with_working_state and number == turns // 2 + 1:
            running.update_working_state(goal="half way")
    running.begin_action("send_email", "external")
    crash(running, recall.url)

    settled = decide(store, AGENT, 1, ENDS["done"])

    resumed = recall.resume(AGENT)
    assert settled.turn_seq == resumed.context.turn_seq == turns + 1
    assert resumed.recent_turns(1)[0].content == "message-id 1204"
    assert resumed.record_turn("user", "go on").seq == turns + 2
    assert [t.seq for t in store.list_turns(AGENT, limit=200)] == list(range(turns + 2, 0, -1))


def test_a_head_that_hints_beyond_the_newest_turn_is_believed_by_both(recall: Recall, store: ActionStore) -> None:
    """A restored backup can leave a head that knows turns which are gone; Recall counts on from the head, and so must we."""
    running = recall.resume(AGENT)
    for number in range(1, 6):
        running.record_turn("user", f"turn {number}")
    running.update_working_state(goal="five turns so far")
    running.begin_action("send_email", "external")
    crash(running, recall.url)
    rows_of(recall.url).delete(f"{AGENT}:turn:5")

    settled = decide(store, AGENT, 1, ENDS["done"])

    assert settled.turn_seq == 6
    resumed = recall.resume(AGENT)
    assert resumed.context.turn_seq == 6
    assert resumed.record_turn("user", "go on").seq == 7


def test_several_calls_of_one_agent_are_settled_one_by_one(recall: Recall, store: ActionStore) -> None:
    running = recall.resume(AGENT)
    running.record_turn("user", "Refund order 881")
    for tool, action_class in (
        ("lookup", "pure"),
        ("save_invoice", "idempotent"),
        ("send_email", "external"),
        ("pay", "external"),
    ):
        running.begin_action(tool, action_class, {"order": 881})
    crash(running, recall.url)

    with pytest.raises(InvalidDecision):
        decide(store, AGENT, 1, ENDS["done"])
    decide(store, AGENT, 4, ENDS["failed"])
    decide(store, AGENT, 3, ENDS["done"])
    decide(store, AGENT, 1, ENDS["abandoned"])

    resumed = recall.resume(AGENT)
    assert [(a.seq, a.tool, a.status) for a in resumed.context.pending_actions] == [(2, "save_invoice", "started")]
    assert [(t.seq, t.name, t.content) for t in resumed.context.recent_turns[1:]] == [
        (2, "pay", "failed: 550 mailbox full"),
        (3, "send_email", "message-id 1204"),
        (4, "lookup", "abandoned: nobody can find out"),
    ]
    assert resumed.record_turn("user", "go on").seq == 5
    assert chain_of(store).entries >= 3
    assert chain_of(store).is_intact


def test_an_action_that_a_resume_left_unknown_can_be_settled(recall: Recall, store: ActionStore) -> None:
    crash_in_send_email(recall)
    marked = recall.resume(AGENT)
    assert [a.status for a in marked.pending_actions()] == ["unknown"]
    marked.release()

    decide(store, AGENT, 1, ENDS["failed"])

    resumed = recall.resume(AGENT)
    assert resumed.context.pending_actions == ()
    assert resumed.context.recent_turns[-1].content == "failed: 550 mailbox full"
    stored = json.loads(records_of(recall.url, AGENT)[f"{AGENT}:act:1"]["body"])
    assert stored["resolution"] == f"{OPERATOR}: {REASON}"
    assert stored["epoch"] == 1


def test_an_idempotent_call_settled_by_us_is_not_run_again(recall: Recall, store: ActionStore) -> None:
    running = recall.resume(AGENT)
    running.begin_action("save_invoice", "idempotent", {"invoice": "INV-9"})
    crash(running, recall.url)
    decide(store, AGENT, 1, ENDS["done"])

    asked: list[int] = []
    report = recall.resume(AGENT).reconcile(lambda action: asked.append(action.seq))

    assert asked == []
    assert (report.closed, report.open) == ((), ())


def test_an_agent_whose_own_process_died_is_settled_although_its_lease_was_handed_over(
    recall: Recall, store: ActionStore
) -> None:
    """The binary survives its Python process for a moment, sees the end of its input, and releases: released is not clean."""
    running = recall.resume(AGENT)
    running.begin_action("send_email", "external")
    running.client.close()
    assert lease_of(recall.url, AGENT)[3]

    decide(store, AGENT, 1, ENDS["done"])

    resumed = recall.resume(AGENT)
    assert resumed.context.pending_actions == ()
    assert resumed.context.turn_seq == 1


def test_the_epoch_only_rises_and_the_next_process_gets_the_following_one(recall: Recall, store: ActionStore) -> None:
    crash_in_send_email(recall)
    _, before, _, _ = lease_of(recall.url, AGENT)

    decide(store, AGENT, 1, ENDS["done"])

    holder, after, _, _ = lease_of(recall.url, AGENT)
    assert after == before + 2
    assert holder.startswith("console:operator-ana:")
    assert recall.resume(AGENT).context.epoch == after + 1
    assert records_of(recall.url, AGENT)[f"{AGENT}:act:1"]["epoch"] == before + 1


def test_an_agent_that_never_had_a_lease_row_is_settled(recall: Recall, store: ActionStore) -> None:
    """A restored table without its leases: nobody holds the agent."""
    crash_in_send_email(recall)
    rows_of(recall.url).forget_leases()

    decide(store, AGENT, 1, ENDS["done"])

    resumed = recall.resume(AGENT)
    assert resumed.context.pending_actions == ()
    assert resumed.context.epoch == 3


def test_a_lease_without_a_collection_is_an_empty_store(recall: Recall, store: ActionStore) -> None:
    """Recall makes the agents' table with the first record, not with the first resume."""
    running = recall.resume(AGENT)

    assert store.read_actions(list(ActionStatus), limit=10).readings == ()
    assert store.list_turns(AGENT, limit=10) == ()
    assert store.list_pointers(AGENT) == ()
    assert store.find_working_state(AGENT) is None
    lease = store.find_lease(AGENT)
    assert lease is not None
    assert lease.is_live
    with pytest.raises(ActionNotFound):
        store.get_action(AGENT, 1)
    crash(running, recall.url)
    with pytest.raises(ActionNotFound):
        store.settle(ActionRef("main", AGENT, 1), ENDS["done"], entry=an_entry(), holder="console:test:1")
    assert lease_of(recall.url, AGENT)[1] == 1
    assert recall.resume(AGENT).begin_action("send_email", "external").seq == 1


def an_entry() -> NewEntry:
    return NewEntry(kind="settled", actor=OPERATOR, agent=AGENT, seq=1, decision_id="decision-1", content_digest="0" * 64)


def test_settling_again_is_refused_and_names_the_first_decision(recall: Recall, store: ActionStore) -> None:
    crash_in_send_email(recall)
    first = decide(store, AGENT, 1, ENDS["done"])
    before = records_of(recall.url, AGENT)

    with pytest.raises(ActionNotOpen) as refused:
        decide(store, AGENT, 1, ENDS["failed"])

    assert refused.value.action.status is ActionStatus.DONE
    assert refused.value.entry == first.entry
    assert records_of(recall.url, AGENT) == before
    assert settled_entries(store, AGENT, 1) == 1


def test_what_the_agent_closed_itself_cannot_be_settled(recall: Recall, store: ActionStore) -> None:
    running = recall.resume(AGENT)
    running.begin_action("send_email", "external")
    running.end_action(1, "failed", error="550 mailbox full")
    running.release()
    before = records_of(recall.url, AGENT)

    with pytest.raises(ActionNotOpen) as refused:
        decide(store, AGENT, 1, ENDS["done"])

    assert refused.value.entry is None
    assert records_of(recall.url, AGENT) == before
    assert store.read_head().number == chain_of(store).entries
    assert settled_entries(store, AGENT, 1) == 0


@pytest.mark.parametrize("action_class", list(ActionClass))
def test_embeddings_are_left_to_recall(recall: Recall, store: ActionStore, action_class: ActionClass) -> None:
    """The action keeps the vector that Recall gave it; the turn has the zero vector, which the cosine index skips."""
    running = recall.resume(AGENT)
    running.begin_action("send_email", action_class.value, {"to": "ann@example.com"})
    crash(running, recall.url)
    before = rows_of(recall.url).vector(f"{AGENT}:act:1")

    decide(store, AGENT, 1, ENDS["abandoned"])

    assert len(before) == 256
    assert rows_of(recall.url).vector(f"{AGENT}:act:1") == before
    assert rows_of(recall.url).vector(f"{AGENT}:turn:1") == (0.0,) * 256


@pytest.mark.parametrize("is_read", [False, True], ids=["nobody resumed between", "the agent had gone on"])
def test_the_next_process_reads_the_correction_as_previewed(recall: Recall, store: ActionStore, is_read: bool) -> None:
    crash_in_send_email(recall)
    ref = ActionRef("main", AGENT, 1)
    decide(store, AGENT, 1, ENDS["done"])
    if is_read:
        running = recall.resume(AGENT)
        running.record_turn("assistant", "the mail is out")
        crash(running, recall.url)
    told, action = find_told(store, ref), queries.get_action(store, ref).action
    assert told is not None
    assert action is not None
    words = make_correction("failed", "not in the Sent folder after all", actor=OPERATOR)
    preview = preview_correction(action, told, words)
    shown = was_read(store, told)

    written = correct(store, ref, words, actor=OPERATOR, decision_id="correction-1", basis=told.number)

    assert (shown, was_read(store, told, before=written.turn_seq)) == ((WasRead.YES,) * 2 if is_read else (WasRead.NO,) * 2)
    resumed = recall.resume(AGENT)
    turn = resumed.context.recent_turns[-1]
    number = 6 if is_read else 5
    assert (turn.seq, turn.role, turn.name, turn.content, turn.brief) == (
        number, "tool", "send_email", preview.content, preview.brief,
    )  # fmt: skip
    assert f"[tool send_email #{number}] {preview.brief}" in resumed.context.briefing
    assert resumed.context.pending_actions == ()
    assert resumed.record_turn("user", "go on").seq == number + 1
    with pytest.raises(RecallError, match="already ended done"):
        resumed.end_action(1, "failed", "", "550")
    assert chain_of(store).is_intact
