"""One agent's whole story on one time line: turns, calls, working states, who was seen to take it, decisions and entries. Newest first."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from actions.errors import InvalidQuery
from actions.queries import ActionItem, read_actions_of_agent
from actions.records import ActionClass, Entry, Turn, Unreadable, WorkingState
from actions.redaction import redact_text
from actions.rules import SETTLED_STATUSES
from actions.times import SECOND, YEAR_ONE, Instant, from_datetime
from actions.tool_rules import NO_RULES, ToolRules
from console.models import Decision, Observation, SeenEnd
from console.services.sightings import holders_of
from console.stores import ActionStore

PAGE_SIZE = 50
LATE_S = 60
"""An end that came so long after its call began has a line of its own beside the one on the call's."""
MAX_DECISIONS = 200
_OF_DECISIONS = (
    "settled",
    "settling",
    "proposed",
    "approved",
    "turned_down",
    "broke_glass",
    "held",
    "waiting",
    "withdrawn",
    "refused",
)
_LAST = 2**63 - 1

Kind = Literal["turn", "call", "end", "state", "holder", "decision", "entry"]
_ORDER: dict[Kind, int] = {"entry": 6, "decision": 5, "turn": 4, "end": 3, "state": 2, "call": 1, "holder": 0}
"""Of things of one moment: which is told above the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of the time line; exactly one of the last seven says what it is about."""

    kind: Kind
    number: int  # among its kind: turns, calls, versions, entries and rows count for themselves
    at: Instant | None  # as its record says; None where that cannot be read
    tool: str = ""  # whose it is, for those who may not see every tool; empty: the agent's own words or nobody's
    turn: Turn | Unreadable | None = None
    item: ActionItem | None = None
    state: WorkingState | Unreadable | None = None
    holder: Observation | None = None
    decision: Decision | None = None
    entry: Entry | None = None
    seen_end: SeenEnd | None = None  # of a late end: it was seen, and nobody here decided it


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """A page of the time line. `next` is opaque; None at the beginning of the story."""

    events: tuple[Event, ...]
    next: str | None
    holders: tuple[Observation, ...]  # as `holders_of` has them, of this page or not


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Below which number each kind goes on, and at what time the page before ended."""

    turn: int = _LAST
    call: int = _LAST
    state: int = _LAST
    entry: int = _LAST
    decision: int = _LAST
    holder: int = _LAST
    until: Instant = _LAST


def read_story(
    store: ActionStore,
    agent: str,
    *,
    rules: ToolRules = NO_RULES,
    cursor: str | None = None,
    limit: int = PAGE_SIZE,
    newest: Sequence[Turn | Unreadable] | None = None,
) -> Story:
    """A page of the time line over everything; who may see what, the caller decides for each event.

    Each kind is read newest number first and keeps that order, whatever the clocks of the agent's processes said; among kinds the times
    decide. Four bounded reads of the store and three queries. Not one snapshot: a live agent may write between the reads.

    `newest`: the agent's newest turns where the caller has read them, at least one more than `limit`; the first page then reads three times.

    Raises:
        InvalidQuery: the cursor is not one of ours.
        StoreError: as the store's reads do.
    """
    place, holders = _read_cursor(cursor), holders_of(store.name, agent)
    events = sorted(
        (timed for stream in _streams(store, agent, place, limit + 1, rules, newest, holders) for timed in stream),
        key=lambda timed: (-timed[0], -_ORDER[timed[1].kind], -timed[1].number),
    )
    shown = events[:limit]
    return Story(
        events=tuple(event for _, event in shown),
        next=_write_cursor(_after(place, shown)) if len(events) > limit else None,
        holders=holders,
    )


def _streams(
    store: ActionStore,
    agent: str,
    place: _Place,
    limit: int,
    rules: ToolRules,
    newest: Sequence[Turn | Unreadable] | None,
    holders: Sequence[Observation],
) -> Iterator[Iterator[tuple[Instant, Event]]]:
    """Each kind with the time by which it is sorted in, which never rises within a kind."""
    is_first = newest is not None and place.turn == _LAST
    turns = newest[:limit] if newest is not None and is_first else store.list_turns(agent, limit=limit, before=_below(place.turn))
    yield _falling((Event(kind="turn", number=t.seq or 0, at=_at(t), tool=_turn_tool(t), turn=t) for t in turns), place.until)
    items = read_actions_of_agent(store, agent, limit=limit, before=_below(place.call), rules=rules)
    yield _falling(
        (
            Event(kind="call", number=i.seq or 0, at=i.action.started_at if i.action else None, tool=_tool(i), item=i)
            for i in items
        ),
        place.until,
    )
    states = store.list_working_states(agent, limit=limit, before=_below(place.state))
    yield _falling(
        (
            Event(kind="state", number=s.version, at=s.updated_at, state=s)
            if isinstance(s, WorkingState)
            else Event(kind="state", number=s.seq or 0, at=None, state=s)
            for s in states
        ),
        place.until,
    )
    entries = store.list_entries(limit=limit, agent=agent, before=_below(place.entry))
    yield _falling((Event(kind="entry", number=e.number, at=e.at, tool=e.tool, entry=e) for e in entries), place.until)
    unwritten = Decision.objects.filter(store=store.name, agent=agent, pk__lt=place.decision, entry_number__isnull=True)
    settled = {entry.seq for entry in entries if entry.kind == "settled"}  # their entries tell the end
    yield iter(_late_ends(store.name, agent, [item for item in items if item.seq not in settled], place.until))
    rows = unwritten.order_by("-pk")[:limit]
    told = store.list_entries(limit=MAX_DECISIONS, agent=agent, kinds=_OF_DECISIONS) if rows else ()
    in_history = {entry.decision_id for entry in told}
    yield _falling(
        (
            Event(kind="decision", number=row.pk, at=from_datetime(row.created_at), tool=row.tool, decision=row)
            for row in rows
            if row.decision_id not in in_history
        ),
        place.until,
    )
    seen = sorted(holders, key=lambda row: row.lowest_epoch, reverse=True)
    yield _falling(
        (
            Event(kind="holder", number=row.lowest_epoch, at=_first_known(row), holder=row)
            for row in seen
            if row.lowest_epoch < place.holder
        ),
        place.until,
    )


def _falling(events: Iterable[Event], until: Instant) -> Iterator[tuple[Instant, Event]]:
    for event in events:
        until = min(until, event.at) if event.at is not None else until
        yield until, event


def _late_ends(store: str, agent: str, items: Sequence[ActionItem], until: Instant) -> list[tuple[Instant, Event]]:
    """Ends long after their calls, where their time still lies ahead of the reader. Each stands on its call's own line as well."""
    late = [
        (item.action.ended_at, item)
        for item in items
        if item.action is not None
        and item.action.ended_at is not None
        and item.action.ended_at - item.action.started_at >= LATE_S * SECOND
        and item.action.ended_at < until
    ]
    numbers = [item.seq or 0 for _, item in late]
    rows = SeenEnd.objects.filter(store=store, agent=agent, seq__in=numbers, status__in=SETTLED_STATUSES) if late else ()
    seen = {row.seq: row for row in rows}
    return [
        (at, Event(kind="end", number=item.seq or 0, at=at, tool=_tool(item), item=item, seen_end=seen.get(item.seq or 0)))
        for at, item in late
    ]


def _after(place: _Place, shown: Sequence[tuple[Instant, Event]]) -> _Place:
    lowest: dict[str, int] = {}
    for _, event in shown:
        lowest[event.kind] = min(event.number, lowest.get(event.kind, _LAST))
    return _Place(
        turn=lowest.get("turn", place.turn),
        call=lowest.get("call", place.call),
        state=lowest.get("state", place.state),
        entry=lowest.get("entry", place.entry),
        decision=lowest.get("decision", place.decision),
        holder=lowest.get("holder", place.holder),
        until=shown[-1][0],
    )


def _first_known(row: Observation) -> Instant:
    """When it was first seen; where it was over by then, since when it was."""
    return from_datetime(row.first_seen_at if row.silent_at is None else min(row.first_seen_at, row.silent_at))


def _below(number: int) -> int | None:
    return None if number == _LAST else number


def _at(turn: Turn | Unreadable) -> Instant | None:
    return turn.at if isinstance(turn, Turn) else None


def _tool(item: ActionItem) -> str:
    return item.action.tool if item.action else ""


def _turn_tool(turn: Turn | Unreadable) -> str:
    """A tool's own result; everything else is the agent's words, which may concern any tool."""
    return turn.name if isinstance(turn, Turn) and turn.role == "tool" else ""


def _write_cursor(place: _Place) -> str:
    said = [place.turn, place.call, place.state, place.entry, place.decision, place.holder, place.until]
    return base64.urlsafe_b64encode(json.dumps(said, separators=(",", ":")).encode()).decode().rstrip("=")


def _read_cursor(cursor: str | None) -> _Place:
    if not cursor:
        return _Place()
    try:
        said = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        # A time may be that of the year 1, which is what a null reads as; numbers are those of columns.
        if len(said) != 7 or not all(type(number) is int and YEAR_ONE <= number <= _LAST for number in said):
            raise ValueError("wrong types")
        if min(said[:-1]) < -_LAST:
            raise ValueError("no number of a record")
    except (ValueError, TypeError, RecursionError) as exc:
        raise InvalidQuery("the cursor is not one that this list gave out; start from the newest page") from exc
    return _Place(**dict(zip(("turn", "call", "state", "entry", "decision", "holder", "until"), said, strict=True)))


# --- says done, calls still open -------------------------------------------------------------------------------------

_DONE = re.compile(
    r"\b(?:all|everything|it)(?: is| has been|'s| was)?(?: now)? (?:done|complete|completed|finished)\b"
    r"|\b(?:task|goal|job|work|request|ticket|order|case)(?: is| has been| was|:)(?: now| all)? (?:done|complete|completed|finished)\b"
    r"|\A\W*(?:done|completed?|finished)\b\W*\Z",
    re.IGNORECASE,
)
_DOUBT = re.compile(
    r"\b(?:not|never|no|cannot|until|once|when|if|before|after|unless|as soon as|almost|nearly|half|will|would|should|to be|left|except|but)\b"
    r"|n['\u2019]t\b|\?",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"[^.!?\n]*[.!?\n]?")
_QUOTED_CHARS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class SaysDone:
    """An agent's own statement that it is done, though external calls that it had begun before are open."""

    words: str  # the sentence, redacted; text of others
    where: str  # "its working state" or "its last turn"
    at: Instant
    open_calls: int


def says_done(
    state: WorkingState | Unreadable | None, turns: Sequence[Turn | Unreadable], items: Sequence[ActionItem]
) -> SaysDone | None:
    """Careful rather than complete: English, a whole sentence without an if or a not. `turns` newest first."""
    open_calls = [i.action for i in items if i.action and i.action.is_open and i.action.action_class is ActionClass.EXTERNAL]
    if not open_calls:
        return None
    for words, where, at in _statements(state, turns):
        begun_before = sum(action.started_at <= at for action in open_calls)
        if begun_before and (sentence := find_done(words)):
            return SaysDone(words=redact_text(sentence)[:_QUOTED_CHARS], where=where, at=at, open_calls=begun_before)
    return None


def find_done(text: str) -> str:
    """The first sentence that says that the work is done; empty where none does."""
    for match in _SENTENCE.finditer(text[:20_000]):
        sentence = match[0].strip()
        if sentence and _DONE.search(sentence) and not _DOUBT.search(sentence):
            return sentence
    return ""


def _statements(
    state: WorkingState | Unreadable | None, turns: Sequence[Turn | Unreadable]
) -> Iterator[tuple[str, str, Instant]]:
    """Its newest own turn counts only where nobody has spoken to it since."""
    newest = next((turn for turn in turns if isinstance(turn, Turn) and turn.role in ("assistant", "user")), None)
    if newest is not None and newest.role == "assistant":
        yield newest.content, "its last turn", newest.at
    if isinstance(state, WorkingState):
        for words in (state.progress, state.focus, state.last_milestone, state.notes):
            yield words, "its working state", state.updated_at
