"""Places in a list over several stores: where a page begins and ends, as a text that an address can carry. Knows keys, and nothing of rows."""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from actions.errors import InvalidQuery

SortKey = tuple[int, int, str, str, int, str]
"""What a list is ordered by: risk, began, store, agent, number, and the id of a record that has none."""


class Placed(Protocol):
    """A row that has its place in a list."""

    @property
    def key(self) -> SortKey: ...


Row = TypeVar("Row", bound=Placed)


def store_of(key: SortKey) -> str:
    """The store that a row with this key is in."""
    return key[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a page begins, or with `is_end` where it ends; None: at the list's own beginning or end.

    `behind`: where stores are that did not answer on a page before this one; what they hold after that place was never shown.
    """

    key: SortKey | None = None
    is_end: bool = False
    behind: Mapping[str, SortKey | None] = field(default_factory=dict)
    version: int | None = None  # of the weights by which the pages before were ordered

    def of(self, store: str) -> SortKey | None:
        return self.behind.get(store, self.key)


def turn_to(
    place: Place, rows: Sequence[Row], limit: int, *, away: Collection[str]
) -> tuple[Sequence[Row], Place | None, Place | None]:
    """The rows of one page, the page before it and the page after it. `rows` in the order of their keys; `away`: stores whose rows are not there."""
    if place.is_end:
        end = len(rows) if place.key is None else sum(1 for row in rows if row.key < place.key)
        shown = rows[max(0, end - limit) : end]
        has_before, has_more = end > len(shown), end < len(rows)
        place = Place(key=rows[end - len(shown) - 1].key if has_before else None)
    else:
        left = [row for row in rows if _is_after(row.key, place.of(store_of(row.key)))]
        shown = left[:limit]
        has_before, has_more = bool(rows) and rows[:1] != shown[:1], len(left) > limit
    before = Place(key=shown[0].key if shown else None, is_end=True) if has_before else None
    return shown, before, _after(place, shown, away) if has_more else None


def write_cursor(place: Place, version: int) -> str:
    """A place as a text for an address. `version`: of the rules by which the list was ordered."""
    said: dict[str, object] = {"before" if place.is_end else "after": place.key}
    if place.behind:
        said["behind"] = dict(sorted(place.behind.items()))
    said["rules"] = version
    return base64.urlsafe_b64encode(json.dumps(said, separators=(",", ":")).encode()).decode().rstrip("=")


def read_cursor(cursor: str | None) -> Place:
    """The place that `write_cursor` wrote; the beginning where there is none. Raises InvalidQuery where it is none of ours."""
    if not cursor:
        return Place()
    try:
        said = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        version = said.pop("rules", None)
        if version is not None and (type(version) is not int or not 0 <= version < 2**63):
            raise ValueError("no version")
        if set(said) == {"before"}:
            return Place(key=_read_key(said["before"]), is_end=True, version=version)
        if set(said) - {"behind"} != {"after"}:
            raise ValueError("wrong names")
        behind = {name: _read_key(key) for name, key in said.get("behind", {}).items()}
        return Place(key=_read_key(said["after"]), behind=behind, version=version)
    except (ValueError, TypeError, AttributeError, RecursionError) as exc:
        raise InvalidQuery("the cursor is not one that this list gave out; start from the first page") from exc


def _after(place: Place, shown: Sequence[Placed], away: Collection[str]) -> Place:
    """The place after a page: its last row, and where every store is that has not come so far."""
    last = shown[-1].key if shown else None
    key = _later(place.key, last)
    behind = {}
    for store in {*place.behind, *away}:
        reached = place.of(store) if store in away else _later(place.of(store), last)
        if reached != key:
            behind[store] = reached
    return Place(key=key, behind=behind)


def _is_after(key: SortKey, place: SortKey | None) -> bool:
    return place is None or key > place


def _later(one: SortKey | None, other: SortKey | None) -> SortKey | None:
    return one if other is None or (one is not None and one > other) else other


def _read_key(said: object) -> SortKey | None:
    if said is None:
        return None
    if not isinstance(said, list):
        raise TypeError("no key")
    risk, began, store, agent, seq, record_id = said
    if not all(type(n) is int for n in (risk, began, seq)) or not all(type(t) is str for t in (store, agent, record_id)):
        raise TypeError("wrong types")
    return risk, began, store, agent, seq, record_id
