"""The same random history on the reference and on each database: the same answers at every step, the same world at the end.

Agents that begin, crash and are taken over, writes that come too late, operators who settle the same thing twice.
"""

from __future__ import annotations

import json
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actions.errors import ActionsError
from actions.queries import get_action
from actions.records import Action, ActionRef, ActionStatus, Entry, NewEntry, Reading, Settled, Turn
from actions.store.base import ActionStore
from actions.store.memory import MemoryStore
from actions.store.mongo import MongoStore
from actions.store.postgres import PostgresStore
from tests.mongo_writer import MongoWriter
from tests.recall_writer import RecallWriter, RecordWriter, turn_metadata
from tests.store.conftest import with_collection
from tests.store.gestures import an_end, decide, verify
from tests.store.memory_writer import MemoryWriter

AGENTS = st.sampled_from(["a", "b"])
SEQS = st.integers(1, 3)
HOLDERS = st.sampled_from(["pod-a", "pod-b"])
ENDS = [
    an_end(result="ok"),
    an_end(result="x" * 8100),
    an_end(ActionStatus.FAILED, "no"),
    an_end(ActionStatus.ABANDONED, "too old"),
]

steps = st.one_of(
    st.tuples(
        st.just("action"),
        AGENTS,
        SEQS,
        st.sampled_from(["pure", "idempotent", "external"]),
        st.sampled_from(["started", "unknown", "done", "broken"]),
    ),
    st.tuples(st.just("turn"), AGENTS, st.integers(1, 70)),
    st.tuples(st.just("head"), AGENTS, st.integers(0, 80)),
    st.tuples(st.just("lease"), AGENTS, st.integers(1, 9), st.sampled_from(["live", "expired", "released"])),
    st.tuples(st.just("acquire"), AGENTS, HOLDERS),
    st.tuples(st.just("crash"), AGENTS),
    st.tuples(st.just("late_write"), AGENTS, HOLDERS, st.integers(1, 9), st.integers(1, 70)),
    st.tuples(
        st.just("settle"),
        AGENTS,
        SEQS,
        st.integers(0, len(ENDS) - 1),
        st.integers(0, 3),
        st.sampled_from(["", "seen", "claim", "stale"]),
    ),
    st.tuples(st.just("entry"), AGENTS, SEQS),
)


@dataclass
class World:
    """One of the worlds in which it happens."""

    store: ActionStore
    recall: RecordWriter
    digest: str = "0" * 64  # of the action that was looked at last

    def take(self, step: tuple[Any, ...]) -> object:
        """Do one step; what it answered, in a form that can be compared."""
        try:
            return getattr(self, step[0])(*step[1:])
        except ActionsError as exc:
            return type(exc).__name__

    def action(self, agent: str, seq: int, cls: str, status: str) -> None:
        is_broken = status == "broken"
        self.recall.action(agent, seq, cls=cls, status="started" if is_broken else status, body="{" if is_broken else None)

    def turn(self, agent: str, seq: int) -> None:
        self.recall.turn(agent, seq)

    def head(self, agent: str, turn_seq: int) -> None:
        self.recall.working_state(agent, turn_seq=turn_seq)

    def lease(self, agent: str, epoch: int, state: Any) -> None:
        self.recall.lease(agent, epoch=epoch, state=state)

    def acquire(self, agent: str, holder: str) -> object:
        return self.recall.acquire(agent, holder)

    def crash(self, agent: str) -> None:
        """Its process is gone, and the time of its lease is over."""
        if (held := self.recall.lease_of(agent)) and held[2] == "live":
            self.recall.lease(agent, held[0], held[1], "expired")

    def late_write(self, agent: str, holder: str, epoch: int, seq: int) -> bool:
        """A process that believes that it holds this epoch records a turn."""
        return self.recall.write_fenced(
            agent, holder, epoch, f"{agent}:turn:{seq}", turn_metadata(agent, seq, "late", epoch=epoch)
        )

    def settle(self, agent: str, seq: int, end: int, click: int, compare: str) -> object:
        ref = ActionRef("main", agent, seq)
        item = get_action(self.store, ref)
        given_digest = {"seen": {"seen": item.digest}, "claim": {"claim": item.claim}, "stale": {"seen": self.digest}}.get(
            compare, {}
        )
        self.digest = item.digest
        return plain(decide(self.store, ref, ENDS[end], decision_id=f"decision-{click}", **given_digest))

    def entry(self, agent: str, seq: int) -> object:
        return plain(self.store.append_entry(NewEntry(kind="observed", actor="system watcher", agent=agent, seq=seq)))

    def everything(self) -> object:
        """All that a screen can see, without what must differ: times, holders, hashes."""
        store = self.store
        return {
            "actions": [plain(reading) for reading in store.read_actions(list(ActionStatus), limit=99).readings],
            "of agents": [[plain(r) for r in store.list_agent_actions(agent, limit=9)] for agent in "ab"],
            "turns": [[plain(turn) for turn in store.list_turns(agent, limit=99)] for agent in "ab"],
            "entries": [plain(entry) for entry in store.list_entries(limit=99)],
            "numbers": (store.read_watch().revision, store.read_watch().entries, store.read_head().number),
            "records": self.recall.record_ids(),
            "leases": [lease and lease[1:] for lease in map(self.recall.lease_of, "ab")],
            "intact": verify(store).is_intact,
        }


def plain(value: object) -> object:
    match value:
        case Settled():
            return (plain(value.entry), value.turn_seq, value.is_repeat)
        case Entry():
            detail = json.loads(json.dumps(dict(value.detail)))
            if isinstance(detail.get("lease"), dict):
                detail["lease"] |= {"holder": "", "expires_at": ""}
            return (value.number, value.kind, value.actor, value.agent, value.seq, value.decision_id, value.outcome, detail)
        case Reading(action=Action() as action):
            lease = value.lease and (value.lease.epoch, value.lease.is_live, value.lease.is_released)
            return (replace(action, ended_at=action.ended_at and 1), lease)
        case Reading():
            return (value.action, value.lease and (value.lease.epoch, value.lease.is_live))
        case Turn():
            return replace(value, at=0)
    return value


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(history=st.lists(steps, min_size=4, max_size=14))
def test_the_same_history_has_the_same_answers(records_url: str, documents_url: str, history: list[tuple[Any, ...]]) -> None:
    memory = MemoryStore()
    with ExitStack() as opened:
        worlds = [World(memory, MemoryWriter(memory))]
        for address, store, writer in ((records_url, PostgresStore, RecallWriter), (documents_url, MongoStore, MongoWriter)):
            url = with_collection(address)
            worlds.append(World(opened.enter_context(closing(store(url))), opened.enter_context(writer(url)).create()))
        for step in history:
            reference, *found = (world.take(step) for world in worlds)
            assert found == [reference] * len(found), step

        reference, *found = (world.everything() for world in worlds)
        assert found == [reference] * len(found)
