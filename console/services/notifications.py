"""Telling people what happened: what the outbox holds for a channel is composed into one message and sent, by tasks of its own.

A message holds words of ours, counts, plain names of tools and links to this console: never an argument, a reason or anything else that
an agent wrote. It arrives at least once: a channel that took it and did not say so is told again.
"""

from __future__ import annotations

import logging
import re
import zoneinfo
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from smtplib import SMTPException

from django.conf import settings
from django.contrib.auth.models import User
from django.core.mail import EmailMessage
from django.db.models import F
from django.utils import timezone

from actions.redaction import redact_text
from actions.resolvers.web import WebError, WebLimits, post_json
from console.addresses import action_address
from console.models import Channel, Event, Notice, NoticeState, Way
from console.services.channels import InvalidChannel
from console.services.definitions import require_admin
from console.services.notices import MOST_COUNTED
from console.services.sealing import CannotUnseal, unseal

log = logging.getLogger(__name__)

URGENT = frozenset({Event.INCIDENT, Event.BREAK_GLASS})
"""What passes through quiet hours, where the channel chose so."""
PER_MESSAGE = timedelta(minutes=1)
"""A channel hears at most so often; what happens in between becomes one summary."""
GIVE_UP_AFTER = timedelta(hours=24)
_CLAIM = timedelta(minutes=2)  # longer than any sending takes; whoever died while sending is forgotten after it
_LONGEST_PAUSE = timedelta(minutes=30)
_LINES = 5  # more than so many notices are counted, not listed
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", re.ASCII)
WORDS: Mapping[str, tuple[str, str]] = {
    Event.INCIDENT: ("an incident: found after it was written as failed", "incidents: found after they were written as failed"),
    Event.BREAK_GLASS: ("a decision written without the second person", "decisions written without the second person"),
    Event.APPROVAL: ("a decision waits for a second person", "decisions wait for a second person"),
    Event.OVERDUE: ("a call in doubt is over its time", "calls in doubt are over their time"),
    Event.AGEING: ("a call in doubt will soon be over its time", "calls in doubt will soon be over their time"),
    Event.MONEY: ("a call that moves money is in doubt", "calls that move money are in doubt"),
}
"""One and several, in the order of a message: what presses most stands first."""


class NotTaken(Exception):
    """The channel did not take the message, or nobody knows whether it did; one sentence without address or password."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What is sent: words of ours."""

    subject: str
    text: str


def due_channels() -> list[int]:
    """The channels whose turn it is and that have something to be told; quiet hours are looked at when it is sent."""
    waiting = Notice.objects.filter(state=NoticeState.DUE).values("channel_id")
    return list(Channel.objects.filter(pk__in=waiting, next_at__lte=timezone.now()).order_by("pk").values_list("pk", flat=True))


def send_due(pk: int, *, now: datetime | None = None) -> int:
    """Send one channel what it is due, as one message; how many notices that told. Whoever else is at it goes on alone.

    No transaction and no connection of the database is held while the message is on its way. Where it is not known whether it arrived, the
    same notices are sent again, later and later, and given up after GIVE_UP_AFTER; the channel's page says so.
    """
    now = now or timezone.now()
    if Channel.objects.filter(pk=pk, next_at__lte=now).update(next_at=now + _CLAIM) != 1:
        return 0
    channel = Channel.objects.select_related("user").filter(pk=pk).first()
    if channel is None:  # removed this very moment
        return 0
    due = Notice.objects.filter(channel=channel, state=NoticeState.DUE)
    if is_quiet(channel, now):
        due = due.filter(event__in=URGENT) if channel.urgent_passes else due.none()
    notices = list(due.order_by("pk")[:MOST_COUNTED])
    if not notices:
        Channel.objects.filter(pk=pk).update(next_at=now + PER_MESSAGE)
        return 0
    pks = [notice.pk for notice in notices]
    try:
        _send(channel, compose(notices))
    except NotTaken as exc:
        _missed(channel, pks, str(exc), now)
        return 0
    Notice.objects.filter(pk__in=pks, state=NoticeState.DUE).update(state=NoticeState.SENT, done_at=timezone.now())
    Channel.objects.filter(pk=pk).update(next_at=now + PER_MESSAGE, misses=0, problem="", sent_at=now)
    return len(notices)


def send_test(pk: int, *, by: User) -> None:
    """Send a message that says it is a test; a webhook's by an admin, a mail by its own person. At most one a minute goes to a channel.

    Raises:
        PermissionDenied, InvalidChannel: nothing was sent.
        NotTaken: it was not taken, or nobody knows.
    """
    channel = Channel.objects.select_related("user").filter(pk=pk).first()
    if channel is None or channel.user_id != by.pk:
        require_admin(by)
    if channel is None or channel.way != (Way.EMAIL if channel.user_id == by.pk else Way.WEBHOOK):
        raise InvalidChannel("test", "there is no such channel")
    now = timezone.now()
    if Channel.objects.filter(pk=pk, next_at__lte=now).update(next_at=now + timedelta(seconds=20)) != 1:
        raise InvalidChannel("test", "a message went there less than a minute ago; try again in a minute")
    text = f"This is a test that {_name(by)} asked for. Nothing happened.\n{settings.BASE_URL}/"
    try:
        _send(channel, Message(subject="Settle: a test", text=text))
    except NotTaken as exc:
        Channel.objects.filter(pk=pk).update(problem=str(exc))
        raise
    Channel.objects.filter(pk=pk).update(problem="", misses=0, sent_at=now)


def is_quiet(channel: Channel, now: datetime) -> bool:
    """Whether it is in its quiet hours, which may reach over midnight."""
    if channel.quiet_from is None or channel.quiet_until is None:
        return False
    here = now.astimezone(zoneinfo.ZoneInfo(channel.time_zone)).time()
    if channel.quiet_from < channel.quiet_until:
        return channel.quiet_from <= here < channel.quiet_until
    return here >= channel.quiet_from or here < channel.quiet_until


def compose(notices: list[Notice]) -> Message:
    """What a channel is told about these: each by itself where they are few, else counted."""
    counts = Counter(notice.event for notice in notices)
    said = [_counted(event, counts[event]) for event in WORDS if counts[event]]
    rest = len(notices) - next(counts[event] for event in WORDS if counts[event])
    subject = f"Settle: {said[0]}" + (f", and {rest:,} more" if rest else "")
    if len(notices) > _LINES:
        lines = [f"- {text}" for text in said]
    else:
        order = list(WORDS)
        lines = [_one(notice) for notice in sorted(notices, key=lambda notice: (order.index(notice.event), notice.pk))]
    return Message(subject=subject, text="\n".join([*lines, f"All that is open: {settings.BASE_URL}/"]))


def plain_tool(tool: str) -> str:
    """A tool's name where it is plainly one, else `a tool`: agents choose it, and a message is read in other programs."""
    return tool if _PLAIN.fullmatch(tool) and redact_text(tool) == tool else "a tool"


def _counted(event: str, count: int) -> str:
    one, several = WORDS[event]
    return one if count == 1 else f"{count:,} {several}"


def _one(notice: Notice) -> str:
    address = action_address(notice.store, notice.agent, notice.seq)
    if notice.event == Event.INCIDENT and notice.ref.startswith("incident-"):
        address = f"/incidents/{notice.ref.removeprefix('incident-')}/"
    return f"- {WORDS[notice.event][0]} ({plain_tool(notice.tool)}): {settings.BASE_URL}{address or '/'}"


def _name(user: User) -> str:
    name: str = user.get_username()
    return name if _PLAIN.fullmatch(name) else "somebody"


def _send(channel: Channel, message: Message) -> None:
    """Raises NotTaken."""
    if channel.way == Way.EMAIL:
        _mail(channel, message)
    else:
        _post(channel, message)


def _mail(channel: Channel, message: Message) -> None:
    user = channel.user
    if user is None or not user.is_active or not user.email:
        raise NotTaken("the account has no mail address, or is not active")
    try:
        EmailMessage(message.subject, message.text, to=[user.email], headers={"Auto-Submitted": "auto-generated"}).send()
    except SMTPException as exc:
        raise NotTaken(f"the mail server did not take it ({type(exc).__name__})") from exc
    except (OSError, ValueError) as exc:
        raise NotTaken(f"the mail server was not reached, or did not answer ({type(exc).__name__})") from exc


def _post(channel: Channel, message: Message) -> None:
    try:
        address = unseal(channel.address or b"")
    except CannotUnseal as exc:
        raise NotTaken("its address cannot be read: no key of SECRETS_KEY opens it; remove it and set it again") from exc
    try:
        answer = post_json(
            address,
            {"text": f"{message.subject}\n{message.text}"},
            allowed_hosts=settings.RESOLVER_ALLOWED_HOSTS,
            limits=WebLimits(seconds=settings.NOTIFY_WEBHOOK_S, body_bytes=65_536),
        )
    except WebError as exc:
        raise NotTaken(str(exc)) from exc
    if not 200 <= answer.status < 300:
        raise NotTaken(f"{channel.host} answered with status {answer.status}")


def _missed(channel: Channel, pks: list[int], problem: str, now: datetime) -> None:
    """Later and later; what is too old is given up, and stays to be seen."""
    pause = min(PER_MESSAGE * 2 ** min(channel.misses, 10), _LONGEST_PAUSE)
    Channel.objects.filter(pk=channel.pk).update(next_at=now + pause, misses=F("misses") + 1, problem=problem[:500])
    old = Notice.objects.filter(pk__in=pks, state=NoticeState.DUE, found_at__lt=now - GIVE_UP_AFTER)
    if gone := old.update(state=NoticeState.GIVEN_UP, done_at=now):
        log.warning("%s notices of channel %s were given up: %s", gone, channel.pk, problem)
