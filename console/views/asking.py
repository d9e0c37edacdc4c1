"""Asking resolvers now: about one action, about those selected in the queue, or about everything that an agent left open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse

from actions.records import Action, ActionRef
from console.access import Right, item_or_404, may_somewhere, visible
from console.addresses import parse_ref
from console.htmx import render_part, wants_partial
from console.services.asking import MAX_ASKED_AT_ONCE, AskedFor, NobodyToAsk, open_calls_of, request_asking, request_asking_many
from console.stores import get_store
from console.tasks import send_asking
from console.views.action import action_context
from console.views.gate import only_post, signed_in, user_of
from console.views.world import world_context

CALLS_LOOKED_AT = 50
"""Newest calls of an agent among which somebody must see one to know of it."""


def _page_of(store: str, agent: str, seq: int) -> str:
    return reverse("action", args=[store, agent, seq])


@signed_in
@only_post(_page_of)
def ask_now(request: HttpRequest, store: str, agent: str, seq: int) -> HttpResponse:
    """Make the question due and send a worker; the answer comes by itself. Where nobody can be asked, why stands in the panel."""
    ref, problem, status = ActionRef(store, agent, seq), "", 202
    try:
        send_asking([request_asking(ref, by=user_of(request)).pk])
    except NobodyToAsk as exc:
        problem, status = str(exc), 409
    if wants_partial(request):
        item = item_or_404(request.user, ref, Right.READ)
        context = {"item": item, "ref": ref, "ask_problem": problem, **world_context(request, item)}
        return render_part(request, "actions/action.html", "actions/_world.html", context, status=status)
    if not problem:
        return redirect(f"{_page_of(store, agent, seq)}#world")
    return render_part(
        request,
        "actions/action.html",
        "actions/_world.html",
        action_context(request, ref) | {"ask_problem": problem},
        status=status,
    )


@signed_in
@only_post(lambda: reverse("queue"))
def ask_selected(request: HttpRequest) -> HttpResponse:
    """Ask about the actions that were ticked, each `ref` once; what cannot be asked about is said of each. Nothing ticked asks nothing."""
    if not may_somewhere(request.user, Right.SETTLE):
        raise PermissionDenied("you need a role that may settle somewhere")
    texts = list(dict.fromkeys(request.POST.getlist("ref")))
    if not texts:
        return _answer(request, {"problem": "Select at least one action."}, status=422)
    if len(texts) > MAX_ASKED_AT_ONCE:
        problem = f"{len(texts)} are selected; at most {MAX_ASKED_AT_ONCE} are asked about at a time."
        return _answer(request, {"problem": problem}, status=422)
    refs = {text: parse_ref(text) for text in texts}
    outcomes = _request_and_send(request, [ref for ref in refs.values() if ref is not None])
    context = {"noun": "the selected calls", "outcomes": outcomes, "unnamed": [text for text, ref in refs.items() if ref is None]}
    return _answer(request, context, status=202 if any(one.inquiry or one.answered for one in outcomes) else 409)


@signed_in
@only_post(lambda store, agent: reverse("agent", args=[store, agent]))
def ask_agent(request: HttpRequest, store: str, agent: str) -> HttpResponse:
    """Ask about everything that the agent left open and that this person may settle: what a crash left behind, in one gesture."""
    if not may_somewhere(request.user, Right.READ, store=store):
        raise Http404(f"no store is called {store!r}")
    may_read = visible(request.user)
    newest = [reading.action for reading in get_store(store).list_agent_actions(agent, limit=CALLS_LOOKED_AT)]
    if not any(isinstance(action, Action) and may_read(store, action.tool) for action in newest):
        raise Http404(f"store {store} has no agent {agent}")
    if not may_somewhere(request.user, Right.SETTLE, store=store):
        raise PermissionDenied("you need a role that may settle here")
    outcomes = _request_and_send(request, open_calls_of(agent, store, by=user_of(request)))
    return _answer(request, {"noun": "its open calls", "outcomes": outcomes, "store": store, "agent": agent}, status=202)


def _request_and_send(request: HttpRequest, refs: Sequence[ActionRef]) -> tuple[AskedFor, ...]:
    outcomes = request_asking_many(refs, by=user_of(request))
    send_asking([one.inquiry.pk for one in outcomes if one.inquiry is not None])
    return outcomes


def _answer(request: HttpRequest, context: dict[str, Any], *, status: int) -> HttpResponse:
    outcomes: tuple[AskedFor, ...] = context.get("outcomes", ())
    context |= {
        "asked": [one for one in outcomes if one.inquiry],
        "answered": [one for one in outcomes if one.answered],
        "refused": [one for one in outcomes if one.why],
        "refused_count": sum(bool(one.why) for one in outcomes) + len(context.get("unnamed", ())),
        "away": [one for one in outcomes if one.is_away],
    }
    return render_part(request, "asking/asked.html", "asking/_asked.html", context, status=status)
