"""What stands in the console's own database at all. Most of what a page may show beside its list is mostly not there: one statement says so, and
only what is there is read. Nothing of it is shown: what a person may see of it, those who read it decide."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from django.db import connection

from actions.records import ActionRef
from console.access import Person, is_possible
from console.models import Claim, Decision, Note
from console.services.claimed import live_claims
from console.services.decisions import current_decisions, latest_notes
from console.services.evidence import Standing, standings_of
from console.services.notes import look_agains
from console.stores import store_names


class Around(NamedTuple):
    """Whether there is any of it, whoever may see it."""

    runs: bool
    incidents: bool  # open ones
    stranded: bool  # decisions on their way to stores that are not configured
    proposals: bool  # decisions or corrections that wait for a second person
    approvals: bool  # that wait for an answer
    handed: bool  # to this person, not dismissed
    views: bool  # this person's, or shared


_AROUND = """
SELECT EXISTS (SELECT FROM console_run),
    EXISTS (SELECT FROM console_incident WHERE closed_at IS NULL),
    EXISTS (SELECT FROM console_decision WHERE state IN ('proposed', 'held', 'waiting') AND store <> ALL (%(stores)s::varchar[])),
    EXISTS (SELECT FROM console_decision WHERE state = 'proposed') OR EXISTS (SELECT FROM console_correction WHERE state = 'proposed'),
    EXISTS (SELECT FROM console_approval WHERE state = 'pending'),
    EXISTS (SELECT FROM console_hand_over WHERE to_id = %(person)s AND dismissed_at IS NULL),
    EXISTS (SELECT FROM console_saved_view WHERE owner_id = %(person)s OR is_shared)
"""
_REMEMBERED = "_settle_around"


def what_is_around(user: Person) -> Around:
    """Whether there is any of it for this person's page. One statement, remembered on the object: a request makes its own, so the memory ends
    with it. For drawing a page, never for a change."""
    remembered: Around | None = getattr(user, _REMEMBERED, None)  # not `vars`: a request's user is a lazy wrapper
    if remembered is None:
        with connection.cursor() as cursor:
            cursor.execute(_AROUND, {"stores": list(store_names()), "person": user.pk or 0})
            remembered = Around(*cursor.fetchone())
        setattr(user, _REMEMBERED, remembered)
    return remembered


class There(NamedTuple):
    """Whether there is any of it about any of some actions."""

    claims: bool  # without an end
    notes: bool
    decisions: bool
    inquiries: bool
    incidents: bool


_NOTHING = There(*[False] * len(There._fields))
EVERYTHING = There(*[True] * len(There._fields))
"""For whoever has not asked: each is read, and may be empty."""
_THERE = """
WITH wanted AS (SELECT * FROM unnest(%s::varchar[], %s::varchar[], %s::bigint[]) AS w (store, agent, seq))
SELECT EXISTS (SELECT FROM wanted JOIN console_claim AS c USING (store, agent, seq) WHERE c.ended_at IS NULL),
    EXISTS (SELECT FROM wanted JOIN console_note USING (store, agent, seq)),
    EXISTS (SELECT FROM wanted JOIN console_decision USING (store, agent, seq)),
    EXISTS (SELECT FROM wanted JOIN console_inquiry USING (store, agent, seq)),
    EXISTS (SELECT FROM wanted JOIN console_incident USING (store, agent, seq))
"""


def what_is_there(refs: Collection[ActionRef]) -> There:
    """One statement, whatever the number; none for no actions that the database could know."""
    wanted = [ref for ref in refs if is_possible(ref)]
    if not wanted:
        return _NOTHING
    with connection.cursor() as cursor:
        cursor.execute(_THERE, [[ref.store for ref in wanted], [ref.agent for ref in wanted], [ref.seq for ref in wanted]])
        return There(*cursor.fetchone())


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What people and the world have said so far about the actions of a list, each by its action."""

    claims: Mapping[ActionRef, Claim]
    looks: Mapping[ActionRef, datetime]
    notes: Mapping[ActionRef, Note]
    decisions: Mapping[ActionRef, Decision]
    standings: Mapping[ActionRef, Standing]


def read_beside(refs: Collection[ActionRef]) -> Beside:
    """One statement, and one more for each kind of which there is anything (two for notes), whatever the number of actions."""
    there = what_is_there(refs)
    return Beside(
        claims=live_claims(refs) if there.claims else {},
        looks=look_agains(refs) if there.notes else {},
        notes=latest_notes(refs) if there.notes else {},
        decisions=current_decisions(refs) if there.decisions else {},
        standings=standings_of(refs) if there.inquiries else {},
    )
