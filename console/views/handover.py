"""Handing over: what I am at, what of mine is on its way, what I wanted to look at again; and to whom it goes."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_safe
from django_htmx.http import trigger_client_event

from actions.errors import InvalidDecision
from actions.queries import ActionFilter, ActionItem, list_actions
from actions.records import ActionRef
from console.access import Right, may_somewhere, visible, visible_stores
from console.addresses import action_address, parse_ref
from console.forms import HandOverForm
from console.htmx import render_part, wants_partial
from console.models import PENDING_STATES, Claim, Decision, HandOver
from console.services.claimed import claims_of
from console.services.claims import dismiss, hand_over, receivers_for, undismissed
from console.services.corrections import waiting_corrections
from console.services.notes import reminders_of
from console.texts import take_texts
from console.tool_rules import read_rules
from console.views.gate import only_post, signed_in, user_of

SHOWN = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimLine:
    """One claim with what its call is about; no item where its store does not answer or it is not in doubt any more."""

    claim: Claim
    item: ActionItem | None
    is_chosen: bool

    @property
    def href(self) -> str:
        return action_address(self.claim.store, self.claim.agent, self.claim.seq)

    @property
    def expires_at(self) -> datetime:
        return self.claim.expires_at


@signed_in
@require_http_methods(["GET", "HEAD", "POST"])
def handover(request: HttpRequest) -> HttpResponse:
    """One printable list; a POST hands the chosen claims over."""
    if not may_somewhere(request.user, Right.SETTLE):
        raise PermissionDenied("you need a role that may settle somewhere")
    if request.method != "POST":
        form = HandOverForm(initial={"handover_id": str(uuid.uuid4())})
        return _page(request, form, chosen=None, status=200)
    odd = take_texts(request)
    form = HandOverForm(request.POST)
    for problem in odd.values():
        form.add_error(None, problem)
    chosen = [ref for ref in map(parse_ref, dict.fromkeys(request.POST.getlist("ref"))) if ref is not None]
    if form.is_valid():
        said = form.cleaned_data
        try:
            made = hand_over(chosen, to=said["to"], text=said["text"], handover_id=said["handover_id"], by=user_of(request))
        except InvalidDecision as exc:
            form.add_error(None, str(exc))
        else:
            return redirect(f"{reverse('handover')}?given={made.pk}")
    return _page(request, form, chosen=chosen, status=422)


@signed_in
@require_safe
def band(request: HttpRequest) -> HttpResponse:
    """What was handed to this person; fetched when something changed elsewhere."""
    if not wants_partial(request):
        return redirect("queue")
    return render_part(request, "handover/handover.html", "handover/_band.html", {"handed": undismissed(request.user)})


@signed_in
@only_post(lambda number: reverse("queue"))
def dismissal(request: HttpRequest, number: int) -> HttpResponse:
    """The receiver has read it. Doing so twice changes nothing; nobody else's goes away."""
    dismiss(number, by=user_of(request))
    if not wants_partial(request):
        return redirect("queue")
    return render_part(request, "handover/handover.html", "handover/_band.html", {"handed": undismissed(request.user)})


def _page(request: HttpRequest, form: HandOverForm, *, chosen: list[ActionRef] | None, status: int) -> HttpResponse:
    user = user_of(request)
    claims = claims_of(user)
    items, problems = _items(request, [claim.ref for claim in claims])
    may_see = visible(user)
    mine = Decision.objects.filter(by=user, state__in=PENDING_STATES).order_by("pk")[:SHOWN]
    pending = [one for one in mine if may_see(one.store, one.tool)]
    corrections = [one for one in waiting_corrections(user) if may_see(one.store, one.tool)]
    context: dict[str, Any] = {
        "lines": [ClaimLine(claim=one, item=items.get(one.ref), is_chosen=chosen is None or one.ref in chosen) for one in claims],
        "pending": pending,
        "corrections": corrections,
        "on_its_way": len(pending) + len(corrections),
        "reminders": [one for one in reminders_of(user) if may_see(one.store, one.tool)],
        "now": timezone.now(),
        "receivers": receivers_for(claims, by=user),
        "form": form,
        "problems": problems,
        "given": _given(request, user),
    }
    response = render_part(request, "handover/handover.html", "handover/_handover.html", context, status=status)
    return trigger_client_event(response, "changed") if wants_partial(request) else response


def _items(request: HttpRequest, refs: list[ActionRef]) -> tuple[dict[ActionRef, ActionItem], list[str]]:
    """The claimed calls as their stores show them now, and the stores that did not answer."""
    if not refs:
        return {}, []
    stores = [store for store in visible_stores(request.user) if store.name in {ref.store for ref in refs}]
    wanted = ActionFilter(only=frozenset(refs))
    page = list_actions(stores, wanted, limit=SHOWN, may_see=visible(request.user), rules=read_rules())
    return {item.ref: item for item in page.items}, [store.name for store in page.stores if not store.is_listed]


def _given(request: HttpRequest, user: User) -> HandOver | None:
    """The hand-over that was just made, for the word about it."""
    number = request.GET.get("given", "")
    is_number = number.isascii() and number.isdigit() and len(number) < 19
    return HandOver.objects.filter(pk=int(number), by=user).select_related("to").first() if is_number else None
