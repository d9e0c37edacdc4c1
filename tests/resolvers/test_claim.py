"""What an action claims, read from its arguments by name."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from actions.money import from_minor, to_minor
from actions.resolvers.claim import Roles, claim_of
from tests.resolvers.makers import make_action, make_claim


@pytest.mark.parametrize(
    ("value", "people"),
    [
        ("b@example.com", ("b@example.com",)),
        ("Bea <b@example.com>", ("b@example.com",)),
        ("b@example.com; c@example.com", ("b@example.com", "c@example.com")),
        (["b@example.com", "Cy <c@example.com>", "b@example.com"], ("b@example.com", "c@example.com")),
        ("ACME GmbH", ("ACME GmbH",)),
        ({"nested": "b@example.com"}, ()),
        ("x" * 20_000, ()),
        (7, ("7",)),
        (True, ()),
    ],
)
def test_recipients_are_read_without_the_names_around_them(value: Any, people: tuple[str, ...]) -> None:
    assert make_claim(args={"to": value}).recipients == people


@pytest.mark.parametrize(
    ("args", "amount"),
    [
        ({"amount": 120.0, "currency": "EUR"}, Decimal("120.0")),
        ({"amount": "120.00", "currency": "EUR"}, Decimal("120.00")),
        ({"amount_cents": 12000, "currency": "EUR"}, Decimal("120.00")),
        ({"amount_minor": 12000, "currency": "JPY"}, Decimal(12000)),
        ({"amount_minor": 12000, "currency": "kwd"}, Decimal(12)),
        ({"amount": "a lot"}, None),
        ({"amount": True}, None),
        ({}, None),
    ],
)
def test_amounts_are_in_the_main_unit(args: dict[str, Any], amount: Decimal | None) -> None:
    assert make_claim(args=args).amount == amount


def test_the_policys_names_win_and_may_lead_inside() -> None:
    action = make_action(
        args={"to": "wrong", "amount": 1, "order": {"payee": "ACME", "total": {"value": 500, "unit": "usd"}}, "inv": "R-9"}
    )
    roles = Roles(
        recipient="order.payee", amount="order.total.value", currency="order.total.unit", reference="inv", is_minor=True
    )

    claim = claim_of(action, action.args, roles)

    assert (claim.recipients, claim.amount, claim.currency, claim.reference) == (("ACME",), Decimal(5), "USD", "R-9")


def test_a_name_that_leads_nowhere_is_not_replaced_by_a_guess() -> None:
    action = make_action(args={"to": "b@example.com"})

    assert claim_of(action, action.args, Roles(recipient="order.payee")).recipients == ()


@pytest.mark.parametrize("text", ["", "not JSON", "[1, 2]", '{"a":' * 90, "null", '{"to": "\\ud800"}'])
def test_no_arguments_make_it_fail(text: str) -> None:
    claim = claim_of(make_action(args=text), text)

    assert claim.amount is None


@pytest.mark.parametrize(("amount", "currency", "minor"), [("120.00", "EUR", 12000), ("5", "JPY", 5), ("1.234", "KWD", 1234)])
def test_minor_units_and_back(amount: str, currency: str, minor: int) -> None:
    assert to_minor(Decimal(amount), currency) == minor
    assert from_minor(minor, currency) == Decimal(amount)
