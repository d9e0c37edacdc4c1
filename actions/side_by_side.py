"""Asking several at once, so that one that is slow adds nothing to the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE = 16
"""How many are asked at a time by one caller; the others wait for a place."""


def ask_each(things: Sequence[T], question: Callable[[T], R]) -> tuple[R, ...]:
    """The answers, in the order of `things`; the first error is raised once all have been asked.

    Each is asked in a thread that ends with this call, one alone in the caller's own. So the question must not touch what belongs to
    a thread: a connection of Django's would be left open in each. What the caller's context says (a page's deadline) holds in each of them.
    """
    if len(things) < 2:
        return tuple(question(thing) for thing in things)
    with ThreadPoolExecutor(min(len(things), AT_ONCE), thread_name_prefix="side-by-side") as threads:
        contexts = [copy_context() for _ in things]
        return tuple(threads.map(lambda context, thing: context.run(question, thing), contexts, things))
