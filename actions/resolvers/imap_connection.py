"""One connection to a mail server: its deadline, its limits, TLS, the login, and how what goes wrong there is told."""

from __future__ import annotations

import imaplib
import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from imap_tools import BaseMailBox
from imap_tools.errors import MailboxLoginError, UnexpectedCommandStatusError

from actions.resolvers.web import NoResponse, WebAddress, resolve

MAX_BYTES = 1_048_576
TLS, STARTTLS, PLAIN = "tls", "starttls", "none"
PRINTABLE = re.compile(r"[\x20-\x7e]+")
_PASSING = ("UNAVAILABLE", "INUSE", "LIMIT", "SERVERBUG", "OVERQUOTA")


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    address: WebAddress
    security: str
    authority: str
    user: str
    password: str = field(repr=False)


class Unusable(Exception):
    """Nobody can answer until somebody mends the definition or the account."""


class Malformed(Exception):
    """What came is no answer of the protocol."""


class TooLong(Malformed):
    def __init__(self) -> None:
        super().__init__(f"the answer is longer than {MAX_BYTES:,} bytes")


class _Wire:
    """The bytes of one connection: each wait ends with the deadline, and no more than `MAX_BYTES` are taken."""

    def __init__(self, sock: socket.socket, until: float) -> None:
        self.sock = sock
        self._until = until
        self._buffer = b""
        self._left = MAX_BYTES

    def secure(self, context: ssl.SSLContext, host: str) -> None:
        """What came before TLS is nobody's word."""
        if self._buffer:
            raise Malformed("the server sent something between STARTTLS and TLS")
        self.sock.settimeout(self._wait_s())
        self.sock = context.wrap_socket(self.sock, server_hostname=host)

    def read(self, size: int) -> bytes:
        if size > self._left + len(self._buffer):
            raise TooLong
        while len(self._buffer) < size:
            self._buffer += self._more()
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken

    def readline(self) -> bytes:
        while (end := self._buffer.find(b"\n")) < 0:
            self._buffer += self._more()
        return self.read(end + 1)

    def send(self, data: bytes) -> None:
        self.sock.settimeout(self._wait_s())
        self.sock.sendall(data)

    def close(self) -> None:
        self.sock.close()

    def _more(self) -> bytes:
        if self._left <= 0:
            raise TooLong
        self.sock.settimeout(self._wait_s())
        data = self.sock.recv(min(65_536, self._left))
        if not data:
            raise ConnectionError("the server closed the connection")
        self._left -= len(data)
        return data

    def _wait_s(self) -> float:
        left = self._until - monotonic()
        if left <= 0:
            raise TimeoutError
        return left


class _Client(imaplib.IMAP4):
    """imaplib on a wire of ours, which has the limits that it lacks."""

    def __init__(self, wire: _Wire) -> None:
        self._wire = wire
        super().__init__()

    def open(self, host: str = "", port: int = 0, timeout: float | None = None) -> None:
        self.host, self.port = host, port

    def read(self, size: int) -> bytes:
        return self._wire.read(size)

    def readline(self) -> bytes:
        return self._wire.readline()

    def send(self, data: Any) -> None:
        self._wire.send(bytes(data))

    def shutdown(self) -> None:
        self._wire.close()

    def socket(self) -> socket.socket:
        return self._wire.sock


class MailBox(BaseMailBox):
    """imap-tools on a client that is connected already."""

    def __init__(self, client: _Client) -> None:
        self._connected = client
        super().__init__()

    def _get_mailbox_client(self) -> imaplib.IMAP4:
        return self._connected


@contextmanager
def opened(server: Server, until: float) -> Iterator[MailBox]:
    """Connected, secured as the definition says, logged in; closed in any case."""
    context = ssl.create_default_context(cadata=server.authority or None) if server.security != PLAIN else None
    sock = _connect(server, until)
    wire = _Wire(sock, until)
    try:
        if context and server.security == TLS:
            wire.secure(context, server.address.host)
        client = _Client(wire)
        if context and server.security == STARTTLS:
            _start_tls(client, wire, context, server.address.host)
        mailbox = MailBox(client)
        _log_in(mailbox, server)
        yield mailbox
        with suppress(OSError, imaplib.IMAP4.error, Malformed):
            client.logout()
    except ssl.SSLCertVerificationError as exc:
        raise Unusable(f"the server's certificate is not to be trusted: {exc.verify_message}") from exc
    finally:
        wire.close()


def _connect(server: Server, until: float) -> socket.socket:
    """To an address that was checked, whatever else the name may lead to later."""
    failed = OSError("no address")
    for address in resolve(server.address, seconds=until - monotonic()):
        try:
            return socket.create_connection((address, server.address.port), timeout=max(0.001, until - monotonic()))
        except OSError as exc:
            failed = exc
    raise failed


def _start_tls(client: _Client, wire: _Wire, context: ssl.SSLContext, host: str) -> None:
    if "STARTTLS" not in client.capabilities:
        raise Unusable("the server offers no STARTTLS")
    status, _ = client.xatom("STARTTLS")
    if status != "OK":
        raise Malformed(f"STARTTLS was answered with {status}")
    wire.secure(context, host)


def _log_in(mailbox: MailBox, server: Server) -> None:
    try:
        if PRINTABLE.fullmatch(server.user + server.password):
            mailbox.login(server.user, server.password, initial_folder=None)
        else:
            mailbox.login_utf8(server.user, server.password, initial_folder=None)
    except MailboxLoginError as exc:
        raise refusal(exc, "the server refuses this user and password") from exc


def refusal(exc: UnexpectedCommandStatusError, meaning: str) -> Exception:
    """NO to a login or a folder: for somebody to mend, unless its code says that it will pass (RFC 5530)."""
    status = status_of(exc)
    if any(f"[{code}]" in status for code in _PASSING):
        return Malformed(f"the server cannot answer now ({status})")
    return Unusable(f"{meaning} ({status})")


def status_of(exc: Exception) -> str:
    """Such as `NO [AUTHENTICATIONFAILED]`. Nothing of the server's own words: it may repeat what it was sent."""
    if not isinstance(exc, UnexpectedCommandStatusError):
        return ""
    status, data = exc.command_result[0], exc.command_result[1]
    said = data[0] if data and isinstance(data[0], bytes) else b""
    code = re.match(rb"\[([A-Z-]{1,40})[ \]]", said)
    return f"{status} [{code[1].decode()}]" if code else str(status)


def no_answer(exc: Exception, timeout_s: float) -> str:
    if isinstance(exc, TimeoutError):
        return f"the server did not answer within {timeout_s:g} s"
    if isinstance(exc, Malformed | NoResponse):
        return str(exc)
    if isinstance(exc, UnexpectedCommandStatusError):
        return f"the server answered {status_of(exc)}"
    if isinstance(exc, ssl.SSLError):
        return f"no TLS with the server: {exc.reason or 'the handshake failed'}"
    if isinstance(exc, OSError):
        return f"no connection: {exc.strerror or exc}"
    return "what answered does not speak IMAP as it should"
