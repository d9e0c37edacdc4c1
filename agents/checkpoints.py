"""LangGraph's checkpoints of a run, as the one process may use them that has the run's agent. Which database keeps them is the caller's.

A checkpointer knows no lease. A process that was frozen past its own could write a checkpoint after another one had gone on, and the thread
would go back to it. So nothing is written without the lease, each checkpoint says under which epoch it was written, and the one of the
highest epoch is the newest. How many actions there were when a step was first begun is kept beside the checkpoint that it began from.
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import cache
from typing import Any

from actions.errors import ActionsError, StoreUnavailable
from agents.harness import DurableAgent

EPOCH = "settle_epoch"
"""In a checkpoint's metadata: the epoch of the lease under which it was written."""
STORE = "checkpoints"
"""What StoreUnavailable calls the checkpoints' database."""
_ENTERED = "settle:entered"
_ENTERED_TASK = "00000000-0000-0000-0000-00005e771e00"
_SPENT = "settle:spent"
_NEWEST_LOOKED_AT = 4  # a step writes at most three
_SENDS = "__pregel_tasks"
_BRANCH = "branch:to:"
# Drivers' errors that speak of the connection and not of what was asked; by name, since no driver is imported here.
_CONNECTION_ERRORS = frozenset({"OperationalError", "InterfaceError", "PyMongoError", "ConnectionError", "RedisError"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredStep:
    """One checkpoint of a run. `nodes` are those that ran to make it; the first ones, of the input alone, have none."""

    checkpoint: str
    at: datetime
    number: int  # LangGraph's: -1 for the input, 0 for the state made of it
    nodes: tuple[str, ...]
    cost: Decimal = Decimal(0)  # where it was asked for


def fenced(checkpointer: Any, agent: DurableAgent) -> Any:
    """The same checkpointer for the holder of the agent's lease alone.

    Its methods raise LeaseLost and LeaseNotHeld before anything is written, and StoreUnavailable where the database does not answer.
    """
    held = copy.copy(checkpointer)
    held.__class__ = _fenced_class(type(checkpointer))  # type: ignore[arg-type]  # a class is hashable
    held._settle_hold = agent.hold
    return held


def find_newest(checkpointer: Any, run_id: str) -> Any | None:
    """The checkpoint, with its pending writes, that a run goes on from; None where it has none. Raises what reading it raises."""
    return checkpointer.get_tuple(config_of(run_id))


def config_of(run_id: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": run_id, "checkpoint_ns": ""}}


def enter(checkpointer: Any, newest: Any, counts: Mapping[str, int]) -> Mapping[str, int]:
    """What the records held when the step after this checkpoint was first begun: kept now, under the lease, unless it was begun before."""
    if (newest.metadata or {}).get("step", 0) <= 0:
        return dict.fromkeys(counts, 0)  # no node has run yet
    for task, channel, value in newest.pending_writes or ():
        if (task, channel) == (_ENTERED_TASK, _ENTERED):
            return dict(value)
    checkpointer.put_writes(newest.config, [(_ENTERED, dict(counts))], _ENTERED_TASK)
    return counts


def note_spent(checkpointer: Any, run_id: str, before: Any | None, attempt: str, cost: Decimal) -> None:
    """That this attempt at the step after this checkpoint (None: the run's first) has cost so much more. Under the lease, as every write."""
    began = before or find_newest(checkpointer, run_id)
    if began is not None:
        checkpointer.put_writes(began.config, [(_SPENT, [attempt, str(cost)])], str(uuid.uuid4()))


def spent_by(found: Any, attempts: Collection[str] | None = None) -> Decimal:
    """What these attempts at the step after this checkpoint noted that they cost; None: all of them."""
    notes = [value for _, channel, value in found.pending_writes or () if channel == _SPENT]
    return sum((Decimal(cost) for attempt, cost in notes if attempts is None or attempt in attempts), Decimal(0))


def nodes_between(before: Any | None, after: Any) -> tuple[str, ...]:
    """The nodes that ran between two checkpoints, by name; those that LangGraph hides are left out."""
    seen = before.checkpoint["versions_seen"] if before else {}
    ran = [name for name, versions in after.checkpoint["versions_seen"].items() if versions != seen.get(name, {})]
    sends = (before.checkpoint["channel_values"].get(_SENDS) or ()) if before else ()
    names = dict.fromkeys([*ran, *(str(send.node) for send in sends)])
    return tuple(sorted(name for name in names if not name.startswith("__")))


def list_steps(
    checkpointer: Any, run_id: str, *, limit: int, cost: Callable[[Any, Any], Decimal] = lambda before, one: Decimal(0)
) -> tuple[StoredStep, ...]:
    """The newest checkpoints of a run, newest first, at most `limit`. `cost`: of a step, by the checkpoint before it and its own."""
    found = list(checkpointer.list(config_of(run_id), limit=limit + 1))
    older = [*found[1:], None]
    return tuple(
        StoredStep(
            checkpoint=str(one.checkpoint["id"]),
            at=datetime.fromisoformat(one.checkpoint["ts"]),
            number=int((one.metadata or {}).get("step", 0)),
            nodes=nodes_between(before, one) if before or (one.metadata or {}).get("step", 0) <= 0 else (),
            cost=cost(before, one) if before else Decimal(0),
        )
        for one, before in zip(found, older, strict=False)
    )[:limit]


def lost_parts(newest: Any, graph: Any) -> str:
    """What the graph no longer has of a checkpoint, in a sentence; empty where it has all. LangGraph itself would pass over it silently."""
    values = newest.checkpoint["channel_values"]
    waiting = {name.removeprefix(_BRANCH) for name in values if name.startswith(_BRANCH)}
    waiting |= {str(send.node) for send in values.get(_SENDS) or ()}
    if gone := sorted(waiting - set(graph.nodes)):
        return f"the graph has no node {', '.join(gone)} any more, which was to run next"
    kept = {name for name in values if not name.startswith((_BRANCH, "__"))}
    if gone := sorted(kept - set(graph.channels)):
        return f"the graph's state has no {', '.join(gone)} any more"
    return ""


@cache
def _fenced_class(base: type) -> type:
    class Fenced(base):  # type: ignore[misc]  # whichever checkpointer it is
        _settle_hold: Callable[[], Any]

        def get_tuple(self, config: Any) -> Any:
            asked = config["configurable"]
            if asked.get("checkpoint_id"):
                return _asked(lambda: super(Fenced, self).get_tuple(config))
            named = {"configurable": {"checkpoint_ns": "", **asked}}
            found = _asked(lambda: list(super(Fenced, self).list(named, limit=_NEWEST_LOOKED_AT)))
            return max(found, key=_age, default=None)

        def list(self, config: Any, **options: Any) -> Iterator[Any]:
            found: list[Any] = _asked(lambda: [*super(Fenced, self).list(config, **options)])
            return iter(found)

        def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
            epoch = self._settle_hold().epoch
            said = {**metadata, EPOCH: epoch}
            return _asked(lambda: super(Fenced, self).put(config, checkpoint, said, new_versions), is_write=True)

        def put_writes(self, config: Any, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = "") -> None:
            self._settle_hold()
            _asked(lambda: super(Fenced, self).put_writes(config, writes, task_id, task_path), is_write=True)

    return Fenced


def _age(found: Any) -> tuple[int, str]:
    return (int((found.metadata or {}).get(EPOCH, -1)), str(found.checkpoint["id"]))


def _asked(ask: Callable[[], Any], *, is_write: bool = False) -> Any:
    try:
        return ask()
    except ActionsError:
        raise
    except Exception as exc:
        names = {cls.__name__ for cls in type(exc).__mro__}
        if not names & _CONNECTION_ERRORS and not isinstance(exc, (OSError, TimeoutError)):
            raise
        raise StoreUnavailable(STORE, f"{type(exc).__name__} while checkpoints were asked for", may_be_written=is_write) from exc
