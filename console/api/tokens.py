"""The token that a request came with."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from ninja import Router, Schema

from console.api.answers import ERRORS, json_answer
from console.api.callers import caller_of
from console.api.parameters import know_query


class TokenOut(Schema):
    """Whose token it is: a user's, or one agent's of one store."""

    user: str | None
    store: str | None
    agent: str | None


router = Router()


@router.get("/token", response={200: TokenOut, **ERRORS}, summary="Whose token this is")
def get_token(request: HttpRequest) -> HttpResponse:
    """A user's name, or a store and an agent: what an agent needs to know to ask about its own actions."""
    know_query(request)
    caller = caller_of(request)
    if caller.user is not None:
        return json_answer({"user": caller.user.get_username(), "store": None, "agent": None})
    return json_answer({"user": None, "store": caller.store, "agent": caller.agent})
