"""What the tests of a store do over and over: decide, look at everything, race."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

from actions.records import Action, ActionEnd, ActionRef, ActionStatus, ChainHead, Link, Settled
from actions.settle import make_end, settle
from actions.store.audit import ChainReport, verify_chain
from actions.store.base import ActionStore
from tests.recall_writer import Metadata, RecordWriter

T = TypeVar("T")
_numbers = count(1)


def new_decision_id() -> str:
    return f"decision-{next(_numbers):06d}"


def an_end(
    status: ActionStatus = ActionStatus.DONE, reason: str = "found in the Sent folder", *, result: str = "", error: str = ""
) -> ActionEnd:
    return make_end(status, reason, actor="operator ana", result=result, error=error)


def decide(
    store: ActionStore,
    ref: ActionRef,
    end: ActionEnd | None = None,
    *,
    decision_id: str | None = None,
    seen: str | None = None,
    claim: str | None = None,
) -> Settled:
    """Settle as an operator's click does."""
    return settle(
        store, ref, end or an_end(), actor="operator ana", decision_id=decision_id or new_decision_id(), seen=seen, claim=claim
    )


def readable_action(store: ActionStore, ref: ActionRef) -> Action:
    action = store.get_action(ref.agent, ref.seq).action
    assert isinstance(action, Action), action
    return action


@dataclass(frozen=True)
class World:
    """Everything that a settle may touch, to say that it did not."""

    records: dict[str, Metadata | None]
    revision: int
    leases: tuple[object, ...]
    head: ChainHead
    links: tuple[Link, ...]


def look_at_world(store: ActionStore, recall: RecordWriter, *agents: str) -> World:
    return World(
        records={record_id: recall.metadata_of(record_id) for record_id in recall.record_ids()},
        revision=recall.revision(),
        leases=tuple(recall.lease_of(agent) for agent in agents),
        head=store.read_head(),
        links=tuple(store.iterate_links()),
    )


def verify(store: ActionStore) -> ChainReport:
    head = store.read_head()
    return verify_chain(head.chain, store.iterate_links(), head)


def until(is_so: Callable[[], object]) -> None:
    """Ask again until it is so; a test that waits in vain fails instead of hanging."""
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def race(*runners: Callable[[], T]) -> Sequence[T | Exception]:
    """Start them all at one moment, each in a thread of its own; what each answered or raised, in their order."""
    start = threading.Barrier(len(runners))
    answers: list[T | Exception] = [RuntimeError("did not run")] * len(runners)

    def run(place: int, runner: Callable[[], T]) -> None:
        start.wait()
        try:
            answers[place] = runner()
        except Exception as exc:
            answers[place] = exc

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(runners)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers
