"""What is ours lies beside what is Recall's in a MongoDB database, and neither minds the other, whoever came first."""

from __future__ import annotations

from contextlib import closing

import pytest
from pymongo import MongoClient

from actions import queries
from actions.records import ActionState, ActionStatus
from actions.store import open_store
from actions.store.base import ActionStore
from local import mongo
from tests.interop.decisions import an_end, chain_of, decide
from tests.interop.driver import Recall, crash, records_of

pytestmark = pytest.mark.interop

AGENT = "support-7"
END = an_end(ActionStatus.DONE, result="message-id 1204")


@pytest.fixture
def url(mongo_url: str) -> str:
    return mongo_url


def begin_and_crash(recall: Recall, agent: str = AGENT) -> None:
    running = recall.resume(agent)
    running.begin_action("send_email", "external", {"to": "ann@example.com"})
    crash(running, recall.url)


def collections(url: str) -> set[str]:
    client: MongoClient[dict[str, object]] = MongoClient(url)
    with client:
        return set(client.get_default_database("recall").list_collection_names())


def with_option(url: str, option: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{option}"


def test_a_store_prepared_before_recall_ever_ran_makes_none_of_recalls_collections(recall: Recall, store: ActionStore) -> None:
    assert collections(recall.url) == {"settle_audit_entries", "settle_audit_head"}
    assert store.read_actions(list(ActionStatus), limit=10).readings == ()

    begin_and_crash(recall)

    assert decide(store, AGENT, 1, END).turn_seq == 1
    assert recall.resume(AGENT).context.recent_turns[0].content == "message-id 1204"
    assert chain_of(store).is_intact


def test_recall_works_on_beside_ours(recall: Recall, store: ActionStore) -> None:
    begin_and_crash(recall, "before")
    store.prepare(index=True)
    before = records_of(recall.url, "before")

    begin_and_crash(recall, "after")

    assert records_of(recall.url, "before") == before
    assert store.check().has_index
    for agent in ("before", "after"):
        assert decide(store, agent, 1, END).turn_seq == 1
        resumed = recall.resume(agent)
        assert resumed.context.pending_actions == ()
        assert resumed.begin_action("send_email", "external").seq == 2
        assert resumed.end_action(2, "done").status == "done"
        assert resumed.record_turn("user", "go on").seq == 2
    assert queries.list_actions([store], queries.ActionFilter(), limit=10).items == ()


@pytest.mark.parametrize(
    ("memory", "records"), [("a-b", "rc_a-b_agents"), ("Mixed-Case.Coll", "rc_Mixed-Case_Coll_agents_8b715ea9")]
)
def test_another_collection_is_found_by_the_registry(recall: Recall, store: ActionStore, memory: str, records: str) -> None:
    """And is a store of its own: its chain, its leases and its records say nothing about those of another one beside it."""
    begin_and_crash(recall)
    with closing(Recall(recall.url, env={"RECALL_COLLECTION": memory})) as other_recall:
        other_recall.resume(AGENT).begin_action("pay", "external")
        other_recall.close()
        with closing(open_store(with_option(recall.url, f"collection={memory}"), name="other")) as other:
            assert records in collections(recall.url)
            assert [item.action.tool for item in open_items(other) if item.action] == ["pay"]
            decide_on_what_was_handed_over(other)
            assert open_items(other) == ()
            assert chain_of(other).is_intact
            assert other.read_head().chain != store.read_head().chain
    (untouched,) = open_items(store)
    assert untouched.state is ActionState.INTERRUPTED
    assert chain_of(store).entries == 0


def open_items(store: ActionStore) -> tuple[queries.ActionItem, ...]:
    return queries.list_actions([store], queries.ActionFilter(), limit=10).items


def decide_on_what_was_handed_over(store: ActionStore) -> None:
    """Its client was closed, so the lease was handed over."""
    lease = store.find_lease(AGENT)
    assert lease is not None
    assert lease.is_released
    decide(store, AGENT, 1, END)


def test_an_address_without_a_database_leads_where_recall_goes() -> None:
    """On a server of its own: the database is called `recall`, and might be somebody's."""
    with mongo.start() as server, closing(Recall(server.url(""))) as recall, closing(open_store(server.url(""))) as store:
        recall.resume(AGENT).begin_action("send_email", "external")
        assert [item.agent for item in open_items(store)] == [AGENT]
