"""What the console keeps about a person beside their account: how they want the pages, and where they are signed in."""

from __future__ import annotations

from django.conf import settings
from django.db import models


class Light(models.TextChoices):
    """How the pages are lit."""

    SYSTEM = ""  # as the system says
    LIGHT = "light"
    DARK = "dark"


class Preferences(models.Model):
    """How one person wants the pages. Without a row: the defaults."""

    user = models.OneToOneField(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, primary_key=True, related_name="preferences")
    time_zone = models.CharField(max_length=64, default="UTC")  # of the IANA database
    theme = models.CharField(max_length=8, choices=Light, blank=True)
    single_keys = models.BooleanField(default=True)

    class Meta:
        db_table = "console_preferences"
        constraints = [models.CheckConstraint(condition=models.Q(theme__in=Light.values), name="preferences_theme_known")]

    def __str__(self) -> str:
        return f"preferences of user {self.user_id}"


class SignIn(models.Model):
    """One session of one person: where it began. Whether it still runs, and when it was last used, says the session itself."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="sign_ins")
    session_key = models.CharField(max_length=40, unique=True)
    address = models.CharField(max_length=64, blank=True)  # as the server saw it, a proxy's where there is one
    browser = models.CharField(max_length=300, blank=True)  # what it says of itself
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        db_table = "console_sign_in"

    def __str__(self) -> str:
        return f"sign-in {self.pk} of user {self.user_id}"
