"""What the world says against a written end. An incident is opened, never a history rewritten; somebody has to act and say so.

That it was opened, and closed, is entered beside its action, in another database than the incident: the two cannot commit together. The
incident commits first, because an entry is never taken back: one that told of what was rolled back would stay. Whoever dies between the two
leaves an incident without its entry, and a sweep writes what is missing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta

from django.contrib.auth.models import AnonymousUser, User
from django.db import IntegrityError, transaction
from django.db.models import Q
from django.http import Http404
from django.utils import timezone

from actions.errors import InvalidDecision, StoreError
from actions.records import ActionRef, Entry, NewEntry
from actions.redaction import redact_text
from actions.resolvers.verdict import Grade
from actions.rules import MAX_REASON_CHARS, check_text, has_visible_text
from console.access import Right, require, visible, visible_stores
from console.models import Correction, Incident, Inquiry, StoredVerdict
from console.services.changes import bump
from console.services.journal import enter_beside
from console.stores import UnknownStore, console_chain, get_store

log = logging.getLogger(__name__)

SWEPT = timedelta(days=7)
"""How long ago an incident was opened or closed for the sweep to look whether that is entered."""
MAX_SWEPT = 100
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
    """Enter that it was opened, after it is committed; it stands whether or not its store answers."""
    _enter(incident.pk, "incident", first=True)


def sweep_incidents() -> int:
    """Enter what somebody who died left unsaid of incidents that were opened or closed in the last days; how many entries that were.

    Safe to run in several workers at once. A store that does not answer is left to the next sweep. Bounded: the newest MAX_SWEPT incidents.
    """
    since = timezone.now() - SWEPT
    recent = Incident.objects.filter(Q(opened_at__gte=since) | Q(closed_at__gte=since)).order_by("-pk")
    found = 0
    for pk, opened_at, closed_at in recent.values_list("pk", "opened_at", "closed_at")[:MAX_SWEPT]:
        # An older one's entry may have been removed by a retention since.
        found += opened_at >= since and _enter(pk, "incident")
        found += closed_at is not None and _enter(pk, "incident_closed")
    return found


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
        _enter(pk, "incident_closed", first=True)
    return incident


def _enter(pk: int, kind: str, *, first: bool = False) -> bool:
    """Enter one step of an incident unless it is entered; whether it was entered now. Whoever else is at it is waited for.

    `first`: by whoever has just made the step. It is entered also where nobody can say whether it was: in the console's own history then.
    """
    with transaction.atomic():
        incident = Incident.objects.select_for_update(of=("self",)).select_related("verdict", "correction").get(pk=pk)
        entry = _entry_of(incident, kind)
        try:
            if _is_entered(incident, entry):
                return False
        except (StoreError, UnknownStore) as exc:
            if not first:
                log.warning("%s of incident %s is left to the next sweep: %s", kind, pk, exc)
                return False
        return enter_beside(incident.store, entry) is not None


def _is_entered(incident: Incident, entry: NewEntry) -> bool:
    """In its store's history, or where that took none, in the console's own."""
    known: list[Entry] = []
    for chain in (console_chain(), get_store(incident.store)):
        known += chain.list_entries(limit=100, agent=entry.agent, seq=entry.seq, kinds=(entry.kind,))
    # Those of an earlier version name no incident.
    return any(one.detail.get("incident", incident.pk) == incident.pk and one.reason == entry.reason for one in known)


def _entry_of(incident: Incident, kind: str) -> NewEntry:
    """It names the incident, so that it is found again."""
    verdict, correction = incident.verdict, incident.correction
    if kind == "incident":
        actor = f"resolver {verdict.resolver}" if verdict else correction.actor if correction else ""
        outcome = verdict.outcome if verdict else correction.outcome if correction else ""
        reason = incident.text
    else:
        actor, outcome, reason = f"operator {incident.closed_by}", "", redact_text(incident.closing_note)
    return NewEntry(
        kind=kind,
        actor=actor,
        agent=incident.agent,
        seq=incident.seq,
        tool=redact_text(incident.tool),
        outcome=outcome,
        reason=reason,
        evidence_id=verdict.evidence_id if verdict else "",
        detail={"incident": incident.pk},
    )
