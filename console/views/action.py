"""One action: the claim, the world, the agent, what was entered about it, and at the bottom the decision."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_safe
from django_htmx.http import push_url

from actions.errors import StoreError
from actions.facts import LOWEST_RISK, CallKind
from actions.queries import ActionItem, read_actions_of_agent, read_result
from actions.records import ActionClass, ActionRef, Entry
from console.access import Person, Right, item_or_404, may, may_somewhere, sees_problems
from console.addresses import action_address
from console.checks import recent_check
from console.evidence import VerdictView, views_of
from console.forms import DecisionForm, NoteForm, new_decision_form
from console.htmx import beside_queue, render_part
from console.models import Claim, Correction, Decision, DecisionState
from console.run_lines import call_lines, steps_of_calls
from console.run_reading import run_of_agent, step_events
from console.services.aftermath import Aftermath, aftermaths
from console.services.approve import show_proposal
from console.services.around import EVERYTHING, There, what_is_around, what_is_there
from console.services.asking import open_calls_of
from console.services.claimed import find_claim, renew
from console.services.correction_approval import show_proposed_correction
from console.services.corrections import standing_correction
from console.services.decisions import current_decisions
from console.services.notes import notes_on
from console.services.verdicts import verdicts_of
from console.store_news import told
from console.stores import UnknownStore, find_server, get_store
from console.tool_rules import read_rules, rule_of
from console.untrusted import PREVIEW_CHARS, pretty
from console.views.gate import signed_in, user_of
from console.views.stranded import stranded_page
from console.views.world import world_context
from console.words import CLASSES, OUTCOMES, presets, state_says

TURNS_SHOWN = 6
ENTRIES_SHOWN = 50
CALLS_OF_RUN = 200
EVIDENCE_OFFERED = 3
"""Newest verdicts that the form offers to fill itself in from."""
MAX_SHOWN = 1_200_000
"""Characters of a value shown whole: a little more than Recall keeps, pretty-printed."""


@signed_in
@require_safe
def action(request: HttpRequest, store: str, agent: str, seq: int) -> HttpResponse:
    """The whole page, or the article alone for the pane beside the queue, whose address then names it."""
    ref = ActionRef(store, agent, seq)
    try:
        context = action_context(request, ref)
    except UnknownStore:
        if page := stranded_page(request, ref):
            return page
        raise
    if context["claim"] is not None:
        renew(ref, by=request.user)
    response = render_part(request, "actions/action.html", "actions/_action.html", context)
    beside = beside_queue(request, ref)
    return push_url(response, beside) if beside else response


@signed_in
@require_safe
def arguments(request: HttpRequest, store: str, agent: str, seq: int) -> HttpResponse:
    """The whole arguments, redacted."""
    item = item_or_404(request.user, ActionRef(store, agent, seq), Right.READ)
    return _whole(request, item, "Arguments", pretty(item.arguments))


@signed_in
@require_safe
def result(request: HttpRequest, store: str, agent: str, seq: int) -> HttpResponse:
    """The whole result, redacted."""
    item = item_or_404(request.user, ActionRef(store, agent, seq), Right.READ)
    if item.action is None:
        raise Http404("an unreadable record has no result")
    return _whole(request, item, "Result", read_result(get_store(store), item.action, rule_of(item.action.tool)))


def action_context(
    request: HttpRequest, ref: ActionRef, *, form: DecisionForm | None = None, with_agent: bool = True
) -> dict[str, Any]:
    """Everything the article shows, for somebody who may read the action."""
    item = item_or_404(request.user, ref, Right.READ)
    tool = item.action.tool if item.action else ""
    there = what_is_there([ref])
    world = world_context(request, item, there)
    decision = current_decisions([ref]).get(ref) if there.decisions else None
    context: dict[str, Any] = {
        "item": item,
        "ref": ref,
        "state_says": state_says(item.state, leases_known=item.leases_known),
        "class_says": CLASSES.get(item.action.action_class, "") if item.action else "",
        "weighs": item.facts is not None and item.facts.risk < LOWEST_RISK,
        "arguments": pretty(item.arguments),
        "preview_chars": PREVIEW_CHARS,
        "may_reveal": may(request.user, Right.REVEAL, store=ref.store, tool=tool),
        **second_context(request, item, decision),
        "notes": (notes := notes_on(ref) if there.notes else []),
        "note": notes[0] if notes else None,
        "note_form": NoteForm(initial={"note_id": str(uuid.uuid4())}),
        "correction": (found := standing_correction(ref) if item.action and not item.action.is_open else None),
        **second_corrector(found, item, request.user),
        **claim_context(request, ref, there),
        "may_settle": may(request.user, Right.SETTLE, store=ref.store, tool=tool),
        "may_evict": may(request.user, Right.EVICT, store=ref.store),
        "has_server": find_server(ref.store) is not None,
        **_entries(request, ref, tool),
        **world,
        **decision_context(request, item, form, verdicts=world["verdicts"]),
    }
    context |= _in_run(request, item)
    context["aftermath"] = _aftermath(item, context["entries"])
    return context | (agent_context(request, ref) if with_agent else {})


def _in_run(request: HttpRequest, item: ActionItem) -> dict[str, Any]:
    """The run whose call this is: its step, what it takes back, what took it back. Nothing for an agent that is no run's."""
    run = run_of_agent(item.store, item.agent, request.user) if what_is_around(request.user).runs else None
    if run is None or item.seq is None:
        return {}
    try:
        items = read_actions_of_agent(get_store(item.store), item.agent, limit=CALLS_OF_RUN, rules=read_rules())
    except StoreError:
        items = (item,)
    calls = call_lines(items, steps_of_calls(step_events(run)))
    return {"run": run, "in_run": next((line for line in calls if line.item.seq == item.seq), None)}


def second_context(request: HttpRequest, item: ActionItem, decision: Decision | None) -> dict[str, Any]:
    """The decision that matters, and where it is a proposal what a second person needs to look at."""
    if decision is None or decision.state != DecisionState.PROPOSED:
        return {"decision": decision}
    return {"decision": decision, "proposal": show_proposal(decision, item, user=request.user)}


def second_corrector(row: Correction | None, item: ActionItem, user: Person) -> dict[str, Any]:
    """What stands beside a proposed correction, for whoever looks at it; nothing beside any other."""
    return {"proposed": show_proposed_correction(row, item, user=user)} if row is not None and row.is_proposed else {}


def claim_context(request: HttpRequest, ref: ActionRef, there: There = EVERYTHING) -> dict[str, Any]:
    """Who is at it, as this person is told."""
    found = find_claim(ref) if there.claims else None
    age = int((timezone.now() - found.claimed_at).total_seconds()) if found else 0
    return {"claim": found, "claimed_by": claimed_by(found, request.user), "claim_age_s": age}


def claimed_by(found: Claim | None, viewer: Person) -> str:
    """`you`, or their name; empty where nobody is at it."""
    return "" if found is None else "you" if found.by_id == viewer.pk else found.username


def decision_context(
    request: HttpRequest, item: ActionItem, form: DecisionForm | None = None, *, verdicts: Sequence[VerdictView] | None = None
) -> dict[str, Any]:
    """What the decision form needs, also where it is answered alone."""
    action = item.action
    check = recent_check(get_store(item.store))
    if verdicts is None:
        verdicts = views_of(verdicts_of(item.ref, limit=EVIDENCE_OFFERED))
    return {
        "check": check,
        "cautions": check.cautions,
        "why_not": told(request.user, item.store, check.why_not) if check.why_not else "",
        "sees_problems": sees_problems(request.user, item.store),
        "form": form or new_decision_form(item.digest, action),
        "outcomes": OUTCOMES,
        "evidence": verdicts[:EVIDENCE_OFFERED],
        "presets": presets(item.facts.kind if item.facts else CallKind.OTHER),
        "is_pure": action is not None and action.action_class is ActionClass.PURE,
        "is_idempotent": action is not None and action.action_class is ActionClass.IDEMPOTENT,
        "is_held": item.lease is not None and item.lease.is_live,
        "decide_url": action_address(item.store, item.agent, item.seq, view="decision"),
        "preview_url": action_address(item.store, item.agent, item.seq, view="decision-preview"),
    }


def _entries(request: HttpRequest, ref: ActionRef, tool: str) -> dict[str, Any]:
    """Who did what about this action, newest first; None where this person may not know."""
    if not may(request.user, Right.HISTORY, store=ref.store, tool=tool):
        return {"entries": None}
    try:
        return {"entries": get_store(ref.store).list_entries(limit=ENTRIES_SHOWN, agent=ref.agent, seq=ref.seq)}
    except StoreError as exc:
        return {"entries": (), "entries_problem": told(request.user, ref.store, exc.problem)}


def _aftermath(item: ActionItem, entries: Sequence[Entry] | None) -> Aftermath | None:
    """What became of the decision that ended this action; None where there is none, or where it cannot be told now."""
    settled = [entry for entry in entries or () if entry.kind == "settled"][:1]
    if item.action is None or item.action.is_open or not settled:
        return None
    try:
        return aftermaths(get_store(item.store), item.agent, settled).get(settled[0].number)
    except StoreError:
        return None


def agent_context(request: HttpRequest, ref: ActionRef) -> dict[str, Any]:
    """What the agent says it is doing, and how many open calls of it may be asked about.

    Its words may concern every tool of the store, so they are for those who may see every tool.
    """
    store = get_store(ref.store)
    try:
        open_calls = {"open_calls": _open_calls(request, ref)}
        if not may(request.user, Right.READ, store=ref.store):
            return {"is_agent_hidden": True, **open_calls}
        return {
            **open_calls,
            "working_state": store.find_working_state(ref.agent),
            "turns": store.list_turns(ref.agent, limit=TURNS_SHOWN),
            "pointers": store.list_pointers(ref.agent, limit=20),
        }
    except StoreError as exc:
        return {"agent_problem": told(request.user, ref.store, exc.problem)}


def _open_calls(request: HttpRequest, ref: ActionRef) -> int:
    """How many there are for this person; nobody is told to ask about none."""
    return (
        len(open_calls_of(ref.agent, ref.store, by=user_of(request)))
        if may_somewhere(request.user, Right.SETTLE, store=ref.store)
        else 0
    )


def _whole(request: HttpRequest, item: ActionItem, title: str, text: str) -> HttpResponse:
    context = {"item": item, "ref": item.ref, "title": title, "text": text, "max_shown": MAX_SHOWN}
    context["cautions"] = recent_check(get_store(item.store)).cautions
    return render_part(request, "actions/whole.html", "actions/_whole.html", context)
