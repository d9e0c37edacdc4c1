"""What may be claimed about an action, and which ends may be written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actions.errors import InvalidDecision
from actions.records import OPEN_STATES, Action, ActionClass, ActionEnd, ActionState, ActionStatus, Lease, Reading, Unreadable
from actions.rules import check_end, check_end_for, check_text, has_visible_text, state_of, state_of_reading
from tests.unit.strategies import actions, any_text

leases = st.none() | st.builds(
    Lease,
    agent=st.just("a"),
    holder=st.just("pod"),
    epoch=st.integers(1, 99),
    expires_at=st.sampled_from([0, 90, 110]),
    read_at=st.just(100),
)


def an_end(status: ActionStatus = ActionStatus.DONE, reason: str = "seen", result: str = "", error: str = "") -> ActionEnd:
    return ActionEnd(status=status, reason=reason, resolution="operator ana: seen", result=result, error=error)


@given(actions, leases)
def test_every_action_has_exactly_one_state_and_it_is_open_as_its_status_is(action: Action, lease: Lease | None) -> None:
    state = state_of(action, lease)

    assert (state in OPEN_STATES) == action.is_open
    if not action.is_open:
        assert state.value == action.status.value
    elif action.status is ActionStatus.UNKNOWN:
        assert state is ActionState.UNKNOWN
    elif lease is None or not lease.is_live:
        assert state is ActionState.INTERRUPTED
    else:
        assert state is (ActionState.UNCLEAR if action.action_class is ActionClass.IDEMPOTENT else ActionState.IN_FLIGHT)


@given(actions, leases)
def test_without_leases_nobody_can_tell_in_flight_from_interrupted(action: Action, lease: Lease | None) -> None:
    state = state_of(action, lease, leases_known=False)

    assert state not in (ActionState.IN_FLIGHT, ActionState.INTERRUPTED)
    if action.status is ActionStatus.STARTED:
        assert state is ActionState.UNCLEAR


def test_a_lease_that_ends_now_has_ended() -> None:
    lease = Lease(agent="a", holder="pod", epoch=1, expires_at=100, read_at=100)

    assert not lease.is_live
    assert not lease.is_released


def test_an_unreadable_record_has_a_state_of_its_own() -> None:
    reading = Reading(action=Unreadable(record_id="a:act:1", agent="a", seq=1, problem="x"), lease=None, read_at=0)

    assert state_of_reading(reading) is ActionState.UNREADABLE


@pytest.mark.parametrize("status", [ActionStatus.DONE, ActionStatus.FAILED, ActionStatus.ABANDONED])
def test_an_end_with_a_reason_is_enough(status: ActionStatus) -> None:
    check_end(an_end(status))


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (an_end(ActionStatus.UNKNOWN), "choose done, failed or abandoned"),
        (an_end(ActionStatus.STARTED), "choose done, failed or abandoned"),
        (an_end(reason=""), "a reason is required"),
        (an_end(reason=" \t\n"), "a reason is required"),
        (an_end(reason="x" * 2001), "2001 characters"),
        (an_end(ActionStatus.FAILED, result="x"), "goes with done only"),
        (an_end(ActionStatus.ABANDONED, result="x"), "goes with done only"),
        (an_end(error="x"), "goes with failed only"),
        (an_end(ActionStatus.FAILED, error="x" * 8001), "8001 characters"),
        (an_end(result="x" * (2**20 + 1)), "1048577 bytes"),
        (an_end(result="ü" * (2**19 + 1)), "1048578 bytes"),
        (an_end(reason="a\x00"), "the reason contains a NUL"),
        (an_end(result="\udc00"), "the result contains half a surrogate"),
        (an_end(ActionStatus.FAILED, error="\ud800"), "the error contains half a surrogate"),
    ],
)
def test_an_end_that_breaks_a_rule_names_it(end: ActionEnd, words: str) -> None:
    with pytest.raises(InvalidDecision, match=words):
        check_end(end)


def test_the_limits_themselves_are_allowed() -> None:
    check_end(an_end(reason="x" * 2000, result="x" * 2**20))
    check_end(an_end(ActionStatus.FAILED, error="x" * 8000))


invisible = st.text(
    st.characters(categories=["Zs", "Zl", "Zp", "Cc", "Cf", "Co", "Mn", "Me"])
    | st.sampled_from("\u200b\u2060\u00ad\u115f\u1160\u2800\u3164\uffa0\ufe0f\u034f")
    | st.integers(0xE0001, 0xE007F).map(chr),
    max_size=30,
)


@given(invisible)
def test_a_reason_that_nobody_can_see_is_no_reason(reason: str) -> None:
    assert not has_visible_text(reason)
    with pytest.raises(InvalidDecision, match="a reason is required"):
        check_end(an_end(reason=reason))


@given(invisible, st.sampled_from("a7.✓€é中ع🎉-"), invisible)
def test_one_character_that_can_be_seen_is_enough(before: str, char: str, after: str) -> None:
    assert has_visible_text(before + char + after)


@given(any_text.filter(lambda text: "\x00" not in text))
def test_any_text_of_characters_is_allowed(text: str) -> None:
    check_text("reason", text)


@given(actions, st.sampled_from([ActionStatus.DONE, ActionStatus.FAILED, ActionStatus.ABANDONED]))
def test_only_a_pure_action_is_bound_to_abandoned(action: Action, status: ActionStatus) -> None:
    end = an_end(status)
    if action.action_class is ActionClass.PURE and status is not ActionStatus.ABANDONED:
        with pytest.raises(InvalidDecision, match="pure"):
            check_end_for(action, end)
    else:
        check_end_for(action, end)
