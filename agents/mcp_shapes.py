"""Records as the JSON values that Recall's own tools answer with, so that its clients read ours. What is empty is left out, as there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from actions.records import Action, Output, Pointer, Turn, WorkingState
from actions.times import format_rfc3339

Json = dict[str, Any]


def action_json(action: Action) -> Json:
    said = {
        "seq": action.seq,
        "tool": action.tool,
        "class": action.action_class.value,
        "args": action.args,
        "key": action.key,
        "status": action.status.value,
        "result": action.result,
        "error": action.error,
        "resolution": action.resolution,
        "args_ref": action.args_ref,
        "result_ref": action.result_ref,
        "epoch": action.epoch,
        "started_at": format_rfc3339(action.started_at),
        "ended_at": format_rfc3339(action.ended_at) if action.ended_at is not None else "",
    }
    return _filled(said, keep=("seq", "tool", "class", "key", "status", "epoch", "started_at"))


def turn_json(turn: Turn) -> Json:
    said = {
        "seq": turn.seq,
        "role": turn.role,
        "name": turn.name,
        "content": turn.content,
        "output_ref": turn.output_ref,
        "message_id": turn.message_id,
        "brief": turn.brief,
        "at": format_rfc3339(turn.at),
    }
    return _filled(said, keep=("seq", "role", "content", "at"))


def working_state_json(state: WorkingState) -> Json:
    said = {
        "goal": state.goal,
        "plan": list(state.plan),
        "progress": state.progress,
        "focus": state.focus,
        "decisions": list(state.decisions),
        "open_questions": list(state.open_questions),
        "notes": state.notes,
        "step": state.step,
        "last_milestone": state.last_milestone,
        "version": state.version,
        "turn_seq": state.turn_seq,
        "action_seq": state.action_seq,
        "updated_at": format_rfc3339(state.updated_at),
    }
    return _filled(said, keep=("version", "updated_at"))


def pointer_json(pointer: Pointer) -> Json:
    said = {
        "name": pointer.name,
        "type": pointer.type,
        "fields": dict(pointer.fields),
        "note": pointer.note,
        "at": format_rfc3339(pointer.at),
    }
    return _filled(said, keep=("name", "type", "fields", "at"))


def output_json(output: Output) -> Json:
    """Without its content, as lists show it."""
    said = {
        "ref": output.ref,
        "tool": output.tool,
        "summary": output.summary,
        "tokens": output.tokens,
        "at": format_rfc3339(output.at),
    }
    return _filled(said, keep=("ref", "at"))


def whole_output_json(output: Output) -> Json:
    said = {
        "ref": output.ref,
        "tool": output.tool,
        "summary": output.summary,
        "content": output.content,
        "at": format_rfc3339(output.at),
    }
    return _filled(said, keep=("ref", "content", "at"))


def _filled(said: Mapping[str, Any], *, keep: tuple[str, ...]) -> Json:
    return {name: value for name, value in said.items() if value or name in keep}
