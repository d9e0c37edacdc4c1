"""One bad record never takes the list down: it is named, and the rest is fine. Nothing is guessed, so nothing is written either."""

from __future__ import annotations

from typing import Any

import pytest

from actions.errors import RecordUnreadable
from actions.records import Action, ActionRef, ActionStatus, Turn, Unreadable, WorkingState
from actions.store.base import ActionStore
from actions.store.postgres import PostgresStore
from tests.recall_writer import RecallWriter, RecordWriter
from tests.store.conftest import fenced
from tests.store.gestures import decide, look_at_world

BROKEN: dict[str, dict[str, Any]] = {
    "a body that is not JSON": {"body": "{"},
    "an empty body": {"body": ""},
    "a body that is a list": {"body": "[]"},
    "a body that is a number": {"body": 7},
    "no body": {"drop": ("body",)},
    "a number that is a float": {"body": {"seq": 1.0}},
    "a number that is a text": {"body": {"seq": "1"}},
    "a number that is true": {"body": {"seq": True}},
    "another number in the body": {"body": {"seq": 2}},
    "a number of five thousand digits": {"body": '{"seq":' + "9" * 5000 + "}"},
    "a number beyond 64 bits": {"body": {"epoch": 2**63}},
    "no act": {"drop": ("act",)},
    "an act of another action": {"meta": {"act": "2"}},
    "an act that is a number": {"meta": {"act": 1}},
    "a status that the metadata deny": {"body": {"status": "done"}},
    "a status that nobody knows": {"meta": {"status": "started"}, "body": {"status": "paused"}},
    "a class that nobody knows": {"meta": {"class": "magic"}, "body": {"class": "magic"}},
    "a class that the metadata deny": {"body": {"class": "pure"}},
    "an agent that the id denies": {"meta": {"recall_agent": "b"}},
    "no agent": {"drop": ("recall_agent",)},
    "a time without a zone": {"body": {"started_at": "2026-11-29T18:29:12.4"}},
    "a time with a space": {"body": {"started_at": "2026-11-29 18:29:12Z"}},
    "an empty time": {"body": {"started_at": ""}},
    "a time that is a number": {"body": {"started_at": 1795983047}},
    "a day that does not exist": {"body": {"ended_at": "2026-02-30T00:00:00Z"}},
    "a time after the year 9999": {"body": {"started_at": "9999-12-31T23:59:59-01:00"}},
    "arguments that are an object": {"body": {"args": {"to": "ann"}}},
    "a tool that is a list": {"body": {"tool": ["send_email"]}},
    "a NaN": {"body": '{"seq":1,"x":NaN}'},
    "a number that is infinite": {"body": '{"seq":1,"x":1e999}'},
    "a nesting without end": {"body": "[" * 100_000},
    "an epoch in the metadata that is a text": {"meta": {"epoch": "1"}},
    "an epoch in the metadata that is half": {"meta": {"epoch": 1.5}},
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_action_is_listed_with_its_id_and_the_others_as_usual(
    store: ActionStore, recall: RecordWriter, kind: str
) -> None:
    recall.action("a", 1, **BROKEN[kind])
    recall.action("a", 2)

    read = store.read_actions([ActionStatus.STARTED, ActionStatus.UNKNOWN], limit=10)

    broken, fine = (reading.action for reading in read.readings)
    assert isinstance(broken, Unreadable)
    assert (broken.record_id, broken.agent, broken.seq) == ("a:act:1", "a", 1)
    assert broken.problem
    assert isinstance(fine, Action)
    assert store.get_action("a", 1).action == broken


@fenced
@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_action_cannot_be_settled(store: ActionStore, recall: RecordWriter, kind: str) -> None:
    ref = recall.action("a", 1, **BROKEN[kind])
    before = look_at_world(store, recall, "a")

    with pytest.raises(RecordUnreadable) as caught:
        decide(store, ref)

    assert caught.value.record_id == "a:act:1"
    assert look_at_world(store, recall, "a") == before


@fenced
def test_a_body_that_is_an_object_is_no_body(store: ActionStore, recall: RecordWriter) -> None:
    """polign_db keeps no objects in metadata."""
    ref = recall.action("a", 1, meta={"body": {"seq": 1}})

    (reading,) = store.read_actions([ActionStatus.STARTED], limit=10).readings

    assert isinstance(reading.action, Unreadable)
    with pytest.raises(RecordUnreadable):
        decide(store, ref)


def test_an_id_without_a_number_is_listed_too(store: ActionStore, recall: RecordWriter) -> None:
    recall.action("a", 1, record_id="a:act:first")

    (reading,) = store.read_actions([ActionStatus.STARTED], limit=10).readings

    assert isinstance(reading.action, Unreadable)
    assert (reading.action.record_id, reading.action.agent, reading.action.seq) == ("a:act:first", "a", None)


def test_a_broken_turn_stands_among_the_others(store: ActionStore, recall: RecordWriter) -> None:
    recall.turns("a", 3)
    recall.turn("a", 2, body="{")

    newest, broken, oldest = store.list_turns("a", limit=10)

    assert isinstance(newest, Turn)
    assert isinstance(oldest, Turn)
    assert isinstance(broken, Unreadable)
    assert (broken.record_id, broken.seq, newest.seq, oldest.seq) == ("a:turn:2", 2, 3, 1)


def test_a_turn_without_a_number_in_its_id_comes_last(store: ActionStore, recall: RecordWriter) -> None:
    recall.turns("a", 2)
    recall.turn("a", 3, record_id="a:turn:x")

    assert [turn.seq for turn in store.list_turns("a", limit=10)] == [2, 1, None]
    assert [turn.seq for turn in store.list_turns("a", limit=10, before=2)] == [1]


def test_a_broken_working_state_is_named(store: ActionStore, recall: RecordWriter) -> None:
    recall.working_state("a", body={"plan": "not a list"})

    state = store.find_working_state("a")

    assert isinstance(state, Unreadable)
    assert state.record_id == "a:ws:head"


def test_nothing_is_settled_beside_a_broken_working_state(store: ActionStore, recall: RecordWriter) -> None:
    """Recall believes the head's turn number: without it, nobody knows which turn is free."""
    ref = recall.action("a", 1)
    recall.working_state("a", body="{")
    before = look_at_world(store, recall, "a")

    with pytest.raises(RecordUnreadable, match="a:ws:head"):
        decide(store, ref)

    assert look_at_world(store, recall, "a") == before


def test_a_broken_pointer_stands_among_the_others(store: ActionStore, recall: RecordWriter) -> None:
    recall.pointer("a", "one", body={"fields": {"id": 1}})
    recall.pointer("a", "two")

    one, two = store.list_pointers("a")

    assert isinstance(one, Unreadable)
    assert not isinstance(two, Unreadable)


@pytest.mark.parametrize("text", ["[" * 5000 + "]" * 5000, "9" * 5000])
def test_metadata_that_python_cannot_decode_spoil_only_their_own_row(pg: tuple[PostgresStore, RecallWriter], text: str) -> None:
    store, recall = pg
    recall.action("a", 1)
    recall.action("a", 2)
    recall.turn("a", 1)
    recall.working_state("a")
    absurd = f'{{"absurd": {text}}}'
    recall.run("UPDATE {records} SET metadata = metadata || %s::jsonb WHERE id <> 'a:act:2'", [absurd])

    broken, fine = store.read_actions([ActionStatus.STARTED], limit=10).readings

    assert isinstance(broken.action, Unreadable)
    assert isinstance(fine.action, Action)
    assert isinstance(store.list_turns("a", limit=1)[0], Unreadable)
    assert isinstance(store.find_working_state("a"), Unreadable)
    with pytest.raises(RecordUnreadable):
        decide(store, ActionRef("main", "a", 1))


def test_metadata_that_are_no_object_are_nobodys_action(pg: tuple[PostgresStore, RecallWriter]) -> None:
    store, recall = pg
    for number, text in enumerate(["[]", "7", '"text"', "null", '[{"record": "action", "status": "started"}]']):
        recall.run("INSERT INTO {records} VALUES (%s, array_fill(0::real, ARRAY[256]), %s::jsonb)", [f"x:act:{number}", text])

    assert store.read_actions([ActionStatus.STARTED], limit=10).readings == ()
    assert isinstance(store.get_action("x", 1).action, Unreadable)


def test_a_readable_working_state_is_read_whole(store: ActionStore, recall: RecordWriter) -> None:
    recall.working_state("a", version=3, turn_seq=7, action_seq=2, plan=["look", "pay"], focus="pay", step=2)

    state = store.find_working_state("a")

    assert isinstance(state, WorkingState)
    assert (state.version, state.turn_seq, state.action_seq, state.plan, state.focus, state.step) == (
        3,
        7,
        2,
        ("look", "pay"),
        "pay",
        2,
    )
