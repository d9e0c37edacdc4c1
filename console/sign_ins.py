"""What other people's code does at the door and only says by signals: a session began, somebody was locked out, an account was linked."""

from __future__ import annotations

import logging
from typing import Any

from allauth.socialaccount.models import SocialLogin
from allauth.socialaccount.signals import social_account_added
from axes.signals import user_locked_out
from django.conf import settings
from django.contrib.auth.models import User
from django.contrib.auth.signals import user_logged_in
from django.contrib.sessions.models import Session
from django.core.cache import cache
from django.dispatch import receiver
from django.http import HttpRequest
from django.utils import timezone

from actions.digests import canonical_json, sha256_text
from actions.errors import StoreError
from console.models import SignIn
from console.services import journal

log = logging.getLogger(__name__)


@receiver(user_logged_in)
def note(sender: Any, request: HttpRequest, user: User, **_: Any) -> None:
    """One row for the new session; an earlier one under the same key is the same browser's."""
    _note(request, user)


@receiver(social_account_added)
def enter_link(sender: Any, request: HttpRequest, sociallogin: SocialLogin, **_: Any) -> None:
    """Whoever comes in by single sign-on from now on is this person. Where that cannot be entered the link is taken back: StoreError."""
    user, account = sociallogin.user, sociallogin.account
    detail = {"about": user.get_username(), "changed": {"linked to": [None, f"{account.provider} as {account.uid}"]}}
    try:
        journal.record("sign_on_linked", actor=journal.person(user), detail=detail)
    except StoreError:
        account.delete()
        raise


@receiver(user_locked_out)
def enter_lock_out(sender: Any, request: HttpRequest, username: str | None, ip_address: str | None, **_: Any) -> None:
    """One entry for each time the door closes for a name at an address; what is tried while it is closed adds none.

    A name that nobody has may be a password that was typed in the wrong field: it is not repeated.
    """
    door = f"locked-out-{sha256_text(canonical_json([username, ip_address]))}"
    closed_s = settings.AXES_COOLOFF_TIME.total_seconds()
    if not cache.add(door, 1, timeout=closed_s):
        cache.touch(door, timeout=closed_s)  # each try keeps it closed for longer
        return
    user = User.objects.filter(username=username).first() if username and "\x00" not in username else None
    detail = {
        "about": user.get_username() if user is not None else "a name that nobody has",
        "address": str(ip_address or "unknown"),
        "wrong passwords": settings.AXES_FAILURE_LIMIT,
        "minutes": int(closed_s // 60),
    }
    try:
        journal.record("locked_out", actor="somebody", detail=detail)
    except StoreError as exc:
        log.warning("that %s was locked out is not in the history: %s", detail["about"], exc)


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
