"""When somebody last proved who they are: for what a signed-in browser alone must not do."""

from __future__ import annotations

from datetime import UTC, datetime

from allauth.account.authentication import get_authentication_records
from django.http import HttpRequest


def confirmed_at(request: HttpRequest) -> datetime | None:
    """The last time the person of this session gave a password, a code or a passkey, at the login or at `/confirm/`; None if never.

    Only what they gave in this very session counts, and only while it is theirs.
    """
    if not request.user.is_authenticated:
        return None
    times = [record["at"] for record in get_authentication_records(request, request.user)]
    return datetime.fromtimestamp(max(times), UTC) if times else None
