"""Clients of our MCP server, as other harnesses have them: the SDK's own, over stdio and over HTTP, called one thing at a time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx2
from mcp import Client, StdioServerParameters
from mcp.client import stdio
from mcp.client.streamable_http import streamable_http_client

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "agents.mcp_server"]
TOKEN = "a-token-drawn-at-random"
stdio.PROCESS_TERMINATION_TIMEOUT = 60.0  # else the SDK kills a server that is slow to say goodbye, and no lease is released


class Caller:
    """One session. Answers are values; what was refused is the text."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def __call__(self, name: str, /, **arguments: Any) -> Any:
        if "of_class" in arguments:
            arguments["class"] = arguments.pop("of_class")
        answer = await self.client.call_tool(name, arguments)
        (said,) = answer.content
        return said.text if answer.is_error else json.loads(said.text)  # type: ignore[union-attr]


Story = Callable[..., Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpServer:
    url: str
    process: subprocess.Popen[str]

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(how)
        return self.process.wait(timeout=60)


@contextmanager
def http_server(*arguments: str) -> Iterator[HttpServer]:
    line = [*COMMAND, *arguments]
    process = subprocess.Popen([*line, "--http", "127.0.0.1:0"], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        said = process.stderr.readline()
        assert said.startswith("listening on "), said
        yield HttpServer(url=said.split()[-1], process=process)
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def over_stdio(url: str) -> Client:
    """A client with a server process of its own."""
    return Client(StdioServerParameters(command=COMMAND[0], args=[*COMMAND[1:], "--store", url], cwd=ROOT, env=dict(os.environ)))


def over_http(server: HttpServer, *, token: str = "") -> Client:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return Client(streamable_http_client(server.url, http_client=httpx2.AsyncClient(headers=headers, timeout=60)))


def play(story: Story, *clients: Client) -> None:
    """Run a story with one session for each client, all open at once."""

    anyio.run(_opened, story, clients, ())


async def _opened(story: Story, clients: tuple[Client, ...], callers: tuple[Caller, ...]) -> None:
    if not clients:
        await story(*callers)
        return
    async with clients[0] as client:
        await _opened(story, clients[1:], (*callers, Caller(client)))
