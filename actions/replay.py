"""One agent's whole trajectory as lines of a file (docs/replay.md): records, entries and sightings in, ordered JSON Lines out. Pure.

Who reads them, page by page, is the caller's business: everything here takes one record at a time and holds none, so that a file of any
length is written in flat memory. Every text of others is redacted on the way; what `rules` hide of a tool's arguments is hidden here too.
"""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from actions.arguments import Arguments, dump_json, parse_arguments
from actions.long_arguments import redacted_arguments
from actions.records import Action, Entry, Turn, Unreadable, WorkingState
from actions.redaction import redact_arguments, redact_text, redact_value
from actions.rules import SETTLED_STATUSES
from actions.times import Instant, format_rfc3339
from actions.tool_rules import NO_RULE, ToolRule

FORMAT = "settle-replay/1"
"""What a reader may rely on: fields are added within a number, none is taken away or changes its meaning."""

RANK = {"holder": 0, "call": 1, "state": 2, "verdict": 3, "end": 4, "turn": 5, "decision": 6, "entry": 7, "run": 8}
"""Of lines of one moment: which is told first. A settle has one moment for its end, its turn and its entry."""

_OF_A_RESUME = frozenset(
    {
        "interrupted; pure, not run again",
        "interrupted; no resolver to check whether it happened",
        "could not tell whether it happened",
    }
)
"""What a resume writes where it asked nobody, or was told nothing (recall-records 7)."""
_ASCII = re.compile(r"[^\x20-\x7e]")
_MILLISECOND = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One thing that happened. `number` is among its kind; `at` as its record says, None where that cannot be read."""

    kind: str
    number: int
    at: Instant | None
    says: Mapping[str, Any]
    end: Line | None = None  # of a call: its end, told at its own time


@dataclass(slots=True, kw_only=True)
class Known:
    """What our history says of calls and turns, gathered before the first line: numbers only, so that it stays small."""

    settled: dict[int, tuple[int, str, str]] = field(default_factory=dict)  # by action: entry, the kind of its actor, outcome
    turns: dict[int, int] = field(default_factory=dict)  # by turn: the entry that wrote it
    decision_ids: set[str] = field(default_factory=set)

    def note(self, entry: Entry) -> None:
        """Take one entry in; the newest about an action wins, in whatever order they come."""
        if entry.decision_id:
            self.decision_ids.add(entry.decision_id)
        turn = entry.detail.get("turn")
        if type(turn) is int and entry.kind in ("settled", "corrected"):
            self.turns[turn] = entry.number
        if entry.kind == "settled" and entry.seq is not None and self.settled.get(entry.seq, (0,))[0] < entry.number:
            self.settled[entry.seq] = (entry.number, entry.actor.partition(" ")[0], entry.outcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One holder of the agent as somebody who watched saw it; times of the store's clock."""

    holder: str
    lowest_epoch: int
    highest_epoch: int
    first_seen_at: Instant
    last_seen_at: Instant
    state: str  # live, expired or released, when it was last looked at
    silent_at: Instant | None


# --- one record, one line ------------------------------------------------------------------------------------------------


def call_line(
    action: Action | Unreadable, *, args: str, result: str, is_args_missing: bool, rule: ToolRule, known: Known
) -> Line:
    """A call with how it ended. `args` and `result` whole and unredacted; where their output is gone, as stored and `is_args_missing`."""
    if isinstance(action, Unreadable):
        return _unreadable("call", action)
    arguments = redacted_arguments(args, rule.redacted)
    tool = redact_text(action.tool)
    how = _how_known(action, known)
    took = _took_ms(action)
    is_own = how["known_by"] == "agent"
    says = {
        "seq": action.seq,
        "tool": tool,
        "key": action.key,
        "class": action.action_class.value,
        "epoch": action.epoch,
        **_as_value("arguments", arguments),
        "arguments_missing": is_args_missing,
        "status": action.status.value,
        "outcome": action.status.value if action.status in SETTLED_STATUSES else None,
        "result": _said(result, rule),
        "error": redact_text(action.error),
        **how,
        "ended_at": _time(action.ended_at),
        "latency_ms": took if is_own else None,
        "settled_after_ms": None if is_own else took,
        "cost": None,
    }
    ended = action.ended_at
    end = None
    if ended is not None:
        told = {"seq": action.seq, "tool": tool, "outcome": says["outcome"], **how}
        end = Line(kind="end", number=action.seq, at=ended, says=told)
    return Line(kind="call", number=action.seq, at=action.started_at, says=says, end=end)


def turn_line(turn: Turn | Unreadable, *, content: str, rule: ToolRule, known: Known) -> Line:
    """A turn, whole. `content` unredacted; a tool's own result is read by its tool's rule."""
    if isinstance(turn, Unreadable):
        return _unreadable("turn", turn)
    says = {
        "seq": turn.seq,
        "role": turn.role,
        "name": redact_text(turn.name),
        "content": _said(content, rule),
        "brief": _said(turn.brief, rule),
        "message_id": redact_text(turn.message_id),
        "entry": known.turns.get(turn.seq),
    }
    return Line(kind="turn", number=turn.seq, at=turn.at, says=says)


def state_line(state: WorkingState | Unreadable, *, is_newest: bool = False) -> Line:
    """A version of the working state, or the head."""
    if isinstance(state, Unreadable):
        return _unreadable("state", state)
    says = {
        "version": state.version,
        "is_newest": is_newest,
        "goal": _said(state.goal),
        "plan": [_said(one) for one in state.plan],
        "progress": _said(state.progress),
        "focus": _said(state.focus),
        "decisions": [_said(one) for one in state.decisions],
        "open_questions": [_said(one) for one in state.open_questions],
        "notes": _said(state.notes),
        "step": state.step,
        "last_milestone": _said(state.last_milestone),
        "turn_seq": state.turn_seq,
        "action_seq": state.action_seq,
    }
    return Line(kind="state", number=state.version, at=state.updated_at, says=says)


def entry_line(entry: Entry, rule: ToolRule) -> Line:
    """A step of a decision, as our history has it; redacted when it was stored, and by today's rule once more."""
    says = {
        "number": entry.number,
        "entry_kind": entry.kind,
        "actor": entry.actor,
        "seq": entry.seq,
        "tool": entry.tool,
        "outcome": entry.outcome,
        "reason": entry.reason,
        "decision_id": entry.decision_id,
        "evidence_id": entry.evidence_id,
        "turn": entry.detail.get("turn"),
        "corrects": entry.detail.get("corrects"),
        "detail": _hidden(dict(entry.detail), rule),
        "hash": entry.hash,
    }
    return Line(kind="entry", number=entry.number, at=entry.at, says=says)


def run_line(number: int, at: Instant, event: str, *, by: str, detail: Mapping[str, Any]) -> Line:
    """What happened to the run that this agent is: a step with its checkpoint, a resume with its reason, what was asked and answered."""
    says = {"number": number, "event": event, "by": redact_text(by), "detail": redact_value(dict(detail))}
    return Line(kind="run", number=number, at=at, says=says)


def holder_lines(seen: Iterable[Seen], evicted: Sequence[Instant] = ()) -> Iterator[Line]:
    """Who was seen to take the agent, by epoch, and what is known of why the one before had it no more. `evicted`: when a lease was taken away."""
    before: Seen | None = None
    for one in seen:
        why = _why(before, one, evicted)
        began = one.first_seen_at if one.silent_at is None else min(one.first_seen_at, one.silent_at)
        says = {
            "holder": redact_text(one.holder),
            "lowest_epoch": one.lowest_epoch,
            "highest_epoch": one.highest_epoch,
            "first_seen_at": _time(one.first_seen_at),
            "last_seen_at": _time(one.last_seen_at),
            "state": one.state,
            "silent_at": _time(one.silent_at),
            "takes_over_from": redact_text(before.holder) if before else None,
            "why": why,
            "reason": WHY[why],
        }
        yield Line(kind="holder", number=one.lowest_epoch, at=began, says=says)
        before = one


WHY: Mapping[str, str] = {
    "first": "nobody was seen to have it before",
    "released": "the holder before gave the lease back",
    "expired": "the holder before stopped renewing, and its lease ran out",
    "evicted": "an admin took the lease away from the holder before",
    "unknown": "nobody saw how the holder before lost it",
}


def _why(before: Seen | None, now: Seen, evicted: Sequence[Instant]) -> str:
    if before is None:
        return "first"
    if any(before.first_seen_at <= at <= now.first_seen_at for at in evicted):
        return "evicted"
    return before.state if before.state in ("released", "expired") else "unknown"


# --- lines, in order -----------------------------------------------------------------------------------------------------


def in_order(streams: Iterable[Iterable[Line]]) -> Iterator[tuple[Instant, Line]]:
    """All lines by time, and of one moment by RANK, then by number. Each stream comes in the order of its numbers and keeps it.

    A clock that ran back moves a line to the moment of the one before it of its kind: that moment comes with the line. Ends are told at
    their own time; only those that are still ahead are held, a few words each.
    """
    ahead: list[tuple[Instant, int, int, int, Line]] = []
    count = 0
    for at, line in heapq.merge(*map(_rising, streams), key=lambda timed: (timed[0], RANK[timed[1].kind], timed[1].number)):
        place = (at, RANK[line.kind], line.number, 0)
        while ahead and ahead[0][:4] < place:
            ended, *_, end = heapq.heappop(ahead)
            yield ended, end
        yield at, line
        if line.end is not None:
            count += 1
            ended = at if line.end.at is None else max(at, line.end.at)
            heapq.heappush(ahead, (ended, RANK["end"], line.number, count, line.end))
    while ahead:
        ended, *_, end = heapq.heappop(ahead)
        yield ended, end


def _rising(lines: Iterable[Line]) -> Iterator[tuple[Instant, Line]]:
    at = -(2**63)
    for line in lines:
        at = at if line.at is None else max(at, line.at)
        yield at, line


def write_replay(header: Mapping[str, Any], lines: Iterable[tuple[Instant, Line]]) -> Iterator[str]:
    """The file, line by line: `header`, then everything in order, then a last line with how many there were. A file without it is not whole."""
    yield as_text({"kind": "replay", "format": FORMAT, **header})
    counts: dict[str, int] = dict.fromkeys(RANK, 0)
    number = 0
    for number, (placed, line) in enumerate(lines, start=1):
        counts[line.kind] += 1
        head: dict[str, Any] = {"n": number, "kind": line.kind, "at": _time(line.at)}
        if line.at is not None and line.at != placed:
            head["placed_at"] = _time(placed)
        yield as_text({**head, **line.says})
    yield as_text({"kind": "replay_end", "lines": number, "counts": {kind: count for kind, count in counts.items() if count}})


def as_text(says: Mapping[str, Any]) -> str:
    """One line of JSON with its line feed. ASCII: whatever an agent wrote, no control character and nothing unseen stands in the file."""
    return _ASCII.sub(_escaped, dump_json(dict(says))) + "\n"


def _escaped(found: re.Match[str]) -> str:
    return json.dumps(found[0])[1:-1] if ord(found[0]) > 0x7F else f"\\u{ord(found[0]):04x}"


# --- pieces --------------------------------------------------------------------------------------------------------------


def _how_known(action: Action, known: Known) -> dict[str, Any]:
    """Who says how it ended: an entry of ours where one says the same, else what the record itself shows."""
    entry, by, outcome = known.settled.get(action.seq, (None, "", ""))
    if action.is_open:
        known_by = "resume" if action.resolution in _OF_A_RESUME else None
        entry = None
    elif entry is not None and outcome == action.status.value:
        known_by = by
    else:
        entry = None
        known_by = "resume" if action.resolution in _OF_A_RESUME else "recorded" if action.resolution else "agent"
    return {"resolution": redact_text(action.resolution), "known_by": known_by, "entry": entry}


def _took_ms(action: Action) -> int | None:
    """Milliseconds from its beginning to its end; two clocks may have written them, so never less than none."""
    return None if action.ended_at is None else max(0, action.ended_at - action.started_at) // _MILLISECOND


def _as_value(name: str, arguments: Arguments) -> dict[str, Any]:
    """As a JSON value where it is one without a doubt; else null, with the text and what is wrong with it."""
    if arguments.value is not None and not arguments.problems:
        return {name: arguments.value, f"{name}_text": None}
    return {name: None, f"{name}_text": arguments.text, f"{name}_problems": list(arguments.problems)}


def _said(text: str, rule: ToolRule = NO_RULE) -> str:
    """A text of others, JSON or prose, without secrets and without what its tool's rule hides."""
    if text[:1] in ("{", "[") or rule.redacted:
        return redact_arguments(parse_arguments(text), rule.redacted).text
    return redact_text(text)


def _hidden(detail: dict[str, Any], rule: ToolRule) -> dict[str, Any]:
    if not rule.redacted:
        return detail
    found: dict[str, Any] = redact_arguments(Arguments(text="", value=detail), rule.redacted).value
    return found


def _unreadable(kind: str, record: Unreadable) -> Line:
    says = {"seq": record.seq, "record_id": redact_text(record.record_id), "unreadable": redact_text(record.problem)}
    return Line(kind=kind, number=record.seq or 0, at=None, says=says)


def _time(at: Instant | None) -> str | None:
    return None if at is None else format_rfc3339(at)
