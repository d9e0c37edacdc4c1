"""Batches: many decisions in one gesture, and what became of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from ninja import Body, Path, Query, Router, Schema
from pydantic import ConfigDict, Field

from actions.errors import InvalidDecision, InvalidQuery
from actions.records import ActionRef
from console import shapes
from console.access import sees_problems, visible, visible_stores
from console.addresses import read_ref
from console.api.answers import ERRORS, ErrorOut, json_answer
from console.api.callers import user_of
from console.api.parameters import DEFAULT_LIMIT, Limit, know_query, require_stores
from console.forms import QueueFilters, problems_of
from console.models import Batch
from console.services import batches, bulk
from console.services.bulk import BatchCommitted
from console.tasks import send_batch


class BulkIn(Schema):
    """Many decisions in one gesture: those named in `refs`, or those that `filter` matches; one outcome and reason, or `proven`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    batch_id: str = Field(description="8 to 64 of A-Z a-z 0-9 -, made anew for each batch; sent again it is the same batch")
    refs: list[str] | None = Field(None, description="store/agent/number each, at most 500")
    filter: dict[str, str] | None = Field(
        None, description="as the queue's address: state, class, tool, store, agent, age, text, verdict"
    )
    outcome: str = Field("", description="done, failed or abandoned; not with proven")
    reason: str = ""
    proven: bool = Field(False, description="each as its newest evidence proves; the rest is left as it is")


class BulkItemOut(Schema):
    """One action of a batch. `outcome`: what became of it."""

    store: str
    agent: str
    seq: int
    outcome: str
    detail: str
    decision_id: str


class BulkOut(Schema):
    """A batch with one page of its items; `counts`: how many show which outcome."""

    id: str
    state: str
    outcome: str | None
    reason: str
    by: str
    at: str | None
    counts: dict[str, int]
    items: list[BulkItemOut]
    next: str | None


router = Router()


@router.post(
    "/bulk",
    response={200: BulkOut, 202: BulkOut, 409: ErrorOut, 503: ErrorOut, **ERRORS},
    summary="Decide about many actions in one gesture",
)
def post_bulk(request: HttpRequest, body: Annotated[BulkIn, Body()]) -> HttpResponse:
    """202: a worker decides one after the other. 200: this batch id again. What the world says otherwise is left out: decide it alone."""
    user = user_of(request)
    know_query(request)
    if (body.refs is None) == (body.filter is None):
        raise InvalidQuery("name the actions in refs, or say which in filter: one of the two")
    if body.proven and (body.outcome or body.reason):
        raise InvalidDecision("proven takes outcome and reason from the evidence; send neither")
    if not body.proven:
        bulk.check_said(body.outcome, body.reason, by=user)
    said = {"refs": body.refs, "filter": body.filter, "outcome": body.outcome, "reason": body.reason, "proven": body.proven}
    content = bulk.content_of(said)
    known = batches.find_own(user, body.batch_id)
    if known is not None and known.content_digest != content:
        raise BatchCommitted(known, "this batch id was used for another batch")
    if known is None:
        how: dict[str, Any] = {"by": user, "is_proven": body.proven, "batch_id": body.batch_id, "content_digest": content}
        known = bulk.draft_selected(_refs(body.refs), **how) if body.refs is not None else _matching(user, body.filter or {}, how)
    batch, is_new = bulk.commit(known.batch_id, by=user, outcome=body.outcome, reason=body.reason)
    if is_new:
        send_batch(batch.pk)
    return _answer(user, batch, status=202 if is_new else 200)


@router.get("/bulk/{batch_id}", response={200: BulkOut, **ERRORS}, summary="A batch, and what became of each of its actions")
def get_bulk(
    request: HttpRequest,
    batch_id: Annotated[str, Path()],
    limit: Limit = DEFAULT_LIMIT,
    cursor: Annotated[int, Query(ge=0, lt=2**31)] = 0,
) -> HttpResponse:
    """Yours; for an admin of everything, anybody's. Items in the order of the queue."""
    user = user_of(request)
    know_query(request, "limit", "cursor")
    return _answer(user, batches.find_batch(user, batch_id), limit=limit, after=cursor)


def _refs(texts: Sequence[str]) -> list[ActionRef]:
    found = []
    for text in texts:
        ref = read_ref(text)
        if ref is None:
            raise InvalidQuery(f"{text[:80]!r} names no action: write store/agent/number")
        found.append(ref)
    return found


def _matching(user: User, said: dict[str, str], how: dict[str, Any]) -> Batch:
    filters = QueueFilters(said)
    for name in said:
        if not filters.knows(name):
            raise InvalidQuery(f"there is no filter {name[:40]!r}")
    if not filters.is_valid():
        raise InvalidQuery(problems_of(filters))
    stores, wanted = visible_stores(user), filters.to_filter(user)
    require_stores(sorted(wanted.stores), [one.name for one in stores])
    words = ", ".join(f"{name} {value}" for name, value in said.items() if value.strip())
    narrows = filters.narrows(wanted, [one.name for one in stores])
    return bulk.draft_matching(wanted, narrows=narrows, said=f"all with {words}", **how)


def _answer(user: User, batch: Batch, *, status: int = 200, limit: int = DEFAULT_LIMIT, after: int = 0) -> HttpResponse:
    """A batch as JSON. An action that its caller may not see any more is counted and not listed."""
    items = list(batches.items_showing(batch, "").filter(number__gt=after)[: limit + 1])
    may_see, is_mine = visible(user), batch.by_id == user.pk
    listed = [item for item in items[:limit] if (may_see(item.store, item.tool) if item.tool else is_mine)]
    counts = batches.progress_of((batch,))[batch.pk].outcomes
    more = str(items[limit - 1].number) if len(items) > limit else None
    return json_answer(
        shapes.batch_json(batch, listed, counts=counts, cursor=more, sees_problems=lambda store: sees_problems(user, store)),
        status=status,
    )
