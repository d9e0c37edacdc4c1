"""The order of a settle where no transaction exists: intent, turn, close, entry; written once, without any server's protocol in it.

Each step can be the last one before a crash, and asking again with the same decision id goes on from there:

- nothing, or the lease alone: nothing is written; the lease runs out by itself.
- the intent (an entry of kind `settling`): nothing is written yet.
- the turn, whose message id marks it as this decision's: the agent reads the outcome already, and the action is closed next. The other way
  round, a closed action without its turn, would be an outcome that its agent never hears of.
- the close: the intent says what was to be written under which epoch, so that we know it for ours; what is missing is the entry.
- the `settled` entry: done; there is one for each decision id.

A correction goes the same way without the close: intent, turn, entry.

No two decisions write a turn for one action: where the turn of another one stands and the action is open, that other one is half done, and
only asking again with its own id goes on. Who reads records meanwhile sees the turn before the close.

What a lease cannot do here. Servers for which this is meant do not compare it when they write. Of two consoles the lease decides, and we
begin no write that might still be on its way when ours runs out. But a process that held the agent before us and has not noticed that it
lost it may overwrite what we wrote; and so may we, if we are stopped between looking at our clock and sending.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from time import monotonic, sleep
from typing import Protocol

from actions.errors import (
    ActionChanged,
    ActionNotOpen,
    ActionsError,
    DecisionIdReused,
    InvalidDecision,
    LeaseLive,
    RecordUnreadable,
    StoreError,
    StoreUnavailable,
    WriteConflict,
)
from actions.records import Action, ActionEnd, ActionRef, Correction, Entry, Lease, NewEntry, Settled, Turn, Unreadable
from actions.store.base import CONSOLE_HOLDER
from actions.store.closing import (
    Closing,
    answer_repeat,
    check_correctable,
    check_seen,
    newest_turn,
    plan_closing,
    plan_correction,
    readable,
)
from actions.store.codec import Metadata
from actions.times import Instant, format_rfc3339

MAX_INTENTS = 100
"""How many intents about one action are looked at: each is an attempt that was cut off in the middle."""

WAIT_S = 2.0
"""How long another console's settle of the same agent is waited for; it takes a fraction of that, unless it died."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The right to write for one agent, as we got it."""

    epoch: int
    at: Instant  # the server's clock at that moment
    until: float  # by our own monotonic clock: no write may begin later
    found: Lease | None = None  # as it was before we took it; None where that cannot be read


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What stands there about one action and its agent."""

    action: Action | Unreadable
    metadata: Metadata
    args: str  # whole
    turns: tuple[Turn | Unreadable, ...]  # the newest ones, and those that were asked for
    largest_turn: int  # number that is stored
    head: tuple[str, object] | None  # id and metadata of the newest working state, which may claim a larger one


class Hands(Protocol):
    """What one kind of server can do for a settle. No method tries anything twice.

    A write that was sent and whose answer was lost raises StoreUnavailable with `may_be_written`; after any other error of a write,
    nothing of that write stands there.
    """

    def read(self, ref: ActionRef, turns: Collection[int]) -> Found:
        """The action, its agent's newest turns and those of these numbers. Raises ActionNotFound."""
        ...

    def hold(self, agent: str, holder: str) -> Held:
        """Take the agent's lease where nobody has it. Raises LeaseLive."""
        ...

    def write_turn(self, closing: Closing, held: Held) -> int:
        """The output of a long result, then the turn; answers the number that it got, which a server may choose itself.

        Raises:
            WriteConflict: a turn of that number is there already.
        """
        ...

    def write_end(self, closing: Closing, held: Held) -> None:
        """The action with its end."""
        ...

    def let_go(self, agent: str, held: Held) -> None: ...

    def may_be_ours(self, intended: object, found: int) -> bool:
        """Whether what was intended under one epoch of the lease may have been written under the other."""
        ...


class Entries(Protocol):
    """Where intents and results are kept, in a database that has transactions."""

    def find_settled(self, decision_id: str) -> Entry | None: ...

    def find_of_action(self, agent: str, seq: int) -> Entry | None:
        """The newest `settled` entry about one action."""
        ...

    def list_settling(self, agent: str, seq: int, *, limit: int) -> tuple[Entry, ...]:
        """The newest intents about one action, whoever's."""
        ...

    def append_settling(self, new: NewEntry) -> Entry:
        """Raises DecisionIdReused where this id has begun to write something else."""
        ...

    def append_settled(self, new: NewEntry) -> Entry:
        """Once for each decision id: where it has its entry already, that one is the answer."""
        ...


class EntriesOfCorrections(Entries, Protocol):
    """The same where corrections are kept too."""

    def list_endings(self, agent: str, seq: int) -> tuple[Entry, ...]:
        """The `settled` and `corrected` entries about one action, newest first."""
        ...

    def append_corrected(self, new: NewEntry) -> Entry:
        """Once for each id and action: where it has its entry already, that one is the answer."""
        ...


def marker(seq: int, decision_id: str) -> str:
    """The message id of the turn that tells this decision about this action; at most 256 bytes, as Recall allows."""
    return f"{_marks(seq)}{decision_id}"


def settle_in_steps(
    hands: Hands,
    entries: Entries,
    ref: ActionRef,
    end: ActionEnd,
    *,
    entry: NewEntry,
    holder: str,
    seen: str | None = None,
    claim: str | None = None,
) -> Settled:
    """Settle as `ActionStore.settle` says, but in steps: where that says that nothing was written, nothing is; what may be half written is
    StoreUnavailable with `may_be_written`, and asking again with the same decision id goes on.

    Everything is checked before the lease is taken, so that a refusal leaves it alone, and once more under it.

    Raises:
        WriteConflict: beside what `ActionStore.settle` has for it, the turn of a decision stands there that nobody will complete by this one:
            another decision's, which is half done; or this one's, and its agent has ended the action itself meanwhile. Nothing was
            written now; `.problem` names the turn.
        As `ActionStore.settle` otherwise.
    """
    job = _Settle(hands=hands, entries=entries, ref=ref, entry=entry, end=end, seen=seen, claim=claim)
    looked = job.look()
    if isinstance(looked, Settled):
        return looked
    job.plan(looked, Held(epoch=0, at=0, until=0))
    held = job.hold(holder)
    try:
        looked = job.look()
        return looked if isinstance(looked, Settled) else job.write(looked, held, holder)
    finally:
        with suppress(ActionsError):  # it runs out by itself
            hands.let_go(ref.agent, held)


def correct_in_steps(
    hands: Hands,
    entries: EntriesOfCorrections,
    ref: ActionRef,
    correction: Correction,
    *,
    entry: NewEntry,
    holder: str,
    basis: int | None = None,
) -> Settled:
    """Correct as `ActionStore.correct` says, but in steps: intent, turn, entry. Asking again with the same id goes on where it was cut off.

    Raises:
        As `ActionStore.correct`; StoreUnavailable with `may_be_written` where the turn may stand without its entry.
    """
    job = _Correct(hands=hands, entries=entries, ref=ref, entry=entry, correction=correction, basis=basis)
    looked = job.look()
    if isinstance(looked, Settled):
        return looked
    job.plan(looked, Held(epoch=0, at=0, until=0))
    held = job.hold(holder)
    try:
        looked = job.look()
        return looked if isinstance(looked, Settled) else job.write(looked, held, holder)
    finally:
        with suppress(ActionsError):  # it runs out by itself
            hands.let_go(ref.agent, held)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ToCorrect:
    """A closed action whose agent this correction may tell."""

    action: Action
    told: Entry  # what it was told last
    stands: Turn | None  # this correction's own turn, from an attempt that was cut off
    newest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Looked:
    """An open action that this decision may close."""

    action: Action
    metadata: Metadata
    args: str
    told: Turn | None  # this decision's own turn, from an attempt that was cut off
    newest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """What a settle and a correction do alike. Holds no state: what stands there decides what is left to do."""

    hands: Hands
    entries: Entries
    ref: ActionRef
    entry: NewEntry

    def hold(self, holder: str) -> Held:
        """The lease; another console's write is waited for a moment, as a database would let us wait for its lock."""
        until = monotonic() + WAIT_S
        while True:
            try:
                return self.hands.hold(self.ref.agent, holder)
            except LeaseLive as exc:
                if not exc.lease.holder.startswith(CONSOLE_HOLDER) or monotonic() > until:
                    raise self._refused(exc.lease) from exc
            sleep(random.uniform(0.02, 0.08))  # noqa: S311

    def _intents(self) -> tuple[Entry, ...]:
        return self.entries.list_settling(self.ref.agent, self.ref.seq, limit=MAX_INTENTS)

    def _own(self, intents: Collection[Entry]) -> tuple[Entry, ...]:
        own = tuple(intent for intent in intents if intent.decision_id == self.entry.decision_id)
        for intent in own:
            if intent.content_digest != self.entry.content_digest:
                raise DecisionIdReused(intent)
        return own

    def _refused(self, lease: Lease) -> ActionsError:
        """Somebody has the agent. Where an earlier attempt has begun to write, nobody may say that nothing was written."""
        if not self._own(self._intents()):
            return LeaseLive(lease)
        return StoreUnavailable(
            self.ref.store,
            f"an earlier attempt at this decision may have written a part of it, and {lease.holder[:80]} holds the agent until "
            f"{format_rfc3339(lease.expires_at)}; ask again then",
            may_be_written=True,
        )

    def _begin(self, closing: Closing, holder: str) -> None:
        """The intent: from here on something may be written, and whoever comes after us can tell what."""
        intent = replace(closing.entry, kind="settling", detail={**closing.entry.detail, "holder": holder})
        try:
            self.entries.append_settling(intent)
        except StoreUnavailable as exc:  # whether the intent is there or not: none of the records is written
            raise StoreUnavailable(self.ref.store, exc.problem) from exc


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settle(_Job):
    """One settle."""

    end: ActionEnd
    seen: str | None
    claim: str | None

    def look(self) -> _Looked | Settled:
        """What is left to do, or the answer where that is nothing but the entry. Takes nothing, and raises every refusal."""
        written = self.entries.find_settled(self.entry.decision_id)
        if written is not None:
            return answer_repeat(written, self.entry)
        intents = self._intents()
        own = self._own(intents)
        found = self.hands.read(self.ref, {_turn_of(intent) for intent in intents} - {0})
        told = next((turn for turn in self._marked(found) if turn.message_id == self._marker), None)
        try:
            action = readable(found.action)
            if not action.is_open:
                return self._ended(action, own, told)
            self._refuse_half_done(found)
            # What was shown was compared before the turn was written; a resume may have changed the status since.
            check_seen(self.ref, action, found.args, seen=None if told else self.seen, claim=self.claim)
            newest = told.seq - 1 if told else newest_turn(found.largest_turn, found.head)
        except (ActionChanged, InvalidDecision, RecordUnreadable) as exc:
            if told is None:
                raise
            raise WriteConflict(self.ref.store, f"turn {told.seq} tells the agent of this decision already, but {exc}") from exc
        return _Looked(action=action, metadata=found.metadata, args=found.args, told=told, newest=newest)

    def plan(self, looked: _Looked, held: Held) -> Closing:
        return plan_closing(
            looked.action,
            looked.metadata,
            self.end,
            self.entry,
            args=looked.args,
            newest=looked.newest,
            found=held.found,
            epoch=held.epoch,
            at=held.at,
            seen=self.seen,
            claim=self.claim,
            message_id=self._marker,
        )

    def write(self, looked: _Looked, held: Held, holder: str) -> Settled:
        """Intent, turn, close, entry."""
        closing = self.plan(looked, held)
        _check_time(self.ref.store, held)
        self._begin(closing, holder)
        stands = looked.told is not None
        try:
            if not stands:
                _check_time(self.ref.store, held)
                number = self.hands.write_turn(closing, held)
                stands = True
                closing = self.plan(replace(looked, newest=number - 1), held)
            _check_time(self.ref.store, held)
            self.hands.write_end(closing, held)
            sealed = self.entries.append_settled(closing.entry)
        except ActionsError as exc:
            if not stands and not (isinstance(exc, StoreUnavailable) and exc.may_be_written):
                raise
            raise _cut_off(self.ref.store, exc) from exc
        return Settled(entry=sealed, turn_seq=closing.turn_seq, is_repeat=False)

    # --- what was found ---

    @property
    def _marker(self) -> str:
        return marker(self.ref.seq, self.entry.decision_id)

    def _marked(self, found: Found) -> list[Turn]:
        """The turns that tell some decision about this action."""
        return [turn for turn in found.turns if isinstance(turn, Turn) and turn.message_id.startswith(_marks(self.ref.seq))]

    def _refuse_half_done(self, found: Found) -> None:
        """Not where the other decision has its entry: then its close was there too, and somebody who had lost the agent has overwritten it."""
        for turn in self._marked(found):
            other = turn.message_id.removeprefix(_marks(self.ref.seq))
            if other != self.entry.decision_id and self.entries.find_settled(other) is None:
                raise WriteConflict(
                    self.ref.store,
                    f"decision {other} about action {self.ref} is half written: turn {turn.seq} tells it to the agent, and the action is still "
                    "open. Ask again with that decision id; another one would tell the agent a second outcome",
                )

    def _ended(self, action: Action, own: Collection[Entry], told: Turn | None) -> Settled:
        """The action is closed: by an earlier attempt at this decision, which then lacks its entry alone, or by somebody else."""
        for intent in own:
            if self._wrote(intent, action, told):
                return self._complete(intent, told)
        first = self.entries.find_of_action(self.ref.agent, self.ref.seq)
        if told is None or first is not None:
            raise ActionNotOpen(self.ref, action, first)
        raise WriteConflict(
            self.ref.store,
            f"turn {told.seq} tells the agent of this decision, but the agent ended action {self.ref} itself meanwhile: {action.status}. "
            "Look at the agent",
        )

    def _wrote(self, intent: Entry, action: Action, told: Turn | None) -> bool:
        """Whether this end is the one that an intent was about: nobody else writes under the epoch of a lease of ours, nor in our words."""
        after = intent.detail.get("after")
        if not isinstance(after, dict):
            return False
        return (
            after.get("status") == action.status.value
            and self.hands.may_be_ours(after.get("epoch"), action.written_epoch)
            and action.resolution == self.end.resolution
            and (told is not None or _turn_of(intent) > 0)
        )

    def _complete(self, intent: Entry, told: Turn | None) -> Settled:
        """The entry that was still missing, as the intent has it, with the turn as it stands."""
        detail = {name: value for name, value in intent.detail.items() if name != "holder"}
        detail["turn"] = turn = told.seq if told else _turn_of(intent)
        try:
            sealed = self.entries.append_settled(replace(self.entry, tool=intent.tool, detail=detail))
        except StoreError as exc:
            raise StoreUnavailable(
                self.ref.store, f"the action is closed, its entry is still missing ({exc.problem})", may_be_written=True
            ) from exc
        return Settled(entry=sealed, turn_seq=turn, is_repeat=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Correct(_Job):
    """One correction: intent, turn, entry. The action stays as it is."""

    entries: EntriesOfCorrections
    correction: Correction
    basis: int | None

    def look(self) -> _ToCorrect | Settled:
        """What is left to do, or the answer. Takes nothing, and raises every refusal."""
        endings = self.entries.list_endings(self.ref.agent, self.ref.seq)
        intents = self._own(self._intents())
        found = self.hands.read(self.ref, {_turn_of(intent) for intent in intents} - {0})
        marked = [turn for turn in found.turns if isinstance(turn, Turn) and turn.message_id == self._marker]
        stands = marked[0] if marked else None
        action = readable(found.action)
        # With its turn there, the agent reads this correction already: whatever was corrected since, only the entry is missing.
        basis = None if stands else self.basis
        told = check_correctable(self.ref, action, endings, self.entry, basis=basis)
        if isinstance(told, Settled):
            return told
        newest = stands.seq - 1 if stands else newest_turn(found.largest_turn, found.head)
        return _ToCorrect(action=action, told=told, stands=stands, newest=newest)

    def plan(self, looked: _ToCorrect, held: Held) -> Closing:
        return plan_correction(
            looked.action,
            self.correction,
            self.entry,
            told=looked.told,
            newest=looked.newest,
            found=held.found,
            epoch=held.epoch,
            at=held.at,
            message_id=self._marker,
        )

    def write(self, looked: _ToCorrect, held: Held, holder: str) -> Settled:
        closing = self.plan(looked, held)
        _check_time(self.ref.store, held)
        stands = looked.stands is not None
        if not stands:
            self._begin(closing, holder)
        try:
            if not stands:
                _check_time(self.ref.store, held)
                number = self.hands.write_turn(closing, held)
                stands = True
                closing = self.plan(replace(looked, newest=number - 1), held)
            sealed = self.entries.append_corrected(closing.entry)
        except ActionsError as exc:
            if not stands and not (isinstance(exc, StoreUnavailable) and exc.may_be_written):
                raise
            raise _cut_off(self.ref.store, exc) from exc
        return Settled(entry=sealed, turn_seq=closing.turn_seq, is_repeat=False)

    @property
    def _marker(self) -> str:
        return f"correct:{self.ref.seq}:{self.entry.decision_id}"


def _cut_off(store: str, exc: ActionsError) -> StoreUnavailable:
    said = exc.problem if isinstance(exc, StoreError) else str(exc)
    return StoreUnavailable(
        store,
        f"it was cut off in the middle and may be half written ({said}); ask again with the same decision id",
        may_be_written=True,
    )


def _marks(seq: int) -> str:
    return f"settle:{seq}:"


def _turn_of(intent: Entry) -> int:
    """The number of the turn that was to be written; 0 where the entry was tampered with."""
    turn = intent.detail.get("turn")
    return turn if isinstance(turn, int) else 0


def _check_time(store: str, held: Held) -> None:
    if monotonic() > held.until:
        raise StoreUnavailable(store, "our lease was about to run out before all was written")
