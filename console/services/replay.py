"""Taking one agent's whole trajectory out as a file: everything that is known of it, oldest first, streamed. The lines are actions/replay.py's.

Records come newest first from a store, so each kind is walked down once, keeping nothing but where its pages begin and how much there is;
then it is read upwards, page by page. What comes after the beginning of that walk is not in the file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from django.http import Http404
from django.utils import timezone

from actions.records import Action, Entry, Output, Reading, Turn, Unreadable, WorkingState
from actions.redaction import redact_text
from actions.replay import (
    Known,
    Line,
    Seen,
    call_line,
    entry_line,
    holder_lines,
    in_order,
    run_line,
    state_line,
    turn_line,
    write_replay,
)
from actions.times import Instant, format_rfc3339, from_datetime, to_datetime
from actions.tool_rules import ToolRules
from console.models import Decision, Observation, RunEvent, StoredVerdict
from console.services import journal
from console.stores import ActionStore

PAGE = 200
"""Records of one kind that are in memory at once."""
MAX_HELD_EVICTIONS = 10_000

T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)


class _Read(Protocol[R_co]):
    """A bounded read, newest number first; with `before` those with a smaller number."""

    def __call__(self, *, limit: int, before: int | None) -> Sequence[R_co]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Walked(Generic[T]):
    """One kind of records as it was walked down: where each page begins and ends, and how many there are."""

    read: _Read[T]
    number_of: Callable[[T], int | None]
    pages: Sequence[tuple[int, int]]  # lowest number, and one beyond the highest; newest page first
    unnumbered: Sequence[T]  # their ids have no number: nobody can say where they belong
    count: int

    def upwards(self) -> Iterator[T]:
        """Oldest first."""
        yield from self.unnumbered
        for low, beyond in reversed(self.pages):
            found = self.read(limit=PAGE, before=beyond)
            yield from reversed([one for one in found if (number := self.number_of(one)) is not None and number >= low])


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """One agent's trajectory, walked and counted, ready to be written."""

    store: ActionStore
    agent: str
    by: str
    rules: ToolRules
    made_at: Instant
    turns: _Walked[Turn | Unreadable]
    calls: _Walked[Reading]
    states: _Walked[WorkingState | Unreadable]
    head: WorkingState | Unreadable | None
    entries: _Walked[Entry]
    holders: tuple[Seen, ...]
    evicted: tuple[Instant, ...]
    verdicts: int
    run_events: int  # none where this agent is no run
    first_entry: int  # number of the oldest entry of the chain that is left; 1 where none was removed
    known: Known = field(default_factory=Known)

    @property
    def counts(self) -> dict[str, int]:
        """By kind, as they were walked; a live agent goes on meanwhile, and its newest is not in the file."""
        newest = self.states.pages[0][1] - 1 if self.states.pages else 0
        has_own_head = self.head is not None and _number_of_state(self.head) != newest
        return {
            "holder": len(self.holders),
            "call": self.calls.count,
            "state": self.states.count + has_own_head,
            "verdict": self.verdicts,
            "turn": self.turns.count,
            "entry": self.entries.count,
            **({"run": self.run_events} if self.run_events else {}),
        }

    @property
    def left_out(self) -> list[str]:
        """What the file cannot hold, a sentence each; empty: nothing that is known is missing."""
        found = []
        if self.first_entry > 1:
            found.append(
                f"entries 1 to {self.first_entry - 1} of this history were removed by age; nobody can say which were about this agent"
            )
        if not self.store.leases_known:
            found.append("this store does not say who holds an agent, so no holder was ever seen")
        return found

    @property
    def header(self) -> dict[str, Any]:
        return {
            "store": self.store.name,
            "agent": redact_text(self.agent),
            "made_at": format_rfc3339(self.made_at),
            "by": self.by,
            "counts": self.counts,
            "is_cut": bool(self.left_out),
            "left_out": self.left_out,
        }

    def pieces(self) -> Iterator[str]:
        """The file, line by line, in flat memory.

        Raises:
            StoreError: the store cannot be read on; what came so far is not the whole, and its last line is missing.
        """
        return write_replay(self.header, in_order(self._streams()))

    def record(self) -> None:
        """Say in the console's own history what is taken out, and by whom.

        Raises:
            StoreError: it cannot be said; then nothing may be handed out.
        """
        journal.record(
            "exported",
            actor=self.by,
            agent=self.agent,
            detail={"format": "replay", "filter": {"store": self.store.name, "agent": self.agent}, "counts": self.counts},
        )

    def _streams(self) -> tuple[Iterator[Line], ...]:
        return (
            (self._call_line(reading.action) for reading in self.calls.upwards()),
            (self._turn_line(turn) for turn in self.turns.upwards()),
            self._state_lines(),
            (entry_line(entry, self.rules.of(entry.tool)) for entry in self.entries.upwards()),
            holder_lines(self.holders, self.evicted),
            _verdict_lines(self.store.name, self.agent, self.made_at),
            self._decision_lines(),
            _run_lines(self.store.name, self.agent, self.made_at),
        )

    def _call_line(self, action: Action | Unreadable) -> Line:
        rule = self.rules.of(action.tool) if isinstance(action, Action) else self.rules.of("")
        if isinstance(action, Unreadable):
            return call_line(action, args="", result="", is_args_missing=False, rule=rule, known=self.known)
        args, result = self._whole(action.args_ref), self._whole(action.result_ref)
        return call_line(
            action,
            args=action.args if args is None else args,
            result=action.result if result is None else result,
            is_args_missing=bool(action.args_ref) and args is None,
            rule=rule,
            known=self.known,
        )

    def _turn_line(self, turn: Turn | Unreadable) -> Line:
        if isinstance(turn, Unreadable):
            return turn_line(turn, content="", rule=self.rules.of(""), known=self.known)
        whole = self._whole(turn.output_ref)
        rule = self.rules.of(turn.name if turn.role == "tool" else "")
        return turn_line(turn, content=turn.content if whole is None else whole, rule=rule, known=self.known)

    def _whole(self, ref: str) -> str | None:
        """One output at a time: each may be a megabyte. None where there is none, or it cannot be read."""
        if not ref:
            return None
        output = self.store.read_outputs([(self.agent, ref)]).get((self.agent, ref))
        return output.content if isinstance(output, Output) else None

    def _state_lines(self) -> Iterator[Line]:
        """The head is a version of its own, or the newest of those that were left once more: then it is told once."""
        last: Line | None = None
        for state in self.states.upwards():
            if last is not None:
                yield last
            last = state_line(state)
        if self.head is not None:
            newest = state_line(self.head, is_newest=True)
            if last is not None and last.number != newest.number:
                yield last
            # A head that cannot be read has no number to be sorted by: it is the newest all the same.
            yield newest if newest.number else replace(newest, number=(last.number if last else 0) + 1)
        elif last is not None:
            yield last

    def _decision_lines(self) -> Iterator[Line]:
        """Decisions of which no step stands in the history: on their way, or about a store that takes no entries."""
        for row in _rows(Decision.objects.filter(store=self.store.name, agent=self.agent)):
            if row.decision_id in self.known.decision_ids or from_datetime(row.created_at) > self.made_at:
                continue
            says = {
                "seq": row.seq,
                "tool": redact_text(row.tool),
                "decision_id": row.decision_id,
                "actor": row.actor,
                "outcome": row.outcome,
                "reason": row.shown_reason,
                "evidence_id": row.evidence_id,
                "state": row.state,
                "second": row.second_username,
                "second_reason": row.shown_second_reason,
                "broke_glass_by": row.broke_glass_by,
                "broke_glass": row.shown_broke_glass,
            }
            yield Line(kind="decision", number=row.pk, at=from_datetime(row.created_at), says=says)


def write_file(replay: Replay, path: Path) -> int:
    """The file, whole or not at all: written beside and renamed. Answers how many lines it has between the first and the last.

    Raises:
        OSError: it cannot be written. Nothing stands there that was not there before.
        StoreError: the store cannot be read on, or the console's history cannot say it. The same.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    lines = 0
    try:
        with part.open("x", encoding="ascii") as file:
            for piece in replay.pieces():
                file.write(piece)
                lines += 1
            file.flush()
            os.fsync(file.fileno())
        replay.record()
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return lines - 2


def begin_replay(store: ActionStore, agent: str, *, by: str, rules: ToolRules) -> Replay:
    """Walk everything of this agent once, and count it. The caller has seen to who may take it out.

    Raises:
        Http404: the store answered, and nothing of such an agent is there.
        StoreError: as the store's reads do. Nothing was taken out.
    """
    made_at = from_datetime(timezone.now())
    known, evicted = Known(), list[Instant]()

    def note(entry: Entry) -> None:
        known.note(entry)
        if entry.kind == "evicted" and len(evicted) < MAX_HELD_EVICTIONS:
            evicted.append(entry.at)

    found = Replay(
        store=store,
        agent=agent,
        by=by,
        rules=rules,
        made_at=made_at,
        # Entries last: what they say of a call or a turn is then in this file's entries, or later than all of it.
        calls=_walk(lambda **page: store.list_agent_actions(agent, **page), _number_of_reading),
        turns=_walk(lambda **page: store.list_turns(agent, **page), lambda turn: turn.seq),
        states=_walk(lambda **page: store.list_working_states(agent, **page), _number_of_state),
        head=store.find_working_state(agent),
        entries=_walk(lambda **page: store.list_entries(agent=agent, **page), lambda entry: entry.number, note=note),
        holders=_holders(store.name, agent),
        evicted=tuple(evicted),
        verdicts=_verdicts(store.name, agent).count(),
        run_events=_run_events(store.name, agent).count(),
        first_entry=next((link.number for link in store.iterate_links()), 1),
        known=known,
    )
    if not any(found.counts.values()) and store.find_lease(agent) is None:
        raise Http404(f"store {store.name} has no agent {agent}")
    return found


def _walk(read: _Read[T], number_of: Callable[[T], int | None], note: Callable[[T], None] | None = None) -> _Walked[T]:
    pages: list[tuple[int, int]] = []
    unnumbered: list[T] = []
    before: int | None = None
    count = 0
    while True:
        page = read(limit=PAGE, before=before)
        numbers = [number for one in page if (number := number_of(one)) is not None]
        count += len(page)
        for one in page if note is not None else ():
            note(one)  # type: ignore[misc]
        unnumbered += [one for one in page if number_of(one) is None]
        if numbers:
            pages.append((min(numbers), max(numbers) + 1))
            before = min(numbers)
        if len(page) < PAGE or not numbers:
            return _Walked(read=read, number_of=number_of, pages=pages, unnumbered=unnumbered, count=count)


def _number_of_reading(reading: Reading) -> int | None:
    return reading.action.seq


def _number_of_state(state: WorkingState | Unreadable) -> int | None:
    return state.version if isinstance(state, WorkingState) else state.seq


def _holders(store: str, agent: str) -> tuple[Seen, ...]:
    """All that were ever seen; one row for each process that ever had the agent."""
    return tuple(
        Seen(
            holder=row.holder,
            lowest_epoch=row.lowest_epoch,
            highest_epoch=row.highest_epoch,
            first_seen_at=from_datetime(row.first_seen_at),
            last_seen_at=from_datetime(row.last_seen_at),
            state=row.state,
            silent_at=None if row.silent_at is None else from_datetime(row.silent_at),
        )
        for row in Observation.objects.filter(store=store, agent=agent).order_by("lowest_epoch", "pk")
    )


def _verdicts(store: str, agent: str) -> Any:
    return StoredVerdict.objects.filter(inquiry__store=store, inquiry__agent=agent).select_related("inquiry")


def _verdict_lines(store: str, agent: str, made_at: Instant) -> Iterator[Line]:
    for row in _rows(_verdicts(store, agent)):
        if from_datetime(row.asked_at) > made_at:
            continue
        says = {
            "evidence_id": row.evidence_id,
            "seq": row.inquiry.seq,
            "tool": redact_text(row.inquiry.tool),
            "resolver": row.resolver,
            "version": row.version,
            "outcome": row.outcome,
            "grade": row.grade or None,
            "resolution": row.resolution,
            "is_answered": row.is_answered,
            "check_again_at": None if row.check_again_at is None else format_rfc3339(from_datetime(row.check_again_at)),
            "evidence": json.loads(row.evidence),
        }
        yield Line(kind="verdict", number=row.pk, at=from_datetime(row.asked_at), says=says)


def _run_events(store: str, agent: str) -> Any:
    return RunEvent.objects.filter(run__store=store, run__run_id=agent)


def _run_lines(store: str, agent: str, made_at: Instant) -> Iterator[Line]:
    for row in _rows(_run_events(store, agent)):
        if from_datetime(row.at) <= made_at:
            yield run_line(row.number, from_datetime(row.at), row.kind, by=row.by, detail=json.loads(row.detail))


def _rows(query: Any) -> Iterator[Any]:
    """Every row in the order of its number, a page at a time."""
    last = 0
    while page := list(query.filter(pk__gt=last).order_by("pk")[:PAGE]):
        yield from page
        last = page[-1].pk


def file_name(replay: Replay) -> str:
    """A name that says when, and holds nothing that an agent wrote but letters and digits."""
    agent = "".join(char if char.isascii() and (char.isalnum() or char in "-_") else "-" for char in redact_text(replay.agent))[
        :60
    ]
    return f"settle-replay-{agent}-{to_datetime(replay.made_at):%Y%m%d-%H%M%S}.jsonl"
