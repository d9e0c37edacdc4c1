"""Records -> the text that a resumed agent's model reads first, as Recall 0.23 words it. Pure.

Two things depend on the agent's own process and are not in here: its token budget (Recall's usual one unless given), and memories, which
Recall searches for when the agent starts; where it finds some, they take their share of the budget from turns and outputs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from actions.limits import SPACES
from actions.records import Action, ActionClass, ActionStatus, Output, Pointer, Turn, WorkingState
from actions.times import SECOND, Instant, format_rfc3339

TOKEN_BUDGET = 8_000
MAX_TURNS = 200
MAX_OUTPUTS = 200
MAX_ARGS_BYTES = 300
_TOKEN_BYTES = 4
_OUTPUT_TOKENS = 8
"""What a line of an output costs beside its words."""

# What Go calls a space; Python's own split would also part at the four separators of ASCII.
_SPACE = re.compile(r"[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")
_FIELDS = ("repo", "branch", "sha", "uri", "image", "lockfile_hash", "setup", "kind", "id", "url", "command", "port")

_FIRST_START = "You are agent {}, starting for the first time. Nothing was recorded by an earlier run.\n"
_RESUMING = (
    "You are agent {}, resuming after your previous process stopped. Continue from your notes and last turns below; "
    "check only what you have reason to doubt.\n"
)
_UNFINISHED = "\n## Unfinished actions (settle these before anything else)\n"
_ADVICE = {
    ActionClass.PURE: "Interrupted. It changed nothing; run it again if you still need the answer.",
    ActionClass.IDEMPOTENT: "Interrupted. Run it again with the same key, then end the action with the result.",
}
_STARTED = "Interrupted. It may or may not have happened. Check before repeating it; never repeat it blindly."
_UNKNOWN = "Not known whether this happened. Check before repeating it; never repeat it blindly."
_UNCONFIRMED = (
    "While any of these is unconfirmed, the task is not finished: do not report it as done, and say in\n"
    "your final answer which actions need checking, with their keys.\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Briefing:
    """What an agent reads first, and how much of what it has did not fit."""

    text: str
    tokens: int  # of the unredacted text
    turns_left_out: int  # of the newest MAX_TURNS
    outputs_left_out: int


def as_resumed(actions: Iterable[Action]) -> tuple[Action, ...]:
    """The open actions as the next resume tells them: pure ones are given up and gone. In the order of their numbers.

    The resume marks external ones `unknown`, but Recall tells what it read before, unless it gave up a pure one and read again.
    """
    opened = sorted((action for action in actions if action.is_open), key=lambda action: action.seq)
    left = [action for action in opened if action.action_class is not ActionClass.PURE]
    if len(left) == len(opened):
        return tuple(left)
    return tuple(
        replace(action, status=ActionStatus.UNKNOWN) if action.action_class is ActionClass.EXTERNAL else action for action in left
    )


def write_briefing(
    agent: str,
    *,
    working_state: WorkingState | None,
    actions: Sequence[Action],
    pointers: Sequence[Pointer],
    outputs: Iterable[Output],
    turns: Sequence[Turn],
    newest_turn: int = 0,
    budget: int = TOKEN_BUDGET,
    redact: Callable[[str], str] = str,
    args_of: Callable[[Action], str] | None = None,
) -> Briefing:
    """The briefing over these records: open `actions` as they stand (see `as_resumed`), pointers by name, turns newest first.

    `redact`, and `args_of` for the arguments of an action, change what is written, never what is chosen: what fits is reckoned with the
    words as they are stored.
    """
    has_begun = working_state is not None or bool(turns) or newest_turn > 0

    def fixed(show: Callable[[str], str], args_of: Callable[[Action], str] | None = None) -> str:
        parts = [(_RESUMING if has_begun else _FIRST_START).format(agent), *_actions(actions, show, args_of)]
        return "".join([*parts, *_state(working_state, show), *_pointers(pointers, show)])

    recent = sorted(turns, key=lambda turn: turn.seq)[-MAX_TURNS:]
    newest_outputs = sorted(outputs, key=lambda output: output.at, reverse=True)
    left = max(budget - _tokens(fixed(str)), 0)
    kept_turns, kept_outputs = _choose(recent, newest_outputs, left)

    def whole(show: Callable[[str], str], args_of: Callable[[Action], str] | None = None) -> str:
        parts = [fixed(show, args_of)]
        if kept_outputs:
            parts.append("\n## Stored tool outputs (fetch by ref when you need the detail)\n")
            parts += [_output(output, show) for output in kept_outputs]
        if kept_turns:
            parts.append("\n## Your most recent turns, verbatim\n")
            parts += [_turn(turn, show) for turn in kept_turns]
        return "".join(parts)

    return Briefing(
        text=whole(redact, args_of),
        tokens=_tokens(whole(str)),
        turns_left_out=len(recent) - len(kept_turns),
        outputs_left_out=len(newest_outputs) - len(kept_outputs),
    )


def _choose(turns: Sequence[Turn], outputs: Sequence[Output], left: int) -> tuple[Sequence[Turn], Sequence[Output]]:
    """Two fifths of what is left for turns, two for memories, of which none are known here, one for outputs; what one spares, others use."""
    for_turns = for_memories = left * 4 // 10
    kept, turn_cost = _newest_within(turns, for_turns)
    spared = for_memories + for_turns - turn_cost
    kept_outputs, output_cost = _first_within(outputs, left - for_turns - for_memories + spared)
    spare = left - turn_cost - output_cost
    if spare > 0 and len(kept) < len(turns):
        kept, _ = _newest_within(turns, turn_cost + spare)
    return kept, kept_outputs


def _newest_within(turns: Sequence[Turn], budget: int) -> tuple[Sequence[Turn], int]:
    cost, start = 0, len(turns)
    for index in range(len(turns) - 1, -1, -1):
        more = _tokens(_turn(turns[index], str))
        if cost + more > budget:
            break
        cost, start = cost + more, index
    return turns[start:], cost


def _first_within(outputs: Sequence[Output], budget: int) -> tuple[Sequence[Output], int]:
    cost = 0
    for index, output in enumerate(outputs):
        more = _tokens(output.ref + output.tool + _one_line(output.summary)) + _OUTPUT_TOKENS
        if cost + more > budget:
            return outputs[:index], cost
        cost += more
    return outputs, cost


def _actions(
    actions: Sequence[Action], show: Callable[[str], str], args_of: Callable[[Action], str] | None = None
) -> Iterable[str]:
    if not actions:
        return
    yield _UNFINISHED
    for number, action in enumerate(actions, start=1):
        args = _cut(_one_line(show(args_of(action) if args_of else action.args)))
        key = f"{action.action_class}, key {action.key}"
        yield f"{number}. {show(action.tool)}({args}) [{key}] started {_second(action.started_at)}\n"
        yield f"   {_ADVICE.get(action.action_class) or (_UNKNOWN if action.status is ActionStatus.UNKNOWN else _STARTED)}\n"
    if any(action.action_class is ActionClass.EXTERNAL for action in actions):
        yield _UNCONFIRMED


def _state(state: WorkingState | None, show: Callable[[str], str]) -> Iterable[str]:
    if state is None:
        return
    yield f"\n## Working state (version {state.version}, step {state.step}, written {_second(state.updated_at)})\n"
    yield _line("Goal", state.goal, show)
    yield _list("Plan", [f"{n}. {show(step)}" for n, step in enumerate(state.plan, start=1)])
    yield _line("Progress", state.progress, show)
    yield _line("Last milestone", state.last_milestone, show)
    yield _line("Current focus", state.focus, show)
    yield _list("Decisions", [f"- {show(line)}" for line in state.decisions])
    yield _list("Open questions", [f"- {show(line)}" for line in state.open_questions])
    yield _line("Notes", state.notes, show)


def _line(label: str, text: str, show: Callable[[str], str]) -> str:
    said = text.strip(SPACES)
    return f"{label}: {show(said)}\n" if said else ""


def _list(label: str, lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in [f"{label}:", *lines]) if lines else ""


def _pointers(pointers: Sequence[Pointer], show: Callable[[str], str]) -> Iterable[str]:
    if not pointers:
        return
    yield "\n## Where your work lives\n"
    for pointer in pointers:
        known = [name for name in _FIELDS if pointer.fields.get(name)]
        named = [f"{name}={pointer.fields[name]}" for name in known]
        others = sorted(f"{name}={value}" for name, value in pointer.fields.items() if name not in _FIELDS)
        note = f" ({show(pointer.note)})" if pointer.note else ""
        yield f"- {show(pointer.name)} ({show(pointer.type)}): {' '.join(map(show, [*named, *others]))}{note}\n"


def _output(output: Output, show: Callable[[str], str]) -> str:
    return f"- {show(output.ref)} ({show(output.tool) or '-'}, ~{output.tokens} tokens): {_one_line(show(output.summary))}\n"


def _turn(turn: Turn, show: Callable[[str], str]) -> str:
    who = f"{show(turn.role)} {show(turn.name)}" if turn.name else show(turn.role)
    return f"[{who} #{turn.seq}] {show(turn.brief or turn.content)}\n"


def _one_line(text: str) -> str:
    return _SPACE.sub(" ", text).strip(" ")


def _cut(text: str) -> str:
    data = text.encode("utf-8", "surrogatepass")
    return text if len(data) <= MAX_ARGS_BYTES else data[:MAX_ARGS_BYTES].decode("utf-8", "ignore") + "..."


def _tokens(text: str) -> int:
    return (len(text.encode("utf-8", "surrogatepass")) + _TOKEN_BYTES - 1) // _TOKEN_BYTES


def _second(at: Instant) -> str:
    return format_rfc3339(at // SECOND * SECOND)
