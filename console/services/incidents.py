"""What the world says against a written end. An incident is opened, never a history rewritten; somebody has to act and say so."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from django.contrib.auth.models import AnonymousUser, User
from django.db import IntegrityError, transaction
from django.http import Http404
from django.utils import timezone

from actions.errors import InvalidDecision
from actions.records import ActionRef, NewEntry
from actions.redaction import redact_text
from actions.resolvers.verdict import Grade
from actions.rules import MAX_REASON_CHARS, check_text, has_visible_text
from console.access import Right, require, visible, visible_stores
from console.models import Correction, Incident, Inquiry, StoredVerdict
from console.services.changes import bump
from console.services.journal import enter_beside

log = logging.getLogger(__name__)

_TELLING = frozenset({Grade.EXACT, Grade.STRONG, Grade.CONFLICT})
"""Something with our key or the provider's id is there, whether it agrees or not: then "it did not happen" is wrong or at least in doubt."""


def open_incident(inquiry: Inquiry, verdict: StoredVerdict) -> Incident | None:
    """Open one where the verdict about an action that ended `failed` found it after all; None where it did not, or one is open already.

    Inside the caller's transaction.
    """
    if verdict.grade not in _TELLING:
        return None
    try:
        with transaction.atomic():
            return Incident.objects.create(
                store=inquiry.store,
                agent=inquiry.agent,
                seq=inquiry.seq,
                tool=inquiry.tool,
                verdict=verdict,
                text=f"it was written as failed, but {verdict.resolver} says: {verdict.resolution}",
            )
    except IntegrityError:
        return None


def open_for_correction(correction: Correction) -> Incident | None:
    """Open one where its agent was told the opposite of what happened; None where it was not, or one is open already.

    Inside the caller's transaction.
    """
    if not correction.is_opposite:
        return None
    truth = "it happened" if correction.outcome == "done" else "it did not happen"
    try:
        with transaction.atomic():
            return Incident.objects.create(
                store=correction.store,
                agent=correction.agent,
                seq=correction.seq,
                tool=correction.tool,
                correction=correction,
                text=f"its agent was told {correction.told}, but {correction.actor} says that {truth}: {correction.shown_reason}",
            )
    except IntegrityError:
        return None


def announce_incident(incident: Incident) -> None:
    """Enter it into its store's history; the incident itself stands whether or not that store answers."""
    verdict, correction = incident.verdict, incident.correction
    entry = NewEntry(
        kind="incident",
        actor=f"resolver {verdict.resolver}" if verdict else correction.actor if correction else "",
        agent=incident.agent,
        seq=incident.seq,
        tool=redact_text(incident.tool),
        outcome=verdict.outcome if verdict else correction.outcome if correction else "",
        reason=incident.text,
        evidence_id=verdict.evidence_id if verdict else "",
    )
    _enter(incident, entry)


def open_incidents(stores: Sequence[str], *, limit: int = 50) -> list[Incident]:
    """Those nobody has closed yet in these stores, oldest first. The caller filters by tool what its user may see."""
    rows = Incident.objects.select_related("verdict", "correction").filter(closed_at=None, store__in=stores)
    return list(rows.order_by("opened_at", "pk")[:limit])


def visible_open_incidents(user: User | AnonymousUser) -> list[Incident]:
    """The open incidents of the actions that this person may see, oldest first, of the oldest 500 there are. One statement."""
    may_see = visible(user)
    stores = [store.name for store in visible_stores(user)]
    return [one for one in open_incidents(stores, limit=500) if may_see(one.store, one.tool)]


def closed_incidents(stores: Sequence[str], *, limit: int = 50) -> list[Incident]:
    """Those that were closed in these stores, newest first. The caller filters by tool what its user may see."""
    rows = Incident.objects.select_related("verdict", "correction").filter(closed_at__isnull=False, store__in=stores)
    return list(rows.order_by("-closed_at", "-pk")[:limit])


def incidents_of(ref: ActionRef) -> tuple[Incident, ...]:
    """Every incident about one action, newest first, at most 20. The caller has checked that its user may see the action."""
    rows = Incident.objects.filter(store=ref.store, agent=ref.agent, seq=ref.seq)
    return tuple(rows.order_by("-pk")[:20])


def find_incident(user: User | AnonymousUser, pk: int) -> Incident:
    """Raises Http404 where there is none, or the person may not see its action: both look the same."""
    incident = Incident.objects.select_related("verdict", "correction").filter(pk=pk).first()
    if incident is None:
        raise Http404("there is no such incident")
    require(user, Right.READ, store=incident.store, tool=incident.tool, missing="there is no such incident")
    return incident


def close_incident(pk: int, note: str, *, by: User) -> Incident:
    """Somebody has acted: what was done stands in the note. Closing twice keeps the first.

    Raises:
        Http404, PermissionDenied: there is none, or the person may not see or not settle its action. Nothing was changed.
        InvalidDecision: the note is empty, too long or no text. Nothing was changed.
    """
    incident = Incident.objects.select_related("verdict", "correction").filter(pk=pk).first()
    if incident is None:
        raise Http404("there is no such incident")
    require(by, Right.SETTLE, store=incident.store, tool=incident.tool, missing="there is no such incident")
    if not has_visible_text(note):
        raise InvalidDecision("say what was done about it")
    if len(note) > MAX_REASON_CHARS:
        raise InvalidDecision(f"the note has {len(note)} characters; the limit is {MAX_REASON_CHARS}")
    check_text("note", note)
    with transaction.atomic(durable=True):
        values = {"closed_at": timezone.now(), "closed_by": by.get_username(), "closing_note": note.strip()}
        is_ours = Incident.objects.filter(pk=pk, closed_at=None).update(**values) == 1
        bump(incident.store)
    incident.refresh_from_db()
    if is_ours:
        entry = NewEntry(
            kind="incident_closed",
            actor=f"operator {by.get_username()}",
            agent=incident.agent,
            seq=incident.seq,
            tool=redact_text(incident.tool),
            reason=redact_text(note.strip()),
            evidence_id=incident.verdict.evidence_id if incident.verdict else "",
        )
        _enter(incident, entry)
    return incident


def _enter(incident: Incident, entry: NewEntry) -> None:
    enter_beside(incident.store, entry)
