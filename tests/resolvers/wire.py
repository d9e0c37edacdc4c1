"""A line between a resolver and its server: it notes what was sent, and can be cut, swallow everything, or answer HTML."""

from __future__ import annotations

import contextlib
import socket
import threading

from tests.resolvers.worlds import HTML, REFUSED, SLOW

_HTML = b"HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/html\r\n\r\n<html><h1>502 Bad Gateway</h1></html>\r\n"


class Wire:
    """Listens on a port of its own and hands everything on to `target`, a port of this machine, until `how` says otherwise."""

    def __init__(self, target: int) -> None:
        self.how = ""
        self._target = target
        self._sent: list[bytearray] = []
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def break_with(self, how: str) -> None:
        self.how = how
        if how == REFUSED:
            self.close()

    def sent(self) -> bytes:
        """All that came from the resolver's side, connection after connection."""
        return b"".join(bytes(part) for part in self._sent)

    def connections(self) -> list[bytes]:
        return [bytes(part) for part in self._sent]

    def close(self) -> None:
        # A socket that another thread reads is not closed by close() alone, nor is a port on which one accepts.
        for one in [self._listener, *self._open]:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._open.append(client)
                self._sent.append(bytearray())
                if self.how == HTML:
                    client.sendall(_HTML)
                    threading.Thread(target=self._hand_on, args=(client, None, self._sent[-1]), daemon=True).start()
                elif self.how == SLOW:
                    threading.Thread(target=self._hand_on, args=(client, None, self._sent[-1]), daemon=True).start()
                else:
                    server = socket.create_connection(("127.0.0.1", self._target))
                    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._open.append(server)
                    threading.Thread(target=self._hand_on, args=(client, server, self._sent[-1]), daemon=True).start()
                    threading.Thread(target=self._hand_on, args=(server, client, bytearray()), daemon=True).start()

    def _hand_on(self, source: socket.socket, target: socket.socket | None, note: bytearray) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                note += data
                if target is not None:
                    target.sendall(data)
        with contextlib.suppress(OSError):
            if target is not None:
                target.shutdown(socket.SHUT_WR)
