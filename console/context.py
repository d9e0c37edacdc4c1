"""What every page knows: who looks at it, what stands in its menu, how it is lit."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import HttpRequest

from console.access import Right, has_any_role, may_somewhere

THEMES = ("light", "dark")


def console(request: HttpRequest) -> dict[str, Any]:
    """For the base template. One query for the roles of the user, none for strangers."""
    user = getattr(request, "user", None)
    theme = request.COOKIES.get("theme", "")
    known = bool(user and user.is_authenticated and has_any_role(user))
    return {
        "theme": theme if theme in THEMES else "",
        "is_known": known,
        "may_read_history": bool(user and known and may_somewhere(user, Right.HISTORY)),
        "has_many_stores": len(settings.ACTION_STORES) > 1,
    }
