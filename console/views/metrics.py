"""For Prometheus: the deployment's numbers out of the console's database, and this web process's own."""

from __future__ import annotations

import logging

from django.db import Error as ConsoleDatabaseError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from console.access import Right, may
from console.numbers import REGISTRY
from console.refusals import denied
from console.services import tallies
from console.services.metrics import Deployment
from console.services.tokens import find_caller

log = logging.getLogger(__name__)


@never_cache
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Who may read everything in every store may, by a token of theirs: the numbers are of all of them.

    `settle_web_*` is this process alone, so each has to be asked; everything else is the same from whichever is asked (max, not sum). 401
    without a token, 403 for an agent's and for whoever sees a part only, 503 where the console's database does not answer.
    """
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    try:
        caller = find_caller(token.strip()) if scheme.lower() == "bearer" else None
        if caller is None:
            return _refused(401, "unauthorized", "a token is needed: `create_token USER` makes one")
        request.auth = caller  # type: ignore[attr-defined]  # the entry of a refusal names them
        if caller.user is None or not may(caller.user, Right.READ):
            said = "these are the numbers of every store: a role that may read all of them is needed"
            return denied(_refused(403, "forbidden", said), "forbidden", said)
        tallies.flush()
        whole = CollectorRegistry()
        whole.register(Deployment())
        body = generate_latest(whole) + generate_latest(REGISTRY)
    except ConsoleDatabaseError as exc:
        log.error("no numbers: the console's database: %s", type(exc).__name__)
        return _refused(503, "unavailable", "the console's database does not answer")
    return HttpResponse(body, content_type=CONTENT_TYPE_LATEST)


def _refused(status: int, code: str, detail: str) -> HttpResponse:
    response = JsonResponse({"error": code, "detail": detail}, status=status)
    if status == 401:
        response["WWW-Authenticate"] = "Bearer"
    return response
