"""Arguments: JSON by habit, not by promise; every digit kept, every oddity told."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given

from actions.arguments import Arguments, dump_json, parse_arguments
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
    ],
)
def test_numbers_keep_every_digit(text: str, value: object) -> None:
    found = parse_arguments(f'{{"n": {text}}}').value

    assert found == {"n": value}
    assert type(found["n"]) is type(value)
    assert str(found["n"]) == str(value)


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
