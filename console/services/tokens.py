"""Bearer tokens: drawn here once, kept as hashes only."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

from django.contrib.auth.models import User

from console.models import Token

PREFIX = "settle_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who holds a token: a user, or one agent of one store."""

    user: User | None = None
    store: str = ""
    agent: str = ""


def create_user_token(user: User) -> str:
    """A new token that acts as this user. Nobody can read it again."""
    text = _draw()
    Token.objects.create(hash=_hash(text), user=user)
    return text


def create_agent_token(store: str, agent: str) -> str:
    """A new token that reads the decisions about this agent's actions. Nobody can read it again."""
    text = _draw()
    Token.objects.create(hash=_hash(text), store=store, agent=agent)
    return text


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
    return Token.objects.filter(hash=_hash(text)).delete()[0]


def revoke_user_tokens(user: User) -> int:
    """Forget every token of a user. How many there were."""
    return Token.objects.filter(user=user).delete()[0]


def revoke_agent_tokens(store: str, agent: str) -> int:
    """Forget every token of an agent. How many there were."""
    return Token.objects.filter(user=None, store=store, agent=agent).delete()[0]


def _draw() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
