"""What the world says against a written end. An incident is opened, never a history rewritten; somebody has to act and say so."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.http import Http404
from django.utils import timezone

from actions.errors import InvalidDecision, StoreError
from actions.records import NewEntry
from actions.redaction import redact_text
from actions.resolvers.verdict import Grade
from actions.rules import MAX_REASON_CHARS, check_text, has_visible_text
from console.access import Right, require
from console.models import Incident, Inquiry, StoredVerdict
from console.services.changes import bump
from console.stores import UnknownStore, get_store

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


def announce_incident(incident: Incident) -> None:
    """Enter it into its store's history; the incident itself stands whether or not that store answers."""
    entry = NewEntry(
        kind="incident",
        actor=f"resolver {incident.verdict.resolver}",
        agent=incident.agent,
        seq=incident.seq,
        tool=redact_text(incident.tool),
        outcome=incident.verdict.outcome,
        reason=incident.text,
        evidence_id=incident.verdict.evidence_id,
    )
    _enter(incident, entry)


def open_incidents(stores: Sequence[str], *, limit: int = 50) -> list[Incident]:
    """Those nobody has closed yet in these stores, oldest first. The caller filters by tool what its user may see."""
    rows = Incident.objects.select_related("verdict").filter(closed_at=None, store__in=stores)
    return list(rows.order_by("opened_at", "pk")[:limit])


def close_incident(pk: int, note: str, *, by: User) -> Incident:
    """Somebody has acted: what was done stands in the note. Closing twice keeps the first.

    Raises:
        Http404, PermissionDenied: there is none, or the person may not see or not settle its action. Nothing was changed.
        InvalidDecision: the note is empty, too long or no text. Nothing was changed.
    """
    incident = Incident.objects.select_related("verdict").filter(pk=pk).first()
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
            evidence_id=incident.verdict.evidence_id,
        )
        _enter(incident, entry)
    return incident


def _enter(incident: Incident, entry: NewEntry) -> None:
    try:
        get_store(incident.store).append_entry(entry)
    except (StoreError, UnknownStore) as exc:
        log.warning("%s of incident %s is not in the history of store %s: %s", entry.kind, incident.pk, incident.store, exc)
