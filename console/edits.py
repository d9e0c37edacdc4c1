"""What a person changed in the arguments of a call: read from what they typed, what was hidden put back, compared value by value. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from actions.arguments import dump_json, parse_arguments
from actions.errors import ActionsError
from actions.redaction import HIDDEN, redact_arguments

MAX_CHARS = 200_000
MAX_SHOWN = 200
"""Differences that are listed; what lies beyond is counted."""


class NotAnEdit(ActionsError, ValueError):
    """What was typed cannot be arguments; the message says why. Nothing was sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One value that differs. `before` None: it is new; `after` None: it is left out. Both are redacted, as JSON."""

    path: str
    before: str | None
    after: str | None
    types: str = ""  # `number → text`, where the kind of value changes as well


def can_be_edited(args: str) -> bool:
    """Whether arguments are an object that can be typed anew without losing anything of it."""
    found = parse_arguments(args)
    return isinstance(found.value, dict) and not found.problems and len(args) <= MAX_CHARS


def read_edit(typed: str, args: str, names: frozenset[str]) -> dict[str, Any]:
    """The arguments that somebody means who was shown `args` without its secrets and without `names`: hidden values stay where they are.

    Raises:
        NotAnEdit: no object, the same name twice, or something hidden that was moved or touched.
    """
    if len(typed) > MAX_CHARS:
        raise NotAnEdit(f"that is longer than {MAX_CHARS:,} characters")
    read, whole = parse_arguments(typed), parse_arguments(args)
    if read.problems:
        raise NotAnEdit(read.problems[0].replace("; shown as text", "") + _where(typed))
    if not isinstance(read.value, dict):
        raise NotAnEdit("arguments are an object in braces, with a name for each value")
    merged = _merged(read.value, redact_arguments(whole, names).value, whole.value)
    known = {text for text in _texts(whole.value) if HIDDEN in text}
    if any(HIDDEN in text and text not in known for text in _texts(merged)):
        raise NotAnEdit(f"{HIDDEN} stands for a hidden value: leave it as it is where it is, or write another value in its place")
    found: dict[str, Any] = json.loads(dump_json(merged))
    return found


def edits_between(before: str, after: str, names: frozenset[str]) -> tuple[Edit, ...]:
    """What differs, in the order of the arguments. Hidden values are compared and not shown."""
    old, new = parse_arguments(before), parse_arguments(after)
    return tuple(
        _edits("", _Side(old.value, redact_arguments(old, names).value), _Side(new.value, redact_arguments(new, names).value))
    )


@dataclass(frozen=True, slots=True)
class _Side:
    """A value and what of it may be shown."""

    whole: Any
    shown: Any

    def children(self) -> dict[str, _Side]:
        """By name or place, under the names that may be shown."""
        if isinstance(self.whole, dict) and isinstance(self.shown, dict) and len(self.whole) == len(self.shown):
            pairs = zip(self.whole.values(), self.shown.items(), strict=True)
            return {name: _Side(whole, shown) for whole, (name, shown) in pairs}
        if isinstance(self.whole, list) and isinstance(self.shown, list) and len(self.whole) == len(self.shown):
            return {str(at): _Side(*pair) for at, pair in enumerate(zip(self.whole, self.shown, strict=True), start=1)}
        return {}


def _edits(path: str, old: _Side, new: _Side) -> Iterator[Edit]:
    if _is_same(old.whole, new.whole):
        return
    before, after = old.children(), new.children()
    if (
        type(old.whole) is type(new.whole)
        and isinstance(old.whole, dict | list)
        and (before or not old.whole)
        and (after or not new.whole)
    ):
        for name in dict.fromkeys([*before, *after]):
            inner = f"{path}.{name}" if path else name
            if name not in after:
                yield Edit(path=inner, before=dump_json(before[name].shown), after=None)
            elif name not in before:
                yield Edit(path=inner, before=None, after=dump_json(after[name].shown))
            else:
                yield from _edits(inner, before[name], after[name])
        return
    kinds = kind_of(old.whole), kind_of(new.whole)
    yield Edit(
        path=path or "everything",
        before=dump_json(old.shown),
        after=dump_json(new.shown),
        types=" → ".join(kinds) if kinds[0] != kinds[1] else "",
    )


def kind_of(value: Any) -> str:
    """What sort of JSON value it is, in a word."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "yes or no"
    return (
        "text"
        if isinstance(value, str)
        else "object"
        if isinstance(value, dict)
        else "list"
        if isinstance(value, list)
        else "number"
    )


def _merged(typed: Any, shown: Any, whole: Any) -> Any:
    """What was typed, with every value that still reads as it was shown put back as it is."""
    if _is_same(typed, shown):
        return whole
    if isinstance(typed, dict) and isinstance(shown, Mapping) and isinstance(whole, dict) and len(shown) == len(whole):
        names = dict(zip(shown, whole.items(), strict=True))
        merged = {}
        for name, value in typed.items():
            own, kept = names.get(name, (name, None))
            merged[own] = _merged(value, shown[name], kept) if name in names else value
        return merged
    if isinstance(typed, list) and isinstance(shown, list) and isinstance(whole, list) and len(typed) == len(shown) == len(whole):
        return [_merged(*three) for three in zip(typed, shown, whole, strict=True)]
    return typed


def _is_same(one: Any, other: Any) -> bool:
    """As JSON: for Python, true is 1."""
    return dump_json(one) == dump_json(other)


def _texts(value: Any) -> Iterator[str]:
    """Every text in a value, names included. Never deeper than what could be read."""
    rest = [value]
    while rest:
        item = rest.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            rest += [*item.keys(), *item.values()]
        elif isinstance(item, list):
            rest += item


def _where(typed: str) -> str:
    try:
        json.loads(typed)
    except json.JSONDecodeError as exc:
        return f": {exc.msg.lower()}, line {exc.lineno}, character {exc.colno}"
    except (ValueError, RecursionError):
        pass
    return ""
