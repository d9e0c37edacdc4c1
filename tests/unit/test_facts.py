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
from actions.tool_rules import ToolRule, hidden_name
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
        (
            "deploy",
            {"service": "billing-api", "version": "1.4.2", "environment": "production"},
            CallKind.IRREVERSIBLE,
            "Deploy of billing-api 1.4.2 to production",
        ),
        ("create_deployment", {"repo": "acme/app", "ref": "main"}, CallKind.IRREVERSIBLE, "Deploy of acme/app main"),
        ("rollback_service", {"app": "shop", "tag": "v3", "env": "eu"}, CallKind.IRREVERSIBLE, "Rollback of shop to v3 in eu"),
        ("deploy_all", {"env": "production"}, CallKind.IRREVERSIBLE, "Deploy all: env production"),
        (
            "send_mail",
            {"message": {"to": [{"emailAddress": {"address": "a@x"}}], "subject": "Hi"}},
            CallKind.EMAIL,
            "Email to a@x, 'Hi'",
        ),
        ("send_email", {"recipients": [{"email": "a@x", "name": "Ann"}, "b@x"]}, CallKind.EMAIL, "Email to a@x, b@x"),
        ("send_email", {"to_email": "a@x", "template": "welcome"}, CallKind.EMAIL, "Email to a@x, 'welcome'"),
        ("send_sms", {"phone_number": "+49 30 1", "body": "Code"}, CallKind.MESSAGE, "Message to +49 30 1, 'Code'"),
        (
            "issue_refund",
            {"amount": {"value": "42.50", "currency_code": "eur"}, "payment_id": "pi_1"},
            CallKind.MONEY,
            "Refund of 42.50 EUR (pi_1)",
        ),
        ("create_payment", {"input": {"amount": 7, "currency": "EUR"}}, CallKind.MONEY, "Payment of 7.00 EUR"),
        ("create_issue", {"repo": "acme/app", "title": "Crash"}, CallKind.TICKET, "Ticket 'Crash' in acme/app"),
        ("create_ticket", {"id": 7}, CallKind.TICKET, "Ticket (7)"),
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


ORDER = {"amount": 120, "currency": "EUR", "customer": {"name": "ACME"}, "order": {"id": 7, "lines": [1]}, "note": ""}


@pytest.mark.parametrize(
    ("summary", "sentence"),
    [
        ("Refund of {amount} to {customer.name}", "Refund of 120.00 EUR to ACME"),
        ("{currency} {amount}: order {order.id}, {{as is}}", "EUR 120.00: order 7, {as is}"),
        ("Order {order.id} for {nobody}", "Refund of 120.00 EUR to ACME (id 7, lines 1)"),  # never half a sentence
        ("Order {order}", "Refund of 120.00 EUR to ACME (id 7, lines 1)"),  # an object has no words
        ("With {note}", "Refund of 120.00 EUR to ACME (id 7, lines 1)"),
        ("broken {", "Refund of 120.00 EUR to ACME (id 7, lines 1)"),
    ],
)
def test_a_tools_own_sentence_stands_whole_or_not_at_all(summary: str, sentence: str) -> None:
    arguments = parse_arguments(json.dumps(ORDER))

    found = facts_of("refund", ActionClass.EXTERNAL, arguments, ToolRule(summary=summary))

    assert found.sentence == sentence


def test_values_of_a_sentence_are_cut_and_redacted() -> None:
    arguments = redact_arguments(
        parse_arguments(json.dumps({"a": "x" * 500, "password": "hunter2", "iban": "DE02"})), frozenset({"iban"})
    )

    found = facts_of("t", ActionClass.EXTERNAL, arguments, ToolRule(summary="{password} {iban} {a}"))

    assert found.sentence == f"[redacted] [redacted] {'x' * 79}…"


@pytest.mark.parametrize(
    ("tool", "rule", "risk"),
    [
        ("send_email", ToolRule(moves_money=True), 0),
        ("send_email", ToolRule(is_irreversible=True), 1),
        ("create_payment", ToolRule(moves_money=False), 2),
        ("create_payment", ToolRule(moves_money=False, is_irreversible=True), 1),
        ("deploy", ToolRule(is_irreversible=False), 2),
    ],
)
def test_the_policy_decides_the_weight_and_the_words_stay(tool: str, rule: ToolRule, risk: int) -> None:
    arguments = parse_arguments('{"to": "a@x", "amount": 5, "currency": "EUR", "service": "shop"}')

    found = facts_of(tool, ActionClass.EXTERNAL, arguments, rule)

    assert found.risk == risk_of(tool, arguments.text, rule) == risk
    assert found.sentence == facts_of(tool, ActionClass.EXTERNAL, arguments).sentence


def test_the_policy_says_which_argument_is_what() -> None:
    rule = ToolRule(recipient="beneficiary.iban", amount="total.net", currency="total.unit", reference="note")
    arguments = parse_arguments('{"to": "x", "beneficiary": {"iban": "DE02"}, "total": {"net": 5, "unit": "chf"}, "note": "R7"}')

    found = facts_of("wire_transfer", ActionClass.EXTERNAL, arguments, rule)

    assert found.sentence == "Transfer of 5.00 CHF to DE02 (R7)"


HIDDEN_CASES = [
    '{"iban": "S3CRET"}',
    '{"IBAN": "S3CRET"}',
    '{"a": [{"b": {"i-ban": ["S3CRET"]}}]}',
    '{"body": "{\\"iban\\": \\"S3CRET\\"}"}',
    '{"body": "please use iban: S3CRET"}',
    '{"body": "your iban=S3CRET"}',
    '{"fields": [{"name": "iban", "value": "S3CRET"}]}',
    '{"iban": "S3CRET", "iban": "S3CRET2"}',
    '{"iban": "S3CRET", "x": "cut of',
    '{"\\u0069ban": "S3CRET", "x": "cut of',
    "iban: S3CRET",
]


@pytest.mark.parametrize("text", HIDDEN_CASES)
def test_a_name_that_the_policy_hides_is_hidden_at_every_depth_and_in_what_cannot_be_read(text: str) -> None:
    assert "S3CRET" in redact_arguments(parse_arguments(text)).text

    hidden = redact_arguments(parse_arguments(text), frozenset({hidden_name("iban")}))

    assert "S3CRET" not in hidden.text
    assert "S3CRET" not in str(hidden.value)
    assert "[redacted]" in hidden.text


def test_other_names_and_empty_values_stay_as_the_agent_wrote_them() -> None:
    text = '{"iban" : null, "amount": 5, "body": "no iban here", "ibanOf": "Ann"}'

    assert redact_arguments(parse_arguments(text), frozenset({"iban"})).text == text


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
