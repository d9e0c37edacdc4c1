"""An action's arguments as a value: JSON by habit, not by promise. Reads anything, keeps every digit, says what it could not read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

MAX_DEPTH = 64
"""Deeper nesting than this is no argument of a tool but an attack on whoever renders it."""
MAX_KEYS = 2_000
MAX_DIGITS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """`text` as the agent gave it; `value` its JSON value (floats as Decimal), None where it is not JSON; `problems` for the screen."""

    text: str
    value: Any = None
    problems: tuple[str, ...] = ()


def parse_arguments(text: str) -> Arguments:
    """Read arguments; never raises. What is not JSON, too deep, too wide or ambiguous is said in `problems`."""
    problems: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) != len(items):
            names = [name for name, _ in items]
            twice = next(name for index, name in enumerate(names) if name in names[:index])
            problems.append(f"the argument {twice[:60]!r} stands twice; the last one is shown, the tool may have used the other")
        return found

    try:
        value = json.loads(text, parse_float=_number, parse_int=_number, parse_constant=str, object_pairs_hook=pairs)
        problem = _shape_problem(value)
    except RecursionError:
        return Arguments(text=text, problems=("the arguments are nested too deeply to read; shown as text",))
    except ValueError:
        return Arguments(text=text, problems=("the arguments are not JSON; shown as text",) if text.strip() else ())
    if problem:
        return Arguments(text=text, problems=(problem,))
    return Arguments(text=text, value=value, problems=tuple(problems[:3]))


def dump_json(value: Any) -> str:
    """JSON in Recall's habit (`", "` and `": "`), numbers with every digit they came with."""
    if isinstance(value, dict):
        return (
            "{" + ", ".join(f"{json.dumps(str(key), ensure_ascii=False)}: {dump_json(item)}" for key, item in value.items()) + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(dump_json(item) for item in value) + "]"
    return str(value) if isinstance(value, Decimal) else json.dumps(value, ensure_ascii=False)


def _number(text: str) -> Any:
    """An exact number; a text where it is longer than any amount could be."""
    if len(text) > MAX_DIGITS:
        return text
    return int(text) if text.lstrip("-").isdigit() else Decimal(text)


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
