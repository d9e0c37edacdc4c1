"""The replay of one agent."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from ninja import Router

from console.access import Right, store_of_agent_or_404
from console.api.answers import ERRORS, ErrorOut
from console.api.callers import user_of
from console.api.parameters import AGENT, Agent, Store, know_query
from console.downloads import download
from console.services.decide import actor_of
from console.services.replay import begin_replay, file_name
from console.tool_rules import read_rules

router = Router()


@router.get(
    f"{AGENT}/replay",
    response={200: str, 503: ErrorOut, **ERRORS},
    summary="One agent's trajectory, oldest first, as JSON Lines",
)
def get_replay(request: HttpRequest, store: Store, agent: Agent) -> HttpResponse:
    """For auditors of the whole store. Streamed; the last line is of kind `replay_end`, and without it the file is not whole. It is an entry."""
    know_query(request)
    user = user_of(request)
    kept = store_of_agent_or_404(user, store, agent, Right.EXPORT)
    made = begin_replay(kept, agent, by=actor_of(user), rules=read_rules())
    made.record()
    return download(made.pieces(), file=file_name(made), content_type="application/x-ndjson")  # type: ignore[return-value]
