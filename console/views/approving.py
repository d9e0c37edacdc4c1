"""The second person's gestures, the countdown of a hold, and the list of what waits for a second person."""

from __future__ import annotations

from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_safe
from django_htmx.http import trigger_client_event

from actions.records import ActionRef
from console.access import Right, may_somewhere, require
from console.htmx import render_part
from console.identity import confirmed_at
from console.models import Decision, DecisionState
from console.services.answers import Answer, AnswerKind
from console.services.approve import approve, break_glass, turn_down
from console.services.decisions import list_proposed
from console.services.deliver import as_column
from console.views.gate import only_post, signed_in, user_of


def _page_of(store: str, agent: str, seq: int) -> str:
    return reverse("action", args=[store, agent, seq])


@signed_in
@only_post(_page_of)
def approve_it(request: HttpRequest, store: str, agent: str, seq: int) -> HttpResponse:
    """Approve the decision that was shown; without what binds it to that, it is shown first."""
    ref, said = ActionRef(store, agent, seq), request.POST
    seen = said.get("seen") or "nothing was shown"
    answer = approve(
        ref,
        said.get("decision_id", ""),
        by=user_of(request),
        reason=said.get("reason", ""),
        seen=seen,
        confirmed_at=confirmed_at(request),
    )
    return _answered(request, ref, answer, "decision-approve")


@signed_in
@only_post(_page_of)
def turn_it_down(request: HttpRequest, store: str, agent: str, seq: int) -> HttpResponse:
    """Refuse the proposal, with the reason that its proposer is shown."""
    ref, said = ActionRef(store, agent, seq), request.POST
    answer = turn_down(ref, said.get("decision_id", ""), by=user_of(request), reason=said.get("reason", ""))
    return _answered(request, ref, answer, "decision-turn-down")


@signed_in
@only_post(_page_of)
def go_on_alone(request: HttpRequest, store: str, agent: str, seq: int) -> HttpResponse:
    """Pass the second person with a recorded reason."""
    ref, said = ActionRef(store, agent, seq), request.POST
    answer = break_glass(
        ref,
        said.get("decision_id", ""),
        by=user_of(request),
        reason=said.get("glass_reason", ""),
        confirmed_at=confirmed_at(request),
    )
    return _answered(request, ref, answer, "decision-break-glass")


@signed_in
@require_safe
def held(request: HttpRequest, store: str, agent: str, seq: int) -> HttpResponse:
    """How long a decision can still be undone, for its page to count down; once it cannot, everything on that page is fetched anew."""
    rows = Decision.objects.filter(store=store, agent=agent, seq=seq, decision_id=as_column(request.GET.get("id", "")[:64]))
    row = rows.first()
    missing = "there is no such decision, or it is not yours to see"
    if row is None:
        raise Http404(missing)
    require(request.user, Right.READ, store=row.store, tool=row.tool, missing=missing)
    if row.state != DecisionState.HELD:
        return trigger_client_event(HttpResponse(status=204), "changed")
    response = render(request, "decisions/_held_left.html", {"decision": row, "ref": row.ref, "left_s": left_s(row)})
    response["Cache-Control"] = "no-store"
    return response


@signed_in
@require_safe
def proposals(request: HttpRequest) -> HttpResponse:
    """What waits for a second person, as a page or as the piece that live updates fetch."""
    return render_part(request, "decisions/proposals.html", "decisions/_proposals.html", proposals_context(request))


def proposals_context(request: HttpRequest, *, is_any: bool = True) -> dict[str, Any]:
    """The section below the queue: only what this person may see, and first what they may approve. `is_any` False: none waits, so none is read."""
    return {
        "proposals": list_proposed(request.user) if is_any else (),
        "may_approve_somewhere": may_somewhere(request.user, Right.APPROVE),
    }


def left_s(row: Decision) -> int:
    """Seconds that are left, about: what decides is the database's clock."""
    return max(0, round((row.held_until - timezone.now()).total_seconds())) if row.held_until is not None else 0


def _answered(request: HttpRequest, ref: ActionRef, answer: Answer, view: str) -> HttpResponse:
    from console.views.decision import show_answer  # the section is drawn there, and the queue that it leads to shows our list

    said = {name: request.POST[name] for name in ("decision_id", "seen", "reason", "glass_reason") if request.POST.get(name)}
    extra: dict[str, Any] = {"second": said, "resend_url": reverse(view, args=[ref.store, ref.agent, ref.seq])}
    if answer.kind in (AnswerKind.CONFIRM, AnswerKind.UNAVAILABLE):
        extra["resend"] = list(said.items())
    typed, row = (said.get("reason") or said.get("glass_reason", "")).strip(), answer.decision
    if typed and not (row and typed in (row.second_reason, row.broke_glass)):
        extra["second_kept"] = typed  # nothing has it but this answer
    if answer.kind in (AnswerKind.INVALID, AnswerKind.CHANGED):
        extra |= {"goes_on": True, "second_problem": answer.detail, "is_glass": view == "decision-break-glass"}
    return show_answer(request, ref, answer, extra=extra)
