"""The order of a replay's lines, and what one of them may hold: pure."""

from __future__ import annotations

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from actions.replay import RANK, Line, as_text, in_order, write_replay


def a_line(kind: str, number: int, at: int | None, end: int | None = None) -> Line:
    ended = Line(kind="end", number=number, at=end, says={}) if end is not None else None
    return Line(kind=kind, number=number, at=at, says={}, end=ended)


def told(*streams: list[Line]) -> list[tuple[str, int, int]]:
    return [(line.kind, line.number, at) for at, line in in_order(streams)]


def test_ends_stand_at_their_own_time_and_things_of_one_moment_in_one_order() -> None:
    calls = [a_line("call", 1, 10, end=50), a_line("call", 2, 20, end=30)]
    turns = [a_line("turn", 1, 5), a_line("turn", 2, 50)]
    entries = [a_line("entry", 9, 50)]

    assert told(entries, turns, calls) == [
        ("turn", 1, 5),
        ("call", 1, 10),
        ("call", 2, 20),
        ("end", 2, 30),
        ("end", 1, 50),
        ("turn", 2, 50),
        ("entry", 9, 50),
    ]


def test_a_clock_that_ran_back_moves_no_line_before_the_one_of_its_kind_before_it() -> None:
    turns = [a_line("turn", 1, 100), a_line("turn", 2, 20), a_line("turn", 3, None)]

    assert told(turns, [a_line("call", 1, 60, end=40)]) == [
        ("call", 1, 60),
        ("end", 1, 60),
        ("turn", 1, 100),
        ("turn", 2, 100),
        ("turn", 3, 100),
    ]
    written = [json.loads(line) for line in write_replay({}, in_order([turns]))]
    assert [(line["at"] is None, "placed_at" in line) for line in written[1:-1]] == [(False, False), (False, True), (True, False)]


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 20), st.none() | st.integers(0, 20)), max_size=12), min_size=1, max_size=len(RANK) - 1
    )
)
def test_every_line_comes_once_and_times_never_fall(made: list[list[tuple[int, int | None]]]) -> None:
    kinds = [kind for kind in RANK if kind != "end"]
    streams = [
        [a_line(kind, number, at, end) for number, (at, end) in enumerate(of_kind, start=1)]
        for kind, of_kind in zip(kinds, made, strict=False)
    ]

    found = told(*streams)

    assert all(before[2] <= after[2] for before, after in pairwise(found))
    ends = sum(line.end is not None for stream in streams for line in stream)
    assert len(found) == sum(map(len, streams)) + ends
    for kind in kinds:
        numbers = [number for k, number, _ in found if k == kind]
        assert numbers == sorted(numbers)


@given(st.text())
def test_any_text_is_one_line_of_ascii_and_reads_back_as_it_was(text: str) -> None:
    written = as_text({"content": text, text: [text]})

    assert written.isascii()
    assert written.count("\n") == 1
    assert all(char >= " " and char != "\x7f" for char in written[:-1])
    assert json.loads(written)[text] == [text]
