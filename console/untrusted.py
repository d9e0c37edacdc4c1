"""Text that somebody else wrote, taken apart for a screen: what the eye cannot see becomes a named escape. Pure; no HTML in here."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from actions.arguments import Arguments, dump_json, parse_arguments
from actions.redaction import redact_arguments, redact_text

PREVIEW_CHARS = 4_096
"""How much of a value is shown at once; the rest is one click away."""
LINE_CHARS = 300
MAX_SPACES = 8
MAX_BLANK_LINES = 2
MAX_MARKS = 2
"""Combining marks upon one letter; more of them climb over the neighbouring lines."""

# Look like a space or like nothing at all, though Unicode calls them letters or symbols.
_BLANK_LETTERS = frozenset("\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_DOTS = ".\u3002\uff0e\uff61"
_SPACES = re.compile(rf" {{{MAX_SPACES + 1},}}")
_LINES = re.compile(rf"(?:[ \t]*\n){{{MAX_BLANK_LINES + 2},}}")
_DOMAIN = re.compile(rf"(?<![\w-])[\w-]+(?:[{_DOTS}][\w-]+)*[{_DOTS}][^\W\d_][\w-]+")
_PLAIN = re.compile(r"[\x20-\x7e\n]*")


class Piece(NamedTuple):
    """A stretch of text as it may be shown. `is_escape`: our name for something that would not be seen, or not be seen for what it is."""

    text: str
    is_escape: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A text cut to a bound and taken apart."""

    pieces: tuple[Piece, ...]
    left_out: int  # characters that were cut off

    @property
    def plain(self) -> str:
        return "".join(f"[{piece.text}]" if piece.is_escape else piece.text for piece in self.pieces)


def show(text: str, *, limit: int = PREVIEW_CHARS, lines: bool = False) -> Shown:
    """Cut to `limit` characters and name what is invisible. With `lines` a line feed is a line feed, else it is an escape too."""
    cut = text[:limit]
    return Shown(pieces=tuple(_merged(_pieces(cut, lines))), left_out=len(text) - len(cut))


def redact_any(text: str) -> str:
    """A value without secrets, whether it is JSON or prose."""
    return redact_arguments(parse_arguments(text)).text if text[:1] in "{[" else redact_text(text)


def pretty(arguments: Arguments) -> str:
    """Arguments as JSON over several lines, every digit kept; as they stand where they are not JSON."""
    return arguments.text if arguments.value is None else _indented(arguments.value, "")


def editable(arguments: Arguments) -> str:
    """The same for a field in which somebody changes it: what would not be seen stands there as JSON writes it, `\\u202e`."""
    return "".join(char if char == "\n" or not is_hidden(char) else json.dumps(char)[1:-1] for char in pretty(arguments))


def _indented(value: Any, margin: str) -> str:
    inner = margin + "  "
    if isinstance(value, dict) and value:
        rows = [f"{inner}{json.dumps(str(key), ensure_ascii=False)}: {_indented(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(rows) + f"\n{margin}}}"
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(inner + _indented(item, inner) for item in value) + f"\n{margin}]"
    return dump_json(value)


def _pieces(text: str, lines: bool) -> Iterator[Piece]:
    """Split off what must be named as a whole (padding, domains), then look at each character of the rest."""
    at = 0
    for start, end, name in _runs(text, lines):
        yield from _characters(text[at:start], lines)
        yield Piece(name, True)
        at = end
    yield from _characters(text[at:], lines)


def _runs(text: str, lines: bool) -> Iterator[tuple[int, int, str]]:
    found = [(m.start(), m.end(), f"space ×{len(m[0]):,}") for m in _SPACES.finditer(text)]
    if lines:
        found += [(m.start(), m.end(), f"line feed ×{m[0].count(chr(10)):,}") for m in _LINES.finditer(text)]
    if not text.isascii():
        found += [(m.start(), m.end(), puny) for m in _DOMAIN.finditer(text) if (puny := punycode(m[0])) != m[0]]
    at = 0
    for start, end, name in sorted(found):
        if start >= at:
            yield start, end, name
            at = end


def punycode(domain: str) -> str:
    """A domain as the network knows it: `pаypal.com` with a Cyrillic letter is `xn--pypal-4ve.com`. ASCII stays as it is."""
    if domain.isascii():
        return domain
    labels = re.split(f"[{_DOTS}]", domain)
    return ".".join(_label(label) for label in labels)


def _label(label: str) -> str:
    if label.isascii():
        return label
    folded = unicodedata.normalize("NFKC", label).casefold()
    if folded.isascii():
        return folded
    try:
        return "xn--" + folded.encode("punycode").decode("ascii")
    except UnicodeError:
        return "xn--?"


def _characters(text: str, lines: bool) -> Iterator[Piece]:
    if lines and _PLAIN.fullmatch(text):
        yield Piece(text)
        return
    marks = 0
    for char in text:
        marks = marks + 1 if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me") else 0
        if char == "\n" and lines:
            yield Piece(char)
        elif is_hidden(char) or marks > MAX_MARKS:
            yield Piece(_name(char), True)
        else:
            yield Piece(char)


def is_hidden(char: str) -> bool:
    """Whether nobody would see this character, or see another one for it: controls, blanks other than the plain one, directions, selectors."""
    if " " <= char <= "~":
        return False
    code = ord(char)
    if unicodedata.category(char) in _HIDDEN_CATEGORIES or char in _BLANK_LETTERS:
        return True
    # Every other blank than the plain one, and the selectors that change how the character before them looks.
    return char.isspace() or 0xFE00 <= code <= 0xFE0F or 0xE0100 <= code <= 0xE01EF or 0x180B <= code <= 0x180F


def _name(char: str) -> str:
    return {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(char) or f"U+{ord(char):04X}"


def _merged(pieces: Iterator[Piece]) -> Iterator[Piece]:
    """Join plain neighbours, and count equal escapes instead of repeating them."""
    plain: list[str] = []
    escape, times = "", 0
    for text, is_escape in pieces:
        if times and (not is_escape or text != escape):
            yield Piece(escape if times == 1 else f"{escape} ×{times:,}", True)
            times = 0
        if is_escape:
            if plain:
                yield Piece("".join(plain))
                plain = []
            escape, times = text, times + 1
        elif text:
            plain.append(text)
    if times:
        yield Piece(escape if times == 1 else f"{escape} ×{times:,}", True)
    if plain:
        yield Piece("".join(plain))
