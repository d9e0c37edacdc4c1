"""How many calls were in doubt in each store when it last answered: what is left to say while it does not."""

from __future__ import annotations

from django.db import models


class KnownCount(models.Model):
    """One row for each store, for all processes and across restarts. Counted over every tool: only for those who may see every tool."""

    store = models.CharField(max_length=63, primary_key=True)
    in_doubt = models.IntegerField()
    is_capped = models.BooleanField()  # there were more rows than are read at once, so it is at least so many
    counted_at = models.DateTimeField()  # by the clock of this database

    class Meta:
        db_table = "console_known_count"

    def __str__(self) -> str:
        return f"{self.store}: {self.in_doubt} in doubt at {self.counted_at}"
