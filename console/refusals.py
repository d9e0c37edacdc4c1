"""Why an answer refuses somebody: said where it is known, read where it enters the history."""

from __future__ import annotations

import json

from django.http import HttpResponse

_KEPT = "_settle_refusal"


def denied(response: HttpResponse, why: str, reason: str) -> HttpResponse:
    """The same response, which knows now that it refuses. `why` is a word of the API's errors."""
    setattr(response, _KEPT, (str(why), reason))
    return response


def denial_of(response: HttpResponse, *, is_json: bool) -> tuple[str, str]:
    """The word and the sentence; the plain ones where nobody said more."""
    found: tuple[str, str] | None = getattr(response, _KEPT, None)
    if found is None and is_json:
        said = json.loads(response.content)
        found = str(said.get("error", "forbidden")), str(said.get("detail", ""))
    return found or ("forbidden", "")
