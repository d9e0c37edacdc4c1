"""How people write lengths of time in forms: `90 s`, `15 min`, `3 d`, `1 h 30 min`. Whole seconds; pure."""

from __future__ import annotations

import re

_SPELLED = {
    1: "s sec secs second seconds",
    60: "min mins minute minutes",
    3_600: "h hour hours",
    86_400: "d day days",
    604_800: "w week weeks",
}
_UNITS = {word: size for size, words in _SPELLED.items() for word in words.split()}
_WRITTEN = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
_FRACTION = re.compile(r"\d[.,]\d", re.ASCII)
_PART = re.compile(r"(\d{1,9})\s*([a-z]+)\s*", re.ASCII)


class NotADuration(ValueError):
    """The message says what was found and how to write it."""


def parse_duration(text: str) -> int:
    """Seconds. A bare number is refused: nobody can tell whether minutes or seconds were meant.

    Raises:
        NotADuration: it has no unit, an unknown one or one twice, a fraction, or is no length of time.
    """
    said, at, seconds = text.strip().lower(), 0, 0
    sizes: set[int] = set()
    if _FRACTION.search(said):
        raise NotADuration(f"{text.strip()[:40]!r} has a fraction; write it in whole units, as 90 s, 15 min, 2 h or 3 d")
    while at < len(said):
        found = _PART.match(said, at)
        if found is None or found[2] not in _UNITS:
            raise NotADuration(f"{text.strip()[:40]!r} is no length of time; write it as 90 s, 15 min, 2 h or 3 d")
        size = _UNITS[found[2]]
        if size in sizes:
            raise NotADuration(f"{text.strip()[:40]!r} says {found[2]} twice; write it as 90 s, 15 min, 2 h or 3 d")
        sizes.add(size)
        seconds += int(found[1]) * size
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
