"""What may be said of what was found: each rule of a verdict on its own, and no way around any of them."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actions.records import ActionStatus
from actions.resolvers.base import Canary, Effect, Match, MatchedBy, Reply
from actions.resolvers.verdict import (
    Circumstances,
    Fence,
    Grade,
    Negative,
    Outcome,
    fence_of,
    judge,
    last_possible_effect,
)
from actions.times import SECOND
from tests.resolvers.makers import (
    BEGAN,
    HOUR,
    LONG_AFTER,
    WINDOWS,
    make_action,
    make_circumstances,
    make_claim,
    make_finding,
    make_lease,
    make_match,
    released,
    weigh,
)

# --- done ------------------------------------------------------------------------------------------------------------


def test_our_key_and_agreeing_fields_are_done() -> None:
    verdict = weigh(make_finding(make_match()))

    assert (verdict.outcome, verdict.grade, verdict.may_settle_alone) == (Outcome.DONE, Grade.EXACT, True)
    assert verdict.check_again_at is None
    assert verdict.resolution == "found by our key; the fields agree (pay_1)"
    assert [(row.name, row.agrees) for row in verdict.evidence.fields] == [
        ("recipient", True),
        ("amount", True),
        ("currency", True),
        ("reference", True),
    ]


@pytest.mark.parametrize(
    "difference",
    [
        {"amount": Decimal("120.01")},
        {"amount": Decimal("12000")},
        {"currency": "USD"},
        {"recipients": ("ACME Ltd",)},
        {"recipients": ("ACME GmbH", "somebody else")},
        {"reference": "R-8"},
    ],
    ids=str,
)
def test_our_key_with_a_field_that_differs_is_a_conflict_and_settles_nothing(difference: dict[str, Any]) -> None:
    verdict = weigh(make_finding(make_match(**difference)), accepts_strong=True)

    assert (verdict.outcome, verdict.grade, verdict.may_settle_alone) == (Outcome.UNKNOWN, Grade.CONFLICT, False)
    assert [row.name for row in verdict.evidence.fields if row.agrees is False] == [next(iter(difference)).removesuffix("s")]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"at": BEGAN - HOUR}, "before the call began"),
        ({"effect": Effect.UNDONE}, "cancelled or taken back"),
    ],
)
def test_an_older_object_and_one_taken_back_are_conflicts(change: dict[str, Any], says: str) -> None:
    verdict = weigh(make_finding(make_match(**change)), accepts_strong=True)

    assert (verdict.outcome, verdict.grade) == (Outcome.UNKNOWN, Grade.CONFLICT)
    assert says in verdict.resolution


def test_a_conflict_beside_an_exact_match_still_needs_a_person() -> None:
    verdict = weigh(
        make_finding(make_match(), make_match(object_id="pay_1", amount=Decimal(1))), copies_are_normal=True, accepts_strong=True
    )

    assert (verdict.outcome, verdict.grade) == (Outcome.UNKNOWN, Grade.CONFLICT)


def test_two_objects_with_our_key_are_a_conflict_unless_copies_are_normal() -> None:
    twice = make_finding(make_match(), make_match(object_id="pay_2"))

    assert weigh(twice).grade is Grade.CONFLICT
    assert weigh(twice).outcome is Outcome.UNKNOWN
    assert weigh(twice, copies_are_normal=True).outcome is Outcome.DONE


def test_what_is_not_finished_is_asked_again() -> None:
    verdict = weigh(make_finding(make_match(effect=Effect.PENDING)))

    assert (verdict.outcome, verdict.may_settle_alone) == (Outcome.UNKNOWN, False)
    assert verdict.check_again_at is not None
    assert "not finished yet" in verdict.resolution


def test_a_key_that_stands_alone_is_only_strong() -> None:
    bare = make_match(recipients=(), amount=None, currency="", reference="")

    assert (weigh(make_finding(bare)).outcome, weigh(make_finding(bare)).grade) == (Outcome.UNKNOWN, Grade.STRONG)


def test_a_key_is_exact_where_the_call_itself_tells_nothing_to_compare() -> None:
    bare = make_match(recipients=(), amount=None, currency="", reference="")

    assert weigh(make_finding(bare), make_claim(args={"service": "api"})).grade is Grade.EXACT


@pytest.mark.parametrize("by", [MatchedBy.PROVIDER_ID, MatchedBy.OWN_WORD])
def test_a_strong_match_is_done_only_where_the_policy_accepts_it_and_never_settles_alone(by: MatchedBy) -> None:
    finding = make_finding(make_match(by=by))

    assert (weigh(finding).outcome, weigh(finding).grade) == (Outcome.UNKNOWN, Grade.STRONG)
    accepted = weigh(finding, accepts_strong=True)
    assert (accepted.outcome, accepted.may_settle_alone) == (Outcome.DONE, False)


def test_a_look_alike_is_shown_and_settles_nothing() -> None:
    verdict = weigh(make_finding(make_match(by=MatchedBy.FIELDS)), accepts_strong=True)

    assert (verdict.outcome, verdict.grade) == (Outcome.UNKNOWN, Grade.WEAK)
    assert verdict.evidence.matched_ids == ("pay_1",)
    assert not verdict.evidence.is_negative


# --- failed ----------------------------------------------------------------------------------------------------------


def test_absence_is_proved_by_a_second_negative_a_window_later() -> None:
    verdict = weigh()

    assert (verdict.outcome, verdict.grade, verdict.check_again_at) == (Outcome.FAILED, None, None)
    assert not verdict.may_settle_alone
    assert verdict.evidence.is_negative


ABSENCE_LACKS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]] = {
    # what lacks: changes of judge's arguments, of the finding, of the circumstances; what is said
    "authority": ({"proves_absence": False}, {}, {}, "does not prove absence"),
    "canary missing": ({}, {"canary": Canary.MISSING}, {}, "the canary is missing too"),
    "canary not asked": ({}, {"canary": Canary.NOT_ASKED}, {}, "no canary was looked for"),
    "whole answer": ({}, {"is_complete": False}, {}, "not everything could be looked at"),
    "retention": ({}, {"asked_at": BEGAN + 31 * 24 * HOUR}, {}, "keeps nothing that old"),
    "fence": ({}, {}, {"lease": make_lease(expires_at=LONG_AFTER + HOUR)}, "its process may still be at it"),
    "known leases": ({}, {}, {"leases_known": False, "lease": None}, "leases cannot be read"),
    "known end of a released lease": ({}, {}, {"lease": released()}, "since when its process is gone is not known"),
    "window": ({}, {"asked_at": BEGAN + 300 * SECOND + HOUR}, {"negatives": ()}, "it can still turn up"),
    "first negative": ({}, {}, {"negatives": ()}, "asked a second time"),
    "pause": ({}, {}, {"negatives": (Negative(asked_at=LONG_AFTER - HOUR + 1),)}, "a window later"),
    "negative after the last effect": ({}, {}, {"negatives": (Negative(asked_at=BEGAN + 299 * SECOND),)}, "asked a second time"),
}


@pytest.mark.parametrize("lacking", ABSENCE_LACKS)
def test_absence_is_not_proved_where_one_condition_lacks(lacking: str) -> None:
    arguments, finding, circumstances, says = ABSENCE_LACKS[lacking]

    verdict = weigh(make_finding(**finding), circumstances=make_circumstances(**circumstances), **arguments)

    assert (verdict.outcome, verdict.grade) == (Outcome.UNKNOWN, None)
    assert says in verdict.resolution


def test_a_released_lease_counts_from_when_it_was_first_seen_gone() -> None:
    late = make_circumstances(lease=released(), lost_at=LONG_AFTER - 2 * HOUR - SECOND)
    too_late = make_circumstances(lease=released(), lost_at=LONG_AFTER - HOUR)

    assert weigh(circumstances=late).outcome is Outcome.FAILED
    assert weigh(circumstances=too_late).outcome is Outcome.UNKNOWN


# --- no answer -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reply", [Reply.NO_ANSWER, Reply.UNUSABLE])
def test_no_answer_is_never_a_no(reply: Reply) -> None:
    verdict = weigh(make_finding(reply=reply, problem="429 Too Many Requests"))

    assert verdict.outcome is Outcome.UNKNOWN
    assert not verdict.evidence.is_negative
    assert verdict.check_again_at is not None
    assert "429 Too Many Requests" in verdict.resolution


def test_a_provider_that_asks_for_time_gets_it() -> None:
    verdict = weigh(make_finding(reply=Reply.NO_ANSWER, problem="429", retry_after_s=7_200))

    assert verdict.check_again_at is not None
    assert verdict.check_again_at >= LONG_AFTER + 2 * HOUR


def test_the_pause_grows_with_every_miss_up_to_an_hour() -> None:
    def pause(misses: int) -> int:
        verdict = weigh(
            make_finding(reply=Reply.NO_ANSWER, problem="slow"),
            circumstances=make_circumstances(misses=misses, first_asked_at=None),
        )
        assert verdict.check_again_at is not None
        return (verdict.check_again_at - LONG_AFTER) // SECOND

    assert [pause(misses) for misses in (0, 1, 2, 50)] == [60, 120, 240, 3_600]


def test_after_the_tools_limit_it_is_not_asked_again_and_stays_open() -> None:
    verdict = weigh(
        make_finding(reply=Reply.NO_ANSWER, problem="slow"),
        circumstances=make_circumstances(first_asked_at=LONG_AFTER - 3 * 24 * HOUR),
    )

    assert (verdict.outcome, verdict.check_again_at, verdict.has_given_up) == (Outcome.UNKNOWN, None, True)


def test_a_negative_is_asked_again_as_soon_as_it_can_count() -> None:
    asked = BEGAN + 600 * SECOND
    verdict = weigh(make_finding(asked_at=asked), circumstances=make_circumstances(negatives=(), first_asked_at=None))

    assert verdict.check_again_at is not None
    assert verdict.check_again_at > BEGAN + 300 * SECOND + HOUR


# --- fences ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "lease", "first_holder", "fence"),
    [
        (ActionStatus.STARTED, make_lease(), "host:1:aa", Fence.EXPIRED),
        (ActionStatus.STARTED, make_lease(expires_at=LONG_AFTER + HOUR), "host:1:aa", Fence.HELD),
        (ActionStatus.STARTED, make_lease(expires_at=LONG_AFTER + HOUR), "", Fence.HELD),
        (ActionStatus.STARTED, make_lease(expires_at=LONG_AFTER + HOUR), "host:2:bb", Fence.FENCED),
        (ActionStatus.STARTED, released(), "host:1:aa", Fence.FENCED),
        (ActionStatus.STARTED, None, "host:1:aa", Fence.FENCED),
        (ActionStatus.UNKNOWN, make_lease(expires_at=LONG_AFTER + HOUR), "host:1:aa", Fence.FENCED),
    ],
)
def test_who_is_fenced(status: ActionStatus, lease: Any, first_holder: str, fence: Fence) -> None:
    assert fence_of(make_action(status=status), lease, first_holder=first_holder) is fence
    assert fence_of(make_action(status=status), lease, first_holder=first_holder, leases_known=False) is Fence.UNKNOWN


def test_nothing_is_known_of_the_end_of_a_lease_that_lives() -> None:
    circumstances = make_circumstances(lease=make_lease(expires_at=LONG_AFTER + HOUR), lost_at=BEGAN)

    assert last_possible_effect(make_action(), circumstances, WINDOWS) is None


# --- no way around ---------------------------------------------------------------------------------------------------

instants = st.integers(BEGAN - HOUR, BEGAN + 40 * 24 * HOUR)
matches = st.builds(
    Match,
    object_id=st.sampled_from(["a", "b"]),
    by=st.sampled_from(MatchedBy),
    effect=st.sampled_from(Effect),
    recipients=st.sampled_from([(), ("ACME GmbH",), ("x",)]),
    amount=st.sampled_from([None, Decimal(120), Decimal(1)]),
    currency=st.sampled_from(["", "EUR", "USD"]),
    reference=st.sampled_from(["", "R-7", "R-8"]),
    at=st.none() | instants,
)
leases = st.none() | st.builds(
    make_lease, expires_at=st.just(0) | instants, read_at=instants, holder=st.sampled_from(["host:1:aa", "host:2:bb"])
)


@given(
    reply=st.sampled_from(Reply),
    found=st.lists(matches, max_size=2),
    canary=st.sampled_from(Canary),
    is_complete=st.booleans(),
    asked_at=instants,
    lease=leases,
    leases_known=st.booleans(),
    first_holder=st.sampled_from(["", "host:1:aa"]),
    lost_at=st.none() | instants,
    negatives=st.lists(instants, max_size=3),
    status=st.sampled_from([ActionStatus.STARTED, ActionStatus.UNKNOWN]),
    proves_absence=st.booleans(),
    copies_are_normal=st.booleans(),
    accepts_strong=st.booleans(),
    jitter=st.floats(0, 1),
)
def test_no_path_leads_to_a_wrong_answer(
    reply: Reply,
    found: list[Match],
    canary: Canary,
    is_complete: bool,
    asked_at: int,
    lease: Any,
    leases_known: bool,
    first_holder: str,
    lost_at: int | None,
    negatives: list[int],
    status: ActionStatus,
    proves_absence: bool,
    copies_are_normal: bool,
    accepts_strong: bool,
    jitter: float,
) -> None:
    """Written from the text of the rules, not from the code of `judge`."""
    claim = make_claim(status=status)
    verdict = judge(
        make_finding(*found, reply=reply, canary=canary, is_complete=is_complete, asked_at=asked_at),
        claim,
        circumstances=Circumstances(
            lease=lease,
            leases_known=leases_known,
            first_holder=first_holder,
            lost_at=lost_at,
            negatives=tuple(Negative(asked_at=at) for at in negatives),
        ),
        windows=WINDOWS,
        proves_absence=proves_absence,
        copies_are_normal=copies_are_normal,
        accepts_strong=accepts_strong,
        jitter=jitter,
    )

    if reply is not Reply.ANSWERED:
        assert verdict.outcome is Outcome.UNKNOWN
    if verdict.outcome is Outcome.FAILED:
        window, tool_over = WINDOWS.settle_window_s * SECOND, BEGAN + WINDOWS.tool_timeout_s * SECOND
        assert proves_absence
        assert not found
        assert canary is Canary.FOUND
        assert is_complete
        assert asked_at < BEGAN + WINDOWS.retention_s * SECOND
        assert leases_known
        assert asked_at > tool_over + window
        assert any(tool_over < at <= asked_at - window for at in negatives)
        is_fenced = status is ActionStatus.UNKNOWN or lease is None or lease.expires_at == 0
        is_fenced = is_fenced or (first_holder and lease.holder != first_holder) or lease.expires_at <= lease.read_at
        assert is_fenced
        assert not verdict.may_settle_alone
    if verdict.outcome is Outcome.DONE:
        certain = [match for match in found if match.by is not MatchedBy.FIELDS and match.effect is Effect.HAPPENED]
        assert certain
        for match in found:
            if match.by is MatchedBy.FIELDS:
                continue
            assert match.amount in (None, Decimal(120))
            assert match.currency in ("", "EUR")
            assert match.recipients in ((), ("ACME GmbH",))
            assert match.reference in ("", "R-7")
        if not accepts_strong:
            assert any(match.by is MatchedBy.KEY for match in certain)
    if verdict.may_settle_alone:
        assert any(match.by is MatchedBy.KEY and match.effect is Effect.HAPPENED for match in found)
    if verdict.outcome is Outcome.UNKNOWN and not verdict.has_given_up:
        assert verdict.check_again_at is not None
        assert verdict.check_again_at > asked_at
    else:
        assert verdict.check_again_at is None


@given(jitter=st.floats(-5, 5))
def test_jitter_only_ever_makes_it_later(jitter: float) -> None:
    finding = make_finding(reply=Reply.NO_ANSWER, problem="slow")

    plain, spread = weigh(finding), weigh(finding, jitter=jitter)

    assert plain.check_again_at is not None
    assert spread.check_again_at is not None
    assert plain.check_again_at <= spread.check_again_at <= plain.check_again_at + 20 * SECOND
    assert replace(plain, check_again_at=None) == replace(spread, check_again_at=None)
