"""What turned out to be wrong in a range, and who decided: decisions, verdicts and corrections that stand against each other."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db.models import Exists, OuterRef

from actions.records import ActionRef, Entry
from actions.rules import as_column
from actions.times import to_datetime
from console.access import is_possible
from console.models import BatchItem, Decision, Inquiry, StoredVerdict
from console.services.decisions import of_actions
from console.services.evidence import contradiction_of
from console.services.insight_histories import MAX_LISTED, Asked, ref_of
from console.services.insight_settled import Took, took

MAX_ROWS = 5_000
"""Decisions, and verdicts, that are read for one page."""
PAUSE_S = 600
"""A longer time between two decisions of one person was not spent on the second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispute:
    """A call about which two words stand against each other."""

    ref: ActionRef
    tool: str
    at: datetime
    one: str  # who says what
    other: str


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
class Told:
    """One verdict of somebody who answered, in as few words as are needed."""

    row: StoredVerdict
    ref: ActionRef
    tool: str


def list_decided(names: Sequence[str], asked: Asked, may_read: Callable[[str, str], bool]) -> tuple[list[Decision], bool]:
    """What people decided in the range, newest first; `is_in_batch` is put on each. One statement."""
    rows = Decision.objects.filter(by__isnull=False, store__in=names, created_at__gte=asked.since, created_at__lt=asked.until)
    if asked.tool:
        rows = rows.filter(tool=as_column(asked.tool))
    batched = Exists(BatchItem.objects.filter(decision=OuterRef("pk")))
    fields = ("decision_id", "store", "agent", "seq", "tool", "outcome", "username", "created_at", "evidence_shown")
    found = list(rows.annotate(is_in_batch=batched).only(*fields).order_by("-created_at")[: MAX_ROWS + 1])
    return [row for row in found[:MAX_ROWS] if may_read(row.store, row.tool)], len(found) > MAX_ROWS


def list_verdicts(decided: set[ActionRef], names: Sequence[str], asked: Asked) -> tuple[list[Told], bool]:
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
    return [Told(row=row, ref=row.inquiry.ref, tool=row.inquiry.tool) for _, row in sorted(rows.items())], is_cut


def list_against(decisions: Sequence[Decision], verdicts: Sequence[Told]) -> list[tuple[int, Dispute]]:
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


def list_between(verdicts: Sequence[Told], may_read: Callable[[str, str], bool], asked: Asked) -> tuple[Dispute, ...]:
    """Calls of which one verdict says that they happened and another that they did not, by the later of the two; newest first."""
    about: dict[ActionRef, dict[str, Told]] = defaultdict(dict)
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


def list_overturned(mine: Sequence[tuple[str, Entry]]) -> tuple[tuple[Dispute, ...], set[tuple[str, int]]]:
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
                ref=ref_of(name, entry),
                tool=entry.tool,
                at=to_datetime(entry.at),
                one=f"its agent was told {told}",
                other=f"{entry.actor} corrected it to {entry.outcome}",
            )
        )
    return tuple(sorted(found, key=lambda one: one.at, reverse=True)), entries


def corrected_ids(settled: Iterable[tuple[str, Entry]], corrected: set[tuple[str, int]]) -> set[str]:
    """The decisions that these corrections were about, as far as they were made in the range too."""
    return {entry.decision_id for name, entry in settled if (name, entry.number) in corrected}


def list_reviewers(decisions: Sequence[Decision], against: set[int], corrected: set[str]) -> tuple[Reviewer, ...]:
    """A line for each person, most decisions first, at most MAX_LISTED. `decisions` as `list_decided` answers them: newest first."""
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


@dataclass(slots=True)
class _Work:
    rows: list[Any] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    last: datetime | None = None


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
