"""Ends that are not ours: what an action became without anybody here, found by comparing with what was open, and entered once in the history.

What can be known is what two looks at the records show. Recall overwrites a row in place: a call that began and ended between two looks was
never seen open and leaves nothing here; of two changes between two looks the last one is seen; who wrote it is not recorded anywhere, and
the time of an end is what its process's clock said. For the time in which nobody watched and no sweep ran, only that last change is known.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from django.db import transaction

from actions.digests import canonical_json, sha256_text
from actions.errors import ActionNotFound, StoreError, StoreReadOnly
from actions.queries import MAX_ROWS_PER_STORE
from actions.records import OPEN_STATUSES, Action, ActionRef, ActionStatus, Entry, NewEntry, Reading
from actions.redaction import redact_text
from actions.store.base import ActionStore
from actions.store.observing import OBSERVED, OURS, find_observed, is_ours
from actions.times import Instant, format_rfc3339, to_datetime
from console.models import SeenEnd
from console.services import journal
from console.stores import list_stores

log = logging.getLogger(__name__)

ACTOR = "system watcher"
ENDS_PER_SWEEP = 200
"""How many calls that are no longer what they were are looked at in one sweep of one store; the others wait for the next."""
_MARK = "was "
"""A row whose status begins so is an open call as the last sweep saw it, not an end."""
_MARKS = tuple(_MARK + status.value for status in OPEN_STATUSES)
_MAX_NUMBER = 2**63 - 1
_MAX_REASON = 2_000
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")

_looked: WeakKeyDictionary[ActionStore, int] = WeakKeyDictionary()
"""By store: its revision at the last look of this process; only to spare the store a read that would see the same."""


@dataclass(frozen=True, slots=True)
class Seen:
    """An open action as it was when somebody looked."""

    status: ActionStatus
    epoch: int  # of the metadata: the lease under which it was written


def open_calls(readings: Iterable[Reading]) -> dict[tuple[str, int], Seen]:
    """The open actions among these, by agent and number, as a later look is compared with them."""
    actions = (reading.action for reading in readings)
    return {(a.agent, a.seq): Seen(a.status, a.written_epoch) for a in actions if isinstance(a, Action) and _can_be_kept(a)}


def has_moved(before: Seen, now: Seen | None) -> bool:
    """Whether an action that was open is no longer what it was: closed, gone, or unknown now. A new epoch alone is no change."""
    return now is None or now.status != before.status


def observe_end(store: ActionStore, ref: ActionRef, before: Seen) -> SeenEnd | None:
    """What became of an action that was seen open: one row and one `observed` entry where its agent, or a resume, ended it.

    However many ask, and wherever one of them dies: the row comes first and is one for each (store, agent, seq, status, metadata epoch); its
    entry has an id made of the same, which the store appends once; a row without the number of its entry is gone on with by the next sweep.
    None where the action is what it was, gone, unreadable, or ended by us, which has its entry already.

    Raises:
        StoreError, DatabaseError: what was written so far stands; asking again writes what is missing and nothing twice.
    """
    try:
        reading = store.get_action(ref.agent, ref.seq)
    except ActionNotFound:
        return None
    action = reading.action
    if not isinstance(action, Action) or not _can_be_kept(action) or not _is_other(action, before):
        return None
    if is_ours(store.list_entries(limit=1, agent=ref.agent, seq=ref.seq, kinds=OURS)):
        return None
    row, _ = SeenEnd.objects.get_or_create(
        store=ref.store,
        agent=ref.agent,
        seq=ref.seq,
        status=action.status.value,
        written_epoch=action.written_epoch,
        defaults={
            "tool": _UNSTORABLE.sub("\ufffd", action.tool),
            "ended_at": _kept_time(action.ended_at),
            "first_seen_at": to_datetime(reading.read_at),
        },
    )
    return _enter(store, row, action, before)


def sweep_ends() -> int:
    """Look at every store whose records moved, whether anybody watches it or not; how many ends are new.

    Safe to run in several workers at once. A store that does not answer is left to the next sweep.
    """
    found = 0
    for store in list_stores():
        try:
            found += _sweep(store)
        except StoreError as exc:
            log.warning("ends in store %s are left to the next sweep: %s", store.name, exc.problem)
    return found


def forget() -> None:
    """Look anew; between tests."""
    _looked.clear()


def _sweep(store: ActionStore) -> int:
    """Only what was open at the last look is compared, never what was closed by then. Bounded: two reads, and ENDS_PER_SWEEP actions.

    The marks of what is open now are written last: a sweep that dies before leaves those of the one before, and sees the same again.
    """
    rows = SeenEnd.objects.filter(store=store.name, entry_number=None)
    unfinished = list(rows.exclude(status__in=_MARKS).order_by("pk")[:ENDS_PER_SWEEP])
    for row in unfinished:
        _go_on(store, row)
    revision = store.read_watch().revision
    if _looked.get(store) == revision:
        return 0
    now = open_calls(store.read_actions(OPEN_STATUSES, limit=MAX_ROWS_PER_STORE).readings)
    marks = {mark.pk: mark for mark in rows.filter(status__in=_MARKS).order_by("first_seen_at", "pk")}
    moved = [mark for mark in marks.values() if has_moved(_seen_in(mark), now.get((mark.agent, mark.seq)))]
    found = 0
    for mark in moved[:ENDS_PER_SWEEP]:
        found += _follow(store, mark)
        del marks[mark.pk]
    known = {(mark.agent, mark.seq) for mark in marks.values()}
    _mark(store, {key: seen for key, seen in now.items() if key not in known})
    if len(moved) <= ENDS_PER_SWEEP and len(unfinished) < ENDS_PER_SWEEP:
        _looked[store] = revision
    return found


def _follow(store: ActionStore, mark: SeenEnd) -> bool:
    """What became of one call that was open. Its mark goes last. Where the list of open calls was cut, it may still be what it was."""
    ref = ActionRef(store.name, mark.agent, mark.seq)
    end = observe_end(store, ref, _seen_in(mark))
    if end is None and _is_still(store, ref, _seen_in(mark)):
        SeenEnd.objects.filter(pk=mark.pk).update(first_seen_at=to_datetime(store.read_watch().read_at))
    else:
        SeenEnd.objects.filter(pk=mark.pk).delete()
    return end is not None


def _mark(store: ActionStore, calls: Mapping[tuple[str, int], Seen]) -> None:
    """Of two sweeps at one moment both mark the same; a mark that an older view left is compared like any other, and goes."""
    if not calls:
        return
    at = to_datetime(store.read_watch().read_at)
    SeenEnd.objects.bulk_create(
        (
            SeenEnd(
                store=store.name,
                agent=agent,
                seq=seq,
                status=_MARK + seen.status.value,
                written_epoch=seen.epoch,
                tool="",
                first_seen_at=at,
            )
            for (agent, seq), seen in sorted(calls.items())
        ),
        batch_size=1_000,
        ignore_conflicts=True,
    )


def _go_on(store: ActionStore, row: SeenEnd) -> None:
    """An end that was seen and has no entry: whoever saw it died there, or the store could not be written."""
    try:
        action = store.get_action(row.agent, row.seq).action
    except ActionNotFound:
        action = None
    is_same = isinstance(action, Action) and (action.status, action.written_epoch) == (row.status, row.written_epoch)
    _enter(store, row, action if is_same and isinstance(action, Action) else None, None)


def _enter(store: ActionStore, row: SeenEnd, action: Action | None, before: Seen | None) -> SeenEnd | None:
    """The row with the number of its entry. None where the end turns out to be ours: the row goes."""
    if row.entry_number is not None:
        return row
    new = _entry_of(row, action, before)
    try:
        entry = store.append_observed(new)
    except StoreReadOnly:
        known = store.list_entries(limit=10, agent=row.agent, seq=row.seq, kinds=(OBSERVED,))
        written = find_observed(known, new)  # before it became read-only
        return _number(row, written) if written is not None else _enter_here(row, new)
    if entry is None:
        SeenEnd.objects.filter(pk=row.pk, entry_number=None).delete()
        return None
    return _number(row, entry)


def _number(row: SeenEnd, entry: Entry) -> SeenEnd:
    SeenEnd.objects.filter(pk=row.pk, entry_number=None).update(entry_number=entry.number)
    row.entry_number = entry.number
    return row


def _enter_here(row: SeenEnd, new: NewEntry) -> SeenEnd:
    """In the console's own chain, because the store's cannot be written: once, by whoever has the row while it has no number."""
    with transaction.atomic():
        held = SeenEnd.objects.select_for_update().filter(pk=row.pk, entry_number=None).first()
        if held is None:
            return SeenEnd.objects.filter(pk=row.pk).first() or row
        entry = journal.record(
            new.kind,
            actor=new.actor,
            tool=new.tool,
            agent=new.agent,
            outcome=new.outcome,
            reason=new.reason,
            detail={**new.detail, "store": row.store, "seq": row.seq},
        )
        return _number(held, entry)  # of a row that is locked already: the chain's head is waited for last


def _entry_of(row: SeenEnd, action: Action | None, before: Seen | None) -> NewEntry:
    """`decision_id` is made of what the row is unique by, so that whoever comes later asks for the same entry: another console too."""
    after: dict[str, object] = {"status": row.status, "epoch": row.written_epoch}
    if row.ended_at is not None:
        after["ended_at"] = format_rfc3339(row.ended_at)
    was = {} if before is None else {"before": {"status": before.status.value, "epoch": before.epoch}}
    said = canonical_json([row.agent, row.seq, row.status, row.written_epoch])
    return NewEntry(
        kind=OBSERVED,
        actor=ACTOR,
        agent=row.agent,
        seq=row.seq,
        tool=redact_text(row.tool),
        decision_id=f"observed-{sha256_text(said)[:32]}",
        outcome=row.status,
        reason=redact_text(action.resolution)[:_MAX_REASON] if action is not None else "",
        detail={**was, "after": after},
    )


def _is_other(action: Action, before: Seen) -> bool:
    return has_moved(before, Seen(action.status, action.written_epoch)) and action.status is not ActionStatus.STARTED


def _is_still(store: ActionStore, ref: ActionRef, before: Seen) -> bool:
    try:
        action = store.get_action(ref.agent, ref.seq).action
    except ActionNotFound:
        return False
    return isinstance(action, Action) and action.status == before.status


def _seen_in(mark: SeenEnd) -> Seen:
    return Seen(ActionStatus(mark.status.removeprefix(_MARK)), mark.written_epoch)


def _kept_time(at: Instant | None) -> Instant | None:
    """None for a time that no column holds, such as one in the year 9999: one agent's odd clock keeps no other's end from being seen."""
    return at if at is not None and abs(at) <= _MAX_NUMBER else None


def _can_be_kept(action: Action) -> bool:
    """What no row of ours can name, no screen of ours can either."""
    return (
        0 < len(action.agent) <= 255
        and not _UNSTORABLE.search(action.agent)
        and 0 < action.seq <= _MAX_NUMBER
        and action.written_epoch <= _MAX_NUMBER
    )
