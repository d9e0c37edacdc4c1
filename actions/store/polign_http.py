"""Requests to one polign_db server: its address, how long each is waited for, and what it answers told as ours. Knows no records.

serve.py asks a tenant's `recall serve` by the same means.

No proxy of the environment's is asked: a store is reached directly, as the other databases are.
"""

from __future__ import annotations

import json
import os
import re
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from time import monotonic
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx

from actions.errors import StoreError, StoreReadOnly, StoreUnavailable, StoreUnusable
from actions.store.deadlines import LeftAlone, Silence, Timeouts, Use, for_read
from actions.times import SECOND, Instant, from_datetime

DEFAULT_COLLECTION = "recall_lexical_v1"
CONNECT_TIMEOUT_S = 5
MAX_CONNECTIONS = 10
"""How many threads of one process may talk to one store at a time; the next one waits, at most `CONNECT_TIMEOUT_S`."""

OK, CREATED, NO_CONTENT, NOT_FOUND, CONFLICT = 200, 201, 204, 404, 409
_COLLECTION = re.compile(r"[A-Za-z0-9_.:-]{1,200}", re.ASCII)
_KEY = re.compile(r"[\x21-\x7e]*", re.ASCII)
_TRY_AGAIN = "; try again"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Address:
    """Where a store is. No repr: it holds a key."""

    base: str  # scheme, host, port and whatever path a gateway has put before it
    collection: str  # the agents': the configured name and `_agents`
    key: str

    def hide_key(self, text: str) -> str:
        return text.replace(self.key, "***") if len(self.key) > 2 else text


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the server said to one request."""

    status: int
    body: Mapping[str, Any]
    at: Instant  # its clock, in whole seconds

    @property
    def error(self) -> str:
        return str(self.body.get("error", ""))


def parse_address(name: str, url: str) -> Address:
    """`polign+http://[:KEY@]host:port/?collection=NAME`, or polign+https.

    Raises:
        StoreUnusable: a part of it is malformed; the sentence never repeats the URL, which may hold a key.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        if not host or not re.fullmatch(r"[A-Za-z0-9._:%-]+", host, re.ASCII):
            raise ValueError("host")
    except ValueError:
        raise StoreUnusable(
            name, "its address is malformed; polign+http://:KEY@host:port/?collection=NAME, with special characters as %XX"
        ) from None
    given = {"collection": DEFAULT_COLLECTION}
    for pair in filter(None, parts.query.split("&")):
        option, _, value = pair.partition("=")
        if option not in given:
            raise StoreUnusable(name, f"its address has the parameter {option[:40]!r}; allowed: collection")
        given[option] = unquote(value)
    collection = given["collection"]
    if not _COLLECTION.fullmatch(collection):
        raise StoreUnusable(name, f"collection must be 1 to 200 letters, digits, '_', '-', '.' or ':', not {collection[:80]!r}")
    if collection.endswith("_agents"):
        raise StoreUnusable(
            name, f"collection is the memory collection's name, as in RECALL_COLLECTION: without _agents ({collection[:80]})"
        )
    key = unquote(parts.password or parts.username or "")
    if not _KEY.fullmatch(key):
        raise StoreUnusable(name, "the key in its address holds a space or another character that no key has")
    scheme = parts.scheme.lower().removeprefix("polign+")
    place = f"[{host}]" if ":" in host else host
    return Address(
        base=f"{scheme}://{place}{f':{port}' if port else ''}{parts.path.rstrip('/')}",
        collection=f"{collection}_agents",
        key=key,
    )


class Server:
    """Requests to one server of whichever process asks: a child never uses what its parent opened. Connects on first use; threads may share it."""

    def __init__(self, name: str, address: Address, timeouts: Timeouts, *, product: str = "polign_db") -> None:
        self.name = name
        self._product = product
        self._address = address
        self._timeouts = timeouts
        self._by_process: dict[int, _Process] = {}  # keeps the parent's, so that nothing of it is collected in the child
        self._lock = threading.Lock()

    def close(self) -> None:
        with self._lock:
            own = self._by_process.pop(os.getpid(), None)
        if own is not None:
            own.client.close()

    def until(self, within_s: float | None = None) -> float:
        """When a use that begins now has to be over, by our own monotonic clock; without a time of its own, a read.

        Raises:
            StoreUnavailable: whoever reads has waited long enough for answers. Nothing was asked.
        """
        try:
            return monotonic() + (within_s or for_read(self._timeouts.read_s))
        except LeftAlone as exc:
            raise StoreUnavailable(self.name, str(exc)) from exc

    def read(self, path: str, *, until: float, params: Mapping[str, str] | None = None, body: object = None) -> Answer:
        """Ask for something: GET, or POST with a body. Once more where the connection turned out dead.

        Raises:
            StoreUnavailable, StoreUnusable: as the contract has them.
        """
        method = "GET" if body is None else "POST"
        for is_last in (False, True):
            try:
                return self._ask(method, path, until=until, params=params, body=body)
            except _Dead as exc:
                if is_last:
                    raise StoreUnavailable(self.name, exc.said) from exc.__cause__
        raise AssertionError("unreachable")

    def write(self, method: str, path: str, *, until: float, body: object, headers: Mapping[str, str] | None = None) -> Answer:
        """Ask for a change, once.

        Raises:
            StoreUnavailable: `.may_be_written` where the request was sent and what became of it is not known.
            StoreReadOnly, StoreUnusable: the server refused it. Nothing was written.
        """
        try:
            return self._ask(method, path, until=until, body=body, headers=headers, is_write=True)
        except _Dead as exc:
            raise StoreUnavailable(self.name, f"the answer was lost ({exc.said})", may_be_written=True) from exc.__cause__

    def _ask(
        self,
        method: str,
        path: str,
        *,
        until: float,
        params: Mapping[str, str] | None = None,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        is_write: bool = False,
    ) -> Answer:
        own = self._own()
        content = None if body is None else json.dumps(body).encode()
        request = own.client.build_request(
            method, f"{self._address.base}{path}", params=params, content=content, headers={**own.headers, **(headers or {})}
        )
        try:
            with own.silence.ask() as use:
                response, text = self._send(own.client, request, use, until)
        except LeftAlone as exc:
            raise StoreUnavailable(self.name, str(exc)) from exc
        return self._judge(response, text, is_write=is_write)

    def _send(self, client: httpx.Client, request: httpx.Request, use: Use, until: float) -> tuple[httpx.Response, bytes]:
        """The whole answer, within one answer's time and this use's."""
        began = monotonic()
        left = max(min(self._timeouts.answer_s, until - began), 0.001)
        request.extensions["timeout"] = httpx.Timeout(
            left, connect=min(left, CONNECT_TIMEOUT_S), pool=CONNECT_TIMEOUT_S
        ).as_dict()
        try:
            response = client.send(request, stream=True)
            try:
                chunks = []
                for chunk in response.iter_bytes():
                    chunks.append(chunk)
                    if monotonic() > began + left:
                        raise httpx.ReadTimeout("its answer does not end")
                return response, b"".join(chunks)
            finally:
                response.close()
        except httpx.PoolTimeout as exc:
            raise StoreUnavailable(
                self.name,
                f"all {MAX_CONNECTIONS} connections of this process have been busy for {CONNECT_TIMEOUT_S} s{_TRY_AGAIN}",
            ) from exc
        except httpx.ConnectTimeout as exc:
            use.silent_since = began
            raise StoreUnavailable(self.name, "no connection: it does not answer") from exc
        except httpx.ConnectError as exc:
            raise StoreUnavailable(self.name, f"no connection: {self._said(exc)}") from exc
        except httpx.TimeoutException as exc:
            use.silent_since = began
            said = f"did not answer within {left:.3g} s"
            if request.method == "GET" or request.url.path.endswith(":get"):
                raise StoreUnavailable(self.name, said) from exc
            raise _Dead(said) from exc
        except httpx.TransportError as exc:
            raise _Dead(f"the connection broke: {self._said(exc)}") from exc
        except httpx.HTTPError as exc:
            raise StoreUnusable(self.name, f"what it answered cannot be read: {self._said(exc)}") from exc

    def _judge(self, response: httpx.Response, text: bytes, *, is_write: bool) -> Answer:
        """The answer, where it is one of those that say something about records or leases; everything else as an error."""
        status = response.status_code
        body = _object(text)
        answer = Answer(status=status, body=body or {}, at=_clock(response))
        if status == NO_CONTENT or (body is not None and status in (OK, CREATED, CONFLICT)):
            return answer
        if status == NOT_FOUND and answer.error.startswith("not found"):
            return answer
        # Of what is not polign_db's nothing is repeated but its kind: it may be anybody's page.
        said = answer.error if body is not None else response.headers.get("content-type", "")
        said = self._address.hide_key(" ".join(said.split()))[:200]
        raise self._error(status, said, is_polign=body is not None, is_write=is_write)

    def _error(self, status: int, said: str, *, is_polign: bool, is_write: bool) -> StoreError:
        shown = f"{status}: {said}" if said else str(status)
        if status in (401, 403):
            if is_write and status == 403:
                return StoreReadOnly(self.name, f"it may not be written with this key, or is a read-only replica ({shown})")
            return StoreUnusable(self.name, f"it refuses the key in its address, or the lack of one ({shown})")
        if status == 429:
            return StoreUnavailable(self.name, f"it has too much to do ({shown}){_TRY_AGAIN}")
        if status == 421:
            return StoreUnusable(self.name, f"another server of its fleet keeps this collection ({shown}); name that one")
        if status == 501:
            return StoreUnusable(self.name, f"it does not offer what we need; 0.14 does ({shown})")
        if status < 400 and is_write:
            return StoreUnavailable(self.name, f"what answered is not {self._product} ({shown})", may_be_written=True)
        if status >= 500:
            return StoreUnavailable(self.name, f"it failed ({shown}){_TRY_AGAIN}", may_be_written=is_write)
        if not is_polign:
            return StoreUnusable(self.name, f"what answers there is not {self._product} ({shown})")
        return StoreUnusable(self.name, f"it refused the request ({shown})")

    def _said(self, exc: Exception) -> str:
        return self._address.hide_key(" ".join(str(exc).split()))[:200] or type(exc).__name__

    def _own(self) -> _Process:
        own = self._by_process.get(os.getpid())
        if own is None:
            with self._lock:
                own = self._by_process.get(os.getpid()) or self._by_process.setdefault(os.getpid(), self._open())
        return own

    def _open(self) -> _Process:
        client = httpx.Client(
            # The system's certificates, and those that SSL_CERT_FILE names.
            verify=ssl.create_default_context()
            if self._address.base.startswith("https")
            else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
            trust_env=False,
            limits=httpx.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS),
        )
        headers = {"User-Agent": "settle", "Content-Type": "application/json"}
        if self._address.key:
            headers["Authorization"] = f"Bearer {self._address.key}"
        return _Process(client, headers, Silence(self._timeouts.pause_s))


@dataclass(frozen=True, slots=True)
class _Process:
    """What belongs to one process."""

    client: httpx.Client
    headers: Mapping[str, str]
    silence: Silence


class _Dead(Exception):
    """The request was sent, or half of it, and there will be no answer."""

    def __init__(self, said: str) -> None:
        self.said = said
        super().__init__(said)


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


def _clock(response: httpx.Response) -> Instant:
    """The server's time as its answer says it; the year 1970 where it does not."""
    try:
        return from_datetime(parsedate_to_datetime(response.headers["Date"])) // SECOND * SECOND
    except (KeyError, ValueError, TypeError):
        return 0
