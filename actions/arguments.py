"""An action's arguments as a value: JSON by habit, not by promise. Reads anything, keeps every digit, says what it could not read."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

MAX_DEPTH = 64
"""Deeper nesting than this is no argument of a tool but an attack on whoever renders it."""
MAX_KEYS = 2_000
MAX_DIGITS = 100
MAX_PROBLEMS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """`text` as the agent gave it; `value` its JSON value (floats as Decimal), None where it is not JSON; `problems` for the screen."""

    text: str
    value: Any = None
    problems: tuple[str, ...] = ()


def parse_arguments(text: str) -> Arguments:
    """Read arguments; never raises. What is not JSON, too deep, too wide or ambiguous is said in `problems`."""
    reader = _Reader()
    try:
        value = reader.read(text)
        problem = _shape_problem(value)
    except RecursionError:
        return Arguments(text=text, problems=("the arguments are nested too deeply to read; shown as text",))
    except ValueError:
        return Arguments(text=text, problems=("the arguments are not JSON; shown as text",) if text.strip() else ())
    if problem:
        return Arguments(text=text, problems=(problem,))
    return Arguments(text=text, value=value, problems=tuple(reader.problems))


def canonical_arguments(text: str) -> str:
    """One text for arguments that say the same: JSON with its keys in order and no spaces to choose; anything else as it stands, trimmed."""
    arguments = parse_arguments(text)
    return text.strip() if arguments.value is None or arguments.problems else dump_json(_in_order(arguments.value))


def _in_order(value: Any) -> Any:
    """Never deeper than MAX_DEPTH, which `parse_arguments` has seen to."""
    if isinstance(value, dict):
        return {key: _in_order(value[key]) for key in sorted(value)}
    return [_in_order(item) for item in value] if isinstance(value, list) else value


def dump_json(value: Any) -> str:
    """JSON in Recall's habit (`", "` and `": "`), numbers with every digit they came with. Without recursion, so of any depth."""
    written: list[str] = []
    rest: list[Any] = [value]
    while rest:
        item = rest.pop()
        if isinstance(item, _Written):
            written.append(item)
        elif isinstance(item, dict):
            rest.append(_Written("}"))
            for index, (key, child) in reversed(list(enumerate(item.items()))):
                name = json.dumps(str(key), ensure_ascii=False)
                rest += [child, _Written(f"{', ' if index else ''}{name}: ")]
            written.append("{")
        elif isinstance(item, list):
            rest.append(_Written("]"))
            for index, child in reversed(list(enumerate(item))):
                rest += [child, _Written(", ")] if index else [child]
            written.append("[")
        else:
            written.append(_dump_scalar(item))
    return "".join(written)


class _Written(str):
    """A piece of JSON that is finished, among values that are not."""

    __slots__ = ()


def _dump_scalar(value: Any) -> str:
    if isinstance(value, Decimal):
        return str(value)
    # Python refuses to print integers of thousands of digits; a Decimal prints them.
    if isinstance(value, int) and not isinstance(value, bool):
        return str(Decimal(value))
    return json.dumps(value, ensure_ascii=False)


class _Reader:
    """Reads one text and notes what a person must be told about it."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def read(self, text: str) -> Any:
        return json.loads(
            text, parse_float=self._number, parse_int=self._number, parse_constant=self._constant, object_pairs_hook=self._object
        )

    def _note(self, problem: str) -> None:
        if len(self.problems) < MAX_PROBLEMS and problem not in self.problems:
            self.problems.append(problem)

    def _number(self, text: str) -> Any:
        """An exact number; its text where it is longer or its exponent larger than any amount could be."""
        if len(text) <= MAX_DIGITS:
            # `-0` is no integer: it would lose its sign.
            if text != "-0" and text.lstrip("-").isdigit():
                return int(text)
            try:
                return Decimal(text)
            except ArithmeticError:  # an exponent of twenty digits; no ValueError
                pass
        self._note(f"the number {_cut(text)} is longer or larger than can be read exactly; shown as text")
        return text

    def _constant(self, text: str) -> str:
        self._note(f"{text} is no number of JSON; shown as text")
        return text

    def _object(self, items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) != len(items):
            twice = next(name for name, count in Counter(name for name, _ in items).items() if count > 1)
            self._note(f"the argument {twice[:60]!r} stands twice; the last one is shown, the tool may have used the other")
        return found


def _cut(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:39]}…"


def _shape_problem(value: Any) -> str:
    """Walk without recursion: depth and number of keys decide whether the value may be shown as fields."""
    stack = [(value, 1)]
    keys = 0
    while stack:
        item, depth = stack.pop()
        if depth > MAX_DEPTH:
            return f"the arguments are nested more than {MAX_DEPTH} deep; shown as text"
        children = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
        keys += len(children)
        if keys > MAX_KEYS:
            return f"the arguments hold more than {MAX_KEYS:,} values; shown as text"
        stack.extend((child, depth + 1) for child in children)
    return ""
