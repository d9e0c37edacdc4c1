"""A tool's own sentence: what may be written, and what is wrong with the rest."""

from __future__ import annotations

import pytest
from hypothesis import given

from actions.summary import fill_summary, names_in, problem_of_summary
from tests.unit.strategies import wild_text


@pytest.mark.parametrize("template", ["", "Refund", "{amount}", "{order.total} of {my name}", "{{literally}}", "{a-b.c_d.0}"])
def test_words_and_names_in_braces_may_be_written(template: str) -> None:
    assert problem_of_summary(template) == ""


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{", "a single { at character 1"),
        ("to {name", "a single { at character 4"),
        ("name}", "a single } at character 5"),
        ("{}", "{} names no argument"),
        ("{a..b}", "{a..b} names no argument"),
        ("{ a }", "{ a } names no argument"),
        ("{a{b}}", "a single { at character 1"),
        ("two\nlines", "one line of visible characters"),
        ("x\u202ey", "one line of visible characters"),
        ("x" * 201, "at most 200 characters"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(template: str, problem: str) -> None:
    assert problem_of_summary(template).startswith(problem)
    assert fill_summary(template, lambda name: "x") == ""


@given(wild_text)
def test_any_text_is_read_or_refused(template: str) -> None:
    asked: list[str] = []

    said = fill_summary(template, lambda name: asked.append(name) or "x")  # type: ignore[func-returns-value]

    assert set(asked) == names_in(template)
    assert not (problem_of_summary(template) and said)
