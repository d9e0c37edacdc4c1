"""Who calls: a user or an agent, by their token."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from ninja.errors import AuthenticationError
from ninja.security import HttpBearer

from console.access import has_any_role
from console.services.tokens import Caller, find_caller


class Bearer(HttpBearer):
    def authenticate(self, request: HttpRequest, token: str) -> Caller:
        """Who calls. A user without any role is told so here, whatever was asked."""
        caller = find_caller(token)
        if caller is None:
            raise AuthenticationError
        request.auth = caller  # type: ignore[attr-defined]  # also of whom we refuse: the entry that says so names them
        if caller.user is not None and not has_any_role(caller.user):
            raise PermissionDenied("you have no role here; ask an administrator")
        return caller


def caller_of(request: HttpRequest) -> Caller:
    caller: Caller = request.auth  # type: ignore[attr-defined]
    return caller


def user_of(request: HttpRequest) -> User:
    """The user who calls. Raises PermissionDenied for an agent's token: it reads decisions and nothing else."""
    user = caller_of(request).user
    if user is None:
        raise PermissionDenied("an agent's token only reads the decisions about that agent's actions")
    return user
