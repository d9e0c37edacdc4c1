"""An account at a small provider that speaks Stripe's API, asked by Stripe's own SDK."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any, Self

import pytest

from actions.money import to_minor
from actions.resolvers import build_resolver
from actions.resolvers.base import Allowed, Claim, Resolver
from actions.times import SECOND
from local.provider import Provider
from tests.resolvers.hosted import HostedProvider
from tests.resolvers.makers import BEGAN, HOUR, make_claim
from tests.resolvers.wire import Wire
from tests.resolvers.worlds import CREDENTIALS, ERROR, HTML, RATE_LIMIT, REFUSED, SLOW

KEY = "rk_test_51Hc0ffee"
CANARY = "pi_canary"


class World:
    kind = "stripe"
    breaks = frozenset({SLOW, RATE_LIMIT, ERROR, HTML, CREDENTIALS, REFUSED})
    tells = frozenset({"recipient", "amount", "currency", "reference"})
    secrets: tuple[str, ...] = (KEY,)

    def __init__(self, hosted: HostedProvider) -> None:
        self.provider = Provider(key=KEY)
        hosted.provider = self.provider
        self.wire = Wire(hosted.port)

    @classmethod
    @contextmanager
    def open(cls, request: pytest.FixtureRequest) -> Iterator[Self]:
        world = cls(request.getfixturevalue("hosted_provider"))
        try:
            yield world
        finally:
            world.wire.close()

    def claim(self, **changes: Any) -> Claim:
        return make_claim(**changes)

    def resolver(self, **settings: str) -> Resolver:
        usual = {
            "recipient_metadata": "payee",
            "canary_id": CANARY,
            "proves_absence": "yes",
            "api_base": f"http://127.0.0.1:{self.wire.port}",
            "timeout_s": "0.3" if self.wire.how == SLOW else "10",
        }
        return build_resolver(
            "stripe",
            "stripe-eu",
            {**usual, **settings},
            {"api_key": KEY},
            allowed=Allowed(hosts=frozenset({f"127.0.0.1:{self.wire.port}"})),
        )

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
        named = {"idempotency_key": key, "payee": recipient or claim.recipients[0], "reference": claim.reference}
        self.put_payment(
            claim, amount=amount, currency=currency, metadata={name: value for name, value in named.items() if value}
        )

    def put_payment(
        self,
        claim: Claim,
        *,
        amount: Decimal | None = None,
        currency: str | None = None,
        kind: str = "payment_intent",
        **fields: Any,
    ) -> dict[str, Any]:
        """Paid, a second after the claim's beginning."""
        currency = currency or claim.currency
        paid = int(to_minor(amount or claim.amount or Decimal(0), currency))
        metadata = {"idempotency_key": claim.action.key, "payee": claim.recipients[0], "reference": claim.reference}
        given = {"amount": paid, "currency": currency.lower(), "metadata": metadata, "status": "succeeded", **fields}
        return self.provider.file(kind, created=(BEGAN + SECOND) // SECOND, **given)

    def put_canary(self, *, suffix: str = "") -> None:
        self.provider.file("payment_intent", id=f"{CANARY}{suffix}", created=(BEGAN - 2 * HOUR) // SECOND)

    def break_with(self, how: str) -> None:
        if how in (SLOW, REFUSED):
            self.wire.break_with(how)
        else:
            self.provider.broken = how

    def asked_count(self) -> int:
        return len(self.provider.questions)

    def shapes(self) -> tuple[str, ...]:
        return tuple(
            f"{asked.method} {asked.path} {[name for name, _ in asked.params]} {list(asked.headers)}"
            for asked in self.provider.questions
        )
