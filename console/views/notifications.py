"""Webhooks that are told what happened, for admins. What a person is told by mail is theirs: settings.py."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from console.services import channels
from console.services.channels import InvalidChannel
from console.services.definitions import require_admin
from console.services.notifications import NotTaken, send_test
from console.services.people import preferences_of, time_zones
from console.texts import take_texts
from console.views.gate import only_post, signed_in, user_of
from console.views.settings import choices_of, quiet_of


@never_cache
@signed_in
@require_http_methods(["GET", "HEAD", "POST"])
def notifications(request: HttpRequest) -> HttpResponse:
    """Every webhook and how it fares; a POST makes one. Its address is never shown again."""
    by = user_of(request)
    require_admin(by)
    if request.method != "POST":
        return _page(request)
    odd = take_texts(request)
    try:
        if odd:
            raise InvalidChannel("", next(iter(odd.values())))
        channels.add_webhook(
            request.POST.get("name", ""),
            request.POST.get("address", ""),
            request.POST.getlist("event"),
            quiet_of(request),
            time_zone=request.POST.get("time_zone", "UTC"),
            by=by,
        )
    except InvalidChannel as exc:
        return _page(request, problem=str(exc), status=422)
    return redirect("notifications")


@signed_in
@only_post(lambda number: reverse("notifications"))
def channel(request: HttpRequest, number: int) -> HttpResponse:
    """Change, test or remove one webhook, or send what was given up once more."""
    by = user_of(request)
    require_admin(by)
    odd = take_texts(request)
    what = request.POST.get("do", "")
    said = ""
    try:
        if odd:
            raise InvalidChannel("", next(iter(odd.values())))
        if what == "save":
            zone = request.POST.get("time_zone", "")
            channels.set_webhook(number, request.POST.getlist("event"), quiet_of(request), time_zone=zone, by=by)
        elif what == "remove":
            channels.remove_webhook(number, by=by)
        elif what == "again":
            channels.send_again(number, by=by)
        elif what == "test":
            send_test(number, by=by)
            said = f"?tested={number}"
        else:
            raise InvalidChannel("do", "nothing that can be done here; nothing was changed")
    except InvalidChannel as exc:
        return _page(request, problem=str(exc), number=number, status=422)
    except NotTaken as exc:
        return _page(request, problem=f"The test was not taken: {exc}", number=number, status=503)
    return redirect(reverse("notifications") + said)


def _page(request: HttpRequest, *, problem: str = "", number: int = 0, status: int = 200) -> HttpResponse:
    by = user_of(request)
    typed = request.POST if request.method == "POST" and not number else {}
    context: dict[str, Any] = {
        "lines": [(line, choices_of(line.channel)) for line in channels.list_webhooks(by=by)],
        "events": choices_of(None),
        "time_zones": time_zones(),
        "zone": preferences_of(by).time_zone,
        "problem": problem,
        "number": number,
        "typed_name": typed.get("name", ""),
        "tested": request.GET.get("tested", ""),
    }
    return render(request, "notifications/notifications.html", context, status=status)
