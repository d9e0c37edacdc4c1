"""A person's own settings: how the pages look, what they are told, how they prove who they are, where they are signed in."""

from __future__ import annotations

from typing import Any

from allauth.mfa.models import Authenticator
from allauth.socialaccount.models import SocialAccount
from django.conf import settings as django_settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from console.models import Channel, Event, Light
from console.services import channels, people
from console.services.channels import InvalidChannel, Quiet
from console.services.notifications import NotTaken, send_test
from console.services.people import InvalidPerson
from console.texts import take_texts
from console.views.account import light
from console.views.gate import known, only_post, user_of

LIGHTS = ((Light.SYSTEM.value, "as the system says"), (Light.LIGHT.value, "light"), (Light.DARK.value, "dark"))


@never_cache
@known
@require_http_methods(["GET", "HEAD", "POST"])
def settings(request: HttpRequest) -> HttpResponse:
    """The whole page; a POST stores time zone, light and keys."""
    if request.method != "POST":
        return _page(request)
    odd = take_texts(request)
    try:
        if odd:
            raise InvalidPerson("", next(iter(odd.values())))
        people.save_preferences(
            user_of(request),
            time_zone=request.POST.get("time_zone", ""),
            theme=request.POST.get("theme", ""),
            single_keys=request.POST.get("single_keys") == "yes",
        )
    except InvalidPerson as exc:
        return _page(request, problem=str(exc), problem_of="display", status=422)
    response = redirect(reverse("settings") + "?saved=display#display")
    light(response, request.POST.get("theme", ""))
    return response


@known
@only_post(lambda: reverse("settings"))
def keys(request: HttpRequest) -> HttpResponse:
    """Single keys on or off, from the list of keys on every page."""
    people.save_preferences(user_of(request), single_keys=request.POST.get("single_keys") == "yes")
    return HttpResponse(status=204)


@known
@only_post(lambda: reverse("settings"))
def mail(request: HttpRequest) -> HttpResponse:
    """What this person is told by mail, and when not; or a test of it."""
    user = user_of(request)
    odd = take_texts(request)
    try:
        if odd:
            raise InvalidChannel("", next(iter(odd.values())))
        if request.POST.get("do") == "test":
            line = channels.own_channel(user)
            send_test(line.channel.pk if line else 0, by=user)
            return redirect(reverse("settings") + "?saved=test#mail")
        channels.set_own_mail(
            user, request.POST.getlist("event"), quiet_of(request), time_zone=people.preferences_of(user).time_zone
        )
    except InvalidChannel as exc:
        return _page(request, problem=str(exc), problem_of="mail", status=422)
    except NotTaken as exc:
        return _page(request, problem=f"The test was not sent: {exc}", problem_of="mail", status=503)
    return redirect(reverse("settings") + "?saved=mail#mail")


@known
@only_post(lambda: reverse("settings"))
def sessions(request: HttpRequest) -> HttpResponse:
    """End one session of this person, or all but this one."""
    user = user_of(request)
    one = request.POST.get("session", "")
    if one == "others":
        people.end_other_sessions(user, request.session.session_key)
    elif one.isascii() and one.isdigit() and len(one) < 18:
        people.end_session(user, int(one))
    return redirect(reverse("settings") + "#sessions")


def quiet_of(request: HttpRequest) -> Quiet:
    """The quiet hours of a form. Raises InvalidChannel."""
    start, end = request.POST.get("quiet_from", "").strip(), request.POST.get("quiet_until", "").strip()
    return Quiet.parse(start[:8], end[:8], urgent_passes=request.POST.get("urgent_passes") == "yes")


def choices_of(channel: Channel | None) -> list[tuple[str, str, bool]]:
    """Each event as a box: value, words, whether it is ticked."""
    chosen = channel.events if channel is not None else ()
    return [(event.value, channels.LABELS[event], event.value in chosen) for event in Event]


def _page(request: HttpRequest, *, problem: str = "", problem_of: str = "", status: int = 200) -> HttpResponse:
    user = user_of(request)
    line = channels.own_channel(user)
    factors = list(Authenticator.objects.filter(user=user).order_by("created_at"))
    context: dict[str, Any] = {
        "mine": people.preferences_of(user),
        "time_zones": people.time_zones(),
        "lights": LIGHTS,
        "line": line,
        "events": choices_of(line.channel if line else None),
        "app": next((one for one in factors if one.type == Authenticator.Type.TOTP), None),
        "passkeys": [one for one in factors if one.type == Authenticator.Type.WEBAUTHN],
        "has_codes": any(one.type == Authenticator.Type.RECOVERY_CODES for one in factors),
        "must_have_factor": people.needs_second_factor(user),
        "needs_to_confirm": request.GET.get("needs") == "factor" and not user.has_usable_password(),
        "devices": people.list_devices(user, request.session.session_key),
        "sso": django_settings.OIDC,
        "is_linked": django_settings.OIDC is not None and SocialAccount.objects.filter(user=user).exists(),
        "problem": problem,
        "problem_of": problem_of,
        "saved": request.GET.get("saved", "") if request.method != "POST" else "",
    }
    return render(request, "settings/settings.html", context, status=status)
