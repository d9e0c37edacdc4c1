"""Telling people what happened: what is worth telling is found by a sweep, kept in an outbox, and sent by tasks of its own.

A message holds words of ours, counts, plain names of tools and links to this console: never an argument, a reason or anything else that
an agent wrote. It arrives at least once: a channel that took it and did not say so is told again.
"""

from __future__ import annotations

import logging
import re
import time
import zoneinfo
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from datetime import time as time_of_day
from smtplib import SMTPException
from typing import Any
from weakref import WeakKeyDictionary

from django.conf import settings
from django.contrib.auth.models import User
from django.core.mail import EmailMessage
from django.db import IntegrityError, transaction
from django.db.models import F
from django.utils import timezone

from actions.errors import ActionsError, StoreError
from actions.facts import MONEY_RISK, risk_of
from actions.queries import MAX_ROWS_PER_STORE
from actions.records import OPEN_STATUSES, Action, ActionClass, ActionRef, ActionState
from actions.redaction import redact_text
from actions.resolvers.web import AddressRefused, WebError, WebLimits, parse_address, post_json
from actions.rules import has_visible_text, state_of_reading
from actions.store.base import ActionStore
from actions.times import to_datetime
from actions.tool_rules import NO_RULE
from console.access import Right, is_possible, may
from console.addresses import action_address
from console.models import (
    DEFAULT_SLA_S,
    Channel,
    Correction,
    CorrectionState,
    Decision,
    DecisionState,
    Event,
    Incident,
    Notice,
    NoticeState,
    Policy,
    Way,
)
from console.services import journal
from console.services.definitions import require_admin
from console.services.deliver import as_column
from console.services.people import time_zones
from console.services.policies import all_policies
from console.services.sealing import CannotUnseal, seal, unseal
from console.stores import list_stores
from console.tool_rules import rule_from

log = logging.getLogger(__name__)

URGENT = frozenset({Event.INCIDENT, Event.BREAK_GLASS})
"""What passes through quiet hours, where the channel chose so."""
WARN_AT = 0.8
PER_MESSAGE = timedelta(minutes=1)
"""A channel hears at most so often; what happens in between becomes one summary."""
GIVE_UP_AFTER = timedelta(hours=24)
KEPT = timedelta(days=90)
"""How long it is remembered that somebody was told. What is still so after that is told once more, and deserves it."""
_PRUNED_AT_ONCE = 5_000
_CLAIM = timedelta(minutes=2)  # longer than any sending takes; whoever died while sending is forgotten after it
_LONGEST_PAUSE = timedelta(minutes=30)
_LINES = 5  # more than so many notices are counted, not listed
_MOST_COUNTED = 10_000
_LOOK_ANYWAY_S = 30.0
_IN_DOUBT = frozenset({ActionState.INTERRUPTED, ActionState.UNKNOWN, ActionState.UNCLEAR})
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", re.ASCII)
_PLAIN_NAME = re.compile(r"[\w .,:#()/+-]{1,60}")

WORDS: Mapping[str, tuple[str, str]] = {
    Event.INCIDENT: ("an incident: found after it was written as failed", "incidents: found after they were written as failed"),
    Event.BREAK_GLASS: ("a decision written without the second person", "decisions written without the second person"),
    Event.APPROVAL: ("a decision waits for a second person", "decisions wait for a second person"),
    Event.OVERDUE: ("a call in doubt is over its time", "calls in doubt are over their time"),
    Event.AGEING: ("a call in doubt will soon be over its time", "calls in doubt will soon be over their time"),
    Event.MONEY: ("a call that moves money is in doubt", "calls that move money are in doubt"),
}
"""One and several, in the order of a message: what presses most stands first."""
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


class NotTaken(Exception):
    """The channel did not take the message, or nobody knows whether it did; one sentence without address or password."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What is sent: words of ours."""

    subject: str
    text: str


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


# --- channels --------------------------------------------------------------------------------------------------------


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
    for channel, state in notices.values_list("channel_id", "state")[:_MOST_COUNTED]:
        found[channel][state] += 1
    return [found[pk] for pk in channels]


# --- finding ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """Something that happened, before it is known who is told."""

    event: str
    ref: str
    store: str
    tool: str
    agent: str
    seq: int
    but: int | str | None = None  # somebody who knows already: their number, or where no more is kept, their name


_looked: WeakKeyDictionary[ActionStore, tuple[object, float]] = WeakKeyDictionary()
"""By store: what a look depended on, and when it was; only to spare the store a read that would see the same."""


def sla_of(tool: str, policies: Mapping[str, Policy]) -> int:
    """In how many seconds a call of this tool in doubt should be settled."""
    policy = policies.get(as_column(tool))
    return policy.sla_s if policy is not None else DEFAULT_SLA_S


def find() -> int:
    """Put into the outbox what has happened and is there for no channel yet; how many notices are new.

    Safe to run in several workers at once. Where nobody wants to be told, nothing is read. A store that does not answer is looked at later.
    """
    channels = list(Channel.objects.select_related("user").defer("address").order_by("pk"))
    if not channels:
        return 0
    return _keep(channels, [*_decisions(), *_incidents(), *_calls(channels)])


def prune(*, now: datetime | None = None) -> int:
    """Forget what was sent or given up more than KEPT ago; how many. What is due stays, however old. Bounded: the rest is the next sweep's."""
    old = Notice.objects.exclude(state=NoticeState.DUE).filter(done_at__lt=(now or timezone.now()) - KEPT)
    count, _ = Notice.objects.filter(pk__in=list(old.order_by("pk").values_list("pk", flat=True)[:_PRUNED_AT_ONCE])).delete()
    return count


def announce(event: str, ref: str, *, store: str, tool: str, agent: str = "", seq: int = 0) -> int:
    """Put one thing that happened into the outbox of everybody who wants to know; how many are told. The same again tells nobody twice."""
    channels = list(Channel.objects.select_related("user").defer("address").order_by("pk"))
    found = _Found(event=event, ref=ref[:400], store=store, tool=as_column(tool), agent=agent[:255], seq=seq)
    return _keep(channels, [found])


def forget_looks() -> None:
    """Read every store anew; between tests."""
    _looked.clear()


def _keep(channels: Iterable[Channel], found: list[_Found]) -> int:
    count = 0
    for channel in channels:
        wanted = [one for one in found if one.event in channel.events and _may_hear(channel, one)]
        refs = [one.ref for one in wanted]
        known = set(Notice.objects.filter(channel=channel, ref__in=refs).values_list("event", "ref")) if refs else set()
        new = [_notice(channel, one) for one in wanted if (one.event, one.ref) not in known]
        Notice.objects.bulk_create(new, batch_size=500, ignore_conflicts=True)
        count += len(new)
    return count


def _notice(channel: Channel, one: _Found) -> Notice:
    return Notice(channel=channel, event=one.event, ref=one.ref, store=one.store, tool=one.tool, agent=one.agent, seq=one.seq)


def _may_hear(channel: Channel, one: _Found) -> bool:
    """A webhook hears everything; a person what they may see, and of approvals what is theirs to give."""
    if channel.user is None:
        return True
    if one.but in (channel.user.pk, channel.user.get_username()):
        return False
    right = Right.APPROVE if one.event == Event.APPROVAL else Right.READ
    return may(channel.user, right, store=one.store, tool=one.tool)


def _decisions() -> Iterator[_Found]:
    for row in Decision.objects.filter(state=DecisionState.PROPOSED).order_by("pk")[:_MOST_COUNTED]:
        yield _of_decision(Event.APPROVAL, row, but=row.by_id)
    for proposed in Correction.objects.filter(state=CorrectionState.PROPOSED).order_by("pk")[:_MOST_COUNTED]:
        yield _of_decision(Event.APPROVAL, proposed, but=proposed.by_id)
    # By when it last moved: the proposal may have been an old one.
    recent = Decision.objects.exclude(broke_glass="").filter(updated_at__gt=timezone.now() - timedelta(days=7))
    for row in recent.order_by("pk")[:_MOST_COUNTED]:
        yield _of_decision(Event.BREAK_GLASS, row, but=row.broke_glass_by)


def _of_decision(event: Event, row: Decision | Correction, *, but: int | str | None) -> _Found:
    return _Found(event=event, ref=row.decision_id, store=row.store, tool=row.tool, agent=row.agent, seq=row.seq, but=but)


def _incidents() -> Iterator[_Found]:
    for row in Incident.objects.filter(closed_at=None).order_by("pk")[:_MOST_COUNTED]:
        ref = f"incident-{row.pk}"
        yield _Found(event=Event.INCIDENT, ref=ref, store=row.store, tool=row.tool, agent=row.agent, seq=row.seq)


def _calls(channels: Iterable[Channel]) -> Iterator[_Found]:
    wanted = frozenset((channel.pk, event) for channel in channels for event in channel.events)
    if not {event for _, event in wanted} & {Event.MONEY, Event.AGEING, Event.OVERDUE}:
        return
    policies = all_policies()
    versions = frozenset((tool, policy.version) for tool, policy in policies.items())
    for store in list_stores():
        yield from _calls_in(store, policies, (wanted, versions))


def _calls_in(store: ActionStore, policies: Mapping[str, Policy], depends: object) -> list[_Found]:
    """Open calls in doubt of one store. Read where a record or a lease moved, and now and then anyway, because calls age by themselves."""
    try:
        watch = store.read_watch()
        before = _looked.get(store)
        has_expired = watch.next_expiry is not None and watch.next_expiry <= watch.read_at
        key = (depends, watch.revision, watch.next_expiry)
        if before is not None and before[0] == key and not has_expired and time.monotonic() - before[1] < _LOOK_ANYWAY_S:
            return []
        read = store.read_actions(OPEN_STATUSES, limit=MAX_ROWS_PER_STORE)
    except StoreError as exc:
        log.info("nobody is told about open actions of store %s: %s", store.name, exc.problem)
        return []
    found = list[_Found]()
    for reading in read.readings:
        action = reading.action
        if not isinstance(action, Action) or action.action_class is not ActionClass.EXTERNAL:
            continue
        if state_of_reading(reading, leases_known=store.leases_known) in _IN_DOUBT:
            age_s = (to_datetime(reading.read_at) - to_datetime(action.started_at)).total_seconds()
            found += _of_call(store.name, action, age_s, policies)
    _looked[store] = (key, time.monotonic())
    return found


def _of_call(store: str, action: Action, age_s: float, policies: Mapping[str, Policy]) -> Iterator[_Found]:
    tool = as_column(action.tool)
    policy = policies.get(tool)
    events = list[Event]()
    if risk_of(action.tool, action.args, rule_from(policy) if policy is not None else NO_RULE) == MONEY_RISK:
        events.append(Event.MONEY)
    sla_s = sla_of(action.tool, policies)
    if age_s >= sla_s:
        events.append(Event.OVERDUE)
    elif age_s >= WARN_AT * sla_s:
        events.append(Event.AGEING)
    for event in events:
        ref = ActionRef(store, action.agent, action.seq)
        if is_possible(ref):
            yield _Found(event=event, ref=str(ref), store=store, tool=tool, agent=ref.agent, seq=ref.seq)
        else:  # no row can name it and no page can show it; it is told of all the same, and so are all others
            cut = f"{store}/{as_column(ref.agent)[:255]}/{ref.seq}"
            yield _Found(event=event, ref=cut, store=store, tool=tool, agent="", seq=0)


# --- sending ---------------------------------------------------------------------------------------------------------


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
    notices = list(due.order_by("pk")[:_MOST_COUNTED])
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
