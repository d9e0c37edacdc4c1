"""Having a waiting decision written through the tenant's own server: the warning, the confirmation, and what it came to."""

from __future__ import annotations

from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.views.decorators.http import require_http_methods

from actions.records import ActionRef
from console.access import Right, item_or_404
from console.htmx import render_part
from console.services.answers import STATUS, Answer, AnswerKind
from console.services.decisions import current_decisions
from console.services.through import write_through
from console.stores import find_server
from console.views.gate import signed_in, user_of


@signed_in
@require_http_methods(["GET", "HEAD", "POST"])
def through(request: HttpRequest, store: str, agent: str, seq: int) -> HttpResponse:
    """The page, and with a POST what became of it."""
    ref = ActionRef(store, agent, seq)
    if request.method != "POST":
        return _page(request, ref, None)
    said = request.POST
    answer = write_through(ref, decision_id=said.get("decision_id", ""), confirm=said.get("confirm", ""), by=user_of(request))
    return _page(request, ref, answer, status=STATUS[answer.kind])


def _page(request: HttpRequest, ref: ActionRef, answer: Answer | None, *, status: int = 200) -> HttpResponse:
    context: dict[str, Any] = {"ref": ref, "answer": answer}
    if answer is None or answer.kind is AnswerKind.INVALID:
        item = item_or_404(request.user, ref, Right.SETTLE)
        if find_server(ref.store) is None:
            raise Http404(f"store {ref.store} names no server of its tenant")
        context |= {"item": item, "decision": current_decisions([ref]).get(ref)}
    elif answer.kind is AnswerKind.UNAVAILABLE:
        context["resend"] = [(name, request.POST.get(name, "")) for name in ("decision_id", "confirm")]
    return render_part(request, "through/through.html", "through/_through.html", context, status=status)
