"""Asking a person before a call is recorded: which calls of a task are asked about at once, and what their answers let through."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langgraph.config import get_config
from langgraph.errors import GraphInterrupt

from actions.errors import ActionsError
from actions.rules import as_column
from agents.gates import AskedCall, GatedCall, ask, edited_args, needs_approval, refusal, tell_of_edit
from agents.runs import Gate

_SCRATCHPAD = "__pregel_scratchpad"
"""In a task's configuration: what its questions are counted by. Another one where the task runs again with an answer."""
MAX_ID_CHARS = 255
"""Of a call's id, as whoever keeps what was asked does."""
_PULL = "__pregel_pull"
"""In the path of a task that a state started, and no Send: a node that makes every call of a message."""


class CallNotMade(ActionsError):
    """A call without a call id was not made: a person refused it, gave it up, or nobody knows whether it happened before. Nothing was begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """A call after its gate: as it is to be made, and what a person said of it, if one was asked.

    `written`: what the model gave. `before`: with what people let it through earlier in the same step of a run: an attempt that was lost may
    have made it so.
    """

    tool: str
    call_id: str
    arguments: Mapping[str, Any]
    written: Mapping[str, Any]
    before: tuple[Mapping[str, Any], ...] = ()
    call: GatedCall | None = None
    decision: Mapping[str, Any] = field(default_factory=dict)

    @property
    def forms(self) -> tuple[Mapping[str, Any], ...]:
        """Every way in which it may have been made already, that in which it is made now first. A call that nobody ever let through is no
        other one's repetition, whatever that was given."""
        return self.before if self.is_refused else (self.arguments, *self.before)

    @property
    def is_refused(self) -> bool:
        return self.decision.get("type") in ("reject", "respond")

    def refused(self) -> Any:
        """What the graph gets instead. A call without an id is made by code, which could take a refusal for a result: that is an error."""
        assert self.call is not None  # noqa: S101 - only a gated call is refused
        said = refusal(self.call, self.decision)
        if self.call.call_id:
            return said
        if self.decision["type"] == "respond":
            return self.decision["message"]
        raise CallNotMade(f"{self.call.tool} was not called: {said.content if said else ''}")

    def told(self, output: Any, made_with: Mapping[str, Any] | None = None) -> Any:
        """What the tool gave, with a word of what a person changed. `made_with`: the one of `forms` in which the call was made before."""
        edited = edited_args(self.decision) if self.decision else None
        if made_with is not None and made_with is not self.arguments:
            edited = None if made_with == self.written else made_with
        return output if edited is None or not self.call_id else tell_of_edit(output, self.tool, edited, self.call_id)


class Asking:
    """The gates of one agent's tools in this process, and what was answered here."""

    def __init__(self, gates: Mapping[str, Gate] | None = None, *, type_version: int = 0) -> None:
        self.newest_calls: tuple[Mapping[str, Any], ...] = ()  # of the model's newest message
        self.cancels = 0  # of the run, where this is one
        self.let_through: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]] = {}  # as repeats.py Entered
        self.answered: Sequence[tuple[AskedCall, Mapping[str, Any]]] = ()  # what people said under a rule that may be gone by now
        self._gates = dict(gates or {})
        self._type_version = type_version
        self._lock = threading.Lock()
        self._decided: dict[tuple[str, ...], tuple[Any, list[Mapping[str, Any]] | GraphInterrupt]] = {}

    def allowed(self, tool: str, arguments: Mapping[str, Any], *, shown: Mapping[str, Any], call_id: str | None) -> Allowed:
        """The call as it is to be made, once a person has agreed where the tool has a gate. `shown`: what of its arguments the model gave.

        Asked even where the call turns out to be a repetition: LangGraph hands answers out in the order in which a task asks.

        Raises:
            GraphInterrupt: nobody has answered yet.
        """
        gate, asked_as = self._gates.get(tool), call_id or ""
        if gate is None or not needs_approval(gate, shown):
            call, decision = self._gated(tool, shown, asked_as, Gate()), self._answered_before(tool, shown, asked_as)
        else:
            call = self._gated(tool, shown, asked_as, gate)
            with self._lock:
                together = self._asked_with(call) if call_id else [call]
                decision = self._decisions(together)[together.index(call)] if call_id else ask(together)[0]
        hidden = {name: value for name, value in arguments.items() if name not in shown}
        edited = edited_args(decision) if decision else None
        return Allowed(
            tool=tool,
            call_id=asked_as,
            arguments=arguments if edited is None else {**hidden, **edited},
            written=shown,
            before=self._let_through_before(tool, asked_as, decision),
            call=call,
            decision=decision,
        )

    def _let_through_before(self, tool: str, call_id: str, decision: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
        """With what people let this call through earlier in this step. Without an id one that is refused now could be any."""
        if not call_id and decision.get("type") in ("reject", "respond"):
            return ()
        return tuple(self.let_through.get((tool, as_column(call_id)[:MAX_ID_CHARS]), ()))

    def _answered_before(self, tool: str, shown: Mapping[str, Any], call_id: str) -> Mapping[str, Any]:
        """What a person said of exactly this call while a rule still asked. Nobody has to agree any more; a no, or a change, still holds."""
        same = ((one.tool, one.call_id, one.args) == (tool, call_id, shown) for one, _ in self.answered)
        return next((decision for is_same, (_, decision) in zip(same, self.answered, strict=True) if is_same), {})

    def _decisions(self, together: Sequence[GatedCall]) -> list[Mapping[str, Any]]:
        """Asked once for each time that a task runs: its calls run side by side, and LangGraph tells its questions apart by their order."""
        config = get_config()["configurable"]
        place = (config.get("checkpoint_ns", ""), *(part for call in together for part in (call.call_id, call.digest)))
        made_for, found = self._decided.get(place, (None, None))
        if found is None or made_for is not config.get(_SCRATCHPAD):
            try:
                found = ask(together)
            except GraphInterrupt as exc:
                found = exc
            self._decided[place] = (config.get(_SCRATCHPAD), found)
        if isinstance(found, GraphInterrupt):
            raise GraphInterrupt(*found.args)
        return found

    def _asked_with(self, call: GatedCall) -> list[GatedCall]:
        """The gated calls of the same message, where one task makes them all; else the call alone."""
        path = (get_config().get("metadata") or {}).get("langgraph_path") or ("",)
        if path[0] != _PULL:
            return [call]
        together = []
        for other in self.newest_calls:
            tool, args = str(other["name"]), other["args"]
            gate = self._gates.get(tool)
            if gate is not None and needs_approval(gate, args):
                one = self._gated(tool, args, str(other.get("id") or ""), gate)
                together += [one] if one not in together else []  # the same call by the same id is made once
        return together if call in together else [call]

    def _gated(self, tool: str, args: Mapping[str, Any], call_id: str, gate: Gate) -> GatedCall:
        return GatedCall(tool=tool, args=args, call_id=call_id, gate=gate, type_version=self._type_version, cancels=self.cancels)
