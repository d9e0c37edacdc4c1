"""Whom the console tells what happened: channels, and the outbox of what each of them is told."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Lower
from django.utils import timezone


class Event(models.TextChoices):
    """What people are told about."""

    MONEY = "money"  # a call that moves money is newly in doubt
    AGEING = "ageing"  # a call in doubt is at 80 % of the time its tool allows
    OVERDUE = "overdue"  # and at all of it
    APPROVAL = "approval"  # a decision waits for a second person
    BREAK_GLASS = "break_glass"  # somebody did not wait for the second person
    INCIDENT = "incident"  # the world contradicts a written end


class Way(models.TextChoices):
    """How a channel is reached."""

    EMAIL = "email"  # one person, at the address of their account
    WEBHOOK = "webhook"


class Channel(models.Model):
    """One place that is told. A person's own (email), or an admin's (webhook), which hears of every store and tool.

    `next_at` is its turn: whoever moves it in a conditional UPDATE sends, so that a channel hears at most one message a minute, however
    many workers there are and however much happens.
    """

    way = models.CharField(max_length=8, choices=Way)
    user = models.OneToOneField(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, null=True, related_name="channel")
    name = models.CharField(max_length=60, blank=True)
    address = models.BinaryField(null=True)  # a webhook's, encrypted: whoever knows it may write there
    host = models.CharField(max_length=255, blank=True)  # of it, to be shown
    events = models.JSONField(default=list)
    quiet_from = models.TimeField(null=True)  # in `time_zone`; both or none
    quiet_until = models.TimeField(null=True)
    time_zone = models.CharField(max_length=64, default="UTC")
    urgent_passes = models.BooleanField(default=True)  # incidents and break-glass are told in quiet hours, too
    next_at = models.DateTimeField(default=timezone.now)
    misses = models.PositiveIntegerField(default=0)  # messages in a row that were not taken
    problem = models.TextField(blank=True)  # why the last one was not, in one sentence
    sent_at = models.DateTimeField(null=True)
    username = models.CharField(max_length=150)  # who set it
    set_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        db_table = "console_channel"
        constraints = [
            models.CheckConstraint(condition=Q(way__in=Way.values), name="channel_way_known"),
            models.CheckConstraint(
                condition=Q(way=Way.EMAIL, user__isnull=False, address__isnull=True)
                | Q(way=Way.WEBHOOK, user__isnull=True, address__isnull=False),
                name="channel_of_a_person_or_an_address",
            ),
            models.CheckConstraint(
                condition=Q(quiet_from__isnull=True, quiet_until__isnull=True)
                | Q(quiet_from__isnull=False, quiet_until__isnull=False),
                name="channel_quiet_from_and_until",
            ),
            # Two that read alike could not be told apart, in the list or in the history.
            models.UniqueConstraint(Lower("name"), condition=Q(way=Way.WEBHOOK), name="channel_one_webhook_of_a_name"),
        ]

    def __str__(self) -> str:
        return f"channel {self.pk} ({self.way})"


class NoticeState(models.TextChoices):
    """Where a notice is."""

    DUE = "due"
    SENT = "sent"
    GIVEN_UP = "given_up"  # its channel took no message for too long


class Notice(models.Model):
    """One event told to one channel: once, because (event, ref, channel) is unique. What it says is made when it is sent; no argument is kept."""

    channel = models.ForeignKey(Channel, on_delete=models.CASCADE, related_name="notices")
    event = models.CharField(max_length=16, choices=Event)
    ref = models.CharField(max_length=400)  # the action as store/agent/seq, a decision's or an incident's id
    store = models.CharField(max_length=63, blank=True)
    tool = models.TextField(blank=True)
    agent = models.CharField(max_length=255, blank=True)
    seq = models.BigIntegerField(default=0)
    state = models.CharField(max_length=8, choices=NoticeState, default=NoticeState.DUE)
    found_at = models.DateTimeField(auto_now_add=True)
    done_at = models.DateTimeField(null=True)  # when it was sent or given up

    class Meta:
        db_table = "console_notice"
        constraints = [
            models.UniqueConstraint(fields=["event", "ref", "channel"], name="notice_once"),
            models.CheckConstraint(condition=Q(event__in=Event.values), name="notice_event_known"),
            models.CheckConstraint(condition=Q(state__in=NoticeState.values), name="notice_state_known"),
        ]
        indexes = [models.Index(fields=["channel", "id"], condition=Q(state=NoticeState.DUE), name="notice_due")]

    def __str__(self) -> str:
        return f"{self.event} of {self.ref}: {self.state}"
