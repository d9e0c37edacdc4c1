"""What one agent's page reads: lease, turns, actions, working state, pointers."""

from __future__ import annotations

from datetime import timedelta

import pytest

from actions.records import Action, Pointer, Turn
from actions.store.base import ActionStore
from actions.times import parse_rfc3339
from tests.recall_writer import RecordWriter
from tests.store.conftest import fenced


def test_every_field_of_a_turn_is_read(store: ActionStore, recall: RecordWriter) -> None:
    recall.turn(
        "a",
        4,
        '{"total": 42}',
        role="tool",
        name="lookup_order",
        brief="42",
        message_id="tool-call:c1",
        output_ref="out-4-1",
        at="2026-11-29T18:29:06.214013058Z",
    )

    assert store.list_turns("a", limit=5) == (
        Turn(
            agent="a",
            seq=4,
            role="tool",
            content='{"total": 42}',
            name="lookup_order",
            brief="42",
            message_id="tool-call:c1",
            output_ref="out-4-1",
            at=parse_rfc3339("2026-11-29T18:29:06.214013058Z"),
        ),
    )


def test_turns_come_newest_first_by_number_and_not_by_text(store: ActionStore, recall: RecordWriter) -> None:
    recall.turns("a", 12)

    assert [turn.seq for turn in store.list_turns("a", limit=4)] == [12, 11, 10, 9]
    assert [turn.seq for turn in store.list_turns("a", limit=3, before=10)] == [9, 8, 7]
    assert store.list_turns("a", limit=3, before=1) == ()
    assert len(store.list_turns("a", limit=99, before=10**30)) == 12


def test_turns_beyond_a_page_of_recall_are_read_on(store: ActionStore, recall: RecordWriter) -> None:
    recall.turns("a", 66)

    assert [turn.seq for turn in store.list_turns("a", limit=200)] == list(range(66, 0, -1))


def test_a_turn_whose_metadata_lack_the_number_keeps_its_place(store: ActionStore, recall: RecordWriter) -> None:
    """Recall itself never reads that key."""
    recall.turns("a", 3)
    recall.turn("a", 2, drop=("seq",))

    assert [turn.seq for turn in store.list_turns("a", limit=5)] == [3, 2, 1]


def test_an_agents_actions_of_any_status_come_newest_first(store: ActionStore, recall: RecordWriter) -> None:
    for seq in range(1, 12):
        recall.action("a", seq, status="done" if seq % 2 else "started")
    recall.action("b", 12)

    readings = store.list_agent_actions("a", limit=3)

    assert [reading.action.seq for reading in readings] == [11, 10, 9]
    assert [reading.action.seq for reading in store.list_agent_actions("a", limit=2, before=10)] == [9, 8]
    assert isinstance(readings[0].action, Action)


@fenced
def test_each_of_an_agents_actions_comes_with_its_lease(store: ActionStore, recall: RecordWriter) -> None:
    recall.action("a", 1)
    recall.action("a", 2, status="done")
    recall.lease("a", epoch=3, state="live")

    assert [reading.lease and reading.lease.epoch for reading in store.list_agent_actions("a", limit=3)] == [3, 3]


def test_pointers_come_by_name_without_those_removed(store: ActionStore, recall: RecordWriter) -> None:
    recall.pointer("a", "repo", type="git_ref", fields={"sha": "abc"}, note="the fix")
    recall.pointer("a", "gone", removed=True)
    recall.pointer("a", "branch")
    recall.pointer("b", "other")

    branch, repo = store.list_pointers("a")

    assert isinstance(branch, Pointer)
    assert isinstance(repo, Pointer)
    assert (branch.name, repo.name, repo.type, dict(repo.fields), repo.note) == (
        "branch",
        "repo",
        "git_ref",
        {"sha": "abc"},
        "the fix",
    )
    assert len(store.list_pointers("a", limit=1)) == 1


def test_removed_pointers_do_not_use_up_the_limit(store: ActionStore, recall: RecordWriter) -> None:
    recall.pointer("a", "a-gone", removed=True)
    recall.pointer("a", "b-here")

    assert len(store.list_pointers("a", limit=1)) == 1


def test_an_agent_that_was_never_leased_has_no_lease(store: ActionStore, recall: RecordWriter) -> None:
    recall.action("a", 1)

    assert store.find_lease("a") is None


@fenced
def test_a_lease_is_read_without_any_record(store: ActionStore, recall: RecordWriter) -> None:
    recall.lease("a", holder="pod-a", epoch=4, state="live", ttl=timedelta(minutes=5))

    lease = store.find_lease("a")

    assert lease is not None
    assert (lease.agent, lease.holder, lease.epoch, lease.is_live, lease.is_released) == ("a", "pod-a", 4, True, False)


def test_reading_a_lease_takes_no_lock(store: ActionStore, recall: RecordWriter) -> None:
    recall.lease("a", holder="pod-a", epoch=4, state="live")
    store.find_lease("a")
    store.read_watch()

    assert recall.lease_of("a") == ("pod-a", 4, "live")


@pytest.mark.parametrize("agent", ["nobody", "", "a:b", "a\x00", "\ud800", "x" * 5000])
def test_an_agent_that_is_not_there_has_nothing(store: ActionStore, recall: RecordWriter, agent: str) -> None:
    recall.action("a", 1)

    assert store.find_lease(agent) is None
    assert store.list_turns(agent, limit=5) == ()
    assert store.list_agent_actions(agent, limit=5) == ()
    assert store.find_working_state(agent) is None
    assert store.list_pointers(agent) == ()
