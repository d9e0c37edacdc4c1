"""The asking about one action: when it is due, who is at it, and every verdict that came of it."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from actions.records import ActionRef
from console.models.action_key import ActionKey
from console.models.correction import Correction


class Inquiry(models.Model):
    """One row per action that was ever asked about. All that decides who asks next stands here; every change of it is conditional."""

    store = models.CharField(max_length=63)
    agent = models.CharField(max_length=255)
    seq = models.BigIntegerField()
    tool = models.TextField()
    due_at = models.DateTimeField(null=True)  # when it may be asked next; None: not by itself
    queued_until = models.DateTimeField(null=True)  # a task was sent for it; another one only after this
    asking_until = models.DateTimeField(null=True)  # somebody is asking; who died is forgotten after this
    asking_token = models.CharField(max_length=32, blank=True)  # whose answer counts
    resolver = models.CharField(max_length=63, blank=True)  # whom it is asking or asked last
    asked_for = models.CharField(max_length=150, blank=True)  # who pressed "Ask now" since the last question; empty: by itself
    first_asked_at = models.DateTimeField(null=True)
    asked = models.PositiveIntegerField(default=0)
    woken_at = models.DateTimeField(null=True)  # the provider called: a question that began before does not count as the answer
    misses = models.PositiveIntegerField(default=0)  # questions in a row without an answer
    problem = models.TextField(blank=True)  # why nobody could be asked, in one sentence
    first_holder = models.TextField(blank=True)  # of the lease when the action was first seen
    lost_at = models.DateTimeField(
        null=True
    )  # when its holder was first seen fenced off: released or taken over, not only run out
    given_up_at = models.DateTimeField(null=True)  # reported once
    recheck_done = models.CharField(max_length=64, blank=True)  # the last decision `failed` that was made due again
    recheck_of = models.CharField(max_length=64, blank=True)  # the decision `failed` that is looked at again
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        db_table = "console_inquiry"
        constraints = [models.UniqueConstraint(fields=["store", "agent", "seq"], name="inquiry_once")]
        indexes = [
            models.Index(fields=["due_at"], condition=Q(due_at__isnull=False), name="inquiry_due"),
            models.Index(fields=["resolver"], condition=Q(asking_until__isnull=False), name="inquiry_asking"),
            models.Index(ActionKey(), name="inquiry_key"),
        ]

    def __str__(self) -> str:
        return f"inquiry about {self.ref}"

    @property
    def ref(self) -> ActionRef:
        return ActionRef(self.store, self.agent, self.seq)


class StoredVerdict(models.Model):
    """What one question came to. Never changed. `evidence` is JSON text, redacted; `claim` the digest of what was asked about."""

    inquiry = models.ForeignKey(Inquiry, on_delete=models.PROTECT, related_name="verdicts")
    resolver = models.CharField(max_length=63)
    version = models.PositiveIntegerField()  # of its definition
    policy_version = models.PositiveIntegerField()  # 0: the defaults
    outcome = models.CharField(max_length=8)
    grade = models.CharField(max_length=8, blank=True)
    resolution = models.TextField()
    evidence = models.TextField()
    is_answered = models.BooleanField(default=True)  # False: nobody answered, which says nothing about the world
    is_negative = models.BooleanField(default=False)
    asked_at = models.DateTimeField()
    check_again_at = models.DateTimeField(null=True)
    has_given_up = models.BooleanField(default=False)
    asked_for = models.CharField(max_length=150, blank=True)
    claim = models.CharField(max_length=64)

    class Meta:
        db_table = "console_verdict"
        indexes = [
            models.Index(fields=["inquiry", "id"], name="verdict_by_inquiry"),
            models.Index(fields=["-asked_at"], name="verdict_newest"),
        ]

    def __str__(self) -> str:
        return f"{self.outcome} ({self.grade or 'no grade'}) by {self.resolver}"

    @property
    def evidence_id(self) -> str:
        return f"verdict-{self.pk}"


class Incident(models.Model):
    """What the world, or whoever was wrong, says against a written end. History is not rewritten; somebody has to act."""

    store = models.CharField(max_length=63)
    agent = models.CharField(max_length=255)
    seq = models.BigIntegerField()
    tool = models.TextField()
    verdict = models.OneToOneField(StoredVerdict, on_delete=models.PROTECT, null=True)  # found after all
    correction = models.OneToOneField(Correction, on_delete=models.PROTECT, null=True)  # or: somebody was wrong
    text = models.TextField()
    opened_at = models.DateTimeField(auto_now_add=True)
    closed_at = models.DateTimeField(null=True)
    closed_by = models.CharField(max_length=150, blank=True)
    closing_note = models.TextField(blank=True)

    class Meta:
        db_table = "console_incident"
        constraints = [
            models.UniqueConstraint(
                fields=["store", "agent", "seq"], condition=Q(closed_at__isnull=True), name="incident_one_open"
            ),
            models.CheckConstraint(
                condition=Q(verdict__isnull=False) ^ Q(correction__isnull=False), name="incident_has_one_cause"
            ),
        ]

    def __str__(self) -> str:
        return f"incident about {self.ref}"

    @property
    def ref(self) -> ActionRef:
        return ActionRef(self.store, self.agent, self.seq)
