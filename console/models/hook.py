"""Where a provider calls us: one address for each resolver, and what its calls are signed with."""

from __future__ import annotations

from django.db import models


class Provider(models.TextChoices):
    """Who calls: whose header and whose body."""

    STRIPE = "stripe"
    GENERIC = "generic"


class Hook(models.Model):
    """One resolver's address. Token and secret are shown once, when they are made; the token is kept as a hash, the secret encrypted."""

    name = models.CharField(max_length=63, primary_key=True)  # the definition's
    provider = models.CharField(max_length=16, choices=Provider)
    token_hash = models.CharField(max_length=64, unique=True)  # SHA-256 of a random text
    secret = models.BinaryField()
    username = models.CharField(max_length=150)  # who set it
    set_at = models.DateTimeField()
    called_at = models.DateTimeField(null=True)  # the last call with a good signature: nothing else of it is kept
    minute = models.BigIntegerField(default=0)  # since 1970, in which `calls` were counted
    calls = models.PositiveIntegerField(default=0)

    class Meta:
        db_table = "console_hook"
        constraints = [models.CheckConstraint(condition=models.Q(provider__in=Provider.values), name="hook_provider_known")]

    def __str__(self) -> str:
        return f"hook of {self.name}"
