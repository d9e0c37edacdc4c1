"""Actions: their list, one of them whole, and asking its resolver."""

from __future__ import annotations

from typing import Annotated, Any

from django.http import HttpRequest, HttpResponse
from ninja import Query, Router, Schema
from pydantic import Field

from actions.errors import StoreError
from actions.queries import ActionFilter, list_actions, parse_classes, parse_states, read_result, rules_version
from actions.records import ActionRef
from console import shapes
from console.access import item_or_404, sees_problems, visible, visible_stores
from console.api.answers import ERRORS, ErrorOut, json_answer
from console.api.callers import user_of
from console.api.corrections import CorrectionOut
from console.api.decisions import DecisionOut
from console.api.parameters import ACTION, DEFAULT_LIMIT, Agent, Limit, Seq, Store, know_query, require_stores, split
from console.api.store_problems import StoreProblemOut, store_problems, unavailable
from console.models import DecisionState
from console.services import known_counts
from console.services.approve import proposal_digest
from console.services.asking import request_asking
from console.services.claimed import find_claim, live_claims
from console.services.corrections import standing_correction
from console.services.decisions import current_decisions
from console.services.notes import notes_on
from console.services.verdicts import verdicts_of
from console.stores import get_store
from console.tasks import send_asking
from console.tool_rules import read_book, rule_of


class LeaseOut(Schema):
    holder: str
    epoch: int
    expires_at: str
    live: bool


class ItemOut(Schema):
    """One action. Unreadable ones have a `problem`, and null where nothing is known."""

    store: str
    agent: str
    seq: int | None
    tool: str | None
    class_: Annotated[str | None, Field(alias="class")]
    key: str | None
    status: str | None
    state: str
    args: str
    args_truncated: bool
    started_at: str | None
    epoch: int | None
    digest: str | None
    claimed_by: str | None
    lease: LeaseOut | None
    problem: str | None


class WholeItemOut(ItemOut):
    ended_at: str | None
    result: str
    error: str
    resolution: str
    verdicts: list[dict[str, Any]]
    decision: DecisionOut | None
    note: dict[str, Any] | None
    notes: list[dict[str, Any]]
    correction: CorrectionOut | None


class ItemsOut(Schema):
    items: list[ItemOut]
    next: str | None
    problems: list[StoreProblemOut]


class AskingOut(Schema):
    state: str
    resolver: str
    asked: int


router = Router()


@router.get("/actions", response={200: ItemsOut, **ERRORS}, by_alias=True, summary="Actions, the open ones by default")
def list_items(
    request: HttpRequest,
    state: str = "",
    class_: Annotated[str, Query(alias="class")] = "",
    tool: str = "",
    store: str = "",
    agent: str = "",
    limit: Limit = DEFAULT_LIMIT,
    cursor: str = "",
) -> HttpResponse:
    """Each filter takes values joined by commas. Order: risk, then oldest first. Stores that did not answer stand in `problems`."""
    user = user_of(request)
    know_query(request, "state", "class", "tool", "store", "agent", "limit", "cursor")
    stores = visible_stores(user)
    require_stores(split(store), [one.name for one in stores])
    wanted = ActionFilter(
        states=parse_states(split(state)),
        classes=parse_classes(split(class_)),
        tools=frozenset(split(tool)),
        stores=frozenset(split(store)),
        agents=frozenset(split(agent)),
    )
    rules = read_book(rules_version(cursor or None)).rules
    page = list_actions(stores, wanted, limit=limit, cursor=cursor or None, may_see=visible(user), rules=rules)
    known_counts.remember(page.stores)
    problems = store_problems(user, page.stores)
    if page.stores and not any(status.is_listed for status in page.stores):
        return unavailable(user, StoreError(page.stores[0].name, page.stores[0].problem), problems=problems)
    claims = live_claims([item.ref for item in page.items])
    items = [shapes.item_json(item, claims.get(item.ref)) for item in page.items]
    return json_answer({"items": items, "next": page.next, "problems": problems})


@router.get(ACTION, response={200: WholeItemOut, **ERRORS}, by_alias=True, summary="One action, whole")
def get_item(request: HttpRequest, store: Store, agent: Agent, seq: Seq) -> HttpResponse:
    ref = ActionRef(store, agent, seq)
    know_query(request)
    user = user_of(request)
    item = item_or_404(user, ref)
    result = read_result(get_store(store), item.action, rule_of(item.action.tool)) if item.action else ""
    decision, notes = current_decisions([ref]).get(ref), notes_on(ref)
    shown = shapes.whole_item_json(
        item,
        result=result,
        decision=decision,
        note=notes[0] if notes else None,
        notes=notes,
        verdicts=verdicts_of(ref),
        claim=find_claim(ref),
        correction=standing_correction(ref),
        sees_problems=sees_problems(user, store),
    )
    if decision is not None and decision.state == DecisionState.PROPOSED:
        shown["decision"]["seen"] = proposal_digest(decision, item)
    return json_answer(shown)


@router.post(
    f"{ACTION}/resolve",
    response={202: AskingOut, 409: ErrorOut, 503: ErrorOut, **ERRORS},
    summary="Ask the tool's resolver now",
)
def post_resolve(request: HttpRequest, store: Store, agent: Agent, seq: Seq) -> HttpResponse:
    """202: it is asked at once, by a worker; what it found stands in the action's `verdicts`. 409: nobody can be asked about it."""
    know_query(request)
    inquiry = request_asking(ActionRef(store, agent, seq), by=user_of(request))
    send_asking([inquiry.pk])
    return json_answer({"state": "asking", "resolver": inquiry.resolver, "asked": inquiry.asked}, status=202)
