"""Who is at which action: reading claims, keeping one alive, and ending them with their action. Making them is in claims.py."""

from __future__ import annotations

import logging
from collections.abc import Collection
from datetime import timedelta

from django.conf import settings
from django.contrib.auth.models import User
from django.db import Error as ConsoleDatabaseError
from django.db.models import QuerySet
from django.utils import timezone

from actions.errors import InvalidQuery
from actions.records import ActionRef
from console.access import Person, is_possible
from console.models import Claim, ClaimEnd
from console.services.decisions import of_actions

log = logging.getLogger(__name__)

MAX_LISTED = 200
RENEW_AFTER = timedelta(minutes=1)
"""A claim is renewed at most so often: each renewal is a write."""
ME, NOBODY = "me", "nobody"


def live_claims(refs: Collection[ActionRef]) -> dict[ActionRef, Claim]:
    """The live claim of each action that has one. One query, whatever the number."""
    wanted = {ref for ref in refs if is_possible(ref)}
    return {row.ref: row for row in of_actions(_live(), wanted) if row.ref in wanted} if wanted else {}


def all_live_claims() -> dict[ActionRef, Claim]:
    """Every live claim there is. One query; there are as many as people are at work on."""
    return {row.ref: row for row in _live()}


def find_claim(ref: ActionRef) -> Claim | None:
    """The live claim of one action."""
    return live_claims([ref]).get(ref)


def claims_of(user: User, *, limit: int = MAX_LISTED) -> list[Claim]:
    """A person's live claims, oldest first."""
    return list(_live().filter(by=user).order_by("claimed_at", "pk")[:limit])


def refs_claimed(said: str, *, by: Person) -> tuple[frozenset[ActionRef] | None, frozenset[ActionRef]]:
    """For a filter: which actions alone, and which not. `said` is `me`, `nobody` or a user's name.

    Raises:
        InvalidQuery: nobody is called so.
    """
    rows = _live()
    if said == NOBODY:
        return None, frozenset(row.ref for row in rows)
    if said == ME:
        return frozenset(row.ref for row in rows.filter(by_id=by.pk)), frozenset()
    if "\x00" in said or not User.objects.filter(username=said).exists():
        raise InvalidQuery(f"nobody is called {said[:40]!r} here; say me, nobody or a user's name")
    return frozenset(row.ref for row in rows.filter(by__username=said)), frozenset()


def _live() -> QuerySet[Claim]:
    return Claim.objects.filter(ended_at=None, expires_at__gt=timezone.now())


def renew(ref: ActionRef, *, by: Person) -> None:
    """Whoever works on what they claimed keeps it. At most once in RENEW_AFTER it writes; it is no news for others."""
    now = timezone.now()
    soon = now + settings.CLAIM_TIME - RENEW_AFTER
    if not by.is_authenticated or not is_possible(ref):
        return
    try:
        mine = claims_on(ref).filter(ended_at=None, by_id=by.pk, expires_at__gt=now, expires_at__lt=soon)
        mine.update(expires_at=now + settings.CLAIM_TIME)
    except ConsoleDatabaseError as exc:  # what somebody asked for is worth more than their claim
        log.warning("the claim of %s is not renewed: %s", ref, type(exc).__name__)


def end_claims(ref: ActionRef) -> None:
    """The action has ended: nobody is at it any more. Inside the caller's transaction, which says that something changed."""
    end(claims_on(ref).filter(ended_at=None), ClaimEnd.CLOSED)


def claims_on(ref: ActionRef) -> QuerySet[Claim]:
    """Every claim of one action, live or not."""
    return Claim.objects.filter(store=ref.store, agent=ref.agent, seq=ref.seq)


def end(rows: QuerySet[Claim], how: ClaimEnd, *, by: str = "") -> int:
    """End these claims in one statement; how many there were to end."""
    return rows.update(ended_at=timezone.now(), ended=how, ended_by=by)
