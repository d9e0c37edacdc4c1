"""What may stand in a line of the log, and how: one line each, nothing that a terminal or a reader would take for something else.

Read by settings.py, so nothing here asks for settings.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

from actions.redaction import redact_text
from console.trouble import name_of, way_of

MAX_VALUE_CHARS = 2_000
_OWN = ("timestamp", "level", "logger")


def tame(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Every value short, without secrets and printable: line feeds, terminal codes and unseen characters as escapes.

    Of an error only its kind and its way through the code: its text may hold an action's arguments.
    """
    if exc := _error_in(event.pop("exc_info", None)):
        event["error"], event["way"] = name_of(exc), way_of(exc)
    event.pop("stack_info", None)
    return {name: value if name in _OWN else _tamed(value) for name, value in event.items()}


def _error_in(info: object) -> BaseException | None:
    found = info[1] if isinstance(info, tuple) and len(info) == 3 else info
    return found if isinstance(found, BaseException) else None


def _tamed(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    text = str(value)
    cut = redact_text(text[:MAX_VALUE_CHARS]) + ("..." if len(text) > MAX_VALUE_CHARS else "")
    return cut if cut.isascii() and cut.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in cut)


def route_of(request: Any) -> str:
    """The pattern of an address, never the address: its parts are agents' names and what somebody searched for."""
    match = getattr(request, "resolver_match", None)
    return f"/{match.route}" if match is not None else "none"


class Pathless(logging.Filter):
    """Django names the address of a request in its own lines; here they name the pattern."""

    def filter(self, record: logging.LogRecord) -> bool:
        request: Any = getattr(record, "request", None)
        if hasattr(request, "resolver_match"):
            record.msg, record.args = "%s at %s %s", (record.levelname.lower(), request.method, route_of(request))
        return True
