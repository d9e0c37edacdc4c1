"""Who is told what happened, and when: webhooks that an admin sets, and each person's own mail.

An address is sealed, and neither shown nor entered again; of it the history says the host.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import time as time_of_day
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.utils import timezone

from actions.errors import ActionsError
from actions.resolvers.web import AddressRefused, parse_address
from actions.rules import has_visible_text
from console.models import Channel, Event, Notice, NoticeState, Way
from console.services import journal
from console.services.definitions import require_admin
from console.services.notices import MOST_COUNTED
from console.services.people import time_zones
from console.services.sealing import seal

_PLAIN_NAME = re.compile(r"[\w .,:#()/+-]{1,60}")
LABELS: Mapping[str, str] = {
    Event.MONEY: "a call that moves money is newly in doubt",
    Event.AGEING: "a call in doubt is at 80 % of the time its tool allows",
    Event.OVERDUE: "a call in doubt is over the time its tool allows",
    Event.APPROVAL: "a decision waits for a second person",
    Event.BREAK_GLASS: "a decision was written without the second person",
    Event.INCIDENT: "an incident: the world contradicts what was written",
}
"""What a person chooses from."""


class InvalidChannel(ActionsError):
    """What was asked for breaks a rule; `.field` names where. Nothing was stored."""

    def __init__(self, field: str, problem: str) -> None:
        self.field = field
        super().__init__(problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quiet:
    """Hours in which a channel is left alone. `start` None: there are none."""

    start: time_of_day | None = None
    end: time_of_day | None = None
    urgent_passes: bool = True

    @classmethod
    def parse(cls, start: str, end: str, *, urgent_passes: bool) -> Quiet:
        """Two times as `22:00`, or neither. Raises InvalidChannel."""
        if not start and not end:
            return cls(urgent_passes=urgent_passes)
        try:
            first, last = (time_of_day.fromisoformat(text) for text in (start, end))
        except ValueError as exc:
            raise InvalidChannel("quiet", "two times such as 22:00 and 07:00, or neither") from exc
        if first == last or first.tzinfo or last.tzinfo:
            raise InvalidChannel("quiet", "two different times such as 22:00 and 07:00, or neither")
        return cls(start=first, end=last, urgent_passes=urgent_passes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelLine:
    """A channel as its page shows it."""

    channel: Channel
    waiting: int
    given_up: int


def list_webhooks(*, by: User) -> list[ChannelLine]:
    """Every webhook by name, and how many notices wait or were given up. Three statements. Raises PermissionDenied."""
    require_admin(by)
    rows = list(Channel.objects.filter(way=Way.WEBHOOK).defer("address").order_by("name", "pk"))
    return [_line(row, counts) for row, counts in zip(rows, _counts(rows), strict=True)]


def own_channel(user: User) -> ChannelLine | None:
    """How this person is told; None where they chose nothing."""
    row = Channel.objects.filter(user=user).first()
    return _line(row, _counts([row])[0]) if row is not None else None


def add_webhook(name: str, address: str, events: Iterable[str], quiet: Quiet, *, time_zone: str = "UTC", by: User) -> Channel:
    """Tell this address from now on. It is checked, but not asked: a test message does that.

    Raises:
        PermissionDenied, InvalidChannel: nothing was stored.
    """
    require_admin(by)
    name = name.strip()
    if not _PLAIN_NAME.fullmatch(name) or not has_visible_text(name):
        raise InvalidChannel("name", "1 to 60 letters, digits or spaces, to know it by")
    host = _checked_host(address.strip())
    fields = _fields(events, quiet, time_zone)
    try:
        with transaction.atomic():
            row = Channel.objects.create(
                way=Way.WEBHOOK, name=name, address=seal(address.strip()), host=host, username=by.get_username(), **fields
            )
            _enter(journal.admin(by), row, {}, _in_entry(row))
    except IntegrityError as exc:
        raise InvalidChannel("name", "a webhook is called so already; choose another name, or change that one") from exc
    return row


def set_webhook(pk: int, events: Iterable[str], quiet: Quiet, *, time_zone: str, by: User) -> bool:
    """Change what it is told and when; False where it is gone. Raises PermissionDenied, InvalidChannel: nothing was stored."""
    require_admin(by)
    fields = _fields(events, quiet, time_zone)
    with transaction.atomic():
        row = Channel.objects.select_for_update().defer("address").filter(pk=pk, way=Way.WEBHOOK).first()
        if row is None:
            return False
        before = _in_entry(row)
        Channel.objects.filter(pk=pk).update(username=by.get_username(), **fields)
        row.refresh_from_db(fields=list(fields))
        _enter(journal.admin(by), row, before, _in_entry(row))
    return True


def remove_webhook(pk: int, *, by: User) -> bool:
    """It is told nothing more, and what it was told is forgotten. Raises PermissionDenied."""
    require_admin(by)
    with transaction.atomic():
        row = Channel.objects.select_for_update().defer("address").filter(pk=pk, way=Way.WEBHOOK).first()
        if row is None:
            return False
        Channel.objects.filter(pk=pk).delete()
        _enter(journal.admin(by), row, _in_entry(row), {})
    return True


def set_own_mail(user: User, events: Iterable[str], quiet: Quiet, *, time_zone: str) -> None:
    """How this person is told by mail; no event at all ends it. Raises InvalidChannel: nothing was stored."""
    chosen = list(events)
    if chosen and not user.email:
        raise InvalidChannel("events", "your account has no mail address; an admin can set one")
    fields = _fields(chosen, quiet, time_zone) | {"way": Way.EMAIL, "username": user.get_username()} if chosen else {}
    with transaction.atomic():
        row = Channel.objects.select_for_update().filter(user=user).first()
        before = _in_entry(row)
        if chosen:
            row, _ = Channel.objects.update_or_create(user=user, defaults=fields)
            row.refresh_from_db(fields=list(fields))
            _enter(journal.person(user), row, before, _in_entry(row))
        elif row is not None:
            Channel.objects.filter(user=user).delete()
            _enter(journal.person(user), row, before, {})


def send_again(pk: int, *, by: User) -> int:
    """What was given up is due once more, now. How many. Raises PermissionDenied."""
    require_admin(by)
    with transaction.atomic():
        now = timezone.now()
        count = Notice.objects.filter(channel_id=pk, state=NoticeState.GIVEN_UP).update(
            state=NoticeState.DUE, found_at=now, done_at=None
        )
        Channel.objects.filter(pk=pk).update(next_at=now, misses=0)
    return count


def _in_entry(row: Channel | None) -> dict[str, object]:
    """A channel as the history says it; of an address only its host, because whoever knows it may write there."""
    if row is None:
        return {}
    quiet = f"{row.quiet_from:%H:%M} to {row.quiet_until:%H:%M}" if row.quiet_from and row.quiet_until else "none"
    fields = {"told by": f"webhook at {row.host}" if row.way == Way.WEBHOOK else "mail", "of": list(row.events), "quiet": quiet}
    return fields | {"urgent passes": row.urgent_passes, "time zone": row.time_zone}


def _enter(actor: str, row: Channel, before: Mapping[str, object], after: Mapping[str, object]) -> None:
    """Nothing, where nothing differs."""
    if changed := journal.changes(before, after):
        about = row.name or f"{row.username}, by mail"
        journal.record("channel_changed", actor=actor, detail={"about": about, "changed": changed})


def _fields(events: Iterable[str], quiet: Quiet, time_zone: str) -> dict[str, Any]:
    chosen = [event for event in Event.values if event in set(events)]
    if not chosen:
        raise InvalidChannel("events", "choose at least one thing to be told about")
    if time_zone not in time_zones():
        raise InvalidChannel("time_zone", "choose a time zone from the list")
    return {
        "events": chosen,
        "quiet_from": quiet.start,
        "quiet_until": quiet.end,
        "urgent_passes": quiet.urgent_passes,
        "time_zone": time_zone,
    }


def _checked_host(address: str) -> str:
    try:
        return parse_address(address, settings.RESOLVER_ALLOWED_HOSTS).authority
    except AddressRefused as exc:
        raise InvalidChannel("address", str(exc)) from exc


def _line(row: Channel, counts: Mapping[str, int]) -> ChannelLine:
    return ChannelLine(channel=row, waiting=counts.get(NoticeState.DUE, 0), given_up=counts.get(NoticeState.GIVEN_UP, 0))


def _counts(rows: Iterable[Channel]) -> list[Counter[str]]:
    channels = [row.pk for row in rows]
    found: dict[int, Counter[str]] = {pk: Counter() for pk in channels}
    notices = Notice.objects.filter(channel_id__in=channels).exclude(state=NoticeState.SENT)
    for channel, state in notices.values_list("channel_id", "state")[:MOST_COUNTED]:
        found[channel][state] += 1
    return [found[pk] for pk in channels]
