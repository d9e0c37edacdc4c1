"""Who is at an action, so that two people do not look at the same call; and what one handed to another."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q

from actions.records import ActionRef
from actions.redaction import redact_text


class ClaimEnd(models.TextChoices):
    """How a claim ended. While it has no end it is live, until it expires."""

    NOT = ""
    RELEASED = "released"  # by whoever had it
    TIMED_OUT = "timed_out"  # nobody worked on it for CLAIM_MINUTES; noticed by whoever came next
    TAKEN_OVER = "taken_over"  # by somebody else, who saw whose it was
    HANDED_OVER = "handed_over"  # by whoever had it, to a colleague
    CLOSED = "closed"  # the action ended


class HandOver(models.Model):
    """Calls that one person handed to another, with a note. Shown to the receiver until dismissed."""

    handover_id = models.CharField(max_length=64, unique=True)  # the form's, so that a double submit is one hand-over
    by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    username = models.CharField(max_length=150)
    to = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    text = models.TextField(blank=True)  # unredacted, like a note
    created_at = models.DateTimeField(auto_now_add=True)
    dismissed_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "console_hand_over"
        indexes = [models.Index(fields=["to"], condition=Q(dismissed_at__isnull=True), name="hand_over_undismissed")]

    def __str__(self) -> str:
        return f"hand-over by {self.username}"

    @property
    def shown_text(self) -> str:
        return redact_text(self.text)


class Claim(models.Model):
    """One person's claim of one action. At most one without an end per action; ended ones stay, as the record of who had it when.

    It binds nobody: whoever decides first has decided. Every change is a conditional UPDATE whose row count is read.
    """

    store = models.CharField(max_length=63)
    agent = models.CharField(max_length=255)
    seq = models.BigIntegerField()
    tool = models.TextField()
    by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    username = models.CharField(max_length=150)
    claimed_at = models.DateTimeField()
    expires_at = models.DateTimeField()  # moved on by whoever has it, working on the action
    taken_from = models.CharField(max_length=150, blank=True)  # who had it before, where it was taken over or handed over
    hand_over = models.ForeignKey(HandOver, on_delete=models.PROTECT, related_name="claims", null=True)
    ended_at = models.DateTimeField(null=True)
    ended = models.CharField(max_length=16, choices=ClaimEnd, blank=True)
    ended_by = models.CharField(max_length=150, blank=True)

    class Meta:
        db_table = "console_claim"
        constraints = [
            models.UniqueConstraint(
                fields=["store", "agent", "seq"], condition=Q(ended_at__isnull=True), name="claim_one_per_action"
            ),
            models.CheckConstraint(condition=Q(ended__in=ClaimEnd.values), name="claim_end_known"),
        ]
        indexes = [models.Index(fields=["by"], condition=Q(ended_at__isnull=True), name="claim_by_person")]

    def __str__(self) -> str:
        return f"claim of {self.ref} by {self.username}"

    @property
    def ref(self) -> ActionRef:
        return ActionRef(self.store, self.agent, self.seq)
