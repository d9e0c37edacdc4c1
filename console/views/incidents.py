"""Incidents: what the world says against a written end. The banner of every page, the list, one incident and its closing note."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from actions.errors import InvalidDecision
from actions.rules import MAX_REASON_CHARS
from console.access import Right, may, visible, visible_stores
from console.evidence import view_of
from console.htmx import render_part, wants_partial
from console.services.incidents import close_incident, closed_incidents, find_incident, visible_open_incidents
from console.texts import take_texts
from console.views.gate import signed_in, user_of

SHOWN = 50


@signed_in
@require_safe
def incidents(request: HttpRequest) -> HttpResponse:
    """Those that nobody has closed, oldest first, then the newest closed ones."""
    stores = [store.name for store in visible_stores(request.user)]
    may_see = visible(request.user)
    context = {
        "opened": visible_open_incidents(request.user),
        "closed": [one for one in closed_incidents(stores, limit=SHOWN) if may_see(one.store, one.tool)],
    }
    return render_part(request, "incidents/incidents.html", "incidents/_list.html", context)


@signed_in
@require_safe
def banner(request: HttpRequest) -> HttpResponse:
    """What stands on top of every page, for whoever may see the action; fetched when something changed elsewhere."""
    if not wants_partial(request):
        return redirect("incidents")
    return render_part(request, "incidents/incidents.html", "incidents/_banner.html")


@signed_in
@require_http_methods(["GET", "HEAD", "POST"])
def incident(request: HttpRequest, number: int) -> HttpResponse:
    """One incident with its evidence; a POST closes it with a note about what was done."""
    found = find_incident(request.user, number)
    context: dict[str, Any] = {"note": "", "problem": ""}
    if request.method == "POST":
        odd = take_texts(request)
        note = request.POST.get("note", "")
        try:
            if odd and may(request.user, Right.SETTLE, store=found.store, tool=found.tool):
                raise InvalidDecision(next(iter(odd.values())))
            closed = close_incident(number, note, by=user_of(request))
        except InvalidDecision as exc:
            context = {"note": note, "problem": str(exc)}
        else:
            if closed.closing_note == note.strip():
                return redirect(reverse("incident", args=[number]))
            # Somebody else was first: what was typed stays on the screen.
            found, context = closed, {"note": note, "was_late": True}
    context |= {
        "incident": found,
        "view": view_of(found.verdict) if found.verdict else None,
        "may_settle": may(request.user, Right.SETTLE, store=found.store, tool=found.tool),
        "max_chars": MAX_REASON_CHARS,
    }
    status = 422 if context.get("problem") else 409 if context.get("was_late") else 200
    return render_part(request, "incidents/incident.html", "incidents/_incident.html", context, status=status)
