"""\"I was wrong\": what the agent was told, what really happened, the exact turn that says so, and the answer, whatever it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_http_methods
from django_htmx.http import trigger_client_event

from actions.digests import canonical_json, sha256_text
from actions.errors import InvalidDecision
from actions.queries import ActionItem
from actions.records import ActionRef
from actions.turns import SettlementTurn
from console.access import Right, item_or_404
from console.forms import CorrectionForm, new_correction_form
from console.htmx import render_part, wants_partial
from console.identity import confirmed_at
from console.models import Correction
from console.refusals import denied
from console.services.correct import correct_end, gates_before_correction, preview_of, withdraw_correction
from console.services.correction_answers import STATUS_OF_CORRECTION, CorrectionAnswer, CorrectionKind
from console.services.correction_approval import approve_correction, turn_down_correction
from console.services.corrections import Correctable, find_correctable
from console.services.gates import Gates
from console.stores import find_server
from console.texts import take_texts
from console.views.action import second_corrector
from console.views.gate import only_post, signed_in, user_of
from console.words import TRUTHS

_BACK_TO_FORM = frozenset({CorrectionKind.INVALID, CorrectionKind.CHANGED, CorrectionKind.ID_REUSED, CorrectionKind.UNAVAILABLE})
_BACK_TO_FORM |= {CorrectionKind.CONFIRM}


@signed_in
@require_http_methods(["GET", "HEAD", "POST"])
def correction(request: HttpRequest, store: str, agent: str, seq: int) -> HttpResponse:
    """The form; a POST writes the correction if its turn is the one that stood on the screen, else shows that turn."""
    ref = ActionRef(store, agent, seq)
    item = item_or_404(request.user, ref, Right.SETTLE)
    shown = find_correctable(item)
    if request.method != "POST":
        return _form(request, item, shown, new_correction_form(shown.told.number if shown else 0), status=200)
    odd = take_texts(request)
    form = CorrectionForm(request.POST)
    for problem in odd.values():
        form.add_error(None, problem)
    if not form.is_valid():
        return _form(request, item, shown, form, status=422)
    turn, _, _ = _turn(request, item, shown, form)
    if turn is not None and (form.cleaned_data["turn_seen"] != turn_digest(turn) or "review" in request.POST):
        return _form(request, item, shown, form, status=200)
    wanted = replace(form.to_request(), confirmed_at=confirmed_at(request))
    answer = correct_end(ref, wanted, by=user_of(request))
    context: dict[str, Any] = {"answer": answer}
    if answer.kind is CorrectionKind.CONFIRM:
        context["confirm_url"] = f"{reverse('confirm')}?{urlencode({'next': request.path})}"
    if answer.kind in _BACK_TO_FORM:
        form = _again(request, form, answer, shown)
        page = _form(request, item, shown, form, status=STATUS_OF_CORRECTION[answer.kind], extra=context)
        return denied(page, answer.kind, answer.detail) if page.status_code == 403 else page
    return _answer(request, item, answer)


@signed_in
@only_post(lambda store, agent, seq: reverse("correction", args=[store, agent, seq]))
def show_correction_turn(request: HttpRequest, store: str, agent: str, seq: int) -> HttpResponse:
    """The exact turn that the agent would read, as the form stands now; writes nothing."""
    item = item_or_404(request.user, ActionRef(store, agent, seq), Right.SETTLE)
    shown = find_correctable(item)
    take_texts(request)
    form = CorrectionForm(request.POST)
    if not wants_partial(request):
        return _form(request, item, shown, form, status=200)
    context = {"item": item, "ref": item.ref, **_turn_context(request, item, shown, form)}
    return render_part(request, "corrections/correction.html", "corrections/_turn.html", context)


@signed_in
@only_post(lambda store, agent, seq: reverse("action", args=[store, agent, seq]))
def take_back_correction(request: HttpRequest, store: str, agent: str, seq: int) -> HttpResponse:
    """Withdraw the correction that is on its way."""
    ref = ActionRef(store, agent, seq)
    answer = withdraw_correction(ref, by=user_of(request), correction_id=request.POST.get("correction_id", "")[:64])
    if answer.kind is CorrectionKind.WITHDRAWN and not wants_partial(request):
        return redirect(reverse("action", args=[store, agent, seq]))
    return _answer(request, item_or_404(request.user, ref, Right.SETTLE), answer)


@signed_in
@only_post(lambda store, agent, seq: reverse("action", args=[store, agent, seq]))
def approve_it(request: HttpRequest, store: str, agent: str, seq: int) -> HttpResponse:
    """Be the second person of the correction that was shown."""
    ref, said = ActionRef(store, agent, seq), request.POST
    answer = approve_correction(
        ref,
        said.get("correction_id", ""),
        by=user_of(request),
        reason=said.get("second_reason", ""),
        confirmed_at=confirmed_at(request),
    )
    return _second_answer(request, ref, answer)


@signed_in
@only_post(lambda store, agent, seq: reverse("action", args=[store, agent, seq]))
def turn_it_down(request: HttpRequest, store: str, agent: str, seq: int) -> HttpResponse:
    """Refuse the proposal, with the reason that its proposer is shown."""
    ref, said = ActionRef(store, agent, seq), request.POST
    reason = said.get("second_reason", "")
    answer = turn_down_correction(ref, said.get("correction_id", ""), by=user_of(request), reason=reason)
    return _second_answer(request, ref, answer)


def _second_answer(request: HttpRequest, ref: ActionRef, answer: CorrectionAnswer) -> HttpResponse:
    """What it came to; where it can still be done, what was typed stands there again."""
    item = item_or_404(request.user, ref, Right.READ)
    extra: dict[str, Any] = {"is_second": True}
    if answer.kind is CorrectionKind.CONFIRM:
        extra["confirm_url"] = (
            f"{reverse('confirm')}?{urlencode({'next': reverse('action', args=[ref.store, ref.agent, ref.seq])})}"
        )
    if answer.kind in (CorrectionKind.CONFIRM, CorrectionKind.INVALID, CorrectionKind.UNAVAILABLE):
        row = Correction.objects.filter(correction_id=request.POST.get("correction_id", "")[:64].replace("\x00", "")).first()
        extra |= {
            "correction": row,
            "second_reason": request.POST.get("second_reason", ""),
            **second_corrector(row, item, request.user),
        }
    page = _answer(request, item, answer, extra=extra)
    return denied(page, answer.kind, answer.detail) if page.status_code == 403 else page


def turn_digest(turn: SettlementTurn) -> str:
    """What binds a commit to the turn that was shown."""
    return sha256_text(canonical_json({"content": turn.content, "brief": turn.brief, "corrects": True}))


def _turn(
    request: HttpRequest, item: ActionItem, shown: Correctable | None, form: CorrectionForm
) -> tuple[SettlementTurn | None, str, Gates]:
    if shown is None or not form.is_valid():
        return None, "", Gates()
    try:
        wanted = form.to_request()
        turn = preview_of(item, shown.told, wanted, by=user_of(request))
        return turn, "", gates_before_correction(item, wanted.outcome, shown.told)
    except InvalidDecision as exc:
        return None, str(exc), Gates()


def _turn_context(request: HttpRequest, item: ActionItem, shown: Correctable | None, form: CorrectionForm) -> dict[str, Any]:
    turn, problem, gates = _turn(request, item, shown, form) if form.is_bound else (None, "", Gates())
    truth = next((one for one in TRUTHS if one.value == form.data.get("outcome")), None)
    tool = item.action.tool if item.action else ""
    return {
        "turn": turn,
        "turn_problem": problem,
        "turn_seen": turn_digest(turn) if turn else "",
        "truth": truth,
        "tool": tool,
        "gates": gates,
        "is_held": item.lease is not None and item.lease.is_live,
    }


def _form(
    request: HttpRequest,
    item: ActionItem,
    shown: Correctable | None,
    form: CorrectionForm,
    *,
    status: int,
    extra: dict[str, Any] | None = None,
) -> HttpResponse:
    truths = [one for one in TRUTHS if shown and one.value != shown.told.outcome]
    context = {
        "item": item,
        "ref": item.ref,
        "shown": shown,
        "truths": truths,
        "has_server": shown is not None and find_server(item.store) is not None,
        "form": form,
        **_turn_context(request, item, shown, form),
        **(extra or {}),
    }
    return render_part(request, "corrections/correction.html", "corrections/_correction.html", context, status=status)


def _answer(
    request: HttpRequest, item: ActionItem, answer: CorrectionAnswer, *, extra: dict[str, Any] | None = None
) -> HttpResponse:
    context = {"item": item, "ref": item.ref, "answer": answer, "is_answered": True, **(extra or {})}
    status = STATUS_OF_CORRECTION[answer.kind]
    response = render_part(request, "corrections/correction.html", "corrections/_correction.html", context, status=status)
    return trigger_client_event(response, "changed") if wants_partial(request) else response


def _again(request: HttpRequest, form: CorrectionForm, answer: CorrectionAnswer, shown: Correctable | None) -> CorrectionForm:
    """The same text about what stands now; the turn has to be looked at again, but for a store that did not answer."""
    if answer.kind is CorrectionKind.UNAVAILABLE:
        return form
    data = request.POST.copy()
    data["turn_seen"] = ""
    data["basis"] = str(shown.told.number) if shown else ""
    if answer.kind is CorrectionKind.ID_REUSED:
        data["correction_id"] = new_correction_form(0).initial["correction_id"]
    return CorrectionForm(data)
