"""Reading the query of the kind `sql`: one SELECT with named parameters, made into PostgreSQL's numbered ones. Pure; knows no driver.

A first sieve, for the person who writes the query. What it lets through can still not write: that the server refuses (sql.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from actions.resolvers.base import InvalidDefinition

PARAMETERS = ("key", "recipient", "amount", "currency", "reference", "agent", "seq", "tool")
"""What a query may ask for by `:name`."""

_WRITES = frozenset({"insert", "update", "delete", "merge", "into"})

# In the order in which they are tried. Strings and comments are the server's: standard_conforming_strings is on (sql.py sets it).
_TOKENS = re.compile(
    r"""
      (?P<space>\s+ | --[^\n]*)
    | (?P<comment>/\*)
    | (?P<escape>[eE]'(?:[^'\\]|\\.|'')*(?P<escape_end>')?)
    | (?P<string>'(?:[^']|'')*(?P<string_end>')?)
    | (?P<quoted>"(?:[^"]|"")*(?P<quoted_end>")?)
    | (?P<dollar>\$(?P<tag>(?:[^\W\d]\w*)?)\$)
    | (?P<number>\$\d+)
    | (?P<cast>::|:=)
    | (?P<parameter>:(?P<name>[A-Za-z_]\w*))
    | (?P<word>[^\W\d][\w$]*)
    | (?P<digits>\d[\w.]*)
    | (?P<end>;)
    | (?P<open>\() | (?P<close>\))
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A SELECT without comments and end, with `$1`, `$2` ... for the parameters; `parameters[0]` is that of `$1`."""

    sql: str
    parameters: tuple[str, ...]


def read_query(text: str) -> Query:
    """
    Raises:
        InvalidDefinition: several statements, anything that is no SELECT, a write, an unknown parameter, no `:key`.
    """
    parts: list[str] = []
    words: list[str] = []
    names: list[str] = []
    depth, is_over = 0, False
    for sort, piece, name in _pieces(text):
        if sort == "space":
            parts.append(" ")
            continue
        if is_over:
            raise _refused("holds several statements; one SELECT is asked")
        if sort == "end":
            is_over = True
            continue
        if sort == "number":
            raise _refused(f"has {piece}; parameters are written with their names: {_listed()}")
        if sort == "parameter":
            if name not in PARAMETERS:
                raise _refused(f"asks for :{name[:40]}; there are {_listed()}")
            names += [name] if name not in names else []
            piece = f"${names.index(name) + 1}"
        if sort == "word":
            words.append(piece.lower())
        depth += (sort == "open") - (sort == "close")
        if depth < 0:
            break
        parts.append(piece)
    if depth:
        raise _refused("has a bracket without its other half")
    _check_words(words)
    if "key" not in names:
        raise _refused("does not ask for :key, so it cannot find the action's own effect")
    return Query(sql="".join(parts).strip(), parameters=tuple(names))


def _pieces(text: str) -> Iterator[tuple[str, str, str]]:
    """Sort, text and parameter's name of each token; a comment is a space."""
    at = 0
    while at < len(text):
        found = _TOKENS.match(text, at)
        if found is None:
            raise _refused("cannot be read")
        sort, end = next(group for group in _SORTS if found[group] is not None), found.end()
        if sort in ("escape", "string", "quoted") and found[f"{sort}_end"] is None:
            raise _refused("has a quotation mark without its other half")
        if sort == "comment":
            sort, end = "space", _end_of_comment(text, at)
        elif sort == "dollar":
            close = text.find(found[0], end)
            if close < 0:
                raise _refused(f"has a {found[0][:40]} without its other half")
            end = close + len(found[0])
        yield sort, text[at:end], found["name"] or ""
        at = end


_SORTS = (
    *("space", "comment", "escape", "string", "quoted", "dollar", "number", "cast", "parameter", "word", "digits", "end"),
    *("open", "close", "other"),
)


def _end_of_comment(text: str, at: int) -> int:
    """Comments of PostgreSQL nest."""
    depth = 0
    for found in re.finditer(r"/\*|\*/", text[at:]):
        depth += 1 if found[0] == "/*" else -1
        if depth == 0:
            return at + found.end()
    raise _refused("has a comment without its end")


def _check_words(words: list[str]) -> None:
    if not words or words[0] not in ("select", "with"):
        raise _refused("is no SELECT (or WITH ... SELECT)")
    if written := next((word for word in words if word in _WRITES), ""):
        raise _refused(f"has the word {written.upper()}: it may only read. A column of that name is written in double quotes")
    for first, second in pairwise(words):
        if first == "for" and second in ("share", "key"):
            raise _refused("locks rows (FOR SHARE): it may only read")


def _refused(problem: str) -> InvalidDefinition:
    return InvalidDefinition("query", problem)


def _listed() -> str:
    return ", ".join(f":{name}" for name in PARAMETERS)
