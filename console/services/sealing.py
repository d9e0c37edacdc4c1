"""Encrypting the credentials of resolvers, with the keys of SECRETS_KEY: the newest encrypts, all of them decrypt."""

from __future__ import annotations

import base64

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings


class CannotUnseal(Exception):
    """None of SECRETS_KEY's keys opens it: a key was taken out before what it had encrypted was set anew."""


def seal(text: str) -> bytes:
    """Encrypted and signed; another ciphertext each time."""
    return _keys().encrypt(text.encode())


def unseal(ciphertext: bytes | memoryview) -> str:
    """Raises CannotUnseal."""
    try:
        return _keys().decrypt(bytes(ciphertext)).decode()
    except InvalidToken as exc:
        raise CannotUnseal("no key of SECRETS_KEY opens this secret; set it again") from exc


def reseal(ciphertext: bytes | memoryview) -> bytes:
    """The same secret under the newest key. Raises CannotUnseal."""
    try:
        return _keys().rotate(bytes(ciphertext))
    except InvalidToken as exc:
        raise CannotUnseal("no key of SECRETS_KEY opens this secret; set it again") from exc


def _keys() -> MultiFernet:
    return MultiFernet([Fernet(base64.urlsafe_b64encode(base64.b64decode(key))) for key in settings.SECRETS_KEYS])
