"""Where a session began is noted when it begins."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.contrib.auth.signals import user_logged_in
from django.contrib.sessions.models import Session
from django.dispatch import receiver
from django.http import HttpRequest
from django.utils import timezone

from console.models import SignIn


@receiver(user_logged_in)
def note(sender: Any, request: HttpRequest, user: User, **_: Any) -> None:
    """One row for the new session; an earlier one under the same key is the same browser's."""
    _note(request, user)


def note_again(request: HttpRequest) -> None:
    """This session goes on under a new key."""
    if isinstance(request.user, User):
        _note(request, request.user)


def _note(request: HttpRequest, user: User) -> None:
    if not request.session.session_key:
        request.session.create()
    running = Session.objects.filter(expire_date__gt=timezone.now()).values("session_key")
    SignIn.objects.filter(user=user).exclude(session_key__in=running).delete()
    said = {"user": user, "address": str(request.META.get("REMOTE_ADDR") or "")[:64], "browser": _browser(request)}
    SignIn.objects.update_or_create(session_key=request.session.session_key, defaults=said)


def _browser(request: HttpRequest) -> str:
    said = str(request.META.get("HTTP_USER_AGENT") or "")
    return "".join(char for char in said if char.isprintable())[:300]
