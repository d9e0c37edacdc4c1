"""Taking a live lease away: what is known of its holder, the warning, the form, and what it came to. For admins; no step of it happens by itself."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_http_methods

from actions.errors import StoreError
from console import checks
from console.forms import EvictionForm, new_eviction_form
from console.htmx import render_part
from console.services.answers import STATUS, AnswerKind
from console.services.evict import Eviction, evict, look
from console.views.gate import signed_in, user_of

_BACK_TO_FORM = frozenset({AnswerKind.INVALID, AnswerKind.CHANGED, AnswerKind.ID_REUSED})


@signed_in
@require_http_methods(["GET", "HEAD", "POST"])
def eviction(request: HttpRequest, store: str, agent: str) -> HttpResponse:
    """The page, and with a POST what became of it."""
    if request.method != "POST":
        return _page(request, store, agent, None, None)
    form = EvictionForm(request.POST)
    if not form.is_valid():
        return _page(request, store, agent, form, None, status=422)
    answer = evict(store, agent, form.to_request(), by=user_of(request))
    if answer.kind is AnswerKind.INVALID:
        form.add_error("confirm" if "type the agent" in answer.detail else "reason", answer.detail)
    return _page(request, store, agent, form, answer, status=STATUS[answer.kind])


def _page(
    request: HttpRequest, store: str, agent: str, form: EvictionForm | None, answer: Eviction | None, *, status: int = 200
) -> HttpResponse:
    context: dict[str, Any] = {"store": store, "agent": agent, "answer": answer, "form": form}
    if answer is None or answer.kind in _BACK_TO_FORM:
        try:
            held = look(store, agent, by=user_of(request))
        except StoreError:
            if answer is None:
                raise
            held = None
        context["held"] = held
        if held is not None and held.lease is not None and (form is None or (answer and answer.kind is not AnswerKind.INVALID)):
            context["form"] = _about(held.lease.holder, form)
    if answer is not None and answer.kind in (AnswerKind.UNAVAILABLE, AnswerKind.READ_ONLY):
        checks.forget()
    return render_part(request, "evictions/eviction.html", "evictions/_eviction.html", context, status=status)


def _about(holder: str, form: EvictionForm | None) -> EvictionForm:
    """A form about the holder that is shown now, under a new id, with the reason that was typed; the confirmation is typed anew."""
    fresh = new_eviction_form(holder)
    if form is not None:
        fresh.initial["reason"] = form.data.get("reason", "")
    return fresh
