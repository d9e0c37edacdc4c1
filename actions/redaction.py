"""Hide secrets by key name at every depth and by the shape of a value. Pure; every exit (screen, API, audit, log) uses this one function.

Digests are taken over the unredacted value, so redaction never weakens what a decision is bound to.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from actions.arguments import Arguments, dump_json

HIDDEN = "[redacted]"

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SECRET_WORDS = frozenset(
    "password passwd passphrase pwd secret token apikey authorization cookie credential credentials cvv cvc cvn otp ssn bearer jwt".split()
)
_SECRET_PAIRS = frozenset(
    {
        ("api", "key"),
        ("private", "key"),
        ("access", "key"),
        ("secret", "key"),
        ("signing", "key"),
        ("encryption", "key"),
        ("card", "number"),
        ("auth", "header"),
        ("session", "id"),
        ("security", "code"),
    }
)
_SHAPES = re.compile(
    r"""-----BEGIN\ [A-Z ]*PRIVATE\ KEY-----.*?(?:-----END\ [A-Z ]*PRIVATE\ KEY-----|\Z)
      | \b(?:Bearer|Basic)\s+[A-Za-z0-9+/._~=-]{12,}
      | \beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]*
      | \b(?:sk|pk|rk|whsec)_(?:live|test)?_?[A-Za-z0-9]{12,}
      | \bsk-[A-Za-z0-9_-]{16,}
      | \bgh[pousr]_[A-Za-z0-9]{20,}
      | \bgithub_pat_[A-Za-z0-9_]{20,}
      | \bglpat-[A-Za-z0-9_-]{16,}
      | \bxox[abeoprs]-[A-Za-z0-9-]{10,}
      | \b(?:AKIA|ASIA)[A-Z0-9]{16}\b
      | \bAIza[A-Za-z0-9_-]{30,}
      | \bSG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}
      | (?<=://)[^\s/:@"']{1,256}:[^\s/@"']{1,256}(?=@)""",
    re.VERBOSE | re.DOTALL,
)
_CARD = re.compile(r"(?<![\d.])\d(?:[ -]?\d){12,18}(?![\d.]*\d)")
# Possessive and anchored: a name is looked at once, however long a text without any is.
_NAME_IN_TEXT = re.compile(r"""(?<![A-Za-z0-9_.-])(?P<name>[A-Za-z0-9_.-]{2,}+)\\*+["']?\s*+[:=]\s*+""")
# A text may be cut anywhere, so its end ends a quoted value too. The first form is JSON in a text of JSON.
_VALUE_IN_TEXT = re.compile(
    r"""\\++"[^"]*+(?:"|\Z)
      | "(?:[^"\\]|\\.)*+(?:"|\\?\Z)
      | '[^']*+(?:'|\Z)
      | (?:(?i:bearer|basic|digest|token|apikey)\s++)?+[^\s,;&"'}\]]++""",
    re.VERBOSE | re.DOTALL,
)


def is_secret_name(name: str) -> bool:
    """Whether a key's name says that its value is a secret: `api_key`, `clientSecret`, `X-Auth-Token`; not `max_tokens`, not `key`."""
    words = [word.lower() for word in _WORD.findall(name if len(name) <= 400 else f"{name[:200]} {name[-200:]}")]
    if _SECRET_WORDS.intersection(words):
        return True
    return any(pair in _SECRET_PAIRS for pair in pairwise(words))


def redact_text(text: str) -> str:
    """A text without what looks like a token, a key, a card number, or a password written as `password=...`."""
    text = _hide_pairs(text)
    text = _SHAPES.sub(HIDDEN, text)
    return _CARD.sub(_hide_card, text)


def redact_value(value: Any) -> Any:
    """A JSON value with secrets hidden; the same object where there were none."""
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, Mapping):
        return {_redact_name(key): HIDDEN if _hides(key, item) else redact_value(item) for key, item in value.items()}
    if isinstance(value, list):
        return [redact_value(item) for item in value]
    # A number can be a card's as well as a text can.
    return HIDDEN if isinstance(value, int) and not isinstance(value, bool) and _is_card(str(value)) else value


def redact_arguments(arguments: Arguments) -> Arguments:
    """The same arguments without secrets. Text stays exactly as the agent wrote it where nothing had to be hidden."""
    if arguments.value is None:
        return Arguments(text=redact_text(arguments.text), value=None, problems=arguments.problems)
    value = redact_value(arguments.value)
    if value == arguments.value:
        return arguments
    return Arguments(text=dump_json(value), value=value, problems=arguments.problems)


def _hides(key: object, item: object) -> bool:
    return is_secret_name(str(key)) and item not in (None, "", True, False)


def _redact_name(key: object) -> str:
    return redact_text(str(key))


def _hide_pairs(text: str) -> str:
    """Hide the value after each secret name. Only such a value is skipped: in `ana: password=x` the second name counts too."""
    kept, end = [], 0
    for match in _NAME_IN_TEXT.finditer(text):
        if match.start() < end or not is_secret_name(match["name"]):
            continue
        value = _VALUE_IN_TEXT.match(text, match.end())
        if value is not None:
            kept += [text[end : match.end()], HIDDEN]
            end = value.end()
    return "".join([*kept, text[end:]])


def _hide_card(match: re.Match[str]) -> str:
    return HIDDEN if _is_card(match[0]) else match[0]


def _is_card(text: str) -> bool:
    """13 to 19 digits that pass the Luhn check (ISO/IEC 7812-1), and not all the same."""
    digits = [int(char) for char in text if char.isdigit()]
    if not 13 <= len(digits) <= 19 or len(set(digits)) == 1:
        return False
    doubled = [digit if index % 2 == 0 else sum(divmod(digit * 2, 10)) for index, digit in enumerate(reversed(digits))]
    return sum(doubled) % 10 == 0
