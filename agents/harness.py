"""DurableAgent: an agent's process and its durable records. Every call is recorded before it runs and closed when it returns; what a crash
leaves open is settled at the next resume.

What a record may hold is checked here, before anything is asked of the store; how it is kept, the stores know. Works in a plain script.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from time import monotonic, time_ns
from types import TracebackType
from typing import Any, TypeVar
from uuid import uuid4

from actions.errors import (
    ActionNotFound,
    ActionNotOpen,
    ActionsError,
    InvalidRecord,
    LeaseNotHeld,
    OutputNotFound,
    RecordUnreadable,
)
from actions.keys import args_ref, result_ref
from actions.limits import (
    DEFAULT_TTL,
    SPACES,
    check_agent_id,
    check_class,
    check_end_status,
    check_holder,
    check_name,
    check_pointer,
    check_size,
    check_tool,
    check_ttl,
    check_turn,
    clean_text,
    value_text,
)
from actions.records import (
    OPEN_STATUSES,
    Action,
    ActionClass,
    ActionEnd,
    ActionRef,
    ActionStatus,
    AgentRecords,
    Change,
    Condition,
    Lease,
    NewTurn,
    Output,
    Pointer,
    RemovedPointer,
    Turn,
    Unreadable,
    WorkingState,
)
from actions.store.base import AgentStore
from actions.turns import OVERFLOW_BYTES, StoredValue, settlement_turn, store_value
from agents import drafts
from agents.briefing import TOKEN_BUDGET, Briefing, as_resumed, write_briefing
from agents.ends import COULD_NOT_TELL, PURE_GIVEN_UP, End, Resolver, ask, interrupted_end
from agents.keeper import LeaseKeeper
from agents.writes import Plan, Writes, is_same

__all__ = ["DurableAgent", "End", "Resolver"]

log = logging.getLogger(__name__)

MAX_OPEN = 100_000
"""How many open actions of one agent are read; one that has more is broken otherwise."""
SETTLED_AT_ONCE = 100
"""How many interrupted actions one transaction of a resume settles: however many there are, no server is silent for long."""
MAX_RECENT_TURNS = 200

Noun = TypeVar("Noun")


class _Kept:
    """`update_working_state`: this field was not given."""


KEPT: Any = _Kept()


class _Moved(Exception):
    """The action is no longer the one that a resolver was asked about."""


class DurableAgent:
    """One agent, resumed in this process. Its methods may be called from several threads; they write one after the other.

    Every method that writes raises LeaseLost once the lease is lost (nothing was written, nor will be), LeaseNotHeld before it was acquired
    and after it was released, InvalidRecord before anything is asked, and StoreUnavailable. Where that one says `may_be_written`, ask again
    with the same arguments: what was written is found, and nothing is written twice.
    """

    def __init__(
        self,
        store: AgentStore,
        agent: str,
        *,
        holder: str,
        lease_ttl: timedelta,
        resolver: Resolver | None,
        token_budget: int,
        output_threshold: int,
    ) -> None:
        """Use `resume`."""
        self.agent = agent
        self.holder = holder
        self.briefing = Briefing(text="", tokens=0, turns_left_out=0, outputs_left_out=0)
        self._store = store
        self._ttl = lease_ttl
        self._resolver = resolver
        self._budget = token_budget
        self._threshold = output_threshold
        self._keeper: LeaseKeeper | None = None
        self._writes = Writes(store, agent)
        self._lock = self._writes.lock  # never held while a resolver is asked
        self._acquiring = threading.RLock()
        self._in_flight: set[int] = set()  # begun by this object, and nobody said yet how they ended
        self._outputs = 0  # of this session

    @classmethod
    def resume(
        cls,
        store: AgentStore,
        agent_id: str,
        *,
        holder: str | None = None,
        lease_ttl: timedelta = DEFAULT_TTL,
        resolver: Resolver | None = None,
        defer_lease: bool = False,
        token_budget: int = TOKEN_BUDGET,
        output_threshold: int = OVERFLOW_BYTES // 4,
    ) -> DurableAgent:
        """Take the agent's lease, settle what an earlier process left open, and make the briefing that its model reads first.

        Interrupted pure actions are given up, external ones become unknown, idempotent ones stay as they are (recall-records 7); with a
        `resolver` `reconcile` follows. `holder` must be this process's alone: two processes with one holder string are not fenced from each
        other. With `defer_lease` nothing is taken or changed before `acquire`.

        Raises:
            LeaseLive: another process has the agent; `.lease` says who and until when. Nothing was written.
            InvalidRecord, RecordUnreadable, StoreError: the lease, where it was taken, was given back.
        """
        if token_budget < 0:
            raise InvalidRecord(f"token budget must not be negative, got {token_budget}")
        agent = cls(
            store,
            check_agent_id(agent_id),
            holder=check_holder(holder) if holder else f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}",
            lease_ttl=check_ttl(lease_ttl),
            resolver=resolver,
            token_budget=token_budget,
            output_threshold=output_threshold,
        )
        store.create_records()
        if defer_lease:
            records = agent._writes.load()
            agent.briefing = agent._brief(records, records.open_actions)
        else:
            agent.acquire()
        return agent

    # --- the lease ---

    def acquire(self) -> Briefing:
        """Take the lease of an agent that was resumed with `defer_lease`, and go on as `resume` does. Raises as `resume`.

        Other threads may write as soon as what an earlier process left is settled, also while the resolver is asked; one that acquires waits.
        """
        with self._acquiring:
            if self._keeper is not None:
                self._keeper.ready()
                return self.briefing
            try:
                with self._lock:
                    self._take_lease()
                    records = self._settle_interrupted()
                self._resolve(records)
            except BaseException:
                self._give_back()
                raise
            return self.briefing

    def _take_lease(self) -> None:
        asked_at = monotonic()
        lease = self._store.acquire_lease(self.agent, holder=self.holder, ttl=self._ttl)
        self._keeper = LeaseKeeper(self._store, lease, ttl=self._ttl, asked_at=asked_at)
        weakref.finalize(self, self._keeper.stop)  # an agent that is forgotten is not kept alive

    def _give_back(self) -> None:
        with self._lock:
            if self._keeper is not None:
                with suppress(ActionsError):
                    self._keeper.release()
                self._keeper = None

    @property
    def lease(self) -> Lease | None:
        """As it was last granted; None before it was acquired."""
        return self._keeper.lease if self._keeper else None

    @property
    def is_lost(self) -> bool:
        """Whether another process may have the agent. It stays so."""
        return self._keeper is not None and self._keeper.is_lost

    def hold(self) -> Lease:
        """The lease that a write would be made under, renewed first where that is due: for what is kept outside of the records.

        Raises:
            LeaseLost, LeaseNotHeld: as every write. StoreUnavailable: it had to be renewed and could not be.
        """
        return self._held().ready()

    @property
    def newest_action(self) -> int:
        """The number of the newest action that this process has read or begun; 0 where there is none."""
        return self._writes.newest_action

    @property
    def newest_turn(self) -> int:
        """The number of the newest turn that this process has read or written; 0 where there is none."""
        return self._writes.newest_turn

    def release(self) -> None:
        """Hand the agent over now; open actions stay open. Nothing where the lease was lost. Where the store does not answer it ends by itself."""
        with self._lock:
            if self._keeper is None:
                return
            try:
                self._keeper.release()
            except ActionsError as exc:
                log.warning("lease of agent %s could not be released and ends by itself: %s", self.agent, exc)

    def __enter__(self) -> DurableAgent:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()

    # --- actions ---

    def begin_action(self, tool: str, args: object, action_class: str | ActionClass) -> Action:
        """Record a call before it runs. Run it only when this has returned; give `Action.key` to a tool that takes one.

        Arguments that are no text are kept as JSON. Those over 8000 bytes go to an output, in the same transaction.
        """
        tool, kind, text = check_tool(tool), check_class(action_class), value_text("arguments", args)

        def plan(lease: Lease) -> Plan:
            seq, now = self._writes.newest_action + 1, time_ns()
            value = self._value(text, args_ref(seq))
            action = drafts.begun(self.agent, seq, tool, kind, value, epoch=lease.epoch, at=now)
            whole = drafts.overflow(self.agent, value, tool=tool, at=now)
            return Plan((*whole, Change(action, Condition.NEW)), action)

        with self._lock:
            begun: Action = self._write(("begin", tool, text, kind), plan)
            self._in_flight.add(begun.seq)
        return begun

    def end_action(
        self,
        action: Action | int,
        status: str | ActionStatus,
        *,
        result: object = "",
        error: str = "",
        resolution: str = "",
        turn: NewTurn | None = None,
    ) -> Action:
        """Close an open action, any of this agent's. With `turn` both are written in one transaction, or neither.

        Result, error and result_ref are replaced by what is given; an empty resolution keeps the earlier one (recall-records 4).

        Raises:
            ActionNotFound: the agent has no such action. Nothing was written.
            ActionNotOpen: it is closed already; `.action` is what stands there. Nothing was written.
        """
        seq = self._seq_of(action)
        given = End(
            status=check_end_status(status),
            result=value_text("result", result),
            error=clean_text("error", error),
            resolution=clean_text("resolution", resolution).strip(SPACES),
        )
        said = None if turn is None else check_turn(turn)
        with self._lock:
            try:
                return self._end(seq, given, said)
            finally:
                self._in_flight.discard(seq)  # also where the end could not be written: whoever made the call is out of it

    def is_in_flight(self, action: Action) -> bool:
        """Whether this process began the call and has not said yet how it ended, not even in vain. A call of an earlier process never is."""
        return action.seq in self._in_flight

    def pending_actions(self) -> tuple[Action, ...]:
        """The open actions as the store has them now, by number. Needs no lease."""
        read = self._store.read_actions(OPEN_STATUSES, limit=MAX_OPEN, agent=self.agent)
        return tuple(sorted((_readable(reading.action) for reading in read.readings), key=lambda action: action.seq))

    def reconcile(self, resolver: Resolver | None = None) -> tuple[Action, ...]:
        """Settle every open action with what a resolver says about it, in the order of their numbers; answers those that were closed.

        Pure ones are abandoned. Where the resolver cannot tell, raises, or answers what is no end, the action is unknown. One that is closed is
        written together with the turn that tells the model (recall-records 7, where a crash between the two loses the turn).

        Calls that this process is in are left alone: nobody is asked about them, and whoever makes them ends them. While the resolver is asked
        nothing is held: other threads write meanwhile, the resolver's too. An action that moved meanwhile is left as it is then.
        """
        closed = [self._reconcile_one(action, resolver) for action in self.pending_actions()]
        return tuple(action for action in closed if action is not None)

    # --- turns, working state, outputs, pointers ---

    def record_turn(self, role: str, content: str, *, name: str = "", brief: str = "", message_id: str = "") -> Turn:
        """Append one message to the agent's history. Content over 8000 bytes goes to an output, in the same transaction."""
        given = check_turn(NewTurn(role, content, name, brief, message_id))

        def plan(lease: Lease) -> Plan:
            changes, turn = self._turn_changes(given)
            return Plan(changes, turn)

        recorded: Turn = self._write(("turn", given), plan)
        return recorded

    def recent_turns(self, limit: int = 20) -> tuple[Turn, ...]:
        """The newest turns as the store has them, oldest first; at most 200. Needs no lease."""
        turns = self._store.list_turns(self.agent, limit=min(max(limit, 0), MAX_RECENT_TURNS))
        return tuple(map(_readable, reversed(turns)))

    def recent_actions(self, limit: int = 20) -> tuple[Action, ...]:
        """The newest actions of any status as the store has them, oldest first. Needs no lease."""
        readings = self._store.list_agent_actions(self.agent, limit=max(limit, 0))
        return tuple(_readable(reading.action) for reading in reversed(readings))

    @property
    def working_state(self) -> WorkingState | None:
        """As this process last read or wrote it."""
        return self._writes.state

    def update_working_state(
        self,
        *,
        goal: str = KEPT,
        plan: Sequence[str] = KEPT,
        progress: str = KEPT,
        focus: str = KEPT,
        decisions: Sequence[str] = KEPT,
        open_questions: Sequence[str] = KEPT,
        notes: str = KEPT,
        step: int = KEPT,
    ) -> WorkingState:
        """The next version of what the agent says it is doing: what is given replaces, the rest is kept. Version and head are one transaction."""
        texts = {"goal": goal, "progress": progress, "focus": focus, "notes": notes}
        lists = {"plan": plan, "decisions": decisions, "open_questions": open_questions}
        given: dict[str, Any] = {name: clean_text(name, text) for name, text in texts.items() if text is not KEPT}
        given |= {name: _texts(name, items) for name, items in lists.items() if items is not KEPT}
        if step is not KEPT:
            if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < 2**63:
                raise InvalidRecord(f"step must be a whole number from 0, got {str(step)[:40]}")
            given["step"] = step
        return self._update_state(given)

    def milestone(self, text: str, *, progress: str = KEPT) -> WorkingState:
        """The next version of the working state with this as its last milestone."""
        given = {"last_milestone": clean_text("milestone", text).strip(SPACES)}
        if progress is not KEPT:
            given["progress"] = clean_text("progress", progress)
        return self._update_state(given)

    def store_output(self, content: str, *, ref: str | None = None, tool: str = "", summary: str = "") -> Output:
        """Keep a large value whole, to fetch by its ref. A ref that is given replaces what it named; without one a free one is made."""
        text = check_size("output", clean_text("output", content))
        named = None if ref is None else check_name("output ref", ref)
        tool, summary = clean_text("tool", tool), clean_text("summary", summary)

        def plan(lease: Lease) -> Plan:
            output = drafts.output(self.agent, named or self._free_ref(), text, tool=tool, at=time_ns(), summary=summary)
            return Plan((Change(output, Condition.ANY if named else Condition.NEW),), output)

        stored: Output = self._write(("output", named, text, tool, summary), plan)
        return stored

    def get_output(self, ref: str) -> Output:
        """One output, whole, as the store has it. Needs no lease.

        Raises:
            OutputNotFound: the agent has no such output.
        """
        key = (self.agent, check_name("output ref", ref))
        found = self._store.read_outputs([key]).get(key)
        if found is None:
            raise OutputNotFound(*key)
        return _readable(found)

    def set_pointer(
        self,
        name: str,
        type: str,  # noqa: A002 - Recall's name for it
        fields: Mapping[str, str],
        note: str = "",
    ) -> Pointer:
        """Record where something lives, replacing a pointer of the same name. Blank fields are dropped."""
        kept = check_pointer(type, fields)
        named, note = check_name("pointer name", name), clean_text("pointer note", note)

        def plan(lease: Lease) -> Plan:
            pointer = Pointer(agent=self.agent, name=named, type=type, fields=kept, note=note, at=time_ns())
            return Plan((Change(pointer, Condition.ANY),), pointer)

        written: Pointer = self._write(("pointer", named, type, tuple(sorted(kept.items())), note), plan)
        return written

    def remove_pointer(self, name: str) -> None:
        """Take a pointer out of the briefing; its record stays, as removed."""
        removed = RemovedPointer(agent=self.agent, name=check_name("pointer name", name))
        self._write(("removed pointer", removed.name), lambda lease: Plan((Change(removed, Condition.ANY),), None))

    def pointers(self) -> tuple[Pointer, ...]:
        """Those that were not removed, by name, as the store has them. Needs no lease."""
        return tuple(map(_readable, self._store.list_pointers(self.agent)))

    def refresh(self) -> Briefing:
        """Read everything again, and make the briefing anew. Needs no lease."""
        with self._lock:
            records = self._writes.load()
            self.briefing = self._brief(records, records.open_actions)
            return self.briefing

    # --- resuming ---

    def _settle_interrupted(self) -> AgentRecords:
        """What an earlier process left open, as Recall's resume does it; answers what was there. A crash in between is no harm: the next
        resume settles what is left."""
        records = self._writes.load()
        now = time_ns()
        left = [action for action in records.open_actions if not self.is_in_flight(action)]
        settled = [end for action in left if (end := interrupted_end(action, now)) is not None]
        for start in range(0, len(settled), SETTLED_AT_ONCE):
            changes = tuple(Change(action, Condition.OPEN) for action in settled[start : start + SETTLED_AT_ONCE])
            self._write(("settle", start), partial(_as_planned, Plan(changes, None)))
        return records

    def _resolve(self, records: AgentRecords) -> None:
        """The resolver, then the briefing."""
        if self._resolver is not None and records.open_actions and self.reconcile(self._resolver):
            self.refresh()
        else:
            self.briefing = self._brief(records, as_resumed(records.open_actions))

    def _brief(self, records: AgentRecords, actions: Sequence[Action]) -> Briefing:
        return write_briefing(
            self.agent,
            working_state=records.working_state,
            actions=actions,
            pointers=records.pointers,
            outputs=records.outputs,
            turns=records.turns,
            newest_turn=records.newest_turn,
            budget=self._budget,
        )

    def _reconcile_one(self, action: Action, resolver: Resolver | None) -> Action | None:
        if self.is_in_flight(action):
            return None
        end = End("abandoned", resolution=PURE_GIVEN_UP) if action.action_class is ActionClass.PURE else ask(resolver, action)
        is_known = end.status != ActionStatus.UNKNOWN
        if not is_known:
            if action.status is ActionStatus.UNKNOWN:
                return None
            end = End("unknown", resolution=end.resolution or COULD_NOT_TELL)
        turn = check_turn(self._told(action, end)) if is_known and action.action_class is not ActionClass.PURE else None
        try:
            ended = self._end(action.seq, replace(end, resolution=end.resolution.strip(SPACES)), turn, asked=action)
        except (ActionNotOpen, _Moved):
            log.info("action %s of agent %s moved while it was asked about, and is left as it is", action.seq, self.agent)
            return None
        return ended if is_known else None

    def _told(self, action: Action, end: End) -> NewTurn:
        """The turn of a settlement, in the words of Recall's reconcile; of an abandoned one too, or its model would go on waiting for it."""
        resolution = end.resolution.strip(SPACES) or action.resolution
        told = ActionEnd(
            status=ActionStatus(end.status), reason=resolution, resolution=resolution, result=end.result, error=end.error
        )
        words = settlement_turn(told, self._value(end.result, result_ref(action.seq)).text)
        return NewTurn("tool", words.content, name=action.tool, brief=words.brief)

    # --- writing ---

    def _write(self, gesture: tuple[object, ...], plan: Callable[[Lease], Plan]) -> Any:
        """Plan a gesture and write it. One whose outcome is in doubt is not planned anew: it is asked for again, or found written."""
        with self._lock:
            return self._writes.write(self._held(), gesture, plan)

    def _held(self) -> LeaseKeeper:
        if self._keeper is None:
            raise LeaseNotHeld(self.agent, "it was not acquired yet; call acquire() before writing")
        return self._keeper

    # --- parts of records ---

    def _seq_of(self, action: Action | int) -> int:
        if isinstance(action, Action):
            if action.agent != self.agent:
                raise InvalidRecord(f"action {action.seq} is of agent {action.agent}, not of {self.agent}")
            return action.seq
        if isinstance(action, bool) or not isinstance(action, int):
            raise InvalidRecord(f"an action is named by its number, got {str(action)[:40]!r}")
        return action

    def _open_action(self, seq: int) -> Action:
        """Ours from memory, an earlier process's from the store; that it is open is asked again by the write itself."""
        if (begun := self._writes.begun.get(seq)) is not None:
            return begun
        if not 0 < seq < 2**63:
            raise ActionNotFound(ActionRef(self._store.name, self.agent, seq))
        action = _readable(self._store.get_action(self.agent, seq).action)
        if not action.is_open:
            raise ActionNotOpen(ActionRef(self._store.name, self.agent, seq), action)
        return action

    def _end(self, seq: int, end: End, turn: NewTurn | None, *, asked: Action | None = None) -> Action:
        """Write the end of an open action. With `asked` only where it is still that one, and nobody in here is in the call: else _Moved."""

        def plan(lease: Lease) -> Plan:
            found = self._open_action(seq)
            if asked is not None and (self.is_in_flight(found) or not is_same(found, asked)):
                raise _Moved
            return self._end_plan(lease, found, end, turn)

        ended: Action = self._write(("end", seq, end, turn), plan)
        return ended

    def _end_plan(self, lease: Lease, action: Action, end: End, turn: NewTurn | None) -> Plan:
        now, value = time_ns(), self._value(end.result, result_ref(action.seq))
        ended = drafts.ended(action, end, value, epoch=lease.epoch, at=now)
        whole = drafts.overflow(self.agent, value, tool=action.tool, at=now)
        told = () if turn is None else self._turn_changes(turn)[0]
        return Plan((*whole, Change(ended, Condition.OPEN), *told), ended)

    def _turn_changes(self, given: NewTurn) -> tuple[tuple[Change, ...], Turn]:
        now = time_ns()
        value = StoredValue(text=given.content)
        if self._value(given.content, "").whole:
            value = self._value(given.content, self._free_ref())
        turn = drafts.turn(self.agent, self._writes.newest_turn + 1, given, value, at=now)
        whole = drafts.overflow(self.agent, value, tool=given.name, at=now, condition=Condition.NEW)
        return (*whole, Change(turn, Condition.NEW)), turn

    def _update_state(self, given: Mapping[str, Any]) -> WorkingState:
        def plan(lease: Lease) -> Plan:
            writes = self._writes
            state = drafts.next_state(
                writes.state,
                self.agent,
                given,
                turn_seq=writes.newest_turn,
                action_seq=writes.newest_action,
                at=time_ns(),
            )
            # Not NEW: a crash of Recall between version and head leaves a version that the head does not know; Recall replaces it too.
            return Plan((Change(state, Condition.ANY),), state)

        updated: WorkingState = self._write(("state", tuple(sorted(given.items()))), plan)
        return updated

    def _value(self, text: str, ref: str) -> StoredValue:
        return store_value(text, ref, threshold=self._threshold)

    def _free_ref(self) -> str:
        """`out-<next turn>-<n>` as Recall names them; one that an earlier process used is left alone."""
        while True:
            self._outputs += 1
            ref = f"out-{self._writes.newest_turn + 1}-{self._outputs}"
            if not self._store.read_outputs([(self.agent, ref)]):
                return ref


def _as_planned(plan: Plan, lease: Lease) -> Plan:
    """A plan that needs no number and no lease."""
    return plan


def _texts(name: str, items: object) -> tuple[str, ...]:
    if isinstance(items, str) or not isinstance(items, Sequence):
        raise InvalidRecord(f"{name} is {type(items).__name__}, not a list of texts")
    return tuple(clean_text(name, item) for item in items)


def _readable(record: Noun | Unreadable) -> Noun:
    if isinstance(record, Unreadable):
        raise RecordUnreadable(record.record_id, record.problem)
    return record
