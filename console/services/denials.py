"""Refused attempts as entries: who tried what that is not theirs, bounded however often they try."""

from __future__ import annotations

import time

from django.core.cache import cache
from django.db import connection, transaction

from actions.digests import canonical_json, sha256_text
from console.services import journal

_MINUTE_S = 60


def enter_denial(
    actor: str, gesture: str, *, why: str, reason: str, store: str = "", agent: str = "", seq: int | None = None
) -> bool:
    """Enter that somebody who is known was refused; False where only their count was raised.

    Of one person, gesture and cause in one minute the 1st, 2nd, 4th, 8th ... attempt is an entry, which says how many it had been by then:
    a flood of a million writes twenty. Counted for all processes together.

    Raises:
        StoreError: the history cannot be written. The refusal itself stands.
    """
    key = f"denied-{int(time.time()) // _MINUTE_S}-{sha256_text(canonical_json([actor, gesture, why]))}"
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [key])
        times = cache.get(key, 0) + 1
        cache.set(key, times, timeout=2 * _MINUTE_S)
        if times & (times - 1):
            return False
        detail = {"about": gesture, "why": why, "times": times} | ({"of": {"store": store}} if store else {})
        journal.record("denied", actor=actor, agent=agent, seq=seq, reason=reason, detail=detail)
    return True
