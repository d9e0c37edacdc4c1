"""What stands in the console's database at all, and beside some actions: each kind is told where there is any of it, and no other."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from actions.records import ActionRef
from console.models import (
    PENDING_STATES,
    ApprovalState,
    Claim,
    Correction,
    Decision,
    DecisionState,
    HandOver,
    Incident,
    Inquiry,
    Note,
    SavedView,
    StoredVerdict,
)
from console.services import around
from console.services.around import Around, There, read_beside, what_is_around, what_is_there
from tests.console.runs import a_run, an_approval

pytestmark = pytest.mark.django_db

REF = ActionRef("main", "m-1", 1)


def _of(ref: ActionRef) -> dict[str, Any]:
    return {"store": ref.store, "agent": ref.agent, "seq": ref.seq, "tool": "send_email"}


def _by(who: User) -> dict[str, Any]:
    return {"by": who, "username": who.get_username()}


def _claim(who: User, ref: ActionRef = REF, **more: Any) -> None:
    at = timezone.now()
    Claim.objects.create(**_of(ref), **_by(who), claimed_at=at, expires_at=at + timedelta(hours=1), **more)


def _note(who: User, ref: ActionRef = REF) -> None:
    again = timezone.now() + timedelta(hours=1)
    Note.objects.create(**_of(ref), **_by(who), decision_id=uuid4().hex, text="rang the bank", look_again_at=again)


def _decision(who: User, ref: ActionRef = REF, **more: Any) -> None:
    said = {"outcome": "done", "reason": "seen", "actor": "operator", "decision_id": uuid4().hex, "state": "written"}
    Decision.objects.create(**_of(ref), **_by(who), **{**said, **more})


def _correction(who: User, ref: ActionRef = REF, **more: Any) -> Correction:
    said = {"told": "done", "told_entry": 1, "outcome": "failed", "reason": "not there", "state": "written"}
    return Correction.objects.create(**_of(ref), **_by(who), correction_id=uuid4().hex, **{**said, **more})


def _inquiry(ref: ActionRef = REF) -> Inquiry:
    return Inquiry.objects.create(**_of(ref), resolver="sent-folder")


def _verdict(ref: ActionRef = REF) -> None:
    found = {"outcome": "done", "grade": "exact", "evidence": '{"is_answered": true}', "asked_at": timezone.now()}
    StoredVerdict.objects.create(inquiry=_inquiry(ref), resolver="sent-folder", version=1, policy_version=1, **found)


def _incident(who: User, ref: ActionRef = REF, **more: Any) -> None:
    Incident.objects.create(**_of(ref), correction=_correction(who, ref), text="found after all", **more)


def _hand_over(who: User, to: User, **more: Any) -> None:
    HandOver.objects.create(handover_id=uuid4().hex, **_by(who), to=to, **more)


def _view(owner: User, **more: Any) -> None:
    SavedView.objects.create(name="Mails", query="tool=send_email", owner=owner, **more)


Made = Callable[[User, User], object]
KINDS: dict[str, tuple[str, Made]] = {
    "a run": ("runs", lambda ana, bea: a_run()),
    "an open incident": ("incidents", lambda ana, bea: _incident(ana)),
    **{
        f"{state} for a store that is gone": (
            "stranded",
            lambda ana, bea, state=state: _decision(ana, ActionRef("gone", "m-1", 1), state=state),
        )
        for state in PENDING_STATES
        if state != DecisionState.PROPOSED
    },
    "a proposed decision": ("proposals", lambda ana, bea: _decision(ana, state="proposed")),
    "a proposed correction": ("proposals", lambda ana, bea: _correction(ana, state="proposed")),
    "handed to this person": ("handed", lambda ana, bea: _hand_over(bea, ana)),
    "their own view": ("views", lambda ana, bea: _view(ana)),
    "a shared view": ("views", lambda ana, bea: _view(bea, is_shared=True)),
}
NONE_OF_IT: dict[str, Made] = {
    "a closed incident": lambda ana, bea: _incident(ana, closed_at=timezone.now()),
    "on its way to a store that is there": lambda ana, bea: _decision(ana, state="waiting"),
    "ended in a store that is gone": lambda ana, bea: _decision(ana, ActionRef("gone", "m-1", 1)),
    "a correction on its way": lambda ana, bea: _correction(ana, state="waiting"),
    "handed to somebody else": _hand_over,
    "handed and dismissed": lambda ana, bea: _hand_over(bea, ana, dismissed_at=timezone.now()),
    "somebody else's own view": lambda ana, bea: _view(bea),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_told_where_there_is_one_and_no_other(kind: str, ana: User, bea: User) -> None:
    name, make = KINDS[kind]
    make(ana, bea)

    told = what_is_around(ana)

    assert [one for one in Around._fields if getattr(told, one)] == [name]


def test_an_approval_is_told_until_it_is_answered(ana: User) -> None:
    row = an_approval(a_run())
    assert what_is_around(ana).approvals

    row.state = ApprovalState.APPROVED
    row.save()

    assert not what_is_around(User.objects.get(pk=ana.pk)).approvals


@pytest.mark.parametrize("kind", NONE_OF_IT)
def test_what_has_ended_or_is_somebody_elses_is_not_told(kind: str, ana: User, bea: User) -> None:
    NONE_OF_IT[kind](ana, bea)

    assert not any(what_is_around(ana))


def test_it_is_asked_once_for_each_request(ana: User, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    with django_assert_num_queries(1):
        assert not what_is_around(ana).views
        assert not what_is_around(ana).runs
    _view(ana)

    assert not what_is_around(ana).views  # a request has one answer
    assert what_is_around(User.objects.get(pk=ana.pk)).views  # the next one asks anew


BESIDE: dict[str, Callable[[User, ActionRef], object]] = {
    "claims": _claim,
    "notes": _note,
    "decisions": _decision,
    "inquiries": lambda ana, ref: _verdict(ref),
    "incidents": _incident,
}
NEIGHBOURS = (ActionRef("main", "m-1", 2), ActionRef("main", "m-2", 1), ActionRef("other", "m-1", 1))


@pytest.mark.parametrize("name", BESIDE)
def test_what_is_about_an_action_is_told_of_that_one_alone(name: str, ana: User) -> None:
    BESIDE[name](ana, REF)

    told = what_is_there([NEIGHBOURS[0], REF])

    assert [one for one in There._fields if getattr(told, one)] == [name]
    assert not any(what_is_there(NEIGHBOURS))


def test_a_claim_that_has_ended_is_not_told(ana: User) -> None:
    _claim(ana, ended_at=timezone.now(), ended="released")

    assert not any(what_is_there([REF]))


def test_no_action_that_could_be_costs_no_statement(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    with django_assert_num_queries(0):
        assert not any(what_is_there([]))
        assert not any(
            what_is_there([ActionRef("main", "m\x00", 1), ActionRef("main", "\ud800", 1), ActionRef("main", "m", 2**63)])
        )


@pytest.mark.parametrize("count", [1, 60])
def test_what_is_beside_a_list_is_read_whole_and_costs_the_same_however_long_it_is(
    count: int, ana: User, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    refs = [ActionRef("main", f"m-{number}", number) for number in range(1, count + 1)]
    for ref in refs:
        for make in (_claim, _note, _decision):
            make(ana, ref)
        _verdict(ref)

    with django_assert_num_queries(6):  # what is there; claims, looks, notes, decisions, standings
        found = read_beside([*refs, *NEIGHBOURS])

    for kind in (found.claims, found.looks, found.notes, found.decisions, found.standings):
        assert set(kind) == set(refs)
    assert {one.outcome for one in found.standings.values()} == {"done"}


def test_nothing_beside_a_list_costs_one_statement(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    with django_assert_num_queries(1):
        found = read_beside([REF, *NEIGHBOURS])

    assert found == around.Beside(claims={}, looks={}, notes={}, decisions={}, standings={})
