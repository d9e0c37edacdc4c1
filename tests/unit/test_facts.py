"""What a call claims to do, in our own words, from whatever the agent gave."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actions.arguments import parse_arguments
from actions.facts import MAX_FACT_CHARS, MAX_SENTENCE_CHARS, CallKind, Facts, facts_of, risk_of
from actions.records import ActionClass
from actions.redaction import redact_arguments
from tests.unit.strategies import json_values, wild_text

FIELDS = [
    "to",
    "amount",
    "currency",
    "subject",
    "title",
    "order",
    "id",
    "text",
    "service",
    "amount_cents",
    "Currency",
    "TO",
    "value",
]


def facts(tool: str, **fields: Any) -> Facts:
    return facts_of(tool, ActionClass.EXTERNAL, parse_arguments(json.dumps(fields)))


@pytest.mark.parametrize(
    ("tool", "fields", "kind", "sentence"),
    [
        (
            "send_email",
            {"to": "ann@example.com", "subject": "Refund 881"},
            CallKind.EMAIL,
            "Email to ann@example.com, 'Refund 881'",
        ),
        ("sendEmail", {"to": ["a@x", "b@x"]}, CallKind.EMAIL, "Email to a@x, b@x"),
        ("create_payment", {"amount": 42.5, "currency": "eur", "to": "Ann"}, CallKind.MONEY, "Payment of 42.50 EUR to Ann"),
        ("refund_order", {"amount": "1499.00", "currency": "EUR", "order": "881"}, CallKind.MONEY, "Refund of 1499.00 EUR (881)"),
        ("charge_card", {"amount_cents": 4250, "currency": "EUR"}, CallKind.MONEY, "Charge of 4250 EUR minor units"),
        ("open_ticket", {"title": "Printer on fire"}, CallKind.TICKET, "Ticket 'Printer on fire'"),
        ("post_message", {"channel": "ops", "text": "hello"}, CallKind.MESSAGE, "Message to ops, 'hello'"),
        ("delete_branch", {"branch": "main"}, CallKind.IRREVERSIBLE, "Delete branch: branch main"),
        ("frobnicate", {"x": 1}, CallKind.OTHER, "Frobnicate: x 1"),
        ("frobnicate", {"amount": 7, "currency": "USD"}, CallKind.MONEY, "Frobnicate: amount 7, currency USD"),
        ("", {}, CallKind.OTHER, "A tool without a name"),
    ],
)
def test_a_call_in_one_sentence(tool: str, fields: dict[str, Any], kind: CallKind, sentence: str) -> None:
    found = facts(tool, **fields)

    assert (found.kind, found.sentence) == (kind, sentence)


@pytest.mark.parametrize(
    ("amount", "shown"),
    [
        (0.1, "0.10 EUR"),
        (1000000, "1000000.00 EUR"),
        ("0.005", "0.005 EUR"),
        ("12,50", "12,50"),
        ("a lot", "a lot"),
        (-5, "-5.00 EUR"),
        (10**40, str(10**40)),
        (True, "true"),
    ],
)
def test_an_amount_is_shown_with_every_digit_it_came_with(amount: Any, shown: str) -> None:
    rows = dict(facts("create_payment", amount=amount, currency="EUR").rows)

    assert rows["Amount"] == shown


def test_what_is_missing_is_left_out() -> None:
    assert facts("create_payment").rows == ()
    assert facts("create_payment").amount is None
    assert facts("create_payment").sentence == "Create payment"


def test_money_comes_before_what_cannot_be_undone_before_the_rest() -> None:
    assert [risk_of(tool, "{}") for tool in ("pay_invoice", "deploy", "send_email", "frobnicate")] == [0, 1, 2, 2]


def test_names_that_differ_only_in_case_are_told_apart_and_told() -> None:
    found = facts("create_payment", Amount=1, amount=5000, currency="EUR")
    other = facts("create_payment", amount=5000, Amount=1, currency="EUR")

    assert found.amount == other.amount == Decimal(5000)
    assert "amount" in found.problems[0]
    assert found.problems == other.problems


@given(wild_text, st.dictionaries(st.sampled_from(FIELDS) | wild_text, json_values, max_size=6))
def test_any_call_has_facts_within_bounds(tool: str, fields: dict[str, Any]) -> None:
    found = facts_of(tool, ActionClass.EXTERNAL, redact_arguments(parse_arguments(json.dumps(fields))))

    assert 0 < len(found.sentence) <= MAX_SENTENCE_CHARS
    assert all(0 < len(value) <= MAX_FACT_CHARS + 40 for _, value in found.rows)
    assert found.risk in (0, 1, 2)


@given(
    st.sampled_from(["frobnicate", "send_email", "pay", "deploy", "x"]),
    st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=6),
)
def test_the_queue_ranks_a_call_as_its_page_does(tool: str, fields: dict[str, Any]) -> None:
    text = json.dumps(fields)

    assert risk_of(tool, text) == facts_of(tool, ActionClass.EXTERNAL, parse_arguments(text)).risk


@pytest.mark.parametrize("text", ["", "not json", "[]", "7", "null", '"text"', "[" * 9_000, "{" * 9_000])
def test_arguments_that_are_no_object_have_no_facts(text: str) -> None:
    found = facts_of("create_payment", ActionClass.EXTERNAL, parse_arguments(text))

    assert (found.rows, found.kind) == ((), CallKind.MONEY)
    assert risk_of("create_payment", text) == 0
