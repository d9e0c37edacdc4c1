"""What the policies say about reading calls, as the lookup that lists and items are made with. One statement, whatever the number of tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from actions.rules import as_column
from actions.tool_rules import NO_RULE, ToolRule, ToolRules, hidden_name
from console.models import Policy, Weight

_SAID: Mapping[str, bool | None] = {Weight.YES.value: True, Weight.NO.value: False, Weight.BY_NAME.value: None}


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyBook:
    """Every policy in force, and what they mean for reading."""

    policies: Mapping[str, Policy]
    rules: ToolRules
    unset: dict[str, Policy] = field(
        default_factory=dict
    )  # made while this book is read in: every row of a list asks for its tool's

    def policy_of(self, tool: str) -> Policy:
        """The defaults as version 0 where nobody has set one."""
        name = as_column(tool)
        found = self.policies.get(name) or self.unset.get(name)
        if found is None:
            found = self.unset[name] = Policy(tool=name, version=0)
        return found


def rule_from(policy: Policy) -> ToolRule:
    return ToolRule(
        summary=policy.summary,
        redacted=frozenset(hidden_name(name) for name in policy.redacted_names) - {""},
        moves_money=_SAID[policy.moves_money],
        is_irreversible=_SAID[policy.is_irreversible],
        recipient=policy.recipient,
        amount=policy.amount,
        currency=policy.currency,
        reference=policy.reference,
    )


def rule_of(tool: str) -> ToolRule:
    """The rule of one tool now."""
    policy = Policy.objects.filter(tool=as_column(tool)).order_by("-version").first()
    return rule_from(policy) if policy else NO_RULE


def read_rules() -> ToolRules:
    """The rule of every tool now."""
    return read_book().rules


def read_book(weights_of: int | None = None) -> PolicyBook:
    """The policies in force. `weights_of`: a version of the rules (`queries.rules_version`) whose weights are to hold still.

    Policies are never changed, only followed by newer ones, so what weighed how at any version can be read again. Words and what is hidden
    are always those of now.
    """
    policies = {row.tool: row for row in Policy.objects.order_by("tool", "-version").distinct("tool")}
    by_tool = {tool: rule_from(policy) for tool, policy in policies.items()}
    version = max((policy.pk for policy in policies.values()), default=0)
    if weights_of is not None and weights_of < version:
        version = weights_of
        older = Policy.objects.filter(pk__lte=weights_of).order_by("tool", "-version").distinct("tool")
        weights = {row.tool: rule_from(row) for row in older}
        by_tool = {tool: _weighing_as(rule, weights.get(tool, NO_RULE)) for tool, rule in by_tool.items()}
    return PolicyBook(policies=MappingProxyType(policies), rules=ToolRules(by_tool=MappingProxyType(by_tool), version=version))


def _weighing_as(rule: ToolRule, older: ToolRule) -> ToolRule:
    return replace(rule, moves_money=older.moves_money, is_irreversible=older.is_irreversible)
