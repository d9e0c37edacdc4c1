"""Bearer tokens: drawn here once, kept as hashes only."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import QuerySet

from console.models import Token
from console.services import journal

PREFIX = "settle_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who holds a token: a user, or one agent of one store."""

    user: User | None = None
    store: str = ""
    agent: str = ""


def create_user_token(user: User) -> str:
    """A new token that acts as this user. Nobody can read it again."""
    return _create(user=user)


def create_agent_token(store: str, agent: str) -> str:
    """A new token that reads the decisions about this agent's actions. Nobody can read it again."""
    return _create(store=store, agent=agent)


def find_caller(text: str) -> Caller | None:
    """Whose token this is; None for a text that is no token, or whose user may not come in any more."""
    token = Token.objects.select_related("user").filter(hash=_hash(text)).first()
    if token is None:
        return None
    if token.user is None:
        return Caller(store=token.store, agent=token.agent)
    return Caller(user=token.user) if token.user.is_active else None


def revoke_token(text: str) -> int:
    """Forget one token; from now on it is nobody's. How many there were: 1 or 0."""
    return _revoke(Token.objects.filter(hash=_hash(text)))


def revoke_user_tokens(user: User) -> int:
    """Forget every token of a user. How many there were."""
    return _revoke(Token.objects.filter(user=user))


def revoke_agent_tokens(store: str, agent: str) -> int:
    """Forget every token of an agent. How many there were."""
    return _revoke(Token.objects.filter(user=None, store=store, agent=agent))


def _create(**whose: Any) -> str:
    text = _draw()
    with transaction.atomic():
        token = Token.objects.create(hash=_hash(text), **whose)
        _enter("token_created", token, {f"number {token.pk}": [None, "made"]})
    return text


def _revoke(tokens: QuerySet[Token]) -> int:
    """One entry for each gesture: all of them are of one user or of one agent."""
    with transaction.atomic():
        found = list(tokens.select_for_update(of=("self",)).select_related("user").order_by("pk"))
        gone = Token.objects.filter(pk__in=[token.pk for token in found]).delete()[0]
        if found:
            _enter("token_revoked", found[0], {f"number {token.pk}": ["made", None] for token in found})
    return gone


def _enter(kind: str, token: Token, changed: dict[str, list[object]]) -> None:
    """Only whoever holds the machine makes and takes them; nothing of the token itself is told."""
    about = token.user.get_username() if token.user is not None else f"agent {token.store}/{token.agent}"
    journal.record(kind, actor=journal.A_COMMAND, detail={"about": about, "changed": changed})


def _draw() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
