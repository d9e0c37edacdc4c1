"""Calls of runs that a person has to agree to: those that wait, and one with what it asks, why, and the form that answers it."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from actions.digests import sha256_text
from actions.errors import StoreError
from actions.queries import read_actions_of_agent
from console.access import Right, may
from console.edits import Edit, NotAnEdit, can_be_edited, edits_between, read_edit
from console.htmx import render_part
from console.identity import confirmed_at
from console.models import Approval, ApprovalState
from console.refusals import denied
from console.run_lines import approval_line, call_lines, known_types
from console.run_reading import find_visible_run
from console.services.approvals import (
    AlreadyAnswered,
    ApprovalChanged,
    ApprovalVoid,
    InvalidAnswer,
    ProofNeeded,
    answer,
    edit_problems,
    get_approval,
    needs_proof,
    pending_approvals,
    why_not_answer,
)
from console.store_news import told
from console.stores import UnknownStore, get_store
from console.texts import take_texts
from console.tool_rules import read_rules
from console.untrusted import PREVIEW_CHARS, editable
from console.views.gate import signed_in, user_of
from console.words import GATE_ANSWERS

LISTED = 200
TURNS_SHOWN = 4
CALLS_SHOWN = 20
MAX_WORDS = 2_000
MAX_SHOWN = 1_200_000
"""Characters of arguments shown whole, as on the page of an action."""
_WITH_WORDS = frozenset({"reject", "respond"})
_STATE_OF = {"approve": "approved", "edit": "edited", "reject": "rejected", "respond": "responded"}


@signed_in
@require_safe
def approvals(request: HttpRequest) -> HttpResponse:
    """What waits for approval, as a page or as the piece that live updates fetch."""
    return render_part(request, "approvals/approvals.html", "approvals/_waiting.html", waiting_context(request))


def waiting_context(request: HttpRequest, *, is_any: bool = True) -> dict[str, Any]:
    """The section below the queue: oldest first, only what this person may see. `is_any` False: none waits, so none is read."""
    rows = pending_approvals(by=user_of(request), limit=LISTED) if is_any else ()
    if not rows:
        return {"approval_lines": (), "has_run_types": bool(settings.RUN_TYPES)}
    rules, known = read_rules(), known_types()
    return {
        "approval_lines": [approval_line(row, request.user, rules, known) for row in rows],
        "approvals_beyond": len(rows) == LISTED,
        "has_run_types": True,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """What somebody sent, and what became of it."""

    decision: str = ""
    message: str = ""
    args: str = ""  # as typed; empty: nothing was
    problem: str = ""
    became: str = ""  # changed, answered, void, confirm, denied; empty: a form to go on with
    edits: tuple[Edit, ...] | None = None  # the changes to look at before they are sent
    reviewed: str = ""

    @property
    def is_kept(self) -> bool:
        return bool(self.message or self.args)


@signed_in
@require_http_methods(["GET", "HEAD", "POST"])
def approval(request: HttpRequest, approval_id: str) -> HttpResponse:
    """One approval. A POST answers it, bound to what was shown; changed arguments are shown as a difference first, and sent with that."""
    found = get_approval(approval_id, by=user_of(request))
    if request.method == "POST":
        return _answer(request, found)
    return _page(request, found, _Said(decision=request.GET.get("choose", "")[:10]))


def _answer(request: HttpRequest, found: Approval) -> HttpResponse:
    odd, sent = take_texts(request), request.POST
    said = _Said(decision=sent.get("decision", ""), message=sent.get("message", ""), args=sent.get("args", ""))
    rule = read_rules().of(found.tool)
    if odd:
        return _again(request, found, said, next(iter(odd.values())))
    if len(said.message) > MAX_WORDS:
        return _again(request, found, said, f"that is longer than {MAX_WORDS:,} characters")
    if said.decision not in found.allowed:
        words = ", ".join(one.label for one in GATE_ANSWERS if one.value in found.allowed)
        return _again(
            request, found, said, f"say what is to happen: {words}" if not said.decision else f"this gate allows {words}"
        )
    args: dict[str, Any] | None = None
    if said.decision == "edit" and found.state == ApprovalState.PENDING and sent.get("seen") == found.digest:
        try:
            args = read_edit(said.args, found.args, rule.redacted)
        except NotAnEdit as exc:
            return _again(request, found, said, str(exc))
        reviewed = review_of(found, args)
        edits = edits_between(found.args, json.dumps(args), rule.redacted)
        if not edits:
            return _again(request, found, said, "nothing is changed; approve it as it is, or change something")
        if "change" in sent:
            return _page(request, found, said)
        if problems := edit_problems(found, args):
            return _again(request, found, said, "; ".join(problems))
        if sent.get("reviewed") != reviewed:
            return _page(request, found, replace(said, edits=edits, reviewed=reviewed))
    try:
        answer(
            found.approval_id,
            decision=said.decision,
            seen=sent.get("seen", "") or "nothing was shown",
            by=user_of(request),
            args=args,
            message=said.message if said.decision in _WITH_WORDS else "",
            confirmed_at=confirmed_at(request),
        )
    except ApprovalChanged:
        return _page(request, _now(request, found), replace(said, became="changed"), status=412)
    except AlreadyAnswered:
        now = _now(request, found)
        if _is_said_again(now, said, rule.redacted, by=user_of(request)):
            return redirect(_address(found))  # the same button twice
        return _page(request, now, replace(said, became="answered"), status=409)
    except ApprovalVoid:
        return _page(request, _now(request, found), replace(said, became="void"), status=409)
    except InvalidAnswer as exc:
        return _again(request, found, said, "; ".join(exc.problems))
    except ProofNeeded as exc:
        return denied(_page(request, found, replace(said, became="confirm"), status=403), "confirm_identity", str(exc))
    except PermissionDenied as exc:
        response = _page(request, found, replace(said, became="denied", problem=str(exc)), status=403)
        return denied(response, "forbidden", str(exc))
    return redirect(_address(found))


def _is_said_again(now: Approval, said: _Said, hidden: frozenset[str], *, by: User) -> bool:
    """Whether what stands there is exactly this answer of the same person: not another change, nor other words."""
    if (now.answered_by, now.state) != (by.get_username(), _STATE_OF[said.decision]):
        return False
    if said.decision != "edit":
        return now.message == (said.message if said.decision in _WITH_WORDS else "")
    try:
        return not edits_between(now.edited_args, json.dumps(read_edit(said.args, now.args, hidden)), hidden)
    except NotAnEdit:
        return False


def review_of(found: Approval, args: dict[str, Any]) -> str:
    """What the second step of an edit is bound to: these changes of this call."""
    return sha256_text(json.dumps([found.approval_id, found.digest, args], sort_keys=True))


def _again(request: HttpRequest, found: Approval, said: _Said, problem: str) -> HttpResponse:
    return _page(request, found, replace(said, problem=problem), status=422)


def _now(request: HttpRequest, found: Approval) -> Approval:
    return get_approval(found.approval_id, by=user_of(request))


def _page(request: HttpRequest, found: Approval, said: _Said, *, status: int = 200) -> HttpResponse:
    rules, known = read_rules(), known_types()
    line = approval_line(found, request.user, rules, known)
    allowed = [one for one in GATE_ANSWERS if one.value in found.allowed]
    can_edit = can_be_edited(found.args)
    sees_run = find_visible_run(found.run.run_id, request.user) is not None
    context: dict[str, Any] = {
        "line": line,
        "row": found,
        "run": found.run,
        "sees_run": sees_run,
        "sees_words": may(request.user, Right.READ, store=found.run.store),
        "shown_chars": MAX_SHOWN if "whole" in request.GET else PREVIEW_CHARS,
        "answers": [one for one in allowed if one.value != "edit" or can_edit],
        "said": said,
        "chosen": said.decision if said.decision in found.allowed else "",
        "can_edit": can_edit and "edit" in found.allowed,
        "args_typed": said.args if said.args and said.decision == "edit" else editable(line.arguments),
        "rows": min(24, max(4, line.pretty.count("\n") + 2)),
        "asks_who": line.is_pending and needs_proof(found, "approve"),
        "confirm_url": f"{reverse('confirm')}?{urlencode({'next': _address(found)})}",
        "max_words": MAX_WORDS,
        **_next(request, found),
        **(_of_run(request, found) if sees_run else {}),
    }
    return render_part(request, "approvals/approval.html", "approvals/_status.html", context, status=status)


def _next(request: HttpRequest, found: Approval) -> dict[str, Any]:
    """After an answer: the oldest one that this person can answer."""
    if found.state == ApprovalState.PENDING:
        return {}
    rows = pending_approvals(by=user_of(request), limit=LISTED)
    mine = next((row for row in rows if not why_not_answer(row, request.user)), None)
    return {"next_href": _address(mine) if mine else ""}


def _of_run(request: HttpRequest, found: Approval) -> dict[str, Any]:
    """What the run is about: its agent's goal and last turns, and its calls so far, newest first."""
    run = found.run
    try:
        store = get_store(run.store)
        items = read_actions_of_agent(store, run.run_id, limit=CALLS_SHOWN, rules=read_rules())
        return {
            "working_state": store.find_working_state(run.run_id),
            "turns": store.list_turns(run.run_id, limit=TURNS_SHOWN),
            "calls": call_lines(items, {}),
        }
    except UnknownStore:
        return {"run_problem": f"Store {run.store} is not configured here any more."}
    except StoreError as exc:
        return {"run_problem": told(request.user, run.store, exc.problem)}


def _address(found: Approval) -> str:
    return reverse("approval", args=[found.approval_id])
