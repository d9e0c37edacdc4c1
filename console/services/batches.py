"""Batches on their way: a worker takes one bounded step at a time, each item through `decide`; what became of them; cancel, undo, again.

The database alone knows what is due. A task may come twice or never, a worker may die at any point: whoever works at a batch holds a claim that
runs out, and an item's decision has an id of its own, so that whoever comes to it a second time finds it decided.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db import Error as ConsoleDatabaseError
from django.db import connection, transaction
from django.db.models import Count, Q, QuerySet
from django.http import Http404
from django.utils import timezone

from actions.records import ActionRef
from console.access import Person, Right, may, may_somewhere, visible
from console.models import (
    FAILED_STATES,
    OPEN_ITEM_STATES,
    PENDING_STATES,
    RETRYABLE_STATES,
    Batch,
    BatchItem,
    BatchState,
    Decision,
    DecisionState,
    ItemState,
)
from console.services.answers import DATABASE_TROUBLE, Answer, AnswerKind
from console.services.bulk import BatchCommitted, BulkRefused
from console.services.decide import DecisionRequest, decide
from console.services.deliver import as_column
from console.services.denials import leave_denial
from console.services.due import take_due
from console.services.evidence import find_contradiction, is_proof, telling_verdicts
from console.services.gates import is_confirmed
from console.services.withdraw import withdraw
from console.trouble import log_unexpected, name_of

log = logging.getLogger(__name__)

STEP = 20
"""How many items one task works at."""
STEP_TIME_S = 10.0
"""How long, at most, before the next task goes on: an item begun is finished."""
CLAIM = timedelta(seconds=60)
"""How long a worker may be at one item; longer than a decision may take."""
QUEUED = timedelta(seconds=30)
"""How long the sweep leaves a batch to the task that was sent for it."""
MAX_LISTED = 50
ENDED_STATES = (BatchState.FINISHED, BatchState.CANCELLED, BatchState.UNDONE)

_STATE_OF: Mapping[AnswerKind, ItemState] = {
    AnswerKind.CLOSED: ItemState.CLOSED,
    AnswerKind.PENDING: ItemState.PENDING,
    AnswerKind.CHANGED: ItemState.CHANGED,
    AnswerKind.READ_ONLY: ItemState.READ_ONLY,
    AnswerKind.UNAVAILABLE: ItemState.UNAVAILABLE,
}
_LOST = "its person had no right to settle it any more"
_OF_UNKNOWN = Q(state=ItemState.UNKNOWN, decision__state=DecisionState.WAITING)
_FAILED = Q(decision=None, state__in=FAILED_STATES) | Q(decision__state=DecisionState.REFUSED)
_RETRYABLE = Q(decision=None, state__in=RETRYABLE_STATES) | Q(decision__state=DecisionState.REFUSED)
_WITHDRAWABLE = Q(decision__state__in=PENDING_STATES)


# --- a worker's step -------------------------------------------------------------------------------------------------


def advance(pk: int) -> bool:
    """Work at one batch for one step. Safe to call twice, or never. Answers whether something is left, for which a task should come.

    Raises DatabaseError where the console's database went away: the claim runs out and the sweep sends somebody else.
    """
    token = _take(pk)
    if token is None:
        return False
    enough_at = time.monotonic() + STEP_TIME_S
    for _ in range(STEP):
        batch = _renew(pk, token)
        item = _next(batch) if batch is not None else None
        if batch is None or item is None or time.monotonic() > enough_at:
            break
        _work_at(batch, item)
    return _give_back(pk, token)


def claim_due(limit: int) -> list[int]:
    """Take up to `limit` batches that stand still, oldest first, and put them off by QUEUED, as `take_due` does."""
    now = timezone.now()
    idle = Q(claimed_until=None) | Q(claimed_until__lte=now)
    return take_due(Batch.objects.filter(idle, due_at__lte=now).order_by("due_at", "pk"), limit, due_at=now + QUEUED)


def _take(pk: int) -> str | None:
    """The claim to a batch that has something left; None where somebody else holds it."""
    now, token = timezone.now(), uuid.uuid4().hex
    idle = Q(claimed_until=None) | Q(claimed_until__lte=now)
    taken = Batch.objects.filter(idle, pk=pk, due_at__isnull=False).update(claimed_until=now + CLAIM, token=token)
    return token if taken == 1 else None


def _renew(pk: int, token: str) -> Batch | None:
    """The batch as it is now, ours for another while; None where the claim ran out and somebody else took it."""
    renewed = Batch.objects.filter(pk=pk, token=token).update(claimed_until=timezone.now() + CLAIM)
    return Batch.objects.filter(pk=pk).first() if renewed == 1 else None


def _give_back(pk: int, token: str) -> bool:
    """Let go of the claim; where nothing is left, in the same UPDATE, say so for good. Whoever changed the state meanwhile is not overruled."""
    batch = Batch.objects.filter(pk=pk, token=token).first()
    if batch is None:
        return False
    mine, now = Batch.objects.filter(pk=pk, token=token, state=batch.state), timezone.now()
    if _next(batch) is None:
        ended = {BatchState.RUNNING: BatchState.FINISHED, BatchState.UNDOING: BatchState.UNDONE}.get(
            BatchState(batch.state), BatchState(batch.state)
        )
        if mine.update(state=ended, ended_at=now, due_at=None, claimed_until=None, token="") == 1:
            return False
    Batch.objects.filter(pk=pk, token=token).update(due_at=now + QUEUED, claimed_until=None, token="")
    return True


def _next(batch: Batch) -> BatchItem | None:
    """What is to be worked at next: what a worker may have died at, then, as the batch now stands, what is queued or to be withdrawn."""
    items = BatchItem.objects.filter(batch=batch).order_by("number")
    begun = items.filter(state=ItemState.BEGUN).first()
    if begun is not None:
        return begun
    if batch.state == BatchState.RUNNING:
        return items.filter(state=ItemState.QUEUED).first()
    if batch.state == BatchState.UNDOING:
        return items.filter(_WITHDRAWABLE, undo_tried=False).select_related("decision").first()
    return None


def _work_at(batch: Batch, item: BatchItem) -> None:
    user = User.objects.filter(pk=batch.by_id).first()  # anew for each item: with the roles of this moment
    if batch.state == BatchState.UNDOING and item.state not in OPEN_ITEM_STATES:
        _withdraw(batch, item, user)
    elif batch.state != BatchState.RUNNING:
        # Cancelled after somebody had begun it and died: decided or not is what its decision says. None is made any more.
        _close(item, ItemState.CANCELLED, "")
    elif user is None or not may_somewhere(user, Right.SETTLE):
        _refuse(batch, item)
        BatchItem.objects.filter(batch=batch, state=ItemState.QUEUED).update(state=ItemState.NO_RIGHT, why=_LOST)
    elif item.state == ItemState.BEGUN or BatchItem.objects.filter(pk=item.pk, state=ItemState.QUEUED).update(
        state=ItemState.BEGUN
    ):
        state, why = _decide(batch, item, user)
        if state is ItemState.NO_RIGHT:
            _refuse(batch, item)
        else:
            _close(item, state, why)


def _decide(batch: Batch, item: BatchItem, user: User) -> tuple[ItemState, str]:
    """One item through the one path. What stands in its way is its outcome, and stops no other."""
    request = DecisionRequest(
        outcome=item.outcome if batch.is_proven else batch.outcome,
        reason=item.reason if batch.is_proven else batch.reason,
        decision_id=item.decided_as,
        seen=item.digest,
        evidence_id=item.evidence_id,
        confirmed_at=timezone.now() if batch.is_confirmed else None,
    )
    if not may(user, Right.SETTLE, store=item.store, tool=item.tool):
        return ItemState.NO_RIGHT, _LOST
    try:
        if not Decision.objects.filter(decision_id=item.decided_as).exists() and (objection := _objection(batch, item, request)):
            return ItemState.CONTRADICTED, objection
        answer = decide(item.ref, request, by=user)
    except Http404:
        return ItemState.MISSING, "its store has no such action any more"
    except PermissionDenied:
        return ItemState.NO_RIGHT, _LOST
    except ConsoleDatabaseError as exc:
        if not connection.is_usable():
            raise
        log.error("item %s of batch %s: the console's database: %s", item.number, batch.pk, name_of(exc))
        return ItemState.UNAVAILABLE, f"{DATABASE_TROUBLE}; try it again, it is never written twice"
    except Exception as exc:
        # Else the batch would stand still at this one for ever, and nobody would know.
        log_unexpected(log, f"deciding item {item.number} of batch {batch.pk}", exc)
        return (
            ItemState.UNAVAILABLE,
            f"something unexpected went wrong here ({name_of(exc)}); try it again, it is never written twice",
        )
    return _outcome_of(answer)


def _objection(batch: Batch, item: BatchItem, request: DecisionRequest) -> str:
    """What the world says against it now that nobody had seen when the person said go; empty: nothing."""
    if batch.is_proven:
        verdict = telling_verdicts([item.ref]).get(item.ref)
        still = verdict is not None and verdict.evidence_id == item.evidence_id and is_proof(verdict, item.claim)
        return "" if still else "there is newer evidence than the preview showed"
    against = find_contradiction(item.ref, request.outcome)
    if against is None or against.evidence_id == item.seen_against:
        return ""
    return f"{against.resolver} {against.says} ({against.evidence_id}), and that came after the preview"


def _outcome_of(answer: Answer) -> tuple[ItemState, str]:
    return _STATE_OF.get(answer.kind, ItemState.REFUSED), answer.detail


def _close(item: BatchItem, state: ItemState, why: str) -> None:
    """Keep what became of an item. Where its decision exists and is not refused, that one says it from now on."""
    decision = Decision.objects.filter(decision_id=item.decided_as).first()
    if decision is not None and decision.state != DecisionState.REFUSED:
        state, why = ItemState.UNKNOWN if state is ItemState.UNAVAILABLE else ItemState.DECIDED, ""
    else:
        decision = None
    # Also over `cancelled`: that it was not begun is then no longer true.
    still = BatchItem.objects.filter(pk=item.pk, state__in=[*OPEN_ITEM_STATES, ItemState.CANCELLED])
    still.update(state=state, why=as_column(why), decision=decision)


def _refuse(batch: Batch, item: BatchItem) -> None:
    """Close an item for want of a right; that its person was refused is entered first, as a page's refusal is, and twice rather than never."""
    _leave(batch, item, "batch item", _LOST)
    _close(item, ItemState.NO_RIGHT, _LOST)


def _leave(batch: Batch, item: BatchItem, gesture: str, reason: str) -> None:
    leave_denial(f"user {batch.username}", gesture, reason=reason, store=item.store, agent=item.agent, seq=item.seq)


def _withdraw(batch: Batch, item: BatchItem, user: User | None) -> None:
    """One try; what cannot be withdrawn any more stays as its decision says."""
    try:
        if user is None:
            raise PermissionDenied("the account is gone")
        withdraw(item.ref, by=user, decision_id=item.decided_as)
    except PermissionDenied as exc:
        _leave(batch, item, "batch item withdraw", str(exc))
    except Http404:
        log.info("item %s of batch %s is not withdrawn: its person may not see it any more", item.number, item.batch_id)
    BatchItem.objects.filter(pk=item.pk).update(undo_tried=True)


# --- a person's gestures ---------------------------------------------------------------------------------------------


def cancel(batch_id: str, *, by: User) -> Batch:
    """Decide nothing more of a running batch. What is written stays; what a worker is at this moment is finished.

    Raises Http404: no such batch of this person, and nobody who is an admin of everything.
    """
    batch = find_batch(by, batch_id)
    with transaction.atomic(durable=True):
        stopped = Batch.objects.filter(pk=batch.pk, state=BatchState.RUNNING).update(
            state=BatchState.CANCELLED, due_at=timezone.now(), ended_at=timezone.now()
        )
        if stopped:
            BatchItem.objects.filter(batch=batch, state=ItemState.QUEUED).update(
                state=ItemState.CANCELLED, why=f"cancelled by {by.get_username()}"
            )
    batch.refresh_from_db()
    return batch


def undo(batch_id: str, *, by: User) -> Batch:
    """Withdraw, by a worker, all of it that is not written yet; the rest of a running batch is cancelled.

    Raises:
        Http404: no such batch of this person. BulkRefused: nothing of it can be withdrawn.
    """
    batch = _own(by, batch_id)
    with transaction.atomic(durable=True):
        now = Batch.objects.select_for_update(of=("self",)).get(pk=batch.pk)
        items = BatchItem.objects.filter(batch=batch)
        is_open = items.filter(state__in=OPEN_ITEM_STATES).exists()
        if now.is_draft or not (is_open or items.filter(_WITHDRAWABLE).exists()):
            raise BulkRefused("Nothing of this batch can be withdrawn any more.")
        items.filter(state=ItemState.QUEUED).update(state=ItemState.CANCELLED, why=f"cancelled by {by.get_username()}")
        items.filter(_WITHDRAWABLE).update(undo_tried=False)
        Batch.objects.filter(pk=batch.pk).update(state=BatchState.UNDOING, due_at=timezone.now())
    batch.refresh_from_db()
    return batch


def again(batch_id: str, *, by: User, confirmed_at: datetime | None = None) -> Batch:
    """Try the failed ones again that another try can help, under the same decision ids: nothing is written twice. `confirmed_at` as `commit`.

    Raises:
        Http404: no such batch of this person. BulkRefused: it still runs, or nothing failed that another try can help.
    """
    batch = _own(by, batch_id)
    with transaction.atomic(durable=True):
        now = Batch.objects.select_for_update(of=("self",)).get(pk=batch.pk)
        if now.state not in ENDED_STATES or now.is_active:
            raise BulkRefused(f"This batch is {now.state}; the failed ones can be tried again once it has ended.")
        pks = list(BatchItem.objects.filter(_RETRYABLE, batch=batch).values_list("pk", flat=True))
        if not pks:
            raise BulkRefused("Nothing failed that another try can help.")
        BatchItem.objects.filter(pk__in=pks).update(state=ItemState.QUEUED, why="", decision=None)
        at = timezone.now()
        proved = is_confirmed(confirmed_at, at)
        Batch.objects.filter(pk=batch.pk).update(state=BatchState.RUNNING, due_at=at, ended_at=None, is_confirmed=proved)
    batch.refresh_from_db()
    return batch


# --- reading ---------------------------------------------------------------------------------------------------------


def find_batch(user: Person, batch_id: str) -> Batch:
    """A batch of this person's, or, for an admin of everything, anybody's. Raises Http404: there is none, or it is not theirs to see."""
    batch = Batch.objects.filter(batch_id=as_column(batch_id)).first()
    if batch is None or (batch.by_id != user.pk and not may(user, Right.ADMIN)):
        raise Http404("there is no such batch")
    return batch


def find_own(user: User, batch_id: str) -> Batch | None:
    """A batch of this person's under this id.

    Raises BatchCommitted: the id is somebody else's. Nothing of theirs is told.
    """
    batch = Batch.objects.filter(batch_id=as_column(batch_id)).first()
    if batch is not None and batch.by_id != user.pk:
        raise BatchCommitted(batch, "this batch id was used before; make a new one")
    return batch


def list_batches(user: Person, *, before: int | None = None) -> tuple[Batch, ...]:
    """Batches that were committed, newest first, at most MAX_LISTED: this person's, or, for an admin of everything, everybody's."""
    rows = Batch.objects.exclude(state=BatchState.DRAFT).order_by("-pk")
    if not may(user, Right.ADMIN):
        rows = rows.filter(by_id=user.pk)
    return tuple(rows.filter(pk__lt=before)[:MAX_LISTED] if before else rows[:MAX_LISTED])


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A batch in numbers. `outcomes`: how many items show which outcome.

    Each that the person said go to is in exactly one of written, on its way, failed, withdrawn, cancelled and open: they add up to `total`.
    """

    total: int  # what the person said go to; what the preview left out is not counted
    outcomes: Mapping[str, int]
    can_withdraw: int
    can_try_again: int

    @property
    def open(self) -> int:
        return sum(self.outcomes.get(state, 0) for state in OPEN_ITEM_STATES)

    @property
    def done(self) -> int:
        """What a worker has come to, whatever became of it."""
        return self.total - self.open - self.cancelled

    @property
    def written(self) -> int:
        return self.outcomes.get(DecisionState.WRITTEN, 0)

    @property
    def cancelled(self) -> int:
        return self.outcomes.get(ItemState.CANCELLED, 0)

    @property
    def withdrawn(self) -> int:
        return self.outcomes.get(DecisionState.WITHDRAWN, 0)

    @property
    def left_out(self) -> int:
        return self.outcomes.get(ItemState.LEFT_OUT, 0)

    @property
    def failed(self) -> int:
        return sum(self.outcomes.get(state, 0) for state in FAILED_STATES)

    @property
    def still_open(self) -> int:
        """Of those that failed, how many somebody can still look at and decide: what ended is done with."""
        return self.failed - self.outcomes.get(ItemState.CLOSED, 0)

    @property
    def on_its_way(self) -> int:
        return sum(self.outcomes.get(state, 0) for state in (*PENDING_STATES, ItemState.UNKNOWN))


def progress_of(batches: tuple[Batch, ...]) -> dict[int, Progress]:
    """Each of these batches in numbers, by its primary key. One statement, whatever the number."""
    rows = BatchItem.objects.filter(batch__in=[batch.pk for batch in batches]).values("batch_id", "state", "decision__state")
    outcomes: dict[int, Counter[str]] = {batch.pk: Counter() for batch in batches}
    again: Counter[int] = Counter()
    pending: Counter[int] = Counter()
    for pk, state, decision, count in rows.annotate(count=Count("pk")).values_list(
        "batch_id", "state", "decision__state", "count"
    ):
        shown = decision if decision and not (state == ItemState.UNKNOWN and decision == DecisionState.WAITING) else state
        outcomes[pk][shown] += count
        again[pk] += count if (not decision and state in RETRYABLE_STATES) or decision == DecisionState.REFUSED else 0
        pending[pk] += count if decision in PENDING_STATES else 0
    return {
        pk: Progress(
            total=sum(counts.values()) - counts.get(ItemState.LEFT_OUT, 0),
            outcomes=counts,
            can_withdraw=pending[pk],
            can_try_again=again[pk],
        )
        for pk, counts in outcomes.items()
    }


FAILED = "failed"
ON_ITS_WAY = "on_its_way"


def items_showing(batch: Batch, outcome: str) -> QuerySet[BatchItem]:
    """The items of a batch that show this outcome (a state, FAILED or ON_ITS_WAY); empty: all. In the order of the queue."""
    items = BatchItem.objects.filter(batch=batch).select_related("decision").order_by("number")
    if not outcome:
        return items
    if outcome == FAILED:
        return items.filter(_FAILED)
    if outcome == ON_ITS_WAY:
        return items.filter(_WITHDRAWABLE)
    if outcome == ItemState.UNKNOWN:
        return items.filter(_OF_UNKNOWN)
    if outcome in DecisionState.values and outcome != ItemState.REFUSED:
        return items.filter(decision__state=outcome).exclude(_OF_UNKNOWN)
    if outcome == ItemState.REFUSED:
        return items.filter(Q(decision__state=outcome) | Q(decision=None, state=outcome))
    return items.filter(decision=None, state=outcome)


def failed_refs(user: Person, batch_id: str) -> frozenset[ActionRef]:
    """The actions of a batch that were not decided and have not ended, as far as this person may see them. Raises Http404 as `find_batch`."""
    may_see = visible(user)
    rows = BatchItem.objects.filter(_FAILED, batch=find_batch(user, batch_id)).exclude(state=ItemState.CLOSED)
    return frozenset(row.ref for row in rows if row.tool and may_see(row.store, row.tool))


def _own(user: User, batch_id: str) -> Batch:
    """A batch of this person's alone: nobody decides or takes back under another one's name."""
    batch = Batch.objects.filter(batch_id=as_column(batch_id), by=user).first()
    if batch is None:
        raise Http404("there is no such batch of yours")
    return batch
