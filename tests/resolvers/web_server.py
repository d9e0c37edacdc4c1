"""A real HTTP server in a thread that answers what a test tells it to, byte by byte if need be, and remembers what it was asked."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as it came."""

    method: str
    target: str
    headers: dict[str, str]  # names in lower case
    body: bytes = b""


Answer = Callable[[Asked, "Conversation"], None]


class Conversation:
    """The server's end of one connection."""

    def __init__(self, connection: socket.socket, over: threading.Event) -> None:
        self._connection, self.over = connection, over

    def send(self, raw: bytes) -> None:
        self._connection.sendall(raw)

    def answer(self, status: int, body: bytes = b"", content_type: str = "application/json", **headers: str) -> None:
        lines = [
            f"HTTP/1.1 {status} Whatever",
            f"Content-Type: {content_type}",
            f"Content-Length: {len(body)}",
            "Connection: close",
        ]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    def hang(self) -> None:
        """Until the server closes, so that no test waits."""
        self.over.wait(60)


@dataclass(slots=True)
class WebServer:
    port: int
    answer: Answer
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"


@contextmanager
def serve(answer: Answer, *, address: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None) -> Iterator[WebServer]:
    """`answer` may be replaced while it runs."""
    over = threading.Event()
    with socket.create_server((address, port)) as listening:
        server = WebServer(port=listening.getsockname()[1], answer=answer)
        threads: list[threading.Thread] = []

        def accept() -> None:
            while not over.is_set():
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                server.connections += 1
                threads.append(threading.Thread(target=_talk, args=(server, connection, tls, over), daemon=True))
                threads[-1].start()

        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        try:
            yield server
        finally:
            over.set()
            listening.shutdown(socket.SHUT_RDWR)
            for thread in [accepting, *threads]:
                thread.join(30)


def _talk(server: WebServer, connection: socket.socket, tls: ssl.SSLContext | None, over: threading.Event) -> None:
    with connection:
        connection.settimeout(60)
        try:
            if tls is not None:
                connection = tls.wrap_socket(connection, server_side=True)
            raw = b""
            while b"\r\n\r\n" not in raw:
                if not (more := connection.recv(65_536)):
                    return
                raw += more
            asked = _read(raw)
            while len(asked.body) < int(asked.headers.get("content-length", 0)) and (more := connection.recv(65_536)):
                asked = replace(asked, body=asked.body + more)
            server.asked.append(asked)
            server.answer(server.asked[-1], Conversation(connection, over))
        except OSError:
            return  # the client has gone, as some tests want it to
        finally:
            connection.close()


def _read(raw: bytes) -> Asked:
    top, _, body = raw.partition(b"\r\n\r\n")
    head = top.decode("latin-1").split("\r\n")
    method, target, _ = head[0].split(" ")
    return Asked(method, target, {line.partition(":")[0].lower(): line.partition(":")[2].strip() for line in head[1:]}, body)
