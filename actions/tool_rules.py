"""How the calls of each tool are read: what its policy says about words, weight and what is hidden. Handed in by the console. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from actions.rules import as_column


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRule:
    """One tool. Everything empty: read by the tool's name and the usual names of arguments."""

    summary: str = ""  # the sentence, with names of arguments and facts in braces (`summary.py`)
    redacted: frozenset[str] = frozenset()  # names of arguments hidden at every depth, as `hidden_name` writes them
    moves_money: bool | None = None  # None: as its name says
    is_irreversible: bool | None = None
    recipient: str = ""  # which argument is what; dots lead into nested objects
    amount: str = ""
    currency: str = ""
    reference: str = ""


NO_RULE = ToolRule()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRules:
    """Every tool's rule. `version` says of when the weights are: a list that is turned page by page keeps them (`weights_of`)."""

    by_tool: Mapping[str, ToolRule] = field(default_factory=lambda: MappingProxyType({}))
    version: int = 0

    def of(self, tool: str) -> ToolRule:
        """The rule of a tool, whose name is as an agent wrote it."""
        return self.by_tool.get(tool) or self.by_tool.get(as_column(tool), NO_RULE)


NO_RULES = ToolRules()


def hidden_name(name: str) -> str:
    """A name without its case and what joins its words: `card_number`, `cardNumber` and `Card-Number` are one."""
    return "".join(char for char in name.casefold() if char.isalnum())
