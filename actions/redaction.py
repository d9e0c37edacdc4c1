"""Hide secrets by name at every depth and by the shape of a value. Pure; every exit (screen, API, audit, log) uses this one module.

`secret_shapes.py` knows which names and shapes are secret; here is where they are looked for: JSON values, JSON texts (whole, cut off, or
inside of others) and prose. Each way only hides more, so a text goes through all of them. Nothing recurses into a value's depth, and each
character is looked at a bounded number of times. Digests are taken over the unredacted value, so redaction never weakens what a decision
is bound to.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import zip_longest
from typing import Any

from actions.arguments import Arguments, dump_json, parse_arguments
from actions.secret_shapes import HIDDEN, hide_shapes, is_card, is_secret_name, is_secret_pair, may_be_a_count
from actions.tool_rules import hidden_name

__all__ = ["HIDDEN", "is_secret_name", "redact_arguments", "redact_text", "redact_value"]

# An object such as {"name": "Authorization", "value": "..."} names its value beside it.
_NAMING = frozenset("name key header field variable param parameter".split())
_NAMED = frozenset("value values val content data".split())
_OPTION = re.compile(r"--?[A-Za-z][A-Za-z0-9_.-]*")
_NUMBER = re.compile(r"-?\d{1,9}(?:\.\d{1,9})?", re.ASCII)
_NUMBER_IN_TEXT = re.compile(rf"""(?:\\*+["'])?+{_NUMBER.pattern}(?=[\s,;&"'\\}})\]]|\.(?:[\s"'\\]|\Z)|\Z)""", re.ASCII)
_LITERAL = re.compile(r"""(?:null|none|true|false|undefined|(\\*+["'])\1)(?=[\s,;&"'\\})\]]|\Z)""", re.IGNORECASE)


_PASSES = 4
"""What stands right behind a hidden secret may have been read as a part of it: looked at again, until nothing more is found."""


def redact_text(text: str) -> str:
    """A text without what looks like a token, a key, a card number, or a secret after its name (`password=...`), whatever its quotes."""
    text = _hide_in_json(text)
    for _ in range(_PASSES):
        before, text = text, _hide_after_names(text)
        if text == before:
            break
    return hide_shapes(text)


def redact_value(value: Any) -> Any:
    """A JSON value with secrets hidden; an equal one where there were none."""
    top: list[Any] = [None]
    rest: list[tuple[Any, Any, Any]] = [(top, 0, value)]
    while rest:
        into, at, item = rest.pop()
        if isinstance(item, Mapping):
            children = [(redact_text(str(key)), child) for key, child in _without_secrets(item)]
            found: Any = dict.fromkeys(name for name, _ in children)
            rest += [(found, name, child) for name, child in children]
        elif isinstance(item, list):
            found = [None] * len(item)
            rest += [
                (found, index, child)
                for index, child in _without_secrets_of_list(item, is_inner=into is not top and isinstance(into, list))
            ]
        else:
            found = _redact_scalar(item)
        into[at] = found
    return top[0]


def redact_arguments(arguments: Arguments, names: frozenset[str] = frozenset()) -> Arguments:
    """The same arguments without secrets. Text stays exactly as the agent wrote it where nothing had to be hidden.

    `names` (as `hidden_name` writes them) are hidden too, at every depth. A text that is no JSON and gives one of them a value is hidden
    whole: nobody can say where that value ends.
    """
    if names:
        arguments = _without_names(arguments, names)
    problems = tuple(redact_text(problem) for problem in arguments.problems)
    if arguments.value is None:
        return Arguments(text=redact_text(arguments.text), value=None, problems=problems)
    value = redact_value(arguments.value)
    # Where a name stands twice, the value has lost one of its values and the text has not.
    if value == arguments.value and not problems:
        return arguments
    text = dump_json(value) if value != arguments.value else redact_text(arguments.text)
    return Arguments(text=text, value=value, problems=problems)


# --- JSON values -----------------------------------------------------------------------------------------------------


def _without_secrets(item: Mapping[Any, Any]) -> Iterator[tuple[Any, Any]]:
    names_secret = any(
        str(key).lower() in _NAMING and isinstance(child, str) and _names_a_secret(child) for key, child in item.items()
    )
    for key, child in item.items():
        hides = _hides(str(key), child) or (names_secret and str(key).lower() in _NAMED and not _is_empty(child))
        yield key, HIDDEN if hides else child


def _without_secrets_of_list(items: list[Any], *, is_inner: bool) -> Iterator[tuple[int, Any]]:
    """Arguments of a command (`["--password", "x"]`), and pairs in a list of lists (`[["Cookie", "x"]]`)."""
    previous: Any = None
    for index, child in enumerate(items):
        is_named = isinstance(previous, str) and (
            _is_secret_option(previous) or (is_inner and len(items) == 2 and _names_a_secret(previous))
        )
        yield index, HIDDEN if is_named and not _is_empty(child) and not _is_option(child) else child
        previous = child


def _redact_scalar(value: Any) -> Any:
    if isinstance(value, str):
        return redact_text(value)
    # A number can be a card's as well as a text can.
    is_long = isinstance(value, int) and 10**12 <= value < 10**19
    return HIDDEN if is_long and is_card(str(value)) else value


def _hides(name: str, value: object) -> bool:
    if _is_empty(value) or not is_secret_name(name):
        return False
    is_number = isinstance(value, int | float | Decimal) or (isinstance(value, str) and _NUMBER.fullmatch(value) is not None)
    return not (is_number and may_be_a_count(name) and len(str(value)) <= 20)


def _is_empty(value: object) -> bool:
    return value is None or isinstance(value, bool) or value == ""


def _names_a_secret(text: str) -> bool:
    """A name and not a sentence about one."""
    return len(text) <= 100 and " " not in text.strip() and is_secret_name(text)


def _is_option(value: object) -> bool:
    return isinstance(value, str) and len(value) <= 100 and _OPTION.fullmatch(value) is not None


def _is_secret_option(text: str) -> bool:
    return _is_option(text) and is_secret_name(text)


# --- names that a tool's policy hides --------------------------------------------------------------------------------

# Begun at the beginning of words only, and nothing given back: a text of one long word is read once.
_GIVEN_NAME = re.compile(r"""(?<![\w.-])([\w.-]++(?:[ ][\w.-]++)?+)\]?(?:\\*+["'])?\]?\s*+(?::|=|%3[AaDd])""")
_ESCAPED = re.compile(r"\\u[0-9A-Fa-f]{4}")


def _without_names(arguments: Arguments, names: frozenset[str]) -> Arguments:
    if arguments.value is None:
        return Arguments(text=_text_without_names(arguments.text, names), problems=arguments.problems)
    value = _value_without_names(arguments.value, names)
    if value == arguments.value:
        return arguments
    return Arguments(text=dump_json(value), value=value, problems=arguments.problems)


def _value_without_names(value: Any, names: frozenset[str]) -> Any:
    top: list[Any] = [None]
    rest: list[tuple[Any, Any, Any]] = [(top, 0, value)]
    while rest:
        into, at, item = rest.pop()
        found: Any = item
        if isinstance(item, Mapping):
            found = dict.fromkeys(item)
            rest += [(found, name, child) for name, child in item.items() if not _hides_by_name(str(name), child, names)]
            found |= {name: HIDDEN for name, child in item.items() if _hides_by_name(str(name), child, names)}
            names_it = any(str(name).lower() in _NAMING and hidden_name(str(child)) in names for name, child in item.items())
            if names_it:  # {"name": "iban", "value": "..."}
                rest = [one for one in rest if one[0] is not found or str(one[1]).lower() not in _NAMED]
                found |= {name: HIDDEN for name in item if str(name).lower() in _NAMED}
        elif isinstance(item, list):
            found = [None] * len(item)
            rest += [(found, index, child) for index, child in enumerate(item)]
        elif isinstance(item, str):
            found = _text_without_names(item, names)
        into[at] = found
    return top[0]


def _hides_by_name(name: str, child: object, names: frozenset[str]) -> bool:
    # What is empty stays: it tells nothing, and a fact that is missing must not look as if it were there.
    return hidden_name(name) in names and child not in (None, "", [], {})


def _text_without_names(text: str, names: frozenset[str]) -> str:
    if text[:1] in ("{", "["):
        inner = parse_arguments(text)
        if inner.value is not None:
            value = _value_without_names(inner.value, names)
            return text if value == inner.value else dump_json(value)
    read = _ESCAPED.sub(lambda found: chr(int(found[0][2:], 16)), text)
    return HIDDEN if any(_gives_one(found[1], names) for found in _GIVEN_NAME.finditer(read)) else text


def _gives_one(said: str, names: frozenset[str]) -> bool:
    """The name before a sign, or the last word of it: `your iban: DE02`."""
    return hidden_name(said) in names or hidden_name(said.rpartition(" ")[2]) in names


# --- JSON in texts ---------------------------------------------------------------------------------------------------

_JSON_START = re.compile(r"""[\[{](?=\s{0,64}+["\[{])""")
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[{}\[\],:]|[^\s"{}\[\],:]++', re.DOTALL)
_MIN_STRING = 7
"""Shorter ones, quotes included, hold neither a name with its value nor a shape."""


@dataclass(slots=True)
class _Frame:
    """An object or a list that has been opened and not closed."""

    opener: str
    start: int
    is_inner_list: bool = False
    key: str | None = None  # of an object: the name whose value comes next
    count: int = 0  # of a list: the elements so far
    previous: str | None = None  # of a list: the element before, where it is a text
    names_secret: bool = False
    named: list[tuple[int, int]] = field(default_factory=list)  # what is secret if something beside it says so

    def spans(self, *, is_closed: bool) -> list[tuple[int, int]]:
        is_pair = self.opener == "{" or self.count == 2 or not is_closed
        return self.named if self.names_secret and is_pair else []


def _hide_in_json(text: str) -> str:
    """Hide in JSON that stands in a text, also where it was cut off: what is open at the end counts as closed there."""
    begin = _JSON_START.search(text)
    if begin is None:
        return text
    edits: list[tuple[int, int, str]] = []
    frames: list[_Frame] = []
    at = begin.start()
    while (match := _TOKEN.search(text, at)) is not None:
        piece, at = match[0], match.end()
        frame = frames[-1] if frames else None
        if piece in "{[":
            if frame is not None and _hides_next(frame, piece):
                at = _end_of_brackets(text, match.start(), 0)
                edits.append((match.start(), at, _quoted(HIDDEN)))
                _pass(frame, None)
                continue
            frames.append(_Frame(piece, match.start(), is_inner_list=piece == "[" and frame is not None and frame.opener == "["))
        elif piece in "}]":
            if frames:
                closed = frames.pop()
                edits += [(start, end, _quoted(HIDDEN)) for start, end in closed.spans(is_closed=True)]
                if frames:
                    _note_named(frames[-1], closed.start, at)
                    _pass(frames[-1], None)
        elif piece == ",":
            if frame is not None:
                frame.key = None
        elif piece != ":":
            edits += _edits_of_scalar(frame, piece, match.start(), at)
    for frame, inner in zip_longest(frames, frames[1:]):
        if inner is not None:
            _note_named(frame, inner.start, len(text))
        edits += [(start, end, _quoted(HIDDEN)) for start, end in frame.spans(is_closed=False)]
    return _edited(text, edits)


def _edits_of_scalar(frame: _Frame | None, piece: str, start: int, end: int) -> Iterable[tuple[int, int, str]]:
    said = _decoded(piece) if piece[0] == '"' else None
    if frame is not None and frame.opener == "{" and frame.key is None:
        frame.key = piece if said is None else said
        return _edit_of_string(piece, said, start, end)
    if frame is None:
        return _edit_of_string(piece, said, start, end)
    hides = _hides_next(frame, piece if said is None else said, is_text=said is not None)
    _note_named(frame, start, end)
    if said is not None and frame.key is not None and frame.key.lower() in _NAMING and _names_a_secret(said):
        frame.names_secret = True
    _pass(frame, said)
    return [(start, end, _quoted(HIDDEN))] if hides else _edit_of_string(piece, said, start, end)


def _hides_next(frame: _Frame, said: str, *, is_text: bool = False) -> bool:
    if frame.opener == "[":
        return frame.previous is not None and _is_secret_option(frame.previous) and not _is_option(said)
    if frame.key is None or not is_secret_name(frame.key) or said == "":
        return False
    if is_text or said in "{[":
        return not (_NUMBER.fullmatch(said) and may_be_a_count(frame.key))
    return not (_LITERAL.fullmatch(said) or (_NUMBER.fullmatch(said) and may_be_a_count(frame.key)))


def _note_named(frame: _Frame, start: int, end: int) -> None:
    if start < end and (frame.count == 1 if frame.is_inner_list else frame.key is not None and frame.key.lower() in _NAMED):
        frame.named.append((start, end))


def _pass(frame: _Frame, said: str | None) -> None:
    """One value of the frame has been read."""
    if frame.is_inner_list and frame.count == 0 and said is not None and _names_a_secret(said):
        frame.names_secret = True
    frame.count += 1
    frame.previous = said


def _edit_of_string(piece: str, said: str | None, start: int, end: int) -> list[tuple[int, int, str]]:
    if said is None or len(piece) < _MIN_STRING:
        return []
    hidden = redact_text(said)
    return [] if hidden == said else [(start, end, _quoted(hidden))]


def _decoded(piece: str) -> str:
    """What a string of JSON says; its characters where it was cut off in an escape or is none."""
    if "\\" not in piece:
        return piece.strip('"')
    for text in (piece, f'{piece}"', f'{piece[:-1]}"'):
        try:
            return str(json.loads(text, strict=False))
        except ValueError:
            continue
    return piece[1:].removesuffix('"').replace('\\"', '"').replace("\\n", "\n")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _edited(text: str, edits: list[tuple[int, int, str]]) -> str:
    """The text with its edits; of two that overlap the one that begins first, or is longer, counts."""
    kept, at = [], 0
    for start, end, new in sorted(edits, key=lambda edit: (edit[0], -edit[1], edit[2] != _quoted(HIDDEN))):
        if start >= at:
            kept += [text[at:start], new]
            at = end
    return "".join([*kept, text[at:]])


# --- names in prose --------------------------------------------------------------------------------------------------

# A name is looked at once, however long a text without any is.
_NAME_IN_TEXT = re.compile(
    r"""(?<![A-Za-z0-9_.-])(?:(?P<before>[A-Za-z]{2,20}+)[ ](?=[A-Za-z0-9_.-]{2}))?+(?P<name>[A-Za-z0-9_.-]{2,}+)
        (?P<close>(?P<escape>\\*+)["']?)\]?\s*+(?P<sign>:=|=>|[:=]|%3[AaDd])\s*+""",
    re.VERBOSE,
)
_OPTION_IN_TEXT = re.compile(r"(?<![\w.-])--?(?P<name>[A-Za-z][A-Za-z0-9_.-]*+)[ \t]++(?![\s-])(?P<escape>)")
# {'name': 'Authorization', 'value': ...} where it is no JSON.
_NAMED_IN_TEXT = re.compile(
    r"""(?<![A-Za-z0-9_.-])(?i:name|key|header|field|variable|param|parameter)\\*+["']?\s*+(?:[:=]|=>)\s*+
        \\*+["']?(?P<name>[A-Za-z0-9_.-]{2,100}+)\\*+["']?\s*+[,;]\s*+
        \\*+["']?(?i:values?|val|content|data)(?P<escape>\\*+)["']?\s*+(?:[:=]|=>)\s*+""",
    re.VERBOSE,
)
_HEADERS = frozenset({"cookie", "set-cookie", "cookie2", "authorization", "proxy-authorization"})
_UNQUOTED = re.compile(r"""(?:(?i:bearer|basic|digest|token|apikey|negotiate)\s++)?+[^\s,;&"'}\]]++""")
_REST = re.compile(r"""[^\s,;&"'\\})\]]++""")
# YAML: a block of indented lines, or a list.
_BLOCK = re.compile(r"[|>][+-]?+[ \t]*+(?:\r?\n[ \t]++[^\r\n]*+)++")
_ITEMS = re.compile(r"-[ \t]++[^\r\n]*+(?:\r?\n[ \t]*+-[ \t]++[^\r\n]*+)*+")
_LINES = {
    "": re.compile(r"[^\r\n]++"),
    '"': re.compile(r"""(?:[^\r\n"\\]++|\\(?!\\*+"))++"""),
    "'": re.compile(r"[^\r\n']++"),
}
_HIDDEN_ALREADY = re.compile(rf"""\\*+["']?{re.escape(HIDDEN)}(?=[\s,;&"'\\}})\]]|\Z)""")
_LINE_HIDDEN_ALREADY = re.compile(rf"""{re.escape(HIDDEN)}[ \t]*+(?=["'\\\r\n]|\Z)""")
_SINGLE = re.compile(r"'(?:[^'\\]++|\\.)*+(?:'|\\?\Z)", re.DOTALL)
_QUOTE = re.compile(r'(?<!\\)\\*+"')
_OPENING = re.compile(r'\\*+"')
_MARK = re.compile(r"""[\[{\]}]|(?<!\\)\\*+"|(?<=[\[{,:=\s])'""")


def _hide_after_names(text: str) -> str:
    """Hide the value after each secret name. Only such a value is skipped: in `ana: password=x` the second name counts too."""
    for pattern, is_named in (
        (_NAME_IN_TEXT, _is_named),
        (_OPTION_IN_TEXT, _is_option_named),
        (_NAMED_IN_TEXT, _is_option_named),
    ):
        kept, end = [], 0
        for match in pattern.finditer(text):
            if match.start() < end or not is_named(match, text):
                continue
            stop = _end_of_value(text, match)
            if stop > match.end():
                kept += [text[end : match.end()], HIDDEN]
                end = stop
        text = "".join([*kept, text[end:]]) if kept else text
    return text


def _is_named(match: re.Match[str], text: str) -> bool:
    name = match["name"]
    before = match["before"]
    if not is_secret_name(name) and not (before and is_secret_pair(before, name)):
        return False
    return not (may_be_a_count(name) and _NUMBER_IN_TEXT.match(text, match.end()))


def _is_option_named(match: re.Match[str], text: str) -> bool:
    return is_secret_name(match["name"])


def _end_of_value(text: str, match: re.Match[str]) -> int:
    """Where the value that begins after the name ends; where it begins, if there is none or it is hidden already."""
    at = match.end()
    is_header = match.re is _NAME_IN_TEXT and not match["close"] and match["sign"] == ":" and match["name"].lower() in _HEADERS
    if _LITERAL.match(text, at) or (_LINE_HIDDEN_ALREADY if is_header else _HIDDEN_ALREADY).match(text, at):
        return at
    opening = _OPENING.match(text, at)
    if opening:
        return _end_of_string(text, opening.end(), len(opening[0]) - 1)
    if text[at : at + 1] in ("[", "{"):
        at = _end_of_brackets(text, at, len(match["escape"]))
        return _end(_REST.match(text, at), at)
    if text[at : at + 1] == "'":
        return _end(_SINGLE.match(text, at), at)
    if is_header:  # up to the quote where the header itself is quoted
        quote = text[match.start() - 1 : match.start()]
        return _end(_LINES.get(quote, _LINES[""]).match(text, at), at)
    for pattern in (_BLOCK, _ITEMS, _UNQUOTED):
        found = pattern.match(text, at)
        if found:
            return found.end()
    return at


def _end(match: re.Match[str] | None, otherwise: int) -> int:
    return match.end() if match else otherwise


def _end_of_string(text: str, at: int, escape: int) -> int:
    """The end of a string whose quotes have `escape` backslashes, since it is JSON in a text of JSON. A cut text ends it too."""
    level = (escape + 1).bit_length() - 1
    for quote in _QUOTE.finditer(text, at):
        count = len(quote[0]) - 1
        if count < escape:
            return quote.start()  # the end of the text around it
        if (count >> level) % 2 == 0:
            return quote.end()
    return len(text)


def _end_of_brackets(text: str, at: int, escape: int) -> int:
    """The end of an object or a list, whose strings may hold brackets. Cut off, it goes to the end."""
    depth = 0
    while (mark := _MARK.search(text, at)) is not None:
        at = mark.end()
        if mark[0] in "[{":
            depth += 1
        elif mark[0] in "]}":
            depth -= 1
            if depth == 0:
                return at
        elif mark[0] == "'":
            at = _end(_SINGLE.match(text, mark.start()), at)
        elif len(mark[0]) - 1 < escape:
            return mark.start()
        else:
            escape = len(mark[0]) - 1
            at = _end_of_string(text, at, escape)
    return len(text)
