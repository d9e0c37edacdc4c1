"""Asking resolvers now: about one action, or about everything that an agent left open."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse

from actions.queries import read_agent
from actions.records import ActionClass, ActionRef
from console.access import Right, item_or_404, may_somewhere, visible
from console.htmx import render_part, wants_partial
from console.services.resolve import NobodyToAsk, request_asking
from console.stores import get_store
from console.tasks import send_asking
from console.views.action import action_context
from console.views.gate import only_post, signed_in
from console.views.world import world_context

ASKED_OF_AN_AGENT = 50
"""How many of an agent's newest actions are asked about in one gesture: those that its page lists."""


def _page_of(store: str, agent: str, seq: int) -> str:
    return reverse("action", args=[store, agent, seq])


@signed_in
@only_post(_page_of)
def ask_now(request: HttpRequest, store: str, agent: str, seq: int) -> HttpResponse:
    """Make the question due and send a worker; the answer comes by itself. Where nobody can be asked, why stands in the panel."""
    ref, problem, status = ActionRef(store, agent, seq), "", 202
    try:
        send_asking([request_asking(ref, by=_user(request)).pk])
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
@only_post(lambda store, agent: reverse("agent", args=[store, agent]))
def ask_agent(request: HttpRequest, store: str, agent: str) -> HttpResponse:
    """Ask about every open call that the agent's page lists and that this person may settle: what a crash left behind, in one gesture."""
    if not may_somewhere(request.user, Right.READ, store=store):
        raise Http404(f"no store is called {store!r}")
    may_read, may_settle = visible(request.user), visible(request.user, Right.SETTLE)
    items = read_agent(get_store(store), agent, turns=1, actions=ASKED_OF_AN_AGENT).actions
    seen = [item for item in items if item.action is not None and may_read(store, item.action.tool)]
    if not seen:
        raise Http404(f"store {store} has no agent {agent}")
    mine = [item for item in seen if item.action is not None and may_settle(store, item.action.tool)]
    if not mine:
        raise PermissionDenied("you need a role that may settle here")
    asked, refused = [], []
    for item in mine:
        if item.action is None or not item.action.is_open or item.action.action_class is ActionClass.PURE:
            continue
        try:
            asked.append((item, request_asking(item.ref, by=_user(request))))
        except NobodyToAsk as exc:
            refused.append((item, str(exc)))
    send_asking([row.pk for _, row in asked])
    context = {"store": store, "agent": agent, "asked": asked, "refused": refused}
    response = render(request, "agents/_asked.html" if wants_partial(request) else "agents/asked.html", context, status=202)
    response["Cache-Control"] = "no-store"
    return response


def _user(request: HttpRequest) -> User:
    assert isinstance(request.user, User)  # noqa: S101 - signed_in has seen to it
    return request.user
