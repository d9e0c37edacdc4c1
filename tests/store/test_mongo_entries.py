"""The audit chain on MongoDB: what was changed beside it is found, and what cannot be read is never an empty history."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from bson import Int64

from actions.errors import StoreUnusable
from actions.records import NewEntry
from actions.store.mongo import MongoStore
from tests.mongo_writer import MongoWriter
from tests.store.gestures import decide, verify
from tests.store.test_entries import READS
from tests.store.test_mongo_failing import address, failing, stand_in, stand_in_url
from tests.store.test_mongo_failing import pair as failing_pair

__all__ = ["address", "failing_pair", "stand_in", "stand_in_url"]

MongoPair = tuple[MongoStore, MongoWriter]
ENTRIES, HEADS = "settle_audit_entries", "settle_audit_head"


@pytest.fixture
def pair(documents: MongoPair) -> MongoPair:
    """A chain of four."""
    fill(*documents)
    return documents


@pytest.fixture
def alone(mongo_url: str) -> Iterator[MongoPair]:
    """The same in a database of one's own, for tests that take a collection away."""
    with closing(MongoStore(mongo_url)) as store, MongoWriter(mongo_url) as recall:
        store.prepare()
        fill(store, recall.create())
        yield store, recall


def fill(store: MongoStore, recall: MongoWriter) -> None:
    for number in range(1, 4):
        store.append_entry(NewEntry(kind="refused", actor="operator ana", agent="a", seq=number, tool="pay", outcome="done"))
    decide(store, recall.action("a", 1), decision_id="decision-1")


def tampered(pair: MongoPair, change: dict[str, Any]) -> tuple[int | None, str]:
    store, recall = pair
    assert verify(store).is_intact
    recall.db[ENTRIES].update_one({"chain": store.chain, "number": 3}, change)
    found = verify(store)
    return found.first_bad, found.problem


FIELDS: dict[str, tuple[object, ...]] = {
    "at": (0, None),
    "kind": ("observed", "", None),
    "actor": ("operator eve", "", ["operator ana"]),
    "agent": ("b", "", None),
    "seq": (Int64(9), None, "3", True),
    "tool": ("other", "", None),
    "decision_id": ("decision-x", None),
    "outcome": ("failed", "", None),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in FIELDS.items() for value in values])
def test_a_field_that_does_not_say_what_the_text_says_is_found(pair: MongoPair, name: str, value: object) -> None:
    first_bad, problem = tampered(pair, {"$set": {name: value}})

    assert (first_bad, f"its {name} is not what its text says" in problem) == (3, True)


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_that_was_taken_away_is_found(pair: MongoPair, name: str) -> None:
    first_bad, problem = tampered(pair, {"$unset": {name: ""}})

    assert (first_bad, f"its {name} is not" in problem) == (3, True)


@pytest.mark.parametrize("name", ["text", "prev", "hash"])
@pytest.mark.parametrize("value", [None, 1, [], {}])
def test_what_is_no_text_at_all_is_found_and_breaks_nothing(pair: MongoPair, name: str, value: object) -> None:
    assert tampered(pair, {"$set": {name: value}})[0] == 3
    assert len(pair[0].list_entries(limit=9)) == 4


@pytest.mark.parametrize("number", [0, -1, -(2**63) + 1, None, "3", 2.5, float("nan"), True])
def test_a_row_that_was_put_before_or_between_is_found(pair: MongoPair, number: object) -> None:
    """It would be listed, and found by its decision id."""
    store, recall = pair
    row = recall.db[ENTRIES].find_one({"chain": store.chain, "number": 3}, {"_id": 0})
    assert row is not None
    stored = Int64(number) if isinstance(number, int) and not isinstance(number, bool) else number
    recall.db[ENTRIES].insert_one({**row, "number": stored, "decision_id": "decision-x"})

    assert not verify(store).is_intact


# --- a history that cannot be read is no empty one -----------------------------------------------------------------------


@pytest.mark.parametrize("gone", [ENTRIES, HEADS])
@pytest.mark.parametrize("read", READS)
def test_half_a_history_is_none(alone: MongoPair, read: str, gone: str) -> None:
    """What is still found is shown; nothing is never the answer."""
    store, recall = alone
    recall.db[gone].rename("gone")
    needed = {"read_head": HEADS}.get(read, ENTRIES)

    if gone == needed:
        with pytest.raises(StoreUnusable, match=f"collection {gone} is not there"):
            READS[read](store)
    else:
        assert READS[read](store)


@pytest.mark.parametrize("gone", [ENTRIES, HEADS])
def test_nothing_is_settled_on_half_a_history(alone: MongoPair, gone: str) -> None:
    store, recall = alone
    ref = recall.action("b", 1)
    recall.db[gone].rename("gone")

    with pytest.raises(StoreUnusable):
        decide(store, ref)

    assert recall.body_of("b:act:1")["status"] == "started"


@pytest.mark.parametrize("read", READS)
def test_entries_that_we_may_not_read_are_not_none(failing_pair: MongoPair, read: str) -> None:
    store, recall = failing_pair

    with failing(recall, "find", errorCode=13), pytest.raises(StoreUnusable, match="may not read"):
        READS[read](store)


def test_the_queue_goes_on_where_the_history_may_not_be_read(failing_pair: MongoPair) -> None:
    store, recall = failing_pair
    recall.action("a", 1)

    with failing(recall, "aggregate", times=1, errorCode=13):
        watch = store.read_watch()

    assert (watch.revision, watch.entries) == (1, 0)


def test_a_store_that_was_never_prepared_has_an_empty_history(mongo_url: str) -> None:
    with closing(MongoStore(mongo_url)) as store:
        assert (store.list_entries(limit=5), store.read_head().number, list(store.iterate_links())) == ((), 0, [])
        assert store.find_settled_entry("decision-1") is None


def test_a_revision_at_its_end_is_refused_in_words(pair: MongoPair) -> None:
    store, recall = pair
    ref = recall.action("b", 1)
    recall.registry.update_one({"_id": recall.collection}, {"$set": {"revision": Int64(2**63 - 1)}})

    with pytest.raises(StoreUnusable, match="at the end of its range"):
        decide(store, ref)

    assert recall.body_of("b:act:1")["status"] == "started"
