"""What one process writes of its agent: one gesture after the other, each written or known not to be before the next, and what it goes on from."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from actions.errors import ActionNotFound, ActionNotOpen, ActionsError, LeaseLost, StoreUnavailable, WriteConflict
from actions.records import Action, AgentRecords, Change, Condition, Lease, Output, Turn, WorkingState
from actions.store.base import AgentStore
from agents.keeper import LeaseKeeper


class Plan(NamedTuple):
    """The changes of one gesture, and what it answers once they are written."""

    changes: tuple[Change, ...]
    answer: Any


class Doubt(NamedTuple):
    """A write whose outcome nobody knows, and the gesture that asked for it."""

    gesture: tuple[object, ...]
    plan: Plan


class Writes:
    """Safe in several threads: `lock` is held while something is planned and written, and never while a resolver is asked."""

    def __init__(self, store: AgentStore, agent: str) -> None:
        self.agent = agent
        self.lock = threading.RLock()
        self.newest_turn = 0
        self.newest_action = 0
        self.state: WorkingState | None = None
        self.begun: dict[int, Action] = {}  # open ones, as we wrote them under this lease
        self.doubt: Doubt | None = None
        self._has_doubted = False
        self._store = store

    def load(self) -> AgentRecords:
        """Read the agent again; what is newer there is what this process goes on from."""
        records = self._store.load_agent(self.agent)
        self.newest_turn = max(records.newest_turn, self.newest_turn)
        self.newest_action = max(records.newest_action, self.newest_action)
        self.state = records.working_state
        return records

    def write(self, keeper: LeaseKeeper, gesture: tuple[object, ...], plan: Callable[[Lease], Plan]) -> Any:
        """Plan a gesture and write it. One whose outcome is in doubt is not planned anew: it is asked for again, or found written."""
        with self.lock:
            lease = keeper.ready()
            doubt, planned = self.doubt, None
            if doubt is not None and doubt.gesture == gesture:
                planned = doubt.plan
            elif doubt is not None:
                self.clear_doubt(doubt)
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
                self.load()
                planned = plan(lease)
                self._send(keeper, gesture, planned)
            return planned.answer

    def clear_doubt(self, doubt: Doubt) -> None:
        """Something else is to be written: first know what became of the write that is in doubt, or its numbers would be used twice."""
        if self._is_written(doubt.plan.changes):
            self._adopt(doubt.plan.changes)
        for change in doubt.plan.changes:
            if isinstance(change.record, Action):
                self.begun.pop(change.record.seq, None)  # whatever became of it, the store knows
        self.doubt = None

    def _send(self, keeper: LeaseKeeper, gesture: tuple[object, ...], planned: Plan) -> None:
        lease = keeper.ready()
        before = self.doubt
        self.doubt = Doubt(gesture, planned)  # whatever stops us from here on: nobody knows whether it is written
        try:
            self._store.write(lease, planned.changes)
        except LeaseLost:
            self.doubt = None
            keeper.lose()
            raise
        except StoreUnavailable as exc:
            if exc.may_be_written:
                self._has_doubted = True
            else:
                self.doubt = before
                if before is not None and before.gesture == gesture:  # not this time, but perhaps the time before
                    raise StoreUnavailable(exc.store, exc.problem, may_be_written=True) from exc
            raise
        except ActionsError:
            self.doubt = before
            raise
        except BaseException:
            self._has_doubted = True
            raise
        self._adopt(planned.changes)

    def _adopt(self, changes: Sequence[Change]) -> None:
        """What is written is what this process goes on from."""
        self.doubt = None
        for change in changes:
            match change.record:
                case Action() as action:
                    self.newest_action = max(self.newest_action, action.seq)
                    if action.is_open:
                        self.begun[action.seq] = action
                    else:
                        self.begun.pop(action.seq, None)
                case Turn() as turn:
                    self.newest_turn = max(self.newest_turn, turn.seq)
                case WorkingState() as state:
                    self.state = state

    def _is_written(self, changes: Sequence[Change]) -> bool:
        """Whether these changes stand in the store. They are written together, so one that has a number speaks for all."""
        for change in changes:
            match change.record:
                case Action() as action:
                    try:
                        found = self._store.get_action(self.agent, action.seq).action
                    except ActionNotFound:
                        return False
                    return isinstance(found, Action) and is_same(found, action)
                case Turn() as turn:
                    return turn in self._store.list_turns(self.agent, limit=1, before=turn.seq + 1)
                case WorkingState() as state:
                    return self._store.find_working_state(self.agent) == state
                case Output() as output if change.condition is Condition.NEW:
                    return self._store.read_outputs([(self.agent, output.ref)]).get((self.agent, output.ref)) == output
        return False  # what replaces whatever stands there may be written once more


def is_same(found: Action, action: Action) -> bool:
    """Whether two say the same, under whichever lease each was written."""
    return replace(found, written_epoch=action.written_epoch) == action
