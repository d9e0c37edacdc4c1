"""Whether a history is whole and unchanged: walked from its first entry, compared with every checkpoint, and with what the console knows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from actions.records import Link
from actions.store.audit import Anchor, ChainReport, Fault, show_entry, verify_chain
from actions.store.base import EntryChain
from actions.store.checkpoints import Anchors, BadSignature, proven_by
from console.models import Decision
from console.services.checkpoints import stored_anchors, trusted_keys
from console.stores import CONSOLE_CHAIN, get_store

TOLD_EVERY = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryCheck:
    """One history as it was found."""

    name: str
    chain: str
    report: ChainReport
    checkpoints_problem: str = ""  # this console's own checkpoints of it do not hold

    @property
    def first_bad(self) -> str:
        """Where it is wrong, in one line; empty where it is not."""
        if fault := self.report.first_fault:
            return f"entry {fault.number}: {fault.says}"
        return self.checkpoints_problem


def check_history(chain: EntryChain, kept: Anchors | None = None, *, told: Callable[[int], None] | None = None) -> HistoryCheck:
    """Everything that can be said of one history. `kept`: checkpoints that were kept elsewhere, beside those that this console keeps.

    Flat memory. `told` hears every TOLD_EVERY links how many are done. Raises StoreError where it cannot be read: then nothing is known.
    """
    head = chain.read_head()
    problem = ""
    try:
        anchors = stored_anchors(chain.name).of(chain.name, head.chain)
    except BadSignature as exc:
        anchors, problem = (), f"the console's own checkpoints: {exc}"
    report = verify_history(chain, [*anchors, *(kept or Anchors()).of(chain.name, head.chain)], told=told)
    if report.is_intact and chain.name != CONSOLE_CHAIN:
        report = replace(report, missing=_missing_decision(chain, report.removed))
    return HistoryCheck(name=chain.name, chain=head.chain, report=report, checkpoints_problem=problem)


def verify_history(
    chain: EntryChain, anchors: Iterable[Anchor] = (), *, told: Callable[[int], None] | None = None
) -> ChainReport:
    """Walk the chain from its first entry up to the head as it was at the beginning; entries that come meanwhile are the next walk's.

    Raises StoreError where the history cannot be read: then nothing is known.
    """
    head = chain.read_head()
    links = _counted((link for link in chain.iterate_links() if link.number <= head.number), told)
    report = verify_chain(head.chain, links, head, anchors=anchors, removed_by=proven_by(chain.name, trusted_keys()))
    beyond = next(chain.iterate_links(after=head.number), None)
    if report.is_intact and beyond is not None and chain.read_head() == head:
        fault = Fault(number=beyond.number, says=f"entry {beyond.number} stands beyond the head, which says {head.number}")
        return replace(report, broken=fault)
    return report


def _counted(links: Iterable[Link], told: Callable[[int], None] | None) -> Iterator[Link]:
    for count, link in enumerate(links, start=1):
        if told is not None and count % TOLD_EVERY == 0:
            told(count)
        yield link


def _missing_decision(chain: EntryChain, removed: int) -> Fault | None:
    """The first entry that the console's own decisions say was written, and that is not there or is another decision's.

    Decisions are read first: an entry is committed before the console notes its number. Both are streamed in the order of the numbers.
    """
    written = Decision.objects.filter(store=chain.name, entry_number__gt=removed).order_by("entry_number")
    links = chain.iterate_links()
    link: Link | None = None
    for number, decision_id in written.values_list("entry_number", "decision_id").iterator():
        while link is None or link.number < (number or 0):
            link = next(links, None)
            if link is None:
                prepared = get_store(chain.name).check().is_prepared
                gone = "the history ends before it" if prepared else "the store is not prepared: its history is gone"
                return Fault(number=number or 0, says=f"decision {decision_id} was written there, and {gone}")
        entry = show_entry(link)
        if (entry.number, entry.kind, entry.decision_id) != (number, "settled", decision_id):
            says = f"decision {decision_id} was written there, and another entry stands in its place"
            return Fault(number=number or 0, says=says)
    return None
