"""Evictions: an agent's live lease taken away, for the decisions that wait for it."""

from __future__ import annotations

from typing import Annotated

from django.http import HttpRequest, HttpResponse
from ninja import Body, Router, Schema
from pydantic import ConfigDict, Field

from console import shapes
from console.api.answers import ERRORS, ErrorOut, error_answer, json_answer
from console.api.callers import user_of
from console.api.decisions import DecisionOut
from console.api.entries import EntryOut
from console.api.parameters import AGENT, Agent, Store
from console.services.answers import STATUS
from console.services.evict import EvictionRequest, evict


class EvictionIn(Schema):
    """An eviction; what its texts may hold, the rules say."""

    model_config = ConfigDict(extra="forbid", strict=True)

    holder: str = Field(description="the lease's holder, as the item or the agent's page shows it: nobody else is evicted")
    reason: str = Field(description="how do you know that its process is gone")
    confirm: str = Field(description="the agent's id once more")
    decision_id: str = Field(description="8 to 64 of A-Z a-z 0-9 -, made anew for each eviction")


class EvictionOut(Schema):
    """What an eviction came to: its entry, and the decisions that waited, as they stand now."""

    entry: EntryOut
    decisions: list[DecisionOut]
    detail: str


router = Router()


@router.post(
    f"{AGENT}/eviction",
    response={200: EvictionOut, 201: EvictionOut, 409: ErrorOut, 412: ErrorOut, 503: ErrorOut, **ERRORS},
    summary="Take an agent's live lease away, for the decisions that wait for it",
)
def post_eviction(request: HttpRequest, store: Store, agent: Agent, body: Annotated[EvictionIn, Body()]) -> HttpResponse:
    """For admins. 201: taken by this request. 200: the same id again. 412: held otherwise by now. Does not stop the old process."""
    wanted = EvictionRequest(holder=body.holder, reason=body.reason, confirm=body.confirm, decision_id=body.decision_id)
    answer = evict(store, agent, wanted, by=user_of(request))
    status = STATUS[answer.kind]
    entry = shapes.entry_json(store, answer.entry) if answer.entry else None
    if status < 400:
        decisions = [shapes.decision_json(one, sees_problems=True) for one in answer.decisions]  # an admin of the store
        return json_answer({"entry": entry, "decisions": decisions, "detail": answer.detail}, status=status)
    return error_answer(status, answer.kind.value, answer.detail, lease=shapes.lease_json(answer.lease), entry=entry)
