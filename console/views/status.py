"""What may change on the page of one action while somebody reads it. Fetched when something changed elsewhere."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from actions.records import ActionRef
from console.htmx import render_part, wants_partial
from console.views.action import action_context, agent_context
from console.views.decision import foot
from console.views.gate import signed_in


@signed_in
@require_safe
def status(request: HttpRequest, store: str, agent: str, seq: int) -> HttpResponse:
    """State, lease, the decision on its way, entries; with `foot` what became of that decision alone."""
    if decision_id := request.GET.get("foot", ""):
        return foot(request, ActionRef(store, agent, seq), decision_id[:64], request.GET.get("was", ""))
    seen = request.GET.get("seen", "")
    context = action_context(request, ActionRef(store, agent, seq), with_agent=not wants_partial(request))
    has_changed = bool(seen) and seen != context["item"].digest
    if has_changed and wants_partial(request):
        context |= agent_context(request, context["ref"])
    context |= {"seen": seen, "has_changed": has_changed, "is_beside": True}
    return render_part(request, "actions/action.html", "actions/_status.html", context)
