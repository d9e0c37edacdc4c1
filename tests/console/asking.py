"""A payment provider for the tests of asking, and the policy and resolver that lead to it."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from django.contrib.auth.models import User

from actions.keys import action_key
from actions.records import ActionRef
from console.models import Definition, Policy
from console.services.definitions import find_definition, save_definition
from console.services.policies import policy_of, save_policy
from tests.resolvers.web_server import Asked, Conversation, WebServer, serve

TOOL = "create_payment"
PAYMENT = {"amount": 120.0, "currency": "EUR", "payee": "ACME GmbH", "reference": "R-7"}
CANARY = "canary-1"


class PaymentProvider:
    """Answers a payment by its key. `asked` counts questions by key; while `gate` is closed it lets everybody wait."""

    def __init__(self, server: WebServer) -> None:
        self.server = server
        self.payments: dict[str, dict[str, Any]] = {CANARY: {"key": CANARY}}
        self.asked: Counter[str] = Counter()
        self.waiting = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()
        self.status = 200
        self._lock = threading.Lock()
        server.answer = self._answer

    @property
    def host(self) -> str:
        return self.server.host

    def pay(self, agent: str, seq: int, **changes: Any) -> None:
        key = action_key(agent, seq)
        self.payments[key] = {"id": f"pay_{len(self.payments)}", "key": key, **PAYMENT, **changes}

    def times_asked(self, ref: ActionRef) -> int:
        return self.asked[action_key(ref.agent, ref.seq)]

    def _answer(self, asked: Asked, talk: Conversation) -> None:
        key = dict(parse_qsl(urlsplit(asked.target).query)).get("key", "")
        with self._lock:
            self.asked[key] += 1
        self.waiting.release()
        self.gate.wait(120)
        found = [self.payments[key]] if key in self.payments else []
        talk.answer(self.status, json.dumps({"data": found}).encode())


@contextmanager
def payment_provider() -> Iterator[PaymentProvider]:
    with serve(lambda asked, talk: None) as server:
        provider = PaymentProvider(server)
        yield provider
        provider.gate.set()


def define(by: User, provider: PaymentProvider, *, per_minute: int = 6_000, at_once: int = 8, **changes: str) -> Definition:
    """The next version of resolver `payments`."""
    values = {
        "url": f"http://{provider.host}/payments",
        "params": "key={key}",
        "objects": "body.data",
        "key": "object.key",
        "id": 'has(object.id) ? object.id : ""',
        "recipient": 'has(object.payee) ? object.payee : ""',
        "amount": 'has(object.amount) ? string(object.amount) : ""',
        "currency": 'has(object.currency) ? object.currency : ""',
        "reference": 'has(object.reference) ? object.reference : ""',
        "canary_key": CANARY,
        "proves_absence": "yes",
        **changes,
    }
    known = find_definition("payments")
    return save_definition(
        "payments", "http", values, {}, seen_version=known.version if known else 0, by=by, per_minute=per_minute, at_once=at_once
    )


def configure(by: User, provider: PaymentProvider, **changes: Any) -> Policy:
    """Resolver and policy for `create_payment`; `changes` are the policy's."""
    if find_definition("payments") is None:
        define(by, provider)
    values = {"resolver": "payments", **changes}
    return save_policy(TOOL, values, seen_version=policy_of(TOOL).version, by=by)
