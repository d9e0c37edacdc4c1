"""What the tests of the agents' side do over and over: one process of an agent on a store, and a store whose answers get lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, cast

from actions.errors import StoreUnavailable
from actions.records import Change, Lease
from actions.store.base import AgentStore
from agents.harness import DurableAgent
from tests.store.conftest import Backend

AGENT = "support-agent-7"


def store_of(backend: Backend) -> AgentStore:
    return cast("AgentStore", backend.store)


def other_store_of(backend: Backend) -> AgentStore:
    """The same store as another process would open it: connections of its own."""
    return cast("AgentStore", backend.again())


@contextmanager
def process(store: AgentStore, agent: str = AGENT, **options: Any) -> Iterator[DurableAgent]:
    """One process of an agent, which releases the lease at its end."""
    with DurableAgent.resume(store, agent, **options) as running:
        yield running


def freeze(agent: DurableAgent, backend: Backend) -> None:
    """The process stands still, or is gone without a word, and its lease has run out."""
    assert agent.lease is not None
    backend.recall.lease(agent.agent, agent.lease.holder, agent.lease.epoch, "expired", ttl=timedelta(seconds=1))


class LosingAnswers:
    """A store between which and us the connection breaks: `lose_after` once the next write is done, `lose_before` it is begun."""

    def __init__(self, store: AgentStore) -> None:
        self._store = store
        self.lose_after = False
        self.lose_before = False
        self.lose_renewals = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def renew_lease(self, lease: Lease, *, ttl: timedelta, in_doubt: int = 0) -> Lease:
        """Renewed every other time, and never answered."""
        if self.lose_renewals:
            self.lose_renewals -= 1
            if self.lose_renewals % 2:
                self._store.renew_lease(lease, ttl=ttl, in_doubt=in_doubt)
            raise StoreUnavailable(self._store.name, "the answer was lost", may_be_written=True)
        return self._store.renew_lease(lease, ttl=ttl, in_doubt=in_doubt)

    def write(self, lease: Lease, changes: Sequence[Change]) -> None:
        before, after = self.lose_before, self.lose_after
        self.lose_before = self.lose_after = False
        if before:
            raise StoreUnavailable(self._store.name, "the answer to the commit was lost", may_be_written=True)
        self._store.write(lease, changes)
        if after:
            raise StoreUnavailable(self._store.name, "the answer to the commit was lost", may_be_written=True)
