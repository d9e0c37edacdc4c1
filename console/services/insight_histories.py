"""What Insight reads of the histories: of each the newest entries of a range, in bounded batches, and what is missing of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from actions.errors import StoreError
from actions.records import ActionRef, Entry
from actions.side_by_side import ask_each
from actions.store.audit import RETAINED
from actions.store.base import ActionStore
from actions.store.checkpoints import proven_by
from actions.times import Instant, from_datetime, to_datetime
from console.history import SLACK, number_after
from console.services.checkpoints import trusted_keys

MAX_ENTRIES = 10_000
"""Entries that are read for one page, of all histories together."""
BATCH = 500
MAX_LISTED = 50
"""Of tools, people and contradictions, the most that a table holds."""
_KINDS = frozenset({"settled", "corrected", "observed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which time, and of what; an empty text means every one. `until` is not included."""

    since: datetime
    until: datetime
    store: str = ""
    tool: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """The oldest entries of a history, which are gone: of the time before `until` its numbers are of what is left."""

    store: str
    number: int  # of the last of them: all up to it
    until: datetime  # when the first that is left was written
    is_signed: bool  # a signed tombstone says so; else nobody knows why they are missing


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """One history's entries of the range that are counted here, newest first."""

    entries: Sequence[Entry]
    cut: Instant | None = None  # from when on they are all here, where there are more than may be read
    removed: Removed | None = None


def read_entries(
    stores: Sequence[ActionStore], asked: Asked, problems: dict[str, str]
) -> tuple[list[tuple[str, Entry]], dict[str, datetime], tuple[Removed, ...]]:
    """The entries of the range by store, newest first in each; from when on they are read where there are too many; what is gone.

    The stores are asked side by side, each in batches. One that does not answer is put into `problems`.
    """
    found: list[tuple[str, Entry]] = []
    cut: dict[str, datetime] = {}
    removed: list[Removed] = []
    most = MAX_ENTRIES // max(1, len(stores))
    for store, read in zip(stores, ask_each(stores, lambda store: _entries_of(store, asked, most)), strict=True):
        if isinstance(read, StoreError):
            problems[store.name] = read.problem
            continue
        found += [(store.name, entry) for entry in read.entries]
        if read.cut is not None:
            cut[store.name] = to_datetime(read.cut)
        if read.removed is not None:
            removed.append(read.removed)
    return found, cut, tuple(removed)


def _entries_of(store: ActionStore, asked: Asked, most: int) -> _Read | StoreError:
    since, until = from_datetime(asked.since), from_datetime(asked.until)
    found: list[Entry] = []
    read = 0
    try:
        before = _beyond(store, until)
        while True:
            size = min(BATCH, most - read)
            page = store.list_entries(limit=size, before=before)
            read += len(page)
            found += [entry for entry in page if entry.kind in _KINDS and since <= entry.at < until]
            if page and 0 < page[-1].at < since - SLACK:
                return _Read(entries=found)
            if len(page) < size:
                oldest = page[-1].number if page else before
                return _Read(entries=found, removed=_removed(store, oldest, asked.since) if oldest is not None else None)
            if read >= most:
                return _Read(entries=found, cut=max(since, page[-1].at))
            before = page[-1].number
    except StoreError as exc:
        return exc


def _removed(store: ActionStore, oldest: int, since: datetime) -> Removed | None:
    """What is gone of a history that was read down to its beginning, entry `oldest`; None where nothing is, or nothing of the range."""
    if oldest <= 1 or not (left := store.list_entries(limit=1, before=oldest + 1)):
        return None
    first = left[0]
    if first.number == 1 or to_datetime(first.at) <= since:
        return None
    proofs = map(proven_by(store.name, trusted_keys()), store.list_entries(limit=MAX_LISTED, kinds={RETAINED}))
    is_signed = any(proof is not None and proof.number == first.number - 1 for proof in proofs)
    return Removed(store=store.name, number=first.number - 1, until=to_datetime(first.at), is_signed=is_signed)


def _beyond(store: ActionStore, until: Instant) -> int | None:
    """Where to begin: at the newest, or, where the range ended long ago, at a number that is looked up by halves."""
    newest = store.list_entries(limit=1)
    return number_after(store, until + SLACK) if newest and newest[0].at > until + SLACK else None


def ref_of(name: str, entry: Entry) -> ActionRef:
    """The action that an entry of this store is about."""
    return ActionRef(name, entry.agent, entry.seq or 0)
