"""Claiming: one action from its page, or those ticked in the queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django_htmx.http import trigger_client_event

from actions.errors import InvalidDecision
from actions.records import ActionRef
from console.access import Right, item_or_404, may, may_somewhere
from console.addresses import parse_ref
from console.htmx import render_part, wants_partial
from console.services.claimed import find_claim
from console.services.claims import ClaimAnswer, ClaimKind, claim, claim_all, release, release_all, take_over
from console.views.action import action_context, claim_context
from console.views.gate import only_post, signed_in, user_of

_DONE = frozenset({ClaimKind.CLAIMED, ClaimKind.MINE, ClaimKind.RELEASED})


@signed_in
@only_post(lambda store, agent, seq: reverse("action", args=[store, agent, seq]))
def claim_one(request: HttpRequest, store: str, agent: str, seq: int) -> HttpResponse:
    """Claim it, give it back, or take it over from the person whose name was shown."""
    ref, by = ActionRef(store, agent, seq), user_of(request)
    do = request.POST.get("do", "claim")
    item_or_404(by, ref, Right.SETTLE)
    if do == "release":
        answer = release(ref, by=by)
    elif do == "take_over":
        answer = take_over(ref, whose=request.POST.get("whose", "")[:150], by=by)
    else:
        answer = claim(ref, by=by)
    status = 200 if answer.kind in _DONE else 409
    if not wants_partial(request):
        if status == 200:
            return redirect(reverse("action", args=[store, agent, seq]))
        context = action_context(request, ref) | {"claim_answer": answer}
        return render_part(request, "actions/action.html", "claims/_claim.html", context, status=status)
    item = item_or_404(request.user, ref, Right.READ)
    tool = item.action.tool if item.action else ""
    context = {"item": item, "ref": ref, "claim_answer": answer if status != 200 else None, **claim_context(request, ref)}
    context["may_settle"] = may(request.user, Right.SETTLE, store=ref.store, tool=tool)
    response = render_part(request, "actions/action.html", "claims/_claim.html", context, status=status)
    return trigger_client_event(response, "changed")


@signed_in
@only_post(lambda: reverse("queue"))
def claim_selected(request: HttpRequest) -> HttpResponse:
    """Claim the actions that were named, each `ref` once, or give them back; `toggle` does of one whichever can be done."""
    if not may_somewhere(request.user, Right.SETTLE):
        raise PermissionDenied("you need a role that may settle somewhere")
    refs = [ref for ref in map(parse_ref, dict.fromkeys(request.POST.getlist("ref"))) if ref is not None]
    try:
        answers = _do(request.POST.get("do", "claim"), refs, user_of(request))
    except InvalidDecision as exc:
        return render_part(request, "claims/answers.html", "claims/_answers.html", {"problem": str(exc)}, status=422)
    done = [one for one in answers if one.kind in _DONE]
    context: dict[str, Any] = {"done": done, "not_done": [one for one in answers if one.kind not in _DONE], "all": answers}
    context["is_toggle"] = request.POST.get("do") == "toggle" and wants_partial(request)
    status = 200 if done or not answers else 409
    response = render_part(request, "claims/answers.html", "claims/_answers.html", context, status=status)
    return trigger_client_event(response, "changed") if wants_partial(request) else response


def _do(what: str, refs: Sequence[ActionRef], by: User) -> tuple[ClaimAnswer, ...]:
    if what == "toggle" and len(refs) == 1:
        now = find_claim(refs[0])
        what = "release" if now is not None and now.by_id == by.pk else "claim"
    return release_all(refs, by=by) if what == "release" else claim_all(refs, by=by)
