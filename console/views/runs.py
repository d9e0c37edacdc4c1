"""The list of durable runs, and the form that starts one."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from django.core.exceptions import PermissionDenied
from django.db.models import Count
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from actions.errors import ActionsError, InvalidQuery, StoreError
from console.access import Right, may_somewhere
from console.forms import problems_of
from console.htmx import render_part
from console.models import Approval, ApprovalState
from console.refusals import denied
from console.run_forms import RunFilters, input_fields, other_problems, read_input
from console.run_lines import KnownTypes, known_types, run_line, words_of_types
from console.services.runs import COUNTED, IdempotencyConflict, InvalidRunInput, count_runs, list_runs, start_run
from console.texts import take_texts
from console.views.gate import signed_in, user_of

PAGE_SIZE = 50
MAX_KEY = 64


@signed_in
@require_safe
def runs(request: HttpRequest) -> HttpResponse:
    """Every run that this person may see, newest first, as page or as the piece that live updates fetch."""
    filters = RunFilters(request.GET)
    if not filters.is_valid():
        raise InvalidQuery(problems_of(filters))
    known, said = known_types(), filters.cleaned_data
    page = list_runs(
        by=user_of(request),
        status=said["status"],
        kind=said["type"],
        text=said["text"],
        cursor=request.GET.get("cursor"),
        limit=PAGE_SIZE,
    )
    waits = _waiting([run.pk for run in page.items])
    query = urlencode(filters.query)
    context = {
        "lines": [run_line(run, known, waits=waits.get(run.pk, 0)) for run in page.items],
        "next": page.next,
        "is_first_page": not request.GET.get("cursor"),
        "first_page": f"{reverse('runs')}?{query}" if query else reverse("runs"),
        "count": count_runs(by=user_of(request), status=said["status"], kind=said["type"], text=said["text"]),
        "cap": COUNTED,
        "filters": filters,
        "known": known,
        "types": words_of_types(known),
        "may_start": bool(known.types) and may_somewhere(request.user, Right.SETTLE),
    }
    return render_part(request, "runs/runs.html", "runs/_list.html", context)


@signed_in
@require_http_methods(["GET", "HEAD", "POST"])
def new(request: HttpRequest, kind: str) -> HttpResponse:
    """The form of a type's input. A POST starts one run, however often it is sent: the form carries its key."""
    known = known_types()
    if kind not in known.types:
        raise Http404(known.problem or f"no run type is called {kind!r}")
    if request.method != "POST":
        return _form(request, known, kind, key=uuid.uuid4().hex)
    odd = take_texts(request)
    given, typed, problems = read_input(known.types[kind], request.POST)
    key = request.POST.get("key", "")[:MAX_KEY]
    problems |= {name.removeprefix("in-"): problem for name, problem in odd.items()}
    if not key:
        return _form(
            request, known, kind, key=uuid.uuid4().hex, typed=typed, problem="Nothing was started: send it again.", status=422
        )
    if problems:
        return _form(request, known, kind, key=key, typed=typed, problems=problems, status=422)
    try:
        run, _ = start_run(kind, given, by=user_of(request), idempotency_key=key)
    except InvalidRunInput as exc:
        return _form(request, known, kind, key=key, typed=typed, problems=exc.problems, status=422)
    except IdempotencyConflict:
        problem = "This form has already started a run with another input. What stands here now starts another one: look, and send it again."
        return _form(request, known, kind, key=uuid.uuid4().hex, typed=typed, problem=problem, status=409)
    except PermissionDenied as exc:
        return denied(_form(request, known, kind, key=key, typed=typed, problem=str(exc), status=403), "forbidden", str(exc))
    except StoreError:
        raise
    except ActionsError as exc:
        return _form(request, known, kind, key=key, typed=typed, problem=str(exc), status=409)
    return redirect("run", run_id=run.run_id)


def _form(
    request: HttpRequest,
    known: KnownTypes,
    kind: str,
    *,
    key: str,
    typed: Mapping[str, str] | None = None,
    problems: Mapping[str, str] | None = None,
    problem: str = "",
    status: int = 200,
) -> HttpResponse:
    said = known.types[kind]
    words = next(one for one in words_of_types(known) if one.name == kind)
    context: dict[str, Any] = {
        "kind": words,
        "fields": input_fields(said, typed, problems),
        "others": other_problems(said, problems or {}),
        "problem": problem,
        "has_problems": bool(problems),
        "key": key,
        "may_start": may_somewhere(request.user, Right.SETTLE),
    }
    return render_part(request, "runs/new.html", "runs/_new.html", context, status=status)


def _waiting(pks: list[int]) -> Mapping[int, int]:
    """How many approvals of each of these runs wait."""
    if not pks:
        return {}
    rows = Approval.objects.filter(run_id__in=pks, state=ApprovalState.PENDING).values_list("run_id")
    return dict(rows.annotate(count=Count("pk")))
