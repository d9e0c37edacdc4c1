"""What a tool's policy hides in arguments is hidden in the evidence about them too. Pure; the verdict is judged before."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any
from urllib.parse import quote, quote_plus

from actions.arguments import parse_arguments
from actions.redaction import HIDDEN
from actions.resolvers.claim import Roles, sources_of
from actions.resolvers.verdict import Verdict
from actions.tool_rules import hidden_name

_SHORTEST = 3
"""Shorter values stand in half of all texts; where such a one is compared, its field is hidden whole."""


def hide_in_verdict(verdict: Verdict, whole_args: str, roles: Roles, names: frozenset[str]) -> Verdict:
    """The same verdict without the values of these arguments (`hidden_name`): fields that are read from them, and wherever else they stand."""
    if not names:
        return verdict
    sources = sources_of(whole_args, roles)
    hidden_roles = {role for role, source in sources.items() if any(hidden_name(part) in names for part in source.split("."))}
    values = sorted(_values(parse_arguments(whole_args).value, names), key=lambda text: (-len(text), text))

    def hide(text: str) -> str:
        for value in values:
            for written in (value, quote(value, safe=""), quote_plus(value)):
                text = text.replace(written, HIDDEN)
        return text

    evidence = verdict.evidence
    fields = tuple(
        replace(row, claimed=HIDDEN if row.claimed else "", found=HIDDEN if row.found else "")
        if row.name in hidden_roles
        else replace(row, claimed=hide(row.claimed), found=hide(row.found))
        for row in evidence.fields
    )
    shown = replace(
        evidence,
        asked=tuple(hide(text) for text in evidence.asked),
        matched_ids=tuple(hide(text) for text in evidence.matched_ids),
        notes=tuple(hide(text) for text in evidence.notes),
        rule=hide(evidence.rule),
        fields=fields,
    )
    return replace(verdict, evidence=shown, resolution=hide(verdict.resolution))


def _values(value: Any, names: frozenset[str]) -> set[str]:
    """The texts under these names, at every depth."""
    found: set[str] = set()
    rest: list[tuple[Any, bool]] = [(value, False)]
    while rest:
        item, is_hidden = rest.pop()
        if isinstance(item, dict):
            rest += [(child, is_hidden or hidden_name(str(name)) in names) for name, child in item.items()]
        elif isinstance(item, list):
            rest += [(child, is_hidden) for child in item]
        elif is_hidden and isinstance(item, str | int | Decimal) and not isinstance(item, bool):
            found |= {text for text in (str(item), str(item).strip()) if len(text) >= _SHORTEST}
    return found
