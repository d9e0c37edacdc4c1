"""What is ours lies beside what is Recall's, and neither minds the other, whoever came first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from actions import queries
from actions.records import ActionState, ActionStatus
from actions.store import open_store
from actions.store.base import ActionStore
from local import postgres
from tests.interop.decisions import an_end, chain_of, decide
from tests.interop.driver import Recall, crash, kill, records_of

pytestmark = pytest.mark.interop

AGENT = "support-7"
END = an_end(ActionStatus.DONE, result="message-id 1204")


@pytest.fixture
def url(pg_url: str) -> str:
    return pg_url


def begin_and_crash(recall: Recall, agent: str = AGENT) -> None:
    running = recall.resume(agent)
    running.begin_action("send_email", "external", {"to": "ann@example.com"})
    crash(running, recall.url)


@contextmanager
def opened(url: str) -> Iterator[ActionStore]:
    store = open_store(url, name="main")
    try:
        yield store
    finally:
        store.close()


def tables(url: str) -> list[str]:
    with postgres.connect(url) as connection:
        found = connection.execute(
            "SELECT schemaname || '.' || tablename FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1"
        )
        return [str(name) for (name,) in found]


def test_a_store_prepared_before_recall_ever_ran_makes_none_of_recalls_tables(pg_url: str, recall: Recall) -> None:
    with opened(pg_url) as store:
        store.prepare(index=True)
        assert all(table.startswith("settle_audit.") for table in tables(pg_url))
        assert store.read_actions(list(ActionStatus), limit=10).readings == ()

        begin_and_crash(recall)

        assert decide(store, AGENT, 1, END).turn_seq == 1
        assert recall.resume(AGENT).context.recent_turns[0].content == "message-id 1204"
        assert chain_of(store).is_intact


def test_recall_works_on_with_our_schema_and_our_index(recall: Recall, store: ActionStore) -> None:
    begin_and_crash(recall, "before")
    store.prepare(index=True)
    assert store.check().has_index
    before = records_of(recall.url, "before")

    begin_and_crash(recall, "after")
    store.prepare(index=True)

    assert records_of(recall.url, "before") == before
    for agent in ("before", "after"):
        assert decide(store, agent, 1, END).turn_seq == 1
        resumed = recall.resume(agent)
        assert resumed.context.pending_actions == ()
        assert resumed.begin_action("send_email", "external").seq == 2
        assert resumed.end_action(2, "done").status == "done"
        assert resumed.record_turn("user", "go on").seq == 2
    assert queries.list_actions([store], queries.ActionFilter(), limit=10).items == ()


def test_a_new_binary_opens_a_store_in_which_everything_of_ours_is_in_place(recall: Recall, store: ActionStore) -> None:
    """Each process runs Recall's own set-up once; nothing of it trips over ours."""
    begin_and_crash(recall)
    store.prepare(index=True)
    decide(store, AGENT, 1, END)
    entries = chain_of(store).entries

    with recall.open() as client:
        assert client.resume(AGENT).context.turn_seq == 1
        assert client.resume("another").context.fresh

    assert chain_of(store).entries == entries


@pytest.mark.parametrize(
    ("schema", "memory", "table"),
    [
        ("recall", "a-b", "a_b_agents_161e8562"),
        ("team_9", "recall_lexical_v1", "recall_lexical_v1_agents"),
        (
            "recall",
            "recall_lexical_v1__tenant_b_support_agent_7_e0a2d6c6",
            "recall_lexical_v1__tenant_b_support_agent_7_e0a2_add9d861",
        ),
    ],
)
def test_another_schema_and_another_collection_are_found_by_their_names(
    pg_url: str, schema: str, memory: str, table: str
) -> None:
    recall = Recall(f"{pg_url}?schema={schema}", env={"RECALL_COLLECTION": memory})
    try:
        running = recall.resume(AGENT, lease_ttl=1)
        running.begin_action("send_email", "external", {"to": "ann@example.com"})
        kill(running)
        with opened(f"{pg_url}?schema={schema}&collection={memory}") as store:
            store.prepare(index=True)
            item = queries.list_actions([store], queries.ActionFilter(), limit=10).items[0]
            assert item.state in (ActionState.IN_FLIGHT, ActionState.INTERRUPTED)
            with postgres.connect(pg_url) as connection:
                connection.execute(f"UPDATE {schema}.recall_leases SET expires_at = clock_timestamp()")
            assert decide(store, AGENT, 1, END).turn_seq == 1
        resumed = recall.resume(AGENT)
        assert resumed.context.recent_turns[0].content == "message-id 1204"
        assert f"{schema}.{table}" in tables(pg_url)
    finally:
        recall.close()


def test_two_collections_of_one_database_are_two_stores(pg_url: str, recall: Recall, store: ActionStore) -> None:
    begin_and_crash(recall)
    other_recall = Recall(pg_url, env={"RECALL_COLLECTION": "other"})
    try:
        begin_and_crash_in(other_recall)
        with opened(f"{pg_url}?collection=other") as other:
            other.prepare()
            decide(other, AGENT, 1, END)
            assert queries.list_actions([other], queries.ActionFilter(), limit=10).items == ()
            assert chain_of(other).is_intact
    finally:
        other_recall.close()

    assert queries.list_actions([store], queries.ActionFilter(), limit=10).items[0].state is ActionState.INTERRUPTED
    assert store.list_turns(AGENT, limit=10) == ()
    assert chain_of(store).is_intact


def begin_and_crash_in(recall: Recall) -> None:
    running = recall.resume(AGENT)
    running.begin_action("send_email", "external", {"to": "ann@example.com"})
    kill(running)
    with postgres.connect(recall.url) as connection:
        connection.execute("UPDATE recall.recall_leases SET expires_at = clock_timestamp() WHERE collection = 'other_agents'")
