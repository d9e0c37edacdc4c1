"""Who has which role, and where. What a role allows stands in access.py."""

from __future__ import annotations

from django.conf import settings
from django.db import models


class Role(models.TextChoices):
    """What a person may be. Roles add up."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    APPROVER = "approver"
    AUDITOR = "auditor"
    ADMIN = "admin"


class Grant(models.Model):
    """One role of one user. An empty store means every store, an empty tool every tool."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="grants")
    role = models.CharField(max_length=16, choices=Role)
    store = models.CharField(max_length=63, blank=True)
    tool = models.CharField(max_length=255, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        db_table = "console_grant"
        constraints = [
            models.UniqueConstraint(fields=["user", "role", "store", "tool"], name="grant_once"),
            models.CheckConstraint(condition=models.Q(role__in=Role.values), name="grant_role_known"),
        ]

    def __str__(self) -> str:
        return f"{self.role} on {self.store or 'every store'}, {self.tool or 'every tool'}"
