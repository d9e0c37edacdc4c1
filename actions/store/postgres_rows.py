"""Rows of a PostgreSQL store <-> records: each decoded for itself, times as seconds, what a text column can hold."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache
from typing import Any, TypeVar

from actions.records import Action, Entry, Lease, Link, Reading, Unreadable
from actions.rules import is_utf8
from actions.store import codec
from actions.store.audit import read_entry
from actions.store.codec import decode_action, load_metadata
from actions.times import FIRST_SECOND, LAST_SECOND, SECOND, Instant, to_datetime

T = TypeVar("T")

SEARCHABLE = ("kind", "actor", "agent", "seq", "tool", "decision_id", "outcome")
"""The columns beside an entry's text, apart from its time."""

MAX_DECODED_CHARS = 2_000
"""Only of texts so short it is kept what they were decoded to."""

_FIRST, _LAST = Decimal(FIRST_SECOND), Decimal(LAST_SECOND)


@lru_cache(maxsize=256)  # all rows of one read carry the same "now"
def read_instant(seconds: Decimal | float) -> Instant:
    """Seconds since 1970 as PostgreSQL extracts them; infinity, which an expiry may be, as the last second that a text can hold."""
    return int(min(max(Decimal(seconds), _FIRST), _LAST) * SECOND)


def lease_of_row(row: Any) -> Lease | None:
    """The lease in five columns: agent, holder, epoch, expiry, now; None where the outer join found none."""
    agent, holder, epoch, expires_at, now = row
    if agent is None:
        return None
    return Lease(agent=agent, holder=holder, epoch=epoch, expires_at=read_instant(expires_at), read_at=read_instant(now))


def lease_in_microseconds(row: Any) -> Lease | None:
    """The same with expiry and now in whole microseconds."""
    agent, holder, epoch, expires_at, now = row
    if agent is None:
        return None
    return Lease(agent=agent, holder=holder, epoch=epoch, expires_at=expires_at * 1000, read_at=now * 1000)


def reading_of_row(row: Any) -> Reading:
    """An action's id and metadata, and the five columns of its lease."""
    record_id, text, *columns = row
    lease = lease_of_row(columns)
    return Reading(
        action=decoded_action(record_id, text), lease=lease, read_at=lease.read_at if lease else read_instant(columns[-1])
    )


def decoded_action(record_id: str, text: str) -> Action | Unreadable:
    return decoded(decode_action, record_id, text)


def action_by_values(
    record_id: str, body: str, act: str, action_class: str, status: str, agent: str, epoch: str
) -> Action | Unreadable:
    """An action from the values of its metadata, where each has the type that Recall gives it."""
    metadata = {
        "record": "action",
        "recall_agent": agent,
        "act": act,
        "class": action_class,
        "status": status,
        "epoch": float(epoch) if "." in epoch else int(epoch),
        "body": body,
    }
    return codec.decoded(decode_action, record_id, metadata)


def decoded(decode: Callable[[str, object], T], record_id: str, text: str) -> T | Unreadable:
    """As `codec.decoded`, from the JSON text of its metadata."""
    # A page refreshes by itself, and few of the records on it have changed: each short text is decoded once.
    return _decoded_once(decode, record_id, text) if len(text) <= MAX_DECODED_CHARS else _decoded(decode, record_id, text)


def _decoded(decode: Callable[[str, object], T], record_id: str, text: str) -> T | Unreadable:
    return codec.decoded(decode, record_id, load_metadata(text))


_decoded_once = lru_cache(maxsize=2_000)(_decoded)


def can_be_stored(text: str) -> bool:
    """Whether PostgreSQL could hold such a text at all: no NUL, no half of a surrogate pair. What it cannot hold is not there."""
    return "\x00" not in text and is_utf8(text)


def entry_columns(entry: Entry) -> dict[str, Any]:
    """An entry's row. The columns beside `text` are for searching: what a text column cannot hold is replaced there, never in `text`."""
    seq = entry.seq if entry.seq is not None and abs(entry.seq) < 2**63 else None
    searchable = {
        name: _searchable(getattr(entry, name)) for name in ("kind", "actor", "agent", "tool", "decision_id", "outcome")
    }
    chained = {"chain": entry.chain, "number": entry.number, "text": entry.text, "prev": entry.prev, "hash": entry.hash}
    return {**searchable, **chained, "at": to_datetime(entry.at), "seq": seq}


def link_of_row(row: Any) -> Link:
    """A row of entries as it stands: number, text, prev, hash, seconds, and the searchable columns in the order of `SEARCHABLE`."""
    link = Link(*row[:4])
    try:
        said = entry_columns(read_entry(link))
    except (ValueError, TypeError, AttributeError, OverflowError):
        return link  # the text itself is none of ours, which says more
    at = None if row[4] is None else to_datetime(read_instant(row[4]))
    found = {"at": at, **dict(zip(SEARCHABLE, row[5:], strict=True))}
    return link._replace(misfiled=next((name for name, value in found.items() if value != said[name]), ""))


def _searchable(text: str) -> str:
    return text if can_be_stored(text) else text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()
