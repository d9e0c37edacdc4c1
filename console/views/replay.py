"""One agent's trajectory as a file, for auditors."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from console.access import Right, store_of_agent_or_404
from console.downloads import download
from console.services.decide import actor_of
from console.services.replay import begin_replay, file_name
from console.tool_rules import read_rules
from console.views.gate import only_post, signed_in


@signed_in
@only_post(lambda store, agent: reverse("agent", args=[store, agent]))
def replay(request: HttpRequest, store: str, agent: str) -> HttpResponse:
    """The file as a stream. That it was taken out is an entry, written first."""
    kept = store_of_agent_or_404(request.user, store, agent, Right.EXPORT)
    made = begin_replay(kept, agent, by=actor_of(request.user), rules=read_rules())  # type: ignore[arg-type]  # signed_in has seen to it
    made.record()
    return download(made.pieces(), file=file_name(made), content_type="application/x-ndjson")  # type: ignore[return-value]
