"""What a settle writes: the closed action, the turn, the entry, the revision, and the lease given back."""

from __future__ import annotations

import json

import pytest

from actions.digests import action_digest, claim_digest, sha256_text
from actions.errors import DecisionIdReused
from actions.queries import get_action, read_result
from actions.records import ActionStatus, NewEntry, Turn
from actions.settle import preview_turn, settle
from actions.store.base import ActionStore
from actions.times import parse_rfc3339
from tests.recall_writer import RecordWriter, shortened, time_text
from tests.store.conftest import fenced
from tests.store.gestures import an_end, decide, look_at_world, readable_action, verify


def newest_turn(store: ActionStore, agent: str) -> Turn:
    turn = store.list_turns(agent, limit=1)[0]
    assert isinstance(turn, Turn)
    return turn


def test_a_done_action_keeps_everything_but_its_end(store: ActionStore, recall: RecordWriter) -> None:
    ref = recall.action(
        "a", 4, status="unknown", resolution="interrupted; no resolver to check whether it happened", epoch=1, written_epoch=3
    )
    recall.lease("a", epoch=7, state="released")
    before = recall.metadata_of("a:act:4")
    assert before is not None

    decide(store, ref, an_end(result="message-id 1204"))

    after = recall.metadata_of("a:act:4")
    assert after is not None
    body = json.loads(after["body"])
    assert {**after, "body": None} == {**before, "body": None, "status": "done", "epoch": 8}
    ended_at = body.pop("ended_at")
    assert body == json.loads(before["body"]) | {
        "status": "done",
        "result": "message-id 1204",
        "resolution": "operator ana: found in the Sent folder",
    }
    assert parse_rfc3339(ended_at) > parse_rfc3339(body["started_at"])


def test_a_failed_action_says_why(store: ActionStore, recall: RecordWriter) -> None:
    ref = recall.action("a", 1, result="half a result", error="an old error", result_ref="act-1-result", status="unknown")

    decide(store, ref, an_end(ActionStatus.FAILED, "never arrived"))

    body = recall.body_of("a:act:1")
    assert (body["status"], body["error"], body["resolution"]) == ("failed", "never arrived", "operator ana: never arrived")
    assert not {"result", "result_ref"} & set(body)


def test_an_abandoned_action_is_closed_without_a_result(store: ActionStore, recall: RecordWriter) -> None:
    ref = recall.action("a", 1, cls="pure")

    decide(store, ref, an_end(ActionStatus.ABANDONED, "not needed any more"))

    body = recall.body_of("a:act:1")
    assert (body["status"], body["resolution"]) == ("abandoned", "operator ana: not needed any more")
    assert not {"result", "error"} & set(body)
    assert "ended_at" in body


@pytest.mark.parametrize(
    ("end", "content", "brief"),
    [
        (
            an_end(result="message-id 1204"),
            "message-id 1204",
            "(settled after a crash: done; operator ana: found in the Sent folder) message-id 1204",
        ),
        (an_end(), "done", "(settled after a crash: done; operator ana: found in the Sent folder) done"),
        (
            an_end(ActionStatus.FAILED, "bounced", error="550 no such user"),
            "failed: 550 no such user",
            "(settled after a crash: failed; operator ana: bounced) failed: 550 no such user",
        ),
        (
            an_end(ActionStatus.ABANDONED, "too old"),
            "abandoned: too old",
            "(settled after a crash: abandoned; operator ana: too old) abandoned",
        ),
    ],
)
def test_the_agent_reads_what_the_operator_decided(
    store: ActionStore, recall: RecordWriter, end: object, content: str, brief: str
) -> None:
    ref = recall.action("a", 1, tool="send_email")
    recall.turns("a", 3)
    shown = preview_turn(readable_action(store, ref), end)  # type: ignore[arg-type]

    settled = decide(store, ref, end)  # type: ignore[arg-type]

    turn = newest_turn(store, "a")
    assert (turn.seq, turn.role, turn.name, turn.content, turn.brief) == (4, "tool", "send_email", content, brief)
    assert turn.output_ref == ""
    assert (shown.content, shown.brief) == (content, brief)
    assert (settled.turn_seq, settled.is_repeat) == (4, False)


@fenced
def test_the_turn_has_no_message_id_just_as_recalls_own(store: ActionStore, recall: RecordWriter) -> None:
    decide(store, recall.action("a", 1))

    assert newest_turn(store, "a").message_id == ""
    assert "message_id" not in recall.body_of("a:turn:1")


def test_the_turn_is_stored_as_recall_finds_it(store: ActionStore, recall: RecordWriter) -> None:
    ref = recall.action("a", 1)
    recall.turns("a", 64)
    recall.lease("a", epoch=2, state="expired")

    decide(store, ref)

    metadata = recall.metadata_of("a:turn:65")
    assert metadata is not None
    assert {**metadata, "body": None} == {"recall_agent": "a", "record": "turn", "seq": 65, "page": "1", "epoch": 3, "body": None}
    assert type(metadata["seq"]) is int
    assert recall.body_of("a:turn:65")["seq"] == 65


@pytest.mark.parametrize(("turns", "key"), [(0, "0"), (63, "0"), (64, "1"), (128, "2")])
def test_the_first_turn_of_a_page_opens_it(store: ActionStore, recall: RecordWriter, turns: int, key: str) -> None:
    ref = recall.action("a", 1)
    recall.turns("a", turns)

    decide(store, ref)

    metadata = recall.metadata_of(f"a:turn:{turns + 1}")
    assert metadata is not None
    assert metadata["page"] == key


def test_a_working_state_that_claims_more_turns_is_believed(store: ActionStore, recall: RecordWriter) -> None:
    ref = recall.action("a", 1)
    recall.turns("a", 2)
    recall.working_state("a", turn_seq=40)

    assert decide(store, ref).turn_seq == 41


def test_a_working_state_that_lags_behind_is_not(store: ActionStore, recall: RecordWriter) -> None:
    ref = recall.action("a", 1)
    recall.turns("a", 9)
    recall.working_state("a", turn_seq=3)

    assert decide(store, ref).turn_seq == 10


def test_an_unreadable_turn_counts_too(store: ActionStore, recall: RecordWriter) -> None:
    ref = recall.action("a", 1)
    recall.turns("a", 2)
    recall.turn("a", 3, body="{", drop=("seq", "page"))

    assert decide(store, ref).turn_seq == 4
    assert recall.metadata_of("a:turn:3") is not None


def test_another_agents_turns_do_not_count(store: ActionStore, recall: RecordWriter) -> None:
    ref = recall.action("a", 1)
    recall.turns("ab", 5)

    assert decide(store, ref).turn_seq == 1


def test_the_lease_is_taken_for_this_once_and_given_back(store: ActionStore, recall: RecordWriter) -> None:
    ref = recall.action("a", 1)
    recall.lease("a", holder="pod-a", epoch=7, state="expired")

    decide(store, ref)

    lease = recall.lease_of("a")
    assert lease is not None
    holder, epoch, state = lease
    assert holder.startswith("console:operator-ana:")
    assert (epoch, state) == (9, "released")


def test_every_settle_has_a_holder_of_its_own(store: ActionStore, recall: RecordWriter) -> None:
    first, second = recall.action("a", 1), recall.action("a", 2)
    holders = set()
    for ref in (first, second):
        decide(store, ref)
        lease = recall.lease_of("a")
        assert lease is not None
        holders.add(lease[0])

    assert len(holders) == 2


def test_an_agent_without_a_lease_gets_one_and_it_is_free(store: ActionStore, recall: RecordWriter) -> None:
    ref = recall.action("a", 1)

    decide(store, ref)

    lease = recall.lease_of("a")
    assert lease is not None
    assert lease[1:] == (2, "released")
    metadata = recall.metadata_of("a:act:1")
    assert metadata is not None
    assert metadata["epoch"] == 1


def test_the_agent_can_resume_at_once_and_reads_the_turn(store: ActionStore, recall: RecordWriter) -> None:
    ref = recall.action("a", 1)
    recall.lease("a", epoch=4, state="expired")
    decide(store, ref)

    assert recall.acquire("a", "pod-b") == 7
    assert newest_turn(store, "a").name == "send_email"


@fenced
def test_the_revision_moves_by_the_records_written(store: ActionStore, recall: RecordWriter) -> None:
    short, long = recall.action("a", 1), recall.action("a", 2)
    before = recall.revision()

    decide(store, short)
    assert recall.revision() == before + 2
    decide(store, long, an_end(result="x" * 8001))
    assert recall.revision() == before + 5


def test_only_the_action_the_turn_and_nothing_else_is_written(store: ActionStore, recall: RecordWriter) -> None:
    ref = recall.action("a", 1)
    recall.action("a", 2)
    recall.action("b", 1)
    recall.turns("a", 2)
    recall.working_state("a")
    before = look_at_world(store, recall, "b").records

    decide(store, ref)

    after = look_at_world(store, recall, "b").records
    assert {key for key in after if after[key] != before.get(key)} == {"a:act:1", "a:turn:3"}


def test_a_long_result_moves_to_an_output(store: ActionStore, recall: RecordWriter) -> None:
    ref = recall.action("a", 1)
    result = "ü" * 4001

    decide(store, ref, an_end(result=result))

    body = recall.body_of("a:act:1")
    assert (body["result"], body["result_ref"]) == (shortened(result, "act-1-result"), "act-1-result")
    assert newest_turn(store, "a").content == shortened(result, "act-1-result")
    output = recall.metadata_of("a:out:act-1-result")
    assert output is not None
    assert {**output, "body": None} == {
        "recall_agent": "a",
        "record": "output",
        "ref": "act-1-result",
        "tokens": 2001,
        "epoch": 1,
        "body": None,
    }
    assert read_result(store, readable_action(store, ref)) == result


def test_a_result_of_eight_thousand_bytes_stays(store: ActionStore, recall: RecordWriter) -> None:
    ref = recall.action("a", 1)

    decide(store, ref, an_end(result="x" * 8000))

    assert recall.body_of("a:act:1")["result"] == "x" * 8000
    assert recall.metadata_of("a:out:act-1-result") is None


def test_an_output_that_a_crashed_agent_left_is_replaced(store: ActionStore, recall: RecordWriter) -> None:
    """Recall writes the output first, in a transaction of its own."""
    ref = recall.action("a", 1)
    recall.output("a", "act-1-result", "half of it")

    decide(store, ref, an_end(result="y" * 9000))

    assert recall.body_of("a:out:act-1-result")["content"] == "y" * 9000


def test_a_result_of_a_mebibyte_is_kept_whole(store: ActionStore, recall: RecordWriter) -> None:
    ref = recall.action("a", 1)
    result = "x" * (1024 * 1024)

    decide(store, ref, an_end(result=result))

    assert read_result(store, readable_action(store, ref)) == result


def test_keys_that_we_do_not_know_stay(store: ActionStore, recall: RecordWriter) -> None:
    ref = recall.action("a", 1, meta={"later": [1, 2.5, "x"], "exact": 12345678901234567890}, body={"later": [1.5, None]})

    decide(store, ref)

    metadata = recall.metadata_of("a:act:1")
    assert metadata is not None
    assert (metadata["later"], metadata["exact"]) == ([1, 2.5, "x"], 12345678901234567890)
    assert recall.body_of("a:act:1")["later"] == [1.5, None]


@fenced
def test_objects_among_the_keys_that_we_do_not_know_stay(store: ActionStore, recall: RecordWriter) -> None:
    """polign_db keeps none in metadata."""
    decide(store, recall.action("a", 1, meta={"later": {"x": [1, 2.5, None]}}))

    metadata = recall.metadata_of("a:act:1")
    assert metadata is not None
    assert metadata["later"] == {"x": [1, 2.5, None]}


@pytest.mark.parametrize(
    "args", ['{"a": "\\u0000"}', "\x00", '{"a": "\\ud800"}', "[" * 9_000, "not json", "", "<&>\u2028", '{"n": 1e400}']
)
def test_arguments_that_are_hard_to_keep_come_through_unchanged(store: ActionStore, recall: RecordWriter, args: str) -> None:
    ref = recall.action("a", 1, args=args)
    before = recall.body_of("a:act:1").get("args")

    settled = decide(store, ref, seen=get_action(store, ref).digest)

    assert recall.body_of("a:act:1").get("args") == before
    assert settled.entry.detail["before"]["args_digest"] == sha256_text(args)  # type: ignore[index]
    assert verify(store).is_intact


@fenced
def test_the_entry_says_what_was_before_and_after(store: ActionStore, recall: RecordWriter) -> None:
    ref = recall.action(
        "a",
        1,
        tool="create_payment",
        status="unknown",
        args={"amount": 42, "api_key": "hunter2hunter2"},
        resolution="could not tell whether it happened",
        written_epoch=2,
    )
    recall.lease("a", holder="pod-a:1:aaaa", epoch=5, state="released")
    digest = get_action(store, ref).digest

    settled = decide(store, ref, an_end(result="pay_1", reason="in the ledger"), decision_id="decision-xyz", seen=digest)

    entry = settled.entry
    assert (entry.kind, entry.actor, entry.agent, entry.seq, entry.tool) == ("settled", "operator ana", "a", 1, "create_payment")
    assert (entry.outcome, entry.reason, entry.decision_id, entry.number) == ("done", "in the ledger", "decision-xyz", 1)
    assert entry.detail == {
        "before": {
            "status": "unknown",
            "resolution": "could not tell whether it happened",
            "error": "",
            "result": "",
            "epoch": 2,
            "args": '{"amount": 42, "api_key": "[redacted]"}',
            "args_digest": sha256_text('{"amount": 42, "api_key": "hunter2hunter2"}'),
        },
        "after": {
            "status": "done",
            "resolution": "operator ana: in the ledger",
            "error": "",
            "result": "pay_1",
            "result_digest": sha256_text("pay_1"),
            "epoch": 6,
        },
        "turn": 1,
        "started_at": time_text(1),
        "lease": {"holder": "pod-a:1:aaaa", "epoch": 5, "expires_at": "1970-01-01T00:00:00Z"},
        "seen": digest,
    }
    assert store.find_settled_entry("decision-xyz") == entry


def test_no_secret_reaches_the_entry(store: ActionStore, recall: RecordWriter) -> None:
    secret = "sk_live_abcdefgh12345678"
    ref = recall.action(
        "a",
        1,
        tool="call_api",
        args={"header": f"Bearer {secret}", "password": "hunter2hunter2"},
        status="unknown",
        resolution=secret,
    )

    entry = decide(store, ref, an_end(result=f"token={secret}", reason=f"used {secret}")).entry

    assert secret not in entry.text
    assert "hunter2" not in entry.text
    assert recall.body_of("a:act:1")["result"] == f"token={secret}"


def test_the_entry_keeps_long_arguments_short_and_their_digest_whole(store: ActionStore, recall: RecordWriter) -> None:
    args = json.dumps({"body": "x" * 100_000})
    ref = recall.action("a", 1, args=args)

    before = decide(store, ref).entry.detail["before"]

    assert isinstance(before, dict)
    assert len(before["args"]) == 4000
    assert before["args_digest"] == sha256_text(args)


def test_a_decision_over_whole_long_arguments_fits_what_was_shown(store: ActionStore, recall: RecordWriter) -> None:
    args = json.dumps({"body": "x" * 100_000})
    ref = recall.action("a", 1, args=args)
    seen = action_digest(readable_action(store, ref), args)

    assert get_action(store, ref).digest == seen
    assert not decide(store, ref, seen=seen).is_repeat


def test_an_output_with_a_name_of_its_own_is_found_for_the_digest(store: ActionStore, recall: RecordWriter) -> None:
    ref = recall.action("a", 1, args="short...", args_ref="my-args")
    recall.output("a", "my-args", '{"whole": true}')

    assert not decide(store, ref, seen=action_digest(readable_action(store, ref), '{"whole": true}')).is_repeat


def test_where_the_whole_arguments_are_missing_the_digest_is_over_what_is_there(store: ActionStore, recall: RecordWriter) -> None:
    ref = recall.action("a", 1, args="short...", args_ref="gone")

    assert not decide(store, ref, seen=get_action(store, ref).digest).is_repeat


def test_a_kept_decision_survives_a_resume_that_turned_started_into_unknown(store: ActionStore, recall: RecordWriter) -> None:
    ref = recall.action("a", 1)
    item = get_action(store, ref)
    recall.action("a", 1, status="unknown", resolution="interrupted; no resolver to check whether it happened", written_epoch=3)

    settled = decide(store, ref, claim=item.claim)

    assert not settled.is_repeat
    assert settled.entry.detail["claim"] == item.claim == claim_digest(readable_action(store, ref), '{"to": "ann@example.com"}')


def test_several_actions_of_one_agent_get_turns_one_after_the_other(store: ActionStore, recall: RecordWriter) -> None:
    refs = [recall.action("a", seq) for seq in (1, 2, 3)]

    assert [decide(store, ref).turn_seq for ref in refs] == [1, 2, 3]
    assert [recall.body_of(f"a:act:{seq}")["status"] for seq in (1, 2, 3)] == ["done"] * 3


def test_the_same_decision_id_answers_what_it_wrote(store: ActionStore, recall: RecordWriter) -> None:
    ref = recall.action("a", 1)
    first = decide(store, ref, decision_id="decision-1")
    before = look_at_world(store, recall, "a")

    again = decide(store, ref, decision_id="decision-1")

    assert again.is_repeat
    assert (again.entry, again.turn_seq) == (first.entry, first.turn_seq)
    assert look_at_world(store, recall, "a") == before


def test_the_same_decision_id_is_answered_even_when_the_agent_lives_again(store: ActionStore, recall: RecordWriter) -> None:
    ref = recall.action("a", 1)
    decide(store, ref, decision_id="decision-1")
    recall.acquire("a", "pod-b")

    assert decide(store, ref, decision_id="decision-1").is_repeat


@fenced
def test_times_are_the_stores_own(store: ActionStore, recall: RecordWriter) -> None:
    ref = recall.action("a", 1)
    earliest = store.read_watch().read_at

    settled = decide(store, ref)

    latest = store.read_watch().read_at
    action = readable_action(store, ref)
    assert action.ended_at is not None
    assert earliest <= action.ended_at <= settled.entry.at <= latest
    assert earliest <= newest_turn(store, "a").at <= latest


@fenced
def test_a_turn_that_tells_this_decision_already_is_not_told_twice(store: ActionStore, recall: RecordWriter) -> None:
    """Begun through the tenant's server and cut off after the turn; the agent is free since, and has gone on."""
    ref = recall.action("a", 1)
    recall.turn("a", 1, "x", role="tool", message_id="settle:1:decision-other")
    recall.turn("a", 2, "done", role="tool", message_id="settle:1:decision-mine")
    recall.turn("a", 3, "I go on")
    before = recall.revision()

    settled = settle(store, ref, an_end(), actor="operator ana", decision_id="decision-mine", marker="settle:1:decision-mine")

    assert (settled.turn_seq, settled.entry.detail["turn"]) == (2, 2)
    assert [turn.seq for turn in store.list_turns("a", limit=9)] == [3, 2, 1]
    assert recall.body_of("a:act:1")["status"] == "done"
    assert recall.revision() == before + 1
    assert verify(store).is_intact


@fenced
def test_a_marker_that_no_turn_has_changes_nothing(store: ActionStore, recall: RecordWriter) -> None:
    ref = recall.action("a", 1)
    recall.turn("a", 1, "x", role="tool", message_id="settle:1:decision-other")

    settled = settle(
        store, ref, an_end(result="y" * 9000), actor="operator ana", decision_id="decision-mine", marker="settle:1:decision-mine"
    )

    assert settled.turn_seq == 2
    assert [turn.seq for turn in store.list_turns("a", limit=9)] == [2, 1]


def test_of_a_settle_in_steps_there_is_one_entry(store: ActionStore, recall: RecordWriter) -> None:
    first = store.append_entry(NewEntry(kind="settled", actor="operator ana", agent="a", seq=1, decision_id="decision-mine"))

    with pytest.raises(DecisionIdReused) as caught:
        store.append_entry(NewEntry(kind="settled", actor="operator ben", agent="b", seq=2, decision_id="decision-mine"))

    assert caught.value.entry == first
    assert store.list_entries(limit=9) == (first,)
    assert verify(store).is_intact
