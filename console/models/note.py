"""What somebody noted about an action: that it cannot be decided yet, or what was heard about it, also after it ended."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q

from actions.records import ActionRef
from actions.redaction import redact_text


class Note(models.Model):
    """A text, and perhaps a time to look again. Writes nothing to the agent's records and conflicts with nothing. Never changed."""

    decision_id = models.CharField(max_length=64, unique=True)  # the form's, so that a double submit is one note
    store = models.CharField(max_length=63)
    agent = models.CharField(max_length=255)
    seq = models.BigIntegerField()
    tool = models.TextField()
    text = models.TextField()  # unredacted, like a decision's reason
    look_again_at = models.DateTimeField(null=True)
    by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    username = models.CharField(max_length=150)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        db_table = "console_note"
        indexes = [
            models.Index(fields=["store", "agent", "seq", "-id"], name="note_by_action"),
            models.Index(fields=["look_again_at"], condition=Q(look_again_at__isnull=False), name="note_look_again"),
        ]

    def __str__(self) -> str:
        return f"note on {self.ref} by {self.username}"

    @property
    def ref(self) -> ActionRef:
        return ActionRef(self.store, self.agent, self.seq)

    @property
    def shown_text(self) -> str:
        return redact_text(self.text)
