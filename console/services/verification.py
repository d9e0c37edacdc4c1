"""Verifying histories beside the pages: asked for by a person or by the beat, done by a worker, kept."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from django.utils import timezone

from actions.errors import StoreError
from console.models import Verification
from console.services.audit import check_history
from console.stores import EntryChain, list_chains

EVERY = timedelta(days=1)
AGAIN = timedelta(hours=1)
"""A history that could not be read is walked again after so long."""
STANDS_STILL = timedelta(minutes=2)
"""A walk that has said nothing for so long has lost its worker."""


def is_due(name: str) -> bool:
    """Whether nobody has seen all of it for EVERY, nor tried for AGAIN. By the database, so that no restart of anything puts it off."""
    walks, now = Verification.objects.filter(name=name), timezone.now()
    is_seen = walks.filter(is_known=True, finished_at__gt=now - EVERY).exists()
    return not is_seen and not walks.filter(started_at__gt=now - AGAIN).exists()


def ask(name: str, *, by: str) -> tuple[Verification, bool]:
    """The walk that is under way, or a new one; whether it is new. Two at once say the same and cost twice: harmless."""
    newest = Verification.objects.filter(name=name).order_by("-id").first()
    if newest is not None and is_running(newest):
        return newest, False
    return Verification.objects.create(name=name, asked_by=by), True


def is_running(row: Verification) -> bool:
    return row.finished_at is None and timezone.now() - row.told_at < STANDS_STILL


def newest_of(names: Iterable[str]) -> dict[str, Verification]:
    """The newest walk of each history. One query."""
    rows = Verification.objects.filter(name__in=list(names)).order_by("name", "-id").distinct("name")
    return {row.name: row for row in rows}


def run(pk: int) -> None:
    """Walk the history that was asked about, and keep what was found. Twice is harmless: it says the same again."""
    row = Verification.objects.filter(pk=pk, finished_at__isnull=True).first()
    chain = _chain(row.name) if row else None
    if row is None or chain is None:
        return

    def told(count: int) -> None:
        Verification.objects.filter(pk=pk).update(entries=count, told_at=timezone.now())

    found: dict[str, object]
    try:
        check = check_history(chain, told=told)
        report = check.report
        found = {
            "entries": report.entries,
            "anchored": report.anchored,
            "removed": report.removed,
            "broken": f"entry {report.broken.number}: {report.broken.says}" if report.broken else "",
            "missing": f"entry {report.missing.number}: {report.missing.says}" if report.missing else "",
            "problem": check.checkpoints_problem,
        }
    except StoreError as exc:
        found = {"problem": exc.problem, "is_known": False}
    now = timezone.now()
    Verification.objects.filter(pk=pk).update(finished_at=now, told_at=now, **found)


def _chain(name: str) -> EntryChain | None:
    return next((chain for chain in list_chains() if chain.name == name), None)
