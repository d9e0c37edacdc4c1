"""What was asked about actions and what was found: bounded reads, one statement each."""

from __future__ import annotations

from collections.abc import Collection

from actions.records import ActionRef
from console.access import is_possible
from console.models import Inquiry, StoredVerdict
from console.services.decisions import of_actions


def verdicts_of(ref: ActionRef, *, limit: int = 50) -> list[StoredVerdict]:
    """The newest verdicts about an action, oldest first."""
    rows = StoredVerdict.objects.filter(inquiry__store=ref.store, inquiry__agent=ref.agent, inquiry__seq=ref.seq)
    return list(reversed(rows.order_by("-pk")[:limit]))


def newest_verdicts(refs: Collection[ActionRef]) -> dict[ActionRef, StoredVerdict]:
    """The newest verdict about each of these actions, in one statement."""
    found = inquiries_of(refs)
    by_pk = {row.pk: ref for ref, row in found.items()}
    rows = StoredVerdict.objects.filter(inquiry_id__in=by_pk).order_by("inquiry_id", "-pk").distinct("inquiry_id")
    return {by_pk[verdict.inquiry_id]: verdict for verdict in rows}


def inquiries_of(refs: Collection[ActionRef]) -> dict[ActionRef, Inquiry]:
    """The inquiry of each of these actions that has one, in one statement."""
    wanted = {ref for ref in refs if is_possible(ref)}
    rows = of_actions(Inquiry.objects.all(), wanted) if wanted else ()
    return {row.ref: row for row in rows if row.ref in wanted}
