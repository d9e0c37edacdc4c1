"""Encrypting the credentials of resolvers, channels and second factors, with the keys of SECRETS_KEY: the newest encrypts, all of them decrypt."""

from __future__ import annotations

import base64

from allauth.mfa.models import Authenticator
from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings

from console.models import Channel, Hook, Secret, Way


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


def reseal_all() -> tuple[int, tuple[str, ...]]:
    """Every stored secret under the newest key: how many, and the names of those that none of the keys opens (they stay as they are).

    Each by itself and only where it is still what was read, so that one set meanwhile is kept.
    """
    count, lost = 0, list[str]()
    for secret in Secret.objects.order_by("name", "field"):
        try:
            new = reseal(secret.ciphertext)
        except CannotUnseal:
            lost.append(f"{secret.field} of resolver {secret.name}")
            continue
        count += Secret.objects.filter(pk=secret.pk, ciphertext=secret.ciphertext).update(ciphertext=new)
    for hook in Hook.objects.order_by("name"):
        try:
            new = reseal(hook.secret)
        except CannotUnseal:
            lost.append(f"the hook of resolver {hook.name}")
            continue
        count += Hook.objects.filter(pk=hook.pk, secret=hook.secret).update(secret=new)
    for channel in Channel.objects.filter(way=Way.WEBHOOK).order_by("pk"):
        try:
            new = reseal(channel.address or b"")
        except CannotUnseal:
            lost.append(f"the address of channel {channel.name}")
            continue
        count += Channel.objects.filter(pk=channel.pk, address=channel.address).update(address=new)
    for factor in Authenticator.objects.exclude(type=Authenticator.Type.WEBAUTHN).order_by("pk"):
        name = "secret" if factor.type == Authenticator.Type.TOTP else "seed"
        try:
            sealed = reseal(factor.data[name].encode()).decode()
        except CannotUnseal:
            lost.append(f"the second factor of user {factor.user_id}")
            continue
        same = Authenticator.objects.filter(pk=factor.pk, data=factor.data)
        count += same.update(data=factor.data | {name: sealed})
    return count, tuple(lost)


def _keys() -> MultiFernet:
    return MultiFernet([Fernet(base64.urlsafe_b64encode(base64.b64decode(key))) for key in settings.SECRETS_KEYS])
