"""Claims: who is at an action."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from ninja import Router, Schema
from pydantic import ConfigDict, Field

from actions.records import ActionRef
from console import shapes
from console.access import Right, item_or_404
from console.api.answers import ERRORS, ErrorOut, json_answer
from console.api.callers import user_of
from console.api.parameters import ACTION, Agent, Seq, Store, know_query
from console.services.claims import ClaimAnswer, ClaimKind, claim, release, take_over

_CLAIM = f"{ACTION}/claim"
_STATUS = {ClaimKind.CLAIMED: 201, ClaimKind.MINE: 200, ClaimKind.RELEASED: 200, ClaimKind.NOT_MINE: 404}


class ClaimOut(Schema):
    claimed_by: str | None
    claimed_at: str | None
    expires_at: str | None
    detail: str


class ClaimIn(Schema):
    """Whose claim is taken over; left out, only what nobody has is claimed."""

    model_config = ConfigDict(extra="forbid", strict=True)

    take_over_from: str | None = Field(None, description="the user who has it, as `claimed_by` says")


router = Router()


@router.post(_CLAIM, response={200: ClaimOut, 201: ClaimOut, 409: ErrorOut, **ERRORS}, summary="Claim an open action")
def post_claim(request: HttpRequest, store: Store, agent: Agent, seq: Seq, body: ClaimIn | None = None) -> HttpResponse:
    """201: yours now. 200: it was yours; renewed. 409: somebody else's (`claimed_by`), or it has ended. A claim keeps nobody from deciding."""
    ref, user = ActionRef(store, agent, seq), user_of(request)
    know_query(request)
    whose = body.take_over_from if body else None
    return _answer(take_over(ref, whose=whose, by=user) if whose else claim(ref, by=user))


@router.delete(_CLAIM, response={200: ClaimOut, **ERRORS}, summary="Give one's own claim back")
def delete_claim(request: HttpRequest, store: Store, agent: Agent, seq: Seq) -> HttpResponse:
    ref, user = ActionRef(store, agent, seq), user_of(request)
    know_query(request)
    item_or_404(user, ref, Right.SETTLE)
    return _answer(release(ref, by=user))


def _answer(answer: ClaimAnswer) -> HttpResponse:
    found, status = answer.claim, _STATUS.get(answer.kind, 409)
    shown = {
        "claimed_by": found.username if found else None,
        "claimed_at": shapes.time_json(found.claimed_at) if found else None,
        "expires_at": shapes.time_json(found.expires_at) if found else None,
        "detail": answer.detail,
    }
    return json_answer(shown if status < 400 else {"error": answer.kind.value, **shown}, status=status)
