"""The stores: what each can be used for now, in words."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from console.access import visible_stores
from console.htmx import render_part
from console.views.gate import signed_in


@signed_in
@require_safe
def stores(request: HttpRequest) -> HttpResponse:
    """Asks every visible store anew: this page is where one looks after mending something."""
    lines = [(store.name, store.check()) for store in visible_stores(request.user)]
    return render_part(request, "stores/stores.html", "stores/_list.html", {"lines": lines})
