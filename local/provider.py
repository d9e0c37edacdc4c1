"""A payment provider of our own for demo and tests: the part of Stripe's API that Stripe's SDK needs to pay, list, search and refund.

Knows idempotency keys, metadata, pages and an index that lags behind; can be told to be slow, to fail, to ask for patience, to answer HTML
or to know nobody. It counts what it is asked. `python -m local.provider --port 8700 --file payments.jsonl` serves it; no money moves.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import uvicorn

KEY = "rk_test_demo"
ACCOUNT = "acct_demo"
RETRY_AFTER_S = 120

Objects = dict[str, Any]
Params = dict[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One request as it arrived."""

    method: str
    path: str
    params: tuple[tuple[str, str], ...]
    headers: tuple[str, ...]  # names, lower case, in order

    def mentions(self, text: str) -> bool:
        return text in self.path or any(text in value for _, value in self.params)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int
    body: bytes
    headers: Mapping[str, str]


class Provider:
    """The account: its objects, and how it behaves. Safe to use from several threads."""

    def __init__(
        self, *, journal: Path | None = None, key: str = KEY, account: str = ACCOUNT, clock: Callable[[], float] = time.time
    ) -> None:
        self.key = key
        self.account = account
        self.lag_s = 0.0  # lists and searches show an object only so long after it came; by its id it is there at once
        self.slow_s = 0.0
        self.denied: frozenset[str] = frozenset()  # first parts of paths that the key may not read
        self.says = b""  # the body of every answer, in place of what is true
        self.broken = ""  # 429, 500, html, credentials; empty: it works
        self.questions: list[Question] = []
        self.clock = clock
        self._journal = journal
        self._lock = threading.RLock()
        self._objects: dict[str, Objects] = {}  # by id, in the order of their coming
        self._came: dict[str, float] = {}
        self._replies: dict[str, tuple[Params, Answer]] = {}  # by idempotency key
        for line in journal.read_text().splitlines() if journal and journal.exists() else []:
            self._keep(json.loads(line))

    # --- for whoever has it in hand

    def file(self, kind: str, *, created: int | None = None, **fields: Any) -> Objects:
        """Put an object there as if it had been made by a call; answers it."""
        with self._lock:
            made = {**_blank(kind, len(self._objects) + 1, int(self.clock())), **fields}
            if created is not None:
                made["created"] = created
            self._keep(made)
            self._write(made)
            return made

    def find(self, kind: str, key: str, *, name: str = "idempotency_key") -> list[Objects]:
        """Everything of a kind whose metadata hold that key, lag or not."""
        with self._lock:
            return [one for one in self._objects.values() if one["object"] == kind and one["metadata"].get(name) == key]

    def asked(self, text: str = "") -> int:
        """How many requests mentioned a text in their path or a parameter."""
        with self._lock:
            return sum(question.mentions(text) for question in self.questions)

    def _write(self, one: Objects) -> None:
        """As it is now; of several lines of one object the last counts."""
        if self._journal:
            with self._journal.open("a") as out:
                out.write(json.dumps(one) + "\n")

    def _keep(self, made: Objects) -> None:
        self._objects[made["id"]] = made
        self._came[made["id"]] = self.clock()

    # --- requests

    def answer(self, method: str, path: str, params: Params, headers: Mapping[str, str]) -> Answer:
        with self._lock:
            flat = tuple(sorted((name, str(value)) for name, value in params.items()))
            self.questions.append(Question(method=method, path=path, params=flat, headers=tuple(headers)))
            if self.broken == "429":
                return _error(429, "rate_limit_error", "Too many requests", **{"Retry-After": str(RETRY_AFTER_S)})
            if self.broken == "500":
                return _error(500, "api_error", "Something went wrong")
            if self.broken == "html":
                return Answer(status=200, body=b"<html><h1>Welcome</h1></html>", headers={"Content-Type": "text/html"})
            if self.broken == "credentials" or headers.get("authorization") != f"Bearer {self.key}":
                return _error(401, "invalid_request_error", f"Invalid API Key provided: {headers.get('authorization', '')}")
            parts = path.removeprefix("/v1/").strip("/").split("/")
            if parts[0] in self.denied:
                return _error(403, "invalid_request_error", "The provided key does not have the required permissions")
            if self.says:
                return Answer(status=200, body=self.says, headers={"Content-Type": "application/json"})
            key = headers.get("idempotency-key", "") if method == "POST" else ""
            if key in self._replies:
                return self._replay(key, params)
            answer = self._route(method, parts, params)
            if key:
                self._replies[key] = (params, answer)
            return answer

    def _replay(self, key: str, params: Params) -> Answer:
        before, answer = self._replies[key]
        if before != params:
            return _error(400, "idempotency_error", "Keys for idempotent requests can only be used with the same parameters")
        return Answer(status=answer.status, body=answer.body, headers={**answer.headers, "Idempotent-Replayed": "true"})

    def _route(self, method: str, parts: list[str], params: Params) -> Answer:
        kind = _PATHS.get(parts[0], "")
        if (method, parts) == ("GET", ["account"]):
            return _json(200, {"id": self.account, "object": "account"})
        if kind and len(parts) == 1:
            return self._make(kind, params) if method == "POST" else self._list(kind, params)
        if kind and method == "GET" and parts[1:] == ["search"]:
            return self._search(kind, params)
        if kind and method == "GET" and len(parts) == 2:
            found = self._objects.get(parts[1])
            return _json(200, found) if found and found["object"] == kind else _missing(parts[1])
        return _error(404, "invalid_request_error", f"Unrecognized request URL ({method}: /v1/{'/'.join(parts)})")

    def _make(self, kind: str, params: Params) -> Answer:
        fields: Params = {name: value for name, value in params.items() if "[" not in name}
        fields["metadata"] = {name[9:-1]: value for name, value in params.items() if name.startswith("metadata[")}
        if "amount" in fields:
            fields["amount"] = int(fields["amount"])
        if kind == "refund":
            return self._refund(fields)
        is_paid = fields.pop("confirm", "false") == "true"
        if kind == "payment_intent" and is_paid:
            charge = self.file("charge", amount=fields["amount"], currency=fields["currency"])
            fields |= {"status": "succeeded", "amount_received": fields["amount"], "latest_charge": charge["id"]}
        return _json(200, self.file(kind, **fields))

    def _refund(self, fields: Params) -> Answer:
        paid = self._objects.get(str(fields.get("payment_intent") or fields.get("charge")))
        charge = self._objects.get(str(paid.get("latest_charge"))) if paid and paid["object"] == "payment_intent" else paid
        if charge is None:
            return _missing(str(fields.get("payment_intent") or fields.get("charge")))
        fields.setdefault("amount", charge["amount"] - charge["amount_refunded"])
        charge["amount_refunded"] += fields["amount"]
        charge["refunded"] = charge["amount_refunded"] >= charge["amount"]
        self._write(charge)
        return _json(200, self.file("refund", **{**fields, "currency": charge["currency"], "status": "succeeded"}))

    def _shown(self, kind: str) -> list[Objects]:
        """What the index knows by now, newest first."""
        limit = self.clock() - self.lag_s
        known = [one for one in self._objects.values() if one["object"] == kind and self._came[one["id"]] <= limit]
        return sorted(known, key=lambda one: one["created"])[::-1]

    def _list(self, kind: str, params: Params) -> Answer:
        shown = [one for one in self._shown(kind) if _is_in_range(one["created"], params)]
        if after := params.get("starting_after"):
            places = [place for place, one in enumerate(shown) if one["id"] == after]
            if not places:
                return _missing(str(after))
            shown = shown[places[0] + 1 :]
        limit = min(100, int(params.get("limit", 10)))
        return _json(
            200, {"object": "list", "data": shown[:limit], "has_more": len(shown) > limit, "url": f"/v1/{_path_of(kind)}"}
        )

    def _search(self, kind: str, params: Params) -> Answer:
        wanted = re.fullmatch(r"""metadata\[['"]([^'"]+)['"]\]:['"]([^'"]*)['"]""", str(params.get("query", "")))
        if wanted is None:
            return _error(400, "invalid_request_error", "We were unable to parse your search query")
        found = [one for one in self._shown(kind) if one["metadata"].get(wanted[1]) == wanted[2]]
        return _json(200, {"object": "search_result", "data": found, "has_more": False, "url": f"/v1/{_path_of(kind)}/search"})


_PATHS = {
    "payment_intents": "payment_intent",
    "charges": "charge",
    "refunds": "refund",
    "transfers": "transfer",
    "payouts": "payout",
}
_PREFIXES = {"payment_intent": "pi", "charge": "ch", "refund": "re", "transfer": "tr", "payout": "po"}
_OF_KIND: dict[str, Objects] = {
    "payment_intent": {
        "status": "requires_payment_method",
        "amount_received": 0,
        "latest_charge": None,
        "customer": None,
        "receipt_email": None,
        "transfer_data": None,
    },
    "charge": {"status": "succeeded", "captured": True, "refunded": False, "amount_refunded": 0, "receipt_email": None},
    "refund": {"status": "pending"},
    "transfer": {"destination": None, "reversed": False, "amount_reversed": 0},
    "payout": {"status": "pending", "destination": None},
}


def _path_of(kind: str) -> str:
    return f"{kind}s"


def _blank(kind: str, number: int, created: int) -> Objects:
    common = {
        "id": f"{_PREFIXES[kind]}_{number:06d}",
        "object": kind,
        "amount": 0,
        "currency": "eur",
        "created": created,
        "livemode": False,
        "metadata": {},
    }
    return {**common, **_OF_KIND[kind]}


def _is_in_range(created: int, params: Params) -> bool:
    compare: dict[str, Callable[[int], bool]] = {
        "created[gte]": lambda limit: created >= limit,
        "created[gt]": lambda limit: created > limit,
        "created[lte]": lambda limit: created <= limit,
        "created[lt]": lambda limit: created < limit,
    }
    return all(holds(int(params[name])) for name, holds in compare.items() if name in params)


def _json(status: int, value: Any, **headers: str) -> Answer:
    return Answer(status=status, body=json.dumps(value).encode(), headers={"Content-Type": "application/json", **headers})


def _error(status: int, kind: str, message: str, **headers: str) -> Answer:
    return _json(status, {"error": {"type": kind, "message": message}}, **headers)


def _missing(name: str) -> Answer:
    return _json(
        404,
        {
            "error": {
                "type": "invalid_request_error",
                "code": "resource_missing",
                "param": "id",
                "message": f"No such id: '{name}'",
            }
        },
    )


# --- serving ---------------------------------------------------------------------------------------------------------


def application(provider: Provider) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """The provider as an ASGI application."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        params = dict(parse_qsl(scope["query_string"].decode(), keep_blank_values=True))
        params |= dict(parse_qsl(body.decode(), keep_blank_values=True))
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        answer = provider.answer(scope["method"], scope["path"], params, headers)
        if provider.slow_s:
            await asyncio.sleep(provider.slow_s)
        names = [(name.lower().encode(), value.encode()) for name, value in answer.headers.items()]
        await send({"type": "http.response.start", "status": answer.status, "headers": names})
        await send({"type": "http.response.body", "body": answer.body})

    return app


@contextmanager
def serve(app: Any, *, port: int = 0) -> Iterator[int]:
    """An ASGI application on 127.0.0.1 in a thread of this process, while the block lasts; answers its port."""
    config = uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning", lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            if not thread.is_alive():
                raise RuntimeError("the provider could not be started; its port may be taken")
            time.sleep(0.005)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(timeout=10)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m local.provider", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--file", type=Path, help="where its objects are kept, as JSON Lines")
    parser.add_argument("--lag", type=float, default=0.0, help="seconds until lists and searches show a new object")
    asked = parser.parse_args()
    provider = Provider(journal=asked.file)
    provider.lag_s = asked.lag
    uvicorn.run(application(provider), host="127.0.0.1", port=asked.port, log_level="warning", lifespan="off")


if __name__ == "__main__":
    main()
