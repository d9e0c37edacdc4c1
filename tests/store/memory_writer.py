"""Plays Recall on a MemoryStore."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from actions.store.memory import LeaseRow, MemoryStore
from actions.times import RELEASED
from tests.recall_writer import LeaseState, Metadata, RecordWriter


class MemoryWriter(RecordWriter):
    """The dictionaries of one store, as an agent's process would change them."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store.name
        self.kept = store

    def put(self, record_id: str, metadata: Mapping[str, Any]) -> None:
        self.kept.put(record_id, metadata)

    def lease(
        self,
        agent: str,
        holder: str = "pod-a:1:aaaa",
        epoch: int = 1,
        state: LeaseState = "expired",
        *,
        ttl: timedelta = timedelta(seconds=60),
    ) -> None:
        now, length = self.kept.clock(), _nanoseconds(ttl)
        expires = {"live": now + length, "expired": now - length, "released": RELEASED}[state]
        with self.kept.hold() as memory:
            memory.leases[agent] = LeaseRow(holder, epoch, expires)

    def acquire(self, agent: str, holder: str, ttl: timedelta = timedelta(seconds=60)) -> int | None:
        return self.kept.acquire(agent, holder, _nanoseconds(ttl))

    def renew(self, agent: str, holder: str, epoch: int, ttl: timedelta = timedelta(seconds=60)) -> int | None:
        with self.kept.hold() as memory:
            row = memory.leases.get(agent)
            if row is None or row.epoch != epoch:
                return None
            memory.leases[agent] = LeaseRow(holder, epoch + 1, memory.clock() + _nanoseconds(ttl))
            return epoch + 1

    def write_fenced(self, agent: str, holder: str, epoch: int, record_id: str, metadata: Mapping[str, Any]) -> bool:
        return self.kept.write_fenced(agent, holder, epoch, record_id, metadata)

    def metadata_of(self, record_id: str) -> Metadata | None:
        with self.kept.hold() as memory:
            return copy.deepcopy(memory.records.get(record_id))

    def record_ids(self) -> list[str]:
        with self.kept.hold() as memory:
            return sorted(memory.records)

    def revision(self) -> int:
        return self.kept.revision

    def lease_of(self, agent: str) -> tuple[str, int, LeaseState] | None:
        with self.kept.hold() as memory:
            row = memory.leases.get(agent)
            if row is None:
                return None
            is_live = row.expires_at > memory.clock()
            return row.holder, row.epoch, "released" if row.expires_at == RELEASED else "live" if is_live else "expired"


def _nanoseconds(length: timedelta) -> int:
    return length // timedelta(microseconds=1) * 1000
