"""The stores: what each can be used for now, in words, and what still waits for one that is gone."""

from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from actions.records import StoreCheck
from actions.side_by_side import ask_each
from console.access import sees_problems, visible_stores
from console.htmx import render_part
from console.models import KnownCount
from console.services.decisions import list_stranded
from console.services.known_counts import last_known
from console.views.gate import signed_in
from console.views.stranded import stranded_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLine:
    """One store of the page."""

    name: str
    check: StoreCheck
    leases_known: bool
    sees_problems: bool  # else its own words are not for this person
    known: KnownCount | None  # what was in doubt when it last answered, where it does not now


@signed_in
@require_safe
def stores(request: HttpRequest) -> HttpResponse:
    """Asks every visible store anew: this page is where one looks after mending something."""
    asked = visible_stores(request.user)
    checks = ask_each(asked, lambda store: store.check())
    known = last_known(request.user, [store.name for store, check in zip(asked, checks, strict=True) if not check.is_reachable])
    lines = [
        StoreLine(
            name=store.name,
            check=check,
            leases_known=store.leases_known,
            sees_problems=sees_problems(request.user, store.name),
            known=known.get(store.name),
        )
        for store, check in zip(asked, checks, strict=True)
    ]
    context = {"lines": lines, "stranded": stranded_lines(request.user, list_stranded(request.user))}
    return render_part(request, "stores/stores.html", "stores/_list.html", context)
