"""Filters of the queue that people keep under a name. A shared one is everybody's to use, its owner's and admins' to change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.db.models import Case, Exists, OuterRef, Q, QuerySet, When
from django.http import Http404

from actions.errors import InvalidDecision
from actions.rules import check_text, has_visible_text
from console.access import Person, Right, may
from console.models import FirstView, SavedView
from console.models.saved_view import MAX_NAME_CHARS, MAX_QUERY_CHARS

MAX_OWN = 30
MAX_SHARED = 30
"""How many of other people's shared views are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A saved view as one person sees it."""

    id: int
    name: str
    query: str
    owner: str
    is_shared: bool
    is_own: bool
    may_change: bool  # theirs, or shared and they are an admin
    is_first: bool  # their queue begins with it


def list_views(user: Person) -> tuple[View, ...]:
    """This person's own views, then those that others share, each by name; at most MAX_OWN and MAX_SHARED. One statement."""
    return tuple(_as_view(row, user) for row in _seen_by(user)[: MAX_OWN + MAX_SHARED])


def save_view(name: str, query: str, *, by: User, is_shared: bool = False) -> View:
    """Keep a filter under a name. `query` is as `QueueFilters.query` writes it.

    Raises:
        InvalidDecision: the name or the filter cannot be kept, the name is taken, or there are too many. Nothing was stored.
    """
    name = _checked(name)
    if not query:
        raise InvalidDecision("nothing is filtered here: set a filter, then save it under a name")
    if len(query) > MAX_QUERY_CHARS:
        raise InvalidDecision(f"the filter is longer than {MAX_QUERY_CHARS:,} characters")
    try:
        with transaction.atomic():
            # One after the other for one person, so that the limit holds.
            User.objects.select_for_update().get(pk=by.pk)
            if SavedView.objects.filter(owner=by).count() >= MAX_OWN:
                raise InvalidDecision(f"you have {MAX_OWN} views already; delete one first")
            row = SavedView.objects.create(name=name, query=query, owner=by, is_shared=is_shared)
    except IntegrityError as exc:
        raise _taken(name) from exc
    return find_view(row.pk, by)


def rename_view(number: int, name: str, *, by: User) -> None:
    """Raises Http404 where it is not there or not theirs to change, InvalidDecision where the name cannot be used. Nothing was changed then."""
    name = _checked(name)
    try:
        with transaction.atomic():
            _changed(_changeable(number, by).update(name=name))
    except IntegrityError as exc:
        raise _taken(name) from exc


def share_view(number: int, is_shared: bool, *, by: User) -> None:
    """Everybody's to use, or its owner's alone again. Raises Http404 where it is not there or not theirs to change."""
    _changed(_changeable(number, by).update(is_shared=is_shared))


def delete_view(number: int, *, by: User) -> None:
    """Gone for everybody; whoever's queue began with it begins with everything in doubt. Raises Http404 as `share_view`."""
    _changed(_changeable(number, by).delete()[1].get("console.SavedView", 0))


def begin_with(number: int | None, *, by: User) -> None:
    """Which view this person's queue begins with; None: everything in doubt. Raises Http404 where they do not see that view."""
    if number is None:
        FirstView.objects.filter(user=by).delete()
        return
    try:
        with transaction.atomic():  # the key is checked at its end
            FirstView.objects.update_or_create(user=by, defaults={"view_id": find_view(number, by).id})
    except IntegrityError as exc:  # deleted since it was looked for
        raise _missing() from exc


def find_view(number: int, user: Person) -> View:
    """Raises Http404 where there is none, or it is somebody else's own: both look the same."""
    row = _seen_by(user).filter(pk=number).first()
    if row is None:
        raise _missing()
    return _as_view(row, user)


def _seen_by(user: Person) -> QuerySet[SavedView]:
    number = user.pk or 0
    is_first = Exists(FirstView.objects.filter(user_id=number, view=OuterRef("pk")))
    rows = SavedView.objects.select_related("owner").filter(Q(owner_id=number) | Q(is_shared=True)).annotate(is_first=is_first)
    return rows.order_by(Case(When(owner_id=number, then=0), default=1), "name", "pk")


def _as_view(row: Any, user: Person) -> View:
    is_own = row.owner_id == user.pk
    return View(
        id=row.pk,
        name=row.name,
        query=row.query,
        owner=row.owner.get_username(),
        is_shared=row.is_shared,
        is_own=is_own,
        may_change=is_own or (row.is_shared and may(user, Right.ADMIN)),
        is_first=row.is_first,
    )


def _changeable(number: int, by: User) -> QuerySet[SavedView]:
    """The condition stands in the write: who loses the right meanwhile changes nothing."""
    theirs = Q(owner=by) | Q(is_shared=True) if may(by, Right.ADMIN) else Q(owner=by)
    return SavedView.objects.filter(theirs, pk=number)


def _changed(count: int) -> None:
    if not count:
        raise _missing()


def _missing() -> Http404:
    return Http404("there is no such view, or it is not yours to change")


def _taken(name: str) -> InvalidDecision:
    return InvalidDecision(f"you have a view called {name!r} already; choose another name, or delete that one first")


def _checked(name: str) -> str:
    name = " ".join(name.split())
    check_text("name", name)
    if not has_visible_text(name):
        raise InvalidDecision("give it a name")
    if len(name) > MAX_NAME_CHARS:
        raise InvalidDecision(f"the name has {len(name)} characters; the limit is {MAX_NAME_CHARS}")
    return name
