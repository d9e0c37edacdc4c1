"""What every page knows: who looks at it, what stands in its menu, how it is lit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.conf import settings
from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject

from console.access import Person, Right, has_any_role, may, may_somewhere
from console.models import Incident, Preferences
from console.services.around import what_is_around
from console.services.incidents import visible_open_incidents
from console.services.people import preferences_of
from console.services.sweeps import is_late

THEMES = ("light", "dark")

_HTMX = {
    # What the Content-Security-Policy forbids anyway is not tried, and nothing an agent wrote may ask for it.
    "allowEval": False,
    "allowScriptTags": False,
    "includeIndicatorStyles": False,
    "selfRequestsOnly": True,
    # What somebody presses within a live part is theirs: with its `hx-sync` inherited, the next live update would push it out of the queue.
    "disableInheritance": True,
    # A server that says nothing must not look like one that is thinking.
    "timeout": 15_000,
    # Pages hold personal data, and Back must show what is true now.
    "historyCacheSize": 0,
    "refreshOnHistoryMiss": True,
    # Refusals are drawn panels: they are swapped in like any answer. A 500 is not; settle.js says that nothing is known.
    "responseHandling": [
        {"code": "204|304", "swap": False},
        {"code": "[23]..", "swap": True},
        {"code": "40[0349]|41[23]|422|503", "swap": True},
        {"code": "...", "swap": False, "error": True},
    ],
}
HTMX_CONFIG = json.dumps(_HTMX, separators=(",", ":"))


def has_runs(user: Person) -> bool:
    """Whether this console has to do with durable runs at all: a type is named in its settings, or there was one once."""
    return bool(settings.RUN_TYPES) or what_is_around(user).runs


def _open_incidents(user: Person) -> Sequence[Incident]:
    return visible_open_incidents(user) if what_is_around(user).incidents else ()


def console(request: HttpRequest) -> dict[str, Any]:
    """For the base template. One query for the roles of the user, none for strangers; what follows is asked where it is drawn."""
    user = getattr(request, "user", None)
    mine = preferences_of(user) if user else Preferences()
    # Who is known is lit as they chose; who chose nothing, as this browser was lit last.
    theme = mine.theme or request.COOKIES.get("theme", "")
    known = bool(user and user.is_authenticated and has_any_role(user))
    return {
        "htmx_config": HTMX_CONFIG,
        "theme": theme if theme in THEMES else "",
        "is_known": known,
        "zone": mine.time_zone,
        "single_keys": mine.single_keys,
        "may_edit_people": bool(user and known and may(user, Right.ADMIN)),
        "may_read_history": bool(user and known and may_somewhere(user, Right.HISTORY)),
        # Read with the person of the request (backends.py); of nobody else is it asked.
        "swept_at": user.swept_at if user and known and is_late(*_swept(user)) else None,
        # One query for both, where something of what it asks about is there one more.
        "has_runs": SimpleLazyObject(lambda: has_runs(user)) if user and known else False,
        "open_incidents": SimpleLazyObject(lambda: _open_incidents(user)) if user and known else (),
    }


def _swept(user: Any) -> tuple[datetime | None, datetime | None]:
    return getattr(user, "swept_at", None), getattr(user, "asked_at", None)
