"""Coming in by the OpenID Connect provider of the deployment. Whom it may bring stands in accounts.py."""

from __future__ import annotations

from typing import Any

import requests
from allauth.socialaccount.providers.base import ProviderException
from allauth.socialaccount.providers.oauth2.client import OAuth2Error
from allauth.socialaccount.providers.oauth2.views import OAuth2CallbackView, OAuth2LoginView
from allauth.socialaccount.providers.openid_connect.views import OpenIDConnectOAuth2Adapter
from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache

from console.views.gate import only_post

_TROUBLE = (OAuth2Error, ProviderException, requests.RequestException, KeyError, TypeError, ValueError)
"""What an answer that is none becomes on its way through the libraries."""


class Provider(OpenIDConnectOAuth2Adapter):
    """allauth's, for one issuer and no other."""

    def get_provider(self) -> Any:
        """One that comes back to this class: on its way out it would take allauth's own."""
        provider = super().get_provider()
        provider.oauth2_adapter_class = Provider
        return provider

    @property
    def openid_config(self) -> dict[str, Any]:
        found: dict[str, Any] = super().openid_config
        if settings.OIDC is None or not isinstance(found, dict) or found.get("issuer") != settings.OIDC.issuer:
            raise OAuth2Error("the provider names another issuer than OIDC_ISSUER")
        return found


@never_cache
@only_post(lambda provider_id: reverse("login"))
def login(request: HttpRequest, provider_id: str) -> HttpResponse:
    """Leave for the provider. By a page of ours: the Content-Security-Policy lets no form lead elsewhere."""
    answer = _ask(request, provider_id, OAuth2LoginView)
    there = answer.headers.get("Location", "")
    if answer.status_code != 302 or url_has_allowed_host_and_scheme(there, allowed_hosts={request.get_host()}):
        return answer
    page = render(request, "account/sso_leave.html", {"there": there, "sso": settings.OIDC})
    page["Refresh"] = f"0;url={there}"
    return page


@never_cache
def callback(request: HttpRequest, provider_id: str) -> HttpResponse:
    """Come back from it. Without the state that this browser took there nothing happens."""
    return _ask(request, provider_id, OAuth2CallbackView)


def _ask(request: HttpRequest, provider_id: str, view: Any) -> HttpResponse:
    if settings.OIDC is None or provider_id != "sso":
        raise Http404("there is no single sign-on here")
    try:
        answer: HttpResponse = view.adapter_view(Provider(request, provider_id))(request)
    except _TROUBLE:
        return render(request, "account/sso_refused.html", {"why": "it did not answer as it should"}, status=502)
    return answer
