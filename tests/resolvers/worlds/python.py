"""A ledger in this process, and a resolver of the team's own that looks into it and brings a Finding."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import pytest

from actions.resolvers import build_resolver
from actions.resolvers.base import Allowed, Canary, Claim, Finding, Match, MatchedBy, Reply, Resolver
from actions.times import SECOND
from tests.resolvers.makers import BEGAN, make_claim
from tests.resolvers.worlds import CREDENTIALS, ERROR, HTML, RATE_LIMIT, REFUSED, RETRY_AFTER_S, SLOW

CANARY = "canary-1"
SECRET = "postgres://ledger:hunter2@db"


class World:
    kind = "python"
    breaks = frozenset({SLOW, RATE_LIMIT, ERROR, HTML, CREDENTIALS, REFUSED})
    tells = frozenset({"recipient", "amount", "currency", "reference"})
    secrets = (SECRET, "hunter2")

    def __init__(self) -> None:
        self._ledger: list[tuple[str, Match]] = []
        self._broken = ""
        self._asked: list[str] = []
        self._over = threading.Event()

    @classmethod
    @contextmanager
    def open(cls, request: pytest.FixtureRequest) -> Iterator[World]:
        world = cls()
        yield world
        world._over.set()

    def claim(self, **changes: Any) -> Claim:
        return make_claim(**changes)

    def resolver(self, **settings: str) -> Resolver:
        form = {
            "callable": "ledger.resolver",
            "proves_absence": "yes",
            "timeout_s": "0.1" if self._broken == SLOW else "10",
            **settings,
        }
        return build_resolver("python", "ledger", form, allowed=Allowed(callables={"ledger.resolver": self._look}))

    def put(
        self,
        claim: Claim,
        *,
        key: str | None = None,
        amount: Decimal | None = None,
        recipient: str | None = None,
        currency: str | None = None,
    ) -> None:
        match = Match(
            object_id=f"l_{len(self._ledger)}",
            by=MatchedBy.KEY,
            recipients=(recipient,) if recipient is not None else claim.recipients,
            amount=amount if amount is not None else claim.amount,
            currency=currency or claim.currency,
            reference=claim.reference,
            at=BEGAN + SECOND,
        )
        self._ledger.append((claim.action.key if key is None else key, match))

    def put_canary(self, *, suffix: str = "") -> None:
        self._ledger.append((CANARY + suffix, Match(object_id="canary", by=MatchedBy.KEY)))

    def break_with(self, how: str) -> None:
        self._broken = how

    def asked_count(self) -> int:
        return len(self._asked)

    def shapes(self) -> tuple[str, ...]:
        return tuple(self._asked)

    def _look(self, action: Any) -> object:
        self._asked.append("resolver(action)")
        if self._broken:
            return self._break()
        json.loads(action.args)
        found = tuple(match for key, match in self._ledger if key == action.key)
        has_canary = any(key == CANARY for key, _ in self._ledger)
        return Finding(
            reply=Reply.ANSWERED,
            matches=found,
            canary=Canary.FOUND if has_canary else Canary.MISSING,
            is_complete=True,
            asked_at=0,
            answer_digest="0" * 64,
        )

    def _break(self) -> object:
        if self._broken == SLOW:
            self._over.wait(60)
        if self._broken in (ERROR, REFUSED):
            raise ConnectionError(SECRET)
        if self._broken == HTML:
            return "<html>"
        reply = Reply.UNUSABLE if self._broken == CREDENTIALS else Reply.NO_ANSWER
        return Finding(
            reply=reply,
            problem="refused",
            retry_after_s=RETRY_AFTER_S if self._broken == RATE_LIMIT else 0,
            asked_at=0,
            canary=Canary.FOUND,
            is_complete=True,
        )
