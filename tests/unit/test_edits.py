"""What a person changed in arguments: what was hidden stays, and what differs is said value by value."""

from __future__ import annotations

import json
from typing import Any

import pytest

from actions.redaction import HIDDEN
from console.edits import NotAnEdit, can_be_edited, edits_between, read_edit

SECRET = "sk_live_" + "51H8abcdEFGHijklMNOP"
NO_NAMES: frozenset[str] = frozenset()


@pytest.mark.parametrize(
    ("args", "typed", "whole"),
    [
        ({"a": 1, "api_key": SECRET}, {"a": 2, "api_key": HIDDEN}, {"a": 2, "api_key": SECRET}),
        ({"a": 1, "iban": "DE1"}, {"iban": HIDDEN, "a": 1.5}, {"iban": "DE1", "a": 1.5}),
        ({"p": [{"iban": "DE1", "n": 1}]}, {"p": [{"iban": HIDDEN, "n": 2}]}, {"p": [{"iban": "DE1", "n": 2}]}),
        ({"iban": "DE1"}, {"iban": "DE2"}, {"iban": "DE2"}),
        ({"iban": "DE1", "a": 1}, {"a": 1}, {"a": 1}),
        ({"said": f"{HIDDEN} is what it says"}, {"said": f"{HIDDEN} is what it says", "a": 1}, {"said": f"{HIDDEN} is what it says", "a": 1}),
        ({"n": 12345678901234567890, "x": 0.1}, {"n": 12345678901234567890, "x": 0.25}, {"n": 12345678901234567890, "x": 0.25}),
    ],
)  # fmt: skip
def test_what_was_hidden_stays_where_it_was_left(args: Any, typed: Any, whole: Any) -> None:
    assert read_edit(json.dumps(typed), json.dumps(args), frozenset({"iban"})) == whole


@pytest.mark.parametrize(
    "typed",
    [
        "",
        "{",
        "[1]",
        "null",
        '{"a": 1, "a": 2}',
        '{"b": "[redacted]"}',
        '{"a": {"iban": "[redacted]"}}',
        "[" * 3000,
        '{"a": NaN}',
    ],
)
def test_what_cannot_be_arguments_is_refused(typed: str) -> None:
    with pytest.raises(NotAnEdit):
        read_edit(typed, '{"a": 1, "iban": "DE1"}', frozenset({"iban"}))


def test_differences_are_named_with_their_place_and_their_types() -> None:
    before = {"a": 1, "b": {"c": [1, 2], "d": "x"}, "gone": True, "same": None, "api_key": SECRET}
    after = {"a": "1", "b": {"c": [1, 3], "d": "x"}, "same": None, "new": 5, "api_key": SECRET + "x"}
    found = edits_between(json.dumps(before), json.dumps(after), NO_NAMES)

    said = [(one.path, one.before, one.after, one.types) for one in found]
    assert said[:4] == [
        ("a", "1", '"1"', "number → text"),
        ("b.c.2", "2", "3", ""),
        ("gone", "true", None, ""),
        ("api_key", f'"{HIDDEN}"', f'"{HIDDEN}"', ""),
    ]
    assert said[4:] == [("new", None, "5", "")]
    assert SECRET not in repr(found)


def test_nothing_differs_where_only_the_order_does() -> None:
    assert edits_between('{"a": 1, "b": 2}', '{"b": 2, "a": 1}', NO_NAMES) == ()
    assert edits_between('{"a": true}', '{"a": 1}', NO_NAMES) != ()


def test_only_an_object_that_can_be_read_whole_can_be_edited() -> None:
    assert can_be_edited('{"a": 1}')
    assert not any(can_be_edited(text) for text in ("[1]", "text", '{"a": 1, "a": 2}', ""))
