"""Secrets under changing keys: nothing is lost by a rotation that follows the help, and what is lost is named."""

from __future__ import annotations

import base64

import pytest
from django.contrib.auth.models import User
from pytest_django import Settings

from console.models import Secret
from console.services.definitions import save_definition
from console.services.sealing import CannotUnseal, unseal
from tests.console.test_commands import run

pytestmark = pytest.mark.django_db

OLD, NEW, OTHER = (base64.b64encode(letter * 32).decode() for letter in (b"o", b"n", b"x"))


@pytest.fixture
def sealed(settings: Settings, amy: User) -> Secret:
    settings.SECRETS_KEYS = (OLD,)
    values = {"url": "https://api.example.com/v1", "key": "object.key", "params": "key={key}", "auth": "bearer"}
    save_definition("tracker", "http", values, {"secret": "sk-1234567890"}, seen_version=0, by=amy)
    return Secret.objects.get()


def test_after_resealing_the_old_key_can_go(settings: Settings, sealed: Secret) -> None:
    settings.SECRETS_KEYS = (NEW, OLD)
    said = run("reseal_secrets")
    settings.SECRETS_KEYS = (NEW,)

    sealed.refresh_from_db()
    assert (said.code, said.out.strip()) == (0, "1 secrets are encrypted with the newest key")
    assert unseal(sealed.ciphertext) == "sk-1234567890"


def test_without_it_the_secret_is_lost_and_that_is_said(settings: Settings, sealed: Secret) -> None:
    settings.SECRETS_KEYS = (OTHER,)
    said = run("reseal_secrets")

    assert said.code == 1
    assert "secret of resolver tracker" in said.err
    assert "sk-1234567890" not in said.out + said.err
    with pytest.raises(CannotUnseal):
        unseal(sealed.ciphertext)
    sealed.refresh_from_db()
    settings.SECRETS_KEYS = (OLD,)
    assert unseal(sealed.ciphertext) == "sk-1234567890"
