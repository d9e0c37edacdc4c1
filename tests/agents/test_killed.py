"""Agents of ours killed with SIGKILL inside a tool, on PostgreSQL; and handed over to recall-langgraph and back on the same records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from actions.keys import action_key
from actions.records import ActionStatus
from actions.store import open_store
from actions.store.base import ActionStore
from tests.agents.lives import OURS, RECALLS, Life
from tests.agents.records import actions_of, turns_of


@pytest.fixture
def life(pg_url: str, tmp_path: Path) -> Life:
    return Life(pg_url, "mail-1", tmp_path)


@pytest.fixture
def store(pg_url: str) -> Iterator[ActionStore]:
    opened = open_store(pg_url, name="main")
    yield opened
    opened.close()


def test_a_script_killed_after_each_effect_saves_one_invoice_and_sends_one_email(life: Life, store: ActionStore) -> None:
    life.die(OURS, "--plain", "--dies", "save_invoice")
    life.die(OURS, "--plain", "--dies", "send_email")
    unsure = life.carry_on(OURS, "--plain")
    sure = life.carry_on(OURS, "--plain", "--resolver")

    assert unsure["calls"] == sure["calls"] == []
    assert set(life.keys("save_invoice")) == {action_key("mail-1", 1)}
    assert life.keys() == [action_key("mail-1", 2)]
    assert unsure["open"] == [2]
    assert "send_email (external, unknown)" in unsure["still_open"]
    assert sure["open"] == []
    assert [(action.status, action.resolution) for action in actions_of(store, "mail-1")] == [
        (ActionStatus.DONE, "re-run with the same key after a crash"),
        (ActionStatus.DONE, "found in the Sent folder"),
    ]


@pytest.mark.interop
def test_what_recall_langgraph_left_open_ours_settles_and_recall_langgraph_reads(life: Life, store: ActionStore) -> None:
    life.die(RECALLS, "--dies")
    ours = life.carry_on(OURS, "--resolver")
    theirs = life.carry_on(RECALLS)

    told = "(settled after a crash: done; found in the Sent folder) sent"
    assert told in ours["briefing"]
    assert told in theirs["briefing"]
    assert ours["calls"] == theirs["calls"] == ours["open"] == theirs["open"] == []
    assert life.keys() == [action_key("mail-1", 1)]


@pytest.mark.interop
def test_what_ours_left_open_recall_langgraph_does_not_repeat_and_each_reads_the_others_turns(
    life: Life, store: ActionStore
) -> None:
    life.die(OURS, "--dies")
    theirs = life.carry_on(RECALLS)
    ours = life.carry_on(OURS, "--resolver")

    assert (theirs["calls"], theirs["open"]) == ([], [1])
    assert "send_email(to=" in theirs["briefing"]  # the message that our hook recorded before the call was run
    assert (ours["calls"], ours["open"]) == ([], [])
    assert life.keys() == [action_key("mail-1", 1)]
    turns = turns_of(store, "mail-1")
    assert [turn.seq for turn in turns] == list(range(1, len(turns) + 1))
    assert [turn.content for turn in turns if turn.role == "tool"] == ["sent"]
