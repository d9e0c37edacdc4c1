"""When the person at this session last proved who they are."""

from __future__ import annotations

from datetime import datetime

from django.http import HttpRequest


def confirmed_at(request: HttpRequest) -> datetime | None:
    """None where they never did in this session, or what it holds is no time with a zone."""
    try:
        at = datetime.fromisoformat(request.session["confirmed_at"])
    except (KeyError, TypeError, ValueError):
        return None
    return at if at.tzinfo is not None else None
