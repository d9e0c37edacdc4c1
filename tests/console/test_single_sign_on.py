"""Single sign-on against a small real provider: who comes in, who is new, and what a provider that lies brings about: nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jwt
import pytest
from allauth.socialaccount.models import SocialAccount
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import Settings

from console.env import SingleSignOn
from tests.console.conftest import PASSWORD
from tests.console.entries import console_entries
from tests.console.view_helpers import browser, text_of
from tests.recall_writer import RecordWriter
from tests.resolvers.web_server import Asked, Conversation, serve

pytestmark = pytest.mark.django_db


@dataclass
class Provider:
    """What it says of itself and of who stands before it; a test changes it."""

    address: str = ""
    discovery: dict[str, Any] = field(default_factory=dict)
    token: dict[str, Any] = field(default_factory=dict)
    person: dict[str, Any] = field(default_factory=dict)
    bodies: list[dict[str, list[str]]] = field(default_factory=list)

    def answer(self, asked: Asked, conversation: Conversation) -> None:
        said: dict[str, Any] = {}
        if asked.target == "/.well-known/openid-configuration":
            places = {f"{name}_endpoint": f"{self.address}/{name}" for name in ("authorization", "token", "userinfo")}
            said = {"issuer": self.address, "jwks_uri": f"{self.address}/keys", **places, **self.discovery}
        elif asked.target == "/token":
            self.bodies.append(parse_qs(asked.body.decode()))
            claims = {"iss": self.address, "aud": "settle", "sub": self.person.get("sub"), "exp": time.time() + 60, **self.token}
            said = {"access_token": "at", "token_type": "Bearer", "id_token": jwt.encode(claims, "k" * 32)}
        elif asked.target == "/userinfo":
            said = self.person
        conversation.answer(200, json.dumps(said).encode())


@pytest.fixture
def provider(memory: RecordWriter, settings: Settings) -> Iterator[Provider]:
    provider = Provider(
        person={"sub": "u-1", "email": "New.Person@example.com", "email_verified": True, "preferred_username": "ana"}
    )
    with serve(provider.answer) as server:
        provider.address = f"http://{server.host}"
        settings.OIDC = SingleSignOn(
            issuer=provider.address, client_id="settle", client_secret="s3cret", domains=("example.com",), name="Example"
        )
        settings.SOCIALACCOUNT_PROVIDERS = {"openid_connect": {"OAUTH_PKCE_ENABLED": True, "APPS": [settings.OIDC.app()]}}
        yield provider


def leave(client: Client, query: str = "", **form: str) -> dict[str, list[str]]:
    """Go to the provider; what it is asked."""
    answer = client.post(f"/login/sso/{query}", form)
    assert answer.status_code == 200, answer.content
    return parse_qs(urlsplit(answer["Refresh"]).query)


def come_back(client: Client, query: str = "", **form: str) -> Any:
    (state,) = leave(client, query, **form)["state"]
    return client.get("/login/sso/back/", {"code": "c-1", "state": state})


def test_somebody_new_of_an_allowed_domain_comes_in_without_a_role_under_their_verified_address(
    provider: Provider, ana: User
) -> None:
    client = browser()
    assert "Continue with Example" in client.get("/login/").content.decode()

    answer = come_back(client, next="/stores/")

    assert answer["Location"] == "/stores/"
    user = User.objects.get(username="new.person@example.com")
    assert (user.email, user.has_usable_password(), user.grants.count()) == ("new.person@example.com", False, 0)
    assert "You have no role here yet" in client.get("/").content.decode()
    assert provider.bodies[0]["code_verifier"]  # PKCE
    # And the second time it is the same account.
    assert come_back(browser())["Location"] == "/"
    assert User.objects.count() == 2
    (entry,) = console_entries("person_added")
    assert (entry.actor, entry.detail["about"]) == ("single sign-on", "new.person@example.com")


@pytest.mark.parametrize(
    ("what", "said", "status", "words"),
    [
        ("discovery", {"issuer": "https://evil.example"}, 502, "did not answer as it should"),
        ("token", {"iss": "https://evil.example"}, 401, "could not be used"),
        ("token", {"aud": "somebody-else"}, 401, "could not be used"),
        ("token", {"exp": 1}, 401, "could not be used"),
        ("token", {"sub": "u-2"}, 403, "names two different people"),
        ("person", {"email_verified": False}, 403, "does not vouch for your mail address"),
        ("person", {"email": ""}, 403, "does not vouch for your mail address"),
        ("person", {"email": "eve@evil.example"}, 403, "none of those that may come in"),
        ("person", {"email": "eve@sub.example.com"}, 403, "none of those that may come in"),
        ("person", {"email": "аna@example.com"}, 403, "does not vouch for your mail address"),
        ("person", {"email": "BEN@example.com"}, 403, "an account with your mail address already"),
    ],
)  # fmt: skip
def test_whoever_is_not_vouched_for_comes_in_as_nobody(
    provider: Provider, ben: User, what: str, said: dict[str, Any], status: int, words: str
) -> None:
    User.objects.filter(pk=ben.pk).update(email="ben@example.com")
    getattr(provider, what).update(said)
    client = browser()

    answer = client.post("/login/sso/") if what == "discovery" else come_back(client)

    assert answer.status_code == status
    assert words in text_of(answer.content.decode())
    assert client.get("/").status_code == 302
    assert User.objects.count() == 1
    assert not SocialAccount.objects.exists()


def test_a_provider_that_is_not_there_is_a_page_of_its_own(provider: Provider, settings: Settings) -> None:
    settings.SOCIALACCOUNT_PROVIDERS["openid_connect"]["APPS"][0]["settings"]["server_url"] = "http://127.0.0.1:1/.well-known/x"

    answer = browser().post("/login/sso/")

    assert answer.status_code == 502
    assert "did not answer as it should" in answer.content.decode()


def test_a_state_of_another_browser_lets_nobody_in(provider: Provider) -> None:
    (state,) = leave(browser())["state"]
    client = browser()

    answer = client.get("/login/sso/back/", {"code": "c-1", "state": state})

    assert "Nothing was changed" in text_of(answer.content.decode())
    assert client.get("/").status_code == 302
    assert provider.bodies == []


def test_an_account_is_linked_by_its_own_person_after_their_password_and_then_comes_in_by_it(
    provider: Provider, ana: User
) -> None:
    provider.person |= {"email": "elsewhere@evil.example", "email_verified": False}
    client = browser(ana)
    assert come_back(client, "?process=connect")["Location"] == "/confirm/"
    assert not SocialAccount.objects.exists()

    client.post("/confirm/", {"password": PASSWORD})

    assert SocialAccount.objects.get().user == ana
    (entry,) = console_entries("sign_on_linked")
    assert (entry.actor, entry.detail["about"]) == ("user ana", "ana")
    stranger = browser()
    assert come_back(stranger)["Location"] == "/"
    assert stranger.get("/").wsgi_request.user == ana


def test_who_is_deactivated_does_not_come_in_by_it_either(provider: Provider, ana: User) -> None:
    SocialAccount.objects.create(user=ana, provider="sso", uid="u-1")
    User.objects.filter(pk=ana.pk).update(is_active=False)
    client = browser()

    assert come_back(client)["Location"] == "/login/"

    assert client.get("/").status_code == 302


def test_without_the_setting_there_is_no_such_way_in(memory: RecordWriter) -> None:
    assert browser().post("/login/sso/").status_code == 404
    assert browser().get("/login/sso/back/").status_code == 404
    assert "Continue with" not in browser().get("/login/").content.decode()
