"""The change numbers: one row for each store, raised by whoever changes what the console itself shows beside that store's records."""

from __future__ import annotations

from django.db import models


class Change(models.Model):
    """How often decisions or notes of one store have changed. Only that it moved means anything."""

    store = models.CharField(max_length=63, primary_key=True)
    number = models.BigIntegerField(default=0)

    class Meta:
        db_table = "console_change"

    def __str__(self) -> str:
        return f"{self.store}: {self.number}"
