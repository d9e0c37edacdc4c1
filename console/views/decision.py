"""Deciding about one action: the turn-to-be while somebody types, the commit that is bound to it, and the answer, whatever it is."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_POST
from django_htmx.http import trigger_client_event

from actions.digests import canonical_json, sha256_text
from actions.errors import InvalidDecision
from actions.facts import CallKind
from actions.queries import ActionItem
from actions.records import ActionRef
from actions.turns import SettlementTurn
from console.access import Right, item_or_404
from console.forms import DecisionForm, new_decision_form
from console.htmx import render_part, wants_partial
from console.services.answers import STATUS, Answer, AnswerKind
from console.services.decide import LATER, decide, preview, withdraw
from console.stores import UnknownStore
from console.views import errors
from console.views.action import action_context, decision_context
from console.views.gate import signed_in
from console.views.queue import next_in_doubt
from console.words import OUTCOMES, presets

_BACK_TO_FORM = frozenset({AnswerKind.INVALID, AnswerKind.CHANGED, AnswerKind.ID_REUSED})
"""Answers after which the person goes on in the same form."""
_NEW_ID = frozenset({AnswerKind.ID_REUSED})
_MOVED_ON = frozenset({AnswerKind.WRITTEN, AnswerKind.REPEATED, AnswerKind.WAITING, AnswerKind.NOTED})


@signed_in
@require_POST
def show_turn(request: HttpRequest, store: str, agent: str, seq: int) -> HttpResponse:
    """The exact turn that the agent would read, as the form stands now. A POST because reasons do not belong into addresses; writes nothing."""
    item = item_or_404(request.user, ActionRef(store, agent, seq), Right.SETTLE)
    form = DecisionForm(request.POST)
    return _form(request, item, form, status=200) if not wants_partial(request) else _turn(request, item, form)


@signed_in
@require_POST
def commit(request: HttpRequest, store: str, agent: str, seq: int) -> HttpResponse:
    """Decide, if the turn to be written is the one that stood on the screen; else show that turn and ask once more."""
    ref = ActionRef(store, agent, seq)
    item = item_or_404(request.user, ref, Right.SETTLE)
    form, is_refused = _with_preset(request, item)
    if is_refused:
        form.add_error(None, "That reason is not offered for what you chose, so it was not put in.")
        return _form(request, item, form, status=422)
    if "preset" in request.POST:
        return _form(request, item, form, status=200)
    if "review" in request.POST:
        return _form(request, item, form, status=200, must_review=form.is_valid())
    if not form.is_valid():
        return _form(request, item, form, status=422)
    wanted = form.to_request()
    if wanted.outcome != LATER and item.digest == wanted.seen and item.action and item.action.is_open:
        try:
            turn = preview(item, wanted, by=_user(request))
        except InvalidDecision as exc:
            form.add_error(None, str(exc))
            return _form(request, item, form, status=422)
        if form.cleaned_data["turn_seen"] != turn_digest(turn):
            return _form(request, item, form, status=200, must_review=True)
    return _answer(request, ref, form, decide(ref, wanted, by=_user(request)))


@signed_in
@require_POST
def take_back(request: HttpRequest, store: str, agent: str, seq: int) -> HttpResponse:
    """Withdraw the decision that is on its way."""
    ref = ActionRef(store, agent, seq)
    answer = withdraw(ref, by=_user(request), decision_id=request.POST.get("decision_id", ""))
    try:
        return _answer(request, ref, None, answer)
    except UnknownStore:
        # Its store was taken out of the settings: there is no action to show, but what became of the decision is known.
        return errors.known(request, STATUS[answer.kind], answer.detail)


def turn_digest(turn: SettlementTurn) -> str:
    """What binds a commit to the turn that was shown."""
    return sha256_text(canonical_json({"content": turn.content, "brief": turn.brief}))


def turn_context(item: ActionItem, form: DecisionForm, user: User) -> dict[str, Any]:
    """The turn-to-be for a form as it stands: the turn, or what is still missing."""
    outcome = next((one for one in OUTCOMES if one.value == form.data.get("outcome")), None)
    context: dict[str, Any] = {"outcome": outcome, "tool": item.action.tool if item.action else ""}
    if outcome is None or not form.is_valid() or outcome.value == LATER:
        return context
    try:
        turn = preview(item, form.to_request(), by=user)
    except InvalidDecision as exc:
        return context | {"turn_problem": str(exc)}
    return context | {"turn": turn, "turn_seen": turn_digest(turn)}


def _turn(request: HttpRequest, item: ActionItem, form: DecisionForm) -> HttpResponse:
    context = turn_context(item, form, _user(request)) | {"is_held": item.lease is not None and item.lease.is_live}
    response = render(request, "decisions/_turn.html", context)
    response["Cache-Control"] = "no-store"
    return response


def _form(request: HttpRequest, item: ActionItem, form: DecisionForm, *, status: int, must_review: bool = False) -> HttpResponse:
    """The form again with everything that was typed, and the turn it stands for."""
    return _panel(request, item.ref, form, {"must_review": must_review}, status=status)


def _answer(request: HttpRequest, ref: ActionRef, form: DecisionForm | None, answer: Answer) -> HttpResponse:
    """One drawn panel for each answer; the typed text stays where somebody may want it again."""
    context: dict[str, Any] = {"answer": answer, "answer_template": f"decisions/answers/_{answer.kind}.html"}
    if form is not None and answer.kind in _BACK_TO_FORM and answer.item is not None:
        form = _again(request, form, answer)
        context["goes_on"] = True
    if form is not None and answer.kind is AnswerKind.UNAVAILABLE:
        context["resend"] = [(name, form.data.get(name, "")) for name in form.fields if form.data.get(name)]
    if answer.kind in _MOVED_ON:
        context["next_item"] = next_in_doubt(request, ref)
    response = _panel(request, ref, form, context, status=STATUS[answer.kind])
    return trigger_client_event(response, "changed") if wants_partial(request) else response


def _again(request: HttpRequest, form: DecisionForm, answer: Answer) -> DecisionForm:
    """The same text about what is there now; the turn has to be looked at again."""
    data = request.POST.copy()
    data["turn_seen"] = ""
    if answer.item is not None:
        data["seen"] = answer.item.digest
    if answer.kind in _NEW_ID:
        data["decision_id"] = new_decision_form("").initial["decision_id"]
    again = DecisionForm(data)
    if answer.kind is AnswerKind.INVALID:
        again.is_valid()
        again.add_error(None, answer.detail)
    return again


def _panel(
    request: HttpRequest, ref: ActionRef, form: DecisionForm | None, extra: dict[str, Any], *, status: int
) -> HttpResponse:
    """The decision section alone for htmx, the whole page otherwise; both show the action as it is now."""
    if wants_partial(request):
        item = item_or_404(request.user, ref, Right.SETTLE)
        context: dict[str, Any] = {"item": item, "ref": ref, "may_settle": True, **decision_context(item, form)}
    else:
        context = action_context(request, ref, form=form)
    if form is not None and form.is_bound:
        context |= turn_context(context["item"], form, _user(request))
    return render_part(request, "actions/action.html", "decisions/_decision.html", context | extra, status=status)


def _with_preset(request: HttpRequest, item: ActionItem) -> tuple[DecisionForm, bool]:
    """A preset chosen without JavaScript is put into the reason; the form then comes back with it.

    The second value: it is not one that the chosen outcome offers, so it was left out.
    """
    data = request.POST.copy()
    preset = data.get("preset", "")
    offered = presets(item.facts.kind if item.facts else CallKind.OTHER).get(data.get("outcome", ""), ())
    if preset in offered:
        data["reason"] = f"{data.get('reason', '').rstrip()} {preset}".strip()
    return DecisionForm(data), bool(preset) and preset not in offered


def _user(request: HttpRequest) -> User:
    assert isinstance(request.user, User)  # noqa: S101 - signed_in has seen to it
    return request.user
