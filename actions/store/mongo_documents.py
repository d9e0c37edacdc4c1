"""MongoDB documents <-> Recall's metadata and leases, and the shapes of our reads: pure, no connection.

A record's metadata stand in its document twice: `md`, entries that filters use, and `m`, one JSON text, which is what Recall decodes. Both
are written from one dictionary, and a document in which they disagree is unreadable: nobody knows which of the two is true.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from bson import DatetimeMS, Int64

from actions.errors import RecordUnreadable
from actions.keys import args_ref
from actions.records import ActionStatus, Lease, Reading, Unreadable
from actions.rules import is_utf8
from actions.store.codec import Metadata, action_id, decode_action, head_id, load_metadata, output_id, unreadable
from actions.times import RELEASED, SECOND, YEAR_ONE, Instant

Document = Mapping[str, Any]
Stages = list[dict[str, Any]]
T = TypeVar("T")

LARGEST = 2**63 - 1
_MILLISECOND: Instant = 1_000_000
_END_OF_TIME: Instant = 253_402_300_799 * SECOND


# --- a record --------------------------------------------------------------------------------------------------------


def record_id(document: Document) -> str:
    return document["_id"] if isinstance(document["_id"], str) else repr(document["_id"])[:160]


def decoded(decode: Callable[[str, object], T], document: Document) -> T | Unreadable:
    """One record, decoded for itself alone: what cannot be is told with its id and spoils no list."""
    try:
        return decode(record_id(document), read_metadata(document))
    except RecordUnreadable as exc:
        return unreadable(exc.record_id, exc.problem)


def read_reading(collection: str, document: Document) -> Reading:
    """An action, its agent's lease and the store's time, as `with_lease` joined them."""
    now = read_time(document["now"])
    lease = read_lease(collection, document["lease"][0], now) if document["lease"] else None
    return Reading(action=decoded(decode_action, document), lease=lease, read_at=now)


def read_metadata(document: Document) -> Metadata:
    """What `m` says, where `md` agrees.

    Raises:
        RecordUnreadable: there is no `m`, it is not JSON, or the two do not say the same.
    """
    text = document.get("m")
    if not isinstance(text, str):
        raise RecordUnreadable(record_id(document), "it has no text m, which Recall decodes")
    if not is_utf8(text):
        raise RecordUnreadable(record_id(document), "its m is not UTF-8")
    metadata = load_metadata(text)
    if not isinstance(metadata, dict):
        raise RecordUnreadable(record_id(document), f"its m is not a JSON object: {str(metadata)[:160]}")
    entries = _entries(document)
    for key in sorted(metadata.keys() | entries.keys()):
        if not (key in metadata and key in entries and _is_same(metadata[key], entries[key])):
            raise RecordUnreadable(record_id(document), f"its m and its md do not say the same about {key[:60]!r}")
    return metadata


def _entries(document: Document) -> dict[str, Any]:
    entries = document.get("md")
    if not isinstance(entries, list) or not all(
        isinstance(e, dict) and isinstance(e.get("k"), str) and "v" in e for e in entries
    ):
        raise RecordUnreadable(record_id(document), "its md is not a list of keys and values")
    found = {entry["k"]: entry["v"] for entry in entries}
    if len(found) != len(entries):
        raise RecordUnreadable(record_id(document), "its md has a key twice")
    return found


def _is_same(told: object, indexed: object) -> bool:
    """Equal as BSON compares them: a number is the same as a double, and nothing else is a boolean."""
    if isinstance(told, bool) or isinstance(indexed, bool):
        return told is indexed
    if isinstance(told, int | float) and isinstance(indexed, int | float):
        return _double(told) == _double(indexed)
    if isinstance(told, dict) and isinstance(indexed, dict):
        return told.keys() == indexed.keys() and all(_is_same(told[key], indexed[key]) for key in told)
    if isinstance(told, list) and isinstance(indexed, list):
        return len(told) == len(indexed) and all(map(_is_same, told, indexed))
    return told == indexed


def _double(number: int | float) -> float:
    try:
        return float(number)
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")


def written_fields(metadata: Metadata) -> dict[str, Any]:
    """`md` and `m` of one dictionary: entries sorted by key, numbers as doubles; the text with sorted keys, compact."""
    entries = [{"k": key, "v": _indexed(metadata[key])} for key in sorted(metadata)]
    text = json.dumps(metadata, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return {"md": entries, "m": text}


def _indexed(value: object) -> object:
    return _double(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def vector_fields(dimension: int) -> dict[str, Any]:
    """A zero vector of the collection's dimension: no agent operation searches by it (recall-records 3.7)."""
    return {"v": [0.0] * dimension, "norm": 0.0, "text": ""}


# --- a lease ---------------------------------------------------------------------------------------------------------


def lease_id(collection: str, agent: str) -> str:
    return f"{len(collection.encode())}:{collection}/{agent}"


def leases_of(collection: str) -> dict[str, str]:
    """The range of `_id` that holds one collection's leases; `0` is the character after `/`."""
    prefix = lease_id(collection, "")
    return {"$gte": prefix, "$lt": f"{prefix[:-1]}0"}


def read_lease(collection: str, document: Document, now: Instant) -> Lease:
    """A lease as Recall would judge it: without a time that it could compare, it is free to take."""
    holder, epoch, expires = document.get("holder"), document.get("epoch"), document.get("expires_at")
    return Lease(
        agent=str(document["_id"]).removeprefix(lease_id(collection, "")),
        holder=holder if isinstance(holder, str) else "",
        epoch=int(epoch) if isinstance(epoch, int | float) else 0,
        expires_at=read_time(expires) if isinstance(expires, DatetimeMS) else RELEASED,
        read_at=now,
    )


def read_time(time: DatetimeMS) -> Instant:
    """An instant from a date, which may lie further away than RFC 3339 reaches: then the last second that a text can hold."""
    return min(max(int(time) * _MILLISECOND, YEAR_ONE), _END_OF_TIME)


def stored_time(at: Instant) -> DatetimeMS:
    """Milliseconds are all that MongoDB keeps."""
    return DatetimeMS(at // _MILLISECOND)


def stored_number(number: int) -> Int64:
    return Int64(max(-LARGEST, min(number, LARGEST)))


def can_be_stored(text: str) -> bool:
    """Whether BSON could hold such a text at all: no half of a surrogate pair. What it cannot hold is not there."""
    return is_utf8(text)


RELEASED_DATE = DatetimeMS(0)


def taken_lease(holder: str, token: str, ttl_ms: int) -> Stages:
    """The update that takes a lease: a pipeline, since only there the server's clock can be used, and `epoch` stays an int64."""
    return [
        {
            "$set": {
                "holder": {"$literal": holder},
                "epoch": {"$add": ["$epoch", Int64(1)]},
                "expires_at": {"$add": ["$$NOW", Int64(ttl_ms)]},
                "token": {"$literal": token},
            }
        }
    ]


def taken_if_free(holder: str, token: str, ttl_ms: int) -> Stages:
    """The same for an upsert by the id alone, as Recall's own acquire is: where the lease is not free nothing changes, the token neither."""
    free = {"$lte": [{"$ifNull": ["$expires_at", RELEASED_DATE]}, "$$NOW"]}
    taken = {
        "holder": {"$literal": holder},
        "epoch": {"$add": [{"$ifNull": ["$epoch", Int64(0)]}, Int64(1)]},
        "expires_at": {"$add": ["$$NOW", Int64(ttl_ms)]},
        "token": {"$literal": token},
    }
    fields = {name: {"$cond": [free, value, f"${name}"]} for name, value in taken.items()}
    return [{"$set": {**fields, "fenced_writes": {"$ifNull": ["$fenced_writes", Int64(0)]}}}]


FREE: Document = {"$expr": {"$lte": ["$expires_at", "$$NOW"]}}


# --- reads -----------------------------------------------------------------------------------------------------------
# $$NOW is the clock of the server that runs the statement, read once for all its stages: the same clock by which Recall's own acquire and
# our take-over decide. `hello` has it too, but in another round trip, at another moment than the leases it would judge.


def entry(key: str, value: object) -> dict[str, Any]:
    """Documents whose metadata say this, by Recall's own index."""
    return {"md": {"$elemMatch": {"k": key, "v": value}}}


def value_of(key: str) -> dict[str, Any]:
    """The value of one metadata key, inside a pipeline."""
    found = {"$filter": {"input": "$md", "cond": {"$eq": ["$$this.k", key]}}}
    return {"$first": {"$map": {"input": found, "in": "$$this.v"}}}


def with_lease(leases: str, collection: str) -> Stages:
    """Each record with its agent's lease and the clock, in one moment; what is not needed is left behind."""
    agent = value_of("recall_agent")
    name = {"$concat": [{"$literal": lease_id(collection, "")}, agent]}
    return [
        {
            "$project": {
                "m": 1,
                "md": 1,
                "now": "$$NOW",
                "lease_id": {"$cond": [{"$eq": [{"$type": agent}, "string"]}, name, None]},
            }
        },
        {"$lookup": {"from": leases, "localField": "lease_id", "foreignField": "_id", "as": "lease"}},
    ]


def actions_with(statuses: Collection[ActionStatus], *, agent: str | None) -> Stages:
    """Only actions have a status, so one entry of the index finds them; that they are actions is checked, not searched for: an index scan
    over all actions that ever were would answer the same, slowly."""
    wanted = entry("status", {"$in": sorted(status.value for status in statuses)})
    of_agent = [entry("recall_agent", agent)] if agent is not None else []
    return [{"$match": {"$and": [wanted, *of_agent, {"$expr": {"$eq": [value_of("record"), "action"]}}]}}, {"$sort": {"_id": 1}}]


def number_in_id(kind: str) -> dict[str, Any]:
    """The number at the end of a record's id, inside a pipeline; null where there is none."""
    number = {"$regexFind": {"input": {"$toString": "$_id"}, "regex": f":{kind}:([0-9]{{1,18}})(?![\\s\\S])"}}
    return {"$toLong": {"$first": {"$ifNull": [{"$getField": {"field": "captures", "input": number}}, []]}}}


def last_turns(agents: list[str]) -> Stages:
    """The id of the newest turn of each of these agents. Not the documents: a group of long turns could outgrow one answer."""
    return [
        {"$match": {"$and": [entry("recall_agent", {"$in": agents}), entry("record", "turn")]}},
        {"$project": {"number": number_in_id("turn"), "agent": value_of("recall_agent")}},
        {"$sort": {"number": -1, "_id": -1}},
        {"$group": {"_id": "$agent", "turn": {"$first": "$_id"}}},
    ]


def newest(agent: str, record: str, kind: str, *, before: int | None, limit: int) -> Stages:
    """One agent's records of a kind by the number in the id, which alone is unique, newest first; an id without one comes last."""
    older = [{"$match": {"number": {"$lt": stored_number(before)}}}] if before is not None else []
    return [
        {"$match": {"$and": [entry("recall_agent", agent), entry("record", record)]}},
        {"$project": {"m": 1, "md": 1, "number": number_in_id(kind)}},
        *older,
        {"$sort": {"number": -1, "_id": -1}},
        {"$limit": limit},
    ]


def pointers_of(agent: str) -> dict[str, Any]:
    return {"$and": [entry("recall_agent", agent), entry("record", "pointer"), {"md": {"$not": entry("removed", True)["md"]}}]}


def outputs_of(agent: str) -> dict[str, Any]:
    return {"$and": [entry("recall_agent", agent), entry("record", "output")]}


def settled_ids(agent: str, seq: int) -> list[str]:
    """What a settle reads at once: the action, the agent's head, and the usual output of its arguments."""
    return [action_id(agent, seq), head_id(agent), output_id(agent, args_ref(seq))]


def watched(collection: str, chain: str, *, registry: str, leases: str, heads: str) -> Stages:
    """Revision, next expiry, newest entry and the clock, in one statement that answers also where none of them is there."""

    def look(source: str, stages: Stages, name: str) -> dict[str, Any]:
        return {"$lookup": {"from": source, "pipeline": stages, "as": name}}

    live = {"_id": leases_of(collection), "$expr": {"$gt": ["$expires_at", "$$NOW"]}}
    return [
        {"$documents": [{"now": "$$NOW"}]},
        look(registry, [{"$match": {"_id": collection}}, {"$project": {"revision": 1}}], "registry"),
        look(leases, [{"$match": live}, {"$group": {"_id": None, "next": {"$min": "$expires_at"}}}], "leases"),
        look(heads, [{"$match": {"_id": chain}}, {"$project": {"number": 1}}], "heads"),
    ]
