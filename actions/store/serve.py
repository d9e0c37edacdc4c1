"""A tenant's own `recall serve`: for an agent that its session holds, a decision can be written through it while the lease is live.

The server renews the lease of a dead agent for ever, so a settle of ours would wait for ever. With a key of the tenant's namespace we call the
tools that the agent would call (recall-records 12): a turn, then the end, each a transaction of its own. What stands there is read from the
database, never believed from an answer; the order and its repair are those of steps.py.

Whether the agent's process is dead nobody can know from here: to go this way is a person's decision.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from time import monotonic
from typing import Any

from actions.errors import (
    ActionsError,
    DecisionIdReused,
    LeaseMoved,
    StoreError,
    StoreUnavailable,
    StoreUnusable,
    WriteConflict,
)
from actions.records import (
    Action,
    ActionEnd,
    ActionRef,
    Entry,
    Lease,
    NewEntry,
    Output,
    Reading,
    Settled,
    Turn,
)
from actions.store.addresses import TenantAddress
from actions.store.base import ActionStore
from actions.store.closing import Closing, whole_args
from actions.store.deadlines import Timeouts
from actions.store.polign_http import OK, Address, Server
from actions.store.steps import Found, Held, marker, settle_in_steps
from actions.times import SECOND, format_rfc3339

WINDOW = 200
"""How many of an agent's newest turns are looked at."""
ENTRIES_LOOKED_AT = 200
STILL_ON_ITS_WAY_S = 15
"""How long after an attempt that was cut off its request may still reach the server: before that no second turn is sent."""

_NOT_HERE = "is not resumed in this session"
_REFUSALS = (
    _NOT_HERE,
    "lease was lost",
    "lease not acquired",
    "already ended",
    "has no action",
    "must be",
    "needs ",
    "unknown memory tool",
)
"""Of what a tool says: answers after which nothing of it was written. Anything else leaves it open."""


class TenantServer:
    """The tools of one tenant's server. Connects on first use; safe to share between threads and across fork.

    Every call raises StoreUnavailable and StoreUnusable: the first with `may_be_written` where what became of it is not known.
    """

    def __init__(self, name: str, address: TenantAddress, timeouts: Timeouts | None = None) -> None:
        self.name = name
        self.timeouts = timeouts or Timeouts()
        http = Address(base=address.url.rstrip("/"), collection="", key=address.key)
        self._server = Server(f"{name} (its tenant's server)", http, self.timeouts, product="recall serve")

    def close(self) -> None:
        self._server.close()

    def check(self) -> str:
        """Why nothing can be written through it, in one sentence; empty where it answers and takes the key. Writes nothing."""
        try:
            self.call("pending_actions", {"agent_id": "settle-check"}, until=monotonic() + self.timeouts.read_s)
        except StoreError as exc:
            return "" if _NOT_HERE in exc.problem else exc.problem
        return ""

    def call(self, tool: str, arguments: Mapping[str, object], *, until: float) -> Any:
        """What one tool of the server answers, decoded.

        Raises:
            WriteConflict: the agent ended the action first. Nothing was written by this call.
            StoreUnusable: the server refused, and said so in words that we know. Nothing was written by this call.
            StoreUnavailable: it did not answer, or not in such words; `.may_be_written`.
        """
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
        answer = self._server.write("POST", "", until=until, body=body)
        result = answer.body.get("result")
        try:
            text, is_error = result["content"][0]["text"], result["isError"]  # type: ignore[index]
            said = None if is_error else json.loads(text)
        except (TypeError, KeyError, IndexError, ValueError, RecursionError):
            if answer.status == OK and isinstance(answer.body.get("error"), dict):
                raise StoreUnusable(
                    self.name, f"its tenant's server refused: {_line(answer.body['error'].get('message'))}"
                ) from None
            raise StoreUnavailable(self.name, "what its tenant's server answered cannot be read", may_be_written=True) from None
        if is_error:
            raise self._refusal(str(text))
        return said

    def _refusal(self, text: str) -> ActionsError:
        said = _line(text)
        if _NOT_HERE in text:
            return StoreUnusable(
                self.name,
                f"its tenant's server does not hold this agent ({said}); some other process does, so ask there or evict it",
            )
        if "already ended" in text:
            return WriteConflict(self.name, f"the agent ended it first ({said})")
        if any(words in text for words in _REFUSALS):
            return StoreUnusable(self.name, f"its tenant's server refused: {said}")
        return StoreUnavailable(self.name, f"its tenant's server failed: {said}", may_be_written=True)


def settle_through(
    server: TenantServer | None,
    store: ActionStore,
    ref: ActionRef,
    end: ActionEnd,
    *,
    entry: NewEntry,
    seen: str | None = None,
    claim: str | None = None,
) -> Settled:
    """Settle an action of an agent that its tenant's server holds: intent, turn, close, entry, as steps.py says. Asking again with the same
    decision id goes on where an attempt was cut off, and answers what was written.

    `store` is the same records read natively; `server` None only completes what is closed already.

    Raises:
        LeaseMoved: nobody holds the agent; a settle of the ordinary kind can be made. Nothing was written now.
        As `settle_in_steps` otherwise: `StoreUnavailable.may_be_written` where something may be half written.
    """
    timeouts = server.timeouts if server else Timeouts()
    hands = _Hands(server, store, ref, end, entry, until=monotonic() + timeouts.write_s)
    return settle_in_steps(hands, _Entries(store), ref, end, entry=entry, holder="", seen=seen, claim=claim)


class _Hands:
    """What steps.py asks of a server, for one settle: reads are the store's, writes the server's."""

    def __init__(
        self, server: TenantServer | None, store: ActionStore, ref: ActionRef, end: ActionEnd, entry: NewEntry, *, until: float
    ) -> None:
        self._server = server
        self._store = store
        self._ref = ref
        self._end = end
        self._entry = entry
        self._until = until
        self._marker = marker(ref.seq, entry.decision_id)
        self._reading: Reading | None = None
        self._is_told = False

    def read(self, ref: ActionRef, turns: Collection[int]) -> Found:
        """Of each number that was asked for those after it too: the server may have given a later one."""
        self._reading = self._store.get_action(ref.agent, ref.seq)
        action = self._reading.action
        told = {turn.seq: turn for turn in self._store.list_turns(ref.agent, limit=WINDOW)}
        for number in turns:
            if number not in told:
                told |= {turn.seq: turn for turn in self._store.list_turns(ref.agent, limit=WINDOW, before=number + WINDOW)}
        self._is_told = any(isinstance(turn, Turn) and turn.message_id == self._marker for turn in told.values())
        return Found(
            action=action,
            metadata={"body": "{}"},  # the server writes the record; only the entry is made of what is planned
            args=self._args(action) if isinstance(action, Action) else "",
            turns=tuple(told.values()),
            largest_turn=max((number for number in told if number is not None), default=0),
            head=None,
        )

    def hold(self, agent: str, holder: str) -> Held:
        """Nothing is taken: the server has the lease. That it holds this very agent, and not one of the same name in another namespace, its own
        list of open actions tells."""
        lease = self._reading.lease if self._reading else None
        if self._reading is None or lease is None or not lease.is_live or not isinstance(self._reading.action, Action):
            raise LeaseMoved(agent, "its tenant's server", lease)
        action = self._reading.action
        try:
            pending = self._called("pending_actions", {})
        except StoreUnavailable as exc:
            raise StoreUnavailable(self._store.name, exc.problem) from exc  # only asked: nothing was written
        if not isinstance(pending, list) or not any(_is_same(one, action) for one in pending):
            raise StoreUnusable(
                self._store.name,
                f"its tenant's server does not list action {action.seq} of agent {agent} as it stands here among the open ones; is serve_key a key "
                "of this collection's namespace?",
            )
        self._wait_for_an_earlier_request(lease)
        return Held(epoch=lease.epoch, at=lease.read_at, until=self._until, found=lease)

    def write_turn(self, closing: Closing, held: Held) -> int:
        turn = closing.turn
        words = {
            "role": turn.role,
            "name": turn.name,
            "content": turn.content,
            "brief": turn.brief,
            "message_id": turn.message_id,
        }
        said = self._called("record_turn", words)
        number = said.get("seq") if isinstance(said, dict) else None
        if isinstance(number, int):
            stands = self._store.list_turns(turn.agent, limit=1, before=number + 1)
            if stands and isinstance(stands[0], Turn) and (stands[0].seq, stands[0].message_id) == (number, turn.message_id):
                return number
        raise StoreUnavailable(
            self._store.name, "its tenant's server says that it wrote the turn, and it does not stand there", may_be_written=True
        )

    def write_end(self, closing: Closing, held: Held) -> None:
        end, ref = self._end, self._ref
        words = {
            "seq": ref.seq,
            "status": end.status.value,
            "result": end.result,
            "error": end.error,
            "resolution": end.resolution,
        }
        self._called("end_action", {name: value for name, value in words.items() if value})
        action = self._store.get_action(ref.agent, ref.seq).action
        if not isinstance(action, Action) or (action.status, action.resolution) != (end.status, end.resolution):
            raise StoreUnavailable(
                self._store.name, "its tenant's server says that it closed the action, and it is not so", may_be_written=True
            )

    def let_go(self, agent: str, held: Held) -> None:
        """It is not ours to give back."""

    def may_be_ours(self, intended: object, found: int) -> bool:
        """The server renews its lease between our reading and its writing."""
        return isinstance(intended, int) and intended <= found

    def _called(self, tool: str, words: Mapping[str, object]) -> Any:
        if self._server is None:
            raise StoreUnusable(
                self._store.name, "its address names no server of its tenant any more: put serve and serve_key back"
            )
        return self._server.call(tool, {"agent_id": self._ref.agent, **words}, until=self._until)

    def _args(self, action: Action) -> str:
        key = (action.agent, action.args_ref)
        found: Output | object = self._store.read_outputs([key]).get(key) if action.args_ref else None
        return whole_args(action, found if isinstance(found, Output) else None)

    def _wait_for_an_earlier_request(self, lease: Lease) -> None:
        """One whose answer was lost may still reach the server, which does not look at message ids: a second turn would be a second turn."""
        begun = [one.at for one in _Entries(self._store).begun(self._ref) if one.decision_id == self._entry.decision_id]
        left = max(begun, default=0) + STILL_ON_ITS_WAY_S * SECOND - lease.read_at
        if begun and left > 0 and not self._is_told:
            raise StoreUnavailable(
                self._store.name,
                f"an earlier attempt was cut off a moment ago and may still reach its tenant's server; ask again in {left // SECOND + 1} s",
                may_be_written=True,
            )


class _Entries:
    """The store's own history, as steps.py asks for it."""

    def __init__(self, store: ActionStore) -> None:
        self._store = store

    def find_settled(self, decision_id: str) -> Entry | None:
        return self._store.find_settled_entry(decision_id)

    def find_of_action(self, agent: str, seq: int) -> Entry | None:
        entries = self._store.list_entries(limit=ENTRIES_LOOKED_AT, agent=agent, seq=seq)
        return next((entry for entry in entries if entry.kind == "settled"), None)

    def list_settling(self, agent: str, seq: int, *, limit: int) -> tuple[Entry, ...]:
        entries = self._store.list_entries(limit=ENTRIES_LOOKED_AT, agent=agent, seq=seq)
        return tuple(entry for entry in entries if entry.kind == "settling")[:limit]

    def begun(self, ref: ActionRef) -> tuple[Entry, ...]:
        return self.list_settling(ref.agent, ref.seq, limit=ENTRIES_LOOKED_AT)

    def append_settling(self, new: NewEntry) -> Entry:
        return self._store.append_entry(new)

    def append_settled(self, new: NewEntry) -> Entry:
        try:
            return self._store.append_entry(new)
        except DecisionIdReused as exc:
            if exc.entry.content_digest != new.content_digest:
                raise
            return exc.entry


def _is_same(listed: object, action: Action) -> bool:
    """Whether what the server lists is the record that stands in our database: to the nanosecond of its beginning."""
    if not isinstance(listed, dict):
        return False
    said = (listed.get("seq"), listed.get("tool"), listed.get("key"), listed.get("started_at"))
    return said == (action.seq, action.tool, action.key, format_rfc3339(action.started_at))


def _line(text: object) -> str:
    return " ".join(str(text).split())[:200]
