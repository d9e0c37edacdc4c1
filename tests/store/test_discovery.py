"""Looking through a database for collections of agents: all of them, by name where it can be known, and nothing is written or given away."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from hashlib import sha256

import pytest

from actions.errors import InvalidQuery, StoreError
from actions.store import mongo_discovery, open_store
from actions.store.deadlines import Timeouts
from actions.store.discovery import Found, address_for, discover, match_namespaces, tenant_collection
from local import postgres
from tests.mongo_writer import MongoWriter
from tests.recall_writer import RecallWriter, RecordWriter
from tests.store.conftest import with_option

# As the real binary named them (recall serve -collection myPre, 0.23.0).
NAMED = {
    "Tenant-A.Foo:bar": "myPre__tenant_a_foo_bar_b944357f",
    "tenant-a": "myPre__tenant_a_80a707af",
    "UPPER": "myPre__upper_9cba1c65",
    "9lives": "myPre__9lives_bc867356",
    "a--b": "myPre__a__b_90827a2e",
    "x" * 80: f"myPre__{'x' * 80}_d929cdee",
}
HASH = sha256(b"a key").hexdigest()


@pytest.mark.parametrize("namespace", NAMED)
def test_a_namespace_has_the_collection_that_recall_serve_gives_it(namespace: str) -> None:
    assert tenant_collection("myPre", namespace) == NAMED[namespace]
    assert match_namespaces([NAMED[namespace]], NAMED) == [namespace]


def test_a_name_that_only_ends_alike_is_not_a_tenants() -> None:
    names = ["__tenant_a_80a707af", "myPre_tenant_a_80a707af", "myPre__tenant_a_80a707a0", "recall_lexical_v1"]

    assert match_namespaces(names, ["tenant-a"]) == ["", "", "", ""]


Open = Callable[[str], RecordWriter]


@pytest.fixture(params=["postgres", "mongo"])
def url(request: pytest.FixtureRequest) -> str:
    address: str = request.getfixturevalue({"postgres": "pg_url", "mongo": "mongo_url"}[request.param])
    return address


@pytest.fixture
def opened() -> ExitStack:
    return ExitStack()


@pytest.fixture
def collection(url: str, opened: ExitStack) -> Open:
    """A writer of one more collection of the database, by its memory's name."""

    def make(name: str) -> RecordWriter:
        writer = MongoWriter if url.startswith("mongodb") else RecallWriter
        return opened.enter_context(writer(with_option(url, f"collection={name}"))).create()

    return make


def key_of(keys: RecordWriter, namespace: str, number: int) -> None:
    metadata = {
        "kind": "key",
        "key_id": f"{number:016x}",
        "namespace": namespace,
        "hash": HASH,
        "created_at": "2026-11-29T18:00:00Z",
    }
    keys.put(f"key:{number:016x}", metadata)


def keys_of(url: str, opened: ExitStack, prefix: str) -> RecordWriter:
    """The collection of a server's keys: no agents' one."""
    if url.startswith("mongodb"):
        mongo = opened.enter_context(MongoWriter(url))
        mongo.collection, mongo.records = f"{prefix}__keys", mongo.db[f"rc_{prefix}__keys"]
        return mongo.create()
    writer = opened.enter_context(RecallWriter(url))
    writer.collection = writer.table = f"{prefix}__keys"
    return writer.create()


def test_every_collection_is_offered_with_its_counts_and_its_namespace(url: str, collection: Open, opened: ExitStack) -> None:
    with opened:
        own = collection("recall_lexical_v1")
        own.action("a", 1)
        own.action("a", 2, status="done")
        own.lease("a")
        known, unknown = collection("recall_lexical_v1__tenant_a_80a707af"), collection("recall_lexical_v1__9lives_bc867356")
        for number, status in enumerate(["started", "unknown", "failed"], start=1):
            known.action("b", number, status=status)
        known.lease("b")
        known.lease("c")
        unknown.turns("d", 2)
        key_of(keys_of(url, opened, "recall_lexical_v1"), "tenant-a", 1)
        before = {writer: (writer.record_ids(), writer.revision()) for writer in (own, known, unknown)}

        found = discover(url)

        assert [
            (one.store, one.namespace, one.found.is_tenant, one.found.agents, one.found.open_actions) for one in found.offered
        ] == [
            ("main", "", False, 1, 1),
            ("9lives_bc867356", "", True, 0, 0),
            ("tenant-a", "tenant-a", True, 2, 2),
        ]
        assert (found.problems, found.is_truncated, found.unmatched) == ((), False, ())
        assert {writer: (writer.record_ids(), writer.revision()) for writer in (own, known, unknown)} == before


def test_a_namespace_without_a_key_can_be_named(url: str, collection: Open, opened: ExitStack) -> None:
    with opened:
        collection("myPre__tenant_a_foo_bar_b944357f").action("a", 1)

        found = discover(url, namespaces=["Tenant-A.Foo:bar", "nobody"])

    assert [(one.store, one.namespace) for one in found.offered] == [("tenant-a-foo-bar", "Tenant-A.Foo:bar")]
    assert found.unmatched == ("nobody",)


def test_what_is_offered_opens_that_tenants_records(url: str, collection: Open, opened: ExitStack) -> None:
    """The address as it is printed, once the password is put back."""
    with opened:
        collection("recall_lexical_v1").action("a", 1)
        collection("p__tenant_a_80a707af").action("b", 7)
        tenant = next(one for one in discover(url).offered if one.found.is_tenant)
        password = url.partition("://")[2].partition("@")[0].partition(":")[2]
        store = open_store(tenant.address.replace(":***@", f":{password}@"), name="x")
        opened.callback(store.close)

        assert [reading.action.seq for reading in store.list_agent_actions("b", limit=5)] == [7]
        assert store.list_agent_actions("a", limit=5) == ()


def test_nothing_secret_is_told(url: str, collection: Open, opened: ExitStack) -> None:
    with opened:
        collection("recall_lexical_v1__tenant_a_80a707af").action("a", 1)
        key_of(keys_of(url, opened, "recall_lexical_v1"), "tenant-a", 1)

        told = repr(discover(with_option(url, "serve=https%3A%2F%2Fh%2Fmcp&serve_key=filekey-aaaa")))

    password = url.partition("://")[2].partition("@")[0].partition(":")[2]
    assert len(password) > 8
    for secret in (password, HASH, "filekey"):
        assert secret not in told


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("postgres://ann:pw@h:5432/db", "postgres://ann:***@h:5432/db?schema=recall&collection=c"),
        (
            "postgres://h/db?password=pw&sslmode=require",
            "postgres://h/db?password=***&sslmode=require&schema=recall&collection=c",
        ),
        ("postgres://ann:p@ss@h/db?schema=old&collection=old", "postgres://ann:***@h/db?schema=recall&collection=c"),
        ("postgres:///db?host=/a b&serve_key=k", "postgres:///db?host=/a%20b&schema=recall&collection=c"),
        (
            "postgres://h/db?sslpassword=pw&authMechanismProperties=AWS_SESSION_TOKEN:x",
            "postgres://h/db?sslpassword=***&authMechanismProperties=***&schema=recall&collection=c",
        ),
    ],
)
def test_an_offered_address_keeps_what_leads_there_and_hides_what_is_secret(url: str, address: str) -> None:
    assert address_for(url, Found(collection="c", schema="recall")) == address


def test_a_collection_that_cannot_be_counted_is_listed_with_its_problem(pg_url: str) -> None:
    with RecallWriter(pg_url) as recall, postgres.connect(pg_url) as owner:
        recall.create().action("a", 1)
        owner.execute(
            "INSERT INTO recall.recall_collections (name, tbl, dim, nonce) VALUES ('gone_agents', 'gone_agents', 256, 1), "
            "('p__keys', 'p__keys', 256, 1)"
        )

        found = discover(pg_url)

    assert [(one.store, one.found.open_actions, bool(one.found.problem)) for one in found.offered] == [
        ("gone", None, True),
        ("main", 1, False),
    ]
    assert "keys in p__keys" in found.problems[0]


def test_other_schemas_are_found_unless_one_is_named(pg_url: str) -> None:
    with RecallWriter(pg_url) as recall, RecallWriter(pg_url, schema="second") as second:
        recall.create()
        second.create()

        assert [(one.found.schema, one.store) for one in discover(pg_url).offered] == [("recall", "main"), ("second", "main-2")]
        assert [one.found.schema for one in discover(f"{pg_url}?schema=second").offered] == ["second"]


def test_an_empty_database_has_nothing_to_offer(url: str) -> None:
    assert discover(url).offered == ()


@pytest.mark.parametrize(
    ("url", "namespace"),
    [
        ("memory:", "a"),
        ("polign+http://h:23000", "a"),
        ("not an address at all", "a"),
        ("postgres://ann:hunter2hunter2@h:port/db", "a"),
        ("mongodb://ann:hunter2hunter2@h:port/db", "a"),
        ("postgres://h/db", "no such/namespace"),
        ("postgres://h/db", "_"),
        ("postgres://h/db", ""),
    ],
)
def test_what_cannot_be_searched_is_refused_before_anything_is_asked(url: str, namespace: str) -> None:
    with pytest.raises(InvalidQuery) as caught:
        discover(url, namespaces=[namespace])

    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgres://ann:hunter2hunter2@127.0.0.1:1/db?connect_timeout=1",
        "mongodb://ann:hunter2hunter2@127.0.0.1:1/db",
    ],
)
def test_a_database_that_does_not_answer_is_told_without_its_address(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mongo_discovery, "_TIMEOUTS", Timeouts(answer_s=0.3))

    with pytest.raises(StoreError) as caught:
        discover(url)

    assert "hunter2" not in json.dumps(str(caught.value))
