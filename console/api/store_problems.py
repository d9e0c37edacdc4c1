"""The stores of which a list does not hold everything, as a caller may know them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.http import HttpResponse
from ninja import Schema

from actions.errors import StoreError
from actions.queries import StoreStatus
from console import shapes
from console.access import Person
from console.api.answers import error_answer
from console.services.known_counts import last_known
from console.store_news import complain, told

_TRUNCATED = "it has more open actions than are read at once; the rest is not listed"


class LastKnownOut(Schema):
    """What a store held when it last answered: at least so many where `or_more`."""

    in_doubt: int
    or_more: bool
    at: str


class StoreProblemOut(Schema):
    """A store of which the list does not hold everything. `last_known` only for those who may see every tool of it."""

    store: str
    detail: str
    last_known: LastKnownOut | None = None


def store_problems(user: Person, statuses: Sequence[StoreStatus]) -> list[dict[str, Any]]:
    """In words for this caller."""
    known = last_known(user, [status.name for status in statuses if not status.is_listed])
    return [
        {
            "store": status.name,
            "detail": told(user, status.name, status.problem) if status.problem else _TRUNCATED,
            "last_known": shapes.known_json(known[status.name]) if status.name in known else None,
        }
        for status in statuses
        if status.problem or status.is_truncated
    ]


def unavailable(user: Person | None, exc: StoreError, **more: Any) -> HttpResponse:
    return error_answer(503, "unavailable", complain(user, exc.store, exc.problem), **more)
