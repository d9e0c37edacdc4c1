"""Durable runs: one row each, their events, and the approvals that they wait for. What a run did stands in its agent's records, never here."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q


class RunStatus(models.TextChoices):
    """Where a run is (contract, API). The last three are final, until somebody resumes a run that failed or was cancelled."""

    RUNNING = "running"
    WAITING_APPROVAL = "waiting_approval"
    FAILED = "failed"
    DONE = "done"
    CANCELLED = "cancelled"


class Parked(models.TextChoices):
    """Why a running run is not advanced now; no worker is held meanwhile."""

    NO = ""
    OPEN_CALLS = "open_calls"  # a call of it is in doubt: settled first, by a resolver or a person
    LEASE = "lease"  # its agent's lease is still somebody's
    STORE = "store"  # its store, or the checkpoints' database, does not answer


class Undoing(models.TextChoices):
    """How far walking a failed or cancelled run backward has come."""

    NO = ""
    RUNNING = "running"
    STOPPED = "stopped"  # a compensation failed, or nobody knows whether it happened: a person has to say how to go on
    DONE = "done"


class Run(models.Model):
    """One run of a type. Its agent is called `run_id`, in `store`; its checkpoints' thread too. All that decides who advances it stands here.

    Every change is a conditional UPDATE whose row count is read. `token` is whose step counts: a worker that lost its claim writes nothing.
    """

    run_id = models.CharField(max_length=64, unique=True)
    store = models.CharField(max_length=63)
    type = models.CharField(max_length=63)
    type_version = models.PositiveIntegerField()
    input = models.TextField()  # JSON text, checked against the type's schema
    status = models.CharField(max_length=16, choices=RunStatus, default=RunStatus.RUNNING)
    parked = models.CharField(max_length=16, choices=Parked, blank=True, default=Parked.NO)
    problem = models.TextField(blank=True)  # why it failed or stands still, in one sentence, redacted
    result = models.TextField(blank=True)  # what it came to, redacted
    started_by = models.CharField(max_length=150)
    # Whose that name was then: names change, and are given again. None: the account is gone, or it was started before this was kept.
    starter = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, related_name="+", null=True)
    idempotency_key = models.CharField(max_length=255, blank=True)  # unique per person; the same key is the same run
    content = models.CharField(max_length=64)  # digest of type and input: the same key with other content is refused
    restart_of = models.ForeignKey("self", on_delete=models.PROTECT, null=True, related_name="restarts")
    steps = models.PositiveIntegerField(default=0)  # checkpoints written
    resumes = models.PositiveIntegerField(default=0)  # steps that were begun again after one was lost
    cost = models.DecimalField(max_digits=18, decimal_places=6, default=0)  # in the type's own unit
    busy_ms = models.PositiveBigIntegerField(default=0)  # time in steps; parked time is nobody's
    lost_steps = models.PositiveIntegerField(default=0)  # workers lost one after the other in the step that is due
    stepped_at = models.DateTimeField(null=True)  # when its newest step ended
    due_at = models.DateTimeField(null=True)  # when it may be advanced; None: not by itself
    queued_until = models.DateTimeField(null=True)  # a task was sent for it; another one only after this
    held_until = models.DateTimeField(null=True)  # somebody is advancing it; who died is forgotten after this
    token = models.CharField(max_length=32, blank=True)  # whose step counts
    cancel_asked_by = models.CharField(max_length=150, blank=True)  # taken note of between two steps
    cancel_reason = models.TextField(blank=True)
    undoing = models.CharField(max_length=16, choices=Undoing, blank=True, default=Undoing.NO)
    created_at = models.DateTimeField(auto_now_add=True)
    changed_at = models.DateTimeField(auto_now=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "console_run"
        constraints = [
            models.UniqueConstraint(
                fields=["started_by", "idempotency_key"], condition=~Q(idempotency_key=""), name="run_once_per_key"
            ),
        ]
        indexes = [
            models.Index(fields=["due_at"], condition=Q(due_at__isnull=False), name="run_due"),
            models.Index(fields=["-created_at", "-id"], name="run_newest"),
            models.Index(fields=["store", "run_id"], name="run_by_agent"),
        ]

    def __str__(self) -> str:
        return f"run {self.run_id} ({self.type}, {self.status})"


class RunEvent(models.Model):
    """What happened to a run, in order: started, step, resumed, parked, asked, answered, failed, cancelled ... Never changed.

    `kind` is of console/words.py RUN_EVENTS; `detail` is JSON text, redacted. Written in the transaction of what it tells of.
    """

    run = models.ForeignKey(Run, on_delete=models.PROTECT, related_name="events")
    number = models.PositiveIntegerField()  # from 1, without gaps
    at = models.DateTimeField()
    kind = models.CharField(max_length=32)
    by = models.CharField(max_length=150, blank=True)  # a person; empty: the run itself
    detail = models.TextField(default="{}")

    class Meta:
        db_table = "console_run_event"
        constraints = [models.UniqueConstraint(fields=["run", "number"], name="run_event_once")]

    def __str__(self) -> str:
        return f"{self.kind} ({self.run_id}, {self.number})"


class ApprovalState(models.TextChoices):
    """The first is open; the others are final. `expired` is nobody's denial, and is never told to the model as one."""

    PENDING = "pending"
    APPROVED = "approved"
    EDITED = "edited"
    REJECTED = "rejected"
    RESPONDED = "responded"
    EXPIRED = "expired"
    VOID = "void"  # its run was cancelled, failed or asks anew: an answer would reach nobody


class Approval(models.Model):
    """One call that a run may make only after a person said so. Bound to `digest`: of tool, whole arguments and the gate's rule.

    One row per asked call; a run goes on once every pending one of an interrupt is answered. Arguments are kept whole and shown redacted.
    """

    approval_id = models.CharField(max_length=32, unique=True)
    run = models.ForeignKey(Run, on_delete=models.PROTECT, related_name="approvals")
    interrupt_id = models.CharField(max_length=64)
    position = models.PositiveIntegerField(default=0)  # among the calls of one interrupt
    call_id = models.CharField(max_length=255, blank=True)
    tool = models.TextField()
    args = models.TextField()  # JSON text
    digest = models.CharField(max_length=64)
    description = models.TextField(blank=True)
    allowed = models.JSONField()  # of approve, edit, reject, respond
    needs_another = models.BooleanField(default=False)  # four eyes: not by who started the run
    asked_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True)  # None: it waits for ever
    state = models.CharField(max_length=16, choices=ApprovalState, default=ApprovalState.PENDING)
    answered_by = models.CharField(max_length=150, blank=True)
    answered_at = models.DateTimeField(null=True)
    message = models.TextField(blank=True)  # of a rejection or a response
    edited_args = models.TextField(blank=True)  # JSON text, where it was edited
    is_spent = models.BooleanField(default=False)  # the answer was handed in, and a checkpoint knows it

    class Meta:
        db_table = "console_approval"
        constraints = [
            models.UniqueConstraint(
                fields=["run", "interrupt_id", "position"], condition=Q(state="pending"), name="approval_asked_once"
            ),
        ]
        indexes = [
            models.Index(fields=["asked_at", "id"], condition=Q(state="pending"), name="approval_pending"),
            models.Index(fields=["expires_at"], condition=Q(state="pending", expires_at__isnull=False), name="approval_expiring"),
        ]

    def __str__(self) -> str:
        return f"approval of {self.tool} ({self.state})"
