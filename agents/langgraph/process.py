"""What the tools and the hooks of one agent share while this process has it: what is settled, what runs, what is repeated."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from actions.errors import InvalidRecord
from actions.records import Action, ActionClass, ActionStatus, Turn
from agents import calls
from agents.harness import DurableAgent, Resolver
from agents.langgraph.asking import Asking, CallNotMade
from agents.langgraph.messages import tool_message
from agents.langgraph.repeats import Call, Entered, comparable, current_attempt, may_run_again, told_by
from agents.langgraph.tools import DurableTool
from agents.runs import Gate

_TURNS_READ = 200
_ACTIONS_READ = 200


class Process:
    """One agent's, from the build of its tools on. Safe in several threads; single steps on its dictionaries take no lock."""

    def __init__(
        self, agent: DurableAgent, resolver: Resolver | None, *, gates: Mapping[str, Gate] | None = None, type_version: int = 0
    ) -> None:
        self.agent = agent
        self.tools: list[DurableTool] = []
        self.asking = Asking(gates, type_version=type_version)
        self.has_hooks = False
        self._resolver = resolver
        self._lock = threading.RLock()
        self._is_settled = False
        self._step: Entered | None = None
        self._before: tuple[Turn, ...] = ()  # what earlier processes recorded
        self._turns: set[str] = set()  # calls whose turn was written with their end
        # What LangGraph may run again by itself: calls that came back, and those of which something else is known.
        self._outputs: dict[Call, Any] = {}
        self._repeats: list[Action] = []
        # Of this process, since the model was asked: calls that run, and those of which no end is recorded.
        self._running: dict[Call, Action | None] = {}
        self._left_open: dict[Call, Action] = {}
        self._is_briefing_old = False
        self._made: list[tuple[str, int, Action]] = []  # by this process: task, attempt at it, the call

    def enter(self, step: Entered) -> None:
        """Before anything else: which step of a run this process is in."""
        self._step = step
        self.asking.cancels, self.asking.let_through = step.cancels, step.let_through

    def settle(self) -> tuple[Action, ...]:
        """Once for each process; answers what was closed."""
        with self._lock:
            if self._is_settled:
                return ()
            opened = {action.seq for action in self.agent.pending_actions()}
            self._before = self.agent.recent_turns(_TURNS_READ)
            closed = calls.settle(self.agent, [tool.calls for tool in self.tools], resolver=self._resolver)
            if self._step is not None or self.has_hooks:
                self._know_repeats(opened)
            self._is_settled = True
            return closed

    def known_before(self) -> set[str]:
        """The ids of messages that earlier processes recorded."""
        self.settle()
        return {turn.message_id for turn in self._before if turn.message_id}

    def asks_model(self) -> None:
        """From here on a call is what the model decided after reading its briefing, never a repetition. What was left open since is in there.

        Not in a step of a run: another branch of the same step may still have its calls to repeat, and none is made twice.
        """
        self.settle()
        with self._lock:
            if self._is_briefing_old:
                self.agent.refresh()
                self._is_briefing_old = False
            if self._step is None:
                self._outputs.clear()
                self._repeats.clear()
                self._left_open.clear()

    def answer(
        self, tool: DurableTool, call_id: str | None, forms: Sequence[Mapping[str, Any]]
    ) -> tuple[Any, Mapping[str, Any]] | None:
        """What the graph gets instead of a call that it repeats by itself, without asking the model; None: it is to be run.

        `forms`: the arguments that it would be made with now, then those that a lost attempt may have made it with; the one that it was
        made with comes along. A call that is refused has only the latter, if any.

        LangGraph runs a whole node again that was interrupted or killed, with the calls that were over as well. A call that came back is
        answered with what it gave, one that was settled meanwhile with that; one that may have happened, in this process or an earlier one, is
        answered with that, and so is a second call by the same id beside the first. What was settled as failed may be run again. Outside of a
        run's step only with hooks, which know when the model was asked, and with call ids.
        """
        self.settle()
        if self._step is None and (call_id is None or not self.has_hooks):
            return None
        with self._lock:
            for form in forms:
                try:
                    call = tool.call_of(form, call_id)
                except InvalidRecord:
                    continue  # no record could have kept it, so it was never made
                if (known := self._known(tool, call, call_id)) is not None:
                    return known, form
            if call_id and forms:
                self._running[tool.call_of(forms[0], call_id)] = None
        return None

    def _known(self, tool: DurableTool, call: Call, call_id: str | None) -> Any:
        if call_id and call in self._outputs:
            return self._outputs[call]
        if call_id and call in self._running:
            return self._told_instead(tool, self._running[call], call_id, "is being made by this very id")
        if call in self._left_open and tool.calls.action_class is ActionClass.EXTERNAL:
            return self._told_instead(tool, self._left_open[call], call_id, "was made with these arguments already")
        for action in self._repeats:
            if action.tool == tool.name and comparable(self._whole_args(action)) == call.args:
                self._repeats.remove(action)
                return self._told_instead(tool, action, call_id, "was called with these arguments before a crash")
        if (earlier := self._of_earlier_attempt(tool.name, call.args)) is not None:
            return self._told_instead(tool, earlier, call_id, "was called with these arguments before")
        return None

    def _of_earlier_attempt(self, tool: str, args: str) -> Action | None:
        """A call that this task made before it was tried again by LangGraph's own retry policy, as it stands now; each once an attempt."""
        task, attempt = current_attempt() or ("", 1)
        for made in self._made if attempt > 1 else ():
            of_task, of_attempt, action = made
            if of_task != task or of_attempt >= attempt or action.tool != tool or comparable(self._whole_args(action)) != args:
                continue
            now = next((one for one in self.agent.recent_actions(_ACTIONS_READ) if one.seq == action.seq), action)
            if not may_run_again(now):
                self._made[self._made.index(made)] = (task, attempt, action)
                return now
        return None

    # Single steps on dictionaries, without the lock: an event loop must not wait for one that is held while a store answers.

    def began(self, call: Call, action: Action) -> None:
        self._running[call] = action
        if (attempt := current_attempt()) is not None:
            self._made.append((*attempt, action))

    def ended(self, call: Call) -> None:
        """Its end is recorded, or it was not begun: the graph may make it again."""
        self._running.pop(call, None)
        self._left_open.pop(call, None)

    def left(self, call: Call) -> None:
        """Nobody is in it any more. Where no end was recorded it stays open, and may have happened."""
        if (action := self._running.get(call)) is not None:
            self._is_briefing_old = True
            if call.id and self.has_hooks:
                self._left_open[call] = action  # before it is taken out below: whoever asks meanwhile finds it in one of the two
        self._running.pop(call, None)

    def left_open(self, call: Call) -> Action | None:
        return self._left_open.get(call)

    def returned(self, call: Call, output: Any) -> None:
        self.told(call.id)
        if call.id:
            self._outputs[call] = output
        self.ended(call)

    def told(self, call_id: str) -> None:
        if call_id:
            self._turns.add(call_id)

    def has_turn(self, call_id: str) -> bool:
        return call_id in self._turns

    def _know_repeats(self, opened: Collection[int]) -> None:
        """Every call of the step, or since the model's newest message: by call id where its turn tells it, else by what it was given.

        In a run the number of its actions at the step's first beginning is known. Elsewhere the turns tell: each call that was closed left
        one behind the message that it belongs to, whoever closed it, so no clock is asked.
        """
        step, turns = self._step, self._turns_since()
        limit = _ACTIONS_READ if step is None else max(_ACTIONS_READ, self.agent.newest_action - step.newest_action)
        actions = self.agent.recent_actions(limit)
        of_turn = told_by(turns, actions)
        since = {*opened, *of_turn} if step is None else {one.seq for one in actions if one.seq > step.newest_action}
        forgets_failed = step is not None and step.is_retry
        for action in actions:
            if action.seq not in since:
                continue
            turn = of_turn.get(action.seq)
            if turn is not None and turn.message_id.startswith(calls.CALL_TURN):
                if action.status is ActionStatus.FAILED and forgets_failed:
                    continue
                call_id = turn.message_id.removeprefix(calls.CALL_TURN)
                is_error = action.status is ActionStatus.FAILED
                said = tool_message(action.tool, calls.whole_turn(self.agent, turn), call_id, is_error=is_error)
                self._outputs[Call(call_id, action.tool, comparable(self._whole_args(action)))] = said
            elif not may_run_again(action):
                self._repeats.append(action)

    def _turns_since(self) -> list[Turn]:
        """The tools' turns since the model's newest message, or of the step; settling now has added some."""
        turns = list(self.agent.recent_turns(_TURNS_READ))
        if self._step is not None:
            turns = [turn for turn in turns if turn.seq > self._step.newest_turn]
        else:
            newest = max((index for index, turn in enumerate(turns) if turn.role == "assistant"), default=-1)
            turns = turns[newest + 1 :]
        return [turn for turn in turns if turn.role == "tool"]

    def _told_instead(self, tool: DurableTool, action: Action | None, call_id: str | None, how: str) -> Any:
        if action is not None and action.status is ActionStatus.DONE:
            result = self.agent.get_output(action.result_ref).content if action.result_ref else action.result
            return tool_message(tool.name, result or "done", call_id) if call_id else tool.as_returned(result)
        if action is not None and action.status is ActionStatus.ABANDONED:
            why = f"somebody has given the call up (action {action.seq}: {action.resolution or 'no reason given'})"
        else:
            which = f" (action {action.seq}, key {action.key})" if action is not None else ""
            why = f"{tool.name} {how}{which}, and nobody knows whether it happened. Check before repeating it."
        if call_id is None:
            raise CallNotMade(f"{tool.name} was not called: {why}")
        return tool_message(tool.name, f"not called: {why}", call_id, is_error=True)

    def _whole_args(self, action: Action) -> str:
        return self.agent.get_output(action.args_ref).content if action.args_ref else action.args
