"""Corrections of closed actions: reading those that were made, and what there is to correct. Making them is in correct.py."""

from __future__ import annotations

from dataclasses import dataclass

from django.contrib.auth.models import User

from actions.correct import WasRead, find_told, was_read
from actions.queries import ActionItem
from actions.records import ActionRef, Entry
from console.access import is_possible
from console.models import PENDING_CORRECTIONS, Correction, CorrectionState
from console.stores import get_store


@dataclass(frozen=True, slots=True, kw_only=True)
class Correctable:
    """What a person is shown before they correct: what its agent was told last, and whether it has read that."""

    told: Entry
    was_read: WasRead


def corrections_of(ref: ActionRef, *, limit: int = 20) -> list[Correction]:
    """The corrections of one action, newest first. The caller has checked that its user may see the action."""
    if not is_possible(ref):
        return []
    return list(Correction.objects.filter(store=ref.store, agent=ref.agent, seq=ref.seq).order_by("-id")[:limit])


def standing_correction(ref: ActionRef) -> Correction | None:
    """The one on its way, else the newest written one."""
    found = corrections_of(ref)
    written = (one for one in found if one.state == CorrectionState.WRITTEN)
    return next((one for one in found if one.is_pending), None) or next(written, None)


def waiting_corrections(user: User, *, limit: int = 200) -> list[Correction]:
    """A person's own corrections on their way, oldest first."""
    return list(Correction.objects.filter(by=user, state__in=PENDING_CORRECTIONS).order_by("id")[:limit])


def find_correctable(item: ActionItem) -> Correctable | None:
    """None where there is nothing of ours to correct: it is open, or ended by its agent or another program. Four reads of the store."""
    if item.action is None or item.action.is_open:
        return None
    store = get_store(item.store)
    told = find_told(store, item.ref)
    return Correctable(told=told, was_read=was_read(store, told)) if told else None
