"""The history: who decided what, when and why, over all stores that a person may look into."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from datetime import tzinfo

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from actions.errors import InvalidQuery
from actions.times import Instant, to_datetime
from console.access import Right, may, may_somewhere, require_known, visible, visible_chains, visible_stores
from console.checks import recent_check, recent_checks
from console.forms import HistoryFilters, problems_by_field, typed_in
from console.history import changed_in, list_history, require_kind
from console.htmx import render_part
from console.services.people import zone_of
from console.services.retention import RETAINED
from console.store_news import told
from console.stores import CONSOLE_CHAIN, EntryChain, get_store
from console.views.gate import signed_in
from console.words import ENTRY_KINDS, ENTRY_OUTCOMES

PAGE_SIZE = 50


@signed_in
@require_safe
def history(request: HttpRequest) -> HttpResponse:
    """Entries of every store, newest first. Where a condition means nothing, the form as it was typed, and no entry at all."""
    if not may_somewhere(request.user, Right.HISTORY):
        raise PermissionDenied("you need a role that may read the history")
    zone = zone_of(request.user)
    filters = HistoryFilters(request.GET, zone=zone)
    chains = visible_chains(request.user, Right.HISTORY)
    form = {
        "stores": [chain.name for chain in chains],
        "kinds": ENTRY_KINDS.items(),
        "outcomes": ENTRY_OUTCOMES,
        "zone": zone,
        "may_export": may_somewhere(request.user, Right.EXPORT),
    }
    if wrong := _wrong(filters, chains):
        context = {**form, "typed": typed_in(filters), "wrong": wrong, "is_filtered": True}
        return render_part(request, "history/history.html", "history/_list.html", context, status=400)
    wanted = filters.to_filter()
    may_see = visible(request.user, Right.HISTORY)
    page = list_history(chains, wanted, limit=PAGE_SIZE, cursor=request.GET.get("cursor"), may_see=may_see)
    asked = [store for store in visible_stores(request.user, Right.HISTORY) if wanted.store in ("", store.name)]
    checks = recent_checks([store for store in asked if store.name not in page.problems])
    context = {
        **form,
        "problems": [(name, told(request.user, name, problem)) for name, problem in page.problems.items()],
        "not_prepared": [name for name, check in checks.items() if check.is_reachable and not check.is_prepared],
        "cautions": checks[wanted.store].cautions if wanted.store in checks else (),
        "typed": typed_in(filters) | {"since": _in_field(wanted.since, zone), "until": _in_field(wanted.until, zone)},
        "page": page,
        "looked": f"{page.looked:,}",
        "is_filtered": bool(wanted.said),
        "is_first_page": not request.GET.get("cursor"),
        "said": wanted.said,
    }
    return render_part(request, "history/history.html", "history/_list.html", context)


def _wrong(filters: HistoryFilters, chains: Sequence[EntryChain]) -> dict[str, str]:
    """What is wrong with each condition; empty where all of them mean something."""
    wrong = problems_by_field(filters)
    store, kind = filters.cleaned_data.get("store", ""), filters.cleaned_data.get("kind", "")
    try:
        require_known(chains, [store] if store else [])
    except InvalidQuery as exc:
        wrong["store"] = str(exc)
    try:
        require_kind(kind)
    except InvalidQuery as exc:
        wrong["kind"] = str(exc)
    return wrong


def _in_field(at: Instant | None, zone: tzinfo) -> str:
    """A moment as a field of type datetime-local takes it, by the clocks of `zone`."""
    if at is None:
        return ""
    moment = to_datetime(at)
    with suppress(OverflowError):
        moment = moment.astimezone(zone)
    return f"{moment.replace(tzinfo=None).isoformat(timespec='minutes')}"


@signed_in
@require_safe
def entry(request: HttpRequest, store: str, number: int) -> HttpResponse:
    """One entry for good: what it says, and the canonical text that its hash covers."""
    missing = f"store {store} has no entry {number}"
    if not may_somewhere(request.user, Right.HISTORY, store=store) or not 0 < number < 2**62:
        raise Http404(missing)
    chain = next((chain for chain in visible_chains(request.user, Right.HISTORY) if chain.name == store), None)
    found = next(iter(chain.list_entries(limit=1, before=number + 1)), None) if chain else None
    if chain and (found is None or found.number != number) and may(request.user, Right.HISTORY, store=store):
        raise Http404(_removed(chain, number) or missing)
    if found is None or found.number != number or not may(request.user, Right.HISTORY, store=store, tool=found.tool):
        raise Http404(missing)
    context = {
        "store": store,
        "entry": found,
        "cautions": () if store == CONSOLE_CHAIN else recent_check(get_store(store)).cautions,
        "changed": changed_in(found.detail),
        "detail": json.dumps(found.detail, indent=2, ensure_ascii=True) if found.detail else "",
    }
    return render_part(request, "history/entry.html", "history/_entry_whole.html", context)


def _removed(chain: EntryChain, number: int) -> str:
    """Which entry says that a retention removed this one; empty where none does. Whether it is to be believed, a verification says."""
    for retained in reversed(chain.list_entries(limit=100, kinds={RETAINED})):
        match retained.detail.get("removed"):
            case [_, int(last)] if number <= last:
                return f"entry {number} of store {chain.name} was removed by age; entry {retained.number} says by whom and why"
    return ""
