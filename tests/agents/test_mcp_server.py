"""The MCP server as other harnesses use it: what its tools are, what they write, and what becomes of an agent when its client goes."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from mcp import Client

from actions.keys import action_key
from actions.records import ActionStatus
from actions.store import open_store
from actions.store.memory import MemoryStore
from agents.mcp_arguments import ToolRefused
from agents.mcp_server import main, make_server
from agents.mcp_session import MAX_AGENTS, TOOLS, Session
from tests.agents.mcp_clients import COMMAND, ROOT, TOKEN, Caller, HttpServer, http_server, over_http, over_stdio, play

FIXTURE = json.loads((Path(__file__).parent / "fixtures/mcp-tools.json").read_text())
MEMORIES = {"remember", "recall", "forget", "history", "diff"}
post = partial(httpx.post, timeout=60)
HEADERS = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}


@pytest.fixture(scope="module")
def shared() -> Iterator[HttpServer]:
    """A server in memory; its tests keep apart by the agent's name."""
    with http_server("--store", "memory:") as running:
        yield running


@pytest.fixture
def session() -> Iterator[Session]:
    store = MemoryStore(name="main")
    store.create_records()
    opened = Session(store)
    yield opened
    opened.close()


# --- the tools -------------------------------------------------------------------------------------------------------


def test_names_schemas_and_hints_are_those_of_recalls_own_server() -> None:
    theirs = {tool["name"]: tool for tool in FIXTURE["tools"] if tool["name"] not in MEMORIES}

    assert set(TOOLS) == set(theirs)
    for name, tool in TOOLS.items():
        assert tool.schema == theirs[name]["inputSchema"], name
        assert tool.is_read_only == theirs[name]["readOnlyHint"], name
        assert tool.says.endswith("."), name


def test_what_a_client_is_told_about_the_tools(shared: HttpServer) -> None:
    async def story(call: Caller) -> None:
        listed = (await call.client.list_tools()).tools
        assert [tool.name for tool in listed] == list(TOOLS)
        assert {tool.name: tool.input_schema for tool in listed} == {name: tool.schema for name, tool in TOOLS.items()}
        assert {tool.name for tool in listed if tool.annotations and tool.annotations.read_only_hint} == {
            name for name, tool in TOOLS.items() if tool.is_read_only
        }
        assert all(tool.description for tool in listed)

    play(story, over_http(shared))


async def a_life(call: Caller, agent: str) -> None:
    """Every tool once, as a client sees it."""
    begun = await call("agent_resume", agent_id=agent, lease_ttl_seconds=30)
    assert (begun["fresh"], begun["lease_held"], begun["turn_seq"]) == (True, True, 0)
    mail = await call("begin_action", agent_id=agent, tool="send_email", of_class="external", args='{"to": "\u00e9\\u0000"}')
    assert (mail["seq"], mail["key"], mail["status"]) == (1, action_key(agent, 1), "started")
    assert mail["args"] == '{"to": "\u00e9\\u0000"}'
    assert [one["seq"] for one in await call("pending_actions", agent_id=agent)] == [1]
    in_doubt = await call("end_action", agent_id=agent, seq=1, status="unknown", resolution="the line went dead")
    assert (in_doubt["status"], in_doubt["resolution"]) == ("unknown", "the line went dead")
    done = await call("end_action", agent_id=agent, seq=1, status="done", result="message-id 1204")
    assert (done["status"], done["result"], done["resolution"]) == ("done", "message-id 1204", "the line went dead")
    assert "already ended done" in await call("end_action", agent_id=agent, seq=1, status="failed", error="no")
    assert await call("pending_actions", agent_id=agent) == []
    turn = await call("record_turn", agent_id=agent, role="tool", name="send_email", content="sent", brief="ok", message_id="m-1")
    assert (turn["seq"], turn["brief"], turn["message_id"]) == (1, "ok", "m-1")
    assert await call("recent_turns", agent_id=agent) == [turn]
    await call("update_working_state", agent_id=agent, goal="refunds", plan=["look", "pay"], step=1)
    state = await call("agent_milestone", agent_id=agent, name="all looked at")
    assert (state["version"], state["goal"], state["last_milestone"]) == (2, "refunds", "all looked at")
    assert [one["version"] for one in await call("working_state_history", agent_id=agent)] == [2, 1]
    kept = await call("store_output", agent_id=agent, content="line\n" * 100, ref="log-1", tool="grep", summary="lines")
    assert (kept["ref"], kept["tokens"]) == ("log-1", 125)
    assert (await call("fetch_output", agent_id=agent, ref="log-1"))["content"] == "line\n" * 100
    pointer = await call("set_pointer", agent_id=agent, name="branch", type="git_ref", fields={"branch": "main"}, note="ours")
    assert await call("list_pointers", agent_id=agent) == [pointer]
    context = await call("agent_context", agent_id=agent)
    assert context["working_state"] == state
    assert context["recent_turns"] == [turn]
    assert context["pointers"] == [pointer]
    assert [one["ref"] for one in context["outputs"]] == ["log-1"]
    assert "Goal: refunds" in context["briefing"]
    assert await call("remove_pointer", agent_id=agent, name="branch") == {"removed": "branch"}
    assert await call("list_pointers", agent_id=agent) == []
    assert await call("agent_release", agent_id=agent) == {"released": True}
    assert await call("agent_release", agent_id=agent) == {"released": False}


def test_every_tool_over_http(shared: HttpServer) -> None:
    play(lambda call: a_life(call, "whole-http"), over_http(shared))


def test_every_tool_over_stdio_on_postgres_leaves_records_that_the_next_process_reads(pg_url: str) -> None:
    play(lambda call: a_life(call, "whole-stdio"), over_stdio(pg_url))

    store = open_store(pg_url, name="main")
    action = store.get_action("whole-stdio", 1).action
    assert action.status is ActionStatus.DONE  # type: ignore[union-attr]
    assert [turn.content for turn in store.list_turns("whole-stdio", limit=5)] == ["sent"]  # type: ignore[union-attr]
    lease = store.find_lease("whole-stdio")
    assert lease is not None
    assert lease.is_released
    store.close()


# --- sessions --------------------------------------------------------------------------------------------------------


def test_a_session_holds_several_agents_and_another_session_none_of_them(shared: HttpServer) -> None:
    async def story(one: Caller, two: Caller) -> None:
        for agent in ("several-1", "several-2"):
            assert (await one("agent_resume", agent_id=agent))["lease_held"]
        assert (await one("begin_action", agent_id="several-2", tool="look", of_class="pure"))["seq"] == 1
        refused = await one("agent_resume", agent_id="several-1")
        assert refused == 'agent "several-1" is already resumed in this session; call agent_release first to resume it again'
        stranger = await two("begin_action", agent_id="several-2", tool="look", of_class="pure")
        assert stranger == 'agent "several-2" is not resumed in this session; call agent_resume first'
        held = await two("agent_resume", agent_id="several-1")
        assert held.startswith("agent lease is held by another process: held by ")
        assert await one("agent_release", agent_id="several-1") == {"released": True}
        assert (await two("agent_resume", agent_id="several-1"))["lease_held"]
        assert [action["seq"] for action in await one("pending_actions", agent_id="several-2")] == [1]

    play(story, over_http(shared), over_http(shared))


def test_whoever_waits_for_a_lease_reads_but_does_not_write(shared: HttpServer) -> None:
    async def story(one: Caller, two: Caller) -> None:
        await one("agent_resume", agent_id="deferred")
        waiting = await two("agent_resume", agent_id="deferred", defer_lease=True)
        assert waiting["lease_held"] is False
        assert await two("recent_turns", agent_id="deferred") == []
        refused = await two("record_turn", agent_id="deferred", role="user", content="x")
        assert refused == "agent lease not acquired yet; call agent_acquire before writing"
        assert "lease is held" in await two("agent_acquire", agent_id="deferred")
        await one("record_turn", agent_id="deferred", role="user", content="before")
        await one("agent_release", agent_id="deferred")
        taken = await two("agent_acquire", agent_id="deferred")
        assert taken["acquired"]
        assert "before" in taken["briefing"]
        assert (await two("record_turn", agent_id="deferred", role="user", content="after"))["seq"] == 2

    play(story, over_http(shared), over_http(shared))


def test_a_session_that_ends_releases_its_agents_and_leaves_open_what_is_open(shared: HttpServer) -> None:
    async def first(call: Caller) -> None:
        await call("agent_resume", agent_id="ended", holder="pod-a")
        await call("begin_action", agent_id="ended", tool="send_email", of_class="external")

    async def second(call: Caller) -> None:
        again = await call("agent_resume", agent_id="ended", holder="pod-b")
        assert again["lease_held"]
        assert [(action["seq"], action["status"]) for action in again["pending_actions"]] == [(1, "unknown")]

    play(first, over_http(shared))
    play(second, over_http(shared))


def test_a_client_that_says_nothing_any_more_has_ended(tmp_path: Path) -> None:
    """It never says goodbye: over HTTP nobody sees that its process is gone."""
    with http_server("--store", "memory:", "--idle-timeout", "3") as server:
        silent = _handshake(server)
        assert "lease_held" in _post(server, silent, "agent_resume", agent_id="idle").text

        async def story(call: Caller) -> None:
            while isinstance(said := await call("agent_resume", agent_id="idle"), str):
                assert "lease is held" in said
                await anyio.sleep(0.1)
            assert said["lease_held"]

        play(story, over_http(server))
        assert _post(server, silent, "pending_actions", agent_id="idle").status_code == 404


def test_a_server_that_is_asked_to_stop_releases_and_one_that_is_killed_does_not(pg_url: str) -> None:
    store = open_store(pg_url, name="main")
    for how, code, is_released in ((signal.SIGTERM, 0, True), (signal.SIGKILL, -9, False)):
        with http_server("--store", pg_url) as server:
            _post(server, _handshake(server), "agent_resume", agent_id="stopped", lease_ttl_seconds=3600)
            assert server.stop(how) == code
        lease = store.find_lease("stopped")
        assert lease is not None
        assert (lease.is_released, lease.is_live) == (is_released, not is_released)
    store.close()


def test_a_stdio_server_releases_when_its_client_closes_the_pipe(pg_url: str) -> None:
    async def first(call: Caller) -> None:
        await call("agent_resume", agent_id="piped", lease_ttl_seconds=3600)

    async def second(call: Caller) -> None:
        assert (await call("agent_resume", agent_id="piped"))["lease_held"]

    play(first, over_stdio(pg_url))
    play(second, over_stdio(pg_url))


def test_whoever_lost_the_lease_is_told_and_writes_nothing(pg_url: str) -> None:
    """Its process stood still, its lease ran out, and another one took the agent over."""
    store = open_store(pg_url, name="main")

    async def story(stalled: Caller, next_one: Caller) -> None:
        await stalled("agent_resume", agent_id="lost", lease_ttl_seconds=3600)
        _expire(pg_url, "lost")
        assert (await next_one("agent_resume", agent_id="lost"))["lease_held"]
        for _ in range(2):
            said = await stalled("record_turn", agent_id="lost", role="user", content="too late")
            assert said.startswith("agent lease was lost to another process: nothing was written")
        assert store.list_turns("lost", limit=5) == ()
        await stalled("agent_release", agent_id="lost")
        assert "lease is held" in await stalled("agent_resume", agent_id="lost")
        assert (await next_one("record_turn", agent_id="lost", role="user", content="mine"))["seq"] == 1

    play(story, over_stdio(pg_url), over_stdio(pg_url))
    store.close()


def test_calls_for_one_agent_at_the_same_moment_get_numbers_of_their_own(shared: HttpServer) -> None:
    async def story(call: Caller) -> None:
        await call("agent_resume", agent_id="parallel")
        seqs: list[int] = []

        async def begin() -> None:
            seqs.append((await call("begin_action", agent_id="parallel", tool="look", of_class="pure"))["seq"])

        async with anyio.create_task_group() as tasks:
            for _ in range(12):
                tasks.start_soon(begin)
        assert sorted(seqs) == list(range(1, 13))

    play(story, over_http(shared))


def test_a_session_holds_only_so_many_agents(session: Session) -> None:
    for number in range(MAX_AGENTS):
        session.call("agent_resume", {"agent_id": f"agent-{number}"})
    with pytest.raises(ToolRefused, match=f"holds {MAX_AGENTS} agents"):
        session.call("agent_resume", {"agent_id": "one-more"})
    session.call("agent_release", {"agent_id": "agent-0"})
    assert session.call("agent_resume", {"agent_id": "one-more"})["lease_held"]


def test_an_agent_that_is_resumed_while_its_session_ends_is_released_again() -> None:
    store = MemoryStore(name="main")
    store.create_records()
    ended = Session(store)
    ended.close()

    with pytest.raises(ToolRefused, match="has ended"):
        ended.call("agent_resume", {"agent_id": "late"})

    lease = store.find_lease("late")
    assert lease is not None
    assert lease.is_released


# --- what cannot be used ---------------------------------------------------------------------------------------------

BAD: list[tuple[str, dict[str, Any], str]] = [
    ("nope", {}, "there is no tool 'nope' here; there are agent_resume, "),
    ("begin_action", {"agent_id": None, "tool": "t", "class": "pure"}, "begin_action needs the argument agent_id"),
    ("begin_action", {"tool": "t"}, "begin_action needs the argument class"),
    ("begin_action", {"tool": "t", "class": "maybe"}, 'class must be one of "pure", "idempotent", "external", got "maybe"'),
    ("begin_action", {"tool": "t", "class": ["pure"]}, "class must be one of"),
    ("begin_action", {"tool": "t", "class": "pure", "arguments": "{}"}, 'has no argument "arguments"; it takes agent_id, args'),
    ("begin_action", {"tool": "t", "class": "pure", "args": {"to": "ann"}}, "args must be a string, got an object"),
    ("begin_action", {"tool": "t", "class": "pure", "args": "\ud800"}, "args holds half a surrogate pair"),
    ("begin_action", {"tool": "t", "class": "pure", "args": "x" * 1_048_577}, "args is 1048577 bytes; the limit is 1048576"),
    ("begin_action", {"tool": "t" * 129, "class": "pure"}, "128 bytes"),
    ("begin_action", {"tool": " ", "class": "pure"}, "tool name"),
    ("end_action", {"seq": "1", "status": "done"}, 'seq must be a whole number, got "1"'),
    ("end_action", {"seq": 1.5, "status": "done"}, "seq must be a whole number, got 1.5"),
    ("end_action", {"seq": True, "status": "done"}, "seq must be a whole number, got true"),
    ("end_action", {"seq": 10**400, "status": "done"}, "seq is too large a number"),
    ("end_action", {"seq": float("inf"), "status": "done"}, "seq must be a whole number"),
    ("end_action", {"seq": 99, "status": "done"}, "no action 99"),
    ("end_action", {"seq": 1, "status": "started"}, "status must be one of"),
    ("record_turn", {"role": "robot", "content": "x"}, "role must be one of"),
    ("record_turn", {"role": "user", "content": "x", "brief": "b" * 4_097}, "4096 bytes"),
    ("record_turn", {"role": "user", "content": "x", "message_id": "m" * 257}, "256 bytes"),
    ("update_working_state", {"plan": "one"}, 'plan must be a list of at most 10000 strings, got "one"'),
    ("update_working_state", {"plan": [1]}, "plan[0] must be a string, got 1"),
    ("set_pointer", {"name": "p", "type": "git_ref", "fields": {"sha": 1}}, 'fields."sha" must be a string'),
    ("set_pointer", {"name": "p", "type": "git_ref", "fields": {}}, "needs one of: sha, branch"),
    ("set_pointer", {"name": "a/b", "type": "object", "fields": {"uri": "x"}}, "pointer name"),
    ("store_output", {"content": "x", "ref": "a b"}, "output ref"),
    ("fetch_output", {"ref": "nothing"}, "has no output 'nothing'"),
    ("agent_resume", {"agent_id": "a:b"}, "agent id must be 1-128 letters, digits"),
    ("agent_resume", {"agent_id": "new", "lease_ttl_seconds": -1}, "must not be negative"),
    ("agent_resume", {"agent_id": "new", "lease_ttl_seconds": 10**9}, "at most 2592000, 30 days"),
    ("agent_resume", {"agent_id": "new", "token_budget": -1}, "must not be negative"),
    ("agent_resume", {"agent_id": "new", "defer_lease": "yes"}, "defer_lease must be true or false"),
    ("recent_turns", {"limit": "all"}, "limit must be a whole number"),
]


@pytest.mark.parametrize(("tool", "arguments", "why"), BAD, ids=lambda value: value if isinstance(value, str) else "")
def test_bad_arguments_are_told_in_one_line_and_change_nothing(
    session: Session, tool: str, arguments: dict[str, Any], why: str
) -> None:
    session.call("agent_resume", {"agent_id": "x"})
    session.call("begin_action", {"agent_id": "x", "tool": "look", "class": "pure"})
    before = session.call("agent_context", {"agent_id": "x"})

    with pytest.raises(ToolRefused) as refused:
        session.call(tool, {"agent_id": "x", **arguments})

    assert why in str(refused.value)
    assert len(str(refused.value)) < 400
    assert "\n" not in str(refused.value)
    after = session.call("agent_context", {"agent_id": "x"})
    assert {name: value for name, value in after.items() if name != "epoch"} == {
        name: value for name, value in before.items() if name != "epoch"
    }


def test_a_number_with_a_point_and_nothing_behind_it_is_whole(session: Session) -> None:
    """JSON has no whole numbers of its own; what is null was not given."""
    session.call("agent_resume", {"agent_id": "x", "holder": None, "token_budget": 4_000.0})
    session.call("begin_action", {"agent_id": "x", "tool": "look", "class": "pure", "args": None})
    assert session.call("end_action", {"agent_id": "x", "seq": 1.0, "status": "done"})["status"] == "done"


def test_what_breaks_is_one_line_for_the_client_and_the_rest_for_the_log(caplog: pytest.LogCaptureFixture) -> None:
    class Breaking(MemoryStore):
        def list_pointers(self, agent: str, *, limit: int = 1000) -> Any:
            raise RuntimeError("hunter2")

    store = Breaking(name="main")
    store.create_records()

    async def story(call: Caller) -> None:
        said = await call("agent_resume", agent_id="x")
        assert "something broke here (RuntimeError); whether it was written is not known" in said
        assert "hunter2" not in said

    async def run() -> None:
        async with Client(make_server(store, by_connection=False)) as client:
            await story(Caller(client))

    anyio.run(run)
    assert "hunter2" in caplog.text


def test_lines_that_no_message_can_hold_are_answered_too() -> None:
    """The SDK drops what it cannot read; its client would wait for ever."""
    begin = {"name": "agent_resume", "arguments": {"agent_id": "x", "holder": "\ud800"}}
    lines = [
        _line(
            "initialize", 1, {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}}
        ),
        json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        "no JSON",
        _line("tools/call", 2, begin),
        _line("tools/call", 3, {"name": "agent_resume", "arguments": "x"}),
        _line("tools/call", 4, {"name": "pending_actions", "arguments": {"agent_id": "x"}}),
        _line("tools/call", 5, "x"),
        _line("tools/call", 6, {"name": "record_turn", "arguments": {"content": "DEEP"}}).replace(
            '"DEEP"', "[" * 300 + "]" * 300
        ),
        _line("tools/call", 7, {"name": "record_turn", "arguments": "DEEP"}).replace('"DEEP"', "[" * 90_000 + "]" * 90_000),
        _line("tools/call", "h", {"name": "end_action", "arguments": {"seq": "LONG"}}).replace('"LONG"', "9" * 5_000),
    ]
    server = subprocess.Popen(
        [*COMMAND, "--store", "memory:"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write("\n".join(lines) + "\n")
    server.stdin.flush()
    answers = {answer["id"]: answer for answer in (json.loads(server.stdout.readline()) for _ in range(8))}
    rest, _ = server.communicate(timeout=60)

    assert answers[2]["result"]["isError"]
    assert "half a surrogate pair" in answers[2]["result"]["content"][0]["text"]
    assert answers[3]["error"]["code"] == -32602
    assert "not resumed in this session" in answers[4]["result"]["content"][0]["text"]
    for number, why in {5: "no call of a tool", 6: "nested too deeply", 7: "nested too deeply", "h": "no JSON"}.items():
        assert answers[number]["result"]["isError"]
        text = answers[number]["result"]["content"][0]["text"]
        assert why in text
        assert text.endswith("nothing was written")
    assert (server.returncode, rest) == (0, "")


def _line(method: str, number: int, params: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params})


@pytest.mark.parametrize(
    "body", ["no JSON", "[]", "[" * 5_000, '{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{"a":"\\ud800"}}']
)
def test_a_body_that_cannot_be_read_is_400(shared: HttpServer, body: str) -> None:
    answer = post(shared.url, content=body, headers=_handshake(shared))
    assert (answer.status_code, "error" in answer.json()) == (400, True)
    assert post(shared.url, content="x" * 9_000_000, headers=HEADERS).status_code == 413


# --- over HTTP -------------------------------------------------------------------------------------------------------


def _handshake(server: HttpServer, **headers: str) -> dict[str, str]:
    """Begin a session by hand; the headers of what belongs to it."""
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}}
    begun = post(server.url, content=_line("initialize", 1, params), headers={**HEADERS, **headers})
    assert begun.status_code == 200, begun.text
    of_session = {**HEADERS, **headers, "mcp-session-id": begun.headers["mcp-session-id"]}
    post(server.url, json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=of_session)
    return of_session


def _post(server: HttpServer, headers: dict[str, str], tool: str, **arguments: Any) -> httpx.Response:
    return post(server.url, content=_line("tools/call", 9, {"name": tool, "arguments": arguments}), headers=headers)


def test_without_its_token_nothing_is_answered(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")

    async def story(call: Caller) -> None:
        assert (await call("agent_resume", agent_id="x"))["lease_held"]

    with http_server("--store", "memory:", "--token-file", str(file)) as server:
        for given in ({}, {"Authorization": f"Bearer {TOKEN}x"}, {"Authorization": TOKEN[:-1]}, {"Authorization": "Basic x"}):
            answer = post(server.url, content=_line("tools/list", 1, {}), headers={**HEADERS, **given})
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
            assert TOKEN not in answer.text
        play(story, over_http(server, token=TOKEN))


def test_another_sites_page_reaches_nothing(shared: HttpServer) -> None:
    for header, status in (({"Host": "evil.example:80"}, 421), ({"Origin": "http://evil.example"}, 403)):
        assert post(shared.url, content=_line("initialize", 1, {}), headers={**HEADERS, **header}).status_code == status


def test_a_client_of_the_newest_protocol_is_told_the_versions_that_have_sessions(shared: HttpServer) -> None:
    headers = {**HEADERS, "mcp-protocol-version": "2026-07-28"}
    answer = post(shared.url, content=_line("server/discover", 7, {}), headers=headers)

    assert answer.status_code == 400
    said = answer.json()
    assert (said["id"], said["error"]["code"]) == (7, -32022)
    assert "2025-06-18" in said["error"]["data"]["supported"]
    assert "2026-07-28" not in said["error"]["data"]["supported"]


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (["--store", "memory:", "--http", "0.0.0.0:0"], 2, "0.0.0.0 is reached from other machines: give --token-file"),
        (["--store", "memory:", "--http", "example.com:80"], 2, "example.com is reached from other machines"),
        (["--store", "memory:", "--http", "127.0.0.1"], 2, "--http takes HOST:PORT"),
        (["--store", "memory:", "--http", "127.0.0.1:99999"], 2, "--http takes HOST:PORT"),
        (["--store", "memory:", "--http", "127.0.0.1:0", "--idle-timeout", "0"], 2, "between 1 and 86400"),
        (["--store", "memory:", "--token-file", "/nowhere/token"], 2, "the token cannot be read from /nowhere/token"),
        (["--store-file", "/nowhere/store"], 2, "the store's URL cannot be read"),
        (["--store", "sqlite:///x"], 1, "no adapter for sqlite"),
        (["--store", "polign+http://:hunter2@127.0.0.1:1/"], 1, "no agent of ours writes there"),
        (["--store", "postgres://ana:hunter2@127.0.0.1:1/nothing?connect_timeout=1"], 1, "store main: "),
    ],
)
def test_what_cannot_be_used_is_one_line(arguments: list[str], code: int, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("mcp_server: ")
    assert why in said.err
    assert said.err.count("\n") == 1
    assert "hunter2" not in said.err


def test_a_short_token_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "token").write_text("short")
    assert main(["--store", "memory:", "--http", "0.0.0.0:0", "--token-file", str(tmp_path / "token")]) == 2
    assert "at least 16" in capsys.readouterr().err


def test_its_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    said = capsys.readouterr().out
    for option in ("--store", "--store-file", "--http", "--token-file", "--idle-timeout", "Exit codes"):
        assert option in said
    with pytest.raises(SystemExit) as left:
        main([])
    assert left.value.code == 2


def _expire(url: str, agent: str) -> None:
    from tests.interop.driver import expire_lease

    expire_lease(url, agent)
