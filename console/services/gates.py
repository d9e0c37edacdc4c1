"""Which gates stand before a decision: a second person, a hold, a fresh proof of identity. Pure questions; nothing is stored here.

Rules are CEL expressions of a tool's policy about the call and what is decided. They are closed on error: a rule that cannot be worked out
holds, and says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any

from actions.errors import ActionsError
from actions.facts import AMOUNT_NAMES, by_lower_name
from actions.records import Action
from actions.resolvers.base import Claim
from actions.resolvers.cel import EvaluationFailed, Expression, InvalidExpression
from actions.resolvers.claim import Roles, claim_of, sources_of
from console.durations import format_duration
from console.models import Policy

NAMES = ("amount", "currency", "recipient", "tool", "agent", "store", "action_class", "outcome", "args")
"""What a rule may speak of besides the call's own arguments; an argument of such a name is reached through `args`."""
CONFIRMED_FOR = timedelta(minutes=10)
"""How long a proof of identity counts."""


class InvalidRule(ActionsError):
    """The text is no rule; the message says where and why. Nothing was evaluated or stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    """What stands before one decision, as it is kept with it. `rule` is for a person: the policy's own words, and why where it failed."""

    needs_second: bool = False
    needs_step_up: bool = False
    hold_s: int = 0
    rule: str = ""

    @property
    def are_open(self) -> bool:
        return not (self.needs_second or self.needs_step_up or self.hold_s)


def check_rule(text: str) -> None:
    """Refuse what could never be worked out.

    Raises:
        InvalidRule: no CEL, an unknown function, or something that answers neither yes nor no whatever the call.
    """
    rule = _parsed(text)
    if rule is None or rule.used:
        return
    try:
        value = rule.evaluate({})
    except EvaluationFailed as exc:
        raise InvalidRule(str(exc)) from exc
    if not isinstance(value, bool):
        raise InvalidRule("it answers neither yes nor no; write a condition, as in amount > 1000, or true for always")


def arguments_in(text: str) -> tuple[str, ...]:
    """The names in a rule that are none of NAMES: arguments of the call itself. Raises InvalidRule."""
    rule = _parsed(text)
    return tuple(sorted(rule.used - set(NAMES))) if rule else ()


def gates_of(policy: Policy, action: Action, whole_args: str, *, store: str, outcome: str, roles: Roles) -> Gates:
    """The gates before this decision about this action. `whole_args` as the agent gave them, unredacted. Never raises."""
    if not (policy.second_person_when.strip() or policy.step_up_when.strip() or policy.hold_s):
        return Gates()
    call = _Call(action=action, whole_args=whole_args, store=store, outcome=outcome, roles=roles)
    named = f"policy {policy.version}"
    says: list[str] = []
    needs_second = _holds(policy.second_person_when, call, f"a second person when {{}} ({named})", says)
    needs_step_up = _holds(policy.step_up_when, call, f"a fresh proof of identity when {{}} ({named})", says)
    if policy.hold_s:
        says.append(f"held for {format_duration(policy.hold_s)} ({named})")
    return Gates(needs_second=needs_second, needs_step_up=needs_step_up, hold_s=policy.hold_s, rule="; ".join(says))


def asked_for(policy: Policy) -> str:
    """What a policy may put before a decision, in words; empty: nothing. Which calls its rules hold for is not looked at."""
    says = [
        f"a second person when {policy.second_person_when.strip()}" if policy.second_person_when.strip() else "",
        f"a fresh proof of identity when {policy.step_up_when.strip()}" if policy.step_up_when.strip() else "",
        f"held for {format_duration(policy.hold_s)}" if policy.hold_s else "",
    ]
    return "; ".join(filter(None, says))


def is_confirmed(confirmed_at: datetime | None, now: datetime) -> bool:
    """Whether a proof of identity is there and young enough; one from the future is none."""
    return confirmed_at is not None and timedelta(0) <= now - confirmed_at <= CONFIRMED_FOR


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    action: Action
    whole_args: str
    store: str
    outcome: str
    roles: Roles


def _holds(text: str, call: _Call, words: str, says: list[str]) -> bool:
    if not text.strip():
        return False
    try:
        holds, why = _evaluate(text, call), ""
    except (ActionsError, _Unreadable) as exc:
        holds, why = True, f"; it holds because it cannot be worked out: {exc}"
    if holds:
        says.append(words.format(" ".join(text.split())) + why)
    return holds


class _Unreadable(Exception):
    """A value that the rule speaks of cannot be read; the message says which and why, never the value itself."""


def _evaluate(text: str, call: _Call) -> bool:
    """Raises _Unreadable, InvalidRule or EvaluationFailed: the rule then holds."""
    rule = _parsed(text)
    assert rule is not None  # noqa: S101 - only called with a rule
    if not rule.used:
        return _yes_or_no(rule.evaluate({}))
    claim = claim_of(call.action, call.whole_args, call.roles)
    values: dict[str, Any] = {}
    for name in rule.used:
        read = _OWN.get(name)
        values[name] = read(call, claim) if read else _argument(name, claim)
    return _yes_or_no(rule.evaluate(values))


def _yes_or_no(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _Unreadable("it answers neither yes nor no")
    return value


def _whole(claim: Claim) -> Any:
    if claim.arguments.problems:
        raise _Unreadable(claim.arguments.problems[0])
    if not claim.arguments.text.strip():
        raise _Unreadable("the call has no arguments")
    return claim.arguments.value


def _argument(name: str, claim: Claim) -> Any:
    fields = _whole(claim)
    if not isinstance(fields, dict) or name not in fields:
        raise _Unreadable(f"the call has no argument {name!r}")
    return _as_double(fields[name])


def _amount(call: _Call, claim: Claim) -> Any:
    """A number of major units. Whatever may be read in two ways is not read: a rule that is about the amount holds then."""
    fields = _whole(claim)
    name = sources_of(call.whole_args, call.roles)["amount"]
    if not name:
        raise _Unreadable("the call names no amount")
    if claim.amount is None:
        raise _Unreadable(f"the amount in {name!r} is not written as a plain number")
    if claim.amount < 0:
        raise _Unreadable(f"the amount in {name!r} is negative")
    if not call.roles.amount and isinstance(fields, dict):
        _check_one_spelling(fields)
        others = [other for other in AMOUNT_NAMES if by_lower_name(fields).get(other) not in (None, "", [], {})]
        if len(others) > 1:
            raise _Unreadable(f"several arguments may be the amount: {', '.join(others)}")
    return _as_double(claim.amount)


def _check_one_spelling(fields: Mapping[str, Any]) -> None:
    lower = [name.lower() for name in fields]
    if any(lower.count(name) > 1 for name in AMOUNT_NAMES):
        raise _Unreadable("the amount stands in several spellings")


def _recipient(call: _Call, claim: Claim) -> str:
    _whole(claim)
    if len(claim.recipients) != 1:
        raise _Unreadable("there is more than one recipient" if claim.recipients else "the call names no recipient")
    return claim.recipients[0]


def _currency(call: _Call, claim: Claim) -> str:
    _whole(claim)
    if not claim.currency:
        raise _Unreadable("the call names no currency")
    return claim.currency


_OWN: Mapping[str, Callable[[_Call, Claim], Any]] = {
    "amount": _amount,
    "currency": _currency,
    "recipient": _recipient,
    "tool": lambda call, claim: call.action.tool,
    "agent": lambda call, claim: call.action.agent,
    "store": lambda call, claim: call.store,
    "action_class": lambda call, claim: call.action.action_class.value,
    "outcome": lambda call, claim: call.outcome,
    "args": lambda call, claim: _whole(claim),
}


def _as_double(value: Any) -> Any:
    """One type for every number that a rule names, so that 1000 and 1000.50 meet the same rule in the same way."""
    return Decimal(value) if isinstance(value, int) and not isinstance(value, bool) else value


@lru_cache(maxsize=512)
def _parsed(text: str) -> Expression | None:
    """None: no rule. Raises InvalidRule."""
    if not text.strip():
        return None
    try:
        return Expression(text, names=None)
    except InvalidExpression as exc:
        raise InvalidRule(str(exc)) from exc
