"""How the scripted model reads its own history: what is done, failed, given up, in doubt, or still to do. Pure.

It reads the text a model would read (the briefing and the tool results since), never the records behind it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from demo.scripts import Step

# A line of the briefing's turns: "[tool send_email #4] sent, message-id ..."
TURN = re.compile(r"^\[tool (\S+) #\d+\] (.*)$", re.MULTILINE)
# A line of the briefing's unfinished actions: '1. send_email({"to": ...}) [external, key 21...] started ...'
UNFINISHED = re.compile(r"^\d+\. (\S+?)\((.*)\) \[\w+, key (\w+)\] started ", re.MULTILINE)
# The beginning of a turn that settled a call: "(settled after a crash: failed; operator ana: not in the ledger) ..."
SETTLED = re.compile(r"^\(settled after a crash: (\w+); (.*?)\) ")
CORRECTION = re.compile(r"^\(?correction\b")


class Sight(StrEnum):
    """What the model sees of one step."""

    DONE = "done"
    OPEN = "open"  # it may or may not have happened
    FAILED = "failed"  # settled: it did not happen
    ABANDONED = "abandoned"  # somebody gave it up
    NEVER = "never"  # no trace of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One tool result, as the model reads it."""

    tool: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """One call the briefing lists as unfinished."""

    tool: str
    args: str  # JSON with sorted keys, cut off with "..." when it is long
    key: str

    def may_be(self, step: Step) -> bool:
        """Whether this is, as far as one can read, the call of that step."""
        return self.tool == step.tool and json.dumps(dict(step.args), sort_keys=True).startswith(self.args.removesuffix("..."))


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A step and what the model knows about it."""

    step: Step
    sight: Sight
    why: str  # in words, for the reader of the demo; empty for NEVER

    @property
    def to_call(self) -> bool:
        return self.sight in (Sight.NEVER, Sight.FAILED)


def results_in(briefing: str) -> list[Result]:
    """The tool results in a briefing, oldest first."""
    return [Result(tool=tool, text=text) for tool, text in TURN.findall(briefing)]


def unfinished_in(briefing: str) -> list[Unfinished]:
    """The calls a briefing lists as unfinished."""
    return [Unfinished(tool=tool, args=args, key=key) for tool, args, key in UNFINISHED.findall(briefing)]


def look(steps: Sequence[Step], results: Iterable[Result], unfinished: Sequence[Unfinished]) -> list[Seen]:
    """What is known of each step, in order.

    The n-th result of a tool belongs to the n-th step with it; a failed one is followed by that of the next attempt.
    An unfinished call that fits no step stands in the way of the first one with its tool: better once too few.
    """
    waiting: dict[str, list[Result]] = {}
    for result in results:
        if not CORRECTION.match(result.text):
            waiting.setdefault(result.tool, []).append(result)
    strays = [call for call in unfinished if not any(call.may_be(step) for step in steps)]
    seen = []
    for step in steps:
        known = _doubt(step, unfinished) or _outcome(step, waiting.get(step.tool, []))
        stray = next((call for call in strays if call.tool == step.tool), None) if known.to_call else None
        if stray:
            strays.remove(stray)
            known = _open(step, stray)
        seen.append(known)
    return seen


def _open(step: Step, call: Unfinished) -> Seen:
    return Seen(step=step, sight=Sight.OPEN, why=f"it may have happened; nobody has said yet (key {call.key})")


def _doubt(step: Step, unfinished: Sequence[Unfinished]) -> Seen | None:
    call = next((call for call in unfinished if call.may_be(step)), None)
    return _open(step, call) if call else None


def _outcome(step: Step, results: list[Result]) -> Seen:
    """What the results say, taking those that are used up off the list."""
    seen = Seen(step=step, sight=Sight.NEVER, why="")
    while results and seen.to_call:
        sight, why = _read(results.pop(0).text)
        seen = Seen(step=step, sight=sight, why=why)
    return seen


def _read(text: str) -> tuple[Sight, str]:
    settled = SETTLED.match(text)
    if not settled:
        return Sight.DONE, f"done before: {text}"
    status, resolution = settled.groups()
    sight = Sight(status) if status in ("failed", "abandoned") else Sight.DONE
    return sight, f"settled as {status}: {resolution}"


def next_step(seen: Sequence[Seen]) -> Step | None:
    """The call to make now. None: everything is done, or what is left waits for a call in doubt.

    A step that needs one that is not done is left out; behind a call in doubt nothing goes on.
    """
    done = {known.step.tool for known in seen if known.sight is Sight.DONE}
    for known in seen:
        if known.sight is Sight.OPEN:
            return None
        if known.to_call and (not known.step.needs or known.step.needs in done):
            return known.step
    return None


def last_words(seen: Sequence[Seen], closing: str) -> str:
    """What the model answers when it makes no further call."""
    doubts = [known for known in seen if known.sight is Sight.OPEN]
    if doubts:
        named = "; ".join(f"{known.step.tool} ({known.why})" for known in doubts)
        return f"I stop here and do not repeat what is in doubt: {named}."
    given_up = [known.step.tool for known in seen if known.sight is Sight.ABANDONED]
    left_out = [known.step.tool for known in seen if known.to_call]
    if not given_up:
        return closing
    words = f"Given up, so I did not do it again: {', '.join(given_up)}."
    return f"{words} Left out, because it needs it: {', '.join(left_out)}." if left_out else words
