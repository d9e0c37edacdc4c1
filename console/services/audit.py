"""Whether a store's history is whole and unchanged."""

from __future__ import annotations

from dataclasses import replace

from actions.store.audit import ChainReport, verify_chain
from actions.store.base import ActionStore


def verify_store(store: ActionStore) -> ChainReport:
    """Walk the chain from its first entry up to the head as it was at the beginning; entries that come meanwhile are the next walk's.

    Flat memory. Raises StoreError where the store does not answer: then nothing is known.
    """
    head = store.read_head()
    report = verify_chain(head.chain, (link for link in store.iterate_links() if link.number <= head.number), head)
    beyond = next(store.iterate_links(after=head.number), None)
    if report.is_intact and beyond is not None and store.read_head() == head:
        return replace(
            report, first_bad=beyond.number, problem=f"entry {beyond.number} stands beyond the head, which says {head.number}"
        )
    return report
