"""Corrections: what really happened to an action that was ended here."""

from __future__ import annotations

from typing import Annotated

from django.http import HttpRequest, HttpResponse
from ninja import Body, Router, Schema
from pydantic import ConfigDict, Field

from actions.records import ActionRef
from console import shapes
from console.api.answers import ERRORS, ErrorOut, error_answer, json_answer
from console.api.callers import user_of
from console.api.parameters import ACTION, Agent, Seq, Store, know_query
from console.services.correct import CorrectionRequest, correct_end, withdraw_correction
from console.services.correction_answers import STATUS_OF_CORRECTION, CorrectionAnswer

_CORRECTION = f"{ACTION}/correction"


class CorrectionOut(Schema):
    """What was told to the agent after an end that was wrong. `was_read`: yes, no or unknown, of what it was told first."""

    id: str
    state: str
    outcome: str
    told: str
    reason: str
    by: str
    at: str
    why: str
    turn: int | None
    entry: int | None
    was_read: str | None
    incident: int | None = Field(None, description="in answers to a gesture: the incident that was opened with it")
    detail: str | None = None


class CorrectionIn(Schema):
    """What really happened to an action that a decision or resolver here ended."""

    model_config = ConfigDict(extra="forbid", strict=True)

    outcome: str = Field(description="done, failed or unknown: what really happened")
    reason: str
    correction_id: str = Field(description="8 to 64 of A-Z a-z 0-9 -, made anew for each correction")


router = Router()


@router.post(
    _CORRECTION,
    response={200: CorrectionOut, 201: CorrectionOut, 202: CorrectionOut, 409: ErrorOut, 412: ErrorOut, 503: ErrorOut, **ERRORS},
    summary="Say that a written end was wrong",
)
def post_correction(
    request: HttpRequest, store: Store, agent: Agent, seq: Seq, body: Annotated[CorrectionIn, Body()]
) -> HttpResponse:
    """The action keeps its end; its agent is told by one turn more. 201: written. 200: the same id again. 202: kept: its agent is
    alive, or a second person has to approve it on its page (`state`)."""
    wanted = CorrectionRequest(outcome=body.outcome, reason=body.reason, correction_id=body.correction_id)
    return _answer(correct_end(ActionRef(store, agent, seq), wanted, by=user_of(request)))


@router.delete(_CORRECTION, response={200: CorrectionOut, 409: ErrorOut, **ERRORS}, summary="Withdraw the correction on its way")
def delete_correction(request: HttpRequest, store: Store, agent: Agent, seq: Seq, correction_id: str = "") -> HttpResponse:
    user = user_of(request)
    know_query(request, "correction_id")
    return _answer(withdraw_correction(ActionRef(store, agent, seq), by=user, correction_id=correction_id))


def _answer(answer: CorrectionAnswer) -> HttpResponse:
    status = STATUS_OF_CORRECTION[answer.kind]
    # Whoever corrects or withdraws may settle there.
    shown = shapes.correction_json(answer.correction, sees_problems=True) if answer.correction else None
    if status < 400:
        incident = answer.incident.pk if answer.incident else None
        return json_answer({**(shown or {}), "incident": incident, "detail": answer.detail}, status=status)
    return error_answer(status, answer.kind.value, answer.detail, correction=shown)
