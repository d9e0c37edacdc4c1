"""What a settle plans: the next turn has a number that Recall can read, or nothing is planned."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actions.errors import RecordUnreadable
from actions.records import Action, ActionClass, ActionEnd, ActionStatus, NewEntry
from actions.store.closing import Closing, newest_turn, plan_closing
from actions.store.codec import MAX_INTEGER, decode_turn

HEAD = "a:ws:head"
ACTION = Action(
    agent="a",
    seq=1,
    tool="send_email",
    action_class=ActionClass.EXTERNAL,
    key="k",
    args="{}",
    status=ActionStatus.STARTED,
    epoch=1,
    written_epoch=1,
    started_at=0,
)


def head(turn_seq: object) -> tuple[str, object]:
    return HEAD, {"recall_agent": "a", "record": "working_state_head", "body": json.dumps({"turn_seq": turn_seq})}


def planned(newest: int, action: Action = ACTION, **more: Any) -> Closing:
    end = ActionEnd(status=ActionStatus.DONE, reason="seen", resolution="operator ana: seen", **more)
    new = NewEntry(kind="settled", actor="ana", agent="a", seq=1)
    return plan_closing(action, {"body": "{}"}, end, new, args=action.args, newest=newest, found=None, epoch=2, at=0)


@given(st.integers(0, MAX_INTEGER - 1), st.integers(0, MAX_INTEGER - 1))
def test_the_newest_turn_is_the_larger_claim_and_one_can_follow(stored: int, claimed: int) -> None:
    newest = newest_turn(stored, head(claimed))
    closing = planned(newest)

    assert newest == max(stored, claimed)
    assert closing.turn_seq == newest + 1 <= MAX_INTEGER
    record_id, metadata = next(iter(closing.inserted.items()))
    assert decode_turn(record_id, metadata).seq == closing.turn_seq


@given(st.integers(-(2**70), -1) | st.integers(MAX_INTEGER, 2**70), st.integers(0, 99))
def test_a_head_that_no_turn_can_follow_is_named(claimed: int, stored: int) -> None:
    with pytest.raises(RecordUnreadable) as refused:
        newest_turn(stored, head(claimed))

    assert refused.value.record_id == HEAD
    assert "turn" in refused.value.problem


@given(st.integers(MAX_INTEGER, 2**70))
def test_a_turn_that_none_can_follow_is_named(newest: int) -> None:
    with pytest.raises(RecordUnreadable) as refused:
        planned(newest)

    assert refused.value.record_id == f"a:turn:{newest}"
