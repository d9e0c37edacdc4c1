"""What a call claims to do, as one plain sentence and a few facts, read by our code from parsed arguments. Nothing here is the agent's prose."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from functools import lru_cache
from typing import Any

from actions.arguments import Arguments, parse_arguments
from actions.records import ActionClass
from actions.summary import fill_summary, names_in
from actions.tool_rules import NO_RULE, ToolRule

MAX_FACT_CHARS = 200
MAX_SENTENCE_CHARS = 160


class CallKind(StrEnum):
    """What sort of thing a call does; decides its words and its place in the queue."""

    MONEY = "money"
    IRREVERSIBLE = "irreversible"
    EMAIL = "email"
    MESSAGE = "message"
    TICKET = "ticket"
    OTHER = "other"


MONEY_RISK, LOWEST_RISK = 0, 2
"""Place in the queue: money (0), then what cannot be taken back (1), then the rest by age."""

_KIND_WORDS: tuple[tuple[CallKind, frozenset[str]], ...] = (
    (
        CallKind.MONEY,
        frozenset(
            "pay payment payments payout refund refunds charge transfer wire withdraw withdrawal purchase debit credit".split()
        ),
    ),
    (
        CallKind.IRREVERSIBLE,
        frozenset(
            "deploy deployment rollout merge publish release delete remove drop terminate revoke cancel wipe destroy close push rollback".split()
        ),
    ),
    (CallKind.EMAIL, frozenset("email mail".split())),
    (CallKind.TICKET, frozenset("ticket issue case incident task".split())),
    (CallKind.MESSAGE, frozenset("message sms slack notify notification post chat dm call".split())),
)
_MAY_NAME_A_CURRENCY = re.compile(r"currency|\\u", re.IGNORECASE)  # a name can be written with escapes
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

RECIPIENT_NAMES = (
    "to",
    "recipient",
    "recipients",
    "email",
    "payee",
    "destination",
    "beneficiary",
    "customer",
    "account",
    "channel",
    "phone",
    "user",
)
AMOUNT_NAMES = ("amount", "total", "value", "sum", "price", "amount_cents", "amount_minor")
# Only for our own words: a resolver compares what RECIPIENT_NAMES says.
_MORE_RECIPIENTS = ("to_email", "email_address", "phone_number", "to_number", "chat_id", "room", "user_id", "customer_id")
REFERENCE_NAMES = ("reference", "invoice", "order", "order_id", "invoice_id", "payment_id", "charge", "id", "ref", "number")
CURRENCY_NAMES = ("currency", "currency_code")
_TITLE = ("subject", "title", "summary", "name", "headline")
_TEXT = ("text", "message", "body", "content", "description", "template")
_TARGET = ("service", "repository", "repo", "branch", "resource", "path", "target", "environment", "env", "project")
# What a deployment puts where.
_DEPLOY_WORDS = {
    "rollback": "Rollback",
    "release": "Release",
    "publish": "Publication",
    "rollout": "Rollout",
    "deploy": "Deploy",
    "deployment": "Deploy",
}
_DEPLOYED = (
    "service",
    "application",
    "app",
    "component",
    "package",
    "project",
    "repository",
    "repo",
    "function",
    "chart",
    "image",
)
_VERSION = ("version", "tag", "release", "revision", "commit", "sha", "ref", "build")
_PLACE = ("environment", "env", "stage", "cluster", "region", "namespace", "target", "to")
# An object that holds nothing but one of these holds the arguments in it.
_WRAPPERS = frozenset(
    "input inputs params parameters arguments args kwargs payload data request message email ticket issue".split()
)
_PERSON = ("email", "address", "emailaddress", "name", "display_name", "id", "username", "phone")
_SUMMARY_VALUE_CHARS = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A call in our own words. Values are the agent's, cut short and redacted; screens still make hidden characters visible."""

    kind: CallKind
    sentence: str
    rows: tuple[tuple[str, str], ...]  # label, value; in reading order
    amount: Decimal | None = None  # as the arguments say, in their unit
    currency: str = ""
    risk: int = LOWEST_RISK  # `risk_of` the same call
    problems: tuple[str, ...] = ()


def facts_of(
    tool: str, action_class: ActionClass, arguments: Arguments, rule: ToolRule = NO_RULE, *, risk: int | None = None
) -> Facts:
    """Read the facts of a call. `arguments` must be redacted already. Never raises; what is missing is left out, never guessed.

    `risk` is what `risk_of` says of the record as it is stored, so that a row weighs what it is sorted by; without it, of `arguments`.
    """
    given: Mapping[str, Any] = arguments.value if isinstance(arguments.value, dict) else {}
    fields = _unwrapped(given)
    by_name = by_lower_name(fields)
    kind = _kind_of(tool, by_name)
    amount_name, amount, currency = _amount_of(fields, by_name, rule)
    number = read_number(amount)
    said = _money(amount_name, amount, number, currency)
    # A `value` or a `total` without a currency is an amount of money only where the tool moves money.
    money = said if moves_money(kind, rule) or currency or rule.amount else ""
    recipients = named_argument(fields, by_name, rule.recipient, RECIPIENT_NAMES)[1]
    if recipients is None and not rule.recipient:
        recipients = first_argument(by_name, _MORE_RECIPIENTS)[1]
    recipient = _people(recipients)
    title = _short(first_argument(by_name, _TITLE)[1])
    text = _short(first_argument(by_name, _TEXT)[1])
    reference = _short(named_argument(fields, by_name, rule.reference, REFERENCE_NAMES)[1])
    target = _short(first_argument(by_name, _TARGET)[1])
    named = {"recipient": recipient, "title": title or text, "money": money, "reference": reference, "target": target}
    rows = [
        ("To", recipient),
        ("Amount", money),
        ("Subject" if kind is CallKind.EMAIL else "Title", title),
        ("Reference", reference),
        ("Target", target),
    ]
    own = ""
    if rule.summary:
        bare = _money(amount_name, amount, number, "")
        amounts = bare if "currency" in names_in(rule.summary) else said
        facts = {"amount": amounts, "currency": currency, "recipient": recipient, "reference": reference, "title": title or text}
        own = fill_summary(rule.summary, lambda name: _value_for_summary(name, facts, given, fields))
    return Facts(
        kind=kind,
        sentence=_cut(own or _sentence(tool, kind, named, by_name), MAX_SENTENCE_CHARS),
        rows=tuple((label, value) for label, value in rows if value),
        amount=number if kind is CallKind.MONEY or (rule.moves_money and money) else None,
        currency=currency,
        risk=_risk(kind, rule) if risk is None else risk,
        problems=arguments.problems + _case_problems(fields),
    )


def risk_of(tool: str, args: str, rule: ToolRule = NO_RULE) -> int:
    """The risk rank from a stored record, cheaply: for ordering thousands of rows of which a page is shown.

    This decides: a row's place, its heading and its weight are this number.
    """
    kind = kind_of_name(tool)
    if kind is CallKind.OTHER and rule.moves_money is None and _MAY_NAME_A_CURRENCY.search(args):
        value = parse_arguments(args).value
        kind = _kind_of(tool, by_lower_name(_unwrapped(value)) if isinstance(value, dict) else {})
    return _risk(kind, rule)


def _risk(kind: CallKind, rule: ToolRule) -> int:
    return MONEY_RISK if moves_money(kind, rule) else 1 if is_irreversible(kind, rule) else LOWEST_RISK


def moves_money(kind: CallKind, rule: ToolRule = NO_RULE) -> bool:
    """What the policy says; where it leaves that to the name, what name and arguments say."""
    return kind is CallKind.MONEY if rule.moves_money is None else rule.moves_money


def is_irreversible(kind: CallKind, rule: ToolRule = NO_RULE) -> bool:
    """The same for what cannot be taken back."""
    return kind is CallKind.IRREVERSIBLE if rule.is_irreversible is None else rule.is_irreversible


def kind_of_name(tool: str) -> CallKind:
    """What sort of thing a tool does, as far as its name says."""
    # A name of a mebibyte is read, but not kept.
    return _kind_of_short_name(tool) if len(tool) <= MAX_FACT_CHARS else _kind_of_words(tool)


def by_lower_name(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Names without their case; where two differ in nothing else, the lower-case one counts, as it most likely does for the tool."""
    return {name.lower(): value for name, value in sorted(fields.items(), key=lambda item: item[0] == item[0].lower())}


def _case_problems(fields: Mapping[str, Any]) -> tuple[str, ...]:
    counts = Counter(name.lower() for name in fields)
    twice = sorted(name for name, count in counts.items() if count > 1)
    return tuple(
        f"the argument {name[:60]!r} stands in several spellings; the tool may have used another one" for name in twice[:1]
    )


def _kind_of_words(tool: str) -> CallKind:
    words = {word.lower() for word in _WORD.findall(tool)}
    return next((kind for kind, names in _KIND_WORDS if words & names), CallKind.OTHER)


_kind_of_short_name = lru_cache(maxsize=4096)(_kind_of_words)


def _kind_of(tool: str, fields: Mapping[str, Any]) -> CallKind:
    kind = kind_of_name(tool)
    if kind is not CallKind.OTHER:
        return kind
    amount = first_argument(fields, AMOUNT_NAMES)[1]
    if isinstance(amount, dict):
        return (
            _kind_of(tool, {**by_lower_name(amount), "amount": 1}) if _names_a_currency(by_lower_name(amount)) else CallKind.OTHER
        )
    return CallKind.MONEY if amount is not None and _names_a_currency(fields) else CallKind.OTHER


def _names_a_currency(fields: Mapping[str, Any]) -> bool:
    return any(name in fields for name in CURRENCY_NAMES)


def _unwrapped(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments themselves, where they stand alone in another object."""
    if len(fields) == 1:
        ((name, value),) = fields.items()
        if name.lower() in _WRAPPERS and isinstance(value, dict) and value:
            return value
    return fields


def _amount_of(fields: Mapping[str, Any], by_name: Mapping[str, Any], rule: ToolRule) -> tuple[str, Any, str]:
    """Name, amount and currency; also where both stand in an object of their own."""
    name, amount = named_argument(fields, by_name, rule.amount, AMOUNT_NAMES)
    currency = named_argument(fields, by_name, rule.currency, CURRENCY_NAMES)[1]
    if isinstance(amount, dict):
        inner = by_lower_name(amount)
        name, amount = first_argument(inner, AMOUNT_NAMES)
        currency = currency or first_argument(inner, CURRENCY_NAMES)[1]
    return name, amount, _short(currency, 12).upper()


def _value_for_summary(name: str, facts: Mapping[str, str], given: Mapping[str, Any], fields: Mapping[str, Any]) -> str:
    """What a name in a tool's own sentence stands for: a fact, else the argument of that name; objects have no words."""
    if facts.get(name):
        return _cut(facts[name], _SUMMARY_VALUE_CHARS)
    value = argument_at(given, name)
    value = argument_at(fields, name) if value is None else value
    if isinstance(value, dict):
        return ""
    return _people(value, _SUMMARY_VALUE_CHARS)


def _sentence(tool: str, kind: CallKind, named: Mapping[str, str], fields: Mapping[str, Any]) -> str:
    recipient = f" to {named['recipient']}" if named["recipient"] else ""
    quoted = f", '{named['title']}'" if named["title"] else ""
    if kind is CallKind.EMAIL:
        return f"Email{recipient}{quoted}"
    if kind is CallKind.MESSAGE:
        return f"Message{recipient}{quoted}"
    if kind is CallKind.TICKET:
        where = f" in {named['target']}" if quoted and named["target"] else ""
        return f"Ticket{quoted or recipient or _reference(named)}{where}".replace("Ticket, ", "Ticket ", 1)
    if kind is CallKind.IRREVERSIBLE and (deployed := _deployment(tool, fields)):
        return deployed
    # A currency among the arguments makes a call weigh like money; only a name that says so makes it a payment.
    if kind_of_name(tool) is CallKind.MONEY and named["money"]:
        return f"{_money_word(tool)} of {named['money']}{recipient}{_reference(named)}"
    return _plain_sentence(tool, named, fields)


def _deployment(tool: str, fields: Mapping[str, Any]) -> str:
    """`Deploy of billing-api 1.4.2 to production`; empty where it is no deployment, or nothing says of what."""
    words = {word.lower() for word in _WORD.findall(tool)}
    verb = next((says for word, says in _DEPLOY_WORDS.items() if word in words), "")
    source, what = first_argument(fields, _DEPLOYED)
    if not verb or not isinstance(what, str):
        return ""
    version = _short(first_argument(fields, tuple(name for name in _VERSION if name != source))[1], 60)
    place = _short(first_argument(fields, tuple(name for name in _PLACE if name != source))[1], 60)
    if verb == "Rollback":
        return f"Rollback of {_short(what, 80)}" + (f" to {version}" if version else "") + (f" in {place}" if place else "")
    return f"{verb} of {_short(what, 80)}" + (f" {version}" if version else "") + (f" to {place}" if place else "")


def _plain_sentence(tool: str, named: Mapping[str, str], fields: Mapping[str, Any]) -> str:
    """The tool's name in words and its first few plain arguments; for tools we know nothing about."""
    words = " ".join(word.lower() for word in _WORD.findall(tool)) or tool.strip() or "a tool without a name"
    shown = [
        f"{_short(name, 30)} {_short(value, 50)}" for name, value in fields.items() if isinstance(value, str | int | Decimal)
    ]
    return f"{words[:1].upper()}{words[1:]}" + (f": {', '.join(shown[:3])}" if shown else "")


def _reference(named: Mapping[str, str]) -> str:
    return f" ({named['reference']})" if named["reference"] else ""


def _money_word(tool: str) -> str:
    words = {word.lower() for word in _WORD.findall(tool)}
    for word in ("refund", "transfer", "payout", "charge", "withdrawal", "purchase"):
        if word in words or f"{word}s" in words:
            return word.capitalize()
    return "Payment"


def _money(name: str, amount: Any, number: Decimal | None, currency: str) -> str:
    """The amount with every digit it came with; a name that says cents says so here too. A text that is no number is shown as it is."""
    if number is None:
        return _short(amount) if amount not in (None, "") else ""
    exponent = number.as_tuple().exponent
    shown = (
        f"{number:f}" if (isinstance(exponent, int) and exponent <= -2) or "cents" in name or "minor" in name else f"{number:.2f}"
    )
    unit = " minor units" if "cents" in name or "minor" in name else ""
    return f"{shown} {currency}".strip() + unit


def amount_in(fields: Mapping[str, Any]) -> tuple[str, str, str]:
    """The name of the first argument that is an amount, the amount as sentences say it, and its currency; each empty where there is none."""
    name, amount, currency = _amount_of(fields, by_lower_name(fields), NO_RULE)
    return name, _money(name, amount, read_number(amount), currency), currency


def read_number(value: Any) -> Decimal | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | Decimal):
        number = Decimal(value)
    elif isinstance(value, str) and re.fullmatch(r"-?\d{1,15}(\.\d{1,8})?", value.strip(), re.ASCII):
        number = Decimal(value.strip())
    else:
        return None
    # An exponent of thousands would print thousands of zeros.
    return number if number.is_finite() and -20 <= number.adjusted() <= 20 else None


def argument_at(fields: Mapping[str, Any], path: str) -> Any:
    """The argument at a dotted path, else of exactly that name; None where there is none."""
    value: Any = fields
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return fields.get(path) if value is None else value


def named_argument(fields: Mapping[str, Any], by_name: Mapping[str, Any], given: str, usual: tuple[str, ...]) -> tuple[str, Any]:
    """Name and value of the argument that a policy names, else of the first usual one that is there."""
    if not given:
        return first_argument(by_name, usual)
    return given.rpartition(".")[2].lower(), argument_at(fields, given)


def first_argument(fields: Mapping[str, Any], names: tuple[str, ...]) -> tuple[str, Any]:
    for name in names:
        if fields.get(name) not in (None, "", [], {}):
            return name, fields[name]
    return "", None


def _people(value: Any, limit: int = MAX_FACT_CHARS) -> str:
    """Recipients, also where each is an object: the address in it, else its name."""
    if isinstance(value, list):
        value = [_person(item) for item in value]
    return _short(_person(value), limit)


def _person(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    found = first_argument(by_lower_name(value), _PERSON)[1]
    return _person(found) if isinstance(found, dict) else value if found is None else found


def _short(value: Any, limit: int = MAX_FACT_CHARS) -> str:
    if value is None or isinstance(value, bool):
        return "" if value is None else str(value).lower()
    if isinstance(value, list):
        return _cut(
            ", ".join(_short(item, 60) for item in value[:5]) + (f" and {len(value) - 5} more" if len(value) > 5 else ""), limit
        )
    if isinstance(value, dict):
        return _cut(", ".join(f"{_short(name, 30)} {_short(item, 30)}" for name, item in list(value.items())[:3]), limit)
    return _cut(" ".join(str(value).split()), limit)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"
