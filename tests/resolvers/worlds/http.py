"""A payment provider that lists payments as JSON and filters by `key` and `payee` as many do: by a part of the text, or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from actions.resolvers import build_resolver
from actions.resolvers.base import Allowed, Claim, Resolver
from actions.times import SECOND, format_rfc3339
from tests.resolvers.makers import BEGAN, make_claim
from tests.resolvers.web_server import Asked, Conversation, WebServer, serve
from tests.resolvers.worlds import CREDENTIALS, ERROR, HTML, RATE_LIMIT, REFUSED, RETRY_AFTER_S, SLOW

CANARY = "canary-1"
TOKEN = "sk-live-0123456789"


class World:
    kind = "http"
    breaks = frozenset({SLOW, RATE_LIMIT, ERROR, HTML, CREDENTIALS, REFUSED})
    tells = frozenset({"recipient", "amount", "currency", "reference"})
    secrets = (TOKEN,)

    def __init__(self, server: WebServer) -> None:
        self._server = server
        self._payments: list[dict[str, Any]] = []
        self._token = TOKEN
        self._broken = ""
        self._port = server.port
        server.answer = self._answer

    @classmethod
    @contextmanager
    def open(cls, request: pytest.FixtureRequest) -> Iterator[World]:
        with serve(lambda asked, talk: None) as server:
            yield cls(server)

    def claim(self, **changes: Any) -> Claim:
        return make_claim(**changes)

    def resolver(self, **settings: str) -> Resolver:
        form = {
            "url": f"http://127.0.0.1:{self._port}/v1/payments",
            "params": "search={key}\nfor={recipient}\nref={reference}\nlimit=100",
            "auth": "bearer",
            "objects": "body.data",
            "key": 'has(object.metadata.key) ? object.metadata.key : ""',
            "id": "object.id",
            "recipient": "object.payee",
            "amount": "object.amount",
            "currency": "object.currency",
            "reference": "object.reference",
            "at": "object.created",
            "effect": 'object.status == "paid" ? "happened" : "pending"',
            "complete": "status == 200 && !body.has_more",
            "canary_key": CANARY,
            "proves_absence": "yes",
            "timeout_s": "0.2" if self._broken == SLOW else "10",
            **settings,
        }
        allowed = Allowed(hosts=frozenset({f"127.0.0.1:{self._port}"}))
        return build_resolver("http", "payments", form, {"secret": TOKEN}, allowed=allowed)

    def put(
        self,
        claim: Claim,
        *,
        key: str | None = None,
        amount: Decimal | None = None,
        recipient: str | None = None,
        currency: str | None = None,
    ) -> None:
        key = claim.action.key if key is None else key
        self._payments.append(
            {
                "id": f"pay_{len(self._payments)}",
                "metadata": {"key": key} if key else {},
                "payee": recipient or ", ".join(claim.recipients),
                "amount": str(claim.amount if amount is None else amount),
                "currency": currency or claim.currency,
                "reference": claim.reference,
                "status": "paid",
                "created": format_rfc3339(BEGAN + SECOND),
            }
        )

    def put_canary(self, *, suffix: str = "") -> None:
        self.put(make_claim(agent="canary"), key=CANARY + suffix)

    def break_with(self, how: str) -> None:
        self._broken = how
        if how == CREDENTIALS:
            self._token = "another"
        if how == REFUSED:
            self._port = 9

    def asked_count(self) -> int:
        return len(self._server.asked)

    def shapes(self) -> tuple[str, ...]:
        return tuple(_shape(asked) for asked in self._server.asked)

    def _answer(self, asked: Asked, talk: Conversation) -> None:
        if asked.headers.get("authorization") != f"Bearer {self._token}":
            talk.answer(401, b"{}")
        elif self._broken == SLOW:
            talk.hang()
        elif self._broken == RATE_LIMIT:
            talk.answer(429, b"{}", Retry_After=str(RETRY_AFTER_S))
        elif self._broken == ERROR:
            talk.answer(500, b'{"data": [], "has_more": false}')
        elif self._broken == HTML:
            talk.answer(200, b"<!doctype html><title>Sign in</title>", "text/html; charset=utf-8")
        else:
            # A search by a part of the text, as providers do; it ignores the other filters.
            wanted = dict(parse_qsl(urlsplit(asked.target).query, keep_blank_values=True)).get("search", "")
            found = [one for one in self._payments if wanted in one["metadata"].get("key", "") or not one["metadata"]]
            talk.answer(200, json.dumps({"data": found, "has_more": False}).encode())


def _shape(asked: Asked) -> str:
    parts = urlsplit(asked.target)
    names = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
    return f"{asked.method} {parts.path} {names} {sorted(asked.headers)}"
