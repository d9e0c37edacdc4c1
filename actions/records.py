"""The nouns: actions, leases, turns, working states, pointers, outputs, audit entries. Frozen; standard library only.

Meaning and limits are Recall's. Nothing in here reads or writes; `store/codec.py` alone knows the stored names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

from actions.times import RELEASED, Instant

T = TypeVar("T")


class ActionClass(StrEnum):
    """What running the call twice would do."""

    PURE = "pure"  # only reads: running it again costs time
    IDEMPOTENT = "idempotent"  # takes the key: a second run with the same key is the same effect
    EXTERNAL = "external"  # changes the world each time it runs


class ActionStatus(StrEnum):
    """What the stored record says. The first two are open; the others are final."""

    STARTED = "started"  # begun, no end recorded
    UNKNOWN = "unknown"  # somebody looked and could not tell
    DONE = "done"  # it happened
    FAILED = "failed"  # it did not happen, or the tool reported an error
    ABANDONED = "abandoned"  # nobody will find out, or it will not be run again

    @property
    def is_open(self) -> bool:
        return self in OPEN_STATUSES


OPEN_STATUSES = frozenset({ActionStatus.STARTED, ActionStatus.UNKNOWN})
CLOSED_STATUSES = frozenset(ActionStatus) - OPEN_STATUSES


class ActionState(StrEnum):
    """What a screen may claim about an action: its status read together with its agent's lease (recall-records 8)."""

    INTERRUPTED = "interrupted"  # started, and no process has the agent
    UNKNOWN = "unknown"  # a resume, a resolver or the agent could not tell
    UNCLEAR = "unclear"  # idempotent under a live lease, or a store whose leases cannot be read: may be left over
    IN_FLIGHT = "in_flight"  # started under a live lease: hands off
    DONE = "done"
    FAILED = "failed"
    ABANDONED = "abandoned"
    UNREADABLE = "unreadable"  # the record cannot be decoded; nothing is guessed about it


OPEN_STATES = frozenset(
    {ActionState.INTERRUPTED, ActionState.UNKNOWN, ActionState.UNCLEAR, ActionState.IN_FLIGHT, ActionState.UNREADABLE}
)
"""The states that an action with an open status can have; `unreadable` stands with them because nobody knows."""


@dataclass(frozen=True, slots=True, order=True)
class ActionRef:
    """Which action: the same agent id in two stores is two agents."""

    store: str
    agent: str
    seq: int

    def __str__(self) -> str:
        return f"{self.store}/{self.agent}/{self.seq}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One tool call, recorded before it ran. Open while its status is started or unknown: nobody knows if it took effect."""

    agent: str
    seq: int  # from 1, per agent, no gaps
    tool: str
    action_class: ActionClass
    key: str  # the same on every retry of this call
    args: str  # as stored: JSON by habit, not by promise; shortened where args_ref is set
    args_ref: str = ""  # the output that holds the whole arguments; empty: args are whole
    status: ActionStatus
    result: str = ""  # shortened where result_ref is set
    result_ref: str = ""
    error: str = ""
    resolution: str = ""  # how the end is known
    epoch: int  # of the lease under which it began
    written_epoch: int  # of the lease under which this version was written
    started_at: Instant  # by the clock of the process that began it
    ended_at: Instant | None = None  # None while open

    @property
    def is_open(self) -> bool:
        return self.status.is_open


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A stored record that cannot be decoded. `agent` and `seq` come from its id and are as good as that id is."""

    record_id: str
    agent: str
    seq: int | None
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to write for one agent, as read at one moment of the store's clock."""

    agent: str
    holder: str
    epoch: int  # goes up by 1 on every acquire, renewal and release; names no process
    expires_at: Instant
    read_at: Instant  # the store's clock when this was read; never this process's

    @property
    def is_live(self) -> bool:
        return self.expires_at > self.read_at

    @property
    def is_released(self) -> bool:
        """Handed over on purpose. Not the same as clean: actions may still be open (recall-records 5.6)."""
        return self.expires_at == RELEASED


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One action together with its agent's lease, read in one statement at one moment of the store's clock."""

    action: Action | Unreadable
    lease: Lease | None  # None: the agent was never leased
    read_at: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionsRead:
    """What one bounded read of a store's actions saw, ordered by record id."""

    readings: tuple[Reading, ...]
    is_truncated: bool  # more rows matched than were asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasesRead:
    """What one bounded read of a store's leases saw, those that end last first."""

    leases: tuple[Lease, ...]
    is_truncated: bool  # there are more than were asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionEnd:
    """An end as somebody decided it. `resolution` says how it is known; `reason` is the decider's own text."""

    status: ActionStatus  # done, failed or abandoned
    reason: str
    resolution: str
    result: str = ""  # only with done
    error: str = ""  # only with failed


class CorrectedOutcome(StrEnum):
    """What really happened, after an end that was written turned out to be wrong."""

    DONE = "done"  # it happened after all
    FAILED = "failed"  # it did not happen
    UNKNOWN = "unknown"  # nobody knows whether it happened


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """ "I was wrong", as somebody said it. The action keeps its end; only its agent is told, by a turn more."""

    outcome: CorrectedOutcome
    reason: str
    resolution: str  # how it is known, and who says so


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One message of an agent's history."""

    agent: str
    seq: int  # from 1, no gaps; a sequence of its own beside the actions'
    role: str  # system, user, assistant or tool
    content: str
    name: str = ""
    brief: str = ""  # shown instead of the content in a briefing
    output_ref: str = ""
    message_id: str = ""
    at: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkingState:
    """What an agent says it is doing: the newest version, or one of those before."""

    agent: str
    version: int
    goal: str = ""
    plan: tuple[str, ...] = ()
    progress: str = ""
    focus: str = ""
    decisions: tuple[str, ...] = ()
    open_questions: tuple[str, ...] = ()
    notes: str = ""
    step: int = 0
    last_milestone: str = ""
    turn_seq: int = 0
    action_seq: int = 0
    updated_at: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointer:
    """A named hint at something outside: a commit, an object, a process."""

    agent: str
    name: str
    type: str
    fields: Mapping[str, str]
    note: str = ""
    at: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedPointer:
    """What stands where a pointer was removed; its record stays."""

    agent: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A value too large for its record, whole."""

    agent: str
    ref: str
    content: str
    tool: str = ""
    summary: str = ""
    tokens: int = 0
    at: Instant


@dataclass(frozen=True, slots=True)
class NewTurn:
    """A turn before it has a number: what an agent's process gives to be recorded."""

    role: str
    content: str
    name: str = ""
    brief: str = ""
    message_id: str = ""


class Condition(StrEnum):
    """What must hold in the store for one change of an agent's write; where it does not, nothing of the write is done."""

    NEW = "new"  # no record of this id is there: a plain insert, which overwrites nothing
    OPEN = "open"  # an action that is still open there
    ANY = "any"  # whatever stands there is replaced, as Recall does


@dataclass(frozen=True, slots=True)
class Change:
    """One record of an agent as it shall stand. A working state is two records: its version, and the head that repeats it."""

    record: Action | Turn | WorkingState | Output | Pointer | RemovedPointer
    condition: Condition


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRecords:
    """What an agent's process starts from, read at one moment."""

    agent: str
    lease: Lease | None
    newest_turn: int  # 0 while there is none; the larger of what is stored and what the working state claims (recall-records 3.6)
    newest_action: int
    working_state: WorkingState | None
    open_actions: tuple[Action, ...]  # all of them, by number
    pointers: tuple[Pointer, ...]  # by name
    outputs: tuple[Output, ...]  # as `ActionStore.list_outputs` has them
    turns: tuple[Turn, ...]  # the newest ones, newest first


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEntry:
    """An audit entry before the store gives it number, time, predecessor and hash. Everything in it is redacted already.

    `content_digest` is over the unredacted decision, so that the same decision id with other content is noticed.
    """

    kind: str  # settled, corrected, proposed, held, waiting, withdrawn, refused, evicted, observed, settling (the intent of store/steps.py) ...
    actor: str  # "operator ana", "resolver sent-folder", "system sweep"
    agent: str = ""
    seq: int | None = None
    tool: str = ""
    decision_id: str = ""
    outcome: str = ""
    reason: str = ""
    evidence_id: str = ""
    content_digest: str = ""
    detail: Mapping[str, object] = field(default_factory=dict)  # JSON values only
    redacted: frozenset[str] = frozenset()  # names hidden in what its store adds of the action; not stored


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Who decided what, when, on what evidence: one link of a store's chain. Never changed, never deleted."""

    chain: str
    number: int  # from 1, strictly increasing, no gaps
    at: Instant  # the store's clock
    kind: str
    actor: str
    agent: str
    seq: int | None
    tool: str
    decision_id: str
    outcome: str
    reason: str
    evidence_id: str
    content_digest: str
    detail: Mapping[str, object]
    text: str  # the canonical JSON that the hash covers
    prev: str  # hash of the predecessor; 64 zeros for the first
    hash: str


class Link(NamedTuple):
    """One stored row of a chain exactly as it stands, believed by nobody until it is verified."""

    number: int
    text: str
    prev: str
    hash: str
    misfiled: str = (
        ""  # what a search would go by (a column, a key, an index) and what does not say what `text` says; empty: all does
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainHead:
    """The newest link of a chain; number 0 and 64 zeros while it is empty."""

    chain: str
    number: int
    hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What one settle or correction wrote, or had written when the same decision id came before."""

    entry: Entry
    turn_seq: int  # the number of the turn that the agent will read
    is_repeat: bool  # True: nothing was written now; this decision id had written it before


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """The cheap facts that move when a store's screen may have changed."""

    revision: int  # of the agents collection; 0 while it does not exist
    next_expiry: Instant | None  # the earliest expiry of a live lease
    entries: int  # number of the newest audit entry; 0 where there is no chain
    read_at: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCheck:
    """What a store can be used for now, in words for a person."""

    server: str = ""  # product and version; empty when it did not answer
    is_reachable: bool
    has_records: bool = False  # Recall's tables exist and hold this collection
    is_prepared: bool = False  # our audit schema is there and up to date
    has_index: bool = False
    can_settle: bool = False
    why_not: str = ""  # one sentence with the remedy; empty when can_settle
    warnings: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()  # what this kind of store cannot promise, a sentence each: said on every screen of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """A bounded, ordered part of a list. `next` is opaque; None at the end."""

    items: tuple[T, ...]
    next: str | None
