"""How allauth is used here: nobody signs up by themselves, secrets of second factors are encrypted, single sign-on takes nothing over."""

from __future__ import annotations

import re
from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from allauth.core.exceptions import ImmediateHttpResponse
from allauth.mfa.adapter import DefaultMFAAdapter
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.forms import ActivateTOTPForm
from allauth.mfa.totp.internal.auth import TOTP
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from allauth.socialaccount.models import SocialLogin
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Q
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse

from console.services.people import added
from console.services.sealing import seal, unseal

_ADDRESS = re.compile(r"[a-z0-9][a-z0-9.+_-]*@[a-z0-9.-]+", re.ASCII)
"""Whose addresses may become names: what two people could not tell apart is refused."""


class AccountAdapter(DefaultAccountAdapter):
    """The rules for every account."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return False

    def respond_user_inactive(self, request: HttpRequest, user: User) -> HttpResponse:
        return HttpResponseRedirect(reverse("login"))

    def get_client_ip(self, request: HttpRequest) -> str:
        return str(request.META.get("REMOTE_ADDR") or "unknown")  # behind a socket there is none, which locks nobody out

    def add_message(self, request: HttpRequest, level: int, *args: Any, **kwargs: Any) -> None:
        """Only what went wrong: the pages show by themselves what is set."""
        if level >= messages.ERROR:
            super().add_message(request, level, *args, **kwargs)

    def is_reauthentication_required(self, *, app: str, **kwargs: Any) -> bool:
        """Not of somebody who has nothing to prove it by: they come in by single sign-on and set up their first factor."""
        return super().is_reauthentication_required(app=app, **kwargs) and bool(
            self.get_reauthentication_methods(self.request.user)
        )


class AppForm(ActivateTOTPForm):
    """Setting up an app for codes: the code that sets it up has been used with that, and lets nobody in any more."""

    def clean_code(self) -> str:
        code: str = super().clean_code()
        if not TOTP(Authenticator(user=self.user, type=Authenticator.Type.TOTP))._mark_code_used(code):
            raise SecondFactorAdapter().validation_error("incorrect_code")
        return code


class SecondFactorAdapter(DefaultMFAAdapter):
    """Secrets are kept as resolvers' are: encrypted with SECRETS_KEY."""

    def encrypt(self, text: str) -> str:
        return seal(text).decode("ascii")

    def decrypt(self, encrypted_text: str) -> str:
        return unseal(encrypted_text.encode("ascii"))

    def get_totp_label(self, user: User) -> str:
        return user.get_username()

    def _get_site_name(self) -> str:
        return "Settle"


class SingleSignOnAdapter(DefaultSocialAccountAdapter):
    """Who is new here, and who is refused. The verified address is the name of a new person; they have no role until an admin gives one."""

    def pre_social_login(self, request: HttpRequest, sociallogin: SocialLogin) -> None:
        """Raises ImmediateHttpResponse where an id token and the person's own data name different people: nobody is signed in."""
        data = sociallogin.account.extra_data
        tokens = data.get("id_token") or {}
        if tokens.get("sub") != (data.get("userinfo") or {}).get("sub"):
            raise _refused(request, "it names two different people")

    def is_open_for_signup(self, request: HttpRequest, sociallogin: SocialLogin) -> bool:
        """Raises ImmediateHttpResponse with a page that says why not. Nothing was stored."""
        allowed = settings.OIDC.domains if settings.OIDC else ()
        found = sociallogin.email_addresses[0] if sociallogin.email_addresses else None
        address = found.email.lower() if found is not None else ""
        if found is None or not found.verified:
            raise _refused(request, "it does not vouch for your mail address")
        if not _ADDRESS.fullmatch(address) or address.rpartition("@")[2] not in allowed:
            raise _refused(request, "your mail address is none of those that may come in; an admin can make an account for you")
        if User.objects.filter(Q(email__iexact=address) | Q(username__iexact=address)).exists():
            raise _refused(
                request,
                "there is an account with your mail address already. Sign in with its password, then link it under Settings",
            )
        return True

    def populate_user(self, request: HttpRequest, sociallogin: SocialLogin, data: dict[str, Any]) -> User:
        user: User = super().populate_user(request, sociallogin, data)
        user.username = (user.email or "").lower()[:150]
        return user

    def save_user(self, request: HttpRequest, sociallogin: SocialLogin, form: Any = None) -> User:
        """A new person and the entry that says so, or neither."""
        with transaction.atomic():
            user: User = super().save_user(request, sociallogin, form)
            added(user, actor="single sign-on")
        return user

    def get_connect_redirect_url(self, request: HttpRequest, socialaccount: Any) -> str:
        return reverse("settings")


def _refused(request: HttpRequest, why: str) -> ImmediateHttpResponse:
    return ImmediateHttpResponse(render(request, "account/sso_refused.html", {"why": why}, status=403))
