"""Saved views: the filters that people keep under a name, and what they do with them."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from actions.errors import InvalidDecision, InvalidQuery
from console.access import require_known, visible_stores
from console.forms import QueueFilters, problems_of
from console.htmx import render_part
from console.services.saved_views import begin_with, delete_view, find_view, list_views, rename_view, save_view, share_view
from console.texts import take_texts
from console.views.gate import only_post, signed_in, user_of


@signed_in
@require_http_methods(["GET", "HEAD", "POST"])
def saved_views(request: HttpRequest) -> HttpResponse:
    """All that this person may use; a POST keeps a filter under a name and goes back to the queue with it."""
    if request.method == "POST":
        return _save(request)
    return _page(request, {"query": _query_or_nothing(request.GET.urlencode())})


@signed_in
@only_post(lambda number: reverse("saved-views"))
def saved_view(request: HttpRequest, number: int) -> HttpResponse:
    """One gesture on one view: rename, share, keep, begin, or delete."""
    user = user_of(request)
    odd = take_texts(request)
    gesture, name = request.POST.get("gesture", ""), request.POST.get("name", "")
    try:
        if odd:
            raise InvalidDecision(next(iter(odd.values())))
        if gesture == "rename":
            rename_view(number, name, by=user)
        elif gesture in ("share", "keep"):
            share_view(number, gesture == "share", by=user)
        elif gesture == "begin":
            begin_with(number, by=user)
        elif gesture == "end":
            find_view(number, user)
            begin_with(None, by=user)
        elif gesture == "delete":
            delete_view(number, by=user)
        else:
            raise InvalidQuery("a view is renamed, shared, kept, begun with or deleted; nothing was changed")
    except InvalidDecision as exc:
        return _page(request, {"problem_of": number, "problem": str(exc), "typed": name}, status=422)
    return redirect("saved-views")


def _save(request: HttpRequest) -> HttpResponse:
    odd = take_texts(request)
    name, query = request.POST.get("name", ""), request.POST.get("query", "")[:5_000]
    try:
        if odd:
            raise InvalidDecision(next(iter(odd.values())))
        filters = QueueFilters(QueryDict(query))
        if not filters.is_valid():
            raise InvalidDecision(problems_of(filters))
        wanted = filters.to_filter(request.user)
        require_known(visible_stores(request.user), wanted.stores)
        view = save_view(name, filters.query, by=user_of(request), is_shared=request.POST.get("shared") == "yes")
    except (InvalidDecision, InvalidQuery) as exc:
        return _page(request, {"query": query, "problem": str(exc), "typed": name}, status=422)
    return redirect(f"{reverse('queue')}?{view.query}")


def _page(request: HttpRequest, context: dict[str, Any], *, status: int = 200) -> HttpResponse:
    views = list_views(request.user)
    shown = [(view, _chips(view.query)) for view in views]
    context = {"views": shown, "asked": _chips(context.get("query", "")), **context}
    return render_part(request, "saved_views/saved_views.html", "saved_views/_list.html", context, status=status)


def _query_or_nothing(said: str) -> str:
    filters = QueueFilters(QueryDict(said[:5_000]))
    return filters.query if filters.is_valid() else ""


def _chips(query: str) -> list[tuple[str, str]]:
    """What a filter asks for, in words; nothing where it cannot be read any more."""
    filters = QueueFilters(QueryDict(query))
    if not filters.is_valid():
        return []
    found = [(chip.label, chip.value) for chip in filters.chips]
    return [*found, ("Grouped by", "crash")] if filters.cleaned_data["group"] else found
