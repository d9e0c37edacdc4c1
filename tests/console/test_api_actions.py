"""The API's lists: actions and the history. What is shown, what is hidden, and what a bad question is told."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User

from actions.store.memory import MemoryStore
from console.api import api as routes
from console.models import Grant
from console.services import known_counts
from console.services.decide import DecisionRequest, decide
from console.services.tokens import create_agent_token
from console.stores import get_store
from tests.console.conftest import Api, Cast, MemoryWriter
from tests.recall_writer import RecordWriter

pytestmark = pytest.mark.django_db

ApiFor = Callable[[User], Api]
ITEM_KEYS = {
    *("store", "agent", "seq", "tool", "class", "key", "status", "state", "args", "args_truncated"),
    *("started_at", "epoch", "digest", "claimed_by", "lease", "problem"),
}


def test_open_actions_are_listed(records: RecordWriter, ben: User, api: ApiFor) -> None:
    records.lease("billing-7", "pod-a:1:aaaa", 4, "expired")
    records.action("billing-7", 1, tool="send_email", args={"to": "ann@example.com"})
    records.action("billing-7", 2, status="done")

    status, body = api(ben).get("actions")

    assert status == 200
    assert (body["next"], body["problems"]) == (None, [])
    (item,) = body["items"]
    assert set(item) == ITEM_KEYS
    assert {name: item[name] for name in ("store", "agent", "seq", "tool", "class", "status", "state")} == {
        "store": "main",
        "agent": "billing-7",
        "seq": 1,
        "tool": "send_email",
        "class": "external",
        "status": "started",
        "state": "interrupted",
    }
    assert (item["args"], item["args_truncated"], item["claimed_by"]) == ('{"to": "ann@example.com"}', False, None)
    assert item["started_at"] == "2026-11-29T18:29:07Z"
    assert item["lease"]["holder"] == "pod-a:1:aaaa"
    assert (item["lease"]["epoch"], item["lease"]["live"]) == (4, False)
    assert len(item["digest"]) == 64
    assert item["epoch"] == 1


def test_states_come_from_status_and_lease(records: RecordWriter, ben: User, api: ApiFor) -> None:
    records.lease("alive", state="live")
    records.action("alive", 1)
    records.action("alive", 2, cls="idempotent")
    records.action("alive", 3, status="unknown")
    records.action("dead", 1)
    records.action("dead", 2, body="{")
    for seq, status in ((3, "done"), (4, "failed"), (5, "abandoned")):
        records.action("dead", seq, status=status)
    _, body = api(ben).get("actions", state="in_flight,interrupted,unknown,unclear,done,failed,abandoned,unreadable")
    assert {(item["agent"], item["seq"]): item["state"] for item in body["items"]} == {
        ("alive", 1): "in_flight",
        ("alive", 2): "unclear",
        ("alive", 3): "unknown",
        ("dead", 1): "interrupted",
        ("dead", 2): "unreadable",
        ("dead", 3): "done",
        ("dead", 4): "failed",
        ("dead", 5): "abandoned",
    }


def test_an_unreadable_record_is_listed_with_its_id(records: RecordWriter, ben: User, api: ApiFor) -> None:
    records.action("billing-7", 1, body="{")
    records.action("billing-7", 2)
    _, body = api(ben).get("actions")
    bad = next(item for item in body["items"] if item["state"] == "unreadable")
    assert bad["problem"].startswith("billing-7:act:1: ")
    assert (bad["tool"], bad["status"], bad["digest"]) == (None, None, None)
    status, whole = api(ben).get("actions/main/billing-7/1")
    assert (status, whole["state"]) == (200, "unreadable")


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"tool": "send_email"}, {1}),
        ({"tool": "send_email,create_payment"}, {1, 2}),
        ({"class_": "idempotent"}, {2}),
        ({"class_": "external,idempotent"}, {1, 2, 3}),
        ({"agent": "billing-7", "state": "done"}, {4}),
        ({"agent": "nobody"}, set()),
        ({"store": "main"}, {1, 2, 3}),
    ],
)
def test_lists_are_filtered(records: RecordWriter, ben: User, api: ApiFor, query: dict[str, str], found: set[int]) -> None:
    records.action("billing-7", 1, tool="send_email")
    records.action("billing-7", 2, tool="create_payment", cls="idempotent")
    records.action("billing-7", 3, tool="open_ticket")
    records.action("billing-7", 4, status="done")
    _, body = api(ben).get("actions", **query)
    assert {item["seq"] for item in body["items"]} == found


def test_lists_are_paged_without_gaps_or_repeats(records: RecordWriter, ben: User, api: ApiFor) -> None:
    for seq in range(1, 8):
        records.action("billing-7", seq)
    caller, seen, cursor = api(ben), [], ""
    for _ in range(4):
        _, body = caller.get("actions", limit=3, cursor=cursor)
        seen += [item["seq"] for item in body["items"]]
        cursor = body["next"]
        if not cursor:
            break
        records.action("billing-0", len(seen))  # whatever comes meanwhile shifts nothing
    assert [seq for seq in seen if seq in range(1, 8)][:7] == list(range(1, 8))


def test_large_arguments_are_cut_at_a_character(records: RecordWriter, ben: User, api: ApiFor) -> None:
    text = "é" * 6000
    records.action("billing-7", 1, args={"text": text})
    caller = api(ben)
    _, body = caller.get("actions")
    (item,) = body["items"]
    assert item["args_truncated"] is True
    assert 4090 <= len(item["args"].encode()) <= 4096
    _, whole = caller.get("actions/main/billing-7/1")
    assert (json.loads(whole["args"])["text"], whole["args_truncated"]) == (text, False)


@pytest.mark.parametrize(
    "args", ["not json", '{"a":"\x00"}', '{"a":"\\u0000\\ud800"}', "[" * 5000 + "]" * 5000, '{"n":' + "9" * 400 + "}", "\ud800"]
)
def test_hostile_arguments_never_break_a_list(records: RecordWriter, ben: User, api: ApiFor, args: str) -> None:
    records.action("billing-7", 1, args=args)
    records.action("billing-7", 2)
    caller = api(ben)
    status, body = caller.get("actions")
    assert (status, len(body["items"])) == (200, 2)
    assert caller.get("actions/main/billing-7/1")[0] == 200


def test_secrets_never_leave(records: RecordWriter, ben: User, api: ApiFor) -> None:
    secret = "hunter2-hunter2"
    records.action("billing-7", 1, args={"to": "a@example.com", "password": secret, "note": "Bearer abcdefghijklmnop"})
    records.action("billing-7", 2, status="done", result=json.dumps({"api_key": secret}), resolution=f"password={secret}")
    caller = api(ben)
    for path in ("actions", "actions/main/billing-7/1", "actions/main/billing-7/2"):
        text = json.dumps(caller.get(path)[1])
        assert secret not in text
        assert "abcdefghijklmnop" not in text


def test_one_action_is_shown_whole(records: RecordWriter, ana: User, ben: User, api: ApiFor) -> None:
    ref = records.action("billing-7", 1, status="done", result="message-id 1204 " * 1000, resolution="reported by the agent")
    status, body = api(ben).get("actions/main/billing-7/1")
    assert status == 200
    assert set(body) == ITEM_KEYS | {
        "ended_at",
        "result",
        "error",
        "resolution",
        "verdicts",
        "decision",
        "note",
        "notes",
        "correction",
    }
    assert body["result"] == "message-id 1204 " * 1000
    assert (body["resolution"], body["verdicts"], body["decision"], body["note"]) == ("reported by the agent", [], None, None)
    assert ref.seq == body["seq"]


def test_one_action_shows_what_was_decided(records: RecordWriter, ana: User, ben: User, api: ApiFor) -> None:
    ref = records.action("billing-7", 1)
    decide(ref, DecisionRequest(outcome="later", reason="asked the bank", decision_id="note-0001"), by=ana)
    decide(ref, DecisionRequest(outcome="failed", reason="not in the ledger", decision_id="decision-0001"), by=ana)
    _, body = api(ben).get("actions/main/billing-7/1")
    assert {name: body["decision"][name] for name in ("id", "state", "outcome", "reason", "result", "error", "by")} == {
        "id": "decision-0001",
        "state": "written",
        "outcome": "failed",
        "reason": "not in the ledger",
        "result": "",
        "error": "not in the ledger",
        "by": "ana",
    }
    assert body["decision"]["at"].endswith("Z")
    assert body["note"]["reason"] == "asked the bank"


def test_a_store_that_is_down_is_named_and_the_rest_is_listed(records: RecordWriter, down: str, ben: User, api: ApiFor) -> None:
    records.action("billing-7", 1)
    caller = api(ben)
    status, body = caller.get("actions")
    assert (status, len(body["items"])) == (200, 1)
    assert [problem["store"] for problem in body["problems"]] == ["down"]
    assert "secret-pw" not in json.dumps(body)
    status, body = caller.get("actions", store="down")
    assert (status, body["error"]) == (503, "unavailable")
    assert "secret-pw" not in json.dumps(body)
    assert caller.get("actions/down/billing-7/1")[0] == 503


def test_lists_show_only_what_the_caller_may_see(
    records: RecordWriter, other_store: MemoryWriter, dot: User, api: ApiFor
) -> None:
    records.action("desk-1", 1, tool="open_ticket")
    records.action("desk-1", 2, tool="send_email")
    records.action("desk-1", 3, tool="open_ticket", body="{")
    other_store.action("desk-2", 1, tool="open_ticket")
    caller = api(dot)
    _, body = caller.get("actions")
    assert [(item["store"], item["seq"]) for item in body["items"]] == [("main", 1)]
    assert caller.get("actions", store="other")[0] == 404
    assert caller.get("actions/main/desk-1/2")[0] == 404
    assert caller.get("actions/other/desk-2/1")[0] == 404


# --- the history -----------------------------------------------------------------------------------------------------


def _settled(records: RecordWriter, by: User, count: int, *, tool: str = "send_email", agent: str = "billing-7") -> None:
    for seq in range(1, count + 1):
        ref = records.action(agent, seq, tool=tool)
        decide(ref, DecisionRequest(outcome="done", reason=f"reason {seq}", decision_id=f"{agent}-{seq:08d}"), by=by)


def test_the_history_is_listed_newest_first(records: RecordWriter, ana: User, ben: User, api: ApiFor) -> None:
    _settled(records, ana, 3)
    status, body = api(ben).get("audit")
    assert status == 200
    assert [item["number"] for item in body["items"]] == [3, 2, 1]
    first = body["items"][-1]
    assert {
        name: first[name] for name in ("store", "kind", "actor", "agent", "seq", "tool", "outcome", "reason", "decision_id")
    } == {
        "store": "main",
        "kind": "settled",
        "actor": "operator ana",
        "agent": "billing-7",
        "seq": 1,
        "tool": "send_email",
        "outcome": "done",
        "reason": "reason 1",
        "decision_id": "billing-7-00000001",
    }
    assert first["prev"] == "0" * 64
    assert body["items"][1]["prev"] == first["hash"]
    assert first["detail"]["before"]["status"] == "started"


def test_the_history_is_paged_and_filtered(records: RecordWriter, ana: User, ben: User, api: ApiFor) -> None:
    _settled(records, ana, 5)
    _settled(records, ana, 2, agent="billing-8")
    caller, numbers, cursor = api(ben), [], ""
    while True:
        _, body = caller.get("audit", limit=3, cursor=cursor)
        numbers += [item["number"] for item in body["items"]]
        cursor = body["next"]
        if not cursor:
            break
    assert numbers == [7, 6, 5, 4, 3, 2, 1]
    assert [item["seq"] for item in caller.get("audit", agent="billing-8")[1]["items"]] == [2, 1]
    assert [item["agent"] for item in caller.get("audit", agent="billing-8", seq=2)[1]["items"]] == ["billing-8"]
    assert caller.get("audit", store="main", agent="nobody")[1]["items"] == []


def test_the_history_shows_only_what_the_caller_may_see(
    records: RecordWriter, other_store: MemoryWriter, ana: User, dot: User, person: Cast, api: ApiFor
) -> None:
    _settled(records, ana, 1, tool="open_ticket", agent="desk-1")
    _settled(records, ana, 1, tool="send_email", agent="desk-2")
    _settled(other_store, ana, 1, tool="open_ticket", agent="desk-3")
    assert [item["agent"] for item in api(dot).get("audit")[1]["items"]] == ["desk-1"]
    assert api(dot).get("audit", store="other")[0] == 404
    assert api(person("app", "approver")).get("audit")[0] == 403


# --- who calls -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["actions", "actions/main/a/1", "actions/main/a/1/decision", "audit", "nothing/here", "openapi.json"]
)
def test_nothing_is_answered_without_a_token(own_addresses: None, memory: RecordWriter, db: None, path: str) -> None:
    for caller in (Api(None), Api("wrong"), Api("\x00"), Api("a b")):
        status, body = caller.get(path)
        assert (status, body["error"]) == (401, "unauthenticated")


def test_a_session_is_no_token(own_addresses: None, memory: RecordWriter, ana: User) -> None:
    caller = Api(None)
    caller.client.force_login(ana)
    assert caller.get("actions")[0] == 401
    assert caller.post("actions/main/a/1/decision", "{}")[0] == 401
    assert caller.get("openapi.json")[0] == 200


def test_a_user_without_a_role_is_told_so(memory: RecordWriter, cyd: User, api: ApiFor) -> None:
    for path in ("actions", "audit", "actions/main/a/1"):
        status, body = api(cyd).get(path)
        assert (status, body["error"]) == (403, "forbidden")


def test_a_user_who_left_has_no_token(memory: RecordWriter, ana: User, api: ApiFor) -> None:
    caller = api(ana)
    ana.is_active = False
    ana.save()
    assert caller.get("actions")[0] == 401


def test_a_role_taken_away_counts_at_once(memory: RecordWriter, ana: User, api: ApiFor) -> None:
    caller = api(ana)
    assert caller.get("actions")[0] == 200
    Grant.objects.all().delete()
    assert caller.get("actions")[0] == 403


def test_an_agents_token_reads_no_lists(own_addresses: None, memory: RecordWriter, db: None) -> None:
    memory.action("billing-7", 1)
    caller = Api(create_agent_token("main", "billing-7"))
    for path in ("actions", "actions/main/billing-7/1", "audit"):
        assert caller.get(path)[0] == 403


def test_tokens_are_kept_as_hashes_only(db: None) -> None:
    from console.models import Token

    text = create_agent_token("main", "billing-7")
    assert text not in str(list(Token.objects.values()))


# --- bad questions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "query", "status"),
    [
        ("actions", {"state": "openish"}, 422),
        ("actions", {"class_": "dangerous"}, 422),
        ("actions", {"store": "nowhere"}, 404),
        ("actions", {"limit": "0"}, 422),
        ("actions", {"limit": "201"}, 422),
        ("actions", {"limit": "many"}, 422),
        ("actions", {"limit": "9" * 5000}, 422),
        ("actions", {"cursor": "garbage"}, 422),
        ("actions", {"cursor": "ü"}, 422),
        ("actions", {"cursor": base64.urlsafe_b64encode(b"[" * 100_000).decode()}, 422),
        ("actions", {"cursor": base64.urlsafe_b64encode(b'[1,2,"a","b",1,9]').decode()}, 422),
        ("actions", {"stat": "done"}, 422),
        ("actions", {"agent": "a\x00b"}, 422),
        ("actions", {"tool": "\x00"}, 422),
        ("audit", {"cursor": "garbage"}, 422),
        ("audit", {"cursor": base64.urlsafe_b64encode(b'{"main": "x"}').decode()}, 422),
        ("audit", {"seq": "0"}, 422),
        ("audit", {"seq": "99999999999999999999"}, 422),
        ("audit", {"seq": "x"}, 422),
        ("audit", {"store": "nowhere"}, 404),
        ("audit", {"agent": "\x00"}, 422),
        ("audit", {"limit": "-1"}, 422),
        ("actions/nowhere/a/1", {}, 404),
        ("actions/main/a/1", {}, 404),
        ("actions/main/a/0", {}, 404),
        ("actions/main/a/x", {}, 404),
        ("actions/main/a/-1", {}, 404),
        ("actions/main/a/99999999999999999999", {}, 404),
        ("actions/main/a%00b/1", {}, 404),
        ("actions/main/a%ff/1", {}, 404),
        ("actions/main/a/1", {"whole": "1"}, 422),
        ("nothing/here", {}, 404),
        ("actions/", {}, 404),
        ("", {}, 404),
    ],
)
def test_a_bad_question_is_told_what_is_wrong(
    records: RecordWriter, ben: User, api: ApiFor, path: str, query: dict[str, Any], status: int
) -> None:
    got, body = api(ben).get(path, **query)
    assert got == status, body
    assert set(body) == {"error", "detail"}
    assert body["detail"]
    assert "\n" not in body["detail"]
    assert len(body["detail"]) < 400


def test_every_address_refuses_in_json_the_methods_that_it_does_not_take(memory: RecordWriter, ana: User, api: ApiFor) -> None:
    caller = api(ana)
    parts = {"store": "main", "agent": "a", "seq": 1, "batch_id": "x", "run_id": "x", "approval_id": "x"}
    paths = routes.get_openapi_schema(path_prefix="/api/v1/")["paths"]
    assert "/api/v1/token" in paths
    for path, taken in paths.items():
        address = path.format(**parts)
        for method in {"get", "post", "put", "patch", "delete", "options"} - set(taken):
            answer = caller.client.generic(method.upper(), address, headers=caller.headers)
            assert (answer.status_code, answer.json()["error"]) == (405, "method_not_allowed"), (method, path)
            assert {one.lower() for one in answer["Allow"].split(", ")} == set(taken), (method, path)
        assert caller.client.generic("PUT", address).status_code == 401, path


def test_a_bug_is_answered_without_its_insides(
    memory: RecordWriter, ben: User, api: ApiFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("hunter2-hunter2")

    monkeypatch.setattr(MemoryStore, "read_actions", broken)
    status, body = api(ben).get("actions")
    assert (status, body["error"]) == (500, "broken")
    assert "hunter2" not in json.dumps(body)


def test_the_document_describes_every_address(memory: RecordWriter, ben: User, api: ApiFor) -> None:
    status, body = api(ben).get("openapi.json")
    assert status == 200
    assert set(body["paths"]) == {
        "/api/v1/token",
        "/api/v1/actions",
        "/api/v1/actions/{store}/{agent}/{seq}",
        "/api/v1/actions/{store}/{agent}/{seq}/resolve",
        "/api/v1/actions/{store}/{agent}/{seq}/decision",
        "/api/v1/actions/{store}/{agent}/{seq}/decision/approve",
        "/api/v1/actions/{store}/{agent}/{seq}/decision/turn-down",
        "/api/v1/actions/{store}/{agent}/{seq}/decision/break-glass",
        "/api/v1/actions/{store}/{agent}/{seq}/decision/through-server",
        "/api/v1/actions/{store}/{agent}/{seq}/claim",
        "/api/v1/actions/{store}/{agent}/{seq}/correction",
        "/api/v1/agents/{store}/{agent}/eviction",
        "/api/v1/agents/{store}/{agent}/replay",
        "/api/v1/approvals",
        "/api/v1/approvals/{approval_id}",
        "/api/v1/audit",
        "/api/v1/bulk",
        "/api/v1/bulk/{batch_id}",
        "/api/v1/runs",
        "/api/v1/runs/{run_id}",
        "/api/v1/runs/{run_id}/cancel",
        "/api/v1/runs/{run_id}/compensate",
        "/api/v1/runs/{run_id}/compensation",
        "/api/v1/runs/{run_id}/done",
        "/api/v1/runs/{run_id}/events",
        "/api/v1/runs/{run_id}/restart",
        "/api/v1/runs/{run_id}/resume",
    }
    assert set(body["paths"]["/api/v1/actions/{store}/{agent}/{seq}/decision"]) == {"get", "post", "delete"}
    assert "class" in body["components"]["schemas"]["ItemOut"]["properties"]


def test_a_list_costs_the_same_with_many_rows(
    memory: RecordWriter, ben: User, api: ApiFor, django_assert_num_queries: Any
) -> None:
    caller = api(ben)
    memory.action("billing-7", 1)
    memory.action("billing-7", 2)
    caller.get("actions")
    with django_assert_num_queries(4):  # token, roles, claims, policies
        caller.get("actions", limit=200)
    for seq in range(3, 201):
        memory.action("billing-7", seq)
    known_counts.forget()
    with django_assert_num_queries(5):  # and the new count
        caller.get("actions", limit=200)
    with django_assert_num_queries(4):
        assert len(caller.get("actions", limit=200)[1]["items"]) == 200


def test_answers_are_kept_by_nobody(memory: RecordWriter, ben: User, api: ApiFor) -> None:
    caller = api(ben)
    response = caller.client.get("/api/v1/actions", headers=caller.headers)
    assert response["Cache-Control"] == "no-store"
    assert get_store("main").name == "main"
