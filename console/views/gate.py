"""Who may come in at all: signed in, and with a role somewhere. What they may see there, each view asks access.py."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

from django.conf import settings
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.shortcuts import render
from django.urls import reverse

from console.access import has_any_role
from console.htmx import go_to, to_login, wants_partial
from console.services.people import needs_second_factor

P = ParamSpec("P")
View = Callable[Concatenate[HttpRequest, P], HttpResponse]


def signed_in(view: View[P]) -> View[P]:
    """Only for people with a role: strangers go to the login, people without a role to a page that says so."""

    @wraps(view)
    def gate(request: HttpRequest, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
        if not request.user.is_authenticated:
            return to_login(request, ended=_had_session(request))
        if not has_any_role(request.user):
            return (
                go_to(request, reverse("queue"))
                if wants_partial(request)
                else render(request, "account/no_role.html", status=403)
            )
        if needs_second_factor(request.user):
            return go_to(request, reverse("settings") + "#second-factor")
        return view(request, *args, **kwargs)

    return gate


def known(view: View[P]) -> View[P]:
    """For everybody who is signed in, with a role or without: what concerns nobody but themselves."""

    @wraps(view)
    def gate(request: HttpRequest, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
        if not request.user.is_authenticated:
            return to_login(request, ended=_had_session(request))
        return view(request, *args, **kwargs)

    return gate


def user_of(request: HttpRequest) -> User:
    """The person behind a request that one of the gates above has let in."""
    assert isinstance(request.user, User)  # noqa: S101 - a gate has seen to it
    return request.user


def _had_session(request: HttpRequest) -> bool:
    """A POST or a piece is asked for by a page that was drawn for somebody: whatever became of their cookie, their session has ended."""
    return request.method == "POST" or wants_partial(request) or settings.SESSION_COOKIE_NAME in request.COOKIES


def only_post(back: Callable[..., str]) -> Callable[[View[P]], View[P]]:
    """Changes are POSTs. Who comes with a GET (a reload, an address from the history) is sent to the page it belongs to: `back(**arguments)`."""

    def decorate(view: View[P]) -> View[P]:
        @wraps(view)
        def gate(request: HttpRequest, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
            if request.method == "POST":
                return view(request, *args, **kwargs)
            if request.method in ("GET", "HEAD"):
                return go_to(request, back(**kwargs))
            return HttpResponseNotAllowed(["POST"])

        return gate

    return decorate
