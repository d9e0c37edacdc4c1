"""Digests, ends and turns: what binds a decision, and the words that the agent reads."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actions.digests import action_digest, canonical_json, claim_digest, decision_digest, sha256_text
from actions.errors import InvalidDecision
from actions.keys import action_key, is_agent_id
from actions.records import Action, ActionEnd, ActionRef, ActionStatus
from actions.settle import check_decision_id, make_end, one_time_holder
from actions.turns import BRIEF_BYTES, cut_bytes, settlement_turn, store_value
from tests.unit.strategies import actions, any_text, json_values, wild_text

REF = ActionRef("main", "a", 1)
END = ActionEnd(status=ActionStatus.DONE, reason="seen", resolution="operator ana: seen", result="ok")


@given(json_values)
def test_canonical_json_is_one_text_for_one_value(value: Any) -> None:
    text = canonical_json(value)

    assert text.isascii()
    assert canonical_json(json.loads(text)) == text
    assert text == canonical_json(_shuffled(value))


def test_canonical_json_refuses_what_json_does_not_have() -> None:
    for value in (float("nan"), float("inf"), {"x": -float("inf")}):
        with pytest.raises(ValueError, match="not JSON compliant|Out of range"):
            canonical_json(value)


@given(wild_text)
def test_any_text_has_a_digest(text: str) -> None:
    assert sha256_text(text) == hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@given(actions, wild_text)
def test_the_digest_covers_status_and_the_claim_does_not(action: Action, args: str) -> None:
    other = replace(action, status=ActionStatus.UNKNOWN if action.status is ActionStatus.STARTED else ActionStatus.STARTED)

    assert action_digest(action, args) != action_digest(other, args)
    assert claim_digest(action, args) == claim_digest(other, args)


@given(actions, st.sampled_from(["tool", "key", "epoch"]))
def test_both_digests_cover_what_was_shown(action: Action, name: str) -> None:
    value: Any = action.epoch + 1 if name == "epoch" else getattr(action, name) + "x"
    changed = replace(action, **{name: value})

    assert action_digest(action, "args") != action_digest(changed, "args")
    assert claim_digest(action, "args") != claim_digest(changed, "args")
    assert claim_digest(action, "args") != claim_digest(action, "args ")


@given(actions)
def test_what_the_next_resume_may_touch_is_not_covered(action: Action) -> None:
    changed = replace(action, written_epoch=action.written_epoch + 1, resolution="x", result="y", error="z", ended_at=None)

    assert action_digest(action, "args") == action_digest(changed, "args")


@pytest.mark.parametrize(
    ("ref", "end"),
    [
        (ActionRef("main", "b", 1), END),
        (ActionRef("main", "a", 2), END),
        (REF, replace(END, status=ActionStatus.FAILED)),
        (REF, replace(END, reason="other")),
        (REF, replace(END, resolution="operator ben: seen")),
        (REF, replace(END, result="no")),
        (REF, replace(END, error="no")),
    ],
)
def test_a_decision_id_stands_for_all_of_a_decision(ref: ActionRef, end: ActionEnd) -> None:
    assert decision_digest(ref, end) != decision_digest(REF, END)


def test_an_end_in_the_contracts_words() -> None:
    end = make_end(ActionStatus.FAILED, "  never\n arrived  ", actor="operator ana")

    assert end == ActionEnd(
        status=ActionStatus.FAILED, reason="never\n arrived", resolution="operator ana: never arrived", error="never\n arrived"
    )
    assert make_end(ActionStatus.FAILED, "bounced", actor="operator ana", error=" 550 ").error == "550"
    assert make_end(ActionStatus.DONE, "seen", actor="resolver sent-folder", result=" 7 ").result == " 7 "


@pytest.mark.parametrize("decision_id", ["abcdefgh", "a" * 64, "0123-4567-ABCD"])
def test_decision_ids_of_letters_digits_and_hyphens(decision_id: str) -> None:
    check_decision_id(decision_id)


@pytest.mark.parametrize(
    "decision_id", ["", "abcdefg", "a" * 65, "abc defgh", "abcdefgh\n", "äbcdefgh", "abcdefgh\x00", "１２３４５６７８"]
)
def test_other_decision_ids_are_refused(decision_id: str) -> None:
    with pytest.raises(InvalidDecision):
        check_decision_id(decision_id)


@given(wild_text)
def test_a_holder_is_used_once_and_holds_nothing_odd(actor: str) -> None:
    one, other = one_time_holder(actor), one_time_holder(actor)

    assert one != other
    assert one.isascii()
    assert one.startswith("console:")
    assert is_agent_id(one.replace(":", "."))


def test_the_key_is_recalls() -> None:
    assert action_key("support-agent-7", 4) == "214818cf26e0741859681c7b237f0bba"


# --- turns -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "is_moved"), [(0, False), (8000, False), (8001, True), (8004, True)])
def test_a_value_over_eight_thousand_bytes_moves(size: int, is_moved: bool) -> None:
    value = store_value("x" * size, "act-1-result")

    assert bool(value.ref) == is_moved
    assert (value.whole, value.text)[not is_moved] == "x" * size


@given(st.text("xü🎉", min_size=3000, max_size=3100))
def test_a_shortened_value_is_cut_at_a_character(text: str) -> None:
    value = store_value(text * 3, "ref")

    head, _, tail = value.text.partition("...\n")
    assert text.startswith(head)
    assert 397 <= len(head.encode()) <= 400
    assert tail == f"[... {(len((text * 3).encode()) + 3) // 4} more tokens stored as output ref]"


@given(st.sampled_from([ActionStatus.DONE, ActionStatus.FAILED, ActionStatus.ABANDONED]), any_text, any_text, any_text, any_text)
def test_a_brief_says_how_it_ended_and_fits(status: ActionStatus, reason: str, resolution: str, result: str, error: str) -> None:
    end = ActionEnd(status=status, reason=reason, resolution=resolution * 200, result=result, error=error)

    turn = settlement_turn(end, result)

    assert len(turn.brief.encode()) <= BRIEF_BYTES
    assert turn.brief.startswith(f"(settled after a crash: {status}; ")
    assert turn.content


@given(st.text(max_size=50), st.integers(0, 60))
def test_cutting_bytes_never_halves_a_character(text: str, limit: int) -> None:
    cut = cut_bytes(text, limit)

    assert text.startswith(cut)
    assert len(cut.encode()) <= limit
    assert cut == text or len(text[: len(cut) + 1].encode()) > limit


def _shuffled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shuffled(value[key]) for key in reversed(value)}
    if isinstance(value, list):
        return [_shuffled(item) for item in value]
    return value
