"""Deciding about one action: the turn-to-be while somebody types, the commit that is bound to it, and the answer, whatever it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django_htmx.http import trigger_client_event

from actions.digests import canonical_json, sha256_text
from actions.errors import InvalidDecision, StoreError
from actions.facts import CallKind
from actions.queries import ActionItem
from actions.records import ActionRef
from actions.turns import SettlementTurn
from console import checks
from console.access import Right, item_or_404, may, may_somewhere
from console.addresses import action_address
from console.evidence import reason_of, view_of
from console.forms import DecisionForm, new_decision_form
from console.htmx import render_part, wants_partial
from console.identity import confirmed_at
from console.models import Decision, DecisionState
from console.refusals import denied
from console.services.answers import STATUS, Answer, AnswerKind
from console.services.claimed import renew
from console.services.decide import LATER, decide, preview
from console.services.decisions import current_decisions
from console.services.deliver import as_column
from console.services.evidence import Contradiction, find_contradiction, find_verdict
from console.services.gates import Gates
from console.services.policies import gates_before
from console.services.withdraw import withdraw
from console.stores import UnknownStore, find_server, get_store
from console.views import errors
from console.views.action import action_context, claim_context, decision_context, second_context
from console.views.gate import only_post, signed_in, user_of
from console.views.queue import what_next
from console.words import OUTCOMES, presets

CONFIRM = "/confirm/"
"""Where people prove who they are."""
_BACK_TO_FORM = frozenset({AnswerKind.INVALID, AnswerKind.CHANGED, AnswerKind.ID_REUSED})
"""Answers after which the person goes on in the same form."""
_NEW_ID = frozenset({AnswerKind.ID_REUSED})
_MOVED_ON = frozenset(
    {
        AnswerKind.WRITTEN,
        AnswerKind.REPEATED,
        AnswerKind.PROPOSED,
        AnswerKind.HELD,
        AnswerKind.WAITING,
        AnswerKind.NOTED,
        AnswerKind.TURNED_DOWN,
    }
)


def _page_of(store: str, agent: str, seq: int) -> str:
    return reverse("action", args=[store, agent, seq])


@signed_in
@only_post(_page_of)
def show_turn(request: HttpRequest, store: str, agent: str, seq: int) -> HttpResponse:
    """The exact turn that the agent would read, as the form stands now. A POST because reasons do not belong into addresses; writes nothing."""
    ref = ActionRef(store, agent, seq)
    form = DecisionForm(request.POST)
    renew(ref, by=request.user)
    try:
        item = item_or_404(request.user, ref, Right.SETTLE)
    except StoreError as exc:
        return _turn_unknown(request, ref, form, exc)
    return _form(request, item, form, status=200) if not wants_partial(request) else _turn(request, item, form)


@signed_in
@only_post(_page_of)
def commit(request: HttpRequest, store: str, agent: str, seq: int) -> HttpResponse:
    """Decide, if the turn to be written is the one that stood on the screen; else show that turn and ask once more."""
    ref = ActionRef(store, agent, seq)
    try:
        item = item_or_404(request.user, ref, Right.SETTLE)
    except StoreError as exc:
        return _without_store(request, ref, DecisionForm(request.POST), exc)
    form, is_refused = _with_preset(request, item)
    if is_refused:
        form.add_error(None, "That reason is not offered for what you chose, so it was not put in.")
        return _form(request, item, form, status=422)
    if "evidence" in request.POST:
        form, status = _with_evidence(request, item)
        return _form(request, item, form, status=status)
    if "preset" in request.POST:
        return _form(request, item, form, status=200)
    if "review" in request.POST:
        return _form(request, item, form, status=200, must_review=form.is_valid())
    if not form.is_valid():
        return _form(request, item, form, status=422)
    wanted = replace(form.to_request(), confirmed_at=confirmed_at(request))
    if wanted.outcome != LATER and item.digest == wanted.seen and item.action and item.action.is_open:
        try:
            turn = preview(item, wanted, by=user_of(request))
        except InvalidDecision as exc:
            form.add_error(None, str(exc))
            return _form(request, item, form, status=422)
        if form.cleaned_data["turn_seen"] != turn_digest(turn, find_contradiction(ref, wanted.outcome)):
            return _form(request, item, form, status=200, must_review=True)
    if _must_tick(item, form):
        return _panel(request, ref, form, {"must_tick": True}, status=422)
    return _answer(request, ref, form, decide(ref, wanted, by=user_of(request)))


@signed_in
@only_post(_page_of)
def take_back(request: HttpRequest, store: str, agent: str, seq: int) -> HttpResponse:
    """Withdraw the decision that is on its way."""
    ref = ActionRef(store, agent, seq)
    answer = withdraw(ref, by=user_of(request), decision_id=request.POST.get("decision_id", ""))
    if answer.kind is AnswerKind.CLOSED and answer.decision is not None and answer.decision.state == DecisionState.WRITTEN:
        return _answer(request, ref, None, answer, template="delivered", extra={"is_too_late": True})
    try:
        return _answer(request, ref, None, answer)
    except UnknownStore:
        # Its store was taken out of the settings: there is no action to show, but what became of the decision is known.
        return errors.known(request, STATUS[answer.kind], answer.detail)


def _must_tick(item: ActionItem, form: DecisionForm) -> bool:
    """Whether it is to be written as not happened although it was found, and the person has not said that they saw that."""
    wanted = form.to_request()
    if item.action is None or not item.action.is_open or Decision.objects.filter(decision_id=wanted.decision_id).exists():
        return False  # ended, or this very decision sent again: what became of it is answered whatever was found since
    against = find_contradiction(item.ref, wanted.outcome)
    return against is not None and against.needs_word and form.cleaned_data["seen_against"] != against.evidence_id


def turn_digest(turn: SettlementTurn, against: Contradiction | None) -> str:
    """What binds a commit to the turn that was shown, and to the verdict against it that was shown with it."""
    said = {"content": turn.content, "brief": turn.brief, "against": against.evidence_id if against else ""}
    return sha256_text(canonical_json(said))


def turn_context(item: ActionItem, form: DecisionForm, user: User) -> dict[str, Any]:
    """The turn-to-be for a form as it stands: the turn, or what is still missing."""
    outcome = next((one for one in OUTCOMES if one.value == form.data.get("outcome")), None)
    against = find_contradiction(item.ref, outcome.value) if outcome and outcome.value != LATER else None
    context: dict[str, Any] = {"outcome": outcome, "tool": item.action.tool if item.action else "", "against": against}
    if outcome is None or not form.is_valid() or outcome.value == LATER:
        return context
    try:
        turn = preview(item, form.to_request(), by=user)
    except InvalidDecision as exc:
        return context | {"turn_problem": str(exc)}
    return context | {"turn": turn, "turn_seen": turn_digest(turn, against), "gates": _gates(item, outcome.value)}


def _gates(item: ActionItem, outcome: str) -> Gates | None:
    """What the slip says about what happens next; None where nobody can tell now. What holds is asked again when it is sent."""
    try:
        return gates_before(item, outcome)
    except StoreError:
        return None


def show_answer(
    request: HttpRequest, ref: ActionRef, answer: Answer, *, extra: dict[str, Any] | None = None, template: str = ""
) -> HttpResponse:
    """The answer to a second person's gesture, whose right to it was checked; what is shown with it is for whoever may read."""
    return _answer(request, ref, None, answer, template=template, extra=extra, right=Right.READ)


def _turn(request: HttpRequest, item: ActionItem, form: DecisionForm) -> HttpResponse:
    context = turn_context(item, form, user_of(request)) | {
        "is_held": item.lease is not None and item.lease.is_live,
        "form": form,
    }
    response = render(request, "decisions/_turn.html", context)
    response["Cache-Control"] = "no-store"
    return response


def _turn_unknown(request: HttpRequest, ref: ActionRef, form: DecisionForm, problem: StoreError) -> HttpResponse:
    """The store does not answer while somebody types: only the slip says so, the form stays as it is."""
    if not wants_partial(request):
        return _without_store(request, ref, form, problem)
    _require_somewhere(request, ref)
    context = {"store_problem": problem, "sees_detail": _sees_detail(request, ref), "ref": ref}
    response = render(request, "decisions/_turn.html", context, status=503)
    response["Cache-Control"] = "no-store"
    return response


def _without_store(request: HttpRequest, ref: ActionRef, form: DecisionForm, problem: StoreError) -> HttpResponse:
    """What is known of a decision whose store cannot be asked, in its own panel with what was typed."""
    was_sent = form.is_valid() and Decision.objects.filter(decision_id=form.cleaned_data["decision_id"]).exists()
    if was_sent and not {"review", "preset", "evidence"} & set(request.POST):
        answer = decide(ref, replace(form.to_request(), confirmed_at=confirmed_at(request)), by=user_of(request))
    else:
        # It never came so far; the turn is compared with the one that was shown when it is sent again.
        _require_somewhere(request, ref)
        answer = Answer(kind=AnswerKind.UNAVAILABLE, detail=f"{problem}; nothing was written")
    return _answer(request, ref, form, answer)


def _require_somewhere(request: HttpRequest, ref: ActionRef) -> None:
    """Without its store nobody knows an action's tool: whoever may settle nothing there is told nothing of it."""
    if not may_somewhere(request.user, Right.SETTLE, store=ref.store):
        raise Http404(f"no store is called {ref.store!r}")


def _sees_detail(request: HttpRequest, ref: ActionRef) -> bool:
    """Hosts, ports and the driver's own words, in the middle of a decision, are for those who run the console alone."""
    return may(request.user, Right.ADMIN, store=ref.store)


def _form(request: HttpRequest, item: ActionItem, form: DecisionForm, *, status: int, must_review: bool = False) -> HttpResponse:
    """The form again with everything that was typed, and the turn it stands for."""
    return _panel(request, item.ref, form, {"must_review": must_review}, status=status)


def foot(request: HttpRequest, ref: ActionRef, decision_id: str, was: str = "") -> HttpResponse:
    """What became of the decision that the foot shows as on its way; nothing (204) as long as it is, and in the state that is shown."""
    row = Decision.objects.filter(decision_id=as_column(decision_id), store=ref.store, agent=ref.agent, seq=ref.seq).first()
    if row is None or row.is_pending:
        item = item_or_404(request.user, ref, Right.READ)
        # Its store may have it already and its row not yet: a moment later the row says what became of it.
        is_between = item.action is not None and not item.action.is_open
        if row is None or was in ("", row.state) or is_between:
            return HttpResponse(status=204)
        return _panel(request, ref, None, {}, status=200, right=Right.READ)
    kind, template = _BECAME.get(DecisionState(row.state), (AnswerKind.NOTHING, "nothing"))
    answer = Answer(kind=kind, detail=row.why, decision=row)
    context: dict[str, Any] = {"answer": answer, "answer_template": f"decisions/answers/_{template}.html"}
    context["next"] = what_next(request, ref)
    return _panel(request, ref, None, context, status=200, right=Right.READ)


_BECAME: dict[str, tuple[AnswerKind, str]] = {
    DecisionState.WRITTEN: (AnswerKind.REPEATED, "delivered"),
    DecisionState.WITHDRAWN: (AnswerKind.WITHDRAWN, "withdrawn"),
    DecisionState.REFUSED: (AnswerKind.NOTHING, "refused"),
}


def _answer(
    request: HttpRequest,
    ref: ActionRef,
    form: DecisionForm | None,
    answer: Answer,
    *,
    template: str = "",
    extra: dict[str, Any] | None = None,
    right: Right = Right.SETTLE,
) -> HttpResponse:
    """One drawn panel for each answer; the typed text stays where somebody may want it again."""
    context: dict[str, Any] = {"answer": answer, "answer_template": f"decisions/answers/_{template or answer.kind}.html"}
    context |= extra or {}
    if answer.kind in (AnswerKind.UNAVAILABLE, AnswerKind.READ_ONLY):
        checks.forget()
        context["sees_detail"] = _sees_detail(request, ref)
        context["is_unwritten"] = answer.detail.endswith("; nothing was written")
    if answer.kind is AnswerKind.CONFIRM:
        context["confirm_url"] = f"{CONFIRM}?{urlencode({'next': _page_of(ref.store, ref.agent, ref.seq)})}"
    if form is not None and answer.kind in _BACK_TO_FORM and answer.item is not None:
        form = _again(request, form, answer)
        context["goes_on"] = True
    if form is not None and answer.kind in (AnswerKind.UNAVAILABLE, AnswerKind.CONFIRM):
        context["resend"] = [(name, form.data.get(name, "")) for name in form.fields if form.data.get(name)]
    if answer.kind in _MOVED_ON or template == "delivered":
        context["next"] = what_next(request, ref)
    response = _panel(request, ref, form, context, status=STATUS[answer.kind], right=right)
    if answer.kind in (AnswerKind.OWN_DECISION, AnswerKind.CONFIRM):
        denied(response, answer.kind, answer.detail)
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
    request: HttpRequest,
    ref: ActionRef,
    form: DecisionForm | None,
    extra: dict[str, Any],
    *,
    status: int,
    right: Right = Right.SETTLE,
) -> HttpResponse:
    """The decision section alone for htmx, the whole page otherwise; both show the action as it is now, where its store can be asked."""
    try:
        if wants_partial(request):
            item = item_or_404(request.user, ref, right)
            tool = item.action.tool if item.action else ""
            rights = {
                "may_settle": may(request.user, Right.SETTLE, store=ref.store, tool=tool),
                "may_evict": may(request.user, Right.EVICT, store=ref.store),
                "has_server": find_server(ref.store) is not None,
            }
            context: dict[str, Any] = {"item": item, "ref": ref, **rights, **decision_context(request, item, form)}
            if form is None:
                context |= second_context(request, item, current_decisions([ref]).get(ref))
            context |= claim_context(request, ref)
        else:
            context = action_context(request, ref, form=form)
    except StoreError:
        if "answer" not in extra:
            raise
        cautions = checks.recent_check(get_store(ref.store)).cautions
        context = {"ref": ref, "form": form, "cautions": cautions}
        context["decide_url"] = action_address(ref.store, ref.agent, ref.seq, view="decision")
        return render_part(request, "decisions/alone.html", "decisions/_decision.html", context | extra, status=status)
    if form is not None and form.is_bound:
        context |= turn_context(context["item"], form, user_of(request))
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


def _with_evidence(request: HttpRequest, item: ActionItem) -> tuple[DecisionForm, int]:
    """The form filled in from a verdict: what it says happened and how that is known, for the person to look at. Nothing is written."""
    data = request.POST.copy()
    verdict = find_verdict(item.ref, request.POST.get("evidence", ""))
    if verdict is None:
        form = DecisionForm(data)
        form.add_error(None, "There is no such verdict about this action.")
        return form, 422
    reason = reason_of(verdict)
    data["outcome"] = view_of(verdict).decides
    if reason not in data.get("reason", ""):
        data["reason"] = f"{data.get('reason', '').rstrip()} {reason}".strip()
    data["evidence_id"] = verdict.evidence_id
    if data["outcome"] == LATER and verdict.check_again_at is not None and not data.get("look_again_at"):
        data["look_again_at"] = f"{verdict.check_again_at:%Y-%m-%dT%H:%M}"
    return DecisionForm(data), 200
