"""The records of one polign_db collection, as they are asked for: by id, by what their metadata say, newest first. Nothing is written here.

A list over all agents costs the server a scan of the collection, however little it finds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote

from actions.errors import StoreUnavailable, StoreUnusable
from actions.rules import is_utf8
from actions.store.codec import Metadata
from actions.store.polign_http import NOT_FOUND, Answer, Server
from actions.times import Instant

T = TypeVar("T")

PAGE = 1_000
"""How many records the server gives at most in one answer."""
OVERLAP = 100
_NUMBER = re.compile(r":(?:act|turn|ws):([0-9]{1,18})\Z", re.ASCII)
_NUMBERS = frozenset({"epoch", "seq", "tokens", "version"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """Records by id, in its order; `total` is how many matched in all."""

    rows: tuple[tuple[str, Metadata], ...]
    total: int
    at: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record with its vector, as it must be written again."""

    metadata: Metadata
    values: list[Any]


class PolignRecords:
    """One collection of one server. `until`: when nobody waits any more, by our own monotonic clock (`Server.until`).

    What asks raises StoreUnavailable and StoreUnusable as the contract has them.
    """

    def __init__(self, server: Server, collection: str) -> None:
        self.name = server.name
        self.path = f"/v1/collections/{quote(collection, safe='')}"
        self._server = server

    def get_record(self, record_id: str, *, until: float) -> tuple[Record | None, Instant]:
        """One record whole, its numbers as numbers; and the server's time."""
        if not can_be_stored(record_id):
            return None, 0
        answer = self._server.read(f"{self.path}/vectors/{quote(record_id, safe='')}", until=until, params={"typed": "true"})
        if answer.status == NOT_FOUND:
            return None, answer.at
        return Record(metadata=self._metadata(answer.body), values=self.of_type(answer.body, "values", list)), answer.at

    def find_records(self, record_ids: Sequence[str], *, until: float) -> dict[str, Metadata]:
        """Records by their ids, in one request; missing ones are left out. The server answers every value as a text here."""
        ids = [record_id for record_id in record_ids if can_be_stored(record_id)]
        if not ids:
            return {}
        answer = self._server.read(f"{self.path}/vectors:get", until=until, body={"ids": ids})
        if answer.status == NOT_FOUND:
            return {}
        return {record_id: _with_numbers(metadata) for record_id, metadata in self._rows(answer)}

    def list_records(self, wanted: Mapping[str, object], *, limit: int, until: float) -> Listed:
        """Records whose metadata match, in the order of their ids, page by page.

        The pages are no snapshot: each begins some records before the end of the one before, so that none is left out because others
        stopped matching meanwhile.

        Raises:
            StoreUnavailable: they moved by more than a page while they were read.
        """
        rows: list[tuple[str, Metadata]] = []
        overlap = OVERLAP
        while True:
            start = max(len(rows) - overlap, 0)
            asked = min(PAGE, max(limit, 1) - start)
            answer = self._page(wanted, limit=asked, offset=start, until=until)
            page, total = self._rows(answer), self.of_type(answer.body, "total", int)
            if rows and (not page or page[0][0] > rows[-1][0]):
                if overlap >= PAGE - 1:
                    raise StoreUnavailable(self.name, "its records changed too fast to be listed; try again")
                overlap = min(overlap * 4, PAGE - 1)
                continue
            fresh = [row for row in page if not rows or row[0] > rows[-1][0]]
            rows += fresh
            if len(rows) >= limit or not page or start + len(page) >= total:
                return Listed(rows=tuple(rows[: max(limit, 0)]), total=total, at=answer.at)

    def count_records(self, wanted: Mapping[str, object], *, until: float) -> int:
        """How many records' metadata match."""
        return self.of_type(self._page(wanted, limit=1, offset=0, until=until).body, "total", int)

    def _page(self, wanted: Mapping[str, object], *, limit: int, offset: int, until: float) -> Answer:
        params = {"filter": json.dumps(wanted), "limit": str(limit), "offset": str(offset), "typed": "true"}
        return self._server.read(f"{self.path}/vectors", until=until, params=params)

    def list_newest(
        self, agent: str, record: str, *, limit: int, before: int | None, until: float, number: str = "seq"
    ) -> Listed:
        """An agent's newest records of one kind, newest first, by the number in the id; those without one come last.

        Up to 1000 are all read and put in order here. Beyond that only those are asked for whose metadata say a number near the newest,
        which relies on Recall's numbers having no gaps.
        """
        if limit < 1 or not can_be_stored(agent):
            return Listed(rows=(), total=0, at=0)
        wanted: dict[str, object] = {"recall_agent": agent, "record": record}
        listed = self.list_records(wanted, limit=PAGE, until=until)
        if listed.total > PAGE:
            top = min(listed.total + 1, before) if before is not None else listed.total + 1
            near: dict[str, object] = {"$gte": top - limit - OVERLAP}
            if before is not None:
                near["$lt"] = before
            listed = self.list_records(wanted | {number: near}, limit=limit + 10 * PAGE, until=until)
        rows = [row for row in listed.rows if before is None or 0 <= number_of(row[0]) < before]
        rows.sort(key=lambda row: (number_of(row[0]), row[0]), reverse=True)
        return Listed(rows=tuple(rows[:limit]), total=listed.total, at=listed.at)

    def _rows(self, answer: Answer) -> list[tuple[str, Metadata]]:
        vectors = self.of_type(answer.body, "vectors", list)
        return [(self.of_type(vector, "id", str), self._metadata(vector)) for vector in vectors]

    def _metadata(self, vector: object) -> Metadata:
        return self.of_type(vector, "metadata", dict, {})

    def of_type(self, found: object, name: str, kind: type[T], default: T | None = None) -> T:
        """What an answer says under a name. Raises StoreUnusable where that is not of its kind."""
        value = found.get(name, default) if isinstance(found, Mapping) else None
        if not isinstance(value, kind):
            raise StoreUnusable(self.name, f"what answers there is not polign_db: it says no {name}")
        return value


def number_of(record_id: str) -> int:
    """The number in an action's, a turn's or a working state's id, which alone is unique; -1 where there is none."""
    match = _NUMBER.search(record_id)
    return int(match[1]) if match else -1


def _with_numbers(metadata: Metadata) -> Metadata:
    """Metadata of which every value came as a text, with those that Recall keeps as numbers as numbers."""
    return {
        name: int(value) if name in _NUMBERS and isinstance(value, str) and value.isascii() and value.isdigit() else value
        for name, value in metadata.items()
    }


def can_be_stored(text: str) -> bool:
    """Whether a record could have such an id at all. What cannot be is not there."""
    return is_utf8(text)
