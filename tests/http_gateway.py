"""A real HTTP server between a client and another one: it forwards, notes what was asked, and fails where a test tells it to."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self
from urllib.parse import unquote, urlsplit

BAD_REQUEST = 400
LOST, UNANSWERED = "lost", "unanswered"
"""The request never arrives; it arrives, and nobody hears the answer."""


class Gateway:
    """`asked` are methods and decoded paths, in their order. `fails(number, request)`: how the request of that number fails, if it does;
    from then on every request is lost, as when a server or a network has gone."""

    def __init__(self, upstream: str) -> None:
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.fails: Callable[[int, str], str | None] = lambda number, request: None
        self.before: Callable[[str], None] = lambda request: None  # something that happens just before a request arrives
        self.answers: Callable[[str], int | None] = lambda request: (
            None
        )  # the status with which it is answered here, and never arrives
        self._connections: list[socket.socket] = []
        self._is_gone = False
        self._upstream = urlsplit(upstream).netloc
        self._lock = threading.Lock()
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # an answer goes out in two pieces

            def handle_any(self) -> None:
                gateway._serve(self)

            do_GET = do_PUT = do_POST = handle_any

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.base = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()

    def hang_up(self) -> None:
        """Close every connection that was made so far, as a server does that is restarted."""
        connections, self._connections = self._connections, []
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """From now on everything arrives again."""
        self._is_gone, self.fails = False, lambda number, request: None
        self.asked.clear()
        self.headers.clear()

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        request = f"{handler.command} {unquote(urlsplit(handler.path).path)}"
        with self._lock:
            self._connections.append(handler.connection)
            number = len(self.asked)
            self.asked.append(request)
            self.headers.append(dict(handler.headers))
            how = LOST if self._is_gone else self.fails(number, request)
            self._is_gone = self._is_gone or how is not None
        if how == LOST:
            self._hang_up(handler)
            return
        if (status := self.answers(request)) is not None:
            self._answer(handler, status, b"no" if status < BAD_REQUEST else b'{"error": "no"}', [])
            return
        self.before(request)
        connection = http.client.HTTPConnection(self._upstream, timeout=60)
        connection.request(handler.command, handler.path, body, {k: v for k, v in handler.headers.items() if k != "Connection"})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        if how == UNANSWERED:
            self._hang_up(handler)
            return
        self._answer(handler, answer.status, text, answer.getheaders())

    def _answer(self, handler: BaseHTTPRequestHandler, status: int, text: bytes, headers: Iterable[tuple[str, str]]) -> None:
        handler.send_response_only(status)
        for name, value in headers:
            if name not in ("Content-Length", "Transfer-Encoding", "Connection"):
                handler.send_header(name, value)
        if status != http.client.NO_CONTENT:
            handler.send_header("Content-Length", str(len(text)))
        handler.end_headers()
        handler.wfile.write(text)

    def _hang_up(self, handler: BaseHTTPRequestHandler) -> None:
        handler.close_connection = True
        with suppress(OSError):
            handler.connection.shutdown(socket.SHUT_RDWR)
