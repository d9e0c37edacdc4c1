"""An MCP server by which other harnesses write the same records: `python -m agents.mcp_server --store URL`, over stdio or HTTP.

A client's session holds agents. Over stdio the process is the session; over HTTP it is what the protocol's handshake begins. When it ends,
its agents are released at once; a server that is killed leaves their leases to expire.
"""

from __future__ import annotations

import argparse
import hmac
import io
import ipaddress
import json
import logging
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import mcp_types as types
import uvicorn
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types.jsonrpc import jsonrpc_message_adapter
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic_core import from_json

from actions.errors import StoreError
from actions.store import open_agent_store
from actions.store.base import AgentStore
from agents.mcp_arguments import ToolRefused
from agents.mcp_session import TOOLS, Session

log = logging.getLogger(__name__)

NAME = "settle-agents"
MAX_BODY_BYTES = 8 * 1_048_576
"""Arguments of 1 MiB, escaped."""
DEFAULT_IDLE_S = 900.0
MAX_THREADS = 64
MIN_TOKEN_CHARS = 16

_UNSENDABLE = "settle/unsendable"
"""In the place of a call whose text no MCP message can hold: it is answered like any other."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def make_server(store: AgentStore, *, by_connection: bool) -> Server[dict[str, Any]]:
    """The server over one store. `by_connection`: each connection is a session of its own; else whatever reaches it is the same one."""
    limiter = anyio.CapacityLimiter(MAX_THREADS)
    only = Session(store)

    @asynccontextmanager
    async def lifespan(_: Server[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
        try:
            yield {}
        finally:
            await _end(only)

    async def list_tools(_: ServerRequestContext[Any], __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=_listed())

    async def call_tool(context: ServerRequestContext[Any], call: types.CallToolRequestParams) -> types.CallToolResult:
        if call.name == _UNSENDABLE:
            return _said(f"{(call.arguments or {}).get('why', 'it cannot be read')}; nothing was written", is_error=True)
        session = _session_of(context, store) if by_connection else only

        def work() -> types.CallToolResult:
            return _carry_out(session, call)

        # What was begun is finished, also when the client stops waiting: a thread cannot be taken out of a commit.
        return await anyio.to_thread.run_sync(work, limiter=limiter)

    return Server(
        NAME,
        version="1",
        instructions="Records of durable agents: call agent_resume first, begin_action before a call that touches the world, "
        "end_action after it.",
        lifespan=lifespan,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _session_of(context: ServerRequestContext[Any], store: AgentStore) -> Session:
    """The connection's own session; it ends with the connection."""
    # The SDK keeps per-connection cleanup there ("Push cleanup from handlers", Connection.exit_stack) and names no public way to it.
    connection = context.session._connection
    session = connection.state.get(NAME)
    if session is None:
        session = connection.state[NAME] = Session(store)
        connection.exit_stack.push_async_callback(_end, session)
    return session


async def _end(session: Session) -> None:
    await anyio.to_thread.run_sync(session.close, abandon_on_cancel=True)


def _listed() -> list[types.Tool]:
    return [
        types.Tool(
            name=name,
            description=tool.says,
            input_schema=tool.schema,
            annotations=types.ToolAnnotations(read_only_hint=tool.is_read_only, open_world_hint=False),
        )
        for name, tool in TOOLS.items()
    ]


def _carry_out(session: Session, call: types.CallToolRequestParams) -> types.CallToolResult:
    try:
        return _said(json.dumps(session.call(call.name, call.arguments), separators=(",", ":")))
    except ToolRefused as exc:
        return _said(str(exc), is_error=True)
    except Exception as exc:
        log.exception("carrying out %s", call.name[:60])
        return _said(
            f"something broke here ({type(exc).__name__}); whether it was written is not known. Look at pending_actions or "
            "recent_turns before you go on",
            is_error=True,
        )


def _said(text: str, *, is_error: bool = False) -> types.CallToolResult:
    sendable = text.encode("utf-8", "backslashreplace").decode()
    return types.CallToolResult(content=[types.TextContent(type="text", text=sendable)], is_error=is_error)


# --- stdio -----------------------------------------------------------------------------------------------------------


async def serve_stdio(store: AgentStore) -> None:
    """Until the client closes our input; then its agents are released."""
    server = make_server(store, by_connection=False)
    lines = anyio.wrap_file(_Lines(sys.stdin.buffer, encoding="utf-8", errors="replace"))
    async with stdio_server(stdin=lines) as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


class _Lines(io.TextIOWrapper):
    """Our input, a message a line. One that the SDK could not read would be dropped without an answer, and its client wait for ever."""

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]
        return _sendable(super().readline(size))


def _sendable(line: str) -> str:
    try:
        jsonrpc_message_adapter.validate_json(line)
        return line
    except ValueError:
        found = _ID.search(line)
    try:
        said = json.loads(line)
        number = said.get("id") if isinstance(said, dict) and said.get("method") == "tools/call" else None
    except (ValueError, RecursionError):
        number = json.loads(found[1]) if found and _CALL.search(line) else None
    if not isinstance(number, int | str) or isinstance(number, bool):
        return line
    call = {
        "jsonrpc": "2.0",
        "id": number,
        "method": "tools/call",
        "params": {"name": _UNSENDABLE, "arguments": {"why": _why(line)}},
    }
    return json.dumps(call) + "\n"


_ID = re.compile(r'"id"\s*:\s*(\d{1,18}|"[A-Za-z0-9._:-]{1,100}")\s*[,}]')
_CALL = re.compile(r'"method"\s*:\s*"tools/call"')


def _why(line: str) -> str:
    try:
        json.dumps(json.loads(line), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return "the arguments hold half a surrogate pair, which no record can keep"
    except RecursionError:
        return "the arguments are nested too deeply to be read; send them as a text"
    except ValueError:
        return "the message is no JSON that can be read here"
    try:
        from_json(line)
    except ValueError:
        return "the arguments are nested too deeply to be read; send them as a text"
    return "the message is no call of a tool: params is an object with name and arguments"


# --- HTTP ------------------------------------------------------------------------------------------------------------


def make_app(store: AgentStore, *, host: str, token: str = "", idle_s: float = DEFAULT_IDLE_S) -> App:
    """The server at /mcp. With a token, whoever does not bring it gets 401; on this machine's own address, foreign Host names get 421.

    A session with no request under way for `idle_s` seconds has ended: its agents are released.
    """
    # Another site's page in a browser of this machine must not reach us under a name of its own (DNS rebinding); a token keeps it out too.
    names = [f"{name}:*" for name in ("127.0.0.1", "localhost", "[::1]", f"[{host}]" if ":" in host else host)]
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=not token,
        allowed_hosts=names,
        allowed_origins=[f"http://{name}" for name in names],
    )
    app = make_server(store, by_connection=True).streamable_http_app(
        max_request_body_size=MAX_BODY_BYTES, session_idle_timeout=idle_s, transport_security=security
    )
    return _guarded(_with_handshake(app), token)


def _guarded(app: App, token: str) -> App:
    wanted = sha256(token.encode()).digest()

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and token:
            given = _header(scope, b"authorization").removeprefix("Bearer ")
            if not hmac.compare_digest(sha256(given.encode("utf-8", "surrogatepass")).digest(), wanted):
                await _answer(send, 401, {"error": "send Authorization: Bearer TOKEN with the token of this server"})
                return
        await app(scope, receive, send)

    return guarded


def _with_handshake(app: App) -> App:
    """The newest protocol has no sessions over HTTP: every request stands alone, and nobody could tell when an agent's process is gone.

    Its clients are told the versions that have, and begin with the handshake, as the SDK's own does by itself.
    """

    async def with_handshake(scope: Scope, receive: Receive, send: Send) -> None:
        version = _header(scope, b"mcp-protocol-version") if scope["type"] == "http" else ""
        if version and version not in HANDSHAKE_PROTOCOL_VERSIONS:
            error = types.ErrorData(
                code=types.UNSUPPORTED_PROTOCOL_VERSION,
                message="Unsupported protocol version: this server needs the sessions of the initialize handshake",
                data={"supported": list(HANDSHAKE_PROTOCOL_VERSIONS), "requested": version[:40]},
            )
            request_id = await _id_of(receive)
            said = {"jsonrpc": "2.0", "id": request_id, "error": error.model_dump(mode="json", exclude_none=True)}
            await _answer(send, 400, said)
            return
        await app(scope, receive, send)

    return with_handshake


async def _id_of(receive: Receive) -> Any:
    """Of a request that is refused: its answer has to name it."""
    body = b""
    while True:
        message = await receive()
        if message["type"] != "http.request" or len(body) > MAX_BODY_BYTES:
            return None
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    try:
        found = json.loads(body).get("id")
    except (ValueError, RecursionError, AttributeError):
        return None
    return found if isinstance(found, int | str) else None


def _header(scope: Scope, name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")


async def _answer(send: Send, status: int, said: Any) -> None:
    body = json.dumps(said).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def serve_http(store: AgentStore, listening: socket.socket, *, host: str, token: str, idle_s: float) -> None:
    """Until SIGTERM or SIGINT; then every session ends and releases its agents."""
    app = make_app(store, host=host, token=token, idle_s=idle_s)
    config = uvicorn.Config(app, log_level="warning", lifespan="on", timeout_graceful_shutdown=2)
    signal.signal(signal.SIGTERM, lambda *_: None)  # uvicorn stops at it and raises it once more afterwards
    uvicorn.Server(config).run(sockets=[listening])


# --- the command -----------------------------------------------------------------------------------------------------

_HELP = """An MCP server over the records of durable agents: the tools of Recall's own server that are about agents, on PostgreSQL, MongoDB or
in memory. Without --http it speaks over its own input and output, for a client that starts it."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m agents.mcp_server",
        description=_HELP,
        epilog="Exit codes: 0 ended by its client or a signal, 1 the store or the address cannot be used, 2 wrong usage.",
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "--store", metavar="URL", help="postgres://...[?schema=recall&collection=NAME], mongodb://.../db, or memory:"
    )
    where.add_argument(
        "--store-file", metavar="F", type=Path, help="a file that holds the URL: a password stays out of the list of processes"
    )
    parser.add_argument(
        "--http", metavar="HOST:PORT", help="serve streamable HTTP at http://HOST:PORT/mcp; port 0 takes a free one"
    )
    parser.add_argument(
        "--token-file", metavar="F", type=Path, help="a file that holds the token which clients bring; needed beyond this machine"
    )
    parser.add_argument(
        "--idle-timeout",
        metavar="SECONDS",
        type=float,
        default=DEFAULT_IDLE_S,
        help="over HTTP: a session with no request under way for so long has ended (%(default)g)",
    )
    given = parser.parse_args(argv)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(name)s: %(message)s")
    try:
        token = _read_line(given.token_file, "the token") if given.token_file else ""
        url = given.store or _read_line(given.store_file, "the store's URL")
        address = _address(given.http, token=token) if given.http else None
        if not 1 <= given.idle_timeout <= 86_400:
            raise ValueError("--idle-timeout is between 1 and 86400 seconds")
    except ValueError as exc:
        print(f"mcp_server: {exc}", file=sys.stderr)
        return 2
    try:
        store = _open(url)
    except StoreError as exc:
        print(f"mcp_server: {exc}", file=sys.stderr)
        return 1
    try:
        if address is None:
            anyio.run(serve_stdio, store)
            return 0
        try:
            listening = socket.create_server(address, family=socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
        except OSError as exc:
            print(f"mcp_server: cannot listen on {given.http}: {exc.strerror or exc}", file=sys.stderr)
            return 1
        shown = f"[{address[0]}]" if ":" in address[0] else address[0]
        print(f"listening on http://{shown}:{listening.getsockname()[1]}/mcp", file=sys.stderr, flush=True)
        serve_http(store, listening, host=address[0], token=token, idle_s=given.idle_timeout)
        return 0
    except KeyboardInterrupt:
        return 0
    finally:
        store.close()


def _open(url: str) -> AgentStore:
    """Any store that agents can write to, with Recall's tables in it."""
    store = open_agent_store(url, name="main")
    store.create_records()
    return store


def _read_line(file: Path, what: str) -> str:
    try:
        text = file.read_text().strip()
    except (OSError, UnicodeError):
        raise ValueError(f"{what} cannot be read from {file}") from None
    if not re.fullmatch(r"[\x21-\x7e]+", text):
        raise ValueError(f"{file} holds no single line with {what}")
    return text


def _address(text: str, *, token: str) -> tuple[str, int]:
    found = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):([0-9]{1,5})", text)
    if found is None or int(found[2]) > 65_535:
        raise ValueError("--http takes HOST:PORT, as 127.0.0.1:8080 or [::1]:8080")
    host = found[1].strip("[]")
    if token and len(token) < MIN_TOKEN_CHARS:
        raise ValueError(f"the token has {len(token)} characters; at least {MIN_TOKEN_CHARS}, drawn at random")
    if not token and not _is_own(host):
        raise ValueError(f"{host} is reached from other machines: give --token-file, or listen on 127.0.0.1")
    return host, int(found[2])


def _is_own(host: str) -> bool:
    """Whether only this machine reaches it. A name is not looked up: what it means may change."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
