"""Records as an agent's process is about to write them: pure, no store. What a record may hold was checked before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from actions.keys import action_key
from actions.records import (
    Action,
    ActionClass,
    ActionStatus,
    Change,
    Condition,
    NewTurn,
    Output,
    Turn,
    WorkingState,
)
from actions.times import Instant
from actions.turns import StoredValue, cut_bytes
from agents.ends import End

SUMMARY_BYTES = 200


def begun(agent: str, seq: int, tool: str, kind: ActionClass, args: StoredValue, *, epoch: int, at: Instant) -> Action:
    return Action(
        agent=agent,
        seq=seq,
        tool=tool,
        action_class=kind,
        key=action_key(agent, seq),
        args=args.text,
        args_ref=args.ref,
        status=ActionStatus.STARTED,
        epoch=epoch,
        written_epoch=epoch,
        started_at=at,
    )


def ended(action: Action, end: End, result: StoredValue, *, epoch: int, at: Instant) -> Action:
    """An empty resolution keeps the earlier one; the rest is replaced (recall-records 4)."""
    status = ActionStatus(end.status)
    return replace(
        action,
        status=status,
        result=result.text,
        result_ref=result.ref,
        error=end.error,
        resolution=end.resolution or action.resolution,
        written_epoch=epoch,
        ended_at=None if status.is_open else at,
    )


def turn(agent: str, seq: int, given: NewTurn, content: StoredValue, *, at: Instant) -> Turn:
    return Turn(
        agent=agent,
        seq=seq,
        role=given.role,
        name=given.name,
        content=content.text,
        output_ref=content.ref,
        brief=given.brief,
        message_id=given.message_id,
        at=at,
    )


def next_state(
    earlier: WorkingState | None, agent: str, given: Mapping[str, Any], *, turn_seq: int, action_seq: int, at: Instant
) -> WorkingState:
    """The next version: what is given replaces, the rest is kept."""
    known = earlier or WorkingState(agent=agent, version=0, updated_at=0)
    return replace(known, **given, version=known.version + 1, turn_seq=turn_seq, action_seq=action_seq, updated_at=at)


def output(agent: str, ref: str, content: str, *, tool: str, at: Instant, summary: str = "") -> Output:
    """Without a summary its first 200 bytes and three dots, as Recall writes it."""
    return Output(
        agent=agent,
        ref=ref,
        content=content,
        tool=tool,
        summary=summary or cut_bytes(content, SUMMARY_BYTES) + "...",
        tokens=(len(content.encode()) + 3) // 4,
        at=at,
    )


def overflow(
    agent: str, value: StoredValue, *, tool: str, at: Instant, condition: Condition = Condition.ANY
) -> tuple[Change, ...]:
    """The output of a value that overflowed. An action's may stand there already, left by a crash of Recall between output and action."""
    return (Change(output(agent, value.ref, value.whole, tool=tool, at=at), condition),) if value.ref else ()
