"""`calls`: what a durable call costs an agent, begin and end, and how soon an agent is back after a crash; ours beside the real client.

Nobody can be faster than two commits, since a call is on the disk before it runs and its end before it is answered: what two bare ones cost
stands beside. On a disk that is busy, that is most of what either side waits for.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import timedelta
from itertools import cycle, islice, permutations
from typing import Any, Protocol
from uuid import uuid4

import psycopg
from polign_recall import Client, RecallError

from actions.errors import LeaseLive
from actions.records import NewTurn
from actions.store import open_agent_store
from agents.harness import DurableAgent
from bench.forks import Forks
from bench.ground import Ground
from bench.plan import Plan
from bench.report import Goal, Report, clock, make_row
from local import mongo, processes

GOAL = 0.5
ROUNDS = 5
"""So many times the samples that others take: a call is short, and on a busy machine each says little."""
LEASE_S = 1.0
"""Of the crashes: Recall takes no shorter one."""
TOOL, RESULT = "send_email", "sent, message-id 1204"
ARGS = {"to": "ada@example.com", "subject": "Your invoice INV-1042", "body": "Please find it attached. " * 8}
WARM_UP = 10
POLL_S = 0.01
PATIENCE_S = 30
PRELOADED = ["bench.calls", "actions.store.postgres", "actions.store.mongo"]


class Caller(Protocol):
    """One side: an agent's session that makes calls."""

    def call(self) -> None:
        """Begin and end."""

    def call_and_tell(self) -> None:
        """Begin, end, and the turn that the next process reads."""


class Ours:
    def __init__(self, agent: DurableAgent) -> None:
        self._agent = agent

    def call(self) -> None:
        self._agent.end_action(self._agent.begin_action(TOOL, ARGS, "external"), "done", result=RESULT)

    def call_and_tell(self) -> None:
        action = self._agent.begin_action(TOOL, ARGS, "external")
        self._agent.end_action(action, "done", result=RESULT, turn=NewTurn("tool", RESULT, name=TOOL))


class Theirs:
    def __init__(self, agent: Any) -> None:
        self._agent = agent

    def call(self) -> None:
        self._agent.end_action(self._agent.begin_action(TOOL, "external", ARGS).seq, "done", RESULT)

    def call_and_tell(self) -> None:
        """The turn before the end, as recall-langgraph does it."""
        seq = self._agent.begin_action(TOOL, "external", ARGS).seq
        self._agent.record_turn("tool", RESULT, TOOL)
        self._agent.end_action(seq, "done", RESULT)


class Bare:
    """The floor: one short row in a table without anything, in a transaction of its own, for each thing that must be on the disk."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        connection.execute("CREATE TABLE IF NOT EXISTS bench_floor (text text)")

    def call(self) -> None:
        for _ in range(2):
            self._connection.execute("INSERT INTO bench_floor VALUES (%s)", [ARGS["body"]], prepare=True)

    call_and_tell = call


def bench_calls(ground: Ground, plan: Plan, report: Report) -> None:
    """The same call of agents with a like history: ours and the client's in turn, then ours on MongoDB. Each commit waits for the disk."""
    with documents() as mongo_url:
        _calls(ground, plan, report, mongo_url)
        _crashes(ground, plan, report, mongo_url)


@contextlib.contextmanager
def documents() -> Iterator[str]:
    """A MongoDB of our own that keeps its promises to the disk, with Recall's collections in it."""
    home = processes.temporary_folder("calls")
    try:
        with mongo.start(home) as server:
            url = server.url("bench")
            with contextlib.closing(open_agent_store(url, name="mongo")) as store:
                store.create_records()
            yield url
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _calls(ground: Ground, plan: Plan, report: Report, mongo_url: str) -> None:
    idle = [life.agent for life in ground.lives if life.lease == "released" and not life.open_actions]
    mine, other, witness, again = random.Random(ground.shape.seed).sample(idle, 4)
    with ExitStack() as stack:
        connection = stack.enter_context(psycopg.connect(ground.url, autocommit=True))
        sides: dict[str, Caller] = {
            "Settle": Ours(_resumed(stack, ground.url, mine)),
            "Recall": Theirs(stack.enter_context(stack.enter_context(ground.client()).resume(other))),
            FLOOR: Bare(connection),
        }
        connection.execute("CHECKPOINT")  # of the data that was laid, not in the middle of what is measured
        bare = _in_turn({name: side.call for name, side in sides.items()}, plan.settles * ROUNDS)
        told = _in_turn({name: side.call_and_tell for name, side in sides.items()}, plan.settles * ROUNDS)
        on_mongo = Ours(_resumed(stack, mongo_url, mine))
        bare |= _in_turn({ON_MONGO: on_mongo.call}, plan.settles)
        told |= _in_turn({ON_MONGO: on_mongo.call_and_tell}, plan.settles)
    trips = _trips(ground, witness) - _trips(ground, again, calls=0)
    for what, samples in ((BARE, bare), (TOLD, told)):
        for name, times in samples.items():
            note = "" if name == "Recall" else f"{ratio_of(times, samples['Recall']):.2f} of Recall's"
            seen = trips if (name, what) == ("Settle", BARE) else None
            report.rows.append(make_row("calls", f"{name}: {what}", times, round_trips=seen, note=note))
    ratio, floor = (ratio_of(bare[name], bare["Recall"]) for name in ("Settle", FLOOR))
    goal = Goal(
        name="calls: begin + end, ours / Recall's, p50 of rounds",
        wanted=f"<= {GOAL}",
        found=f"{ratio:.2f}, where two bare commits are {floor:.2f}",
        is_met=ratio <= GOAL,
    )
    report.goals.append(goal)


def ratio_of(times: Sequence[float], others: Sequence[float]) -> float:
    """How long one side takes beside another: the median of what each round says, in which both met the same load.

    On a busy machine it moves less than the ratio of the two medians, which is what a side that was measured apart gets.
    """
    if len(times) != len(others):
        return statistics.median(times) / statistics.median(others)
    return statistics.median(time / other for time, other in zip(times, others, strict=True))


BARE = "begin + end"
TOLD = "begin + end + turn"


ON_MONGO = "Settle on MongoDB"
FLOOR = "Two bare commits"


def _in_turn(works: dict[str, Callable[[], None]], times: int) -> dict[str, list[float]]:
    """Each as often at each place and after each other: what one leaves to the disk, the next one waits for. After a warm-up."""
    for work in works.values():
        for _ in range(WARM_UP):
            work()
    samples: dict[str, list[float]] = {name: [] for name in works}
    for order in islice(cycle(permutations(works)), times):
        for name in order:
            samples[name].append(clock(works[name]))
    return samples


def _trips(ground: Ground, agent: str, *, calls: int = 1) -> int:
    """Statements that the server saw of a session with so many calls."""

    def session(store: Any) -> None:
        with DurableAgent.resume(store, agent) as resumed:
            for _ in range(calls):
                Ours(resumed).call()

    return len(ground.witness(session).statements)


def _crashes(ground: Ground, plan: Plan, report: Report, mongo_url: str) -> None:
    """From SIGKILL in the middle of a call until a process that is already there has the agent and its briefing; most of it is the lease."""
    forks = Forks(PRELOADED)
    samples: dict[str, list[float]] = {}
    with ExitStack() as stack:
        stores = {url: stack.enter_context(contextlib.closing(open_agent_store(url))) for url in (ground.url, mongo_url)}
        client = stack.enter_context(ground.client())
        sides: dict[str, tuple[Callable[[str, str], None], str, Callable[[str], None]]] = {
            "Settle": (die_as_ours, ground.url, lambda agent: _come_back(stores[ground.url], agent)),
            "Recall": (die_as_theirs, ground.url, lambda agent: _come_back_as_theirs(client, agent)),
            ON_MONGO: (die_as_ours, mongo_url, lambda agent: _come_back(stores[mongo_url], agent)),
        }
        for _ in range(plan.crashes):
            for name, (die, url, come_back) in sides.items():
                agent = f"crash-{uuid4().hex[:16]}"
                if (code := forks.run(die, url, agent)) != -signal.SIGKILL:
                    raise processes.ServerError(f"calls: the agent of {name} ended with {code}, and was not killed")
                samples.setdefault(name, []).append(clock(lambda come_back=come_back, agent=agent: come_back(agent)))  # type: ignore[misc]
    for name, found in samples.items():
        report.rows.append(make_row("calls", f"{name}: from SIGKILL to the briefing, lease {LEASE_S:g} s", found))


def die_as_ours(url: str, agent: str) -> None:
    os.setpgid(0, 0)
    resumed = DurableAgent.resume(open_agent_store(url), agent, lease_ttl=timedelta(seconds=LEASE_S))
    resumed.begin_action(TOOL, ARGS, "external")
    os.killpg(0, signal.SIGKILL)


def die_as_theirs(url: str, agent: str) -> None:
    os.setpgid(0, 0)
    client = Client(agent=True, backend="pgvector", backend_url=url)
    client.resume(agent, lease_ttl=LEASE_S).begin_action(TOOL, "external", ARGS)
    os.killpg(0, signal.SIGKILL)  # the client's own process too


def _come_back(store: Any, agent: str) -> None:
    def resume() -> bool:
        try:
            resumed = DurableAgent.resume(store, agent)
        except LeaseLive:
            return False
        resumed.release()
        return TOOL in resumed.briefing.text

    _poll(resume)


def _come_back_as_theirs(client: Client, agent: str) -> None:
    def resume() -> bool:
        try:
            resumed = client.resume(agent)
        except RecallError as exc:
            if exc.code != "lease_held":
                raise
            return False
        resumed.release()
        return TOOL in resumed.context.briefing

    _poll(resume)


def _poll(is_back: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not is_back():
        if time.monotonic() > until:
            raise processes.ServerError("calls: a dead agent's lease did not run out")
        time.sleep(POLL_S)


def _resumed(stack: ExitStack, url: str, agent: str) -> DurableAgent:
    store = stack.enter_context(contextlib.closing(open_agent_store(url)))
    return stack.enter_context(DurableAgent.resume(store, agent))
