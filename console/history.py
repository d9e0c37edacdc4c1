"""The history of several stores as one list: newest first, keyset-paged, bounded in what it reads."""

from __future__ import annotations

import base64
import heapq
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from actions.errors import InvalidQuery, StoreError
from actions.records import Entry
from console.stores import ActionStore

BATCH = 200
MAX_READ = 2_000
"""Entries read for one page, in all: a filter that matches little says how far it looked instead of reading everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryItem:
    """An entry and the store in whose chain it stands."""

    store: str
    entry: Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPage:
    """A page of the history. `next` is opaque; None at the end. `is_partial`: it stopped looking, though there is more."""

    items: tuple[HistoryItem, ...]
    next: str | None
    is_partial: bool
    problems: Mapping[str, str]  # stores that did not answer, and why


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryFilter:
    """Which entries; an empty text means no condition."""

    store: str = ""
    agent: str = ""
    tool: str = ""
    kind: str = ""
    seq: int | None = None

    def matches(self, entry: Entry) -> bool:
        return (not self.kind or entry.kind == self.kind) and (not self.tool or entry.tool == self.tool)


def list_history(
    stores: Sequence[ActionStore],
    wanted: HistoryFilter,
    *,
    limit: int,
    cursor: str | None = None,
    may_see: Callable[[str, str], bool],
) -> HistoryPage:
    """Entries of all these stores' chains, newest first. `may_see(store, tool)` decides for each.

    The cursor holds, for each store, the number of the oldest entry looked at, so that entries which come meanwhile shift nothing.

    Raises:
        InvalidQuery: the cursor is not one of ours.
    """
    before = _read_cursor(cursor)
    problems: dict[str, str] = {}
    budget = _Budget(MAX_READ)
    streams = [
        _newest_first(store, wanted, before.get(store.name), budget, problems)
        for store in stores
        if wanted.store in ("", store.name) and before.get(store.name) != 0
    ]
    shown: list[HistoryItem] = []
    for store, entry in heapq.merge(*streams, key=lambda row: (-row[1].at, row[0], -row[1].number)):
        if len(shown) == limit:
            return HistoryPage(items=tuple(shown), next=_write_cursor(before), is_partial=False, problems=problems)
        before[store] = entry.number
        if wanted.matches(entry) and may_see(store, entry.tool):
            shown.append(HistoryItem(store=store, entry=entry))
    more = budget.is_spent
    return HistoryPage(items=tuple(shown), next=_write_cursor(before) if more else None, is_partial=more, problems=problems)


@dataclass(slots=True)
class _Budget:
    left: int
    is_spent: bool = False


def _newest_first(
    store: ActionStore, wanted: HistoryFilter, before: int | None, budget: _Budget, problems: dict[str, str]
) -> Iterator[tuple[str, Entry]]:
    while True:
        if budget.left <= 0:
            budget.is_spent = True
            return
        limit = min(BATCH, budget.left)
        try:
            entries = store.list_entries(limit=limit, before=before, agent=wanted.agent or None, seq=wanted.seq)
        except StoreError as exc:
            problems[store.name] = exc.problem
            return
        budget.left -= len(entries)
        yield from ((store.name, entry) for entry in entries)
        if len(entries) < limit:
            return
        before = entries[-1].number


def _write_cursor(before: Mapping[str, int]) -> str:
    return base64.urlsafe_b64encode(json.dumps(before, sort_keys=True).encode()).decode().rstrip("=")


def _read_cursor(cursor: str | None) -> dict[str, int]:
    if not cursor:
        return {}
    try:
        found = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        if not isinstance(found, dict) or not all(type(number) is int and 0 < number < 2**63 for number in found.values()):
            raise ValueError("wrong types")
    except (ValueError, TypeError, RecursionError) as exc:
        raise InvalidQuery("the cursor is not one that this list gave out; start from the first page") from exc
    return found
