"""Grouping calls in doubt by the crash that left them: the same process of an agent, or the same host that went silent in one minute.

From observations, which are absent for the time nobody watched, and from leases, which name the last holder. Labels say "seen".
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from actions.digests import sha256_text
from actions.queries import IN_DOUBT, ActionItem
from actions.records import ActionRef, ActionState
from actions.store.base import CONSOLE_HOLDER
from actions.times import to_datetime
from console.models import Observation

TOGETHER = timedelta(seconds=60)
"""Processes of one host that fall silent within so long are one crash: leases of one moment run out over a third of their length."""
_HOLDER = re.compile(r"(.+):(\d{1,10}):([0-9a-f]{4,16})", re.ASCII | re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashGroup:
    """What some calls have in common. `who` is text of others: show it with hidden characters named."""

    key: str  # 12 hex digits, the same for the same crash among the same items
    who: str  # a host, a holder, or an agent where nobody saw its process
    at: datetime | None  # when the first of it fell silent; None: nobody saw
    is_host: bool  # several processes of one host
    is_seen: bool  # an observation says so; else it is what the lease says now
    calls: int
    agents: int

    @property
    def label(self) -> str:
        """`pod-a went silent at 18:20 UTC, seen: 7 calls of 3 agents`."""
        went = f" went silent at {self.at:%H:%M} UTC" if self.at else ": nobody saw its process go"
        calls = f"{self.calls:,} call{'' if self.calls == 1 else 's'}"
        agents = f" of {self.agents:,} agent{'' if self.agents == 1 else 's'}" if self.is_host or self.agents > 1 else ""
        return f"{self.who}{went}{', seen' if self.is_seen else ''}: {calls}{agents}"


def groups_of(items: Iterable[ActionItem]) -> dict[ActionRef, CrashGroup]:
    """The crash of every item that is in doubt; the others are left out. One query, none without such items."""
    wanted = [item for item in items if item.state in IN_DOUBT.states]
    if not wanted:
        return {}
    stores, agents = {item.store for item in wanted}, {item.agent for item in wanted}
    rows = Observation.objects.filter(store__in=stores, agent__in=agents).order_by("lowest_epoch", "id")
    return group(wanted, rows)


def host_of(holder: str) -> str:
    """The host in a holder's name as Recall makes it (`host:pid:random`); empty where it is not made so."""
    found = _HOLDER.fullmatch(holder)
    return found[1] if found else ""


def group(items: Sequence[ActionItem], seen: Iterable[Observation]) -> dict[ActionRef, CrashGroup]:
    """Pure: the crash of each of these items, after these observations (in order of their lowest epoch)."""
    by_agent: dict[tuple[str, str], list[Observation]] = defaultdict(list)
    for row in seen:
        by_agent[row.store, row.agent].append(row)
    origins = {id(item): _origin(item, by_agent[item.store, item.agent]) for item in items}
    first = _first_of_each_crash(set(origins.values()))
    crashes: dict[tuple[str, ...], list[tuple[ActionItem, _Origin]]] = defaultdict(list)
    for item in items:
        origin = origins[id(item)]
        crashes[_crash_key(origin, first)].append((item, origin))
    found = {}
    for key, members in crashes.items():
        made = _crash(key, members)
        found.update({item.ref: made for item, _ in members})
    return found


@dataclass(frozen=True, slots=True)
class _Origin:
    """The process that began a call, as far as anybody knows."""

    store: str
    agent: str
    holder: str  # empty: nobody saw it
    at: datetime | None  # when it fell silent
    is_seen: bool


def _origin(item: ActionItem, seen: Sequence[Observation]) -> _Origin:
    epoch = item.action.epoch if item.action else None
    present = sha256_text(item.lease.holder) if item.lease is not None else ""
    for row in seen:
        is_present = present == row.holder_digest
        highest = max(row.highest_epoch, item.lease.epoch) if is_present and item.lease else row.highest_epoch
        if epoch is not None and row.lowest_epoch <= epoch <= highest:
            at = row.silent_at or (_expiry(item) if is_present else None)
            return _Origin(item.store, item.agent, row.holder, at, True)
    if item.state is ActionState.INTERRUPTED and item.lease is not None and not item.lease.holder.startswith(CONSOLE_HOLDER):
        # Nobody has resumed since, so the last holder is the one that began it.
        return _Origin(item.store, item.agent, item.lease.holder, _expiry(item), False)
    return _Origin(item.store, item.agent, "", None, False)


def _expiry(item: ActionItem) -> datetime | None:
    """When the lease ran out; None where it did not, or was given back."""
    lease = item.lease
    if lease is None or lease.is_live or lease.is_released:
        return None
    return to_datetime(lease.expires_at)


def _first_of_each_crash(origins: Iterable[_Origin]) -> dict[_Origin, datetime]:
    """For each origin on a known host: when the first process of its crash fell silent."""
    by_host: dict[str, list[tuple[datetime, _Origin]]] = defaultdict(list)
    for origin in origins:
        host = host_of(origin.holder)
        if host and origin.at is not None:
            by_host[host].append((origin.at, origin))
    first: dict[_Origin, datetime] = {}
    for silences in by_host.values():
        began: datetime | None = None
        for at, origin in sorted(silences, key=lambda one: (one[0], one[1].store, one[1].agent, one[1].holder)):
            if began is None or at - began > TOGETHER:
                began = at
            first[origin] = began
    return first


def _crash_key(origin: _Origin, first: Mapping[_Origin, datetime]) -> tuple[str, ...]:
    if origin in first:
        return ("host", host_of(origin.holder), first[origin].isoformat())
    return ("process", origin.store, origin.agent, origin.holder)


def _crash(key: tuple[str, ...], members: Sequence[tuple[ActionItem, _Origin]]) -> CrashGroup:
    origins = {origin for _, origin in members}
    agents = {(origin.store, origin.agent) for origin in origins}
    is_host = key[0] == "host"
    some = next(iter(origins))
    return CrashGroup(
        key=hashlib.sha256("\x1f".join(key).encode("utf-8", "surrogatepass")).hexdigest()[:12],
        who=key[1] if is_host else some.holder or some.agent,
        at=min((origin.at for origin in origins if origin.at is not None), default=None),
        is_host=is_host,
        is_seen=any(origin.is_seen for origin in origins),
        calls=len(members),
        agents=len(agents),
    )
