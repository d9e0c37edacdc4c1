"""Several are asked at once: nobody waits for another's answer."""

from __future__ import annotations

import threading

import pytest

from actions.side_by_side import AT_ONCE, ask_each


def test_all_are_asked_before_any_answers() -> None:
    everybody = threading.Barrier(3)

    def question(number: int) -> int:
        everybody.wait(timeout=30)
        return number * 10

    assert ask_each([1, 2, 3], question) == (10, 20, 30)


def test_never_more_than_the_bound_at_a_time() -> None:
    first = threading.Barrier(AT_ONCE)
    lock, now, most = threading.Lock(), 0, 0

    def question(number: int) -> int:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        if number < AT_ONCE:
            first.wait(timeout=30)
        with lock:
            now -= 1
        return number

    assert ask_each(range(AT_ONCE * 2), question) == tuple(range(AT_ONCE * 2))
    assert most == AT_ONCE


def test_one_alone_is_asked_in_the_callers_thread_and_no_thread_stays() -> None:
    assert ask_each(["x"], lambda thing: threading.current_thread()) == (threading.current_thread(),)
    assert ask_each([], lambda thing: 1) == ()

    others = ask_each(["x", "y"], lambda thing: threading.current_thread())

    assert threading.current_thread() not in others
    assert not [thread for thread in others if thread.is_alive()]


def test_an_error_comes_out_once_all_have_been_asked() -> None:
    asked = []

    def question(number: int) -> int:
        asked.append(number)
        if number == 1:
            raise ValueError("one")
        return number

    with pytest.raises(ValueError, match="one"):
        ask_each([1, 2, 3], question)
    assert sorted(asked) == [1, 2, 3]
