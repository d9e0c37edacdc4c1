"""How well doubt is settled, in numbers: what is open, how long it took, by whom, and what turned out to be wrong. Nothing is kept for it.

Everything is counted from bounded reads: of each history the newest entries of the range, of the console's own tables the newest rows, of
the stores what is open now. Where one was cut, the answer says so, and its numbers are of what was read.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django.contrib.auth.models import AnonymousUser, User
from django.db.models import Exists, OuterRef

from actions.errors import StoreError
from actions.queries import IN_DOUBT, MAX_ROWS_PER_STORE
from actions.records import OPEN_STATUSES, Action, ActionRef, ActionsRead, Entry
from actions.rules import as_column, state_of_reading
from actions.side_by_side import ask_each
from actions.store.audit import RETAINED
from actions.store.base import ActionStore
from actions.store.checkpoints import proven_by
from actions.times import SECOND, Instant, from_datetime, parse_rfc3339, to_datetime
from console.access import Right, is_possible, visible, visible_stores
from console.history import SLACK, number_after
from console.models import BatchItem, Decision, Inquiry, StoredVerdict
from console.services.checkpoints import trusted_keys
from console.services.decisions import of_actions
from console.services.evidence import contradiction_of

MAX_ENTRIES = 10_000
"""Entries that are read for one page, of all histories together."""
MAX_ROWS = 5_000
"""Decisions, and verdicts, that are read for one page."""
BATCH = 500
MAX_LISTED = 50
"""Of tools, people and contradictions, the most that a table holds."""
PAUSE_S = 600
"""A longer time between two decisions of one person was not spent on the second."""
AGES: tuple[tuple[str, int], ...] = (
    ("under 5 min", 300),
    ("5 min to 1 h", 3_600),
    ("1 h to 1 day", 86_400),
    ("1 to 7 days", 604_800),
    ("over 7 days", 2**62),
)
PEOPLE, RESOLVERS, AGENTS = "people", "resolvers", "agents"
BY = (PEOPLE, RESOLVERS, AGENTS)
_BY_ACTOR = {"operator": PEOPLE, "resolver": RESOLVERS}
_KINDS = frozenset({"settled", "corrected", "observed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which time, and of what; an empty text means every one. `until` is not included."""

    since: datetime
    until: datetime
    store: str = ""
    tool: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """How long something took, in seconds, over `count` cases; None where there is none."""

    count: int
    median_s: float | None = None
    p95_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTool:
    """External calls of one tool that are in doubt now, by age as AGES."""

    tool: str
    by_age: tuple[int, ...]

    @property
    def total(self) -> int:
        return sum(self.by_age)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledTool:
    """How the calls of one tool that ended in the range were settled."""

    tool: str
    people: int
    resolvers: int
    agents: int
    took: Took  # from begun to settled here

    @property
    def total(self) -> int:
        return self.people + self.resolvers + self.agents

    @property
    def share(self) -> int:
        """Per cent that resolvers settled by themselves."""
        return round(100 * self.resolvers / self.total) if self.total else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A stretch of the range, from `at` on, and how many calls were settled in it by whom."""

    at: datetime
    people: int
    resolvers: int
    agents: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reviewer:
    """One person's decisions in the range."""

    name: str
    decisions: int
    in_batches: int
    pace: Took  # from one decision to the next, one by one, without pauses
    shown_of: int  # decisions of which it is known what stood on the page
    shown: float | None  # verdicts that stood there, on average
    with_none: int  # of those decisions: made beside no verdict at all
    against: int  # decided against what the newest telling verdict said
    corrected: int  # of theirs, what somebody said was wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispute:
    """A call about which two words stand against each other."""

    ref: ActionRef
    tool: str
    at: datetime
    one: str  # who says what
    other: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """The oldest entries of a history, which are gone: of the time before `until` its numbers are of what is left."""

    store: str
    number: int  # of the last of them: all up to it
    until: datetime  # when the first that is left was written
    is_signed: bool  # a signed tombstone says so; else nobody knows why they are missing


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """One history's entries of the range that are counted here, newest first."""

    entries: Sequence[Entry]
    cut: Instant | None = None  # from when on they are all here, where there are more than may be read
    removed: Removed | None = None


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
    entries, cut, removed = _read_entries(
        [store for store in visible_stores(user, Right.HISTORY) if store in stores], asked, problems
    )
    mine = [(name, entry) for name, entry in entries if asked.tool in ("", entry.tool) and may_read(name, entry.tool)]
    settled = [(name, entry) for name, entry in mine if entry.kind == "settled" and _by(entry)]
    ended = [*settled, *((name, entry) for name, entry in mine if entry.kind == "observed")]
    names = [store.name for store in stores]
    decisions, cut_decisions = _decisions(names, asked, may_read)
    asked_at = _first_asked(settled)
    verdicts, cut_verdicts = _verdicts({row.ref for row in decisions}, names, asked)
    against = _against(decisions, verdicts)
    overturned, overturned_entries = _overturned(mine)
    slots, is_hourly = _slots(ended, asked, zone)
    return Insight(
        open_tools=open_tools,
        unreadable=unreadable,
        settled={by: sum(_by(entry) == by for _, entry in ended) for by in BY},
        took={by: _took_both([one for one in settled if _by(one[1]) == by], asked_at) for by in (PEOPLE, RESOLVERS)},
        slots=slots,
        is_hourly=is_hourly,
        tools=_tools(ended),
        reviewers=_reviewers(decisions, {pk for pk, _ in against}, _corrected_ids(settled, overturned_entries)),
        against=tuple(one for _, one in against[:MAX_LISTED]),
        between=_between(verdicts, may_read, asked)[:MAX_LISTED],
        overturned=overturned[:MAX_LISTED],
        problems=problems,
        truncated=tuple(name for name, read in opened if read.is_truncated),
        cut=cut,
        removed=removed,
        cut_decisions=cut_decisions,
        cut_verdicts=cut_verdicts,
    )


# --- what is open ------------------------------------------------------------------------------------------------------


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


# --- what was settled, from the histories ------------------------------------------------------------------------------


def _read_entries(
    stores: Sequence[ActionStore], asked: Asked, problems: dict[str, str]
) -> tuple[list[tuple[str, Entry]], dict[str, datetime], tuple[Removed, ...]]:
    found: list[tuple[str, Entry]] = []
    cut: dict[str, datetime] = {}
    removed: list[Removed] = []
    most = MAX_ENTRIES // max(1, len(stores))
    for store, read in zip(stores, ask_each(stores, lambda store: _entries_of(store, asked, most)), strict=True):
        if isinstance(read, StoreError):
            problems[store.name] = read.problem
            continue
        found += [(store.name, entry) for entry in read.entries]
        if read.cut is not None:
            cut[store.name] = to_datetime(read.cut)
        if read.removed is not None:
            removed.append(read.removed)
    return found, cut, tuple(removed)


def _entries_of(store: ActionStore, asked: Asked, most: int) -> _Read | StoreError:
    since, until = from_datetime(asked.since), from_datetime(asked.until)
    found: list[Entry] = []
    read = 0
    try:
        before = _beyond(store, until)
        while True:
            size = min(BATCH, most - read)
            page = store.list_entries(limit=size, before=before)
            read += len(page)
            found += [entry for entry in page if entry.kind in _KINDS and since <= entry.at < until]
            if page and 0 < page[-1].at < since - SLACK:
                return _Read(entries=found)
            if len(page) < size:
                oldest = page[-1].number if page else before
                return _Read(entries=found, removed=_removed(store, oldest, asked.since) if oldest is not None else None)
            if read >= most:
                return _Read(entries=found, cut=max(since, page[-1].at))
            before = page[-1].number
    except StoreError as exc:
        return exc


def _removed(store: ActionStore, oldest: int, since: datetime) -> Removed | None:
    """What is gone of a history that was read down to its beginning, entry `oldest`; None where nothing is, or nothing of the range."""
    if oldest <= 1 or not (left := store.list_entries(limit=1, before=oldest + 1)):
        return None
    first = left[0]
    if first.number == 1 or to_datetime(first.at) <= since:
        return None
    proofs = map(proven_by(store.name, trusted_keys()), store.list_entries(limit=MAX_LISTED, kinds={RETAINED}))
    is_signed = any(proof is not None and proof.number == first.number - 1 for proof in proofs)
    return Removed(store=store.name, number=first.number - 1, until=to_datetime(first.at), is_signed=is_signed)


def _beyond(store: ActionStore, until: Instant) -> int | None:
    """Where to begin: at the newest, or, where the range ended long ago, at a number that is looked up by halves."""
    newest = store.list_entries(limit=1)
    return number_after(store, until + SLACK) if newest and newest[0].at > until + SLACK else None


def _by(entry: Entry) -> str:
    """Who settled it; empty where nobody of those that are told apart here."""
    return AGENTS if entry.kind == "observed" else _BY_ACTOR.get(entry.actor.partition(" ")[0], "")


def _ref(name: str, entry: Entry) -> ActionRef:
    return ActionRef(name, entry.agent, entry.seq or 0)


def _began(entry: Entry) -> Instant | None:
    """When its call began; None in entries of the time before they said it."""
    said = entry.detail.get("started_at")
    try:
        return parse_rfc3339(said) if isinstance(said, str) else None
    except ValueError:
        return None


def _first_asked(settled: Sequence[tuple[str, Entry]]) -> dict[ActionRef, Instant]:
    """When each of these calls was first seen open by whoever asks resolvers; only tools that have one are looked for. One statement."""
    wanted = {ref for name, entry in settled if is_possible(ref := _ref(name, entry))}
    rows = of_actions(Inquiry.objects.all(), wanted).only("store", "agent", "seq", "created_at") if wanted else ()
    return {row.ref: from_datetime(row.created_at) for row in rows if row.ref in wanted}


def _took_both(settled: Sequence[tuple[str, Entry]], asked_at: Mapping[ActionRef, Instant]) -> tuple[Took, Took]:
    seen = [(entry.at - asked_at[ref]) / SECOND for name, entry in settled if (ref := _ref(name, entry)) in asked_at]
    return took(_since_begun(settled)), took(seen)


def _since_begun(settled: Sequence[tuple[str, Entry]]) -> list[float]:
    return [(entry.at - began) / SECOND for _, entry in settled if (began := _began(entry)) is not None]


def took(seconds: Sequence[float]) -> Took:
    """Median and 95th percentile (nearest rank); never less than no time, whatever two clocks say."""
    if not seconds:
        return Took(count=0)
    ordered = sorted(max(0.0, one) for one in seconds)
    rank = math.ceil(0.95 * len(ordered)) - 1
    return Took(count=len(ordered), median_s=statistics.median(ordered), p95_s=ordered[rank])


def _tools(ended: Sequence[tuple[str, Entry]]) -> tuple[SettledTool, ...]:
    by_tool: dict[str, list[tuple[str, Entry]]] = defaultdict(list)
    for name, entry in ended:
        by_tool[entry.tool].append((name, entry))
    lines = []
    for tool, of_tool in by_tool.items():
        counts = Counter(_by(entry) for _, entry in of_tool)
        begun = _since_begun([one for one in of_tool if one[1].kind == "settled"])
        lines.append(
            SettledTool(tool=tool, people=counts[PEOPLE], resolvers=counts[RESOLVERS], agents=counts[AGENTS], took=took(begun))
        )
    return tuple(sorted(lines, key=lambda line: (-line.total, line.tool))[:MAX_LISTED])


def _slots(ended: Sequence[tuple[str, Entry]], asked: Asked, zone: ZoneInfo) -> tuple[tuple[Slot, ...], bool]:
    """Hours of a range of up to two days, days up to a quarter, else weeks; days begin at midnight where the person is."""
    length = asked.until - asked.since
    is_hourly = length <= timedelta(days=2)
    days = 1 if length <= timedelta(days=92) else 7
    local = asked.since.astimezone(zone)
    starts: list[datetime] = []
    if is_hourly:
        at = asked.since.replace(minute=0, second=0, microsecond=0)
        while at < asked.until:
            starts.append(at)
            at += timedelta(hours=1)
    else:
        day = datetime(local.year, local.month, local.day)  # noqa: DTZ001 - of the wall clock; the zone is put on below
        while (at := day.replace(tzinfo=zone)) < asked.until:
            starts.append(at)
            day += timedelta(days=days)
    edges = [from_datetime(start) for start in starts]
    counts: list[Counter[str]] = [Counter() for _ in starts]
    for _, entry in ended:
        counts[max(0, bisect_right(edges, entry.at) - 1)][_by(entry)] += 1
    return tuple(
        Slot(at=start, people=n[PEOPLE], resolvers=n[RESOLVERS], agents=n[AGENTS])
        for start, n in zip(starts, counts, strict=True)
    ), is_hourly


# --- what turned out to be wrong, and who decided ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """One verdict of somebody who answered, in as few words as are needed."""

    row: StoredVerdict
    ref: ActionRef
    tool: str


def _decisions(names: Sequence[str], asked: Asked, may_read: Callable[[str, str], bool]) -> tuple[list[Decision], bool]:
    """What people decided in the range, newest first; `is_in_batch` is put on each. One statement."""
    rows = Decision.objects.filter(by__isnull=False, store__in=names, created_at__gte=asked.since, created_at__lt=asked.until)
    if asked.tool:
        rows = rows.filter(tool=as_column(asked.tool))
    batched = Exists(BatchItem.objects.filter(decision=OuterRef("pk")))
    fields = ("decision_id", "store", "agent", "seq", "tool", "outcome", "username", "created_at", "evidence_shown")
    found = list(rows.annotate(is_in_batch=batched).only(*fields).order_by("-created_at")[: MAX_ROWS + 1])
    return [row for row in found[:MAX_ROWS] if may_read(row.store, row.tool)], len(found) > MAX_ROWS


def _verdicts(decided: set[ActionRef], names: Sequence[str], asked: Asked) -> tuple[list[_Told], bool]:
    """Verdicts that somebody answered, about what was decided and of the range, oldest first. Two statements, one where nothing was decided."""
    answered = StoredVerdict.objects.filter(is_answered=True).select_related("inquiry").defer("evidence", "inquiry__problem")
    wanted = {ref for ref in decided if is_possible(ref)}
    rows: dict[int, StoredVerdict] = {}
    is_cut = False
    queries = [
        answered.filter(asked_at__gte=asked.since, asked_at__lt=asked.until, inquiry__store__in=names).order_by("-asked_at")
    ]
    if wanted:
        about = of_actions(Inquiry.objects.all(), wanted).values("pk")
        queries.append(answered.filter(inquiry__in=about).order_by("-pk"))
    for query in queries:
        found = list(query[: MAX_ROWS + 1])
        is_cut |= len(found) > MAX_ROWS
        rows |= {row.pk: row for row in found[:MAX_ROWS]}
    return [_Told(row=row, ref=row.inquiry.ref, tool=row.inquiry.tool) for _, row in sorted(rows.items())], is_cut


def _against(decisions: Sequence[Decision], verdicts: Sequence[_Told]) -> list[tuple[int, Dispute]]:
    """Decisions that said otherwise than the newest telling verdict of their moment, newest first, with their numbers."""
    about: dict[ActionRef, list[StoredVerdict]] = defaultdict(list)
    for one in verdicts:
        about[one.ref].append(one.row)
    found = []
    for row in decisions:
        newest = next((verdict for verdict in reversed(about[row.ref]) if verdict.asked_at <= row.created_at), None)
        if against := contradiction_of(newest, row.outcome):
            says = Dispute(
                ref=row.ref,
                tool=row.tool,
                at=row.created_at,
                one=f"{row.username} decided {row.outcome}",
                other=f"{against.resolver} {against.says}",
            )
            found.append((row.pk, says))
    return found


def _between(verdicts: Sequence[_Told], may_read: Callable[[str, str], bool], asked: Asked) -> tuple[Dispute, ...]:
    """Calls of which one verdict says that they happened and another that they did not, by the later of the two; newest first."""
    about: dict[ActionRef, dict[str, _Told]] = defaultdict(dict)
    for one in verdicts:
        if one.row.outcome in ("done", "failed") and asked.tool in ("", one.tool) and may_read(one.ref.store, one.tool):
            about[one.ref][one.row.outcome] = one
    found = []
    for ref, both in about.items():
        if len(both) == 2:
            first, last = sorted(both.values(), key=lambda one: one.row.pk)
            words = [f"{one.row.resolver} said {one.row.outcome}" for one in (first, last)]
            found.append(Dispute(ref=ref, tool=last.tool, at=last.row.asked_at, one=words[0], other=words[1]))
    return tuple(sorted(found, key=lambda one: one.at, reverse=True))


def _overturned(mine: Sequence[tuple[str, Entry]]) -> tuple[tuple[Dispute, ...], set[tuple[str, int]]]:
    """Corrections of the range that say something else than its agent was told before, newest first; and the entries that they correct."""
    found, entries = [], set()
    for name, entry in mine:
        before = entry.detail.get("before")
        told = before.get("outcome") if isinstance(before, dict) else None
        if entry.kind != "corrected" or told == entry.outcome:
            continue
        number = entry.detail.get("corrects")
        if isinstance(number, int):
            entries.add((name, number))
        found.append(
            Dispute(
                ref=_ref(name, entry),
                tool=entry.tool,
                at=to_datetime(entry.at),
                one=f"its agent was told {told}",
                other=f"{entry.actor} corrected it to {entry.outcome}",
            )
        )
    return tuple(sorted(found, key=lambda one: one.at, reverse=True)), entries


def _corrected_ids(settled: Iterable[tuple[str, Entry]], corrected: set[tuple[str, int]]) -> set[str]:
    """The decisions that these corrections were about, as far as they were made in the range too."""
    return {entry.decision_id for name, entry in settled if (name, entry.number) in corrected}


@dataclass(slots=True)
class _Work:
    rows: list[Any] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    last: datetime | None = None


def _reviewers(decisions: Sequence[Decision], against: set[int], corrected: set[str]) -> tuple[Reviewer, ...]:
    work: dict[str, _Work] = defaultdict(_Work)
    for row in reversed(decisions):
        mine = work[row.username]
        mine.rows.append(row)
        if row.is_in_batch:  # type: ignore[attr-defined]
            mine.last = None
            continue
        if mine.last is not None and (gap := (row.created_at - mine.last).total_seconds()) <= PAUSE_S:
            mine.gaps.append(gap)
        mine.last = row.created_at
    lines = [_reviewer(name, mine, against, corrected) for name, mine in work.items()]
    return tuple(sorted(lines, key=lambda line: (-line.decisions, line.name))[:MAX_LISTED])


def _reviewer(name: str, mine: _Work, against: set[int], corrected: set[str]) -> Reviewer:
    shown = [len(row.evidence_shown) for row in mine.rows if isinstance(row.evidence_shown, list)]
    return Reviewer(
        name=name,
        decisions=len(mine.rows),
        in_batches=sum(row.is_in_batch for row in mine.rows),
        pace=took(mine.gaps),
        shown_of=len(shown),
        shown=statistics.fmean(shown) if shown else None,
        with_none=shown.count(0),
        against=sum(row.pk in against for row in mine.rows),
        corrected=sum(row.decision_id in corrected for row in mine.rows),
    )
