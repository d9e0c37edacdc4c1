"""Entries of the history."""

from __future__ import annotations

from typing import Annotated, Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from ninja import Query, Router, Schema

from actions.errors import InvalidQuery, StoreError
from console import shapes
from console.access import Right, may_somewhere, visible, visible_chains
from console.api.answers import ERRORS, json_answer
from console.api.callers import user_of
from console.api.parameters import DEFAULT_LIMIT, Limit, know_query, require_stores
from console.api.store_problems import StoreProblemOut
from console.forms import HistoryFilters, problems_of
from console.history import list_history, require_kind
from console.store_news import told


class EntryOut(Schema):
    store: str
    chain: str
    number: int
    at: str
    kind: str
    actor: str
    agent: str
    seq: int | None
    tool: str
    outcome: str
    reason: str
    decision_id: str
    evidence_id: str
    content_digest: str
    detail: dict[str, Any]
    text: str
    prev: str
    hash: str


class EntriesOut(Schema):
    items: list[EntryOut]
    next: str | None
    problems: list[StoreProblemOut]


router = Router()


@router.get("/audit", response={200: EntriesOut, **ERRORS}, summary="The history, newest first")
def list_entries(
    request: HttpRequest,
    store: str = "",
    agent: str = "",
    seq: Annotated[int | None, Query(ge=1, lt=2**63)] = None,
    kind: str = "",
    tool: str = "",
    actor: str = "",
    outcome: str = "",
    since: str = "",
    until: str = "",
    text: str = "",
    limit: Limit = DEFAULT_LIMIT,
    cursor: str = "",
) -> HttpResponse:
    """Entries carry their own `prev` and `hash`; `text` is what the hash covers."""
    user = user_of(request)
    know_query(request, "store", "agent", "seq", "kind", "tool", "actor", "outcome", "since", "until", "text", "limit", "cursor")
    if not may_somewhere(user, Right.HISTORY):
        raise PermissionDenied("you need a role that may read the history")
    stores = visible_chains(user, Right.HISTORY)
    require_stores([store] if store else [], [one.name for one in stores])
    filters = HistoryFilters(request.GET)
    if not filters.is_valid():
        raise InvalidQuery(problems_of(filters))
    wanted = filters.to_filter()
    require_kind(wanted.kind)
    page = list_history(stores, wanted, limit=limit, cursor=cursor or None, may_see=visible(user, Right.HISTORY))
    asked = [one for one in stores if store in ("", one.name)]
    if asked and len(page.problems) == len(asked):
        raise StoreError(*next(iter(page.problems.items())))
    problems = [{"store": name, "detail": told(user, name, problem)} for name, problem in page.problems.items()]
    items = [shapes.entry_json(one.store, one.entry) for one in page.items]
    return json_answer({"items": items, "next": page.next, "problems": problems})
