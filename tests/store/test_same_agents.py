"""The same random lives of agents on the reference and on each database: the same answers at every step, the same world at the end.

Two agents, each with up to three processes that do not know of each other; they crash, are taken over, and the older ones write too late.
"""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actions.errors import ActionsError
from actions.records import ActionStatus, NewTurn
from actions.store.base import AgentStore
from actions.store.memory import MemoryStore
from actions.store.mongo import MongoStore
from actions.store.postgres import PostgresStore
from agents.briefing import Briefing
from agents.harness import DurableAgent, End
from tests.mongo_writer import MongoWriter
from tests.recall_writer import RecallWriter, RecordWriter
from tests.store.conftest import with_collection
from tests.store.memory_writer import MemoryWriter

AGENTS = st.sampled_from(["a", "b"])
PROCESSES = st.integers(0, 2)
TEXTS = st.sampled_from(["", "ok", "x" * 8100, "\x00\ud800 ä"])
CLASSES = st.sampled_from(["pure", "idempotent", "external"])
ENDS = st.sampled_from(["done", "failed", "abandoned", "unknown", "started"])
who = st.tuples(AGENTS, PROCESSES)
steps = st.one_of(
    st.tuples(st.just("resume"), who, st.booleans()),
    st.tuples(st.just("expire"), AGENTS),
    st.tuples(st.just("release"), who),
    st.tuples(st.just("begin"), who, CLASSES, TEXTS),
    st.tuples(st.just("begin"), who, CLASSES, TEXTS),
    st.tuples(st.just("end"), who, st.integers(1, 4), ENDS, TEXTS, st.booleans()),
    st.tuples(st.just("turn"), who, TEXTS),
    st.tuples(st.just("state"), who, TEXTS),
    st.tuples(st.just("output"), who, TEXTS, st.sampled_from([None, "named"])),
    st.tuples(st.just("pointer"), who, st.booleans()),
    st.tuples(st.just("reconcile"), who, ENDS),
)


@dataclass
class World:
    store: AgentStore
    recall: RecordWriter
    processes: dict[tuple[str, int], DurableAgent] = field(default_factory=dict)

    def take(self, step: tuple[Any, ...]) -> object:
        """Do one step; what it answered, in a form that can be compared."""
        name, who, *rest = step
        try:
            if name == "expire":
                held = self.recall.lease_of(who)
                return held and held[2] == "live" and self.recall.lease(who, held[0], held[1], "expired")
            if name == "resume":
                return self.resume(who, *rest)
            running = self.processes.get(who)
            return None if running is None else plain(getattr(self, name)(running, *rest))
        except ActionsError as exc:
            return type(exc).__name__

    def resume(self, who: tuple[str, int], is_resolved: bool) -> object:
        resolver = (lambda action: End("done", "found", resolution="seen")) if is_resolved else None
        self.processes[who] = DurableAgent.resume(self.store, who[0], holder=f"{who[0]}:{who[1]}", resolver=resolver)
        return plain(self.processes[who].briefing)

    def release(self, agent: DurableAgent) -> object:
        return agent.release()

    def begin(self, agent: DurableAgent, kind: str, args: str) -> object:
        return agent.begin_action("send", args, kind)

    def end(self, agent: DurableAgent, seq: int, status: str, result: str, is_told: bool) -> object:
        return agent.end_action(seq, status, result=result, turn=NewTurn("tool", result) if is_told else None)

    def turn(self, agent: DurableAgent, content: str) -> object:
        return agent.record_turn("user", content)

    def state(self, agent: DurableAgent, goal: str) -> object:
        return agent.update_working_state(goal=goal)

    def output(self, agent: DurableAgent, content: str, ref: str | None) -> object:
        return agent.store_output(content, ref=ref)

    def pointer(self, agent: DurableAgent, is_set: bool) -> object:
        return agent.set_pointer("p", "external", {"id": "1"}) if is_set else agent.remove_pointer("p")

    def reconcile(self, agent: DurableAgent, status: str) -> object:
        return agent.reconcile(lambda action: End(status))

    def everything(self) -> object:
        """All that stands in the store, without times."""
        loaded = [self.store.load_agent(agent) for agent in "ab"]
        return {
            "loaded": [plain(dataclasses.replace(each, lease=None)) for each in loaded],
            "actions": [plain(each.action) for each in self.store.read_actions(list(ActionStatus), limit=99).readings],
            "leases": [self.recall.lease_of(agent) for agent in "ab"],
            "records": self.recall.record_ids(),
            "revision": self.recall.revision(),
        }


def plain(value: Any) -> Any:
    """A record without its times, which are each process's own."""
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    if isinstance(value, Briefing):
        return (value.tokens, value.turns_left_out, value.outputs_left_out)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        named = {each.name: plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
        return named | {name: named[name] is not None for name in ("at", "started_at", "ended_at", "updated_at") if name in named}
    return value


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(lives=st.lists(steps, min_size=6, max_size=25))
def test_the_same_lives_have_the_same_answers(records_url: str, documents_url: str, lives: list[tuple[Any, ...]]) -> None:
    memory = MemoryStore()
    with ExitStack() as opened:
        worlds = [World(memory, MemoryWriter(memory))]
        for address, store, writer in ((records_url, PostgresStore, RecallWriter), (documents_url, MongoStore, MongoWriter)):
            url = with_collection(address)
            worlds.append(World(opened.enter_context(closing(store(url))), opened.enter_context(writer(url)).create()))
        for step in [("resume", ("a", 0), False), ("resume", ("b", 0), False), *lives]:
            reference, *found = (world.take(step) for world in worlds)
            assert found == [reference] * len(found), step

        reference, *found = (world.everything() for world in worlds)
        assert found == [reference] * len(found)
        for world in worlds:
            for running in world.processes.values():
                running.release()
