"""Writing down what a watcher sees and Recall does not keep: who holds an agent.

However many processes watch: each writes only what is news to it, and each write is an upsert that only widens what stands there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django.db import connection

from actions.digests import sha256_text
from actions.records import Lease
from actions.store.base import CONSOLE_HOLDER
from actions.times import SECOND, Instant, to_datetime
from console.models import HolderState

SAME_AFTER_S = 60
"""A holder that only goes on is written down at most so often: it renews all the time."""
MAX_HOLDER_CHARS = 300
_MAX_NUMBER = 2**63 - 1
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")

# `newer`: under a later epoch, or the same one that is not live any more; a late writer with an older view moves nothing but the range.
# When a release was first seen says when it happened only where the lease had been seen live shortly before.
_UPSERT = """
INSERT INTO console_observation AS o
    (store, agent, holder, holder_digest, lowest_epoch, highest_epoch, first_seen_at, last_seen_at, state, silent_at)
SELECT %(store)s, n.agent, n.holder, n.digest, n.epoch, n.epoch, n.seen, n.seen, n.state, n.silent
FROM unnest(%(agents)s::varchar[], %(holders)s::text[], %(digests)s::varchar[], %(epochs)s::bigint[], %(seen)s::timestamptz[],
    %(states)s::varchar[], %(silent)s::timestamptz[]) AS n (agent, holder, digest, epoch, seen, state, silent)
ORDER BY n.agent, n.digest
ON CONFLICT (store, agent, holder_digest) DO UPDATE SET
    lowest_epoch = least(o.lowest_epoch, excluded.lowest_epoch),
    highest_epoch = greatest(o.highest_epoch, excluded.highest_epoch),
    last_seen_at = CASE WHEN excluded.state = 'live' THEN greatest(o.last_seen_at, excluded.last_seen_at) ELSE o.last_seen_at END,
    state = CASE WHEN (excluded.highest_epoch, excluded.state <> 'live') > (o.highest_epoch, o.state <> 'live')
        THEN excluded.state ELSE o.state END,
    silent_at = CASE WHEN NOT (excluded.highest_epoch, excluded.state <> 'live') > (o.highest_epoch, o.state <> 'live') THEN o.silent_at
        WHEN excluded.state = 'live' THEN NULL
        WHEN excluded.state = 'expired' THEN excluded.silent_at
        WHEN o.state = 'live' AND o.last_seen_at > excluded.first_seen_at - make_interval(secs => %(recently)s) THEN excluded.first_seen_at
        ELSE o.silent_at END
WHERE excluded.lowest_epoch < o.lowest_epoch
    OR (excluded.state <> o.state AND (excluded.highest_epoch, excluded.state <> 'live') > (o.highest_epoch, o.state <> 'live'))
    OR (excluded.state = 'live' AND o.state = 'live' AND excluded.highest_epoch >= o.highest_epoch
        AND excluded.last_seen_at >= o.last_seen_at + make_interval(secs => %(same_after)s))
"""
_RECENTLY_S = 2 * SAME_AFTER_S + 30


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sighting:
    """One holder of one agent at one moment of the store's clock."""

    agent: str
    holder: str
    epoch: int
    seen_at: Instant
    state: HolderState
    expires_at: Instant
    silent_at: Instant | None

    @property
    def is_ours(self) -> bool:
        return self.holder.startswith(CONSOLE_HOLDER)


class Observer:
    """What one process has seen of one store's leases, so that it writes news only. Not for several threads."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._last: dict[str, _Sighting] = {}  # by agent, as seen
        self._written: dict[str, _Sighting] = {}  # by agent, as written

    def observe(self, leases: Iterable[Lease]) -> int:
        """Write down who holds which agent; answers how many rows were news. One statement, and none where there is no news.

        Our own settles and evictions are no holders: their entries say who they were.

        Raises:
            DatabaseError: nothing was written; what was news is news again next time.
        """
        news: list[_Sighting] = []
        seen: dict[str, _Sighting] = {}
        for lease in leases:
            if not _can_be_kept(lease):
                continue
            now = _sighting(lease)
            before = self._last.get(now.agent)
            if before is not None and before.holder != now.holder and not before.is_ours:
                ended = _taken_over(before, now)
                if self._is_news(ended):
                    news.append(ended)
            seen[now.agent] = now
            if not now.is_ours and self._is_news(now):
                news.append(now)
        if news:
            self._write(news)
        self._last |= seen
        for sighting in news:
            if seen.get(sighting.agent) is sighting:
                self._written[sighting.agent] = sighting
        return len(news)

    def _is_news(self, now: _Sighting) -> bool:
        written = self._written.get(now.agent)
        if written is None or written.holder != now.holder or written.state != now.state:
            return True
        if now.state != HolderState.LIVE:
            return written.epoch < now.epoch
        return now.seen_at - written.seen_at >= SAME_AFTER_S * SECOND

    def _write(self, news: Sequence[_Sighting]) -> None:
        """Sorted by the statement itself, so that two watchers lock the rows in one order."""
        with connection.cursor() as cursor:
            cursor.execute(
                _UPSERT,
                {
                    "store": self._store,
                    "agents": [s.agent for s in news],
                    "holders": [_UNSTORABLE.sub("\ufffd", s.holder)[:MAX_HOLDER_CHARS] for s in news],
                    "digests": [sha256_text(s.holder) for s in news],
                    "epochs": [s.epoch for s in news],
                    "seen": [to_datetime(s.seen_at) for s in news],
                    "states": [s.state.value for s in news],
                    "silent": [None if s.silent_at is None else to_datetime(s.silent_at) for s in news],
                    "same_after": SAME_AFTER_S,
                    "recently": _RECENTLY_S,
                },
            )


def _sighting(lease: Lease) -> _Sighting:
    state = HolderState.LIVE if lease.is_live else HolderState.RELEASED if lease.is_released else HolderState.EXPIRED
    return _Sighting(
        agent=lease.agent,
        holder=lease.holder,
        epoch=lease.epoch,
        seen_at=lease.read_at,
        state=state,
        expires_at=lease.expires_at,
        silent_at=lease.expires_at if state == HolderState.EXPIRED else None,
    )


def _taken_over(before: _Sighting, now: _Sighting) -> _Sighting:
    """The last of a holder that somebody followed. Who follows waited for the lease to run out, unless it was given back before."""
    if before.state != HolderState.LIVE:
        return before
    ran_out = before.expires_at <= now.seen_at
    return _Sighting(
        agent=before.agent,
        holder=before.holder,
        epoch=before.epoch,
        seen_at=now.seen_at,
        state=HolderState.EXPIRED if ran_out else HolderState.RELEASED,
        expires_at=before.expires_at,
        silent_at=before.expires_at if ran_out else now.seen_at,
    )


def _can_be_kept(lease: Lease) -> bool:
    """What no row of ours can name, no screen of ours can either."""
    return (
        0 < len(lease.agent) <= 255
        and not _UNSTORABLE.search(lease.agent)
        and 0 <= lease.epoch <= _MAX_NUMBER
        and bool(lease.holder)
    )
