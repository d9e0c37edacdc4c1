"""Somebody's "I was wrong" about a closed action, from the moment it is sent until it is written, withdrawn or refused."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import F, Q

from actions.records import ActionRef
from actions.redaction import redact_text


class CorrectionState(models.TextChoices):
    """Where a correction is. Only the first two can still change."""

    PROPOSED = "proposed"  # waits for a second person: two decided, or would have to by now
    WAITING = "waiting"  # on its way to the store: its agent is alive, or the store has not confirmed it yet
    WRITTEN = "written"  # its turn stands in the agent's records
    WITHDRAWN = "withdrawn"  # taken back by a person before it was written
    REFUSED = "refused"  # could not be written; `why` says what stood in its way


PENDING_CORRECTIONS = (CorrectionState.PROPOSED, CorrectionState.WAITING)


class Correction(models.Model):
    """One correction. Its row is committed before the store is asked, as a decision's is. At most one on its way per action.

    The reason is kept as it will be written, unredacted: show `shown_reason`.
    """

    correction_id = models.CharField(max_length=64, unique=True)  # made with the form; the same id again is the same correction
    store = models.CharField(max_length=63)
    agent = models.CharField(max_length=255)
    seq = models.BigIntegerField()
    tool = models.TextField()
    told = models.CharField(max_length=16)  # the outcome that its agent was told before
    told_entry = models.BigIntegerField()  # number of the entry that says so
    outcome = models.CharField(max_length=16)
    reason = models.TextField()
    state = models.CharField(max_length=16, choices=CorrectionState)
    why = models.TextField(blank=True)
    by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    username = models.CharField(max_length=150)
    actor = models.CharField(max_length=200)
    content_digest = models.CharField(max_length=64)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)
    next_try_at = models.DateTimeField(null=True)
    attempts = models.IntegerField(default=0)
    entry_number = models.BigIntegerField(null=True)
    turn_seq = models.BigIntegerField(null=True)
    was_read = models.CharField(max_length=8, blank=True)  # whether the agent had read what it was told first
    # What the decision needed its correction needs too; frozen when it was made, as a decision's gates are.
    needs_second = models.BooleanField(default=False, db_default=False)
    needs_step_up = models.BooleanField(default=False, db_default=False)
    rule = models.TextField(blank=True, db_default="", default="")  # the policy's own words and version, for a person
    sentence = models.CharField(
        max_length=200, blank=True, db_default="", default=""
    )  # the call in our words, redacted; of proposals
    second_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", null=True)
    second_username = models.CharField(max_length=150, blank=True, db_default="", default="")
    second_reason = models.TextField(blank=True, db_default="", default="")  # unredacted, like the reason
    second_at = models.DateTimeField(null=True)
    is_turned_down = models.BooleanField(default=False, db_default=False)  # by that second person; refused for good

    class Meta:
        db_table = "console_correction"
        constraints = [
            models.UniqueConstraint(
                fields=["store", "agent", "seq"],
                condition=Q(state__in=["proposed", "waiting"]),
                name="correction_one_pending_per_action",
            ),
            models.CheckConstraint(condition=Q(state__in=CorrectionState.values), name="correction_state_known"),
            models.CheckConstraint(condition=Q(outcome__in=["done", "failed", "unknown"]), name="correction_outcome_known"),
            # Whatever code comes: nothing that needs a second person is on its way to a store without one.
            models.CheckConstraint(
                condition=Q(needs_second=False)
                | Q(second_at__isnull=False, is_turned_down=False)
                | Q(state__in=["proposed", "withdrawn", "refused"]),
                name="correction_second_person",
            ),
            models.CheckConstraint(
                condition=Q(second_by__isnull=True) | ~Q(second_by=F("by")), name="correction_second_is_another"
            ),
        ]
        indexes = [
            models.Index(fields=["store", "agent", "seq", "-id"], name="correction_by_action"),
            models.Index(fields=["next_try_at"], condition=Q(state="waiting"), name="correction_due"),
        ]

    def __str__(self) -> str:
        return f"correction of {self.ref} by {self.username}: {self.state}"

    @property
    def ref(self) -> ActionRef:
        return ActionRef(self.store, self.agent, self.seq)

    @property
    def decision_id(self) -> str:
        """Its id, as entries and lists of decisions name it."""
        return self.correction_id

    @property
    def is_pending(self) -> bool:
        return self.state in PENDING_CORRECTIONS

    @property
    def is_proposed(self) -> bool:
        return self.state == CorrectionState.PROPOSED

    @property
    def waits_for_store(self) -> bool:
        """`why` is what its store itself says: only for those who may read that (access.sees_problems)."""
        return self.why.startswith(f"store {self.store}: ")

    @property
    def shown_reason(self) -> str:
        return redact_text(self.reason)

    @property
    def shown_second_reason(self) -> str:
        return redact_text(self.second_reason)

    @property
    def is_opposite(self) -> bool:
        """What the agent was told is the opposite of what happened: somebody may have paid twice, or nobody at all."""
        return {self.told, self.outcome} == {"done", "failed"}
