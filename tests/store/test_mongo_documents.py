"""What only MongoDB can hold: a document that says two things, or none; and the types that Recall's driver expects."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import bson
import pytest
from bson import DatetimeMS, Int64, ObjectId

from actions.errors import ActionNotOpen, RecordUnreadable
from actions.records import Action, ActionRef, ActionState, ActionStatus, Unreadable
from actions.rules import state_of_reading
from actions.store.mongo import MongoStore
from actions.store.mongo_connection import CODEC
from actions.store.mongo_documents import lease_id, leases_of, read_lease, read_metadata, written_fields
from actions.times import format_rfc3339
from tests.mongo_writer import MongoWriter, collection_name, document_of
from tests.recall_writer import recall_json
from tests.store.gestures import decide, look_at_world, readable_action, verify

OPEN = [ActionStatus.STARTED, ActionStatus.UNKNOWN]
MongoPair = tuple[MongoStore, MongoWriter]
Document = dict[str, Any]


def change(recall: MongoWriter, record_id: str, act: Callable[[Document], object]) -> None:
    """Change a stored document behind everybody's back."""
    document = recall.records.find_one({"_id": record_id})
    assert document is not None
    act(document)
    recall.records.replace_one({"_id": record_id}, document)


def entry_of(document: Document, key: str) -> Document:
    return next(entry for entry in document["md"] if entry["k"] == key)


def another_m(document: Document, **changes: object) -> None:
    document["m"] = recall_json({**json.loads(document["m"]), **changes})


def another_body(document: Document) -> None:
    """The body as filters see it is not the one that Recall decodes."""
    entry_of(document, "body")["v"] = entry_of(document, "body")["v"].replace("send_email", "create_payment")


BROKEN: dict[str, tuple[Callable[[Document], object], str]] = {
    "no m": (lambda d: d.pop("m"), "no text m"),
    "an m that is an object": (lambda d: d.update(m={"a": 1}), "no text m"),
    "an empty m": (lambda d: d.update(m=""), "not JSON"),
    "an m that is not JSON": (lambda d: d.update(m=d["m"][:-1]), "not JSON"),
    "an m that is a list": (lambda d: d.update(m="[]"), "not a JSON object"),
    "an md that is an object": (lambda d: d["md"].__setitem__(slice(None), [*d["md"], {"k": "later"}]), "md is not a list"),
    "an md with a key twice": (lambda d: d["md"].append({"k": "act", "v": "1"}), "a key twice"),
    "an md with a key more": (lambda d: d["md"].append({"k": "later", "v": "1"}), "'later'"),
    "an md with a key less": (lambda d: d["md"].remove(entry_of(d, "act")), "'act'"),
    "another body in md": (another_body, "'body'"),
    "another status in m": (lambda d: another_m(d, status="done"), "'status'"),
    "another agent in m": (lambda d: another_m(d, recall_agent="b"), "'recall_agent'"),
    "a number for a truth": (lambda d: (another_m(d, removed=True), d["md"].append({"k": "removed", "v": 1.0})), "'removed'"),
    "a number that is a text": (lambda d: entry_of(d, "epoch").update(v="1"), "'epoch'"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_document_that_does_not_say_one_thing_is_listed_and_not_settled(documents: MongoPair, name: str) -> None:
    store, recall = documents
    act, problem = BROKEN[name]
    ref = recall.action("a", 1)
    recall.action("b", 1)
    change(recall, "a:act:1", act)

    broken, whole = store.read_actions(OPEN, limit=10).readings

    assert isinstance(broken.action, Unreadable)
    assert (broken.action.record_id, broken.action.agent, broken.action.seq) == ("a:act:1", "a", 1)
    assert problem in broken.action.problem
    assert state_of_reading(store.get_action("a", 1)) is ActionState.UNREADABLE
    assert isinstance(whole.action, Action)
    with pytest.raises(RecordUnreadable):
        decide(store, ref)
    assert store.read_head().number == 0
    assert recall.lease_of("a") is None


def test_a_document_whose_body_has_a_time_without_a_zone_is_unreadable(documents: MongoPair) -> None:
    store, recall = documents
    recall.action("a", 1, started_at="2026-11-29T18:29:12.4")

    (reading,) = store.read_actions(OPEN, limit=10).readings

    assert isinstance(reading.action, Unreadable)
    assert "not an RFC 3339 time with a zone" in reading.action.problem


def test_bytes_that_are_no_text_spoil_only_their_own_record() -> None:
    """MongoDB takes any bytes for a text; SecantusDB does not, so they come from no server here."""
    document = document_of("a:act:1", {"act": "1", "body": "XX"})
    raw = bson.encode(document).replace(b"XX", b"\xff\xfe")

    with pytest.raises(RecordUnreadable, match="not UTF-8"):
        read_metadata(bson.decode(raw, codec_options=CODEC))


def test_an_id_that_is_no_text_spoils_only_its_own_record(documents: MongoPair) -> None:
    store, recall = documents
    recall.action("a", 1)
    document = recall.records.find_one({"_id": "a:act:1"})
    assert document is not None
    recall.records.insert_one({**document, "_id": ObjectId("6b0c86cc5927a7acd623b3e9")})

    found = store.read_actions(OPEN, limit=10).readings

    assert sorted(type(reading.action).__name__ for reading in found) == ["Action", "Unreadable"]
    assert len(store.list_agent_actions("a", limit=10)) == 2


def test_what_recall_tolerates_is_read(documents: MongoPair) -> None:
    """Integers for doubles, no order, no vector, no text (recall-records 2.3)."""
    store, recall = documents
    ref = recall.action("a", 1)

    def loosen(document: Document) -> None:
        for key in ("v", "norm", "text"):
            del document[key]
        document["md"] = [{"v": int(e["v"]) if isinstance(e["v"], float) else e["v"], "k": e["k"]} for e in document["md"][::-1]]

    change(recall, "a:act:1", loosen)

    assert [reading.action for reading in store.read_actions(OPEN, limit=10).readings] == [readable_action(store, ref)]
    assert decide(store, ref).turn_seq == 1


# --- leases that no Recall wrote -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("expires_at", [None, "soon", 7], ids=["nothing", "a text", "a number"])
def test_a_lease_without_a_date_is_free_as_it_is_for_recall(documents: MongoPair, expires_at: object) -> None:
    """In BSON's order all of these come before every date."""
    store, recall = documents
    ref = recall.action("a", 1)
    recall.leases.insert_one({"_id": recall.lease_id("a"), "holder": "pod-a", "epoch": Int64(3), "expires_at": expires_at})

    lease = store.find_lease("a")

    assert lease is not None
    assert (lease.holder, lease.epoch, lease.is_live) == ("pod-a", 3, False)
    assert state_of_reading(store.get_action("a", 1)) is ActionState.INTERRUPTED
    assert decide(store, ref).entry.number == 1
    assert (recall.lease_of("a") or ())[1:] == (5, "released")


def test_a_lease_beyond_the_year_9999_is_live_and_can_be_shown() -> None:
    """SecantusDB cannot keep such a date; MongoDB can."""
    raw = bson.encode({"_id": "8:x_agents/a", "holder": "pod-a", "epoch": Int64(3), "expires_at": DatetimeMS(10**15)})

    lease = read_lease("x_agents", bson.decode(raw, codec_options=CODEC), now=1_796_000_000 * 10**9)

    assert (lease.agent, lease.epoch, lease.is_live) == ("a", 3, True)
    assert format_rfc3339(lease.expires_at) == "9999-12-31T23:59:59Z"


def test_leases_of_a_collection_whose_name_begins_alike_are_others(documents: MongoPair) -> None:
    """The length before the name keeps them apart (recall-records 5.1)."""
    store, recall = documents
    recall.lease("a", state="live")
    other = f"{recall.collection}/b"
    recall.leases.insert_one(
        {"_id": f"{len(other)}:{other}/a", "epoch": Int64(1), "holder": "x", "expires_at": datetime(2020, 1, 1, tzinfo=UTC)}
    )

    low, high = leases_of(recall.collection).values()

    assert low <= recall.lease_id("a") < high
    assert not low <= f"{len(other)}:{other}/a" < high
    assert lease_id("grün_agents", "a") == "12:grün_agents/a"
    assert store.read_watch().next_expiry is not None


# --- what we write -------------------------------------------------------------------------------------------------------


def test_a_settle_keeps_vector_norm_and_unknown_fields_and_the_types_of_all(documents: MongoPair) -> None:
    store, recall = documents
    ref = recall.action("a", 1, meta={"later": True, "nested": {"x": [1, 2.5, None]}})
    recall.lease("a", epoch=2**40)
    vector = [0.25] * 256
    recall.records.update_one({"_id": "a:act:1"}, {"$set": {"v": vector, "norm": 4.0, "ours": "not"}})

    decide(store, ref)

    action, turn = recall.records.find_one({"_id": "a:act:1"}), recall.records.find_one({"_id": "a:turn:1"})
    assert action is not None
    assert turn is not None
    assert (action["v"], action["norm"], action["ours"]) == (vector, 4.0, "not")
    assert (turn["v"], turn["norm"], turn["text"]) == ([0.0] * 256, 0.0, "")
    for document in (action, turn):
        assert [entry["k"] for entry in document["md"]] == sorted(entry["k"] for entry in document["md"])
        assert {type(entry["v"]) for entry in document["md"]} <= {str, float, bool, dict}
        assert list(json.loads(document["m"])) == sorted(json.loads(document["m"]))
        assert '"epoch":1099511627777,' in document["m"]
    lease, registry = recall.leases.find_one({"_id": recall.lease_id("a")}), recall.registry.find_one({"_id": recall.collection})
    assert lease is not None
    assert registry is not None
    assert [type(lease[key]) for key in ("epoch", "fenced_writes", "expires_at")] == [Int64, Int64, datetime]
    assert (lease["epoch"], lease["expires_at"]) == (2**40 + 2, datetime(1970, 1, 1, tzinfo=UTC))
    assert len(lease["token"]) == 24
    assert [type(registry[key]) for key in ("dim", "revision")] == [int, Int64]


def test_a_first_lease_has_the_shape_that_recall_gives_it(documents: MongoPair) -> None:
    store, recall = documents
    decide(store, recall.action("a", 1))

    lease = recall.leases.find_one({"_id": recall.lease_id("a")})

    assert lease is not None
    assert {key: type(value) for key, value in lease.items()} == {
        "_id": str,
        "holder": str,
        "epoch": Int64,
        "expires_at": datetime,
        "token": str,
        "fenced_writes": Int64,
    }
    assert recall.acquire("a", "pod-b") == 3
    with pytest.raises(ActionNotOpen):
        decide(store, ActionRef("main", "a", 1))


def test_entries_say_beside_their_text_what_is_searched_for(documents: MongoPair) -> None:
    store, recall = documents
    settled = decide(store, recall.action("a", 1), decision_id="decision-x")

    document = recall.db.settle_audit_entries.find_one({"chain": store.chain})

    assert document is not None
    assert (document["kind"], document["agent"], document["seq"]) == ("settled", "a", 1)
    assert (document["decision_id"], document["text"]) == ("decision-x", settled.entry.text)
    assert (type(document["number"]), type(document["at"])) == (Int64, datetime)
    assert verify(store).is_intact


@pytest.mark.parametrize("value", ["", "ä\u2028<&>", 0, 1, -1, 2**53 + 1, 2**70, 1.5, 1e300, True, False, None, [1, {"a": 2}]])
def test_what_is_written_is_read_again(value: object) -> None:
    metadata = {"body": "{}", "value": value}

    assert read_metadata({"_id": "a:act:1", **written_fields(metadata)}) == metadata


def test_nothing_is_written_beside_what_a_refusal_found(documents: MongoPair) -> None:
    store, recall = documents
    ref = recall.action("a", 1)
    change(recall, "a:act:1", another_body)
    before = look_at_world(store, recall, "a")

    with pytest.raises(RecordUnreadable):
        decide(store, ref)

    assert look_at_world(store, recall, "a") == before


@pytest.mark.parametrize(
    ("name", "records"), [("a-b_agents", "rc_a-b_agents"), ("Mixed-Case.Coll_agents", "rc_Mixed-Case_Coll_agents_8b715ea9")]
)
def test_the_writer_of_these_tests_names_collections_as_recall_does(name: str, records: str) -> None:
    assert collection_name(name) == records
