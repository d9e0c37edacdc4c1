"""A table in a real PostgreSQL, read as a role that may only read."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any, Self
from uuid import uuid4

import pytest

from actions.resolvers import build_resolver
from actions.resolvers.base import Allowed, Claim, Resolver
from actions.times import SECOND, to_datetime
from tests.resolvers.makers import BEGAN, make_claim
from tests.resolvers.shop import Shop
from tests.resolvers.wire import Wire
from tests.resolvers.worlds import CREDENTIALS, ERROR, HTML, REFUSED, SLOW

CANARY = "canary-1"


class World:
    kind = "sql"
    breaks = frozenset({SLOW, ERROR, HTML, CREDENTIALS, REFUSED})
    tells = frozenset({"recipient", "amount", "currency", "reference"})

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.password = shop.password
        self.secrets: tuple[str, ...] = (shop.password,)
        self.wire = Wire(shop.server.port)
        self.table = f"payments_{uuid4().hex[:12]}"
        shop.execute(
            f"CREATE TABLE {self.table} (id serial PRIMARY KEY, idempotency_key text, payee text, amount numeric(12, 2), currency text,"
            f" invoice text, made_at timestamptz, state text DEFAULT 'happened'); GRANT SELECT ON {self.table} TO {shop.reader}"
        )

    @classmethod
    @contextmanager
    def open(cls, request: pytest.FixtureRequest) -> Iterator[Self]:
        world = cls(request.getfixturevalue("shop"))
        try:
            yield world
        finally:
            world.wire.close()
            world.shop.execute(f"ALTER ROLE {world.shop.reader} CONNECTION LIMIT -1; DROP TABLE {world.table}")

    def claim(self, **changes: Any) -> Claim:
        return make_claim(**changes)

    def query(self, where: str = "") -> str:
        return f"""
            SELECT idempotency_key AS key, id, payee AS recipient, amount, currency, invoice AS reference, made_at AS at, state AS effect
            FROM {self.table}
            WHERE {where or "idempotency_key = :key OR (idempotency_key IS NULL AND payee = :recipient AND amount = :amount)"};
        """

    def resolver(self, **settings: str) -> Resolver:
        usual = {
            "dsn": f"postgresql://{self.shop.reader}@127.0.0.1:{self.wire.port}/{self.shop.database}?sslmode=disable&gssencmode=disable",
            "query": self.query(),
            "canary_key": CANARY,
            "proves_absence": "yes",
            "timeout_s": "0.3" if self.wire.how == SLOW else "10",
        }
        return build_resolver(
            "sql", "shop-db", {**usual, **settings}, {"password": self.password}, allowed=Allowed(hosts=frozenset({"127.0.0.1"}))
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
        self.put_row(
            idempotency_key=key or None,
            payee=recipient or claim.recipients[0],
            amount=amount or claim.amount,
            currency=currency or claim.currency,
            invoice=claim.reference,
        )

    def put_row(self, **fields: Any) -> None:
        fields = {"made_at": to_datetime(BEGAN + SECOND), **fields}
        places = ", ".join(f"%({name})s" for name in fields)
        self.shop.connection.execute(f"INSERT INTO {self.table} ({', '.join(fields)}) VALUES ({places})", fields)

    def put_canary(self, *, suffix: str = "") -> None:
        self.put_row(idempotency_key=f"{CANARY}{suffix}")

    def break_with(self, how: str) -> None:
        if how == CREDENTIALS:
            self.password = "something else"
            self.secrets += (self.password,)
        elif how == ERROR:
            self.shop.execute(f"ALTER ROLE {self.shop.reader} CONNECTION LIMIT 0")  # too many connections
        else:
            self.wire.break_with(how)

    def asked_count(self) -> int:
        return sum("row_to_json" in statement for statement in self.shapes())

    def shapes(self) -> tuple[str, ...]:
        return tuple(statement for sent in self.wire.connections() for statement in statements(sent))


def statements(sent: bytes) -> Iterator[str]:
    """The texts that a client of PostgreSQL sent to be parsed or run (Parse and Query messages), on one connection without TLS."""
    if len(sent) < 4:
        return
    at = struct.unpack("!I", sent[:4])[0]
    while at + 5 <= len(sent):
        kind, length = sent[at : at + 1], struct.unpack("!I", sent[at + 1 : at + 5])[0]
        body = sent[at + 5 : at + 1 + length]
        if kind in (b"P", b"Q"):
            parts = body.split(b"\x00")
            text = (parts[1] if kind == b"P" else parts[0]).decode()
            yield re.sub(r"\s+", " ", text).strip()
        at += 1 + length
