"""What the console does about one tool's open calls: which resolver is asked, how long things take, which argument is what."""

from __future__ import annotations

from django.conf import settings
from django.db import models

DEFAULT_SLA_S = 4 * 3_600


class Mode(models.TextChoices):
    """What a resolver's exact answer may do."""

    PROPOSE = "propose"  # it is shown; a person decides
    SETTLE = "settle"  # it is written without a person, where it was found by our key and everything agrees


class Weight(models.TextChoices):
    """A yes or no that may also be left to the tool's name."""

    BY_NAME = ""
    YES = "yes"
    NO = "no"


class Policy(models.Model):
    """One version of a tool's policy. Rows are never changed: a change is a new version, the highest counts."""

    tool = models.TextField()
    version = models.PositiveIntegerField()
    resolver = models.CharField(max_length=63, blank=True)  # a definition's name; empty: nobody can be asked
    mode = models.CharField(max_length=8, choices=Mode, default=Mode.PROPOSE)
    accepts_strong = models.BooleanField(default=False)
    tool_timeout_s = models.PositiveIntegerField(default=300)
    settle_window_s = models.PositiveIntegerField(default=3_600)
    retention_s = models.PositiveIntegerField(default=30 * 86_400)
    give_up_after_s = models.PositiveIntegerField(default=3 * 86_400)
    recipient = models.CharField(max_length=200, blank=True)  # names of arguments; empty: the usual ones
    amount = models.CharField(max_length=200, blank=True)
    currency = models.CharField(max_length=200, blank=True)
    reference = models.CharField(max_length=200, blank=True)
    is_minor = models.BooleanField(default=False)
    moves_money = models.CharField(max_length=3, choices=Weight, blank=True)
    is_irreversible = models.CharField(max_length=3, choices=Weight, blank=True)
    compensation = models.TextField(blank=True)  # how an effect is taken back, in words
    second_person_when = models.TextField(blank=True, db_default="", default="")  # CEL over the call; empty: never
    step_up_when = models.TextField(
        blank=True, db_default="", default=""
    )  # the same: when they must have proved lately who they are
    hold_s = models.PositiveIntegerField(db_default=0, default=0)  # how long a decision can be undone; 0: not at all
    sla_s = models.PositiveIntegerField(
        db_default=DEFAULT_SLA_S, default=DEFAULT_SLA_S
    )  # in doubt longer than this, people are told
    summary = models.CharField(
        max_length=200, blank=True, default="", db_default=""
    )  # the sentence of its calls; empty: by name and arguments
    redacted = models.TextField(blank=True, default="", db_default="")  # names of arguments that are hidden beside the usual ones
    by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    username = models.CharField(max_length=150)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        db_table = "console_policy"
        constraints = [
            models.UniqueConstraint(fields=["tool", "version"], name="policy_version"),
            models.CheckConstraint(condition=models.Q(mode__in=Mode.values), name="policy_mode_known"),
        ]

    def __str__(self) -> str:
        return f"policy {self.version} of {self.tool}"

    @property
    def redacted_names(self) -> tuple[str, ...]:
        """One by one, as they were typed: separated by commas, spaces or lines."""
        return tuple(dict.fromkeys(self.redacted.replace(",", " ").split()))
