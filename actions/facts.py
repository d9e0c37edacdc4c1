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


RISK_RANK = {CallKind.MONEY: 0, CallKind.IRREVERSIBLE: 1}
"""Place in the queue: money first, then what cannot be taken back, then the rest by age."""
LOWEST_RISK = 2

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
            "deploy merge publish release delete remove drop terminate revoke cancel wipe destroy close push rollback".split()
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
REFERENCE_NAMES = ("reference", "invoice", "order", "order_id", "invoice_id", "payment_id", "charge", "id", "ref", "number")
_TITLE = ("subject", "title", "summary", "name", "headline")
_TEXT = ("text", "message", "body", "content", "description")
_TARGET = ("service", "repository", "repo", "branch", "resource", "path", "target", "environment", "env", "project")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A call in our own words. Values are the agent's, cut short and redacted; screens still make hidden characters visible."""

    kind: CallKind
    sentence: str
    rows: tuple[tuple[str, str], ...]  # label, value; in reading order
    amount: Decimal | None = None  # as the arguments say, in their unit
    currency: str = ""
    problems: tuple[str, ...] = ()

    @property
    def risk(self) -> int:
        return RISK_RANK.get(self.kind, LOWEST_RISK)


def facts_of(tool: str, action_class: ActionClass, arguments: Arguments) -> Facts:
    """Read the facts of a call. `arguments` must be redacted already. Never raises; what is missing is left out, never guessed."""
    fields: Mapping[str, Any] = arguments.value if isinstance(arguments.value, dict) else {}
    by_name = by_lower_name(fields)
    kind = _kind_of(tool, by_name)
    amount_name, amount = first_argument(by_name, AMOUNT_NAMES)
    number = read_number(amount)
    currency = _short(by_name.get("currency", ""), 12).upper()
    # A `value` or a `total` without a currency is an amount of money only where the tool moves money.
    money = _money(amount_name, amount, number, currency) if kind is CallKind.MONEY or currency else ""
    recipient = _short(first_argument(by_name, RECIPIENT_NAMES)[1])
    title = _short(first_argument(by_name, _TITLE)[1])
    text = _short(first_argument(by_name, _TEXT)[1])
    reference = _short(first_argument(by_name, REFERENCE_NAMES)[1])
    target = _short(first_argument(by_name, _TARGET)[1])
    named = {"recipient": recipient, "title": title or text, "money": money, "reference": reference, "target": target}
    rows = [
        ("To", recipient),
        ("Amount", money),
        ("Subject" if kind is CallKind.EMAIL else "Title", title),
        ("Reference", reference),
        ("Target", target),
    ]
    return Facts(
        kind=kind,
        sentence=_cut(_sentence(tool, kind, named, by_name), MAX_SENTENCE_CHARS),
        rows=tuple((label, value) for label, value in rows if value),
        amount=number if kind is CallKind.MONEY else None,
        currency=currency,
        problems=arguments.problems + _case_problems(fields),
    )


def risk_of(tool: str, args: str) -> int:
    """The risk rank from a stored record, cheaply: for ordering thousands of rows of which a page is shown."""
    kind = kind_of_name(tool)
    if kind is CallKind.OTHER and _MAY_NAME_A_CURRENCY.search(args):
        value = parse_arguments(args).value
        kind = _kind_of(tool, by_lower_name(value) if isinstance(value, dict) else {})
    return RISK_RANK.get(kind, LOWEST_RISK)


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
    if "currency" in fields and first_argument(fields, AMOUNT_NAMES)[1] is not None:
        return CallKind.MONEY
    return CallKind.OTHER


def _sentence(tool: str, kind: CallKind, named: Mapping[str, str], fields: Mapping[str, Any]) -> str:
    recipient = f" to {named['recipient']}" if named["recipient"] else ""
    quoted = f", '{named['title']}'" if named["title"] else ""
    if kind is CallKind.EMAIL:
        return f"Email{recipient}{quoted}"
    if kind is CallKind.MESSAGE:
        return f"Message{recipient}{quoted}"
    if kind is CallKind.TICKET:
        return f"Ticket{quoted or recipient or _reference(named)}".replace("Ticket, ", "Ticket ", 1)
    # A currency among the arguments makes a call weigh like money; only a name that says so makes it a payment.
    if kind_of_name(tool) is CallKind.MONEY and named["money"]:
        return f"{_money_word(tool)} of {named['money']}{recipient}{_reference(named)}"
    return _plain_sentence(tool, named, fields)


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


def first_argument(fields: Mapping[str, Any], names: tuple[str, ...]) -> tuple[str, Any]:
    for name in names:
        if fields.get(name) not in (None, "", [], {}):
            return name, fields[name]
    return "", None


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
