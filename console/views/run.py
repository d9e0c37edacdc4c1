"""One durable run: how far it is, its calls, its approvals, its story; and what people do about it, each gesture with its reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from actions.arguments import parse_arguments
from actions.errors import ActionsError, InvalidQuery, StoreError
from actions.queries import ActionItem, read_actions_of_agent
from actions.records import ActionClass
from actions.redaction import redact_arguments
from actions.rules import MAX_REASON_CHARS
from console.access import visible
from console.htmx import render_part
from console.models import Parked, Run, RunStatus, Undoing
from console.refusals import denied
from console.run_lines import (
    approval_line,
    call_lines,
    known_types,
    limits_of,
    more_of,
    sentence_of,
    steps_of_calls,
)
from console.run_reading import events_of, may_operate, step_events
from console.services.run_rows import is_undoing
from console.services.runs import (
    OpenCalls,
    RunNotPossible,
    cancel_run,
    get_run,
    mark_done,
    restart_run,
    restart_warnings,
    resume_run,
)
from console.services.undoing import PreviewChanged, digest_of, preview, start_undoing
from console.store_news import told
from console.stores import UnknownStore, get_store
from console.texts import take_texts
from console.tool_rules import read_rules
from console.untrusted import PREVIEW_CHARS, pretty
from console.views.gate import only_post, signed_in, user_of
from console.words import RUN_STATUSES, STATES

CALLS_SHOWN = 200
APPROVALS_SHOWN = 50
_TO_DO = frozenset({"waiting", "failed", "in_doubt"})
_ENDED = (RunStatus.FAILED, RunStatus.DONE, RunStatus.CANCELLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gesture:
    """A button of the page. `says`: what it does."""

    name: str
    label: str
    says: str

    def href(self, run: Run) -> str:
        return reverse(self.name, args=[run.run_id])


CANCEL = Gesture(name="run-cancel", label="Cancel it", says="It stops between two steps; what has happened stays.")
RESUME = Gesture(
    name="run-resume", label="Resume", says="It goes on from its last checkpoint; nothing that happened is done again."
)
RESTART = Gesture(
    name="run-restart", label="Restart as a new run", says="From the beginning, under a new id: calls are made again."
)
MARK = Gesture(name="run-done", label="Mark it done", says="It counts as done and goes no further.")


@signed_in
@require_safe
def run(request: HttpRequest, run_id: str) -> HttpResponse:
    """The whole page, or what of it may change while somebody reads."""
    return _page(request, get_run(run_id, by=user_of(request)))


def _page_of(run_id: str) -> str:
    return reverse("run", args=[run_id])


@signed_in
@only_post(_page_of)
def cancel(request: HttpRequest, run_id: str) -> HttpResponse:
    """Stop it; what waits for approval becomes void."""
    return _after(request, run_id, lambda by, reason: cancel_run(run_id, by=by, reason=reason))


@signed_in
@only_post(_page_of)
def resume(request: HttpRequest, run_id: str) -> HttpResponse:
    """Let a failed or cancelled run go on."""
    return _after(request, run_id, lambda by, reason: resume_run(run_id, by=by, reason=reason))


@signed_in
@only_post(_page_of)
def restart(request: HttpRequest, run_id: str) -> HttpResponse:
    """Begin anew under another id, and show that run."""
    return _after(request, run_id, lambda by, reason: restart_run(run_id, by=by, reason=reason))


@signed_in
@only_post(_page_of)
def done(request: HttpRequest, run_id: str) -> HttpResponse:
    """Say that it is done; refused while a call of it is open."""
    return _after(request, run_id, lambda by, reason: mark_done(run_id, by=by, reason=reason))


def _after(request: HttpRequest, run_id: str, gesture: Callable[[User, str], object]) -> HttpResponse:
    """Do it, and show what it came to; what cannot be done leaves the reason where it was typed."""
    odd, by = take_texts(request), user_of(request)
    found, reason = get_run(run_id, by=by), request.POST.get("reason", "").strip()
    if problem := next(iter(odd.values()), "") or _problem_of(reason):
        return _page(request, found, reason=reason, problem=problem, status=422)
    try:
        became = gesture(by, reason)
    except OpenCalls as exc:
        return _page(request, get_run(run_id, by=by), reason=reason, problem=str(exc), shows_open=True, status=409)
    except RunNotPossible as exc:
        return _page(request, get_run(run_id, by=by), reason=reason, problem=str(exc), status=409)
    except PermissionDenied as exc:
        return denied(_page(request, found, reason=reason, problem=str(exc), status=403), "forbidden", str(exc))
    except StoreError:
        raise
    except ActionsError as exc:
        return _page(request, found, reason=reason, problem=str(exc), status=409)
    return redirect(_page_of(became.run_id if isinstance(became, Run) else run_id))


@signed_in
@require_http_methods(["GET", "HEAD", "POST"])
def undo(request: HttpRequest, run_id: str) -> HttpResponse:
    """What taking the run back would do, newest first; a POST begins it, bound to the plan that was shown."""
    by = user_of(request)
    found = get_run(run_id, by=by)
    if request.method != "POST":
        return _undo_page(request, found)
    odd, reason = take_texts(request), request.POST.get("reason", "").strip()
    if problem := next(iter(odd.values()), "") or _problem_of(reason):
        return _undo_page(request, found, reason=reason, problem=problem, status=422)
    try:
        start_undoing(run_id, by=by, reason=reason, seen=request.POST.get("seen", "") or "nothing was shown")
    except PreviewChanged:
        problem = "What would be taken back has changed since it was shown. Nothing was begun: look again, and begin that."
        return _undo_page(request, get_run(run_id, by=by), reason=reason, problem=problem, status=412)
    except RunNotPossible as exc:
        return _undo_page(request, get_run(run_id, by=by), reason=reason, problem=str(exc), status=409)
    except PermissionDenied as exc:
        return denied(_undo_page(request, found, reason=reason, problem=str(exc), status=403), "forbidden", str(exc))
    return redirect(_page_of(run_id))


def _undo_page(request: HttpRequest, found: Run, *, reason: str = "", problem: str = "", status: int = 200) -> HttpResponse:
    known, rules = known_types(), read_rules()
    steps: list[dict[str, Any]] = []
    digest, not_possible = "", ""
    try:
        plan = preview(found.run_id, by=user_of(request))
        digest = digest_of(plan)
        calls = read_actions_of_agent(get_store(found.store), found.run_id, limit=CALLS_SHOWN, rules=rules) if plan else ()
        items = {item.seq: item for item in calls}
        for step in plan:
            item = items.get(step.call.seq)
            given = "" if step.args is None else json.dumps(step.args, default=str)
            args = pretty(redact_arguments(parse_arguments(given), rules.of(step.tool).redacted)) if given else ""
            steps.append({"step": step, "item": item, "args": args})
    except RunNotPossible as exc:
        not_possible = str(exc)
    context = {
        "run": found,
        "sentence": sentence_of(found, known),
        "word": RUN_STATUSES[found.status],
        "steps": steps,
        "to_do": sum(one["step"].state in _TO_DO for one in steps),
        "digest": digest,
        "not_possible": not_possible or _why_not_undone(found),
        "can_begin": not (not_possible or _why_not_undone(found)),
        "reason": reason,
        "problem": problem,
        "max_chars": MAX_REASON_CHARS,
        "may_operate": may_operate(found, request.user),
    }
    return render_part(request, "runs/undo.html", "runs/_undo.html", context, status=status)


def _why_not_undone(found: Run) -> str:
    """Why it cannot be taken back as it stands; empty where it can."""
    if found.undoing == Undoing.RUNNING:
        return "What it did is being taken back already."
    if found.status not in (RunStatus.FAILED, RunStatus.CANCELLED):
        return f"Only a run that failed or was cancelled is taken back; this one is {found.get_status_display().lower()}."
    return ""


def _page(
    request: HttpRequest, found: Run, *, reason: str = "", problem: str = "", shows_open: bool = False, status: int = 200
) -> HttpResponse:
    known, rules = known_types(), read_rules()
    before = request.GET.get("before", "")
    if before and not (before.isascii() and before.isdigit() and len(before) < 10):
        raise InvalidQuery("before is the number of an event")
    lines, older = events_of(found, before=int(before) if before else None)
    items, calls_problem = _calls_of(request, found)
    may_see = visible(request.user)
    approvals = list(found.approvals.select_related("run").order_by("-asked_at", "-pk")[:APPROVALS_SHOWN])
    seen = [row for row in approvals if may_see(found.store, row.tool)]
    kind = known.types.get(found.type)
    gestures = _gestures(found, is_known=kind is not None)
    calls = call_lines(items, steps_of_calls(step_events(found)))
    open_calls = [line for line in calls if _is_open(line.item)]
    context: dict[str, Any] = {
        "run": found,
        "sentence": sentence_of(found, known),
        "word": RUN_STATUSES[found.status],
        "more": more_of(found),
        "has_type": kind is not None,
        "types_problem": known.problem,
        "is_ended": found.status in _ENDED,
        "limits": limits_of(found, known),
        "events": lines,
        "older": older,
        "is_newest": not before,
        "calls": calls,
        "calls_problem": calls_problem,
        "open_calls": open_calls,
        "says_doubt": bool(open_calls) and found.parked == Parked.OPEN_CALLS and not found.undoing,
        "approvals": [approval_line(row, request.user, rules, known) for row in seen],
        "restarts": list(found.restarts.order_by("pk").values_list("run_id", flat=True)[:20]),
        "input": pretty(redact_arguments(parse_arguments(found.input))),
        "preview_chars": PREVIEW_CHARS,
        "may_operate": may_operate(found, request.user),
        "gestures": gestures,
        "hrefs": [(one, one.href(found)) for one in gestures],
        "can_undo": found.status in (RunStatus.FAILED, RunStatus.CANCELLED) and found.undoing in (Undoing.NO, Undoing.STOPPED),
        "warnings": restart_warnings(found) if found.status in (RunStatus.FAILED, RunStatus.CANCELLED) else (),
        "states": STATES,
        "reason": reason,
        "problem": problem,
        "shows_open": shows_open,
        "max_chars": MAX_REASON_CHARS,
    }
    return render_part(request, "runs/run.html", "runs/_progress.html", context, status=status)


def _gestures(found: Run, *, is_known: bool) -> list[Gesture]:
    """What may be done about a run in its status; the service decides when it is done."""
    if found.status == RunStatus.DONE or is_undoing(found):
        return []
    if found.status in (RunStatus.FAILED, RunStatus.CANCELLED):
        ways = [*([] if found.undoing or found.restarts.exists() else [RESUME]), RESTART] if is_known else []
        return ways if found.undoing else [*ways, MARK]
    return [CANCEL, MARK]


def _calls_of(request: HttpRequest, found: Run) -> tuple[list[ActionItem], str]:
    """The calls of its agent that this person may see, newest first, and why there are none where its store does not answer."""
    may_see = visible(request.user)
    try:
        items = read_actions_of_agent(get_store(found.store), found.run_id, limit=CALLS_SHOWN, rules=read_rules())
    except UnknownStore:
        return [], f"Store {found.store} is not configured here any more."
    except StoreError as exc:
        return [], told(request.user, found.store, exc.problem)
    return [item for item in items if item.action is None or may_see(found.store, item.action.tool)], ""


def _is_open(item: ActionItem) -> bool:
    return item.action is not None and item.action.is_open and item.action.action_class is not ActionClass.PURE


def _problem_of(reason: str) -> str:
    if not reason:
        return "Say why: the history keeps the reason."
    return f"A reason may have {MAX_REASON_CHARS:,} characters." if len(reason) > MAX_REASON_CHARS else ""
