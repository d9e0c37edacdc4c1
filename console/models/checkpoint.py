"""Signed checkpoints of the histories, and where each has been sent."""

from __future__ import annotations

from django.db import models


class StoredCheckpoint(models.Model):
    """One checkpoint as it was signed. Never changed. Worth what its copies elsewhere are worth: this database can be altered too."""

    name = models.CharField(max_length=63)  # the store's, or `console`
    chain = models.TextField()
    serial = models.BigIntegerField()
    number = models.BigIntegerField()
    line = models.TextField()
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        db_table = "console_checkpoint"
        constraints = [models.UniqueConstraint(fields=["name", "chain", "serial"], name="checkpoint_serial")]
        indexes = [models.Index(fields=["name", "-id"], name="checkpoint_newest")]

    def __str__(self) -> str:
        return f"checkpoint {self.serial} of {self.chain}: {self.number} entries"


class CheckpointDelivery(models.Model):
    """That one checkpoint is to reach one place outside. Sent in the order of the checkpoints, at least once."""

    checkpoint = models.ForeignKey(StoredCheckpoint, on_delete=models.PROTECT, related_name="deliveries")
    sink = models.TextField()  # as AUDIT_ANCHORS names it
    sent_at = models.DateTimeField(null=True)
    next_try_at = models.DateTimeField()
    attempts = models.IntegerField(default=0)
    problem = models.TextField(blank=True)  # why the last attempt failed

    class Meta:
        db_table = "console_checkpoint_delivery"
        constraints = [models.UniqueConstraint(fields=["checkpoint", "sink"], name="checkpoint_once_a_sink")]
        indexes = [models.Index(fields=["sink", "id"], condition=models.Q(sent_at__isnull=True), name="checkpoint_unsent")]

    def __str__(self) -> str:
        return f"{self.checkpoint} to {self.sink}"
