"""What addresses consist of and what may follow them: their parts, and the checks of what is asked beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from django.http import Http404, HttpRequest
from ninja import Path, Query

from actions.errors import InvalidDecision, InvalidQuery
from actions.queries import MAX_LIMIT
from actions.rules import check_text

Store = Annotated[str, Path()]
Agent = Annotated[str, Path()]
Seq = Annotated[int, Path()]
RunId = Annotated[str, Path()]
Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT)]
DEFAULT_LIMIT = 50

ACTION = "/actions/{store}/{agent}/{int:seq}"
DECISION = f"{ACTION}/decision"
AGENT = "/agents/{store}/{agent}"
RUN = "/runs/{run_id}"


def know_query(request: HttpRequest, *names: str) -> None:
    """A misspelt filter must not mean "everything"."""
    for name, value in request.GET.items():
        if name not in names:
            raise InvalidQuery(f"there is no parameter {name[:40]!r}; there are {', '.join(names) or 'none'}")
        try:
            check_text(name, str(value))
        except InvalidDecision as exc:
            raise InvalidQuery(str(exc)) from exc


def require_stores(wanted: Sequence[str], visible_names: Sequence[str]) -> None:
    for name in wanted:
        if name not in visible_names:
            raise Http404(f"no store is called {name[:63]!r}")


def split(values: str) -> list[str]:
    return [value.strip() for value in values.split(",") if value.strip()]
