"""The history: who decided what, when and why, over all stores that a person may look into."""

from __future__ import annotations

import json

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from actions.errors import InvalidQuery
from console.access import Right, may, may_somewhere, require_known, visible, visible_stores
from console.checks import recent_check, recent_checks
from console.forms import HistoryFilters, problems_of
from console.history import HistoryFilter, list_history, require_kind
from console.htmx import render_part
from console.store_news import told
from console.stores import get_store
from console.views.gate import signed_in
from console.words import ENTRY_KINDS

PAGE_SIZE = 50


@signed_in
@require_safe
def history(request: HttpRequest) -> HttpResponse:
    """Entries of every store, newest first."""
    if not may_somewhere(request.user, Right.HISTORY):
        raise PermissionDenied("you need a role that may read the history")
    filters = HistoryFilters(request.GET)
    if not filters.is_valid():
        raise InvalidQuery(problems_of(filters))
    stores = visible_stores(request.user, Right.HISTORY)
    only = filters.cleaned_data["store"]
    require_known(stores, [only] if only else [])
    require_kind(filters.cleaned_data["kind"])
    page = list_history(
        stores,
        HistoryFilter(**filters.cleaned_data),
        limit=PAGE_SIZE,
        cursor=request.GET.get("cursor"),
        may_see=visible(request.user, Right.HISTORY),
    )
    checks = recent_checks([store for store in stores if only in ("", store.name) and store.name not in page.problems])
    context = {
        "problems": [(name, told(request.user, name, problem)) for name, problem in page.problems.items()],
        "not_prepared": [name for name, check in checks.items() if check.is_reachable and not check.is_prepared],
        "cautions": checks[only].cautions if only in checks else (),
        "filters": filters,
        "page": page,
        "stores": [store.name for store in stores],
        "kinds": ENTRY_KINDS.items(),
        "is_filtered": any(filters.cleaned_data.values()),
        "is_first_page": not request.GET.get("cursor"),
    }
    return render_part(request, "history/history.html", "history/_list.html", context)


@signed_in
@require_safe
def entry(request: HttpRequest, store: str, number: int) -> HttpResponse:
    """One entry for good: what it says, and the canonical text that its hash covers."""
    missing = f"store {store} has no entry {number}"
    if not may_somewhere(request.user, Right.HISTORY, store=store) or not 0 < number < 2**62:
        raise Http404(missing)
    found = next(iter(get_store(store).list_entries(limit=1, before=number + 1)), None)
    if found is None or found.number != number or not may(request.user, Right.HISTORY, store=store, tool=found.tool):
        raise Http404(missing)
    context = {
        "store": store,
        "entry": found,
        "cautions": recent_check(get_store(store)).cautions,
        "detail": json.dumps(found.detail, indent=2, ensure_ascii=True) if found.detail else "",
    }
    return render_part(request, "history/entry.html", "history/_entry_whole.html", context)
