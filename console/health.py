"""For load balancers: is the process up, and can it do its work. Status only; stores that are down are the queue's matter."""

from __future__ import annotations

from django.db import Error, connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

_migrated = False


@never_cache
@require_safe
def healthz(request: HttpRequest) -> JsonResponse:
    """200 as long as the process answers."""
    return JsonResponse({"status": "ok"})


@never_cache
@require_safe
def readyz(request: HttpRequest) -> JsonResponse:
    """200 once the console's database can be written and every migration is applied, else 503. Stores do not count: one that is down is shown."""
    try:
        is_ready = _can_write() and _is_migrated()
    except Error:
        is_ready = False
    return JsonResponse({"status": "ready" if is_ready else "not ready"}, status=200 if is_ready else 503)


def _can_write() -> bool:
    """Not on a standby, nor where somebody set the database read-only: there every decision would fail."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean")
        return cursor.fetchone() == (False,)


def _is_migrated() -> bool:
    """Migrations are never unapplied under a running process, so they are looked at until they are complete, then never again."""
    global _migrated
    if not _migrated:
        executor = MigrationExecutor(connection)
        _migrated = not executor.migration_plan(executor.loader.graph.leaf_nodes())
    return _migrated
