"""Whether a history is whole and unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from actions.records import Link
from actions.store.audit import Anchor, ChainReport, Fault, verify_chain
from actions.store.base import EntryChain
from actions.store.checkpoints import proven_by
from console.services.checkpoints import trusted_keys


def verify_history(
    name: str, chain: EntryChain, anchors: Iterable[Anchor] = (), *, told: Callable[[int], None] | None = None
) -> ChainReport:
    """Walk the chain from its first entry up to the head as it was at the beginning; entries that come meanwhile are the next walk's.

    Flat memory. `told` hears now and then how many links are done. Raises StoreError where the history cannot be read: then nothing is known.
    """
    head = chain.read_head()
    links = _counted((link for link in chain.iterate_links() if link.number <= head.number), told)
    report = verify_chain(head.chain, links, head, anchors=anchors, removed_by=proven_by(name, trusted_keys()))
    beyond = next(chain.iterate_links(after=head.number), None)
    if report.is_intact and beyond is not None and chain.read_head() == head:
        fault = Fault(number=beyond.number, says=f"entry {beyond.number} stands beyond the head, which says {head.number}")
        return replace(report, broken=fault)
    return report


def _counted(links: Iterable[Link], told: Callable[[int], None] | None) -> Iterator[Link]:
    for count, link in enumerate(links, start=1):
        if told is not None and count % 10_000 == 0:
            told(count)
        yield link
