"""Coming in, going out, passwords, and how the pages are lit."""

from __future__ import annotations

from functools import wraps
from typing import Any
from urllib.parse import unquote

from allauth.account.adapter import get_adapter
from allauth.account.internal.flows.login import perform_password_login
from allauth.account.models import Login
from allauth.account.views import reauthenticate
from allauth.core import ratelimit
from django.conf import settings
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.models import User
from django.contrib.auth.views import LogoutView, PasswordChangeView, PasswordResetConfirmView
from django.contrib.messages import get_messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse, reverse_lazy
from django.utils.cache import add_never_cache_headers
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods

from console.context import THEMES
from console.services import journal
from console.services.people import drop_other_sessions, factors_of, password_changed, save_preferences, second_factor_changed
from console.sign_ins import note_again
from console.tasks import ask_for_password_link
from console.texts import take_texts
from console.views.gate import P, View, only_post

_YEAR_S = 365 * 86400

logout = only_post(lambda: reverse("queue"))(LogoutView.as_view())


@never_cache
@sensitive_post_parameters("password")
@require_http_methods(["GET", "HEAD", "POST"])
def login(request: HttpRequest) -> HttpResponse:
    """Name and password; who has a second factor is asked for it next. Wrong ones are counted by axes."""
    wanted = safe_next(request)
    if request.user.is_authenticated:
        return redirect(wanted or reverse(settings.LOGIN_REDIRECT_URL))
    form = AuthenticationForm(request, data=request.POST if request.method == "POST" else None)
    if form.is_bound and form.is_valid():
        user = form.get_user()
        return perform_password_login(request, {"username": user.get_username()}, Login(user=user, redirect_url=wanted or None))
    return render(request, "account/login.html", door(request) | {"form": form})


def door(request: HttpRequest) -> dict[str, Any]:
    """What the login page knows whatever became of the attempt."""
    return {"next": request.POST.get("next", request.GET.get("next", "")), "sso": settings.OIDC, "said": get_messages(request)}


def safe_next(request: HttpRequest) -> str:
    """Where to go on, on this site; empty where nothing else was asked for."""
    wanted = request.POST.get("next", request.GET.get("next", ""))
    hosts = {request.get_host()}
    return wanted if url_has_allowed_host_and_scheme(wanted, allowed_hosts=hosts, require_https=request.is_secure()) else ""


def other_opener(request: HttpRequest) -> str:
    """Who was signed in when the page of this request was drawn, where that was somebody else; as far as the page itself says."""
    said = request.POST.get("opened_by", "") or unquote(request.headers.get("X-Opened-By", ""))
    return said[:150] if said and said != request.user.get_username() else ""


def locked_out(
    request: HttpRequest, response: HttpResponse | None = None, credentials: dict[str, Any] | None = None
) -> HttpResponse:
    """Too many wrong passwords: the login page says until when, whoever is right about the password."""
    minutes = int(settings.AXES_COOLOFF_TIME.total_seconds() // 60)
    context = door(request) | {"form": AuthenticationForm(request), "locked_minutes": minutes}
    page = render(request, "account/login.html", context, status=settings.AXES_HTTP_RESPONSE_CODE)
    add_never_cache_headers(page)
    return page


@only_post(lambda: reverse("queue"))
def theme(request: HttpRequest) -> HttpResponse:
    """Light, dark, or as the system says; kept in a cookie, so that no page flashes in the wrong light."""
    response = redirect(safe_next(request) or "/")
    wanted = request.POST.get("theme", "")
    if isinstance(request.user, User):
        save_preferences(request.user, theme=wanted if wanted in THEMES else "")
    light(response, wanted)
    return response


def light(response: HttpResponse, theme: str) -> None:
    """Keep it in this browser as well: the login is lit the same, where nobody is known yet."""
    if theme in THEMES:
        response.set_cookie("theme", theme, max_age=_YEAR_S, samesite="Lax", httponly=True, secure=settings.SESSION_COOKIE_SECURE)
    else:
        response.delete_cookie("theme", samesite="Lax")


class ChangePassword(PasswordChangeView):
    """The old password, then the new one. Every other session of this person ends."""

    template_name = "account/password_change.html"
    success_url = reverse_lazy("settings")

    def form_valid(self, form: Any) -> HttpResponse:
        with transaction.atomic():
            response = super().form_valid(form)
            drop_other_sessions(form.user, None)
            note_again(self.request)
            password_changed(form.user, had_one=True, actor=journal.person(form.user))
        return response


class ChoosePassword(PasswordResetConfirmView):
    """Behind the link of a mail or of an admin. Nobody is signed in by it, and every session of that person ends."""

    template_name = "account/password_choose.html"
    success_url = reverse_lazy("login")

    def form_valid(self, form: Any) -> HttpResponse:
        had_one = form.user.has_usable_password()
        with transaction.atomic():
            response = super().form_valid(form)
            drop_other_sessions(form.user, None)
            password_changed(form.user, had_one=had_one, actor=journal.person(form.user))
        return response


def changes_factors(view: View[P]) -> View[P]:
    """allauth's own pages, whose POSTs change how a person proves who they are: with the entry that says so, or not at all."""

    @wraps(view)
    def whole(request: HttpRequest, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
        user = request.user
        if request.method != "POST" or not isinstance(user, User):
            return view(request, *args, **kwargs)
        with transaction.atomic():
            User.objects.select_for_update(no_key=True).get(pk=user.pk)
            before = factors_of(user)
            response = view(request, *args, **kwargs)
            second_factor_changed(user, before)
        return response

    return whole


change_password = ChangePassword.as_view()
choose_password = ChoosePassword.as_view()


def confirm(request: HttpRequest) -> HttpResponse:
    """Ask once more who is there, then lead on. Who has nothing to prove it by is led to where they set it up."""
    if request.user.is_authenticated and not get_adapter().get_reauthentication_methods(request.user):
        return redirect(reverse("settings") + "?needs=factor#second-factor")
    answer: HttpResponse = reauthenticate(request)
    return answer


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def forgot_password(request: HttpRequest) -> HttpResponse:
    """Ask for a link by mail. The answer is the same whoever there is."""
    said = request.POST.get("who", "").strip()[:254]
    if request.method != "POST":
        return render(request, "account/password_forgotten.html")
    odd = take_texts(request)
    if not said or odd:
        return render(request, "account/password_forgotten.html", {"problem": "Give your user name or mail address."}, status=422)
    if not ratelimit.consume(request, action="reset_password", key=said.lower()):
        problem = "Too many links were asked for. Try again in some minutes."
        return render(request, "account/password_forgotten.html", {"problem": problem}, status=429)
    if not ask_for_password_link(said):
        problem = "No mail can be sent now. Nothing was changed; try again later, or ask an admin for a link."
        return render(request, "account/password_forgotten.html", {"problem": problem}, status=503)
    return render(request, "account/password_forgotten.html", {"is_sent": True})
