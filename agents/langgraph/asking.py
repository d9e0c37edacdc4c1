"""Asking a person before a call is recorded: which calls of a task are asked about at once, and what their answers let through."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langgraph.config import get_config
from langgraph.errors import GraphInterrupt

from actions.errors import ActionsError
from agents.gates import GatedCall, ask, edited_args, needs_approval, refusal, tell_of_edit
from agents.runs import Gate

_SCRATCHPAD = "__pregel_scratchpad"
"""In a task's configuration: what its questions are counted by. Another one where the task runs again with an answer."""
_PULL = "__pregel_pull"
"""In the path of a task that a state started, and no Send: a node that makes every call of a message."""


class CallNotMade(ActionsError):
    """A call without a call id was not made: a person refused it, gave it up, or nobody knows whether it happened before. Nothing was begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """A call after its gate: as it is to be made, and what a person said of it, if one was asked."""

    arguments: Mapping[str, Any]
    call: GatedCall | None = None
    decision: Mapping[str, Any] = field(default_factory=dict)

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

    def told(self, output: Any) -> Any:
        """What the tool gave, with a word of what a person changed."""
        edited = edited_args(self.decision) if self.decision else None
        if self.call is None or edited is None or not self.call.call_id:
            return output
        return tell_of_edit(output, self.call.tool, edited, self.call.call_id)


class Asking:
    """The gates of one agent's tools in this process, and what was answered here."""

    def __init__(self, gates: Mapping[str, Gate] | None = None, *, type_version: int = 0) -> None:
        self.newest_calls: tuple[Mapping[str, Any], ...] = ()  # of the model's newest message
        self.cancels = 0  # of the run, where this is one
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
        gate = self._gates.get(tool)
        if gate is None or not needs_approval(gate, shown):
            return Allowed(arguments=arguments)
        call = self._gated(tool, shown, call_id or "", gate)
        with self._lock:
            if call_id:
                together = self._asked_with(call)
                decision = self._decisions(together)[[one.call_id for one in together].index(call_id)]
            else:
                (decision,) = ask([call])
        hidden = {name: value for name, value in arguments.items() if name not in shown}
        edited = edited_args(decision)
        return Allowed(arguments=arguments if edited is None else {**hidden, **edited}, call=call, decision=decision)

    def _decisions(self, together: Sequence[GatedCall]) -> list[Mapping[str, Any]]:
        """Asked once for each time that a task runs: its calls run side by side, and LangGraph tells its questions apart by their order."""
        config = get_config()["configurable"]
        place = (config.get("checkpoint_ns", ""), *(call.call_id for call in together))
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
                together.append(self._gated(tool, args, str(other.get("id") or ""), gate))
        is_among = sum(other == call for other in together) == 1 and sum(other.call_id == call.call_id for other in together) == 1
        return together if is_among else [call]

    def _gated(self, tool: str, args: Mapping[str, Any], call_id: str, gate: Gate) -> GatedCall:
        return GatedCall(tool=tool, args=args, call_id=call_id, gate=gate, type_version=self._type_version, cancels=self.cancels)
