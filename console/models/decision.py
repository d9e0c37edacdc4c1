"""A person's or a resolver's decision about one open action, from the moment it is sent until it is written, withdrawn or refused."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import F, Q

from actions.records import ActionRef
from actions.redaction import redact_text
from console.models.action_key import ActionKey


class DecisionState(models.TextChoices):
    """Where a decision is. The first three are pending; the others are final."""

    PROPOSED = "proposed"  # waits for a second person
    HELD = "held"  # can be undone for some seconds
    WAITING = "waiting"  # on its way to the store: its agent is alive, or the store has not confirmed it yet
    WRITTEN = "written"  # stands in the agent's records
    WITHDRAWN = "withdrawn"  # taken back by a person before it was written
    REFUSED = "refused"  # could not be written; `why` says what stood in its way


PENDING_STATES = (DecisionState.PROPOSED, DecisionState.HELD, DecisionState.WAITING)


class DecisionOutcome(models.TextChoices):
    """What a decision may say. `later` is no decision: it is a note."""

    DONE = "done"
    FAILED = "failed"
    ABANDONED = "abandoned"


class WrittenBy(models.TextChoices):
    """Whose write made it `written`."""

    NOBODY = ""
    US = "us"  # our settle, with its turn and entry
    AGENT = "agent"  # the agent ended the action itself, with the same outcome


class Decision(models.Model):
    """One decision. Its row is committed before the store is asked, so that a crash on the way loses nothing.

    At most one pending decision per action. Every change of state is a conditional UPDATE whose row count is read. Reason, result and
    error are kept as they will be written, unredacted: never show them, show `shown_reason` and its like.
    """

    decision_id = models.CharField(max_length=64, unique=True)  # made with the form; the same id again is the same decision
    store = models.CharField(max_length=63)
    agent = models.CharField(max_length=255)
    seq = models.BigIntegerField()
    tool = models.TextField()
    outcome = models.CharField(max_length=16, choices=DecisionOutcome)
    reason = models.TextField()
    result = models.TextField(blank=True)
    error = models.TextField(blank=True)
    state = models.CharField(max_length=16, choices=DecisionState)
    why = models.TextField(blank=True)  # why it waits or was refused, in one sentence for a person
    by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", null=True)  # None: a resolver
    username = models.CharField(max_length=150)  # as it stands in the agent's records; `resolver:<name>` where a resolver decided
    actor = models.CharField(max_length=200)
    claim = models.CharField(max_length=64)  # digest without the status: it is delivered as long as this is the same
    content_digest = models.CharField(max_length=64)  # what the id stands for
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)
    next_try_at = models.DateTimeField(null=True)  # when the sweep may try; None once final
    attempts = models.IntegerField(default=0)
    entry_number = models.BigIntegerField(null=True)  # of the store's chain, once written by us
    turn_seq = models.BigIntegerField(null=True)  # the turn that its agent reads
    written_by = models.CharField(max_length=8, choices=WrittenBy, blank=True)
    # False only while its store has surely never been asked to write it, or answered that it did not: then it can be withdrawn unseen.
    may_be_written = models.BooleanField(default=True, db_default=True)
    evidence_id = models.CharField(max_length=40, blank=True, db_default="", default="")  # the verdict that it rests on
    # What stands before it, frozen when it was made: later versions of the policy loosen and tighten nothing.
    needs_second = models.BooleanField(default=False, db_default=False)
    needs_step_up = models.BooleanField(default=False, db_default=False)
    rule = models.TextField(blank=True, db_default="", default="")  # the policy's own words and version, for a person
    sentence = models.CharField(
        max_length=200, blank=True, db_default="", default=""
    )  # the call in our words, redacted; of proposals
    hold_s = models.PositiveIntegerField(default=0, db_default=0)
    held_until = models.DateTimeField(null=True)  # by the database's clock; can be undone until then
    second_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", null=True)
    second_username = models.CharField(max_length=150, blank=True, db_default="", default="")
    second_reason = models.TextField(blank=True, db_default="", default="")  # unredacted, like the reason
    second_at = models.DateTimeField(null=True)
    is_turned_down = models.BooleanField(default=False, db_default=False)  # by that second person; refused for good
    broke_glass_by = models.CharField(max_length=150, blank=True, db_default="", default="")
    broke_glass = models.TextField(blank=True, db_default="", default="")  # why no second person was waited for; unredacted
    # Which verdicts stood on the page when it was sent: their numbers. None: it was not sent from a page, or before this was kept.
    evidence_shown = models.JSONField(null=True)
    is_announced = models.BooleanField(default=False)  # the entry `waiting` stands in the store's chain

    class Meta:
        db_table = "console_decision"
        constraints = [
            models.UniqueConstraint(
                fields=["store", "agent", "seq"], condition=Q(state__in=[*PENDING_STATES]), name="decision_one_pending_per_action"
            ),
            models.CheckConstraint(condition=Q(state__in=DecisionState.values), name="decision_state_known"),
            models.CheckConstraint(condition=Q(outcome__in=DecisionOutcome.values), name="decision_outcome_known"),
            # Whatever code comes: nothing that needs a second person is on its way to a store without one.
            models.CheckConstraint(
                condition=Q(needs_second=False)
                | Q(second_at__isnull=False, is_turned_down=False)
                | ~Q(broke_glass="")
                | Q(written_by=WrittenBy.AGENT)
                | Q(state__in=[DecisionState.PROPOSED, DecisionState.WITHDRAWN, DecisionState.REFUSED]),
                name="decision_second_person",
            ),
            models.CheckConstraint(
                condition=Q(second_by__isnull=True) | Q(by__isnull=True) | ~Q(second_by=F("by")),
                name="decision_second_is_another",
            ),
        ]
        indexes = [
            models.Index(fields=["store", "agent", "seq", "-id"], name="decision_by_action"),
            models.Index(fields=["next_try_at"], condition=Q(state__in=[*PENDING_STATES]), name="decision_pending_due"),
            models.Index(ActionKey(), condition=Q(outcome=DecisionOutcome.FAILED), name="decision_failed_key"),
            models.Index(fields=["-created_at"], name="decision_newest"),
        ]

    def __str__(self) -> str:
        return f"{self.outcome} for {self.ref} by {self.username}: {self.state}"

    @property
    def ref(self) -> ActionRef:
        return ActionRef(self.store, self.agent, self.seq)

    @property
    def is_pending(self) -> bool:
        return self.state in PENDING_STATES

    @property
    def waits_for_store(self) -> bool:
        """`why` is what its store itself says, as errors.py writes it: only for those who may read that (access.sees_problems)."""
        return self.why.startswith(f"store {self.store}: ")

    @property
    def shown_reason(self) -> str:
        return redact_text(self.reason)

    @property
    def shown_second_reason(self) -> str:
        return redact_text(self.second_reason)

    @property
    def shown_broke_glass(self) -> str:
        return redact_text(self.broke_glass)

    @property
    def shown_rule(self) -> str:
        return redact_text(self.rule)

    @property
    def shown_result(self) -> str:
        return redact_text(self.result)

    @property
    def shown_error(self) -> str:
        return redact_text(self.error)
