"""Decisions and notes as screens show them: bounded reads, one query each."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection
from typing import TypeVar

from django.db.models import Case, IntegerField, QuerySet, Value, When

from actions.records import ActionRef
from console.access import Person, Right, is_possible, visible
from console.models import PENDING_STATES, Claim, Correction, CorrectionState, Decision, DecisionState, Inquiry, Note
from console.stores import store_names

MAX_PENDING = 200
MAX_ASIDE = 5_000
_MAX_STRANDED = 2_000  # of all users together
_Row = TypeVar("_Row", Decision, Note, Inquiry, Claim, Correction)

_WEIGHT = Case(
    When(state__in=PENDING_STATES, then=Value(0)),
    When(state=DecisionState.WRITTEN, then=Value(1)),
    default=Value(2),
    output_field=IntegerField(),
)


def current_decisions(refs: Collection[ActionRef]) -> dict[ActionRef, Decision]:
    """The decision that matters for each action: the pending one, else the written one, else the newest. One query, whatever the number."""
    wanted = {ref for ref in refs if is_possible(ref)}
    if not wanted:
        return {}
    rows = (
        of_actions(Decision.objects.all(), wanted)
        .order_by("store", "agent", "seq", _WEIGHT, "-id")
        .distinct("store", "agent", "seq")
    )
    return {row.ref: row for row in rows if row.ref in wanted}


def latest_notes(refs: Collection[ActionRef]) -> dict[ActionRef, Note]:
    """The newest note on each action. One query, whatever the number."""
    wanted = {ref for ref in refs if is_possible(ref)}
    if not wanted:
        return {}
    rows = of_actions(Note.objects.all(), wanted).order_by("store", "agent", "seq", "-id").distinct("store", "agent", "seq")
    return {row.ref: row for row in rows if row.ref in wanted}


def list_proposed(user: Person) -> tuple[tuple[Decision | Correction, bool], ...]:
    """Decisions and corrections that wait for a second person, as far as the user may see them, each with whether they may be that person.

    Those first, then the oldest first; at most 200. Two statements; whoever proposed one may not approve it, whatever their role.
    """
    may_see, may_approve = visible(user), visible(user, Right.APPROVE)
    decisions = Decision.objects.filter(state=DecisionState.PROPOSED).select_related("by").order_by("pk")[:_MAX_STRANDED]
    corrections = Correction.objects.filter(state=CorrectionState.PROPOSED).select_related("by").order_by("pk")[:_MAX_STRANDED]
    both: list[Decision | Correction] = [*decisions, *corrections]
    rows = sorted(both, key=lambda row: row.created_at)
    shown = [
        (row, may_approve(row.store, row.tool) and not why_not_second(row, user)) for row in rows if may_see(row.store, row.tool)
    ]
    return tuple(sorted(shown, key=lambda one: not one[1])[:MAX_PENDING])


def why_not_second(row: Decision | Correction, user: Person) -> str:
    """Why this person cannot be the second one of this decision or correction; empty where they can, if they have the right."""
    if row.by is None:
        return ""
    if row.by_id == user.pk:
        what = "correction" if isinstance(row, Correction) else "decision"
        return f"it is your own {what}, so somebody else has to approve it"
    if is_same_person(row.by, user):
        return f"your account has the same email address as {row.username}'s, so somebody else has to approve it"
    return ""


def is_same_person(one: Person, other: Person) -> bool:
    """The same account, or two with one email address."""
    address = _address(one)
    return one.pk == other.pk or bool(address and address == _address(other))


def _address(user: Person) -> str:
    return unicodedata.normalize("NFKC", getattr(user, "email", "")).strip().casefold()


def refs_on_their_way() -> frozenset[ActionRef]:
    """The actions of which a decision is on its way: the newest MAX_ASIDE. One query."""
    rows = Decision.objects.filter(state__in=PENDING_STATES).order_by("-id")
    return frozenset(ActionRef(*ref) for ref in rows.values_list("store", "agent", "seq")[:MAX_ASIDE])


def list_stranded(user: Person) -> tuple[Decision, ...]:
    """Decisions on their way to stores that ACTION_STORES does not name any more, as far as the user may see them; newest first, at most 200.

    Nobody delivers them, and there is no page of their actions any more: they can be withdrawn, or their store put back.
    """
    may_see = visible(user)
    rows = Decision.objects.filter(state__in=PENDING_STATES).exclude(store__in=store_names()).order_by("-id")
    return tuple([row for row in rows[:_MAX_STRANDED] if may_see(row.store, row.tool)][:MAX_PENDING])


def of_actions(rows: QuerySet[_Row], wanted: set[ActionRef]) -> QuerySet[_Row]:
    """Rows of these actions and perhaps of a few others: every combination of what they are made of; the caller picks."""
    return rows.filter(
        store__in={ref.store for ref in wanted}, agent__in={ref.agent for ref in wanted}, seq__in={ref.seq for ref in wanted}
    )
