"""Lengths of time as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.durations import NotADuration, format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90 s", 90),
        ("15 min", 900),
        ("3 d", 259_200),
        ("1 h 30 min", 5_400),
        (" 2H ", 7_200),
        ("1d2h", 93_600),
        ("0 s", 0),
        ("1 week 2 days", 777_600),
    ],
)
def test_it_reads_what_people_write(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", " ", "90", "1 year", "-5 min", "1.5 h", "5 min ago", "min", "9999999999 s", "١ h"])
def test_what_could_mean_two_things_is_refused(text: str) -> None:
    with pytest.raises(NotADuration, match="90 s, 15 min, 2 h or 3 d"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        ("s sec secs second seconds", 1),
        ("min mins minute minutes", 60),
        ("h hour hours", 3_600),
        ("d day days", 86_400),
        ("w week weeks", 604_800),
    ],
)
def test_every_usual_word_for_a_unit_is_read(words: str, seconds: int) -> None:
    assert {parse_duration(f"2 {word}") for word in words.split()} == {2 * seconds}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("1.5 h", "fraction"),
        ("1,5 h", "fraction"),
        ("0.5 days", "fraction"),
        ("3 d 3 d", "d twice"),
        ("1 hour 2 h", "h twice"),
    ],
)
def test_fractions_and_units_said_twice_are_refused_by_name(text: str, problem: str) -> None:
    with pytest.raises(NotADuration, match=problem):
        parse_duration(text)


@given(st.integers(min_value=0, max_value=10**9))
def test_what_is_shown_is_read_back_as_the_same(seconds: int) -> None:
    assert parse_duration(format_duration(seconds)) == seconds
