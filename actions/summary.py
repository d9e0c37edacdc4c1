"""A tool's own sentence: plain words with names in braces, as `Refund of {amount} to {customer.name}`. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

MAX_SUMMARY_CHARS = 200
_PIECE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_NAME = re.compile(r"[^\s{}.](?:[^{}.\n]*[^\s{}.])?(?:\.[^\s{}.](?:[^{}.\n]*[^\s{}.])?)*")


def problem_of_summary(template: str) -> str:
    """What is wrong with it, as it goes on after its name; empty where it can be used."""
    if len(template) > MAX_SUMMARY_CHARS:
        return f"at most {MAX_SUMMARY_CHARS} characters"
    if any(not char.isprintable() for char in template):
        return "one line of visible characters"
    for piece in _PIECE.finditer(template):
        if piece[0] in ("{", "}"):
            return f"a single {piece[0]} at character {piece.start() + 1}; write {piece[0] * 2} for the character itself"
        if piece[1] is not None and not _NAME.fullmatch(piece[1]):
            return f"{piece[0]} names no argument; write {{amount}}, or {{order.total}} for one inside another"
    return ""


def names_in(template: str) -> frozenset[str]:
    """The names it asks for."""
    return frozenset(piece for piece, is_name in _pieces(template) if is_name)


def fill_summary(template: str, value_of: Callable[[str], str]) -> str:
    """The sentence; empty where any of its names has no value, or the template is no good: never half a sentence."""
    written = []
    for piece, is_name in _pieces(template):
        said = value_of(piece) if is_name else piece
        if is_name and not said:
            return ""
        written.append(said)
    return " ".join("".join(written).split())


@lru_cache(maxsize=1024)
def _pieces(template: str) -> tuple[tuple[str, bool], ...]:
    """Text and whether it is a name; nothing at all for a template that is no good."""
    if problem_of_summary(template):
        return ()
    found, at = [], 0
    for piece in _PIECE.finditer(template):
        found.append((template[at : piece.start()], False))
        found.append((piece[1], True) if piece[1] is not None else (piece[0][0], False))
        at = piece.end()
    return (*found, (template[at:], False))
