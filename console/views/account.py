"""Coming in, going out, and how the pages are lit."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from django.conf import settings
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView, LogoutView
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.cache import add_never_cache_headers
from django.utils.http import url_has_allowed_host_and_scheme

from console.context import THEMES
from console.views.gate import only_post

_YEAR_S = 365 * 86400

login = LoginView.as_view(template_name="account/login.html", redirect_authenticated_user=True)
logout = only_post(lambda: reverse("queue"))(LogoutView.as_view())


def other_opener(request: HttpRequest) -> str:
    """Who was signed in when the page of this request was drawn, where that was somebody else; as far as the page itself says."""
    said = request.POST.get("opened_by", "") or unquote(request.headers.get("X-Opened-By", ""))
    return said[:150] if said and said != request.user.get_username() else ""


def locked_out(
    request: HttpRequest, response: HttpResponse | None = None, credentials: dict[str, Any] | None = None
) -> HttpResponse:
    """Too many wrong passwords: the login page says until when, whoever is right about the password."""
    minutes = int(settings.AXES_COOLOFF_TIME.total_seconds() // 60)
    context = {"form": AuthenticationForm(request), "locked_minutes": minutes, "next": request.POST.get("next", "")}
    page = render(request, "account/login.html", context, status=settings.AXES_HTTP_RESPONSE_CODE)
    add_never_cache_headers(page)
    return page


@only_post(lambda: reverse("queue"))
def theme(request: HttpRequest) -> HttpResponse:
    """Light, dark, or as the system says; kept in a cookie, so that no page flashes in the wrong light."""
    wanted = request.POST.get("theme", "")
    back = request.POST.get("next", "/")
    safe = url_has_allowed_host_and_scheme(back, allowed_hosts={request.get_host()}, require_https=request.is_secure())
    response = redirect(back if safe else "/")
    if wanted in THEMES:
        response.set_cookie(
            "theme", wanted, max_age=_YEAR_S, samesite="Lax", httponly=True, secure=settings.SESSION_COOKIE_SECURE
        )
    else:
        response.delete_cookie("theme", samesite="Lax")
    return response
