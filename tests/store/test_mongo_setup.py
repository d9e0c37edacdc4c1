"""prepare() and check() on MongoDB: what is ours to create, which rights a user needs, and which are too many."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any
from uuid import uuid4

import pytest
from pymongo.errors import DuplicateKeyError

from actions.errors import StoreReadOnly, StoreUnusable
from actions.records import ActionStatus, NewEntry
from actions.store.mongo import MongoStore
from actions.store.mongo_connection import parse_address
from actions.store.mongo_setup import User, missing_rights, warnings
from local.mongo import Mongo
from tests.mongo_writer import MongoWriter
from tests.store.gestures import decide, race, verify

OPEN = [ActionStatus.STARTED, ActionStatus.UNKNOWN]
ADDRESS = parse_address("main", "mongodb://host/records")


@pytest.fixture
def recall(mongo_url: str) -> Iterator[MongoWriter]:
    """A database of one's own, with Recall's collections."""
    with MongoWriter(mongo_url) as writer:
        yield writer.create()


@pytest.fixture
def store(mongo_url: str) -> Iterator[MongoStore]:
    """On the same database, not prepared."""
    with closing(MongoStore(mongo_url)) as opened:
        yield opened


# --- prepare -----------------------------------------------------------------------------------------------------------


def test_prepare_creates_what_is_ours_and_nothing_of_recalls(store: MongoStore, mongo_url: str) -> None:
    lines = store.prepare(index=True)

    assert lines == (
        "collections settle_audit_entries, settle_audit_head: created (version 2)",
        "index of open actions: not needed, Recall's own on md serves",
    )
    with MongoWriter(mongo_url) as recall:
        assert set(recall.db.list_collection_names()) == {"settle_audit_entries", "settle_audit_head"}


def test_prepare_twice_finds_it_in_place(store: MongoStore) -> None:
    store.prepare()
    store.append_entry(NewEntry(kind="refused", actor="operator ana"))

    assert store.prepare() == ("collections settle_audit_entries, settle_audit_head: in place (version 2)",)
    assert store.read_head().number == 1


def test_prepare_makes_an_index_that_an_older_version_had_not(store: MongoStore, recall: MongoWriter) -> None:
    store.prepare()
    entry = store.append_entry(NewEntry(kind="refused", actor="operator ana"))
    recall.db["settle_audit_entries"].drop_index("entries_agent")

    store.prepare()

    assert "entries_agent" in recall.db["settle_audit_entries"].index_information()
    assert store.list_entries(limit=5) == (entry,)


def test_several_who_prepare_at_once_do_no_harm(mongo_url: str) -> None:
    stores = [MongoStore(mongo_url) for _ in range(4)]

    answers = race(*(store.prepare for store in stores))

    assert all(isinstance(answer, tuple) for answer in answers), answers
    assert stores[0].check().is_prepared
    for store in stores:
        store.close()


def test_until_it_is_prepared_it_is_read_and_settling_says_what_to_do(store: MongoStore, recall: MongoWriter) -> None:
    ref = recall.action("a", 1)

    for write in (lambda: decide(store, ref), lambda: store.append_entry(NewEntry(kind="refused", actor="x"))):
        with pytest.raises(StoreReadOnly, match="not prepared: run `prepare_store main` as the database's owner"):
            write()

    assert len(store.read_actions(OPEN, limit=5).readings) == 1
    assert (store.list_entries(limit=5), store.find_settled_entry("decision-1"), store.read_head().number) == ((), None, 0)
    assert "settle_audit_entries" not in recall.db.list_collection_names()


def test_without_its_unique_indexes_it_is_not_prepared(store: MongoStore, recall: MongoWriter) -> None:
    store.prepare()
    recall.db.settle_audit_entries.drop_index("entries_decision")

    with pytest.raises(StoreReadOnly, match="not prepared"):
        decide(store, recall.action("a", 1))
    store.prepare()

    assert decide(store, recall.action("a", 1)).turn_seq == 1


def test_numbers_and_decision_ids_are_unique_in_a_chain(store: MongoStore, recall: MongoWriter) -> None:
    store.prepare()
    entries = recall.db.settle_audit_entries
    settled = {"chain": "one", "number": 1, "kind": "settled", "decision_id": "decision-1"}
    entries.insert_one(dict(settled))
    entries.insert_one({**settled, "chain": "two"})
    entries.insert_one({**settled, "number": 2, "kind": "held"})
    for number in (3, 4):
        entries.insert_one({**settled, "number": number, "decision_id": ""})

    for twin in ({"kind": "held"}, {"number": 5}):
        with pytest.raises(DuplicateKeyError):
            entries.insert_one(settled | twin)


def test_two_collections_of_one_database_have_chains_of_their_own(mongo_url: str) -> None:
    addresses = [f"{mongo_url}{'&' if '?' in mongo_url else '?'}collection={name}" for name in ("one", "two")]
    with closing(MongoStore(addresses[0])) as one, closing(MongoStore(addresses[1])) as two:
        one.prepare()
        with MongoWriter(addresses[0]) as first, MongoWriter(addresses[1]) as second:
            decide(one, first.create().action("a", 1))
            decide(two, second.create().action("a", 1))

        assert one.chain != two.chain
        for store in (one, two):
            assert (store.read_head().number, verify(store).is_intact) == (1, True)


# --- check ---------------------------------------------------------------------------------------------------------------


def test_check_of_a_store_in_order(store: MongoStore, recall: MongoWriter) -> None:
    store.prepare()

    check = store.check()

    assert check.server.startswith("MongoDB ")
    assert ", replica set " in check.server
    assert (check.is_reachable, check.has_records, check.is_prepared, check.has_index) == (True, True, True, True)
    assert (check.can_settle, check.why_not) == (True, "")


def test_check_names_what_is_missing_first(store: MongoStore) -> None:
    assert store.check().why_not == "not prepared: run `prepare_store main` as the database's owner"
    store.prepare()

    check = store.check()

    assert (check.can_settle, check.has_records) == (False, False)
    assert "recall_lexical_v1_agents is not in Recall's registry of database" in check.why_not


def test_check_warns_where_every_read_is_a_scan(store: MongoStore, recall: MongoWriter) -> None:
    recall.records.drop_indexes()

    assert any("every read scans the whole collection" in warning for warning in store.check().warnings)


def test_a_user_who_may_only_read_reads(store: MongoStore, recall: MongoWriter, mongo_server: Mongo, mongo_url: str) -> None:
    store.prepare()
    ref = recall.action("a", 1)
    database, name = recall.db.name, f"reader{uuid4().hex[:8]}"
    recall.client.admin.command("createUser", name, pwd="pw-of-reader", roles=[{"role": "read", "db": database}])
    scheme, _, rest = mongo_url.partition("://")
    url = f"{scheme}://{name}:pw-of-reader@{rest.rpartition('@')[2]}"
    try:
        with closing(MongoStore(url)) as reader:
            assert len(reader.read_actions(OPEN, limit=5).readings) == 1
            with pytest.raises(StoreReadOnly, match="lacks a right .*not authorized.*check_stores") as caught:
                decide(reader, ref)
            with pytest.raises(StoreReadOnly, match="may not create|lacks a right"):
                MongoStore(url.replace(database, f"{database}x")).prepare()
            assert "pw-of-reader" not in caught.value.problem
        elsewhere = url.replace(f"/{database}", "/somebody_elses")
        with closing(MongoStore(elsewhere)) as stranger, pytest.raises(StoreUnusable, match="may not read it"):
            stranger.find_lease("a")
    finally:
        recall.client.admin.command("dropUser", name)
    assert recall.body_of("a:act:1")["status"] == "started"


def user(*privileges: tuple[dict[str, Any], list[str]], is_asked: bool = True) -> User:
    """As `connectionStatus` tells them."""
    told = tuple({"resource": resource, "actions": actions} for resource, actions in privileges)
    return User(name="console", is_asked=is_asked, privileges=told)


def on(collection: str, database: str = "records") -> dict[str, Any]:
    return {"db": database, "collection": collection}


READ = (on(""), ["find", "listIndexes", "listCollections"])
WRITE = [
    (on("recall_leases"), ["insert", "update"]),
    (on("recall_collections"), ["update"]),
    (on("rc_x"), ["insert", "update"]),
    (on("settle_audit_entries"), ["insert"]),
    (on("settle_audit_head"), ["insert", "update"]),
]


def test_the_least_rights_are_enough_and_raise_no_warning() -> None:
    assert missing_rights(user(READ, *WRITE), "records", "rc_x") == []
    assert list(warnings(user(READ, *WRITE), ADDRESS, "rc_x", has_index=True)) == []


@pytest.mark.parametrize("place", range(len(WRITE)))
def test_each_missing_right_is_named(place: int) -> None:
    held = [pair for number, pair in enumerate(WRITE) if number != place]
    resource, actions = WRITE[place]

    assert missing_rights(user(READ, *held), "records", "rc_x") == [f"{', '.join(actions)} on records.{resource['collection']}"]


def test_rights_elsewhere_count_for_nothing() -> None:
    assert missing_rights(user((on("", "other"), ["find", "insert", "update"])), "records", None) != []


@pytest.mark.parametrize(
    "too_much",
    [
        (on("settle_audit_entries"), ["update", "remove"]),
        (on(""), ["find", "insert", "update", "remove", "dropCollection"]),
        ({"anyResource": True}, ["anyAction", "update"]),
        (on("", ""), ["remove"]),
    ],
    ids=["on the entries", "on the database", "on everything", "on every database"],
)
def test_whoever_may_change_entries_is_warned(too_much: tuple[dict[str, Any], list[str]]) -> None:
    found = list(warnings(user(READ, *WRITE, too_much), ADDRESS, "rc_x", has_index=True))

    assert any('"entries are only inserted" is an empty promise' in warning for warning in found)


def test_a_server_that_asks_nobody_is_warned_of() -> None:
    (warning,) = warnings(user(is_asked=False), ADDRESS, None, has_index=False)

    assert warning.startswith("the server asks nobody for a password")
