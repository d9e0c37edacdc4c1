"""Seeing what redaction hides of one action: a right of its own, a reason, a fresh proof of identity, and an entry before anything is shown."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.contrib.auth.models import User
from django.http import Http404
from django.utils import timezone

from actions.digests import sha256_text
from actions.errors import InvalidDecision, StoreUnavailable
from actions.queries import read_whole_args, read_whole_result
from actions.records import ActionRef, NewEntry
from actions.redaction import redact_text
from actions.rules import MAX_REASON_CHARS, check_text, has_visible_text
from console.access import Right, item_or_404
from console.services import journal
from console.services.gates import is_confirmed
from console.stores import get_store


class NotConfirmed(Exception):
    """Nobody has proved lately that it is this person. Nothing was shown or written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Revealed:
    """The texts of one action as they are stored: for one answer to one person, kept nowhere."""

    arguments: str
    result: str
    error: str
    resolution: str


def reveal(ref: ActionRef, reason: str, *, by: User, confirmed_at: datetime | None) -> Revealed:
    """The unredacted texts of one action, after the entry that says who saw them and why has been written.

    The entry stands beside the action; in the console's own history where that one cannot be written. It names digests of what was
    shown, never the texts. Each call is an entry of its own.

    Raises:
        Http404, PermissionDenied: as `item_or_404`. Nothing was written.
        NotConfirmed, InvalidDecision: nothing was shown or written.
        StoreError: the store cannot be read, or the entry could be written nowhere. Nothing was shown.
    """
    item = item_or_404(by, ref, Right.REVEAL)
    if item.action is None:
        raise Http404("an unreadable record has no texts")
    if not is_confirmed(confirmed_at, timezone.now()):
        raise NotConfirmed("nobody has proved lately that it is this person")
    reason = _checked(reason)
    store = get_store(ref.store)
    shown = Revealed(
        arguments=read_whole_args(store, item.action),
        result=read_whole_result(store, item.action),
        error=item.action.error,
        resolution=item.action.resolution,
    )
    digests = {"arguments": sha256_text(shown.arguments), "result": sha256_text(shown.result)}
    entry = NewEntry(
        kind="revealed",
        actor=f"auditor {by.get_username()}",
        agent=ref.agent,
        seq=ref.seq,
        tool=redact_text(item.action.tool),
        reason=redact_text(reason),
        detail={"digests": digests},
    )
    if journal.enter_beside(ref.store, entry) is None:
        raise StoreUnavailable(
            ref.store, "that somebody sees what is hidden could be entered into no history, so nothing was shown"
        )
    return shown


def _checked(reason: str) -> str:
    reason = reason.strip()
    if not has_visible_text(reason):
        raise InvalidDecision("a reason is required: what do you need to see it for?")
    if len(reason) > MAX_REASON_CHARS:
        raise InvalidDecision(f"the reason has {len(reason)} characters; the limit is {MAX_REASON_CHARS}")
    check_text("reason", reason)
    return reason
