"""What the world has said about actions so far, as screens show it: bounded reads, one statement each."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import JSONObject
from django.utils import timezone

from actions.records import ActionRef, ActionStatus
from actions.resolvers.verdict import Grade, Outcome
from actions.times import Instant, from_datetime
from console.access import is_possible
from console.models import Inquiry, StoredVerdict
from console.services.decisions import of_actions

MAX_REFS = 20_000
NOBODY_ASKED = "none"
_TELLING_FIRST = ("-is_answered", "-pk")
"""The newest verdict that somebody answered; one that nobody answered takes nothing back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where the asking about one action stands, with its newest verdict. Everything here was redacted when it was stored."""

    resolver: str
    is_asking: bool  # somebody is at it now
    is_due: bool  # it waits for a worker
    problem: str  # why nobody could be asked
    outcome: str = ""  # of the newest verdict; empty: there is none
    grade: str = ""
    is_answered: bool = True
    check_again_at: datetime | None = None
    has_given_up: bool = False
    first_holder: str = ""  # of the lease when the action was first seen
    lost_at: Instant | None = None  # when its holder was first seen fenced off


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """The newest verdict about an action, where a decision would say otherwise. A person may; they should know it first."""

    evidence_id: str
    resolver: str
    says: str  # as it goes on after the resolver's name
    asked_at: datetime
    needs_word: bool  # found, against "it did not happen": the page asks for an explicit word


_FOUND = {
    (Outcome.DONE, Grade.EXACT): "says it happened: found by our key",
    (Outcome.DONE, Grade.STRONG): "says it happened: found by our key or the provider's own id",
    (Outcome.UNKNOWN, Grade.EXACT): "found it by our key, but is not certain",
    (Outcome.UNKNOWN, Grade.STRONG): "found it by our key or the provider's own id, but is not certain",
}


def find_contradiction(ref: ActionRef, outcome: str) -> Contradiction | None:
    """What the newest verdict that somebody answered says against deciding `outcome` (done, failed, abandoned). One statement.

    A weak verdict, or one that found nothing and proves nothing, contradicts nobody.
    """
    about = {"inquiry__store": ref.store, "inquiry__agent": ref.agent, "inquiry__seq": ref.seq}
    newest = StoredVerdict.objects.filter(**about).order_by(*_TELLING_FIRST).first() if is_possible(ref) else None
    return contradiction_of(newest, outcome)


def contradiction_of(newest: StoredVerdict | None, outcome: str) -> Contradiction | None:
    """The same of a verdict that is known to be the newest telling one. Pure."""
    if newest is None:
        return None
    says = ""
    if newest.grade == Grade.CONFLICT:
        says = "found our key, but something differs"
    elif outcome == ActionStatus.DONE:
        says = "says it did not happen" if newest.outcome == Outcome.FAILED else ""
    elif newest.outcome != Outcome.FAILED and newest.grade in (Grade.EXACT, Grade.STRONG):
        says = _FOUND[Outcome(newest.outcome), Grade(newest.grade)]
    if not says:
        return None
    return Contradiction(
        evidence_id=newest.evidence_id,
        resolver=newest.resolver,
        says=says,
        asked_at=newest.asked_at,
        needs_word=outcome == ActionStatus.FAILED and newest.grade in (Grade.EXACT, Grade.STRONG),
    )


def telling_verdicts(refs: Collection[ActionRef]) -> dict[ActionRef, StoredVerdict]:
    """The newest verdict that somebody answered about each of these actions, else the newest of all. One statement, whatever the number."""
    wanted = {ref for ref in refs if is_possible(ref)}
    if not wanted:
        return {}
    asked = of_actions(Inquiry.objects.all(), wanted).values("pk")
    rows = StoredVerdict.objects.filter(inquiry__in=asked).select_related("inquiry")
    found = {row.inquiry.ref: row for row in rows.order_by("inquiry_id", *_TELLING_FIRST).distinct("inquiry_id")}
    return {ref: row for ref, row in found.items() if ref in wanted}


def is_proof(verdict: StoredVerdict, claim: str) -> bool:
    """Whether a verdict proves how an action with this claim ended: found by our key with every field agreeing, or its absence proved.

    What was asked about an action that read otherwise then proves nothing of it now. Proof does not age: both are true from then on.
    """
    is_exact = (verdict.outcome, verdict.grade) == (Outcome.DONE, Grade.EXACT)
    return verdict.is_answered and verdict.claim == claim and (is_exact or verdict.outcome == Outcome.FAILED)


def standings_of(refs: Collection[ActionRef]) -> dict[ActionRef, Standing]:
    """The standing of each of these actions that was ever asked about. One statement, whatever the number."""
    wanted = {ref for ref in refs if is_possible(ref)}
    if not wanted:
        return {}
    newest = StoredVerdict.objects.filter(inquiry=OuterRef("pk")).order_by(*_TELLING_FIRST)
    said = JSONObject(
        resolver="resolver",
        outcome="outcome",
        grade="grade",
        evidence="evidence",
        check_again_at="check_again_at",
        has_given_up="has_given_up",
    )
    rows = of_actions(Inquiry.objects.all(), wanted).annotate(newest=Subquery(newest.values(said=said)[:1]))
    return {row.ref: _standing(row) for row in rows if row.ref in wanted}


def refs_with_verdict(said: str) -> frozenset[ActionRef]:
    """Actions whose newest verdict is of this sort (`done`, `failed`, `conflict`, `unknown`); for NOBODY_ASKED those that have any.

    At most MAX_REFS, the newest.
    """
    rows = _newest_verdicts()
    conflict = Q(grade=Grade.CONFLICT)
    if said == Grade.CONFLICT:
        rows = rows.filter(conflict)
    elif said in (Outcome.DONE, Outcome.FAILED):
        rows = rows.filter(outcome=said)
    elif said == Outcome.UNKNOWN:
        rows = rows.filter(~conflict, outcome=said)
    found = rows.order_by("-pk").values_list("inquiry__store", "inquiry__agent", "inquiry__seq")[:MAX_REFS]
    return frozenset(ActionRef(*ref) for ref in found)


def numbers_shown(ref: ActionRef, evidence_ids: Collection[str] | None) -> list[int] | None:
    """The numbers of those verdicts that are about this action, in their order; None for None. One statement, none for none."""
    if not evidence_ids:
        return None if evidence_ids is None else []
    said = (evidence_id.removeprefix("verdict-") for evidence_id in evidence_ids)
    numbers = [int(number) for number in said if number.isascii() and number.isdigit() and len(number) < 19]
    about = {"inquiry__store": ref.store, "inquiry__agent": ref.agent, "inquiry__seq": ref.seq}
    return list(StoredVerdict.objects.filter(pk__in=numbers, **about).order_by("pk").values_list("pk", flat=True))


def find_verdict(ref: ActionRef, evidence_id: str) -> StoredVerdict | None:
    """The verdict of that id, if it is about this action."""
    number = evidence_id.removeprefix("verdict-")
    if not (evidence_id.startswith("verdict-") and number.isascii() and number.isdigit() and len(number) < 19):
        return None
    about = {"inquiry__store": ref.store, "inquiry__agent": ref.agent, "inquiry__seq": ref.seq}
    return StoredVerdict.objects.filter(pk=int(number), **about).first()


def _newest_verdicts() -> QuerySet[StoredVerdict]:
    newest = StoredVerdict.objects.filter(inquiry=OuterRef("inquiry")).order_by(*_TELLING_FIRST)
    return StoredVerdict.objects.filter(pk=Subquery(newest.values("pk")[:1]))


def _standing(row: Any) -> Standing:
    now, said = timezone.now(), row.newest or {}
    evidence: Mapping[str, Any] = json.loads(said["evidence"]) if said else {}
    return Standing(
        resolver=said.get("resolver") or row.resolver,
        is_asking=row.asking_until is not None and row.asking_until > now,
        is_due=row.due_at is not None and row.due_at <= now,
        problem=row.problem,
        outcome=said.get("outcome", ""),
        grade=said.get("grade", ""),
        is_answered=bool(evidence.get("is_answered", True)),
        check_again_at=datetime.fromisoformat(said["check_again_at"]) if said.get("check_again_at") else None,
        has_given_up=bool(said.get("has_given_up")),
        first_holder=row.first_holder,
        lost_at=from_datetime(row.lost_at) if row.lost_at else None,
    )
