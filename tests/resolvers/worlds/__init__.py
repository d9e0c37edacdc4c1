"""The outside world of each kind of resolver, for the contract: a real server on 127.0.0.1, one module per kind, a class `World` in each."""

from __future__ import annotations

import pkgutil
from contextlib import AbstractContextManager
from decimal import Decimal
from importlib import import_module
from typing import Any, Protocol, cast

import pytest

from actions.resolvers.base import Claim, Resolver

SLOW, RATE_LIMIT, ERROR, HTML, CREDENTIALS, REFUSED = "slow", "429", "500", "html", "credentials", "refused"
BREAKS = (SLOW, RATE_LIMIT, ERROR, HTML, CREDENTIALS, REFUSED)
"""How a world can break: it takes longer than the resolver waits, asks for patience (for 120 s), fails, answers HTML (or whatever is no
answer of its protocol), refuses the credentials, takes no connection."""

RETRY_AFTER_S = 120


class World(Protocol):
    """One provider. Everything is as the resolver needs it until the test changes it: authoritative, with a canary configured, not put."""

    kind: str
    breaks: frozenset[str]  # of BREAKS, those that this protocol has
    tells: frozenset[str]  # of recipient, amount, currency, reference: what an object here says about itself
    secrets: tuple[str, ...]  # texts that must never stand in a Finding

    @classmethod
    def open(cls, request: pytest.FixtureRequest) -> AbstractContextManager[World]:
        """An empty world; `request` gives fixtures such as a database. Leaving it stops whatever it started."""
        ...

    def claim(self, **changes: Any) -> Claim:
        """Of a call of the sort that this provider serves; `changes` as for `makers.make_action`."""
        ...

    def resolver(self, **settings: str) -> Resolver:
        """Proves absence, with the canary configured; waits for at most 0.3 s where the world is slow. `settings` change its form."""
        ...

    def put(
        self,
        claim: Claim,
        *,
        key: str | None = None,
        amount: Decimal | None = None,
        recipient: str | None = None,
        currency: str | None = None,
    ) -> None:
        """File the effect of that claim, a second after it began, with these differences; key "" stands for an object without one."""
        ...

    def put_canary(self, *, suffix: str = "") -> None:
        """File the canary; with a suffix, something whose key only begins like the canary's."""
        ...

    def break_with(self, how: str) -> None:
        """From now on."""
        ...

    def asked_count(self) -> int:
        """How many questions about actions and canaries have arrived; a broken world counts them too, unless it is unreachable."""
        ...

    def shapes(self) -> tuple[str, ...]:
        """What arrived so far without any value of an argument or key: method, path, names of parameters and headers; commands; SQL."""
        ...


NAMES = tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def world_class(name: str) -> type[World]:
    return cast("type[World]", import_module(f"{__name__}.{name}").World)
