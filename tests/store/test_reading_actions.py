"""Actions over all agents, and one."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from actions.errors import ActionNotFound
from actions.keys import action_key
from actions.records import Action, ActionClass, ActionRef, ActionState, ActionStatus, Output, Unreadable
from actions.rules import state_of_reading
from actions.store.base import ActionStore
from actions.times import RELEASED, parse_rfc3339
from tests.recall_writer import RecordWriter, shortened
from tests.store.conftest import fenced
from tests.store.gestures import readable_action

OPEN = [ActionStatus.STARTED, ActionStatus.UNKNOWN]


def refs(store: ActionStore, statuses: list[ActionStatus] = OPEN, limit: int = 100, agent: str | None = None) -> list[str]:
    return [f"{r.action.agent}/{r.action.seq}" for r in store.read_actions(statuses, limit=limit, agent=agent).readings]


def test_every_field_of_an_action_is_read(store: ActionStore, recall: RecordWriter) -> None:
    recall.action(
        "billing-7",
        3,
        tool="create_payment",
        cls="idempotent",
        status="failed",
        args={"amount": 42, "currency": "EUR"},
        started_at="2026-11-29T18:29:06.219072333Z",
        ended_at="2026-11-29T18:29:07.5Z",
        error="CardDeclined: insufficient funds",
        resolution="re-run with the same key after a crash",
        epoch=2,
        written_epoch=5,
    )

    assert readable_action(store, ActionRef("main", "billing-7", 3)) == Action(
        agent="billing-7",
        seq=3,
        tool="create_payment",
        action_class=ActionClass.IDEMPOTENT,
        key=action_key("billing-7", 3),
        args='{"amount": 42, "currency": "EUR"}',
        status=ActionStatus.FAILED,
        error="CardDeclined: insufficient funds",
        resolution="re-run with the same key after a crash",
        epoch=2,
        written_epoch=5,
        started_at=parse_rfc3339("2026-11-29T18:29:06.219072333Z"),
        ended_at=parse_rfc3339("2026-11-29T18:29:07.5Z"),
    )


def test_open_actions_of_all_agents_are_listed_by_record_id(store: ActionStore, recall: RecordWriter) -> None:
    recall.action("b", 1, status="unknown")
    recall.action("a", 2)
    recall.action("a", 10)
    recall.action("B", 1)

    assert refs(store) == ["B/1", "a/10", "a/2", "b/1"]


def test_closed_actions_are_left_out_of_the_open_ones(store: ActionStore, recall: RecordWriter) -> None:
    for seq, status in enumerate(["done", "failed", "abandoned"], 1):
        recall.action("a", seq, status=status)

    assert refs(store) == []
    assert refs(store, [ActionStatus.DONE, ActionStatus.ABANDONED]) == ["a/1", "a/3"]


def test_turns_and_outputs_are_not_taken_for_actions(store: ActionStore, recall: RecordWriter) -> None:
    recall.turn("a", 1, meta={"status": "started"})
    recall.output("a", "out-1", "content", meta={"status": "started"})

    assert refs(store) == []


def test_one_agent_may_be_asked_for(store: ActionStore, recall: RecordWriter) -> None:
    recall.action("a", 1)
    recall.action("ab", 1)

    assert refs(store, agent="a") == ["a/1"]
    assert refs(store, agent="nobody") == []
    assert refs(store, agent="a\x00\ud800") == []


def test_no_statuses_match_nothing(store: ActionStore, recall: RecordWriter) -> None:
    recall.action("a", 1)

    assert refs(store, []) == []


def test_beyond_the_limit_the_list_says_that_it_is_cut(store: ActionStore, recall: RecordWriter) -> None:
    for seq in (1, 2, 3):
        recall.action("a", seq)

    assert store.read_actions(OPEN, limit=2).is_truncated
    assert len(store.read_actions(OPEN, limit=2).readings) == 2
    assert not store.read_actions(OPEN, limit=3).is_truncated


def test_a_store_without_records_is_empty(store: ActionStore) -> None:
    read = store.read_actions(OPEN, limit=5)

    assert (read.readings, read.is_truncated) == ((), False)


@fenced
@pytest.mark.parametrize(
    ("lease", "status", "cls", "state"),
    [
        (None, "started", "external", ActionState.INTERRUPTED),
        ("expired", "started", "external", ActionState.INTERRUPTED),
        ("released", "started", "idempotent", ActionState.INTERRUPTED),
        ("live", "started", "external", ActionState.IN_FLIGHT),
        ("live", "started", "pure", ActionState.IN_FLIGHT),
        ("live", "started", "idempotent", ActionState.UNCLEAR),
        ("live", "unknown", "external", ActionState.UNKNOWN),
        (None, "unknown", "external", ActionState.UNKNOWN),
        ("live", "done", "external", ActionState.DONE),
    ],
)
def test_the_state_follows_from_status_and_lease(
    store: ActionStore, recall: RecordWriter, lease: str | None, status: str, cls: str, state: ActionState
) -> None:
    recall.action("a", 1, status=status, cls=cls)
    if lease:
        recall.lease("a", state=lease)  # type: ignore[arg-type]

    assert state_of_reading(store.get_action("a", 1)) is state


@fenced
def test_a_reading_carries_the_lease_of_its_own_agent(store: ActionStore, recall: RecordWriter) -> None:
    recall.action("a", 1)
    recall.action("b", 1)
    recall.lease("a", holder="pod-a", epoch=7, state="live", ttl=timedelta(minutes=30))
    recall.lease("b", holder="pod-b", epoch=2, state="released")

    a, b = store.read_actions(OPEN, limit=5).readings

    assert a.lease is not None
    assert (a.lease.agent, a.lease.holder, a.lease.epoch, a.lease.is_live) == ("a", "pod-a", 7, True)
    assert 1_500 < (a.lease.expires_at - a.read_at) / 1e9 <= 1_800
    assert b.lease is not None
    assert (b.lease.holder, b.lease.is_released, b.lease.expires_at) == ("pod-b", True, RELEASED)


@fenced
def test_all_readings_of_one_read_are_of_one_moment(store: ActionStore, recall: RecordWriter) -> None:
    recall.action("a", 1)
    recall.action("b", 1)
    recall.lease("b", state="live")

    a, b = store.read_actions(OPEN, limit=5).readings

    assert b.lease is not None
    assert a.read_at == b.read_at == b.lease.read_at


def test_an_unknown_number_is_not_found(store: ActionStore, recall: RecordWriter) -> None:
    recall.action("a", 1)

    for agent, seq in [("a", 2), ("nobody", 1), ("a\x00", 1), ("\ud800", 1), ("a", 10**30), ("a", -1)]:
        with pytest.raises(ActionNotFound) as caught:
            store.get_action(agent, seq)
        assert caught.value.ref == ActionRef("main", agent, seq)


def test_long_arguments_are_shortened_in_the_action_and_whole_in_their_output(store: ActionStore, recall: RecordWriter) -> None:
    args = {"body": "ä" * 20_000}
    ref = recall.action("a", 1, args=args)

    action = readable_action(store, ref)
    whole = json.dumps(args, sort_keys=True)
    assert (action.args_ref, action.args) == ("act-1-args", shortened(whole, "act-1-args"))
    output = store.read_outputs([("a", "act-1-args")])[("a", "act-1-args")]
    assert isinstance(output, Output)
    assert (output.content, output.tool, output.tokens) == (whole, "send_email", (len(whole) + 3) // 4)


def test_outputs_of_many_agents_come_in_one_read_and_missing_ones_are_left_out(store: ActionStore, recall: RecordWriter) -> None:
    recall.output("a", "out-1", "one")
    recall.output("b", "out-1", "two")
    recall.output("b", "out-2", "broken", body="{")

    found = store.read_outputs([("a", "out-1"), ("b", "out-1"), ("b", "out-2"), ("b", "gone"), ("c\x00", "x"), ("\ud800", "x")])

    assert {key: value.content for key, value in found.items() if isinstance(value, Output)} == {
        ("a", "out-1"): "one",
        ("b", "out-1"): "two",
    }
    broken = found[("b", "out-2")]
    assert isinstance(broken, Unreadable)
    assert broken.record_id == "b:out:out-2"
    assert len(found) == 3
    assert store.read_outputs([]) == {}


def test_arguments_of_a_mebibyte_are_read_whole(store: ActionStore, recall: RecordWriter) -> None:
    text = '{"blob": "' + "x" * (1024 * 1024 - 12) + '"}'
    ref = recall.action("a", 1, args=text)

    output = store.read_outputs([("a", readable_action(store, ref).args_ref)])[("a", "act-1-args")]

    assert isinstance(output, Output)
    assert output.content == text


@pytest.mark.parametrize(
    "args", ['{"a": "\\u0000"}', "\x00\x01", '{"a": "\\ud800"}', "not json", "", "[" * 9_000, '{"n": 1e400}', "\u202e\u2028<&>"]
)
def test_arguments_that_are_hard_to_keep_do_not_spoil_the_list(store: ActionStore, recall: RecordWriter, args: str) -> None:
    recall.action("a", 1, args=args)
    recall.action("b", 1)

    assert refs(store) == ["a/1", "b/1"]
    output = store.read_outputs([("a", "act-1-args")]).get(("a", "act-1-args"))
    action = readable_action(store, ActionRef("main", "a", 1))
    assert (output.content if isinstance(output, Output) else action.args) == args


def test_unknown_keys_are_ignored(store: ActionStore, recall: RecordWriter) -> None:
    ref = recall.action("a", 1, meta={"later": [1, 2.5, "x"]}, body={"later": [1.5, None]})

    assert readable_action(store, ref).tool == "send_email"


def test_null_and_missing_read_as_empty(store: ActionStore, recall: RecordWriter) -> None:
    ref = recall.action("a", 1, body={"result": None, "error": None, "started_at": None, "args": None})

    action = readable_action(store, ref)
    assert (action.result, action.error, action.args) == ("", "", "")
    assert action.started_at == parse_rfc3339("0001-01-01T00:00:00Z")
    assert not recall.body_of("a:act:1")["args"]
