"""What a tool of the MCP server takes: a JSON schema, and arguments read by it. Each refusal is one sentence; nothing was written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from actions.rules import MAX_VALUE_BYTES, is_utf8

Schema = dict[str, Any]

STRING: Schema = {"type": "string"}
STRINGS: Schema = {"items": STRING, "type": "array"}
STRING_MAP: Schema = {"additionalProperties": STRING, "type": "object"}
INTEGER: Schema = {"type": "integer"}
BOOLEAN: Schema = {"type": "boolean"}

MAX_INTEGER = 2**63 - 1
MAX_ITEMS = 10_000


class ToolRefused(Exception):
    """A call that was not carried out: its text is for the model that made it. Nothing was written, unless it says otherwise."""


def one_of(*words: str) -> Schema:
    return {"enum": list(words), "type": "string"}


def schema(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    """Of a tool that is about one agent."""
    return {"properties": {"agent_id": STRING, **properties}, "required": ["agent_id", *required], "type": "object"}


def read_arguments(tool: str, wanted: Schema, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """The arguments, checked; null counts as not given, as Recall reads it.

    Raises:
        ToolRefused: which one cannot be used and why.
    """
    found = {name: value for name, value in (given or {}).items() if value is not None}
    properties: dict[str, Schema] = wanted["properties"]
    for name in found:
        if name not in properties:
            raise ToolRefused(f"{tool} has no argument {_shown(name)}; it takes {', '.join(sorted(properties))}")
    for name in wanted["required"]:
        if name not in found:
            raise ToolRefused(f"{tool} needs the argument {name}")
    return {name: _read(name, properties[name], value) for name, value in found.items()}


def _read(name: str, wanted: Schema, value: Any) -> Any:
    if "enum" in wanted and value not in wanted["enum"]:
        words = ", ".join(f'"{word}"' for word in wanted["enum"])
        raise ToolRefused(f"{name} must be one of {words}, got {_shown(value)}")
    return _READERS[wanted["type"]](name, value)


def _string(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ToolRefused(f"{name} must be a string, got {_shown(value)}")
    if not is_utf8(value):
        raise ToolRefused(f"{name} holds half a surrogate pair, which no record can keep; send it escaped or without")
    size = len(value.encode())
    if size > MAX_VALUE_BYTES:
        raise ToolRefused(
            f"{name} is {size} bytes; the limit is {MAX_VALUE_BYTES}. Keep larger things elsewhere and set a pointer"
        )
    return value


def _integer(name: str, value: Any) -> int:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)  # JSON has no whole numbers of its own: some clients send 3.0
    if isinstance(value, bool) or not isinstance(value, int):
        raise ToolRefused(f"{name} must be a whole number, got {_shown(value)}")
    if not -MAX_INTEGER <= value <= MAX_INTEGER:
        raise ToolRefused(f"{name} is too large a number")
    return value


def _boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ToolRefused(f"{name} must be true or false, got {_shown(value)}")
    return value


def _strings(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > MAX_ITEMS:
        raise ToolRefused(f"{name} must be a list of at most {MAX_ITEMS} strings, got {_shown(value)}")
    return tuple(_string(f"{name}[{number}]", one) for number, one in enumerate(value))


def _string_map(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or len(value) > MAX_ITEMS:
        raise ToolRefused(f"{name} must be an object of strings, got {_shown(value)}")
    return {_string(f"a name in {name}", key): _string(f"{name}.{_shown(key)}", one) for key, one in value.items()}


_READERS: dict[str, Callable[[str, Any], Any]] = {
    "string": _string,
    "integer": _integer,
    "boolean": _boolean,
    "array": _strings,
    "object": _string_map,
}


def _shown(value: Any) -> str:
    """A short word for what was sent: whoever reads the answer sent it, but a megabyte of it helps nobody."""
    if isinstance(value, str):
        return ascii(value if len(value) <= 40 else f"{value[:40]}...").replace("'", '"')
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)[:24] if abs(value) < 2**70 else "a huge number"
    if value is None:
        return "null"
    return "a list" if isinstance(value, list) else "an object"
