"""The history of several stores as one list: newest first, keyset-paged, bounded in what it reads."""

from __future__ import annotations

import base64
import heapq
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from actions.errors import InvalidQuery, StoreError
from actions.records import Entry
from actions.side_by_side import ask_each
from actions.times import SECOND, Instant, format_rfc3339
from console.stores import EntryChain
from console.words import ENTRY_KINDS

BATCH = 200
MAX_READ = 2_000
"""Entries read for one page, in all: a filter that matches little says how far it looked instead of reading everything."""
_LAST = 2**63 - 1
SLACK = 600 * SECOND
"""How far a store's clock may have been set back: entries are in the order of their numbers, nearly in that of their times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryItem:
    """An entry and the store in whose chain it stands."""

    store: str
    entry: Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPage:
    """A page of the history. `next` is opaque; None at the end. `is_partial`: it stopped looking after `looked` entries, though there is more."""

    items: tuple[HistoryItem, ...]
    next: str | None
    is_partial: bool
    looked: int  # how many entries were compared with the conditions
    problems: Mapping[str, str]  # stores that did not answer, and why


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryFilter:
    """Which entries; an empty text means no condition. Times are of the store's clock; `until` is not included."""

    store: str = ""
    agent: str = ""
    tool: str = ""
    kind: str = ""
    actor: str = ""
    outcome: str = ""
    seq: int | None = None
    since: Instant | None = None
    until: Instant | None = None
    text: str = ""  # found in what the entry says, case folded

    def matches(self, entry: Entry) -> bool:
        """Whether an entry of a chain that is asked for is one of these. Which store it stands in, the caller knows."""
        return (
            self.kind in ("", entry.kind)
            and self.tool in ("", entry.tool)
            and self.agent in ("", entry.agent)
            and self.outcome in ("", entry.outcome)
            and (self.seq is None or self.seq == entry.seq)
            and (not self.actor or self.actor == entry.actor or self.actor == entry.actor.partition(" ")[2])
            and (self.since is None or entry.at >= self.since)
            and (self.until is None or entry.at < self.until)
            and (not self.text or mentions(entry, self.text))
        )

    @property
    def said(self) -> dict[str, str]:
        """The conditions by name, as a manifest and an entry say them; empty where there is none."""
        values: dict[str, object] = {
            name: getattr(self, name) for name in ("store", "agent", "tool", "kind", "actor", "outcome", "seq", "text")
        }
        values |= {
            name: None if at is None else format_rfc3339(at) for name, at in (("since", self.since), ("until", self.until))
        }
        return {name: str(value) for name, value in values.items() if value not in ("", None)}


def mentions(entry: Entry, text: str) -> bool:
    """Search what a person may see of an entry, which is stored redacted."""
    needle = text.casefold()
    said = (entry.actor, entry.agent, entry.tool, entry.reason, entry.outcome, entry.decision_id, entry.evidence_id, entry.kind)
    return any(needle in part.casefold() for part in said) or (
        bool(entry.detail) and needle in json.dumps(entry.detail, ensure_ascii=False).casefold()
    )


def changed_in(detail: Mapping[str, object]) -> tuple[tuple[str, str, str | None], ...]:
    """What an entry says that was one thing before and another after: name, before, after.

    A name of `after` alone had nothing before. Of a name of `before` alone (the arguments of a call, who held an evicted lease) the entry
    does not say what it is now: None.
    """
    changed = detail.get("changed")
    if isinstance(changed, dict):
        pairs = {str(name): both for name, both in changed.items() if isinstance(both, list) and len(both) == 2}
        return tuple((name, _plain(both[0]), _plain(both[1])) for name, both in pairs.items())
    before, after = detail.get("before"), detail.get("after")
    if not isinstance(before, dict) or not isinstance(after, dict):
        return ()
    names = [*before, *(name for name in after if name not in before)]
    return tuple(
        (str(n), _plain(before.get(n)), _plain(after[n]) if n in after else None) for n in names if before.get(n) != after.get(n)
    )


def _plain(value: object) -> str:
    """As a person reads it: several texts in one line, yes or no; what has a shape of its own stays JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return ", ".join(value)
    return json.dumps(value, ensure_ascii=False)


def require_kind(kind: str) -> str:
    """The kind of a filter, unless no entry can have it: an empty history would look like an answer.

    Raises:
        InvalidQuery: names it, and those that there are.
    """
    if kind and kind not in ENTRY_KINDS:
        raise InvalidQuery(f"no kind of entry is called {kind[:40]!r}; there are {', '.join(ENTRY_KINDS)}")
    return kind


def list_history(
    stores: Sequence[EntryChain],
    wanted: HistoryFilter,
    *,
    limit: int,
    cursor: str | None = None,
    may_see: Callable[[str, str], bool],
) -> HistoryPage:
    """Entries of all these stores' chains, newest first. `may_see(store, tool)` decides for each. The stores are asked side by side.

    The cursor holds, for each store, below which number it goes on, so that entries which come meanwhile shift nothing. A store that does
    not answer is named in `problems`; it goes on where it stood once it answers again.

    Raises:
        InvalidQuery: the cursor is not one of ours.
    """
    before = _read_cursor(cursor)
    problems: dict[str, str] = {}
    asked = [store for store in stores if wanted.store in ("", store.name)]
    size = max(1, min(BATCH, MAX_READ // max(1, len(asked))))
    first = ask_each(asked, lambda store: _read_first(store, wanted, before.get(store.name), size))
    budget = _Budget(MAX_READ - size * len(asked))
    streams = []
    for store, entries in zip(asked, first, strict=True):
        if isinstance(entries, StoreError):
            problems[store.name] = entries.problem
            continue
        # Also where none of it is shown on this page: what comes after now belongs above it.
        before.setdefault(store.name, min(entries[0].number + 1, _LAST) if entries else 1)
        streams.append(_newest_first(store, wanted, entries, size, budget, problems))
    shown: list[HistoryItem] = []
    looked, is_cut, is_partial = 0, False, False
    try:
        for name, entry in heapq.merge(*streams, key=lambda row: (-row[1].at, row[0], -row[1].number)):
            if len(shown) == limit:
                is_cut = True
                break
            before[name] = entry.number
            looked += 1
            if wanted.matches(entry) and may_see(name, entry.tool):
                shown.append(HistoryItem(store=name, entry=entry))
    except _Spent:
        is_cut = is_partial = True
    following = write_cursor(before) if is_cut else None
    return HistoryPage(items=tuple(shown), next=following, is_partial=is_partial, looked=looked, problems=problems)


class _Spent(Exception):
    """As many entries as one page may read have been looked at."""


@dataclass(slots=True)
class _Budget:
    left: int


def _newest_first(
    store: EntryChain,
    wanted: HistoryFilter,
    entries: Sequence[Entry],
    size: int,
    budget: _Budget,
    problems: dict[str, str],
) -> Iterator[tuple[str, Entry]]:
    """One store's entries from its first batch on. A batch shorter than what was asked for is the last."""
    while True:
        for entry in entries:
            if wanted.since is not None and 0 < entry.at < wanted.since - SLACK:
                return
            yield store.name, entry
        if len(entries) < size:
            return
        if budget.left <= 0:
            raise _Spent
        size = min(BATCH, budget.left)
        found = _read(store, wanted, entries[-1].number, size)
        if isinstance(found, StoreError):
            problems[store.name] = found.problem
            return
        entries = found
        budget.left -= len(entries)


def _read_first(store: EntryChain, wanted: HistoryFilter, before: int | None, size: int) -> tuple[Entry, ...] | StoreError:
    """The first batch of a page. Where a time is asked for that is long past, nothing newer is read: its number is looked up by halves."""
    try:
        if before is None and wanted.until is not None:
            before = number_after(store, wanted.until + SLACK)
    except StoreError as exc:
        return exc
    return _read(store, wanted, before, size)


def number_after(chain: EntryChain, at: Instant) -> int:
    """The number of the first entry that is not older than `at`, one beyond the newest where all are; a read for each doubling of the chain."""
    low, high = 1, chain.read_head().number + 1
    while low < high:
        middle = (low + high) // 2
        found = chain.list_entries(limit=1, before=middle + 1)
        if not found or found[0].at < at:  # also where a retention removed what stood there
            low = middle + 1
        else:
            high = min(middle, found[0].number)
    return low


def _read(store: EntryChain, wanted: HistoryFilter, before: int | None, limit: int) -> tuple[Entry, ...] | StoreError:
    try:
        return store.list_entries(limit=limit, before=before, agent=wanted.agent or None, seq=wanted.seq)
    except StoreError as exc:
        return exc


def write_cursor(before: Mapping[str, int]) -> str:
    """Where a page goes on: below which number of each chain."""
    return base64.urlsafe_b64encode(json.dumps(before, sort_keys=True).encode()).decode().rstrip("=")


def _read_cursor(cursor: str | None) -> dict[str, int]:
    if not cursor:
        return {}
    try:
        found = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        if not isinstance(found, dict) or not all(type(number) is int and 0 < number <= _LAST for number in found.values()):
            raise ValueError("wrong types")
    except (ValueError, TypeError, RecursionError) as exc:
        raise InvalidQuery("the cursor is not one that this list gave out; start from the first page") from exc
    return found
