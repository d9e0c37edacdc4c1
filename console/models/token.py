"""Bearer tokens of the API. Only their hashes are kept."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q


class Token(models.Model):
    """A user's token acts as that user; an agent's token reads the decisions about that agent's own actions and nothing else."""

    hash = models.CharField(max_length=64, unique=True)  # SHA-256 of a random text: nothing to guess, so nothing to slow down
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, null=True, related_name="tokens")
    store = models.CharField(max_length=63, blank=True)
    agent = models.CharField(max_length=255, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        db_table = "console_token"
        constraints = [
            models.CheckConstraint(
                condition=Q(user__isnull=False, store="", agent="") | (Q(user__isnull=True) & ~Q(store="") & ~Q(agent="")),
                name="token_of_a_user_or_an_agent",
            )
        ]

    def __str__(self) -> str:
        return f"token {self.pk} of {f'agent {self.store}/{self.agent}' if self.agent else f'user {self.user_id}'}"
