"""Who was seen to hold an agent, and ends that were seen and are not ours: what Recall does not keep and only a watcher can know."""

from __future__ import annotations

from django.db import models


class HolderState(models.TextChoices):
    """What became of a holder's lease when it was last looked at."""

    LIVE = "live"
    EXPIRED = "expired"  # it stopped renewing; a frozen process may still thaw
    RELEASED = "released"  # handed over, or its process ended and Recall's child gave it back


class Observation(models.Model):
    """One holder of one agent, as somebody who watched saw it. Absent for the time nobody watched; written by `services/observe.py` alone.

    Times are the store's clock. Every write is one upsert that only widens what is there, so that many watchers leave one truth.
    """

    store = models.CharField(max_length=63)
    agent = models.CharField(max_length=255)
    holder = models.TextField()  # as the lease names it, shortened; text of others
    holder_digest = models.CharField(max_length=64)  # of the whole name, which has no limit
    lowest_epoch = models.BigIntegerField()
    highest_epoch = models.BigIntegerField()
    first_seen_at = models.DateTimeField()
    last_seen_at = models.DateTimeField()  # moves at most once a minute, while the lease is live
    state = models.CharField(max_length=16, choices=HolderState)
    silent_at = models.DateTimeField(null=True)  # since when it is not live; None while it is, or where nobody saw it go

    class Meta:
        db_table = "console_observation"
        constraints = [
            models.UniqueConstraint(fields=["store", "agent", "holder_digest"], name="observation_one_per_holder"),
            models.CheckConstraint(condition=models.Q(state__in=HolderState.values), name="observation_state_known"),
        ]

    @property
    def was_seen_live(self) -> bool:
        """Whether somebody saw it hold the agent; else it was over when it was first seen."""
        return self.state == HolderState.LIVE if self.silent_at is None else self.silent_at > self.first_seen_at

    def __str__(self) -> str:
        return f"{self.holder} of {self.store}/{self.agent}: {self.lowest_epoch}-{self.highest_epoch}"


class SeenEnd(models.Model):
    """An action that was seen open and became something else with no decision of ours: its agent, or a resume, wrote that. One row, however
    many watched; written by `services/ends.py` alone.

    The same table keeps what the last sweep saw open, to compare with: rows of a status `was started` or `was unknown`, which are no ends.
    """

    store = models.CharField(max_length=63)
    agent = models.CharField(max_length=255)
    seq = models.BigIntegerField()
    tool = models.TextField()
    status = models.CharField(max_length=16)  # done, failed, abandoned or unknown; `was ...`: see above
    written_epoch = models.BigIntegerField()  # of the metadata: the lease under which the end was written
    ended_at = models.BigIntegerField(null=True)  # as the record says, in nanoseconds, where they fit
    first_seen_at = models.DateTimeField()  # by the store's clock
    # Of its entry, once it has one: in the store's chain, or in the console's where the store could only be read.
    entry_number = models.BigIntegerField(null=True)

    class Meta:
        db_table = "console_seen_end"
        constraints = [
            models.UniqueConstraint(fields=["store", "agent", "seq", "status", "written_epoch"], name="seen_end_once"),
        ]
        indexes = [models.Index(fields=["id"], condition=models.Q(entry_number__isnull=True), name="seen_end_without_entry")]

    def __str__(self) -> str:
        return f"{self.store}/{self.agent}/{self.seq}: {self.status}"
