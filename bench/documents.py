"""`documents`: the same seeded records on MongoDB, laid in bulk, and what the queue and a settle cost there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from bson import Int64
from pymongo import MongoClient

from actions import queries
from actions.queries import ActionFilter
from actions.records import ActionRef
from actions.store import open_store
from actions.store.mongo_documents import lease_id, vector_fields, written_fields
from actions.store.mongo_records import DIMENSION, collection_name
from bench.calls import documents
from bench.ground import COLLECTION, Ground
from bench.plan import Plan
from bench.report import Report, make_row, measure
from bench.settle import settle_through_us
from bench.shape import Life, Shape, in_doubt, lives, records

CHUNK = 500
CLIENT_MS = 30_000
OPEN_CALLS = 500
WARM_UP = 3
MOST_ACTIONS, MOST = 1_000, 30
"""Actions and samples. The stand-in grows slow with what it holds: ten thousand actions were not laid in eight minutes."""


def bench_documents(ground: Ground, plan: Plan, report: Report) -> None:
    """Through the store alone, over few records: a server that is no stand-in is not slowed down by more."""
    size = min(plan.sizes[0], MOST_ACTIONS)
    shape = Shape(agents=max(20, size // 20), actions=size, open_actions=min(OPEN_CALLS, size // 4), turns=size // 10)
    reads, settles = min(plan.reads, MOST // 3), min(plan.settles, MOST)
    spare = in_doubt(settles + WARM_UP, "spare")
    with documents() as url:
        fill_documents(url, [*lives(shape), *spare], shape.seed)
        with contextlib.closing(open_store(url, name="main")) as store:
            store.prepare(index=True)
            first = measure(lambda: queries.list_actions([store], ActionFilter(), limit=50), times=reads)
            agent = measure(lambda: queries.read_agent(store, spare[0].agent), times=reads)
            digests = {life.agent: queries.get_action(store, ActionRef("main", life.agent, 2)).digest for life in spare}
            left = iter(spare)

            def settle() -> None:
                name = next(left).agent
                settle_through_us(store, ActionRef("main", name, 2), digests[name])

            settled = measure(settle, times=settles, warm_up=WARM_UP)
    said = f"{size:,} actions, {shape.open_actions:,} open"
    report.rows += [
        make_row("documents", f"queue, first page ({said})", first),
        make_row("documents", "its agent's page", agent),
        make_row("documents", "Settle: one decision", settled),
    ]


def fill_documents(url: str, agents: Sequence[Life], seed: int) -> int:
    """All records and leases into the collections that are there already, unordered and in bulk; how many records. Nobody else may write."""
    client: MongoClient[dict[str, Any]] = MongoClient(url, socketTimeoutMS=CLIENT_MS)  # whoever stops us waits no longer
    with client:
        db = client.get_default_database()
        there, count = db[collection_name(COLLECTION)], 0
        made = (
            {"_id": record_id, **vector_fields(DIMENSION), **written_fields(metadata)}
            for life in agents
            for record_id, metadata in records(life, seed)
        )
        while chunk := list(islice(made, CHUNK)):
            there.insert_many(chunk, ordered=False)
            count += len(chunk)
        leases = _leases(agents)
        while chunk := list(islice(leases, CHUNK)):
            db["recall_leases"].insert_many(chunk, ordered=False)
        db["recall_collections"].update_one({"_id": COLLECTION}, {"$inc": {"revision": Int64(count)}})
    return count


def _leases(agents: Sequence[Life]) -> Iterator[dict[str, Any]]:
    now = datetime.now(UTC)
    expires = {"live": now + timedelta(days=1), "expired": now - timedelta(days=1), "released": datetime(1970, 1, 1, tzinfo=UTC)}
    for number, life in enumerate(agents):
        yield {
            "_id": lease_id(COLLECTION, life.agent),
            "holder": f"pod-{number % 50}:{number}:0a1b2c3d",
            "epoch": Int64(3 if life.lease == "released" else 1),
            "expires_at": expires[life.lease],
            "token": f"{number:024x}",
            "fenced_writes": Int64(0),
        }
