"""Tenants of a real `recall serve`: they are found, and a dead agent that the server keeps alive can be evicted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from polign_recall import RecallError

from actions import queries
from actions.errors import LeaseLive, LeaseMoved, StoreUnavailable, StoreUnusable, WriteConflict
from actions.records import Action, ActionEnd, ActionRef, ActionStatus, Lease, Output, Settled, Turn
from actions.settle import evict, settle, settled_entry
from actions.store import open_store
from actions.store import serve as serve_module
from actions.store.addresses import TenantAddress
from actions.store.base import ActionStore
from actions.store.discovery import discover
from actions.store.serve import TenantServer, settle_through
from tests.interop.decisions import an_end, chain_of, decide
from tests.interop.driver import Recall, lease_of, records_of
from tests.interop.serve import Refused, Serve
from tests.store.conftest import with_option

pytestmark = pytest.mark.interop

# A server's answers do not depend on its database: what goes wrong on the way is tried on one of them.
only_postgres = pytest.mark.parametrize("url", ["postgres"], indirect=True)
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


# --- through the tenant's own server --------------------------------------------------------------------------------------


class Cut(TenantServer):
    """The tenant's server, of which some tools' requests or answers get lost."""

    lost_requests: tuple[str, ...] = ()
    lost_answers: tuple[str, ...] = ()
    before: Callable[[str], object] = staticmethod(lambda tool: None)

    def call(self, tool: str, arguments: Mapping[str, object], *, until: float) -> Any:
        self.before(tool)
        if tool in self.lost_requests:
            raise StoreUnavailable(self.name, "the connection broke", may_be_written=True)
        said = super().call(tool, arguments, until=until)
        if tool in self.lost_answers:
            raise StoreUnavailable(self.name, "the answer was lost", may_be_written=True)
        return said


@pytest.fixture
def server(serve: Serve) -> Iterator[Cut]:
    with closing(Cut("main", TenantAddress(url=serve.address, key=serve.key(TENANT)))) as opened:
        yield opened


def write(server: TenantServer | None, store: ActionStore, end: ActionEnd = END, *, decision_id: str = "decision-1") -> Settled:
    ref = ActionRef("main", AGENT, 1)
    claim = queries.get_action(store, ref).claim
    entry = settled_entry(ref, end, actor="operator ana", decision_id=decision_id)
    return settle_through(server, store, ref, end, entry=entry, claim=claim)


def kinds(store: ActionStore) -> list[str]:
    return [entry.kind for entry in reversed(store.list_entries(limit=50))]


def our_turns(store: ActionStore) -> list[int]:
    turns = store.list_turns(AGENT, limit=50)
    return [turn.seq for turn in turns if isinstance(turn, Turn) and turn.message_id == "settle:1:decision-1"]


def status(store: ActionStore) -> str:
    action = store.get_action(AGENT, 1).action
    assert isinstance(action, Action)
    return action.status.value


def assert_written_once(store: ActionStore, settled: Settled) -> None:
    assert status(store) == "done"
    assert our_turns(store) == [settled.turn_seq] == [2]
    assert kinds(store)[-1] == "settled"
    assert kinds(store).count("settled") == 1
    assert settled.entry.detail["turn"] == 2
    assert (settled.entry.detail["before"]["status"], settled.entry.detail["after"]["status"]) == ("started", "done")  # type: ignore[index]
    assert chain_of(store).is_intact


def test_a_decision_is_written_through_the_server_and_the_agent_reads_it(serve: Serve, server: Cut, tenant: ActionStore) -> None:
    begin(serve)
    held = lease(tenant)
    with pytest.raises(LeaseLive):
        decide(tenant, AGENT, 1, END)

    settled = write(server, tenant)

    assert_written_once(tenant, settled)
    assert kinds(tenant) == ["settling", "settled"]
    assert lease(tenant).holder == held.holder
    assert lease(tenant).is_live
    again = write(server, tenant)
    assert (again.is_repeat, again.entry) == (True, settled.entry)
    with pytest.raises(Refused, match="already resumed"):
        serve.call(TENANT, "agent_resume", agent_id=AGENT)
    serve.call(TENANT, "agent_release", agent_id=AGENT)
    briefing = serve.call(TENANT, "agent_resume", agent_id=AGENT)
    assert not briefing.get("pending_actions")
    assert [(turn["seq"], turn["content"]) for turn in briefing["recent_turns"]] == [(1, "Tell Ann"), (2, "message-id 1204")]
    assert "settled after a crash: done; operator ana: looked in the sent folder" in briefing["briefing"]
    assert serve.call(TENANT, "record_turn", agent_id=AGENT, role="user", content="go on")["seq"] == 3


@only_postgres
def test_a_long_result_is_kept_whole_and_told_short(serve: Serve, server: Cut, tenant: ActionStore) -> None:
    begin(serve)

    write(server, tenant, an_end(ActionStatus.DONE, result="x" * 9000))

    (turn, _) = tenant.list_turns(AGENT, limit=5)
    assert isinstance(turn, Turn)
    assert turn.content.endswith("more tokens stored as output act-1-result]")
    (output,) = tenant.read_outputs([(AGENT, "act-1-result")]).values()
    assert isinstance(output, Output)
    assert output.content == "x" * 9000


@only_postgres
@pytest.mark.parametrize("tool", ["record_turn", "end_action"])
@pytest.mark.parametrize("lost", ["lost_requests", "lost_answers"])
def test_where_an_attempt_is_cut_off_the_same_decision_goes_on(
    serve: Serve, server: Cut, tenant: ActionStore, monkeypatch: pytest.MonkeyPatch, tool: str, lost: str
) -> None:
    begin(serve)
    setattr(server, lost, (tool,))

    with pytest.raises(StoreUnavailable) as caught:
        write(server, tenant)

    assert caught.value.may_be_written
    assert kinds(tenant) == ["settling"]
    is_told = (tool, lost) != ("record_turn", "lost_requests")
    assert our_turns(tenant) == ([2] if is_told else [])
    assert status(tenant) == ("done" if (tool, lost) == ("end_action", "lost_answers") else "started")
    setattr(server, lost, ())
    if not is_told:
        with pytest.raises(StoreUnavailable, match="may still reach"):
            write(server, tenant)
        monkeypatch.setattr(serve_module, "STILL_ON_ITS_WAY_S", 0)
    assert_written_once(tenant, write(server, tenant))


@only_postgres
def test_an_entry_that_is_missing_is_completed_without_the_server(serve: Serve, server: Cut, tenant: ActionStore) -> None:
    begin(serve)
    server.lost_answers = ("end_action",)
    with pytest.raises(StoreUnavailable):
        write(server, tenant)

    assert_written_once(tenant, write(None, tenant))


def test_begun_through_the_server_and_free_since_it_is_settled_without_a_second_turn(
    serve: Serve, server: Cut, tenant: ActionStore
) -> None:
    begin(serve)
    server.lost_requests = ("end_action",)
    with pytest.raises(StoreUnavailable):
        write(server, tenant)
    serve.call(TENANT, "agent_release", agent_id=AGENT)
    with pytest.raises(LeaseMoved):
        write(server, tenant)

    settled = settle(
        tenant, ActionRef("main", AGENT, 1), END, actor="operator ana", decision_id="decision-1", marker="settle:1:decision-1"
    )

    assert_written_once(tenant, settled)


@only_postgres
def test_an_agent_that_ends_it_meanwhile_is_not_overruled(serve: Serve, server: Cut, tenant: ActionStore) -> None:
    """Its process was alive after all, and came between our turn and our end."""
    begin(serve)
    ending = {"seq": 1, "status": "failed", "error": "the server said no"}
    server.before = lambda tool: serve.call(TENANT, tool, agent_id=AGENT, **ending) if tool == "end_action" else None

    with pytest.raises(StoreUnavailable) as caught:
        write(server, tenant)
    with pytest.raises(WriteConflict, match="ended action main/support-agent-7/1 itself"):
        write(server, tenant)

    assert caught.value.may_be_written
    assert status(tenant) == "failed"
    assert kinds(tenant) == ["settling"]


@only_postgres
def test_an_agent_of_the_same_name_in_another_namespace_is_not_touched(serve: Serve, tenant: ActionStore) -> None:
    """The wrong key: both namespaces hold an agent of this name with an open action of this number."""
    begin(serve)
    begin(serve, "File-Only:x")
    wrong = TenantServer("main", TenantAddress(url=serve.address, key=serve.key("File-Only:x")))

    with closing(wrong), pytest.raises(StoreUnusable, match="namespace"):
        write(wrong, tenant)

    assert kinds(tenant) == []
    assert len(serve.call("File-Only:x", "recent_turns", agent_id=AGENT)) == 1
    assert len(serve.call(TENANT, "recent_turns", agent_id=AGENT)) == 1


@only_postgres
def test_an_agent_that_the_server_does_not_hold_is_said_to_be_elsewhere(
    url: str, serve: Serve, server: Cut, tenant: ActionStore
) -> None:
    begin(serve)
    serve.call(TENANT, "agent_release", agent_id=AGENT)
    elsewhere = Recall(url, env={"RECALL_COLLECTION": COLLECTION})
    elsewhere.resume(AGENT)
    try:
        with pytest.raises(StoreUnusable, match="not resumed in this session"):
            write(server, tenant)
    finally:
        elsewhere.close()

    assert kinds(tenant) == []


@only_postgres
def test_a_server_that_is_down_or_refuses_the_key_wrote_nothing(serve: Serve, server: Cut, tenant: ActionStore) -> None:
    begin(serve)
    stranger = TenantServer("main", TenantAddress(url=serve.address, key="filekey-unknown-aaaaaaaaaaaaaaa"))
    with closing(stranger), pytest.raises(StoreUnusable, match="refuses the key") as refused:
        write(stranger, tenant)
    serve.kill()

    with pytest.raises(StoreUnavailable) as down:
        write(server, tenant)

    assert not down.value.may_be_written
    assert serve.key(TENANT) not in f"{down.value}{refused.value}"
    assert kinds(tenant) == []
