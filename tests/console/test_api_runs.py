"""The API of runs: started at once, followed as they go, answered with what stands in the way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.db import connections
from django.test import AsyncClient

from console.api import api as routes
from console.models import Approval, Grant, Run
from console.services.advancing import advance_run
from console.services.tokens import create_agent_token, create_user_token
from tests.console.conftest import Api
from tests.console.coroutines import run_to_end
from tests.console.run_kinds import effects
from tests.console.runs import PAY_MUCH, SEND, drive, errand, kinds_of, start
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
    await sync_to_async(connections.close_all)()
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
