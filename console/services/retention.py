"""Removing the oldest entries of a history: signed for, exported first, whole leading ranges only, with the owner's credentials.

The console's own role cannot do it, and nothing in here runs by itself (contract, Audit entries).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path

from django.conf import settings

from actions.errors import ActionsError
from actions.records import ChainHead, Entry, NewEntry
from actions.store.audit import RETAINED as RETAINED
from actions.store.audit import show_entry
from actions.store.audit_file import BadFile, verify_file
from actions.store.base import MAX_REMOVED, EntryChain, OwnChain
from actions.store.checkpoints import sign_tombstone
from actions.times import Instant
from console.history import HistoryFilter
from console.services.audit import check_history as check
from console.services.checkpoints import sign_next, trusted_keys
from console.services.exports import Export, write_export
from console.stores import ActionStore


class NotRetained(ActionsError):
    """Nothing was removed; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The entries that a retention would remove: every one up to `last`."""

    last: ChainHead
    count: int


def find_range(chain: EntryChain, before: Instant) -> Range | None:
    """The longest leading range whose every entry is older than `before`; None where there is none. The newest entry always stays."""
    head = chain.read_head()
    last: ChainHead | None = None
    count = 0
    for link in chain.iterate_links():
        if link.number >= head.number or show_entry(link).at >= before:
            break
        last = ChainHead(chain=head.chain, number=link.number, hash=link.hash)
        count += 1
    return Range(last=last, count=count) if last is not None else None


def check_history(chain: EntryChain) -> None:
    """A history that does not hold is evidence: nothing of it is removed.

    Raises:
        NotRetained: it is not intact, or cannot be vouched for by a checkpoint of its own.
    """
    if found := check(chain).first_bad:
        raise NotRetained(f"{chain.name}: {found}; nothing was removed")
    sign_next(chain)


def export_range(chain: EntryChain, found: Range, path: Path, *, by: str) -> None:
    """The range as a file, verified as it stands on the disk.

    Raises:
        NotRetained: it could not be written, or the file does not verify. Nothing was removed.
    """
    filters = HistoryFilter(store=chain.name)
    export = Export(
        format="jsonl",
        filters=filters,
        by=by,
        chains=[_UpTo(chain, found.last)],
        may_see=lambda store, tool: True,
        heads={chain.name: found.last},
        is_limited=True,
    )
    try:
        write_export(export, path)
        report = verify_file(path, trusted=trusted_keys())
    except (OSError, BadFile) as exc:
        raise NotRetained(f"{path} could not be written and verified: {exc}; nothing was removed") from exc
    if not report.is_intact or report.rows != found.count:
        raise NotRetained(f"{path}: {report.verdict}; nothing was removed")


def remove(owner: ActionStore | OwnChain, found: Range, *, by: str, reason: str) -> Iterator[Entry]:
    """Remove the range, at most MAX_REMOVED entries a transaction; each leaves a signed tombstone and says so in the chain itself.

    Raises:
        StoreError: as `ActionStore.remove_entries`; what was removed before stays removed, and the chain is whole.
    """
    removed_before = max(0, found.last.number - found.count)
    for last in _steps(owner, found):
        count = last.number
        tombstone = sign_tombstone(owner.name, last, count=count, at=time.time_ns(), seed=settings.AUDIT_SIGNING_KEYS[0])
        detail = {"tombstone": tombstone.line, "removed": [removed_before + 1, last.number]}
        removed_before = last.number
        yield owner.remove_entries(last, NewEntry(kind=RETAINED, actor=by, reason=reason, detail=detail))


def _steps(chain: EntryChain, found: Range) -> Iterator[ChainHead]:
    """The last entries of the transactions, in their order."""
    links = takewhile(lambda link: link.number <= found.last.number, chain.iterate_links())
    ends = []
    while batch := list(islice(((link.number, link.hash) for link in links), MAX_REMOVED)):
        ends.append(ChainHead(chain=found.last.chain, number=batch[-1][0], hash=batch[-1][1]))
    yield from ends


class _UpTo:
    """A chain as if it ended earlier."""

    def __init__(self, chain: EntryChain, last: ChainHead) -> None:
        self.name, self._last = chain.name, last
        self.list_entries = chain.list_entries
        self.iterate_links = chain.iterate_links

    def read_head(self) -> ChainHead:
        return self._last
