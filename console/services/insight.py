"""How well doubt is settled, in numbers: what is open, how long it took, by whom, and what turned out to be wrong. Nothing is kept for it.

Everything is counted from bounded reads: of each history the newest entries of the range, of the console's own tables the newest rows, of
the stores what is open now. Where one was cut, the answer says so, and its numbers are of what was read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from django.contrib.auth.models import AnonymousUser, User

from actions.errors import StoreError
from actions.queries import IN_DOUBT, MAX_ROWS_PER_STORE
from actions.records import OPEN_STATUSES, Action, ActionsRead
from actions.rules import as_column, state_of_reading
from actions.side_by_side import ask_each
from actions.store.base import ActionStore
from actions.times import SECOND
from console.access import Right, visible, visible_stores
from console.services.insight_disputes import (
    Dispute,
    Reviewer,
    corrected_ids,
    list_against,
    list_between,
    list_decided,
    list_overturned,
    list_reviewers,
    list_verdicts,
)
from console.services.insight_histories import MAX_LISTED, Asked, Removed, read_entries
from console.services.insight_settled import (
    BY,
    PEOPLE,
    RESOLVERS,
    SettledTool,
    Slot,
    Took,
    list_first_asked,
    list_settled_tools,
    list_slots,
    settled_by,
    took_both,
)

AGES: tuple[tuple[str, int], ...] = (
    ("under 5 min", 300),
    ("5 min to 1 h", 3_600),
    ("1 h to 1 day", 86_400),
    ("1 to 7 days", 604_800),
    ("over 7 days", 2**62),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTool:
    """External calls of one tool that are in doubt now, by age as AGES."""

    tool: str
    by_age: tuple[int, ...]

    @property
    def total(self) -> int:
        return sum(self.by_age)


@dataclass(frozen=True, slots=True, kw_only=True)
class Insight:
    """Everything the page shows."""

    open_tools: tuple[OpenTool, ...]
    unreadable: int  # open records that cannot be decoded, of whatever age
    settled: Mapping[str, int]  # by BY
    took: Mapping[str, tuple[Took, Took]]  # by people and resolvers: from begun, from first asked about
    slots: tuple[Slot, ...]
    is_hourly: bool
    tools: tuple[SettledTool, ...]
    reviewers: tuple[Reviewer, ...]
    against: tuple[Dispute, ...]  # a person against a verdict
    between: tuple[Dispute, ...]  # a verdict against another about the same call
    overturned: tuple[Dispute, ...]  # corrected to something else
    problems: Mapping[str, str]  # stores that did not answer, and why
    truncated: tuple[str, ...]  # stores with more open calls than are read
    cut: Mapping[str, datetime]  # histories of which only entries since then were read
    removed: tuple[Removed, ...]  # histories whose oldest entries, of the range, are gone
    cut_decisions: bool
    cut_verdicts: bool

    @property
    def by_age(self) -> tuple[int, ...]:
        return tuple(sum(line.by_age[n] for line in self.open_tools) for n in range(len(AGES)))

    @property
    def is_empty(self) -> bool:
        """Nothing to show, and nothing was: what was removed may have been something."""
        has_any = self.open_tools or self.unreadable or any(self.settled.values()) or self.reviewers or self.overturned
        return not (has_any or self.removed)

    @property
    def complete_from(self) -> datetime | None:
        """From when on no history lacks an entry; None where none does in all of the range."""
        return max((one.until for one in self.removed), default=None)


def read_insight(user: User | AnonymousUser, asked: Asked, zone: ZoneInfo) -> Insight:
    """The numbers of what this person may see. Two reads of each store (a history in batches), side by side; four statements here. Two reads
    more of a history whose oldest entries are gone.

    The caller has seen to it that the person may read the history somewhere.
    """
    stores = [store for store in visible_stores(user) if asked.store in ("", store.name)]
    may_see, may_read = visible(user), visible(user, Right.HISTORY)
    problems: dict[str, str] = {}
    opened = _read_open(stores, problems)
    open_tools, unreadable = _open_tools(opened, asked, may_see)
    entries, cut, removed = read_entries(
        [store for store in visible_stores(user, Right.HISTORY) if store in stores], asked, problems
    )
    mine = [(name, entry) for name, entry in entries if asked.tool in ("", entry.tool) and may_read(name, entry.tool)]
    settled = [(name, entry) for name, entry in mine if entry.kind == "settled" and settled_by(entry)]
    ended = [*settled, *((name, entry) for name, entry in mine if entry.kind == "observed")]
    names = [store.name for store in stores]
    decisions, cut_decisions = list_decided(names, asked, may_read)
    asked_at = list_first_asked(settled)
    verdicts, cut_verdicts = list_verdicts({row.ref for row in decisions}, names, asked)
    against = list_against(decisions, verdicts)
    overturned, overturned_entries = list_overturned(mine)
    slots, is_hourly = list_slots(ended, asked, zone)
    return Insight(
        open_tools=open_tools,
        unreadable=unreadable,
        settled={by: sum(settled_by(entry) == by for _, entry in ended) for by in BY},
        took={by: took_both([one for one in settled if settled_by(one[1]) == by], asked_at) for by in (PEOPLE, RESOLVERS)},
        slots=slots,
        is_hourly=is_hourly,
        tools=list_settled_tools(ended),
        reviewers=list_reviewers(decisions, {pk for pk, _ in against}, corrected_ids(settled, overturned_entries)),
        against=tuple(one for _, one in against[:MAX_LISTED]),
        between=list_between(verdicts, may_read, asked)[:MAX_LISTED],
        overturned=overturned[:MAX_LISTED],
        problems=problems,
        truncated=tuple(name for name, read in opened if read.is_truncated),
        cut=cut,
        removed=removed,
        cut_decisions=cut_decisions,
        cut_verdicts=cut_verdicts,
    )


# --- what is open ----------------------------------------------------------------------------------------------------


def _read_open(stores: Sequence[ActionStore], problems: dict[str, str]) -> list[tuple[str, ActionsRead]]:
    found = []
    for store, read in zip(stores, ask_each(stores, _open_of), strict=True):
        if isinstance(read, StoreError):
            problems[store.name] = read.problem
        else:
            found.append((store.name, read))
    return found


def _open_of(store: ActionStore) -> ActionsRead | StoreError:
    try:
        read = store.read_actions(OPEN_STATUSES, limit=MAX_ROWS_PER_STORE)
    except StoreError as exc:
        return exc
    doubtful = (one for one in read.readings if state_of_reading(one, leases_known=store.leases_known) in IN_DOUBT.states)
    return ActionsRead(readings=tuple(doubtful), is_truncated=read.is_truncated)


def _open_tools(
    opened: Iterable[tuple[str, ActionsRead]], asked: Asked, may_see: Callable[[str, str], bool]
) -> tuple[tuple[OpenTool, ...], int]:
    counts: dict[str, list[int]] = defaultdict(lambda: [0] * len(AGES))
    unreadable = 0
    bounds = [limit for _, limit in AGES]
    for name, read in opened:
        for reading in read.readings:
            action = reading.action
            if not isinstance(action, Action):
                unreadable += not asked.tool and may_see(name, "")
            elif action.action_class in IN_DOUBT.classes and asked.tool in ("", action.tool) and may_see(name, action.tool):
                age = max(0, reading.read_at - action.started_at) // SECOND
                counts[as_column(action.tool)][bisect_right(bounds, age)] += 1
    lines = [OpenTool(tool=tool, by_age=tuple(by_age)) for tool, by_age in counts.items()]
    return tuple(sorted(lines, key=lambda line: (-line.total, line.tool))), unreadable
