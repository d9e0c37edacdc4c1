"""Decision ids that are used up. One id is one decision or one note, whichever table that one stands in."""

from __future__ import annotations

from django.db import models


class DecisionId(models.Model):
    """Inserted in the transaction that keeps a decision or a note: of two at the same instant, the key lets one in."""

    id = models.CharField(max_length=64, primary_key=True)

    class Meta:
        db_table = "console_decision_id"

    def __str__(self) -> str:
        return self.id
