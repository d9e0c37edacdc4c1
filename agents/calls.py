"""What every durable call writes, whatever calls it: begun before the tool runs, ended together with the turn that the agent reads.

Also how a build is checked, and what a resume does about the calls that a crash left open.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from actions.errors import ActionsError, StoreUnavailable
from actions.limits import MAX_MESSAGE_ID_BYTES, MAX_VALUE_BYTES, clean_text
from actions.records import Action, ActionClass, NewTurn, Turn
from actions.turns import cut_bytes
from agents.harness import DurableAgent, End, Resolver
from agents.ledger import Ledger, LedgerNote

KEY_ARGUMENT = "idempotency_key"
RERUN = "re-run with the same key after a crash"
NOTED = "found in the ledger under its key"
TOLD = "its result was recorded as turn {} before the crash"
CALL_TURN = "tool-call:"
"""How the message id of a tool's turn begins, before the id that the model gave its call (recall-records 13)."""
UNSURE: tuple[type[Exception], ...] = (TimeoutError, ConnectionResetError, ConnectionAbortedError, BrokenPipeError)
"""Errors after which nobody knows whether the other side did it: it may have, and only its answer was lost."""
_TURNS_READ = 200
_ACTIONS_READ = 200

log = logging.getLogger(__name__)


class ToolsRefused(ActionsError, ValueError):
    """The tools cannot be made durable as they were given. Nothing was wrapped or recorded; the message names every problem."""


class UnclassifiedTool(ToolsRefused):
    """Tools without a class. Nothing was wrapped or recorded; `.tools` names them. A guessed class is how an email is sent twice."""

    def __init__(self, tools: Sequence[str]) -> None:
        self.tools = tuple(tools)
        words = "pure (it only reads), idempotent (safe to repeat with the same key) or external (could happen twice)"
        super().__init__(f"every durable tool needs a class, {words}; without one: {', '.join(tools)}")


class EndUnrecorded(ActionsError):
    """The tool returned and its action is still open, or nobody knows: the store did not take the end, or the lease was lost.

    What the tool did is done: do not call it again. `.action` is what was begun, `.result` what the tool returned; a resume settles it.
    """

    def __init__(self, action: Action, result: str, problem: ActionsError) -> None:
        self.action = action
        self.result = result
        super().__init__(
            f"{action.tool} returned, but the end of action {action.seq} (key {action.key}) could not be recorded: {problem}. "
            "Do not call it again; the next resume settles it"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCalls:
    """One durable tool of one agent, as its calls are recorded. Safe in several threads at once; each call ends by itself."""

    agent: DurableAgent
    tool: str
    action_class: ActionClass
    takes_key: bool
    rerun: Callable[[Mapping[str, Any], str], str]  # runs the tool itself with recorded arguments and their key, unrecorded
    may_hide_errors: bool = False  # what it returns may be an error that it caught itself
    ledger: Ledger | None = None  # of external tools
    compensate: str = ""  # the tool that undoes it; kept for whoever walks a run backward
    unsure: tuple[type[Exception], ...] = UNSURE  # exceptions after which nobody knows whether it happened

    def begin(self, arguments: Mapping[str, Any] | str) -> Action:
        """Record the call. Run the tool only if this returns. Raises what `begin_action` does, with nothing to be run."""
        if self.action_class is ActionClass.IDEMPOTENT and not isinstance(arguments, str):
            arguments = as_json(self.tool, arguments)
        return _asked_again(lambda: self.agent.begin_action(self.tool, arguments, self.action_class))

    def returned(self, action: Action, result: str, *, call_id: str = "") -> None:
        """Close as done, with the turn, in one transaction.

        Raises:
            EndUnrecorded: the tool returned and the action stays open.
        """
        text = storable(result)
        self._note(action, "done", result=text)
        turn = self._turn(text or "done", call_id)
        try:
            _asked_again(lambda: self.agent.end_action(action, "done", result=text, turn=turn))
        except ActionsError as exc:
            raise EndUnrecorded(action, text, exc) from exc

    def raised(self, action: Action, exc: Exception, *, call_id: str = "") -> bool:
        """Close as failed, with the turn; `unknown`, without one, after a time-out of what may change the world. Answers whether it is closed.
        Raises nothing of its own."""
        return self.reported(action, exc, error_text(exc), call_id=call_id)

    def reported(self, action: Action, exc: Exception | None, error: str, *, call_id: str = "") -> bool:
        """As `raised`, with what the tool itself reported of an error; `exc` None: nobody knows what it came of, so it counts as failed."""
        if exc is not None and self.action_class is not ActionClass.PURE and _came_of(exc, (*self.unsure, EndUnrecorded)):
            self._end_quietly(action, exc, "unknown", resolution=f"the tool does not know whether it happened: {error}")
            return False
        self._note(action, "failed", error=error)
        return self._end_quietly(action, exc, "failed", error=error, turn=self._turn(f"failed: {error}", call_id))

    def unfinished(self, action: Action, result: Any) -> TypeError:
        """Leave open, as `unknown`, what gave something that is not over when it returns; answers what to raise."""
        exc = TypeError(
            f"{self.tool} returned a {type(result).__name__}, which is not over when it returns; return the whole result"
        )
        self._end_quietly(action, exc, "unknown", resolution=f"nobody knows how far it came: {exc}")
        return exc

    def stopped(self, action: Action, exc: Exception, resolution: str) -> None:
        """Close as abandoned: whoever stopped the call runs it again, as another action."""
        self._end_quietly(action, exc, "abandoned", resolution=resolution)

    def _end_quietly(self, action: Action, exc: Exception | None, status: str, **end: Any) -> bool:
        """The tool's own error is what its caller has to see; an end that was not recorded is said beside it. Answers whether it was."""
        try:
            _asked_again(lambda: self.agent.end_action(action, status, **end))
            return True
        except ActionsError as problem:
            said = f"action {action.seq} ({self.tool}, key {action.key}) could not be closed as {status}: {problem}"
            log.warning("%s; the next resume settles it", said)
            if exc is not None:
                exc.add_note(said)
            return False

    def _turn(self, text: str, call_id: str) -> NewTurn:
        return NewTurn(role="tool", content=storable(text), name=self.tool, message_id=call_turn_id(call_id))

    def _note(self, action: Action, status: str, *, result: str = "", error: str = "") -> None:
        if self.ledger is None or self.action_class is not ActionClass.EXTERNAL:
            return
        note = LedgerNote(
            key=action.key,
            agent=action.agent,
            seq=action.seq,
            tool=self.tool,
            args=action.args,
            status=status,
            result=result,
            error=error,
        )
        try:
            self.ledger.note(note)
        except Exception as exc:  # whatever the place of the ledger raises: the call's own end matters more
            log.warning("the ledger has no note of action %s (%s): %s", action.seq, self.tool, exc)


def check_tools(
    names: Sequence[str], classes: Mapping[str, str], *, takes_key: Collection[str], compensate: Mapping[str, str]
) -> None:
    """Refuse a build in which a tool has no class or the declarations contradict each other.

    Raises:
        UnclassifiedTool: it names every tool that has no class.
        ToolsRefused: every other problem, all in one message.
    """
    if unclassified := [name for name in dict.fromkeys(names) if name not in classes]:
        raise UnclassifiedTool(unclassified)
    words = [word.value for word in ActionClass]
    problems = [f"two tools are named {name}" for name, times in Counter(names).items() if times > 1]
    problems += [f"classes names {name}, which is not among the tools" for name in classes if name not in names]
    problems += [
        f"{name} has class {word!r}; use one of {', '.join(words)}" for name, word in classes.items() if word not in words
    ]
    problems += [
        f"{name} is idempotent but takes no {KEY_ARGUMENT}: a repeat could not be told from a second call; add the parameter, "
        "or call it external"
        for name in names
        if classes[name] == ActionClass.IDEMPOTENT and name not in takes_key
    ]
    problems += [
        f"compensate names {name}, which is not among the tools"
        for name in dict.fromkeys([*compensate, *compensate.values()])
        if name not in names
    ]
    problems += [f"{name} would undo itself" for name, undo in compensate.items() if name == undo]
    problems += [f"{name!r} is no name of a tool: 1 to 128 bytes" for name in names if not 1 <= len(name.strip().encode()) <= 128]
    if problems:
        raise ToolsRefused("; ".join(problems))


def warn_of_tools(
    names: Sequence[str], classes: Mapping[str, str], *, takes_key: Collection[str], undone: Collection[str]
) -> None:
    """A line of the log for each declaration that is only unwise. Once for each build; a run's tools are built anew for each step."""
    for name in names:
        if classes[name] == ActionClass.EXTERNAL and name not in takes_key:
            log.warning("%s takes no %s: after a crash it can only be looked for by what it was given", name, KEY_ARGUMENT)
        if classes[name] == ActionClass.PURE and name in undone:
            log.warning("%s is pure and has a compensation: there is nothing to undo", name)


def settle(agent: DurableAgent, tools: Iterable[ToolCalls], *, resolver: Resolver | None = None) -> tuple[Action, ...]:
    """Settle what a crash left open, before the model reads its briefing; answers those that were closed, by number.

    An action whose result already stands as a turn is closed with it (recall-langgraph writes the turn first). An idempotent call is
    made again with its own arguments and key; one that raises this time stays `unknown`, since the first may have arrived. An external
    call is looked up in its ledger, then `resolver` is asked. The rest stays open, and is what the briefing begins with. Calls that this
    process is in are left alone (`DurableAgent.reconcile`).

    Raises:
        LeaseLost: another process has the agent. What was closed before stays closed; a call made again is open there.
        StoreUnavailable: the same; settle again.
    """
    by_name = {calls.tool: calls for calls in tools}
    opened = agent.pending_actions()
    told = [closed for action in opened if (closed := _close_as_told(agent, action, opened, by_name.get(action.tool)))]

    def answer(action: Action) -> Any:
        calls = by_name.get(action.tool)
        known = None if calls is None else _known_end(calls, action)
        return known or (None if resolver is None else resolver(action))

    settled = agent.reconcile(answer)
    if opened:
        agent.refresh()
    return tuple(sorted([*told, *settled], key=lambda action: action.seq))


def _known_end(calls: ToolCalls, action: Action) -> End | None:
    """What we know of an interrupted call without asking the world about it."""
    if calls.action_class is not action.action_class:
        return None  # declared otherwise since: neither the ledger nor a repeat is to be trusted
    if action.action_class is ActionClass.IDEMPOTENT:
        return _run_again(calls, action)
    return _noted(calls, action)


def _asked_again(write: Callable[[], Action]) -> Action:
    """A write whose answer was lost, once more: what was written is found, and nothing is written twice (agents/harness.py)."""
    try:
        return write()
    except StoreUnavailable:
        return write()


def still_open(agent: DurableAgent) -> str:
    """What to say beside a model's "done" while calls are open, a line for each; empty when nothing is. Reads the store."""
    opened = agent.pending_actions()
    if not opened:
        return ""
    lines = [
        f"- action {action.seq}, {action.tool} ({action.action_class}, {action.status}), key {action.key}" for action in opened
    ]
    count = "1 call is" if len(opened) == 1 else f"{len(opened)} calls are"
    return "\n".join([f"Not finished, whatever the agent says: {count} still open, and may or may not have happened.", *lines])


def _close_as_told(agent: DurableAgent, action: Action, opened: Sequence[Action], calls: ToolCalls | None) -> Action | None:
    """Closes an action whose result is a turn already; None where that is not certain.

    The turn names its tool and not its action (recall-records 13), so it counts only where no other action can have written it: one open
    action of the tool, none of the tool closed since it began, one such turn since.
    """
    if calls is None or calls.may_hide_errors or action.action_class is ActionClass.PURE or agent.is_in_flight(action):
        return None
    if sum(other.tool == action.tool for other in opened) != 1:
        return None
    written = [
        turn
        for turn in agent.recent_turns(_TURNS_READ)
        if turn.role == "tool"
        and turn.name == action.tool
        and turn.message_id.startswith(CALL_TURN)
        and turn.at >= action.started_at
    ]
    if len(written) != 1 or _others_closed_since(agent, action):
        return None
    (turn,) = written
    return agent.end_action(action, "done", result=whole_turn(agent, turn), resolution=TOLD.format(turn.seq))


def _others_closed_since(agent: DurableAgent, action: Action) -> bool:
    """Whether another action of the tool ended since this one began; yes where it is too old to tell."""
    recent = agent.recent_actions(_ACTIONS_READ)
    others = [other for other in recent if other.tool == action.tool and other.ended_at is not None]
    return all(other.seq != action.seq for other in recent) or any((other.ended_at or 0) >= action.started_at for other in others)


def whole_turn(agent: DurableAgent, turn: Turn) -> str:
    """What a turn says, also where it overflowed."""
    return agent.get_output(turn.output_ref).content if turn.output_ref else turn.content


def _noted(calls: ToolCalls, action: Action) -> End | None:
    if calls.ledger is None or action.action_class is not ActionClass.EXTERNAL:
        return None
    try:
        note = calls.ledger.find(action.key)
    except (OSError, ValueError) as exc:
        log.warning("the ledger cannot say what became of action %s (%s): %s", action.seq, action.tool, exc)
        return None
    if note is None or (note.agent, note.seq, note.tool) != (action.agent, action.seq, action.tool):
        return None
    return End(note.status, result=note.result, error=note.error, resolution=NOTED)


def _run_again(calls: ToolCalls, action: Action) -> End:
    try:
        arguments = json.loads(calls.agent.get_output(action.args_ref).content if action.args_ref else action.args)
        if not isinstance(arguments, dict):
            raise TypeError("the recorded arguments name no parameters")
        result = calls.rerun(arguments, action.key)
    except Exception as exc:  # whatever the tool raises; it may have happened in the process that died
        log.warning("action %s (%s) run again: %s", action.seq, action.tool, error_text(exc))
        return End("unknown", resolution=f"{RERUN}: {error_text(exc)}")
    return End("done", result=storable(result), resolution=RERUN)


def as_json(tool: str, arguments: Mapping[str, Any]) -> str:
    """Arguments that can be given again as they were.

    Raises:
        TypeError: they are no JSON. Nothing was recorded or run.
    """
    try:
        return json.dumps(arguments, sort_keys=True)
    except (TypeError, ValueError, RecursionError) as exc:
        raise TypeError(f"{tool} is idempotent and its arguments must be JSON, so that it can be run again: {exc}") from exc


def result_text(value: Any) -> str:
    """A result as text, as Recall's client writes it: text as it is, nothing as nothing, the rest as JSON. Never raises: the call happened."""
    if value is None or isinstance(value, str):
        return value or ""
    try:
        return json.dumps(value, sort_keys=True, default=str)
    except Exception:  # keys of several types, a value that contains itself or is nested too deeply, or cannot be printed
        try:
            return repr(value)
        except Exception:
            return f"<a {type(value).__name__} that cannot be written as text>"


def is_unfinished(result: Any) -> bool:
    """Whether a tool returned before it was over: its work is done, or not, while somebody reads what it gave."""
    return inspect.isgenerator(result) or inspect.isasyncgen(result)


def _came_of(exc: BaseException, kinds: tuple[type[Exception], ...]) -> bool:
    """Whether this is, or was raised because of or while handling, one of these: libraries wrap a time-out in an error of their own.

    `raise ... from None` says that what came before does not matter.
    """
    rest: list[BaseException | None] = [exc]
    seen: set[int] = set()
    while rest:
        found = rest.pop()
        if found is None or id(found) in seen:
            continue
        seen.add(id(found))
        if isinstance(found, kinds):
            return True
        rest.append(found.__cause__)
        if not found.__suppress_context__:
            rest.append(found.__context__)
        if isinstance(found, BaseExceptionGroup):
            rest.extend(found.exceptions)
    return False


def error_text(exc: Exception) -> str:
    try:
        return storable(f"{type(exc).__name__}: {exc}")
    except Exception:  # an exception whose own text raises still ended the call
        return type(exc).__name__


def storable(text: str) -> str:
    """Text that every store keeps: the call happened, so what it said must not keep its end from being written."""
    whole = clean_text("text", text)
    size = len(whole.encode())
    if size <= MAX_VALUE_BYTES:
        return whole
    tail = f"... [cut; {size} bytes in all]"
    return cut_bytes(whole, MAX_VALUE_BYTES - len(tail)) + tail


def call_turn_id(call_id: str) -> str:
    """The message id of a tool's turn; empty where the call had no id."""
    return message_id(f"{CALL_TURN}{call_id}") if call_id else ""


def message_id(text: str) -> str:
    """An id that the records take: a longer one is kept by its digest, so that it is still told from others."""
    clean = storable(text)
    if len(clean.encode()) <= MAX_MESSAGE_ID_BYTES:
        return clean
    head = CALL_TURN if clean.startswith(CALL_TURN) else ""
    return f"{head}sha256:{hashlib.sha256(clean.encode()).hexdigest()}"
