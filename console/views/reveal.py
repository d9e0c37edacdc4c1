"""Showing what redaction hides of one action, once, to whoever may see it and says why."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from actions.arguments import parse_arguments
from actions.errors import InvalidDecision
from actions.records import ActionRef
from actions.rules import MAX_REASON_CHARS
from console.access import Right, item_or_404
from console.checks import recent_check
from console.htmx import render_part
from console.identity import confirmed_at
from console.refusals import denied
from console.services.answers import AnswerKind
from console.services.gates import is_confirmed
from console.services.reveal import NotConfirmed, Revealed, reveal
from console.stores import get_store
from console.texts import take_texts
from console.untrusted import pretty
from console.views.action import MAX_SHOWN
from console.views.gate import signed_in, user_of


@never_cache
@signed_in
@require_http_methods(["GET", "HEAD", "POST"])
def revealed(request: HttpRequest, store: str, agent: str, seq: int) -> HttpResponse:
    """The form; a POST shows the texts in its answer alone. Going back, or asking again, shows the form."""
    ref = ActionRef(store, agent, seq)
    item = item_or_404(request.user, ref, Right.REVEAL)
    context: dict[str, Any] = {
        "item": item,
        "ref": ref,
        "cautions": recent_check(get_store(store)).cautions,
        "max_chars": MAX_REASON_CHARS,
        "confirm_url": f"{reverse('confirm')}?{urlencode({'next': request.path})}",
        "needs_proof": not is_confirmed(confirmed_at(request), timezone.now()),
    }
    status, problem = 200, ""
    if request.method == "POST":
        odd = take_texts(request)
        reason = request.POST.get("reason", "")
        try:
            if odd:
                raise InvalidDecision(next(iter(odd.values())))
            found = reveal(ref, reason, by=user_of(request), confirmed_at=confirmed_at(request))
            context |= {"texts": _texts(found), "max_shown": MAX_SHOWN}
        except InvalidDecision as exc:
            status, context = 422, context | {"reason": reason, "problem": str(exc)}
        except NotConfirmed as exc:
            status, context, problem = 403, context | {"reason": reason, "needs_proof": True}, str(exc)
    page = render_part(request, "actions/reveal.html", "actions/_reveal.html", context, status=status)
    return denied(page, AnswerKind.CONFIRM, problem) if status == 403 else page


def _texts(found: Revealed) -> list[tuple[str, str]]:
    """Heading and text; empty ones are left out."""
    named = [
        ("Arguments", _lines(found.arguments)),
        ("Result", _lines(found.result)),
        ("Error", found.error),
        ("Known by", found.resolution),
    ]
    return [(name, text) for name, text in named if text]


def _lines(text: str) -> str:
    """Over several lines where nothing is lost by it: a name that stands twice has two values in the text alone."""
    read = parse_arguments(text)
    return text if read.problems else pretty(read)
