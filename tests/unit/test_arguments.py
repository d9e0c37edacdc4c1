"""Arguments: JSON by habit, not by promise; every digit kept, every oddity told."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actions.arguments import Arguments, dump_json, parse_arguments
from actions.facts import facts_of, risk_of
from actions.records import ActionClass
from actions.redaction import HIDDEN, redact_arguments, redact_value
from tests.unit.strategies import json_values, wild_text


@given(json_values)
def test_any_json_value_comes_back(value: Any) -> None:
    arguments = parse_arguments(json.dumps(value))

    assert arguments.value == _exact(value)
    assert arguments.problems == ()


@given(json_values)
def test_a_value_written_again_means_the_same(value: Any) -> None:
    arguments = parse_arguments(json.dumps(value))

    assert parse_arguments(dump_json(arguments.value)).value == arguments.value


@given(wild_text)
def test_any_text_is_read_without_an_error(text: str) -> None:
    assert parse_arguments(text).text == text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.1", Decimal("0.1")),
        ("0.10", Decimal("0.10")),
        ("100000000000000000000000.01", Decimal("100000000000000000000000.01")),
        ("9007199254740993", 9007199254740993),
        ("1e400", Decimal("1e400")),
        ("-0.0", Decimal("-0.0")),
        ("NaN", "NaN"),
        ("-Infinity", "-Infinity"),
        ("9" * 101, "9" * 101),
        ("-0", Decimal("-0")),
        ("0e0", Decimal("0e0")),
        ("1e99999999999999999999", "1e99999999999999999999"),
        ("-1e-99999999999999999999", "-1e-99999999999999999999"),
        ("0e99999999999999999999", "0e99999999999999999999"),
        ("1E+9223372036854775808", "1E+9223372036854775808"),
    ],
)
def test_numbers_keep_every_digit(text: str, value: object) -> None:
    found = parse_arguments(f'{{"n": {text}}}').value

    assert found == {"n": value}
    assert type(found["n"]) is type(value)
    assert str(found["n"]) == str(value)


json_numbers = st.from_regex(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,25})?", fullmatch=True)
number_spellings = json_numbers | st.sampled_from(
    ["NaN", "Infinity", "-Infinity", "nan", "01", "-", "+1", ".5", "1.", "1e", "0x1", "1_0", "\u0661", "--1", "1e5e5", "\ud800"]
)


@given(json_numbers)
def test_any_number_of_json_is_kept_exactly_or_as_its_text_and_told(number: str) -> None:
    arguments = parse_arguments(f'{{"amount": {number}}}')
    amount = arguments.value["amount"]

    if isinstance(amount, str):
        assert amount == number
        assert number[:39] in arguments.problems[0]
    else:
        assert (Decimal(amount), str(amount).startswith("-")) == (Decimal(number), number.startswith("-"))
        assert arguments.problems == ()
    assert len(dump_json(arguments.value)) <= len(number) + 40


@given(number_spellings, st.sampled_from(["{}", '{{"amount": {}}}', "[{}]", '{{"currency": {}, "a": {{"b": [{}]}}}}']))
def test_no_spelling_of_a_number_is_an_error_anywhere(number: str, form: str) -> None:
    text = form.format(number, number)
    arguments = redact_arguments(parse_arguments(text))

    found = facts_of("create_payment", ActionClass.EXTERNAL, arguments)

    assert risk_of("frobnicate", text) in (0, 2)
    assert all(len(value) <= len(number) + 60 for _, value in found.rows)
    assert len(dump_json(arguments.value)) <= 2 * len(number) + 120


@given(st.integers(0, 3000), st.sampled_from(["[", '{"a":', '[{"b":']), st.booleans())
def test_no_depth_is_an_error_anywhere(depth: int, opening: str, is_closed: bool) -> None:
    closing = "".join({"[": "]", "{": "}"}[char] for char in reversed(opening) if char in "[{")
    text = opening * depth + "1" + (closing * depth if is_closed else "")
    arguments = redact_arguments(parse_arguments(text))

    assert facts_of("pay", ActionClass.EXTERNAL, arguments).risk == risk_of("pay", text)
    assert arguments.text == text


def test_a_value_deeper_than_python_recurses_is_written_and_redacted() -> None:
    value: Any = {"password": "x", "n": 10**5000, "d": Decimal("1e999999")}
    for _ in range(5000):
        value = [{"a": value}]

    text = dump_json(redact_value(value))

    assert text.startswith('[{"a": [{"a": ')
    assert f'{{"password": "{HIDDEN}", "n": 1000' in text
    assert '"d": 1E+999999}' in text


def test_a_number_that_is_no_amount_is_no_amount() -> None:
    for number in ("1e5000", "-1e5000", "1e-5000", "0e5000", "0e-5000", "1e999999999999999999", "1e99999999999999999999"):
        found = facts_of("pay", ActionClass.EXTERNAL, parse_arguments(f'{{"amount": {number}, "currency": "EUR"}}'))

        assert found.amount is None
        assert len(dict(found.rows)["Amount"]) < 40


def test_a_hundred_thousand_names_are_compared_once() -> None:
    names = ", ".join(f'"{n}": 1' for n in range(100_000))

    assert "more than 2,000" in parse_arguments(f'{{{names}, "99999": 2}}').problems[0]


def test_a_name_that_stands_twice_is_told() -> None:
    arguments = parse_arguments('{"amount": 1, "to": "x", "amount": 1000}')

    assert arguments.value == {"amount": 1000, "to": "x"}
    assert arguments.problems == ("the argument 'amount' stands twice; the last one is shown, the tool may have used the other",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("not json", "not JSON"),
        ('{"a": 1', "not JSON"),
        ("[" * 70 + "]" * 70, "nested more than 64 deep"),
        ("[" * 100_000, "nested too deeply"),
        (json.dumps({f"k{n}": n for n in range(3000)}), "more than 2,000 values"),
        (json.dumps([[[0] * 50] * 50]), "more than 2,000 values"),
    ],
)
def test_what_cannot_be_shown_as_fields_is_shown_as_text(text: str, words: str) -> None:
    arguments = parse_arguments(text)

    assert arguments.value is None
    assert arguments.text == text
    assert words in arguments.problems[0]


@pytest.mark.parametrize("text", ["", "  \n"])
def test_no_arguments_are_no_problem(text: str) -> None:
    assert parse_arguments(text) == Arguments(text=text)


def test_many_problems_are_not_piled_up() -> None:
    twice = ", ".join(f'{{"a{n}": 1, "a{n}": 2}}' for n in range(20))

    assert len(parse_arguments(f"[{twice}]").problems) == 3


def _exact(value: Any) -> Any:
    if isinstance(value, float):
        return Decimal(json.dumps(value))
    if isinstance(value, list):
        return [_exact(item) for item in value]
    if isinstance(value, dict):
        return {key: _exact(item) for key, item in value.items()}
    return value
