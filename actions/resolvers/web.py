"""HTTP to addresses that people configure: one GET, or one POST of a message, within a deadline and a size, without redirects.

A definition's URL is an admin's, its parameters hold an agent's values, and the name in it is answered by somebody's DNS. So the name is
resolved once, every address it has is checked, and the connection goes to a checked address with the name's own Host, SNI and certificate:
a second answer of the DNS changes nothing. What may be private, or spoken to without TLS, stands on the deployment's allow-list.
"""

from __future__ import annotations

import ipaddress
import json
import re
import socket
import ssl
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from time import monotonic
from typing import Any
from urllib.parse import urlencode

import httpcore
import httpx

from actions.errors import ActionsError

MAX_URL_CHARS = 8_000
MAX_ADDRESSES = 8
MAX_RETRY_AFTER_S = 86_400
RESERVED_HEADERS = frozenset(
    "host connection content-length content-encoding transfer-encoding accept-encoding te trailer upgrade proxy-authorization expect".split()
)

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
Lookup = Callable[[str, int], list[str]]


class WebError(ActionsError):
    """A question that has no answer; one clear sentence without values of arguments or credentials."""


class AddressRefused(WebError):
    """Nothing was sent, or a redirect was not followed: somebody has to mend the definition, or the deployment's allow-list."""


class NoResponse(WebError):
    """The server was not reached, or said nothing that can be used: too slow, cut off, too large. It may be asked again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebLimits:
    """For one request from look-up to the last byte."""

    seconds: float = 10.0
    body_bytes: int = 1_048_576  # after decompression


@dataclass(frozen=True, slots=True, kw_only=True)
class WebAddress:
    """A URL whose form was checked; what its name resolves to is checked at each request."""

    scheme: str
    host: str  # lower case; of an IPv6 address without brackets
    port: int
    target: str  # path and fixed query
    is_allowed: bool  # the allow-list names it

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.target}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """An answer, whole."""

    status: int
    content_type: str  # lower case, without parameters
    body: bytes  # decompressed
    retry_after_s: int  # 0: the server does not say


# --- addresses -------------------------------------------------------------------------------------------------------

_PORTS = {"https": 443, "http": 80}
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)([^#]*)(#.*)?", re.DOTALL)
_AUTHORITY = re.compile(r"(\[[^\]]*\]|[^:]*)(?::(.*))?", re.DOTALL)
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?", re.ASCII)
_TARGET = re.compile(r"[!$%&'()*+,./0-9:;=?@A-Z_a-z~\[\]-]*", re.ASCII)

_REFUSED = tuple(
    (ipaddress.ip_network(network), what)
    for network, what in [
        ("0.0.0.0/8", "unspecified"),
        ("127.0.0.0/8", "loopback"),
        ("10.0.0.0/8", "private"),
        ("172.16.0.0/12", "private"),
        ("192.168.0.0/16", "private"),
        ("169.254.0.0/16", "link-local"),
        ("100.64.0.0/10", "carrier-grade NAT"),
        ("192.0.0.0/24", "reserved"),
        ("192.0.2.0/24", "documentation"),
        ("198.51.100.0/24", "documentation"),
        ("203.0.113.0/24", "documentation"),
        ("198.18.0.0/15", "benchmarking"),
        ("192.88.99.0/24", "a 6to4 relay"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
        ("::/128", "unspecified"),
        ("::1/128", "loopback"),
        ("::ffff:0:0/96", "an IPv4-mapped address"),
        ("64:ff9b::/96", "NAT64"),
        ("64:ff9b:1::/48", "NAT64"),
        ("2002::/16", "6to4"),
        ("2001::/32", "Teredo"),
        ("2001:db8::/32", "documentation"),
        ("3fff::/20", "documentation"),
        ("fc00::/7", "private"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "site-local"),
        ("ff00::/8", "multicast"),
    ]
)
_PUBLIC_V6 = ipaddress.ip_network("2000::/3")


def parse_address(url: str, allowed_hosts: Iterable[str] = ()) -> WebAddress:
    """Check a URL's form; looks nothing up. An address written as numbers is checked here already.

    Raises:
        AddressRefused: which part cannot be used and why.
    """
    if len(url) > MAX_URL_CHARS:
        raise AddressRefused(f"the URL is longer than {MAX_URL_CHARS:,} characters")
    if not url.isascii():
        raise AddressRefused(
            "the URL holds characters beyond ASCII; write the host in its xn-- form and the rest percent-encoded"
        )
    if re.search(r"[\x00-\x20\x7f\\]", url):
        raise AddressRefused("the URL holds a space, a control character or a backslash")
    found = _URL.fullmatch(url)
    if found is None:
        raise AddressRefused("is no URL; it begins with https://")
    scheme, authority, target, fragment = found[1].lower(), found[2], found[3], found[4]
    if scheme not in _PORTS:
        raise AddressRefused(f"{scheme[:20]}:// is not supported; use https://")
    if "@" in authority:
        raise AddressRefused("the URL holds a user name or password; give credentials as secrets")
    if fragment:
        raise AddressRefused("the URL holds a fragment (#), which is never sent")
    if not _TARGET.fullmatch(target):
        raise AddressRefused("the path holds characters that must be percent-encoded")
    host, port = _host_and_port(authority, scheme)
    names = {name.lower() for name in allowed_hosts}
    bracketed = f"[{host}]" if ":" in host else host
    is_allowed = host in names or bracketed in names or f"{bracketed}:{port}" in names
    if scheme == "http" and not is_allowed:
        raise AddressRefused(f"http:// is only for hosts on the allow-list; use https:// for {host}")
    if (literal := _literal(host)) is not None and not is_allowed:
        _check_public(literal, host)
    return WebAddress(
        scheme=scheme, host=host, port=port, target=target if target.startswith("/") else f"/{target}", is_allowed=is_allowed
    )


def parse_host(host: str, port: int, allowed_hosts: Iterable[str] = ()) -> WebAddress:
    """The same for a server that speaks another protocol: its name or address, and a port.

    Raises:
        AddressRefused: which part cannot be used and why.
    """
    bracketed = f"[{host}]" if ":" in host and not host.startswith("[") else host
    if re.search(r"[/?#@]", host):
        raise AddressRefused("is a server's name or address alone")
    return parse_address(f"https://{bracketed}:{port}", allowed_hosts)


def _host_and_port(authority: str, scheme: str) -> tuple[str, int]:
    found = _AUTHORITY.fullmatch(authority)
    host, port = (found[1].lower(), found[2]) if found else ("", None)
    if port is not None and not (re.fullmatch(r"[0-9]{1,5}", port) and 1 <= int(port) <= 65_535):
        raise AddressRefused("the port is not between 1 and 65535")
    if host.startswith("["):
        try:
            host = str(ipaddress.IPv6Address(host[1:-1]))
        except ValueError:
            raise AddressRefused("is no IPv6 address") from None
        if "%" in host:
            raise AddressRefused("an IPv6 address with a zone is never public")
    elif host.endswith("."):
        raise AddressRefused("the host ends with a dot")
    elif not host or len(host) > 253 or not all(_LABEL.fullmatch(label) for label in host.split(".")):
        raise AddressRefused("is no host name")
    elif re.fullmatch(r"[0-9]+|0x[0-9a-f]*", host.rpartition(".")[2]) and _literal(host) is None:
        raise AddressRefused("the host is a number; write an IPv4 address as four decimal numbers, without leading zeros")
    return host, int(port) if port else _PORTS[scheme]


def _literal(host: str) -> IpAddress | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _check_public(address: IpAddress, host: str) -> None:
    what = next((what for network, what in _REFUSED if address.version == network.version and address in network), None)
    if what is None and (not address.is_global or (address.version == 6 and address not in _PUBLIC_V6)):
        what = "not public"
    if what is not None:
        named = str(address) if str(address) == host else f"{host} is {address}, which"
        raise AddressRefused(f"{named} is {what}; only hosts on the allow-list may be")


def resolve(address: WebAddress, *, seconds: float, lookup: Lookup | None = None) -> list[str]:
    """The addresses of a host, all of them checked, in the order of the look-up.

    A look-up cannot be interrupted; it runs in a thread of its own, which is left to end by itself when it takes too long.

    Raises:
        AddressRefused: one of them is not public and the host is not on the allow-list.
        NoResponse: the name has no address, or the look-up took too long.
    """
    found = _look_up(address, seconds, lookup or _system_lookup)[:MAX_ADDRESSES]
    for text in found:
        literal = _literal(text)
        if literal is None:
            raise AddressRefused(f"{address.host} was resolved to something that is no address")
        if not address.is_allowed:
            _check_public(literal, address.host)
    return found


def _system_lookup(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def _look_up(address: WebAddress, seconds: float, lookup: Lookup) -> list[str]:
    if _literal(address.host) is not None:
        return [address.host]
    found: list[str] = []
    failed: list[str] = []

    def run() -> None:
        try:
            found.extend(lookup(address.host, address.port))
        except (OSError, UnicodeError) as exc:
            failed.append(type(exc).__name__)

    thread = threading.Thread(target=run, name=f"look-up of {address.host}", daemon=True)
    thread.start()
    thread.join(max(seconds, 0.0))
    if thread.is_alive():
        raise NoResponse(f"looking up {address.host} took longer than {seconds:.3g} s")
    if failed or not found:
        raise NoResponse(f"{address.host} has no address")
    return list(found)


# --- the request -----------------------------------------------------------------------------------------------------


def fetch(
    url: str,
    params: Iterable[tuple[str, str]] = (),
    headers: Mapping[str, str] | None = None,
    *,
    allowed_hosts: Iterable[str] = (),
    limits: WebLimits = WebLimits(),
    tls: ssl.SSLContext | None = None,
    lookup: Lookup | None = None,
) -> Response:
    """GET once, over a connection of its own. Any status but a redirect is a Response. `tls` and `lookup` replace the system's.

    Raises:
        AddressRefused: the URL, its host's addresses, a parameter or a header cannot be used: nothing was sent; or the answer is a redirect.
        NoResponse: no whole answer within the limits. A GET changes nothing, so it may be asked again.
    """
    ends = monotonic() + limits.seconds
    address = parse_address(url, allowed_hosts)
    target = _with_params(address, params)
    return _exchange("GET", address, target, _headers(address, headers or {}), None, ends, limits, tls, lookup)


def post_json(
    url: str,
    said: object,
    *,
    allowed_hosts: Iterable[str] = (),
    limits: WebLimits = WebLimits(),
    tls: ssl.SSLContext | None = None,
    lookup: Lookup | None = None,
) -> Response:
    """POST a JSON text once, as `fetch` asks. Any status but a redirect is a Response.

    Raises:
        AddressRefused: the URL or its host's addresses cannot be used: nothing was sent; or the answer is a redirect, which is not followed.
        NoResponse: no whole answer within the limits. Whether it arrived is not known.
    """
    ends = monotonic() + limits.seconds
    address = parse_address(url, allowed_hosts)
    body = json.dumps(said).encode("ascii")
    sent = _headers(address, {"Content-Type": "application/json"})
    sent.append(("Content-Length", str(len(body))))
    return _exchange("POST", address, address.target.encode("ascii"), sent, body, ends, limits, tls, lookup)


def _exchange(
    method: str,
    address: WebAddress,
    target: bytes,
    headers: list[tuple[str, str]],
    body: bytes | None,
    ends: float,
    limits: WebLimits,
    tls: ssl.SSLContext | None,
    lookup: Lookup | None,
) -> Response:
    """One request over a connection of its own, to a checked address, until the deadline."""
    pinned = _Pinned(resolve(address, seconds=ends - monotonic(), lookup=lookup), ends)
    with _worded(address, limits), httpcore.ConnectionPool(ssl_context=tls or _default_tls(), network_backend=pinned) as pool:
        request = httpcore.URL(scheme=address.scheme, host=address.host, port=address.port, target=target)
        with pool.stream(method, request, headers=headers, content=body) as answer:
            return _read(address, answer, limits)


def _with_params(address: WebAddress, params: Iterable[tuple[str, str]]) -> bytes:
    try:
        query = urlencode(list(params), encoding="utf-8", errors="strict")
    except UnicodeEncodeError:
        raise AddressRefused("a parameter holds half of a character, which cannot be sent") from None
    joint = "&" if "?" in address.target else "?"
    target = f"{address.target}{joint if query else ''}{query}"
    if len(target) > MAX_URL_CHARS:
        raise AddressRefused(f"the parameters make the URL longer than {MAX_URL_CHARS:,} characters")
    return target.encode("ascii")


def _headers(address: WebAddress, headers: Mapping[str, str]) -> list[tuple[str, str]]:
    for name, value in headers.items():
        if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name, re.ASCII):
            raise AddressRefused("a header's name holds characters that none may hold")
        if name.lower() in RESERVED_HEADERS:
            raise AddressRefused(f"the header {name} is not a definition's to set")
        if not re.fullmatch(r"[\x20-\x7e]*", value, re.ASCII):
            raise AddressRefused(f"the value of the header {name} holds a line break or characters beyond ASCII")
    usual = {"Host": address.authority, "Accept": "application/json", "Accept-Encoding": "gzip", "User-Agent": "settle-resolver"}
    return list({**usual, "Connection": "close", **headers}.items())


def _read(address: WebAddress, answer: httpcore.Response, limits: WebLimits) -> Response:
    given = {name.decode("latin-1").lower(): value.decode("latin-1").strip() for name, value in answer.headers}
    if 300 <= answer.status < 400:
        raise AddressRefused(
            f"{address.host} redirects ({answer.status}), which is not followed; give the address that it leads to"
        )
    encoding = given.get("content-encoding", "").lower()
    if encoding not in ("", "identity", "gzip", "x-gzip"):
        raise NoResponse(f"{address.host} answered in an encoding that was not asked for")
    body = _bounded(answer.iter_stream(), is_gzip="gzip" in encoding, most=limits.body_bytes)
    return Response(
        status=answer.status,
        content_type=given.get("content-type", "").partition(";")[0].strip().lower(),
        body=body,
        retry_after_s=read_retry_after(given.get("retry-after", "")),
    )


def _bounded(chunks: Iterable[bytes], *, is_gzip: bool, most: int) -> bytes:
    """Whole and decompressed; a small answer that unpacks to a large one is stopped as soon as it is too large."""
    unpack = zlib.decompressobj(wbits=31) if is_gzip else None
    body = bytearray()
    for chunk in chunks:
        try:
            body += unpack.decompress(chunk, most + 1 - len(body)) if unpack else chunk
        except zlib.error:
            raise NoResponse("the answer is not the gzip that it says it is") from None
        if len(body) > most:
            raise NoResponse(f"the answer is larger than {most:,} bytes")
    if unpack is not None and (body or unpack.unconsumed_tail) and (not unpack.eof or unpack.unused_data):
        raise NoResponse("the answer ends in the middle, or something stands behind its end")
    return bytes(body)


def read_retry_after(text: str, *, now: datetime | None = None) -> int:
    """Seconds until a server wants to be asked again, from seconds or an HTTP date; 0 where it does not say, at most a day."""
    if re.fullmatch(r"[0-9]{1,9}", text, re.ASCII):
        return min(int(text), MAX_RETRY_AFTER_S)
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return 0
    # A date without a zone is UTC (RFC 9110, 5.6.7).
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    wait = (moment - (now or datetime.now(UTC))).total_seconds()
    return min(max(int(-(-wait // 1)), 0), MAX_RETRY_AFTER_S)


# --- the connection --------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _default_tls() -> ssl.SSLContext:
    """The system's authorities where SSL_CERT_FILE names them, else those that come with httpx. Reading them takes a while."""
    return httpx.create_ssl_context()


@contextmanager
def _worded(address: WebAddress, limits: WebLimits) -> Iterator[None]:
    """The library's exceptions in words; none of them quotes what was asked."""
    host = address.host
    try:
        yield
    except httpcore.TimeoutException:
        raise NoResponse(f"{host} took longer than {limits.seconds:.3g} s") from None
    except httpcore.ConnectError as exc:
        if isinstance(exc.__cause__ or exc.__context__, ssl.SSLError):
            raise NoResponse(f"no secure connection to {host}: its certificate or its TLS cannot be trusted") from None
        raise NoResponse(f"{host} takes no connection on port {address.port}") from None
    except httpcore.ProtocolError:
        raise NoResponse(f"{host} did not answer with HTTP, or cut its answer short") from None
    except (httpcore.NetworkError, OSError):
        raise NoResponse(f"the connection to {host} was lost") from None


class _Pinned(httpcore.NetworkBackend):
    """Connects to the checked addresses only, whatever host it is asked for, and to nothing after the deadline."""

    def __init__(self, addresses: list[str], ends: float) -> None:
        self._addresses, self._ends, self._sockets = addresses, ends, httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        failed: Exception = httpcore.ConnectError("no address")
        for address in self._addresses:
            try:
                return _Timed(self._sockets.connect_tcp(address, port, _left(self._ends, httpcore.ConnectTimeout)), self._ends)
            except httpcore.ConnectError as exc:
                failed = exc
        raise failed

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.NetworkStream:
        raise httpcore.ConnectError("no sockets of files")


class _Timed(httpcore.NetworkStream):
    """A stream on which no operation outlasts the deadline, so that a body of one byte a second ends too."""

    def __init__(self, stream: httpcore.NetworkStream, ends: float) -> None:
        self._stream, self._ends = stream, ends

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _left(self._ends, httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, _left(self._ends, httpcore.WriteTimeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        left = _left(self._ends, httpcore.ConnectTimeout)
        return _Timed(self._stream.start_tls(ssl_context, server_hostname, left), self._ends)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _left(ends: float, error: type[Exception]) -> float:
    left = ends - monotonic()
    if left <= 0:
        raise error("the deadline is over")
    return left
