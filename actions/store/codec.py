"""Recall's stored metadata and bodies <-> records: the only place where stored names and types appear.

Decoding is as strict as Recall's own (a number that is `1.0`, a time without a zone: refused), and stricter where metadata and body
disagree: such a record is unreadable, because nobody knows which of the two is true.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple, NoReturn, TypeVar

from actions.errors import RecordUnreadable
from actions.records import (
    Action,
    ActionClass,
    ActionEnd,
    ActionStatus,
    Change,
    Condition,
    Output,
    Pointer,
    RemovedPointer,
    Turn,
    Unreadable,
    WorkingState,
)
from actions.times import YEAR_ONE, Instant, format_rfc3339, parse_rfc3339

Metadata = dict[str, Any]
_Member = TypeVar("_Member", bound=StrEnum)
_Record = TypeVar("_Record")

_STATUSES = {status.value: status for status in ActionStatus}
_CLASSES = {each.value: each for each in ActionClass}

PAGE_SIZE = 64
MAX_INTEGER = 2**63 - 1
"""Recall's integers are Go's int64; one more and it can read the record no more."""
HEAD = "ws:head"
_RECORD_ID = re.compile(r"([^:]*):([a-z]+):(.*)", re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")
_BETWEEN = re.compile(r"[ \t\n\r,:]*+")


# --- ids -------------------------------------------------------------------------------------------------------------


def action_id(agent: str, seq: int) -> str:
    return f"{agent}:act:{seq}"


def turn_id(agent: str, seq: int) -> str:
    return f"{agent}:turn:{seq}"


def output_id(agent: str, ref: str) -> str:
    return f"{agent}:out:{ref}"


def working_state_id(agent: str, version: int) -> str:
    return f"{agent}:ws:{version}"


def pointer_id(agent: str, name: str) -> str:
    return f"{agent}:ptr:{name}"


def head_id(agent: str) -> str:
    return f"{agent}:{HEAD}"


def page_of(seq: int) -> str:
    """The page key, which Recall keeps as a string; without it a record is invisible to paging."""
    return str((seq - 1) // PAGE_SIZE)


def load_metadata(text: str) -> object:
    """A record's stored metadata from its JSON text; the ValueError text itself where it is none, so that one record spoils no list."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as exc:
        return f"not JSON: {str(exc)[:120]}"


def unreadable(record_id: str, problem: str) -> Unreadable:
    """What is known of a record that cannot be decoded: the agent and number that its id claims."""
    match = _RECORD_ID.fullmatch(record_id)
    agent, kind, tail = match.groups() if match else (record_id.split(":", 1)[0], "", "")
    seq = int(tail) if kind in ("act", "turn", "ws") and tail.isascii() and tail.isdigit() and len(tail) < 19 else None
    return Unreadable(record_id=record_id, agent=agent, seq=seq, problem=problem)


def decoded(decode: Callable[[str, object], _Record], record_id: str, metadata: object) -> _Record | Unreadable:
    """One record, decoded for itself alone: what cannot be is told with its id and spoils no list."""
    try:
        return decode(record_id, metadata)
    except RecordUnreadable as exc:
        return unreadable(exc.record_id, exc.problem)


# --- reading ---------------------------------------------------------------------------------------------------------


def decode_action(record_id: str, metadata: object) -> Action:
    """One action record.

    Raises:
        RecordUnreadable: the id, the metadata and the body do not tell one story, or a value has the wrong type.
    """
    meta, body = _open(record_id, metadata, "action")
    fields = _Fields(record_id, body)
    seq = fields.integer("seq", least=1)
    agent = fields.agree("agent id", meta.get("recall_agent"), record_id.split(":", 1)[0])
    if record_id != action_id(agent, seq):
        raise RecordUnreadable(record_id, f"its body says number {seq}")
    if meta.get("act") != str(seq):
        raise RecordUnreadable(record_id, f"metadata says act {meta.get('act')!r}, the body {seq}")
    status = fields.member("status", _STATUSES)
    fields.agree("status", meta.get("status"), status.value)
    if "class" in meta:
        fields.agree("class", meta["class"], body.get("class"))
    ended = fields.find_time("ended_at")
    return Action(
        agent=agent,
        seq=seq,
        tool=fields.text("tool"),
        action_class=fields.member("class", _CLASSES),
        key=fields.text("key"),
        args=fields.text("args"),
        args_ref=fields.text("args_ref"),
        status=status,
        result=fields.text("result"),
        result_ref=fields.text("result_ref"),
        error=fields.text("error"),
        resolution=fields.text("resolution"),
        epoch=fields.integer("epoch", least=0),
        written_epoch=_metadata_number(record_id, meta, "epoch"),
        started_at=fields.time("started_at"),
        ended_at=ended,
    )


def decode_turn(record_id: str, metadata: object) -> Turn:
    """One turn record. Raises RecordUnreadable as `decode_action` does."""
    meta, body = _open(record_id, metadata, "turn")
    fields = _Fields(record_id, body)
    seq = fields.integer("seq", least=1)
    agent = fields.agree("agent id", meta.get("recall_agent"), record_id.split(":", 1)[0])
    if record_id != turn_id(agent, seq):
        raise RecordUnreadable(record_id, f"its body says number {seq}")
    return Turn(
        agent=agent,
        seq=seq,
        role=fields.text("role"),
        content=fields.text("content"),
        name=fields.text("name"),
        brief=fields.text("brief"),
        output_ref=fields.text("output_ref"),
        message_id=fields.text("message_id"),
        at=fields.time("at"),
    )


def decode_output(record_id: str, metadata: object) -> Output:
    """One output record, whole. Raises RecordUnreadable as `decode_action` does."""
    meta, body = _open(record_id, metadata, "output")
    fields = _Fields(record_id, body)
    ref = fields.text("ref")
    agent = fields.agree("agent id", meta.get("recall_agent"), record_id.split(":", 1)[0])
    if record_id != output_id(agent, ref):
        raise RecordUnreadable(record_id, f"its body says ref {ref!r}")
    return Output(
        agent=agent,
        ref=ref,
        content=fields.text("content"),
        tool=fields.text("tool"),
        summary=fields.text("summary"),
        tokens=_metadata_number(record_id, meta, "tokens"),
        at=fields.time("at"),
    )


def decode_working_state(record_id: str, metadata: object) -> WorkingState:
    """One working state, head or version. Raises RecordUnreadable as `decode_action` does."""
    record = "working_state_head" if record_id.endswith(f":{HEAD}") else "working_state"
    meta, body = _open(record_id, metadata, record)
    fields = _Fields(record_id, body)
    return WorkingState(
        agent=fields.agree("agent id", meta.get("recall_agent"), record_id.split(":", 1)[0]),
        version=fields.integer("version", least=0),
        goal=fields.text("goal"),
        plan=fields.texts("plan"),
        progress=fields.text("progress"),
        focus=fields.text("focus"),
        decisions=fields.texts("decisions"),
        open_questions=fields.texts("open_questions"),
        notes=fields.text("notes"),
        step=fields.integer("step", least=0),
        last_milestone=fields.text("last_milestone"),
        turn_seq=fields.integer("turn_seq", least=0),
        action_seq=fields.integer("action_seq", least=0),
        updated_at=fields.time("updated_at"),
    )


def decode_pointer(record_id: str, metadata: object) -> Pointer | None:
    """One pointer; None where it was removed. Raises RecordUnreadable as `decode_action` does."""
    meta, body = _open(record_id, metadata, "pointer")
    if meta.get("removed") is True:
        return None
    fields = _Fields(record_id, body)
    pairs = body.get("fields") or {}
    if not isinstance(pairs, dict) or not all(isinstance(value, str) for value in pairs.values()):
        raise RecordUnreadable(record_id, "fields is not an object of texts")
    return Pointer(
        agent=fields.agree("agent id", meta.get("recall_agent"), record_id.split(":", 1)[0]),
        name=fields.text("name"),
        type=fields.text("type"),
        fields=pairs,
        note=fields.text("note"),
        at=fields.time("at"),
    )


# --- writing ---------------------------------------------------------------------------------------------------------


def encode_end(metadata: Mapping[str, Any], end: ActionEnd, *, epoch: int, result: str, ref: str, at: Instant) -> Metadata:
    """The action's metadata after its end: result, error and result_ref are replaced, everything else stays (recall-records 4).

    `epoch` is the lease's under which it is written; the body's epoch and keys that we do not know are kept.
    """
    ended = {"status": end.status.value, "result": result, "error": end.error, "resolution": end.resolution, "result_ref": ref}
    written = {name: json.dumps(value, ensure_ascii=False) for name, value in ended.items() if value}
    kept = _members(metadata["body"])
    for name in ("result", "error", "result_ref"):
        kept.pop(name, None)
    body = kept | written | {"ended_at": json.dumps(format_rfc3339(at))}
    return {**metadata, "status": end.status.value, "epoch": epoch, "body": _dump_members(body)}


def encode_action(action: Action, *, epoch: int) -> Metadata:
    """An action's metadata whole, as its agent's process writes it. `epoch` is the lease's under which it is written."""
    body = {
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
        "ended_at": None if action.ended_at is None else format_rfc3339(action.ended_at),
    }
    return {
        **_common(action.agent, "action", epoch),
        "act": str(action.seq),
        "seq": action.seq,
        "page": page_of(action.seq),
        "class": action.action_class.value,
        "status": action.status.value,
        "body": _dump({key: value for key, value in body.items() if value or key == "epoch"}),
    }


def encode_working_state(state: WorkingState, *, epoch: int, is_head: bool) -> Metadata:
    """A working state's metadata: of its version, or of the head, whose body is the same."""
    body = {
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
    dumped = _dump({key: value for key, value in body.items() if value or key == "version"})
    if is_head:
        return {**_common(state.agent, "working_state_head", epoch), "body": dumped}
    return {**_common(state.agent, "working_state", epoch), "version": state.version, "body": dumped}


def encode_pointer(pointer: Pointer, *, epoch: int) -> Metadata:
    body = {
        "name": pointer.name,
        "type": pointer.type,
        "fields": dict(pointer.fields),
        "note": pointer.note,
        "at": format_rfc3339(pointer.at),
    }
    kept = {key: value for key, value in body.items() if value or key == "fields"}
    return {**_common(pointer.agent, "pointer", epoch), "name": pointer.name, "body": _dump(kept)}


def encode_removed_pointer(pointer: RemovedPointer, *, epoch: int) -> Metadata:
    return {**_common(pointer.agent, "pointer", epoch), "name": pointer.name, "removed": True, "body": "{}"}


class Stored(NamedTuple):
    """One record of an agent's write: where, what, and on which condition."""

    record_id: str
    metadata: Metadata
    condition: Condition


def encode_changes(changes: Iterable[Change], *, epoch: int) -> tuple[Stored, ...]:
    """The records of an agent's write, in the order given."""
    stored: list[Stored] = []
    for change in changes:
        match change.record:
            case Action(agent=agent, seq=seq) as action:
                stored.append(Stored(action_id(agent, seq), encode_action(action, epoch=epoch), change.condition))
            case Turn(agent=agent, seq=seq) as turn:
                stored.append(Stored(turn_id(agent, seq), encode_turn(turn, epoch=epoch), change.condition))
            case Output(agent=agent, ref=ref) as output:
                stored.append(Stored(output_id(agent, ref), encode_output(output, epoch=epoch), change.condition))
            case Pointer(agent=agent, name=name) as pointer:
                stored.append(Stored(pointer_id(agent, name), encode_pointer(pointer, epoch=epoch), change.condition))
            case RemovedPointer(agent=agent, name=name) as removed:
                stored.append(Stored(pointer_id(agent, name), encode_removed_pointer(removed, epoch=epoch), change.condition))
            case WorkingState(agent=agent, version=version) as state:
                versioned = encode_working_state(state, epoch=epoch, is_head=False)
                stored.append(Stored(working_state_id(agent, version), versioned, change.condition))
                stored.append(Stored(head_id(agent), encode_working_state(state, epoch=epoch, is_head=True), Condition.ANY))
    return tuple(stored)


def encode_turn(turn: Turn, *, epoch: int) -> Metadata:
    """A turn's metadata, with the page key that Recall needs to find it."""
    body = {
        "seq": turn.seq,
        "role": turn.role,
        "name": turn.name,
        "content": turn.content,
        "output_ref": turn.output_ref,
        "message_id": turn.message_id,
        "brief": turn.brief,
        "at": format_rfc3339(turn.at),
    }
    kept = {key: value for key, value in body.items() if value or key in ("content", "at")}
    return {**_common(turn.agent, "turn", epoch), "seq": turn.seq, "page": page_of(turn.seq), "body": _dump(kept)}


def encode_output(output: Output, *, epoch: int) -> Metadata:
    """An output's metadata; the summary defaults to the content's first 200 bytes, as Recall's does."""
    summary = output.summary or output.content.encode()[:200].decode("utf-8", "ignore") + "..."
    body = {
        "ref": output.ref,
        "tool": output.tool,
        "summary": summary,
        "content": output.content,
        "at": format_rfc3339(output.at),
    }
    kept = {key: value for key, value in body.items() if value or key in ("content", "at")}
    tokens = output.tokens or (len(output.content.encode()) + 3) // 4
    return {**_common(output.agent, "output", epoch), "ref": output.ref, "tokens": tokens, "body": _dump(kept)}


def _common(agent: str, record: str, epoch: int) -> Metadata:
    return {"recall_agent": agent, "record": record, "epoch": epoch}


def _dump(body: Mapping[str, Any]) -> str:
    """Compact JSON, readable as it stands; half a surrogate pair, which would not survive as UTF-8, as an escape."""
    return _escape_surrogates(_ENCODER.encode(body))


def _members(text: str) -> dict[str, str]:
    """The members of a JSON object that has been decoded, each value as it was written: what we do not know we do not write anew."""
    found: dict[str, str] = {}
    at = _skip(text, text.index("{") + 1)
    while text[at] != "}":
        name, at = _DECODER.raw_decode(text, at)
        start = _skip(text, at)
        _, end = _DECODER.raw_decode(text, start)
        found[name] = text[start:end]
        at = _skip(text, end)
    return found


def _skip(text: str, at: int) -> int:
    """Past what stands between two names or values."""
    match = _BETWEEN.match(text, at)
    return match.end() if match else at


def _dump_members(members: Mapping[str, str]) -> str:
    pairs = (f"{json.dumps(name, ensure_ascii=False)}:{value}" for name, value in members.items())
    return _escape_surrogates(f"{{{','.join(pairs)}}}")


def _escape_surrogates(text: str) -> str:
    """They stand in no JSON text but inside a string, where an escape means the same."""
    return _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _load(text: str) -> Any:
    """JSON as Recall's decoder understands it: without NaN, and without numbers that would be written back as Infinity."""
    return _DECODER.decode(text)


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse_number(text)


def _refuse_number(text: str) -> NoReturn:
    raise ValueError(f"{text[:40]} is no number of JSON that can be kept")


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_DECODER = json.JSONDecoder(parse_constant=_refuse_number, parse_float=_finite)
"""Made once: a queue decodes thousands of records at a time."""


# --- strictness ------------------------------------------------------------------------------------------------------


def _open(record_id: str, metadata: object, record: str) -> tuple[Metadata, dict[str, Any]]:
    if not isinstance(metadata, dict):
        raise RecordUnreadable(record_id, f"its metadata is not an object: {str(metadata)[:160]}")
    if metadata.get("record") != record:
        raise RecordUnreadable(record_id, f"it is a {str(metadata.get('record'))[:40]!r}, not a {record!r}")
    text = metadata.get("body")
    if not isinstance(text, str):
        raise RecordUnreadable(record_id, "its body is not a text")
    try:
        body = _load(text)
    except (ValueError, RecursionError) as exc:
        raise RecordUnreadable(record_id, f"its body is not JSON: {str(exc)[:120]}") from exc
    if not isinstance(body, dict):
        raise RecordUnreadable(record_id, "its body is not a JSON object")
    return metadata, body


def _metadata_number(record_id: str, meta: Metadata, name: str) -> int:
    """A number in metadata: an integer, or the same as a double (MongoDB keeps doubles). Missing reads as 0."""
    value = meta.get(name, 0)
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 <= value <= MAX_INTEGER  # nor is NaN
        or int(value) != value
    ):
        raise RecordUnreadable(record_id, f"metadata {name} is {str(value)[:40]!r}, not a whole number")
    return int(value)


class _Fields:
    """Typed reads of one body. Missing and null read as empty, as in Recall; any other type is refused."""

    def __init__(self, record_id: str, body: Mapping[str, Any]) -> None:
        self._id = record_id
        self._body = body

    def text(self, name: str) -> str:
        value = self._body.get(name, "")
        if isinstance(value, str):
            return value
        if value is None:
            return ""
        raise RecordUnreadable(self._id, f"{name} is {type(value).__name__}, not a text")

    def texts(self, name: str) -> tuple[str, ...]:
        value = self._body.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise RecordUnreadable(self._id, f"{name} is not a list of texts")
        return tuple(value)

    def integer(self, name: str, *, least: int) -> int:
        """Missing and null read as 0, which is refused too where Recall counts from 1."""
        value = self._body.get(name)
        if value is None:
            value = 0
        if isinstance(value, bool) or not isinstance(value, int) or abs(value) > MAX_INTEGER:
            raise RecordUnreadable(self._id, f"{name} is {str(value)[:40]!r}, not an integer")
        if value < least:
            raise RecordUnreadable(self._id, f"{name} is {value}; Recall counts from {least}")
        return value

    def time(self, name: str) -> Instant:
        """Missing or null is Recall's year 1, which is not the same as 1970."""
        found = self.find_time(name)
        return YEAR_ONE if found is None else found

    def find_time(self, name: str) -> Instant | None:
        value = self._body.get(name)
        if value is None:
            return None
        try:
            return parse_rfc3339(value)
        except (TypeError, ValueError) as exc:
            raise RecordUnreadable(self._id, f"{name}: {exc}") from exc

    def member(self, name: str, members: Mapping[str, _Member]) -> _Member:
        try:
            return members[self._body[name]]
        except (KeyError, TypeError) as exc:
            said = str(self._body.get(name))[:40]
            raise RecordUnreadable(self._id, f"{name} is {said!r}, which is none that we know") from exc

    def agree(self, name: str, metadata_value: object, other: object) -> Any:
        if metadata_value != other:
            raise RecordUnreadable(self._id, f"metadata says {name} {str(metadata_value)[:60]!r}, not {str(other)[:60]!r}")
        return metadata_value
