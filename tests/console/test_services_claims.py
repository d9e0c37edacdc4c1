"""Claims: one person at an action at a time, said to the others and binding nobody; handed on with a note."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import Http404
from django.utils import timezone

from actions.errors import InvalidDecision, InvalidQuery
from actions.records import ActionRef
from console.models import Change, Claim, HandOver
from console.services.answers import AnswerKind
from console.services.claimed import claims_of, find_claim, live_claims, refs_claimed, renew
from console.services.claims import (
    ClaimKind,
    claim,
    claim_all,
    dismiss,
    hand_over,
    receivers_for,
    release,
    take_over,
    undismissed,
)
from console.services.decide import decide
from console.services.deliver import deliver
from tests.console.conftest import Cast
from tests.console.test_services_races import a_request, together
from tests.recall_writer import RecordWriter

pytestmark = pytest.mark.django_db(transaction=True)
ROUNDS = 6


def live(ref: ActionRef) -> list[str]:
    return [one.username for one in Claim.objects.filter(agent=ref.agent, seq=ref.seq, ended_at=None)]


def expire(ref: ActionRef) -> None:
    Claim.objects.filter(agent=ref.agent, seq=ref.seq).update(expires_at=timezone.now() - timedelta(seconds=1))


def test_a_claim_is_ones_own_until_given_back_and_others_are_told_whose(memory: RecordWriter, ana: User, bea: User) -> None:
    ref = memory.action("billing-7", 1)

    assert claim(ref, by=ana).kind is ClaimKind.CLAIMED
    number = Change.objects.get(store="main").number
    assert claim(ref, by=ana).kind is ClaimKind.MINE
    refused = claim(ref, by=bea)

    assert (refused.kind, refused.detail) == (ClaimKind.TAKEN, "ana has claimed it")
    assert release(ref, by=bea).kind is ClaimKind.NOT_MINE
    assert live(ref) == ["ana"]
    assert Change.objects.get(store="main").number == number  # nothing of this is news for a screen
    assert release(ref, by=ana).kind is ClaimKind.RELEASED
    assert Change.objects.get(store="main").number == number + 1
    assert (claim(ref, by=bea).kind, live(ref)) == (ClaimKind.CLAIMED, ["bea"])


def test_taking_over_is_recorded_with_both_names_and_needs_the_right_one(
    memory: RecordWriter, ana: User, bea: User, person: Cast
) -> None:
    ref = memory.action("billing-7", 1)
    claim(ref, by=ana)

    assert take_over(ref, whose="somebody", by=bea).kind is ClaimKind.TAKEN
    assert live(ref) == ["ana"]
    taken = take_over(ref, whose="ana", by=bea)

    assert taken.kind is ClaimKind.CLAIMED
    assert live(ref) == ["bea"]
    before, after = Claim.objects.order_by("pk")
    assert (before.username, before.ended, before.ended_by) == ("ana", "taken_over", "bea")
    assert (after.username, after.taken_from, after.ended) == ("bea", "ana", "")
    assert take_over(ref, whose="ana", by=person("eve", "operator")).claim == after  # too late: it is bea's now


def test_what_nobody_works_on_is_free_after_its_time_and_work_keeps_it(memory: RecordWriter, ana: User, bea: User) -> None:
    ref, other = memory.action("billing-7", 1), memory.action("billing-7", 2)
    claim(ref, by=ana)
    claim(other, by=ana)
    soon = timezone.now() + timedelta(minutes=5)
    Claim.objects.update(expires_at=soon)
    renew(ref, by=ana)
    renew(other, by=bea)  # somebody else's work keeps nothing

    assert Claim.objects.get(seq=1).expires_at > soon
    assert Claim.objects.get(seq=2).expires_at == soon
    expire(ref)
    renew(ref, by=ana)  # too late
    assert find_claim(ref) is None
    assert claim(ref, by=bea).kind is ClaimKind.CLAIMED
    assert Claim.objects.get(username="ana", seq=1).ended == "timed_out"


def test_a_claim_keeps_nobody_from_deciding_and_ends_with_the_action(records: RecordWriter, ana: User, bea: User) -> None:
    ref = records.action("billing-7", 1)
    claim(ref, by=ana)

    assert decide(ref, a_request(), by=bea).kind is AnswerKind.WRITTEN

    assert live(ref) == []
    assert Claim.objects.get().ended == "closed"
    assert claim(ref, by=ana).kind is ClaimKind.CLOSED


def test_a_claim_ends_when_its_agent_ended_the_action_itself(memory: RecordWriter, ana: User) -> None:
    memory.lease("billing-7", state="live")
    ref = memory.action("billing-7", 1)
    claim(ref, by=ana)
    waiting = decide(ref, a_request("failed"), by=ana).decision
    assert waiting is not None
    assert live(ref) == ["ana"]
    memory.action("billing-7", 1, status="done")

    deliver(waiting.pk)

    assert live(ref) == []


def test_who_may_not_settle_claims_nothing(memory: RecordWriter, ben: User, cyd: User, dot: User) -> None:
    ref = memory.action("billing-7", 1)
    with pytest.raises(PermissionDenied):
        claim(ref, by=ben)
    for stranger in (cyd, dot):
        with pytest.raises(Http404):
            claim(ref, by=stranger)
    assert not Claim.objects.exists()


def test_of_two_at_one_moment_one_gets_it(memory: RecordWriter, ana: User, bea: User) -> None:
    for number in range(ROUNDS):
        ref = memory.action(f"agent-{number}", 1)
        if number % 2:  # one that has run out is in the way of both
            claim(ref, by=ana)
            expire(ref)
        answers = together(partial(claim, ref, by=ana), partial(claim, ref, by=bea))
        assert len(live(ref)) == 1
        got = [answer for answer in answers if answer.kind in (ClaimKind.CLAIMED, ClaimKind.MINE)]
        assert [one.claim.username for one in got if one.claim] == live(ref)


def test_of_two_who_take_over_one_does_and_a_release_at_that_moment_frees_nobody_elses(
    memory: RecordWriter, ana: User, bea: User, person: Cast
) -> None:
    eve = person("eve", "operator")
    for number in range(ROUNDS):
        ref = memory.action(f"agent-{number}", 1)
        claim(ref, by=ana)
        together(
            partial(take_over, ref, whose="ana", by=bea),
            partial(take_over, ref, whose="ana", by=eve),
            partial(release, ref, by=ana),
        )
        assert len(live(ref)) == 1
        assert live(ref) != ["ana"]


def test_a_selection_is_claimed_one_by_one(memory: RecordWriter, ana: User, bea: User) -> None:
    refs = [memory.action("billing-7", seq) for seq in (1, 2)] + [memory.action("billing-7", 3, status="done")]
    claim(refs[1], by=bea)

    answers = claim_all([*refs, ActionRef("main", "nobody", 1), ActionRef("gone", "x", 1), refs[0]], by=ana)

    assert [one.kind for one in answers] == ["claimed", "taken", "closed", "refused", "refused"]
    assert set(live_claims(refs)) == set(refs[:2])
    with pytest.raises(InvalidDecision):
        claim_all([], by=ana)


def test_the_filter_knows_mine_nobodys_and_a_name(memory: RecordWriter, ana: User, bea: User) -> None:
    refs = [memory.action("billing-7", seq) for seq in (1, 2, 3)]
    claim(refs[0], by=ana)
    claim(refs[1], by=bea)
    claim(refs[2], by=bea)
    expire(refs[2])

    assert refs_claimed("me", by=ana) == ({refs[0]}, frozenset())
    assert refs_claimed("bea", by=ana) == ({refs[1]}, frozenset())
    assert refs_claimed("nobody", by=ana) == (None, {refs[0], refs[1]})
    for said in ("zoe", "\x00"):
        with pytest.raises(InvalidQuery):
            refs_claimed(said, by=ana)


# --- handing over ---


def test_what_was_handed_over_is_the_receivers_with_a_note_until_dismissed(memory: RecordWriter, ana: User, bea: User) -> None:
    refs = [memory.action("billing-7", seq) for seq in (1, 2, 3)]
    claim_all(refs, by=ana)
    given = partial(hand_over, refs[:2], to="bea", text="the bank calls back at 4", handover_id="hand-over-1", by=ana)

    assert given() == given()

    assert [live(ref) for ref in refs] == [["bea"], ["bea"], ["ana"]]
    assert {one.taken_from for one in claims_of(bea)} == {"ana"}
    (word,) = undismissed(bea)
    assert (word.username, word.shown_text, word.claims.count()) == ("ana", "the bank calls back at 4", 2)
    assert undismissed(ana) == []
    assert not dismiss(word.pk, by=ana)
    assert dismiss(word.pk, by=bea)
    assert undismissed(bea) == []
    assert claims_of(bea) != []


@pytest.mark.parametrize("to", ["dot", "ben", "ana", "zoe", "", "gone"])
def test_a_hand_over_that_not_everything_of_can_go_moves_nothing(
    memory: RecordWriter, ana: User, ben: User, dot: User, person: Cast, to: str
) -> None:
    """Dot may settle tickets only."""
    person("gone", "operator", is_active=False)
    refs = [memory.action("billing-7", 1, tool="open_ticket"), memory.action("billing-7", 2)]
    claim_all(refs, by=ana)

    with pytest.raises(InvalidDecision):
        hand_over(refs, to=to, text="", handover_id=f"hand-over-{uuid4()}", by=ana)

    assert [live(ref) for ref in refs] == [["ana"], ["ana"]]
    assert not HandOver.objects.exists()
    assert receivers_for(claims_of(ana), by=ana) == []
    assert receivers_for([one for one in claims_of(ana) if one.seq == 1], by=ana) == ["dot"]


def test_a_claim_that_was_taken_over_meanwhile_is_not_handed_on(memory: RecordWriter, ana: User, bea: User, person: Cast) -> None:
    person("eve", "operator")
    refs = [memory.action("billing-7", seq) for seq in (1, 2)]
    claim_all(refs, by=ana)
    take_over(refs[1], whose="ana", by=bea)

    with pytest.raises(InvalidDecision, match="not yours any more"):
        hand_over(refs, to="eve", text="", handover_id="hand-over-1", by=ana)

    assert [live(ref) for ref in refs] == [["ana"], ["bea"]]


def test_handed_over_and_taken_over_at_one_moment_it_is_one_persons(
    memory: RecordWriter, ana: User, bea: User, person: Cast
) -> None:
    person("eve", "operator")

    def give(ref: ActionRef) -> object:
        try:
            return hand_over([ref], to="eve", text="", handover_id=f"hand-over-{uuid4()}", by=ana)
        except InvalidDecision as exc:
            return exc

    for number in range(ROUNDS):
        ref = memory.action(f"agent-{number}", 1)
        claim(ref, by=ana)
        given, taken = together(partial(give, ref), partial(take_over, ref, whose="ana", by=bea))
        owner = live(ref)
        assert owner in (["eve"], ["bea"])
        assert isinstance(given, HandOver) == (owner == ["eve"])
        assert (taken.kind is ClaimKind.CLAIMED) == (owner == ["bea"])  # type: ignore[attr-defined]
