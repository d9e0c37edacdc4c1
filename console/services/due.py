"""Rows whose time has come: which of them this sweep takes, so that no other one does at the same time."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction
from django.db.models import Model, QuerySet


def take_due(due: QuerySet[Model], limit: int, **put_off: datetime) -> list[int]:
    """Take up to `limit` of these rows in their order, and put them off: two sweeps never take the same one. One transaction.

    Whoever is at one of them goes on; it is left out. A task that is lost on the way costs only the time that its row was put off by.
    """
    with transaction.atomic():
        pks = list(due.select_for_update(skip_locked=True).values_list("pk", flat=True)[:limit])
        due.model._default_manager.filter(pk__in=pks).update(**put_off)
    return pks
