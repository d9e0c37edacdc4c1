"""What is worth telling: found by a sweep, and kept in an outbox, a row for each channel that wants to know."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from weakref import WeakKeyDictionary

from django.utils import timezone

from actions.errors import StoreError
from actions.facts import MONEY_RISK, risk_of
from actions.queries import MAX_ROWS_PER_STORE
from actions.records import OPEN_STATUSES, Action, ActionClass, ActionRef, ActionState
from actions.rules import state_of_reading
from actions.store.base import ActionStore
from actions.times import to_datetime
from actions.tool_rules import NO_RULE
from console.access import Right, is_possible, may
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
)
from console.services.deliver import as_column
from console.services.policies import all_policies
from console.stores import list_stores
from console.tool_rules import rule_from

log = logging.getLogger(__name__)

WARN_AT = 0.8
KEPT = timedelta(days=90)
"""How long it is remembered that somebody was told. What is still so after that is told once more, and deserves it."""
MOST_COUNTED = 10_000
_PRUNED_AT_ONCE = 5_000
_LOOK_ANYWAY_S = 30.0
_IN_DOUBT = frozenset({ActionState.INTERRUPTED, ActionState.UNKNOWN, ActionState.UNCLEAR})


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


def find() -> int:
    """Put into the outbox what has happened and is there for no channel yet; how many notices are new.

    Safe to run in several workers at once. Where nobody wants to be told, nothing is read. A store that does not answer is looked at later.
    """
    channels = list(Channel.objects.select_related("user").defer("address").order_by("pk"))
    if not channels:
        return 0
    return _keep(channels, [*_decisions(), *_incidents(), *_calls(channels)])


def announce(event: str, ref: str, *, store: str, tool: str, agent: str = "", seq: int = 0) -> int:
    """Put one thing that happened into the outbox of everybody who wants to know; how many are told. The same again tells nobody twice."""
    channels = list(Channel.objects.select_related("user").defer("address").order_by("pk"))
    found = _Found(event=event, ref=ref[:400], store=store, tool=as_column(tool), agent=agent[:255], seq=seq)
    return _keep(channels, [found])


def prune(*, now: datetime | None = None) -> int:
    """Forget what was sent or given up more than KEPT ago; how many. What is due stays, however old. Bounded: the rest is the next sweep's."""
    old = Notice.objects.exclude(state=NoticeState.DUE).filter(done_at__lt=(now or timezone.now()) - KEPT)
    count, _ = Notice.objects.filter(pk__in=list(old.order_by("pk").values_list("pk", flat=True)[:_PRUNED_AT_ONCE])).delete()
    return count


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
    for row in Decision.objects.filter(state=DecisionState.PROPOSED).order_by("pk")[:MOST_COUNTED]:
        yield _of_decision(Event.APPROVAL, row, but=row.by_id)
    for proposed in Correction.objects.filter(state=CorrectionState.PROPOSED).order_by("pk")[:MOST_COUNTED]:
        yield _of_decision(Event.APPROVAL, proposed, but=proposed.by_id)
    # By when it last moved: the proposal may have been an old one.
    recent = Decision.objects.exclude(broke_glass="").filter(updated_at__gt=timezone.now() - timedelta(days=7))
    for row in recent.order_by("pk")[:MOST_COUNTED]:
        yield _of_decision(Event.BREAK_GLASS, row, but=row.broke_glass_by)


def _of_decision(event: Event, row: Decision | Correction, *, but: int | str | None) -> _Found:
    return _Found(event=event, ref=row.decision_id, store=row.store, tool=row.tool, agent=row.agent, seq=row.seq, but=but)


def _incidents() -> Iterator[_Found]:
    for row in Incident.objects.filter(closed_at=None).order_by("pk")[:MOST_COUNTED]:
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
    sla_s = _sla_of(action.tool, policies)
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


def _sla_of(tool: str, policies: Mapping[str, Policy]) -> int:
    """In how many seconds a call of this tool in doubt should be settled."""
    policy = policies.get(as_column(tool))
    return policy.sla_s if policy is not None else DEFAULT_SLA_S
