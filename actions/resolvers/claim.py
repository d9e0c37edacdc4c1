"""What an action claims, read from its arguments by the names that the tool's policy gives, else by the usual ones. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from email.utils import getaddresses
from typing import Any

from actions.arguments import parse_arguments
from actions.facts import AMOUNT_NAMES, RECIPIENT_NAMES, REFERENCE_NAMES, by_lower_name, named_argument, read_number
from actions.money import from_minor
from actions.records import Action
from actions.resolvers.base import Claim

MAX_RECIPIENTS = 100
MAX_RECIPIENT_CHARS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """Which argument is what; a name may lead into nested objects with dots. Empty: the first of the usual names that is there."""

    recipient: str = ""
    amount: str = ""
    currency: str = ""
    reference: str = ""
    is_minor: bool = False  # the amount counts cents; a name that says cents or minor means so anyway


def claim_of(action: Action, whole_args: str, roles: Roles | None = None) -> Claim:
    """Read a claim. Never raises; what the arguments do not tell stays empty and is then neither agreed nor differed with."""
    roles = roles or Roles()
    arguments = parse_arguments(whole_args)
    fields: Mapping[str, Any] = arguments.value if isinstance(arguments.value, dict) else {}
    plain = by_lower_name(fields)
    amount_name, amount = named_argument(fields, plain, roles.amount, AMOUNT_NAMES)
    currency = _text(named_argument(fields, plain, roles.currency, ("currency",))[1]).upper()
    number = read_number(amount)
    if number is not None and (roles.is_minor or "cents" in amount_name or "minor" in amount_name):
        number = from_minor(number, currency)
    return Claim(
        action=action,
        arguments=arguments,
        recipients=people_in(named_argument(fields, plain, roles.recipient, RECIPIENT_NAMES)[1]),
        amount=number,
        currency=currency,
        reference=_text(named_argument(fields, plain, roles.reference, REFERENCE_NAMES)[1]),
    )


def sources_of(whole_args: str, roles: Roles | None = None) -> dict[str, str]:
    """Which argument each part of the claim was read from, by `recipient`, `amount`, `currency`, `reference`; empty where none was there.

    Names are as the arguments spell them; a name that the policy gives is told as the policy gives it, where it leads to something.
    """
    roles = roles or Roles()
    value = parse_arguments(whole_args).value
    fields: Mapping[str, Any] = value if isinstance(value, dict) else {}
    plain, found = by_lower_name(fields), {}
    wanted = {
        "recipient": (roles.recipient, RECIPIENT_NAMES),
        "amount": (roles.amount, AMOUNT_NAMES),
        "currency": (roles.currency, ("currency",)),
        "reference": (roles.reference, REFERENCE_NAMES),
    }
    for role, (given, usual) in wanted.items():
        name, value = named_argument(fields, plain, given, usual)
        found[role] = "" if value in (None, "", [], {}) else given or next(as_is for as_is in fields if as_is.lower() == name)
    return found


def people_in(value: Any) -> tuple[str, ...]:
    """Addresses alone, without the names around them; anything that is no address as it is. Never raises."""
    if isinstance(value, list):
        return tuple(dict.fromkeys(person for item in value[:MAX_RECIPIENTS] for person in people_in(item)))
    text = _text(value)
    if len(text) > MAX_RECIPIENT_CHARS:
        return ()  # no list of addresses, whatever it is: then it is not told
    if "@" not in text:
        return (text,) if text else ()
    found = [address for _, address in getaddresses([text.replace(";", ",")]) if "@" in address]
    return tuple(dict.fromkeys(found)) or (text,)


def _text(value: Any) -> str:
    return str(value).strip() if isinstance(value, str | int | Decimal) and not isinstance(value, bool) else ""
