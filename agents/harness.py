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
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from time import monotonic, time_ns
from types import TracebackType
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

from actions.errors import (
    ActionNotFound,
    ActionNotOpen,
    ActionsError,
    InvalidRecord,
    LeaseLost,
    LeaseNotHeld,
    OutputNotFound,
    RecordUnreadable,
    StoreUnavailable,
    WriteConflict,
)
from actions.keys import action_key, args_ref, result_ref
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
from actions.turns import OVERFLOW_BYTES, StoredValue, cut_bytes, settlement_turn, store_value
from agents.briefing import TOKEN_BUDGET, Briefing, as_resumed, write_briefing
from agents.keeper import LeaseKeeper

log = logging.getLogger(__name__)

PURE_GIVEN_UP = "interrupted; pure, not run again"
NO_RESOLVER = "interrupted; no resolver to check whether it happened"
COULD_NOT_TELL = "could not tell whether it happened"
MAX_OPEN = 100_000
"""How many open actions of one agent are read; one that has more is broken otherwise."""
SETTLED_AT_ONCE = 100
"""How many interrupted actions one transaction of a resume settles: however many there are, no server is silent for long."""
MAX_RECENT_TURNS = 200
SUMMARY_BYTES = 200

T = TypeVar("T")
Noun = TypeVar("Noun")


@dataclass(frozen=True, slots=True)
class End:
    """How a resolver settled an action: done, failed, abandoned or unknown, and how that is known."""

    status: str
    result: str = ""
    error: str = ""
    resolution: str = ""


Resolver = Callable[[Action], Any]
"""Answers an `End`, or anything with its attributes; None or an error where it cannot tell."""


class _Kept:
    """`update_working_state`: this field was not given."""


KEPT: Any = _Kept()


class _Plan(NamedTuple):
    """The changes of one gesture, and what it answers once they are written."""

    changes: tuple[Change, ...]
    answer: Any


class _Doubt(NamedTuple):
    """A write whose outcome nobody knows, and the gesture that asked for it."""

    gesture: tuple[object, ...]
    plan: _Plan


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
        self._lock = threading.RLock()
        self._newest_turn = 0
        self._newest_action = 0
        self._state: WorkingState | None = None
        self._begun: dict[int, Action] = {}  # open ones, as we wrote them under this lease
        self._outputs = 0  # of this session
        self._doubt: _Doubt | None = None
        self._has_doubted = False

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
            records = agent._load()
            agent.briefing = agent._brief(records, records.open_actions)
        else:
            agent.acquire()
        return agent

    # --- the lease ---

    def acquire(self) -> Briefing:
        """Take the lease of an agent that was resumed with `defer_lease`, and go on as `resume` does. Raises as `resume`."""
        with self._lock:
            if self._keeper is not None:
                self._keeper.ready()
                return self.briefing
            asked_at = monotonic()
            lease = self._store.acquire_lease(self.agent, holder=self.holder, ttl=self._ttl)
            self._keeper = LeaseKeeper(self._store, lease, ttl=self._ttl, asked_at=asked_at)
            weakref.finalize(self, self._keeper.stop)  # an agent that is forgotten is not kept alive
            try:
                self._settle_interrupted()
            except BaseException:
                with suppress(ActionsError):
                    self._keeper.release()
                self._keeper = None
                raise
            return self.briefing

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
        if self._keeper is None:
            raise LeaseNotHeld(self.agent, "it was not acquired yet; call acquire() before writing")
        return self._keeper.ready()

    @property
    def newest_action(self) -> int:
        """The number of the newest action that this process has read or begun; 0 where there is none."""
        return self._newest_action

    @property
    def newest_turn(self) -> int:
        """The number of the newest turn that this process has read or written; 0 where there is none."""
        return self._newest_turn

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

        def plan(lease: Lease) -> _Plan:
            seq, now = self._newest_action + 1, time_ns()
            value = self._value(text, args_ref(seq))
            action = Action(
                agent=self.agent,
                seq=seq,
                tool=tool,
                action_class=kind,
                key=action_key(self.agent, seq),
                args=value.text,
                args_ref=value.ref,
                status=ActionStatus.STARTED,
                epoch=lease.epoch,
                written_epoch=lease.epoch,
                started_at=now,
            )
            return _Plan((*self._overflow(value, tool, now), Change(action, Condition.NEW)), action)

        begun: Action = self._write(("begin", tool, text, kind), plan)
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

        def plan(lease: Lease) -> _Plan:
            found = self._open_action(seq)
            return self._end_plan(lease, found, given, said)

        ended: Action = self._write(("end", seq, given, said), plan)
        return ended

    def pending_actions(self) -> tuple[Action, ...]:
        """The open actions as the store has them now, by number. Needs no lease."""
        read = self._store.read_actions(OPEN_STATUSES, limit=MAX_OPEN, agent=self.agent)
        return tuple(sorted((_readable(reading.action) for reading in read.readings), key=lambda action: action.seq))

    def reconcile(self, resolver: Resolver | None = None) -> tuple[Action, ...]:
        """Settle every open action with what a resolver says about it, in the order of their numbers; answers those that were closed.

        Pure ones are abandoned. Where the resolver cannot tell, raises, or answers what is no end, the action is unknown. One that is closed is
        written together with the turn that tells the model (recall-records 7, where a crash between the two loses the turn).
        """
        with self._lock:
            closed = [self._reconcile_one(action, resolver) for action in self.pending_actions()]
        return tuple(action for action in closed if action is not None)

    # --- turns, working state, outputs, pointers ---

    def record_turn(self, role: str, content: str, *, name: str = "", brief: str = "", message_id: str = "") -> Turn:
        """Append one message to the agent's history. Content over 8000 bytes goes to an output, in the same transaction."""
        given = check_turn(NewTurn(role, content, name, brief, message_id))

        def plan(lease: Lease) -> _Plan:
            changes, turn = self._turn_changes(given)
            return _Plan(changes, turn)

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
        return self._state

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

        def plan(lease: Lease) -> _Plan:
            output = self._output(named or self._free_ref(), text, tool, time_ns(), summary)
            return _Plan((Change(output, Condition.ANY if named else Condition.NEW),), output)

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

        def plan(lease: Lease) -> _Plan:
            pointer = Pointer(agent=self.agent, name=named, type=type, fields=kept, note=note, at=time_ns())
            return _Plan((Change(pointer, Condition.ANY),), pointer)

        written: Pointer = self._write(("pointer", named, type, tuple(sorted(kept.items())), note), plan)
        return written

    def remove_pointer(self, name: str) -> None:
        """Take a pointer out of the briefing; its record stays, as removed."""
        removed = RemovedPointer(agent=self.agent, name=check_name("pointer name", name))
        self._write(("removed pointer", removed.name), lambda lease: _Plan((Change(removed, Condition.ANY),), None))

    def pointers(self) -> tuple[Pointer, ...]:
        """Those that were not removed, by name, as the store has them. Needs no lease."""
        return tuple(map(_readable, self._store.list_pointers(self.agent)))

    def refresh(self) -> Briefing:
        """Read everything again, and make the briefing anew. Needs no lease."""
        with self._lock:
            records = self._load()
            self.briefing = self._brief(records, records.open_actions)
            return self.briefing

    # --- resuming ---

    def _settle_interrupted(self) -> None:
        """What an earlier process left open, as Recall's resume does it; then the resolver, then the briefing. A crash in between is no harm:
        the next resume settles what is left."""
        records = self._load()
        now = time_ns()
        settled = [end for action in records.open_actions if (end := _interrupted(action, now)) is not None]
        for start in range(0, len(settled), SETTLED_AT_ONCE):
            changes = tuple(Change(action, Condition.OPEN) for action in settled[start : start + SETTLED_AT_ONCE])
            self._write(("settle", start), partial(_as_planned, _Plan(changes, None)))
        if self._resolver is not None and records.open_actions and self.reconcile(self._resolver):
            records = self._load()
            self.briefing = self._brief(records, records.open_actions)
        else:
            self.briefing = self._brief(records, as_resumed(records.open_actions))

    def _load(self) -> AgentRecords:
        records = self._store.load_agent(self.agent)
        self._newest_turn = max(records.newest_turn, self._newest_turn)
        self._newest_action = max(records.newest_action, self._newest_action)
        self._state = records.working_state
        return records

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
        end = End("abandoned", resolution=PURE_GIVEN_UP) if action.action_class is ActionClass.PURE else _ask(resolver, action)
        if end.status == ActionStatus.UNKNOWN:
            if action.status is not ActionStatus.UNKNOWN:
                self.end_action(action, end.status, resolution=end.resolution or COULD_NOT_TELL)
            return None
        turn = None if action.action_class is ActionClass.PURE else self._told(action, end)
        return self.end_action(action, end.status, result=end.result, error=end.error, resolution=end.resolution, turn=turn)

    def _told(self, action: Action, end: End) -> NewTurn:
        """The turn of a settlement, in the words of Recall's reconcile; of an abandoned one too, or its model would go on waiting for it."""
        resolution = end.resolution.strip(SPACES) or action.resolution
        told = ActionEnd(
            status=ActionStatus(end.status), reason=resolution, resolution=resolution, result=end.result, error=end.error
        )
        words = settlement_turn(told, self._value(end.result, result_ref(action.seq)).text)
        return NewTurn("tool", words.content, name=action.tool, brief=words.brief)

    # --- writing ---

    def _write(self, gesture: tuple[object, ...], plan: Callable[[Lease], _Plan]) -> Any:
        """Plan a gesture and write it. One whose outcome is in doubt is not planned anew: it is asked for again, or found written."""
        with self._lock:
            if self._keeper is None:
                raise LeaseNotHeld(self.agent, "it was not acquired yet; call acquire() before writing")
            keeper = self._keeper
            lease = keeper.ready()
            doubt, planned = self._doubt, None
            if doubt is not None and doubt.gesture == gesture:
                planned = doubt.plan
            elif doubt is not None:
                self._clear_doubt(doubt)
            planned = planned or plan(lease)
            try:
                self._send(keeper, gesture, planned)
            except (WriteConflict, ActionNotOpen):
                if self._is_written(planned.changes):
                    self._adopt(planned.changes)
                    return planned.answer
                if not self._has_doubted:
                    raise
                # A write that was in doubt arrived after we had looked for it: its numbers are taken, ours come after them.
                self._load()
                planned = plan(lease)
                self._send(keeper, gesture, planned)
            return planned.answer

    def _send(self, keeper: LeaseKeeper, gesture: tuple[object, ...], planned: _Plan) -> None:
        lease = keeper.ready()
        before, self._doubt = (
            self._doubt,
            _Doubt(gesture, planned),
        )  # whatever stops us from here on: nobody knows whether it is written
        try:
            self._store.write(lease, planned.changes)
        except LeaseLost:
            self._doubt = None
            keeper.lose()
            raise
        except StoreUnavailable as exc:
            if exc.may_be_written:
                self._has_doubted = True
            else:
                self._doubt = before
            raise
        except ActionsError:
            self._doubt = before
            raise
        except BaseException:
            self._has_doubted = True
            raise
        self._adopt(planned.changes)

    def _adopt(self, changes: Sequence[Change]) -> None:
        """What is written is what this process goes on from."""
        self._doubt = None
        for change in changes:
            match change.record:
                case Action() as action:
                    self._newest_action = max(self._newest_action, action.seq)
                    if action.is_open:
                        self._begun[action.seq] = action
                    else:
                        self._begun.pop(action.seq, None)
                case Turn() as turn:
                    self._newest_turn = max(self._newest_turn, turn.seq)
                case WorkingState() as state:
                    self._state = state

    def _clear_doubt(self, doubt: _Doubt) -> None:
        """Something else is to be written: first know what became of the write that is in doubt, or its numbers would be used twice."""
        if self._is_written(doubt.plan.changes):
            self._adopt(doubt.plan.changes)
        for change in doubt.plan.changes:
            if isinstance(change.record, Action):
                self._begun.pop(change.record.seq, None)  # whatever became of it, the store knows
        self._doubt = None

    def _is_written(self, changes: Sequence[Change]) -> bool:
        """Whether these changes stand in the store. They are written together, so one that has a number speaks for all."""
        for change in changes:
            match change.record:
                case Action() as action:
                    try:
                        found = self._store.get_action(self.agent, action.seq).action
                    except ActionNotFound:
                        return False
                    return isinstance(found, Action) and replace(found, written_epoch=action.written_epoch) == action
                case Turn() as turn:
                    return turn in self._store.list_turns(self.agent, limit=1, before=turn.seq + 1)
                case WorkingState() as state:
                    return self._store.find_working_state(self.agent) == state
                case Output() as output if change.condition is Condition.NEW:
                    return self._store.read_outputs([(self.agent, output.ref)]).get((self.agent, output.ref)) == output
        return False  # what replaces whatever stands there may be written once more

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
        if (begun := self._begun.get(seq)) is not None:
            return begun
        if not 0 < seq < 2**63:
            raise ActionNotFound(ActionRef(self._store.name, self.agent, seq))
        action = _readable(self._store.get_action(self.agent, seq).action)
        if not action.is_open:
            raise ActionNotOpen(ActionRef(self._store.name, self.agent, seq), action)
        return action

    def _end_plan(self, lease: Lease, action: Action, end: End, turn: NewTurn | None) -> _Plan:
        status, now = ActionStatus(end.status), time_ns()
        value = self._value(end.result, result_ref(action.seq))
        ended = replace(
            action,
            status=status,
            result=value.text,
            result_ref=value.ref,
            error=end.error,
            resolution=end.resolution or action.resolution,
            written_epoch=lease.epoch,
            ended_at=None if status.is_open else now,
        )
        told = () if turn is None else self._turn_changes(turn)[0]
        return _Plan((*self._overflow(value, action.tool, now), Change(ended, Condition.OPEN), *told), ended)

    def _turn_changes(self, given: NewTurn) -> tuple[tuple[Change, ...], Turn]:
        now = time_ns()
        value = StoredValue(text=given.content)
        if self._value(given.content, "").whole:
            value = self._value(given.content, self._free_ref())
        turn = Turn(
            agent=self.agent,
            seq=self._newest_turn + 1,
            role=given.role,
            name=given.name,
            content=value.text,
            output_ref=value.ref,
            brief=given.brief,
            message_id=given.message_id,
            at=now,
        )
        return (*self._overflow(value, given.name, now, Condition.NEW), Change(turn, Condition.NEW)), turn

    def _update_state(self, given: Mapping[str, Any]) -> WorkingState:
        def plan(lease: Lease) -> _Plan:
            earlier = self._state or WorkingState(agent=self.agent, version=0, updated_at=0)
            state = replace(
                earlier,
                **given,
                version=earlier.version + 1,
                turn_seq=self._newest_turn,
                action_seq=self._newest_action,
                updated_at=time_ns(),
            )
            # Not NEW: a crash of Recall between version and head leaves a version that the head does not know; Recall replaces it too.
            return _Plan((Change(state, Condition.ANY),), state)

        updated: WorkingState = self._write(("state", tuple(sorted(given.items()))), plan)
        return updated

    def _value(self, text: str, ref: str) -> StoredValue:
        return store_value(text, ref, threshold=self._threshold)

    def _overflow(self, value: StoredValue, tool: str, now: int, condition: Condition = Condition.ANY) -> tuple[Change, ...]:
        """The output of a value that overflowed. An action's may stand there already, left by a crash of Recall between output and action."""
        return (Change(self._output(value.ref, value.whole, tool, now), condition),) if value.ref else ()

    def _output(self, ref: str, content: str, tool: str, now: int, summary: str = "") -> Output:
        return Output(
            agent=self.agent,
            ref=ref,
            content=content,
            tool=tool,
            summary=summary or _summary(content),
            tokens=(len(content.encode()) + 3) // 4,
            at=now,
        )

    def _free_ref(self) -> str:
        """`out-<next turn>-<n>` as Recall names them; one that an earlier process used is left alone."""
        while True:
            self._outputs += 1
            ref = f"out-{self._newest_turn + 1}-{self._outputs}"
            if not self._store.read_outputs([(self.agent, ref)]):
                return ref


def _as_planned(plan: _Plan, lease: Lease) -> _Plan:
    """A plan that needs no number and no lease."""
    return plan


def _interrupted(action: Action, now: int) -> Action | None:
    """An open action as the next resume leaves it; None where it stays as it is (recall-records 7)."""
    cleared = replace(action, result="", result_ref="", error="")  # as every end replaces them
    if action.action_class is ActionClass.PURE:
        return replace(cleared, status=ActionStatus.ABANDONED, resolution=PURE_GIVEN_UP, ended_at=now)
    if action.action_class is ActionClass.EXTERNAL and action.status is ActionStatus.STARTED:
        return replace(cleared, status=ActionStatus.UNKNOWN, resolution=NO_RESOLVER)
    return None


def _ask(resolver: Resolver | None, action: Action) -> End:
    """What a resolver says, as texts that can be kept. Whatever is no end is "cannot tell": an error is never taken for a failed call."""
    if resolver is None:
        return End("unknown")
    try:
        said = resolver(action)
        if said is None:
            return End("unknown")
        end = End(
            status=check_end_status(said.status).value,
            result=value_text("result", getattr(said, "result", "")),
            error=clean_text("error", getattr(said, "error", "") or ""),
            resolution=clean_text("resolution", getattr(said, "resolution", "") or ""),
        )
    except Exception:
        log.exception("the resolver could not tell about action %s of agent %s", action.seq, action.agent)
        return End("unknown")
    return end


def _summary(content: str) -> str:
    """The first 200 bytes and three dots, as Recall writes it where none is given."""
    return cut_bytes(content, SUMMARY_BYTES) + "..."


def _texts(name: str, items: object) -> tuple[str, ...]:
    if isinstance(items, str) or not isinstance(items, Sequence):
        raise InvalidRecord(f"{name} is {type(items).__name__}, not a list of texts")
    return tuple(clean_text(name, item) for item in items)


def _readable(record: Noun | Unreadable) -> Noun:
    if isinstance(record, Unreadable):
        raise RecordUnreadable(record.record_id, record.problem)
    return record
