"""How people write lengths of time in forms: `90 s`, `15 min`, `3 d`, `1 h 30 min`. Whole seconds; pure."""

from __future__ import annotations

import re

_UNITS = {"s": 1, "sec": 1, "min": 60, "h": 3_600, "d": 86_400, "day": 86_400, "days": 86_400}
_WRITTEN = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
_PART = re.compile(r"(\d{1,9})\s*([a-z]+)\s*", re.ASCII)


class NotADuration(ValueError):
    """The message says what was found and how to write it."""


def parse_duration(text: str) -> int:
    """Seconds. A bare number is refused: nobody can tell whether minutes or seconds were meant.

    Raises:
        NotADuration: it has no unit, an unknown one, or is no length of time.
    """
    said, at, seconds = text.strip().lower(), 0, 0
    while at < len(said):
        found = _PART.match(said, at)
        if found is None or found[2] not in _UNITS:
            raise NotADuration(f"{text.strip()[:40]!r} is no length of time; write it as 90 s, 15 min, 2 h or 3 d")
        seconds += int(found[1]) * _UNITS[found[2]]
        at = found.end()
    if not said:
        raise NotADuration("write a length of time, as 90 s, 15 min, 2 h or 3 d")
    return seconds


def format_duration(seconds: int) -> str:
    """Exactly so many seconds in the fewest units: `1 h 30 min`; what `parse_duration` reads back."""
    parts, rest = [], max(0, seconds)
    for unit, size in _WRITTEN:
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts) or "0 s"
