"""What taking a live lease away checks and writes, the same for every store: pure. The adapters bring the lease and make it one transaction."""

from __future__ import annotations

from dataclasses import replace

from actions.errors import DecisionIdReused, LeaseMoved, StoreUnusable
from actions.records import Entry, Lease, NewEntry
from actions.redaction import redact_text
from actions.store.base import MAX_EPOCH
from actions.times import format_rfc3339

EVICTED = "evicted"
"""The kind of the entry."""


def require_held(store: str, agent: str, holder: str, lease: Lease | None) -> Lease:
    """The lease, where it is still the one that was shown: live, and this very holder's. Its epoch may have moved: it was renewed.

    Raises:
        LeaseMoved: somebody else's, or nobody's any more; `.lease` is what stands there. Nothing was written.
        StoreUnusable: nothing can follow its epoch. Nothing was written.
    """
    if lease is None or not lease.is_live or lease.holder != holder:
        raise LeaseMoved(agent, holder, lease)
    if lease.epoch >= MAX_EPOCH:
        raise StoreUnusable(store, f"the lease of agent {agent} has epoch {lease.epoch}, which no other can follow")
    return lease


def eviction_entry(new: NewEntry, found: Lease) -> NewEntry:
    """The entry with what was taken away: the lease as it stood, and the epoch that fences its holder off."""
    before = {"holder": redact_text(found.holder), "epoch": found.epoch, "expires_at": format_rfc3339(found.expires_at)}
    return replace(new, detail={**new.detail, "before": before, "after": {"epoch": found.epoch + 1, "released": True}})


def answer_eviction(entry: Entry, new: NewEntry) -> Entry:
    """What the same decision id wrote before.

    Raises:
        DecisionIdReused: the id stands for another eviction. Nothing was written now.
    """
    if entry.content_digest != new.content_digest:
        raise DecisionIdReused(entry)
    return entry
