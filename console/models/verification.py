"""What was found when a history was verified, and what was taken out of it."""

from __future__ import annotations

import json

from django.conf import settings
from django.db import models


class Verification(models.Model):
    """One walk through one history. `finished_at` is empty while it runs, and for ever where its worker died."""

    name = models.CharField(max_length=63)  # the store's, or `console`
    asked_by = models.CharField(max_length=160)  # `operator ana`, `system beat`
    started_at = models.DateTimeField(auto_now_add=True)
    told_at = models.DateTimeField(auto_now=True)  # when it last said how far it was
    finished_at = models.DateTimeField(null=True)
    entries = models.BigIntegerField(default=0)  # walked so far; at the end those that hold
    anchored = models.BigIntegerField(default=0)
    removed = models.BigIntegerField(default=0)
    broken = models.TextField(blank=True)  # integrity: the first entry that is wrong
    missing = models.TextField(blank=True)  # completeness: the first entry that is not there
    problem = models.TextField(blank=True)  # it could not be verified, or this console's own checkpoints do not hold
    is_known = models.BooleanField(default=True)  # False: the history could not be read, so nothing is known

    class Meta:
        db_table = "console_verification"
        indexes = [models.Index(fields=["name", "-id"], name="verification_newest")]

    def __str__(self) -> str:
        return f"verification of {self.name} at {self.started_at}"

    @property
    def is_intact(self) -> bool:
        return self.finished_at is not None and self.is_known and not (self.broken or self.missing or self.problem)


class ExportRecord(models.Model):
    """One export through the browser. The manifest is there once the last piece was handed over."""

    key = models.UUIDField(unique=True)
    by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    file = models.CharField(max_length=120)
    created_at = models.DateTimeField(auto_now_add=True)
    finished_at = models.DateTimeField(null=True)
    rows = models.BigIntegerField(default=0)
    manifest = models.TextField(blank=True)

    class Meta:
        db_table = "console_export"

    def __str__(self) -> str:
        return f"{self.file} by {self.by}"

    @property
    def left_out(self) -> str:
        """What its manifest says was kept back; empty where nothing was, or there is none yet."""
        said = json.loads(self.manifest).get("filter", {}) if self.manifest else {}
        return str(said.get("left out", ""))
