"""A filter of the queue under a name, its owner's or everybody's; and which one somebody's queue begins with."""

from __future__ import annotations

from django.conf import settings
from django.db import models

MAX_NAME_CHARS = 60
MAX_QUERY_CHARS = 2_000


class SavedView(models.Model):
    """A name for a filter. `query` is the filter as it stands in the queue's address, percent-encoded, without page or opened action."""

    name = models.CharField(max_length=MAX_NAME_CHARS)
    query = models.CharField(max_length=MAX_QUERY_CHARS)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    is_shared = models.BooleanField(default=False)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        db_table = "console_saved_view"
        constraints = [models.UniqueConstraint(fields=["owner", "name"], name="saved_view_name")]

    def __str__(self) -> str:
        return f"view {self.name!r} of {self.owner_id}"


class FirstView(models.Model):
    """With which view a person's queue begins. Gone with the view."""

    user = models.OneToOneField(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, primary_key=True, related_name="+")
    view = models.ForeignKey(SavedView, on_delete=models.CASCADE, related_name="+")

    class Meta:
        db_table = "console_first_view"

    def __str__(self) -> str:
        return f"view {self.view_id} first for {self.user_id}"
