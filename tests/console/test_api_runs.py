"""The API of runs: started at once, followed as they go, answered with what stands in the way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.db import connection, connections
from django.test import AsyncClient
from langgraph.graph import START, StateGraph

from console import run_types
from console.api import api as routes
from console.models import Approval, Grant, Run
from console.services.advancing import advance_run
from console.services.policies import save_policy
from console.services.tokens import create_agent_token, create_user_token
from tests.console.conftest import PASSWORD, Api
from tests.console.coroutines import run_to_end
from tests.console.entries import console_entries
from tests.console.run_kinds import State, effects
from tests.console.runs import PAY_MUCH, SEND, drive, errand, kinds_of, start
from tests.console.view_helpers import browser
from tests.recall_writer import RecordWriter

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("errands")]
WHY = {"reason": "seen in the dashboard"}
Caller = Callable[[User], Api]


def body(**more: Any) -> dict[str, Any]:
    return {"type": "errand", "input": errand(SEND), **more}


def test_a_run_is_accepted_at_once_and_the_same_key_is_the_same_run(memory: RecordWriter, ana: User, api: Caller) -> None:
    status, said = api(ana).post("runs", body(idempotency_key="order-7"))
    again = api(ana).post("runs", body(idempotency_key="order-7"))
    other = api(ana).post("runs", body(idempotency_key="order-7", input=errand(PAY_MUCH)))

    assert (status, again) == (202, (202, said))
    assert (other[0], other[1]["error"], other[1]["run"]) == (409, "id_reused", said["id"])
    run = Run.objects.get()
    assert (run.run_id, run.status, effects("send")) == (said["id"], "running", [])


def test_what_it_came_to_is_told_with_everything_that_it_asked(memory: RecordWriter, ana: User, bea: User, api: Caller) -> None:
    run, caller = start(ana, PAY_MUCH), api(bea)
    drive(run)
    status, shown = caller.get(f"runs/{run.run_id}")
    assert (status, shown["status"], shown["started_by"], shown["parked"]) == (200, "waiting_approval", "ana", None)
    (asked,) = shown["approvals"]
    assert caller.get("approvals") == (200, {"items": [asked], "next": None})
    assert {"id", "run", "tool", "args", "digest", "expires_at"} <= asked.keys()
    assert (asked["run"], asked["args"]) == (run.run_id, {"amount": 5000.0, "to": "ACME"})

    said = caller.post(f"approvals/{asked['id']}", {"decision": "approve", "seen": asked["digest"]})
    drive(run)

    assert (said[0], said[1]["state"], said[1]["answered_by"]) == (200, "approved", "bea")
    assert len(effects("pay")) == 1
    shown = caller.get(f"runs/{run.run_id}")[1]
    assert (shown["status"], shown["cost"], shown["steps"] > 0) == ("done", "0.02", True)
    assert caller.get("approvals")[1]["items"] == []
    listed = caller.get("runs", status="done", type="errand")[1]
    assert [one["id"] for one in listed["items"]] == [run.run_id]


@pytest.mark.parametrize(
    ("sent", "status", "error", "detail"),
    [
        ({"type": "nothing", "input": {}}, 422, "unknown_type", "no run type is called 'nothing'"),
        ({"type": "errand", "input": {}}, 422, "invalid", "turns: Field required"),
        ({"type": "errand", "input": []}, 422, "invalid", "input"),
        ({"type": "errand"}, 422, "invalid", "input: Field required"),
        ({"type": "errand", "input": {}, "more": 1}, 422, "invalid", "more"),
        ({"type": "errand", "input": errand(SEND), "idempotency_key": "x" * 256}, 422, "invalid", "the limit is 255"),
        ({"type": "errand", "input": errand(SEND), "idempotency_key": "a\x00"}, 422, "invalid", "idempotency_key"),
    ],
)
def test_a_bad_body_starts_nothing(
    memory: RecordWriter, ana: User, api: Caller, sent: dict[str, Any], status: int, error: str, detail: str
) -> None:
    answered, said = api(ana).post("runs", sent)

    assert (answered, said["error"]) == (status, error)
    assert detail in said["detail"]
    assert said.get("problems", {"turns": "Field required"}) == {"turns": "Field required"}
    assert not Run.objects.exists()


def test_answers_that_cannot_be_taken_say_what_stands_there(memory: RecordWriter, ana: User, bea: User, api: Caller) -> None:
    run = drive(start(ana, PAY_MUCH))
    row = Approval.objects.get()
    path, seen = f"approvals/{row.approval_id}", row.digest

    changed = api(ana).post(path, {"decision": "approve", "seen": "0" * 64})
    invalid = api(ana).post(path, {"decision": "edit", "seen": seen, "args": {"amount": "much"}})
    unknown = api(ana).post(path, {"decision": "approve", "seen": seen, "why": "x"})
    nobody = api(ana).post("approvals/0", {"decision": "approve", "seen": seen})
    api(bea).post(path, {"decision": "reject", "seen": seen, "message": "no"})
    answered = api(ana).post(path, {"decision": "approve", "seen": seen})

    assert (changed[0], changed[1]["error"], changed[1]["digest"]) == (412, "changed", seen)
    assert (invalid[0], invalid[1]["error"], len(invalid[1]["problems"])) == (422, "invalid", 2)
    assert (unknown[0], nobody[0]) == (422, 404)
    assert (answered[0], answered[1]["error"], answered[1]["approval"]["state"]) == (409, "already_answered", "rejected")
    assert answered[1]["detail"] == "bea has answered it already: rejected"
    assert (drive(run).status, effects("pay")) == ("done", [])


@pytest.mark.django_db(transaction=True)
def test_of_two_answers_at_one_moment_one_counts_and_the_other_is_told_who_was_first(
    memory: RecordWriter, ana: User, bea: User, api: Caller
) -> None:
    run = drive(start(ana, PAY_MUCH))
    row = Approval.objects.get()
    both = Barrier(2)

    def press(caller: Api, decision: str) -> tuple[int, Any]:
        try:
            both.wait(120)
            return caller.post(f"approvals/{row.approval_id}", {"decision": decision, "seen": row.digest})
        finally:
            connections.close_all()

    callers = [(api(ana), "approve"), (api(bea), "reject")]
    with ThreadPoolExecutor(2) as pool:
        said = [one.result(120) for one in [pool.submit(press, *one) for one in callers]]

    first = Approval.objects.get()
    assert sorted(status for status, _ in said) == [200, 409]
    (late,) = [body for status, body in said if status == 409]
    assert (late["error"], late["detail"]) == ("already_answered", f"{first.answered_by} has answered it already: {first.state}")
    assert (len(console_entries("run_answered")), kinds_of(run).count("answered"), effects("pay")) == (1, 1, [])
    assert drive(run).status == "done"
    assert len(effects("pay")) == (first.state == "approved")


@pytest.mark.parametrize(
    ("asked", "decision", "sent", "status"),
    [
        (5000.0, "approve", {}, 403),
        (5000.0, "edit", {"args": {"amount": 10.0, "to": "ACME"}}, 403),
        (1500.0, "edit", {"args": {"amount": 5000.0, "to": "ACME"}}, 403),
        (1500.0, "edit", {"args": {"amount": 1600.0, "to": "ACME"}}, 200),
        (1500.0, "approve", {}, 200),
        (5000.0, "reject", {"message": "no"}, 200),
        (5000.0, "respond", {"message": "paid by hand"}, 200),
    ],
)
def test_what_asks_for_a_fresh_proof_of_identity_is_let_through_by_no_token_and_saying_no_needs_none(
    memory: RecordWriter, ana: User, amy: User, api: Caller, asked: float, decision: str, sent: dict[str, Any], status: int
) -> None:
    save_policy("pay", {"step_up_when": "amount > 2000"}, seen_version=0, by=amy)
    run = drive(start(ana, ("pay", {"amount": asked, "to": "ACME"})))
    row = Approval.objects.get()

    answered, said = api(ana).post(f"approvals/{row.approval_id}", {"decision": decision, "seen": row.digest, **sent})

    assert answered == status
    if status == 403:
        assert said["error"] == "confirm_identity"
        assert said["detail"].endswith("which no token can give; answer it on its page")
        assert (Approval.objects.get().state, drive(run).status, effects("pay")) == ("pending", "waiting_approval", [])
        assert console_entries("run_answered") == []
    else:
        assert (drive(run).status, len(effects("pay"))) == ("done", decision in ("approve", "edit"))


def test_who_has_just_proved_who_they_are_lets_it_through(memory: RecordWriter, ana: User, amy: User, settings: Any) -> None:
    save_policy("pay", {"step_up_when": "amount > 2000"}, seen_version=0, by=amy)
    run = drive(start(ana, PAY_MUCH))
    row, client = Approval.objects.get(), browser(ana)
    assert client.post(f"/approvals/{row.approval_id}/", {"decision": "approve", "seen": row.digest}).status_code == 403
    client.post("/confirm/", {"password": PASSWORD})

    answer = client.post(f"/approvals/{row.approval_id}/", {"decision": "approve", "seen": row.digest})

    assert (answer.status_code, Approval.objects.get().state) == (302, "approved")
    assert (drive(run).status, len(effects("pay"))) == ("done", 1)


@pytest.mark.parametrize(
    ("kind", "turns", "breaks", "said"),
    [
        ("errand", [SEND], 0, "ValueError: the model broke: api_key=[redacted]"),
        ("short", [SEND] * 40, None, "it has made 3 steps, and its type allows 3"),
        ("cheap", [SEND] * 40, None, "it has cost 0.02, and its type allows 0.02"),
        ("brief", [SEND] * 40, None, "its type allows 0 s"),
    ],
)
def test_a_graph_that_raises_goes_on_for_ever_or_exceeds_a_limit_ends_with_a_line_and_a_way_out(
    memory: RecordWriter, ana: User, api: Caller, errands: Any, kind: str, turns: list[Any], breaks: int | None, said: str
) -> None:
    (errands / "broken").touch()
    run, caller = drive(start(ana, *turns, kind=kind, breaks=breaks)), api(ana)
    path = f"runs/{run.run_id}"

    shown = caller.get(path)[1]

    assert shown["status"] == "failed"
    assert said in shown["problem"]
    assert len(effects("send")) <= 1
    status, resumed = caller.post(f"{path}/resume", WHY)
    way_out = (200, None) if breaks == 0 else (409, f"{shown['problem']}; begin it anew instead")
    assert (status, resumed.get("detail")) == way_out
    if breaks is None:
        assert caller.post(f"{path}/restart", WHY)[0] == 202


def test_a_checkpoint_that_no_longer_loads_is_said_and_the_run_begins_anew(memory: RecordWriter, ana: User, api: Caller) -> None:
    run, caller = drive(start(ana, PAY_MUCH)), api(ana)
    path, row = f"runs/{run.run_id}", Approval.objects.get()
    known = run_types.run_types()
    old = known["errand"]
    known["errand"] = replace(old, build=lambda tools, hooks, saver: _other_graph(saver))
    assert caller.post(f"approvals/{row.approval_id}", {"decision": "approve", "seen": row.digest})[0] == 200

    drive(run)
    shown = caller.get(path)[1]
    resumed = caller.post(f"{path}/resume", WHY)

    lost = "the graph has no node tools any more, which was to run next"
    way_out = "restart the run, or bring the earlier code back and resume it"
    assert (shown["status"], shown["problem"]) == ("failed", f"the last checkpoint no longer loads: {lost}; {way_out}")
    assert (resumed[0], resumed[1]["error"]) == (409, "not_possible")
    assert resumed[1]["detail"] == shown["problem"]
    assert (effects("pay"), caller.get(path)[1]["status"]) == ([], "failed")
    known["errand"] = old
    status, new = caller.post(f"{path}/restart", WHY)
    assert (status, drive(Run.objects.get(run_id=new["id"])).status, effects("pay")) == (202, "waiting_approval", [])


def _other_graph(saver: Any) -> Any:
    graph = StateGraph(State)
    graph.add_node("model", lambda state: {})
    graph.add_edge(START, "model")
    return graph.compile(checkpointer=saver)


def test_a_run_is_cancelled_resumed_begun_anew_and_marked(memory: RecordWriter, ana: User, api: Caller) -> None:
    run, caller = drive(start(ana, PAY_MUCH)), api(ana)
    path = f"runs/{run.run_id}"
    row = Approval.objects.get()

    assert caller.post(f"{path}/resume", WHY) == (409, {"error": "not_possible", "detail": _NOT_RESUMED})
    assert caller.post(f"{path}/cancel", {"reason": ""})[0] == 422
    assert caller.post(f"{path}/cancel", WHY)[1]["status"] == "cancelled"
    assert caller.post(f"{path}/cancel", WHY)[0] == 409
    void = caller.post(f"approvals/{row.approval_id}", {"decision": "approve", "seen": row.digest})
    assert (void[0], void[1]["error"]) == (409, "void")
    assert caller.post(f"{path}/resume", WHY)[1]["status"] == "running"
    drive(run)
    caller.post(f"{path}/cancel", WHY)
    status, new = caller.post(f"{path}/restart", WHY)
    assert (status, new["warnings"], new["id"] != run.run_id) == (202, [], True)
    assert caller.get(f"runs/{new['id']}")[1]["restart_of"] == run.run_id
    assert caller.post(f"{path}/done", WHY)[1]["status"] == "done"
    assert effects("pay") == []


_NOT_RESUMED = "the run is waiting approval; only one that failed or was cancelled can be resumed"


def test_a_run_with_open_calls_is_not_marked_done(memory: RecordWriter, ana: User, api: Caller, errands: Any) -> None:
    (errands / "vague-send").touch()
    run = drive(start(ana, SEND))

    status, said = api(ana).post(f"runs/{run.run_id}/done", WHY)

    assert (status, said["error"]) == (409, "open_calls")
    assert said["calls"] == [{"seq": 1, "tool": "send", "status": "unknown"}]
    assert Run.objects.get().status == "running"


def test_only_who_may_settle_it_changes_it_and_no_agent_does(
    memory: RecordWriter, ana: User, ben: User, cyd: User, amy: User, dot: User, api: Caller
) -> None:
    run = drive(start(ana, PAY_MUCH))
    row = Approval.objects.get()
    posts = [
        ("runs", body()),
        *((f"runs/{run.run_id}/{gesture}", WHY) for gesture in ("cancel", "resume", "restart", "done")),
        (f"approvals/{row.approval_id}", {"decision": "approve", "seen": row.digest}),
    ]
    gets = ["runs", f"runs/{run.run_id}", "approvals", f"approvals/{row.approval_id}", f"runs/{run.run_id}/events"]
    agent = Api(create_agent_token("main", run.run_id))

    assert [api(ben).get(path)[0] for path in gets[:4]] == [200] * 4
    assert [api(dot).get(path)[0] for path in gets] == [200, 404, 200, 404, 404]
    assert [len(api(dot).get(path)[1]["items"]) for path in ("runs", "approvals")] == [0, 0]
    for caller, status in ((agent, 403), (api(cyd), 403), (Api(None), 401)):
        assert [caller.get(path)[0] for path in gets] == [status] * 5
        assert [caller.post(path, sent)[0] for path, sent in posts] == [status] * 6
    for who in (ben, amy):
        assert [api(who).post(path, sent)[0] for path, sent in posts] == [403] * 6
    assert [api(dot).post(path, sent)[0] for path, sent in posts] == [403, *[404] * 5]

    run.refresh_from_db()
    assert (run.status, Approval.objects.get().state, Run.objects.count(), effects("pay")) == (
        "waiting_approval",
        "pending",
        1,
        [],
    )


def test_a_misspelt_filter_and_an_odd_cursor_are_refused(memory: RecordWriter, ana: User, api: Caller) -> None:
    assert api(ana).get("runs", stauts="done")[0] == 422
    assert api(ana).get("runs", status="finished")[0] == 422
    assert api(ana).get("runs", cursor="x")[0] == 422


def test_the_document_says_what_each_route_takes_and_answers() -> None:
    paths = routes.get_openapi_schema(path_prefix="/api/v1/")["paths"]
    of_runs = {path: set(found) for path, found in paths.items() if "/runs" in path or "/approvals" in path}
    run = "/api/v1/runs/{run_id}"
    assert of_runs == {
        "/api/v1/runs": {"get", "post"},
        run: {"get"},
        f"{run}/events": {"get"},
        **{f"{run}/{gesture}": {"post"} for gesture in ("cancel", "resume", "restart", "done", "compensate")},
        f"{run}/compensation": {"get"},
        "/api/v1/approvals": {"get"},
        "/api/v1/approvals/{approval_id}": {"get", "post"},
    }
    assert set(paths["/api/v1/runs"]["post"]["responses"]) == {202, 401, 403, 404, 409, 422}
    assert "text/event-stream" in paths[f"{run}/events"]["get"]["responses"][200]["content"]
    assert set(paths["/api/v1/approvals/{approval_id}"]["post"]["responses"]) == {200, 401, 403, 404, 409, 412, 422}


# --- live ------------------------------------------------------------------------------------------------------------


async def listen(token: str, run: Run, **headers: str) -> AsyncIterator[bytes]:
    answer = await AsyncClient().get(f"/api/v1/runs/{run.run_id}/events", headers={"Authorization": f"Bearer {token}", **headers})
    assert await sync_to_async(lambda: connection.connection)() is None, "whoever listens holds a connection that others need"
    assert (answer.status_code, answer["Content-Type"]) == (200, "text/event-stream")
    return aiter(answer.streaming_content)


def named(block: bytes) -> tuple[str, dict[str, Any]]:
    lines = dict(line.split(": ", 1) for line in block.decode().strip().splitlines() if ": " in line)
    return lines["event"], json.loads(lines.get("data", "{}"))


@pytest.mark.django_db(transaction=True)
def test_events_come_as_they_happen_once_each_and_end_with_the_run(memory: RecordWriter, ana: User, own_addresses: None) -> None:
    run, token = start(ana, SEND), create_user_token(ana)

    async def follow() -> list[str]:
        stream = await listen(token, run)
        heard = [named(await anext(stream))[0]]
        await sync_to_async(work)()
        heard += [named(block)[0] async for block in stream]
        return heard

    def work() -> None:
        try:
            drive(Run.objects.get(pk=run.pk))
        finally:
            connections.close_all()

    heard = run_to_end(asyncio.wait_for(follow(), 60))
    assert heard == [*kinds_of(run), "end"]

    async def rest() -> list[bytes]:
        return [block async for block in await listen(token, run, **{"Last-Event-ID": "3"})]

    later = run_to_end(asyncio.wait_for(rest(), 60))
    assert [named(block)[1].get("number") for block in later[:-1]] == list(range(4, len(kinds_of(run)) + 1))


@pytest.mark.django_db(transaction=True)
def test_a_stream_ends_when_its_listener_may_not_see_the_run_any_more(
    memory: RecordWriter, ana: User, own_addresses: None
) -> None:
    run, token = start(ana, SEND), create_user_token(ana)

    def lose() -> None:
        try:
            Grant.objects.all().delete()
            advance_run(run.pk)
        finally:
            connections.close_all()

    async def follow() -> list[str]:
        stream = await listen(token, run)
        first = named(await anext(stream))[0]
        await sync_to_async(lose)()
        return [first, *[named(block)[0] async for block in stream]]

    assert run_to_end(asyncio.wait_for(follow(), 60)) == ["started"]
