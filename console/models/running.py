"""What the processes of a deployment leave for each other to read: when sweeps ran, what stores were like, what was counted."""

from __future__ import annotations

from django.db import models


class Sweep(models.Model):
    """When one sweep last ran to its end: one row for each sweep, written by whichever worker ran it."""

    name = models.CharField(max_length=32, primary_key=True)
    ran_at = models.DateTimeField()  # by the clock of this database

    class Meta:
        db_table = "console_sweep"

    def __str__(self) -> str:
        return f"{self.name} at {self.ran_at}"


class StoreLook(models.Model):
    """What a sweep last saw of one store. Counted over every tool: only for those who may see every tool."""

    store = models.CharField(max_length=63, primary_key=True)
    is_up = models.BooleanField()
    looked_at = models.DateTimeField()  # by the clock of this database
    entries = models.BigIntegerField(default=0)  # number of the newest entry of its history when it last answered
    states = models.TextField(default="{}")  # JSON: how many open actions in each state when it last answered
    is_capped = models.BooleanField(default=False)  # there were more rows than are read at once

    class Meta:
        db_table = "console_store_look"

    def __str__(self) -> str:
        return f"{self.store}: {'up' if self.is_up else 'down'} at {self.looked_at}"


class Tally(models.Model):
    """A number that only grows, over all processes: one row for each name and its labels (JSON, in the order of console/services/tallies.py)."""

    name = models.CharField(max_length=64)
    labels = models.CharField(max_length=400)
    value = models.FloatField()

    class Meta:
        db_table = "console_tally"
        constraints = [models.UniqueConstraint(fields=["name", "labels"], name="tally_once")]

    def __str__(self) -> str:
        return f"{self.name}{self.labels}: {self.value}"
