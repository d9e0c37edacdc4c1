"""Tenants of a real `recall serve`: they are found, and a dead agent that the server keeps alive can be evicted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from polign_recall import RecallError

from actions.errors import LeaseLive
from actions.records import ActionStatus, Lease
from actions.settle import evict
from actions.store import open_store
from actions.store.base import ActionStore
from actions.store.discovery import discover
from tests.interop.decisions import an_end, chain_of, decide
from tests.interop.driver import Recall, lease_of, records_of
from tests.interop.serve import Refused, Serve
from tests.store.conftest import with_option

pytestmark = pytest.mark.interop

AGENT = "support-agent-7"
TENANT, COLLECTION = "tenant-a", "recall_lexical_v1__tenant_a_80a707af"
END = an_end(ActionStatus.DONE, result="message-id 1204")


@pytest.fixture
def serve(url: str, tmp_path: Path) -> Iterator[Serve]:
    with Serve(url, tmp_path, keys=[TENANT, "File-Only:x"]) as running:
        yield running


@pytest.fixture
def tenant(url: str) -> Iterator[ActionStore]:
    """Our store on the tenant's records."""
    with closing(open_store(with_option(url, f"collection={COLLECTION}"), name="main")) as store:
        store.prepare()
        yield store


def begin(serve: Serve, namespace: str = TENANT) -> None:
    serve.call(namespace, "agent_resume", agent_id=AGENT)
    serve.call(namespace, "record_turn", agent_id=AGENT, role="user", content="Tell Ann")
    serve.call(
        namespace, "begin_action", agent_id=AGENT, tool="send_email", **{"class": "external"}, args='{"to": "ann@example.com"}'
    )


def lease(store: ActionStore) -> Lease:
    found = store.find_lease(AGENT)
    assert found is not None
    return found


def take(store: ActionStore, holder: str) -> None:
    evict(store, AGENT, holder=holder, reason="its pod is gone", actor="admin amy", decision_id="eviction-1")


def test_tenants_are_found_by_their_keys_and_by_name(url: str, serve: Serve) -> None:
    begin(serve)
    begin(serve, "File-Only:x")
    serve.create_key("tenant-b:agent.x")
    begin(serve, "tenant-b:agent.x")

    found, named = discover(url), discover(url, namespaces=["File-Only:x", TENANT])

    assert {one.namespace for one in found.offered} == {"", "tenant-b:agent.x"}
    assert {one.namespace for one in named.offered} == {TENANT, "File-Only:x", "tenant-b:agent.x"}
    assert {(one.found.agents, one.found.open_actions) for one in named.offered} == {(1, 1)}
    told = repr((found, named))
    assert serve.key("tenant-b:agent.x") not in told
    assert "hash" not in told


def test_an_agent_that_its_server_keeps_alive_is_evicted_settled_and_resumed(serve: Serve, tenant: ActionStore) -> None:
    begin(serve)
    with pytest.raises(LeaseLive):
        decide(tenant, AGENT, 1, END)

    take(tenant, lease(tenant).holder)
    decide(tenant, AGENT, 1, END)

    with pytest.raises(Refused, match="lease was lost"):
        serve.call(TENANT, "record_turn", agent_id=AGENT, role="assistant", content="I was here all the time")
    serve.call(TENANT, "agent_release", agent_id=AGENT)
    briefing = serve.call(TENANT, "agent_resume", agent_id=AGENT)
    assert [(turn["seq"], turn["content"]) for turn in briefing["recent_turns"]] == [(1, "Tell Ann"), (2, "message-id 1204")]
    assert not briefing.get("pending_actions")
    assert chain_of(tenant).is_intact


def test_an_agent_of_its_own_process_that_is_evicted_loses_its_next_write_and_ours_lands(
    url: str, recall: Recall, store: ActionStore
) -> None:
    running = recall.resume(AGENT, lease_ttl=60)
    running.begin_action("send_email", "external", {"to": "ann@example.com"})
    take(store, lease(store).holder)
    before = records_of(url, AGENT), lease_of(url, AGENT)

    with pytest.raises(RecallError) as refused:
        running.record_turn("assistant", "I am alive")

    assert refused.value.code == "lease_lost"
    assert (records_of(url, AGENT), lease_of(url, AGENT)) == before
    assert decide(store, AGENT, 1, END).turn_seq == 1
    with pytest.raises(RecallError) as refused:
        running.record_turn("assistant", "I am still alive")
    assert refused.value.code == "lease_lost"
    resumed = recall.resume(AGENT)
    assert [turn.content for turn in resumed.context.recent_turns] == ["message-id 1204"]
