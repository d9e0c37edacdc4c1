"""Several decisions in one gesture: the set as a preview fixed it, and what became of each item."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q

from actions.records import ActionRef
from actions.redaction import redact_text
from console.models.decision import Decision


class BatchState(models.TextChoices):
    """Where a batch is. Only `running` and `undoing` ones are worked at; the others are final, but for `draft`."""

    DRAFT = "draft"  # a preview: nothing is decided, nothing will be
    RUNNING = "running"
    CANCELLED = "cancelled"  # what was not begun yet is not decided any more
    UNDOING = "undoing"  # what can still be withdrawn is being withdrawn
    UNDONE = "undone"
    FINISHED = "finished"


class ItemState(models.TextChoices):
    """What became of one item, as far as its decision does not say: that one's own state counts wherever there is one."""

    READY = "ready"  # of a preview
    LEFT_OUT = "left_out"  # the preview already said why it cannot be decided
    QUEUED = "queued"
    BEGUN = "begun"  # a worker is at it, or died at it
    DECIDED = "decided"  # see its decision
    UNKNOWN = "unknown"  # no answer came: its decision is asked again by itself
    CLOSED = "closed"  # somebody ended it first
    PENDING = "pending"  # another decision was on its way
    CHANGED = "changed"  # it was not any more what the preview showed
    CONTRADICTED = "contradicted"  # the world says otherwise, and nobody ticked that
    NO_RIGHT = "no_right"  # the person had no right to it any more
    MISSING = "missing"
    UNAVAILABLE = "unavailable"  # its store did not answer; nothing was written
    READ_ONLY = "read_only"
    REFUSED = "refused"
    CANCELLED = "cancelled"


FAILED_STATES = (
    ItemState.CLOSED,
    ItemState.PENDING,
    ItemState.CHANGED,
    ItemState.CONTRADICTED,
    ItemState.NO_RIGHT,
    ItemState.MISSING,
    ItemState.UNAVAILABLE,
    ItemState.READ_ONLY,
    ItemState.REFUSED,
)
RETRYABLE_STATES = (
    ItemState.PENDING,
    ItemState.NO_RIGHT,
    ItemState.MISSING,
    ItemState.UNAVAILABLE,
    ItemState.READ_ONLY,
    ItemState.REFUSED,
)
"""What the same decision may do better the next time: what ended, changed or is contradicted needs somebody to look."""
OPEN_ITEM_STATES = (ItemState.QUEUED, ItemState.BEGUN)


class Batch(models.Model):
    """One gesture over several actions. Its set is fixed by the preview; what changes or appears later is not decided.

    Every change of state is a conditional UPDATE whose row count is read. A worker holds a claim that runs out; the database alone knows
    what is due.
    """

    batch_id = models.CharField(max_length=64, unique=True)  # made with the preview; the same id again is the same batch
    by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    username = models.CharField(max_length=150)
    state = models.CharField(max_length=16, choices=BatchState, default=BatchState.DRAFT)
    is_proven = models.BooleanField(default=False)  # each as its evidence says, instead of all alike
    outcome = models.CharField(max_length=16, blank=True)
    reason = models.TextField(blank=True)  # unredacted, like a decision's: show `shown_reason`
    said = models.TextField()  # how its set was chosen, in words
    notes = models.TextField(blank=True)  # what is known to be missing from the set, one sentence a line
    content_digest = models.CharField(max_length=64, blank=True)  # what a caller's own batch id stands for
    created_at = models.DateTimeField(auto_now_add=True)
    committed_at = models.DateTimeField(null=True)
    is_confirmed = models.BooleanField(
        default=False, db_default=False
    )  # whoever said go had just proved who they are: once for all of it
    ended_at = models.DateTimeField(null=True)
    due_at = models.DateTimeField(null=True)  # when the sweep may send a task for it; None: nothing is left to do
    claimed_until = models.DateTimeField(null=True)
    token = models.CharField(max_length=32, blank=True)

    class Meta:
        db_table = "console_batch"
        constraints = [models.CheckConstraint(condition=Q(state__in=BatchState.values), name="batch_state_known")]
        indexes = [
            models.Index(fields=["due_at"], condition=Q(due_at__isnull=False), name="batch_due"),
            models.Index(fields=["by", "-id"], name="batch_by_person"),
        ]

    def __str__(self) -> str:
        return f"batch {self.batch_id} by {self.username}: {self.state}"

    @property
    def is_draft(self) -> bool:
        return self.state == BatchState.DRAFT

    @property
    def is_active(self) -> bool:
        """Whether a worker has something left to do."""
        return self.due_at is not None

    @property
    def shown_reason(self) -> str:
        return redact_text(self.reason)


class BatchItem(models.Model):
    """One action of a batch, as the preview showed it. Its decision's id is derived from the batch and the action: it is decided once."""

    batch = models.ForeignKey(Batch, on_delete=models.CASCADE, related_name="items")
    number = models.PositiveIntegerField()  # from 1, in the order of the queue
    store = models.CharField(max_length=63)
    agent = models.CharField(max_length=255)
    seq = models.BigIntegerField()
    tool = models.TextField(blank=True)  # empty: nothing of it may be shown but what was asked for
    decided_as = models.CharField(max_length=64)  # the decision id
    digest = models.CharField(max_length=64, blank=True)  # of all that was shown; compared when it is written
    claim = models.CharField(max_length=64, blank=True)
    sentence = models.TextField(blank=True)  # redacted
    call_state = models.CharField(max_length=16, blank=True)  # why it was open
    action_class = models.CharField(max_length=16, blank=True)
    amount = models.TextField(blank=True)  # a decimal number, for calls that move money
    currency = models.CharField(max_length=40, blank=True)  # with `minor units` where the amount is in those
    outcome = models.CharField(max_length=16, blank=True)  # of a proven one: what its evidence says
    reason = models.TextField(blank=True)
    evidence_id = models.CharField(max_length=40, blank=True)
    seen_against = models.CharField(max_length=40, blank=True)  # the verdict against it that was ticked
    state = models.CharField(max_length=16, choices=ItemState)
    why = models.TextField(blank=True)  # one sentence for a person
    decision = models.ForeignKey(Decision, on_delete=models.PROTECT, null=True, related_name="+")
    undo_tried = models.BooleanField(default=False)

    class Meta:
        db_table = "console_batch_item"
        constraints = [
            models.UniqueConstraint(fields=["batch", "store", "agent", "seq"], name="batch_item_once"),
            models.CheckConstraint(condition=Q(state__in=ItemState.values), name="batch_item_state_known"),
        ]
        indexes = [models.Index(fields=["batch", "state", "number"], name="batch_item_by_state")]

    def __str__(self) -> str:
        return f"{self.ref} of batch {self.batch_id}: {self.state}"

    @property
    def ref(self) -> ActionRef:
        return ActionRef(self.store, self.agent, self.seq)

    @property
    def outcome_shown(self) -> str:
        """What became of it, in one word: its decision's own state wherever there is one."""
        if self.decision is None or (self.state == ItemState.UNKNOWN and self.decision.state == "waiting"):
            return self.state
        return self.decision.state

    def why_for(self, *, sees_problems: bool) -> str:
        """Why it stands so, redacted; while its decision exists, in that one's words. A store's own words only for those who may read them."""
        if self.decision is None or not self.decision.why:
            return redact_text(self.why)
        hides = self.decision.waits_for_store and not sees_problems
        return "its store does not take it now" if hides else redact_text(self.decision.why)

    @property
    def shown_reason(self) -> str:
        return redact_text(self.reason)
