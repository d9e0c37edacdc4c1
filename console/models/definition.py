"""Resolvers as admins define them in the browser."""

from __future__ import annotations

from django.conf import settings
from django.db import models


class Definition(models.Model):
    """One version of a resolver. Rows are never changed: a change is a new version, the highest counts.

    A verdict names the version that it came from; two negatives count together only where both are of one version.
    """

    name = models.CharField(max_length=63)  # stands in the agents' records: `resolver <name>: ...`
    version = models.PositiveIntegerField()
    kind = models.CharField(max_length=20)
    options = models.TextField()  # a JSON object of texts, by the kind's fields; no secrets
    per_minute = models.PositiveIntegerField(default=60)  # questions; the provider's own limit
    at_once = models.PositiveIntegerField(default=4)
    is_enabled = models.BooleanField(default=True)
    secrets_set = models.TextField(blank=True, db_default="", default="")  # names of the fields set with it, parted by commas
    by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    username = models.CharField(max_length=150)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        db_table = "console_definition"
        constraints = [models.UniqueConstraint(fields=["name", "version"], name="definition_version")]

    def __str__(self) -> str:
        return f"resolver {self.name}, version {self.version}"


class Secret(models.Model):
    """One credential of a resolver, encrypted with SECRETS_KEY. Write-only: nothing shows it, no version keeps an old one."""

    name = models.CharField(max_length=63)  # the definition's
    field = models.CharField(max_length=63)
    ciphertext = models.BinaryField()
    username = models.CharField(max_length=150)  # who set it
    set_at = models.DateTimeField(auto_now=True)

    class Meta:
        db_table = "console_secret"
        constraints = [models.UniqueConstraint(fields=["name", "field"], name="secret_once")]

    def __str__(self) -> str:
        return f"secret {self.field} of {self.name}"


class Pace(models.Model):
    """When a resolver's provider may be asked next. Its row is locked by whoever takes a turn, for the moment that takes."""

    name = models.CharField(max_length=63, primary_key=True)  # the definition's
    next_at = models.DateTimeField()

    class Meta:
        db_table = "console_pace"

    def __str__(self) -> str:
        return f"pace of {self.name}"
