"""Long arguments are parsed and redacted once and not at each look: a mebibyte takes a second, and pages refresh by themselves."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict

from actions.arguments import Arguments, parse_arguments
from actions.kept import Kept
from actions.redaction import redact_arguments

LONG_CHARS = 20_000
KEPT_CHARS = 32_000_000
"""As many characters are kept in all, of what was looked at last. A page of calls that are each a mebibyte long does not fit."""

SHORT_CHARS, KEPT_SHORT = 2_000, 1_000
"""Of arguments up to so long, so many stay: the pages of the queue that people look at."""

_Key = tuple[bytes, frozenset[str]]
_kept: OrderedDict[_Key, Arguments] = OrderedDict()
_lock = threading.Lock()
_short = Kept[Arguments](KEPT_SHORT)


def redacted_arguments(text: str, names: frozenset[str]) -> Arguments:
    """`redact_arguments` of a text as it is stored. Only what is redacted is kept, under a digest of the text and what else is hidden."""
    if len(text) <= SHORT_CHARS:
        return _short.get((text,), names, lambda: redact_arguments(parse_arguments(text), names))
    if len(text) < LONG_CHARS:
        return redact_arguments(parse_arguments(text), names)
    key = (hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest(), names)
    with _lock:
        found = _kept.get(key)
        if found is not None:
            _kept.move_to_end(key)
            return found
    made = redact_arguments(parse_arguments(text), names)
    with _lock:
        _kept[key] = made
        while kept_chars() > KEPT_CHARS:
            _kept.popitem(last=False)
    return made


def kept_chars() -> int:
    """How many characters of redacted text are kept now."""
    return sum(len(one.text) for one in _kept.values())
