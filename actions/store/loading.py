"""What an agent's process starts from, made of the rows that an adapter read: pure, the same for every store."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from actions.errors import RecordUnreadable
from actions.records import Action, AgentRecords, Lease, Output, Pointer, Turn, Unreadable
from actions.store.codec import MAX_INTEGER, action_id, decode_working_state, turn_id

MAX_LOADED_TURNS = 200
MAX_LOADED_POINTERS = 1000
MAX_LOADED_OUTPUTS = 200
"""As many as Recall reads (recall-records 3.8). Of open actions it reads 200 of each status; we read all."""

Noun = TypeVar("Noun")


def agent_records(
    agent: str,
    *,
    lease: Lease | None,
    largest_turn: int,
    largest_action: int,
    head: tuple[str, object] | None,
    open_actions: Iterable[Action | Unreadable],
    pointers: Iterable[Pointer | Unreadable],
    outputs: Iterable[Output | Unreadable],
    turns: Iterable[Turn | Unreadable],
) -> AgentRecords:
    """Raises RecordUnreadable where one of them cannot be decoded, as Recall's own resume fails, or no number can follow the newest one."""
    state = None if head is None else decode_working_state(*head)
    return AgentRecords(
        agent=agent,
        lease=lease,
        newest_turn=_newest(turn_id(agent, largest_turn), largest_turn, state.turn_seq if state else 0),
        newest_action=_newest(action_id(agent, largest_action), largest_action, state.action_seq if state else 0),
        working_state=state,
        open_actions=tuple(sorted(map(_readable, open_actions), key=lambda action: action.seq)),
        pointers=tuple(map(_readable, pointers)),
        outputs=tuple(map(_readable, outputs)),
        turns=tuple(map(_readable, turns)),
    )


def _newest(record_id: str, largest: int, claimed: int) -> int:
    newest = max(largest, claimed)
    if newest >= MAX_INTEGER:
        raise RecordUnreadable(record_id, f"the newest number is {newest}, after which Recall can number none")
    return newest


def _readable(record: Noun | Unreadable) -> Noun:
    if isinstance(record, Unreadable):
        raise RecordUnreadable(record.record_id, record.problem)
    return record
