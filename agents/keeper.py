"""An agent's lease in its own process: kept alive by a thread, looked at before each write, and lost for good once it is lost."""

from __future__ import annotations

import logging
import os
import threading
from datetime import timedelta
from time import monotonic

from actions.errors import ActionsError, LeaseLost, LeaseNotHeld, StoreUnavailable
from actions.records import Lease
from actions.store.base import AgentStore

log = logging.getLogger(__name__)

RETRIES_PER_TTL = 30
"""How often a renewal that was not answered is asked for again within one ttl."""


class LeaseKeeper:
    """Renews a lease every third of its ttl, until it is stopped or lost. Safe between threads; of no use to a child after a fork.

    Only the store's clock decides who holds the agent. Our own, which measures lengths and is never set, decides two things: when to renew,
    and when a lease that could not be renewed must be taken for lost.
    """

    def __init__(self, store: AgentStore, lease: Lease, *, ttl: timedelta, asked_at: float) -> None:
        """`asked_at`: `monotonic()` from before the lease was asked for."""
        self._store = store
        self._lease = lease
        self._ttl = ttl
        self._ttl_s = ttl.total_seconds()
        self._granted_at = asked_at
        self._in_doubt = 0
        self._is_lost = False
        self._pid = os.getpid()
        self._lock = threading.Lock()  # one renewal at a time
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=f"lease of {lease.agent}", daemon=True)
        self._thread.start()

    @property
    def lease(self) -> Lease:
        """As it was last granted."""
        return self._lease

    @property
    def is_lost(self) -> bool:
        return self._is_lost

    def ready(self) -> Lease:
        """The lease to write under. Renewed first where it was granted longer than a third of its ttl ago (recall-records 5.4).

        Raises:
            LeaseLost: it is lost, now or since long. Nothing was written.
            LeaseNotHeld: it was released, or this is a child of the process that holds it. Nothing was written.
            StoreUnavailable: it had to be renewed and could not be. None of the agent's records was written.
        """
        if self._is_lost:
            raise LeaseLost(self._lease)
        if self._stopped.is_set():
            raise LeaseNotHeld(self._lease.agent, "it was released; resume the agent again")
        if os.getpid() != self._pid:
            raise LeaseNotHeld(self._lease.agent, f"process {self._pid} holds it, of which this one is a child; resume in here")
        if monotonic() - self._granted_at >= self._ttl_s / 3:
            with self._lock:
                if monotonic() - self._granted_at >= self._ttl_s / 3:
                    try:
                        self._renew()
                    except StoreUnavailable as exc:
                        raise StoreUnavailable(exc.store, exc.problem) from exc  # the records themselves are untouched
        return self._lease

    def lose(self) -> None:
        """A write was fenced off: it is lost, whatever the clocks say."""
        self._is_lost = True
        self._stopped.set()

    def stop(self) -> None:
        """Renew no more. The lease stands until it ends by itself."""
        self._stopped.set()

    def release(self) -> None:
        """Renew no more, and hand the lease over; nothing where it was lost.

        Raises:
            StoreUnavailable: it may stand until it ends by itself.
        """
        self._stopped.set()
        if not self._is_lost and os.getpid() == self._pid:
            with self._lock:
                self._store.release_lease(self._lease, in_doubt=self._in_doubt)

    def _keep(self) -> None:
        pause = self._ttl_s / 3
        while not self._stopped.wait(max(pause, 0.001)):
            with self._lock:
                if self._stopped.is_set():
                    return
                due = self._granted_at + self._ttl_s / 3 - monotonic()
                if due > 0:  # a write renewed it meanwhile
                    pause = due
                    continue
                try:
                    self._renew()
                    pause = self._granted_at + self._ttl_s / 3 - monotonic()
                except LeaseLost:
                    log.warning("lease of agent %s was lost to another process", self._lease.agent)
                except ActionsError as exc:
                    log.warning("lease of agent %s could not be renewed: %s", self._lease.agent, exc)
                    pause = self._ttl_s / RETRIES_PER_TTL

    def _renew(self) -> None:
        """Under the lock. Marks it lost where the store says so, or where it says nothing until the lease must have ended."""
        asked_at = monotonic()
        try:
            lease = self._store.renew_lease(self._lease, ttl=self._ttl, in_doubt=self._in_doubt)
        except LeaseLost:
            self.lose()
            raise
        except ActionsError as exc:
            if isinstance(exc, StoreUnavailable) and exc.may_be_written:
                self._in_doubt += 1
            if monotonic() - self._granted_at >= self._ttl_s:
                self.lose()
                raise LeaseLost(self._lease) from exc
            raise
        self._lease, self._granted_at, self._in_doubt = lease, asked_at, 0
