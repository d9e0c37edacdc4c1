"""Notes on an action: all of them, and one more at any time."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django_htmx.http import trigger_client_event

from actions.errors import InvalidDecision
from actions.records import ActionRef
from console.access import Right, item_or_404
from console.forms import NoteForm
from console.htmx import render_part, wants_partial
from console.services.claimed import renew
from console.services.notes import add_note
from console.texts import take_texts
from console.views.action import action_context
from console.views.gate import only_post, signed_in, user_of


@signed_in
@only_post(lambda store, agent, seq: reverse("action", args=[store, agent, seq]))
def note(request: HttpRequest, store: str, agent: str, seq: int) -> HttpResponse:
    """Keep a note. The panel comes back with it, or with what was typed and what is wrong with it."""
    ref = ActionRef(store, agent, seq)
    item_or_404(request.user, ref, Right.SETTLE)
    odd = take_texts(request)
    form = NoteForm(request.POST)
    for problem in odd.values():
        form.add_error(None, problem)
    if form.is_valid():
        said = form.cleaned_data
        try:
            add_note(ref, text=said["text"], look_again_at=said["look_again_at"], note_id=said["note_id"], by=user_of(request))
        except InvalidDecision as exc:
            form.add_error(None, str(exc))
        else:
            renew(ref, by=request.user)
            if not wants_partial(request):
                return redirect(f"{reverse('action', args=[store, agent, seq])}#notes")
            response = render_part(request, "actions/action.html", "notes/_notes.html", action_context(request, ref))
            return trigger_client_event(response, "changed")
    context = action_context(request, ref) | {"note_form": form}
    return render_part(request, "actions/action.html", "notes/_notes.html", context, status=422)
