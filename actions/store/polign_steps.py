"""What steps.py asks of a polign_db server, for one settle or correction."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta
from time import monotonic
from typing import Any
from urllib.parse import quote

from actions.errors import ActionNotFound, LeaseLive, StoreUnavailable, StoreUnusable, WriteConflict
from actions.keys import args_ref
from actions.records import Action, ActionRef, Lease, Unreadable
from actions.store.closing import Closing, whole_args
from actions.store.codec import (
    Metadata,
    action_id,
    decode_action,
    decode_output,
    decode_turn,
    decoded,
    head_id,
    output_id,
    turn_id,
)
from actions.store.deadlines import Timeouts
from actions.store.polign_http import CONFLICT, NOT_FOUND, Answer, Server
from actions.store.polign_records import PolignRecords, number_of
from actions.store.steps import Found, Held
from actions.times import SECOND, Instant, parse_rfc3339

WINDOW = 200
"""How many of an agent's newest turns are looked at in a settle."""
MIN_TTL_S = 5
"""The shortest lease that the server gives."""
MAX_UNSAID = 10


class PolignHands:
    """One settle's hands: its time begins to run with them. They remember the action's vector from one step to the next."""

    def __init__(self, server: Server, records: PolignRecords, timeouts: Timeouts) -> None:
        self._server = server
        self._records = records
        self._timeouts = timeouts
        self._until = server.until(timeouts.write_s)
        self._values: list[Any] = []
        self._holder = ""

    def read(self, ref: ActionRef, turns: Collection[int]) -> Found:
        records, until = self._records, self._until
        record, _ = records.get_record(action_id(ref.agent, ref.seq), until=until)
        if record is None:
            raise ActionNotFound(ref)
        self._values = record.values
        action = decoded(decode_action, action_id(ref.agent, ref.seq), record.metadata)
        output = output_id(ref.agent, (isinstance(action, Action) and action.args_ref) or args_ref(ref.seq))
        wanted = [head_id(ref.agent), output, *(turn_id(ref.agent, number) for number in turns)]
        found = records.find_records(wanted, until=until)
        newest = dict(records.list_newest(ref.agent, "turn", limit=WINDOW, before=None, until=until).rows)
        asked = {turn_id(ref.agent, number) for number in turns} - newest.keys()
        told = {**newest, **{record_id: metadata for record_id, metadata in found.items() if record_id in asked}}
        return Found(
            action=action,
            metadata=record.metadata,
            args=_whole_args(action, output, found),
            turns=tuple(decoded(decode_turn, record_id, metadata) for record_id, metadata in told.items()),
            largest_turn=max(0, *map(number_of, told)) if told else 0,
            head=(head_id(ref.agent), found[head_id(ref.agent)]) if head_id(ref.agent) in found else None,
        )

    def hold(self, agent: str, holder: str) -> Held:
        timeouts, records = self._timeouts, self._records
        ttl = timedelta(seconds=max(timeouts.write_s + timeouts.answer_s, MIN_TTL_S))
        began = monotonic()
        answer = self._acquire(agent, holder, ttl)
        expires_at, epoch = self._expiry(answer), records.of_type(answer.body, "epoch", int)
        if answer.status == CONFLICT:
            other = records.of_type(answer.body, "holder", str)
            # It was held when the server answered, whose clock it tells in whole seconds only.
            read_at = min(answer.at, expires_at - 1)
            raise LeaseLive(Lease(agent=agent, holder=other, epoch=epoch, expires_at=expires_at, read_at=read_at))
        self._holder = holder
        at = expires_at - ttl // timedelta(microseconds=1) * (SECOND // 1_000_000)
        return Held(epoch=epoch, at=at, until=began + ttl.total_seconds() - timeouts.answer_s)

    def _acquire(self, agent: str, holder: str, ttl: timedelta) -> Answer:
        """Of two who ask at one moment the server refuses one without saying whom it let in: that one asks again."""
        body = {"holder": holder, "ttl_ms": ttl // timedelta(milliseconds=1)}
        for _ in range(MAX_UNSAID):
            try:
                answer = self._server.write("POST", f"{self._lease(agent)}/acquire", until=self._until, body=body)
            except StoreUnavailable as exc:
                raise StoreUnavailable(
                    self._records.name, exc.problem
                ) from exc  # a lease is no record: it runs out, nothing is written
            if answer.status != CONFLICT or answer.body.get("holder"):
                return answer
        raise StoreUnavailable(self._records.name, "others took the lease first, again and again; try again")

    def write_turn(self, closing: Closing, held: Held) -> int:
        """What a crashed attempt left of the output is replaced; a turn is put only where none is."""
        agent = closing.turn.agent
        told = turn_id(agent, closing.turn_seq)
        there, _ = self._records.get_record(told, until=self._until)
        if there is not None:
            raise WriteConflict(self._records.name, f"turn {closing.turn_seq} of agent {agent} exists although we hold its lease")
        nothing = [0] * len(self._values)
        for record_id, metadata in sorted(closing.inserted.items(), key=lambda item: item[0] == told):
            self._put(agent, record_id, metadata, nothing, held)
        return closing.turn_seq

    def write_end(self, closing: Closing, held: Held) -> None:
        entry, agent = closing.entry, closing.turn.agent
        assert closing.action is not None  # noqa: S101 - a settle closes; a correction never comes here
        self._put(agent, action_id(agent, entry.seq or 0), closing.action, self._values, held)

    def let_go(self, agent: str, held: Held) -> None:
        body = {"holder": self._holder, "epoch": held.epoch}
        self._server.write("POST", f"{self._lease(agent)}/release", until=self._server.until(), body=body)

    def may_be_ours(self, intended: object, found: int) -> bool:
        """Nobody else writes under the epoch of a lease of ours."""
        return intended == found

    def _put(self, agent: str, record_id: str, metadata: Metadata, values: list[Any], held: Held) -> None:
        """Names the lease as Recall does: 0.14 ignores it, a later server may not."""
        lease = {"Polign-Lease-Name": agent, "Polign-Lease-Holder": self._holder, "Polign-Lease-Epoch": str(held.epoch)}
        path = f"{self._records.path}/vectors/{quote(record_id, safe='')}"
        body = {"metadata": metadata, "values": values}
        answer = self._server.write("PUT", path, until=self._until, body=body, headers=lease)
        if answer.status in (CONFLICT, NOT_FOUND):
            raise WriteConflict(self._records.name, f"the server refused record {record_id}: {answer.error[:160]}")

    def _lease(self, agent: str) -> str:
        return f"{self._records.path}/leases/{quote(agent, safe='')}"

    def _expiry(self, answer: Answer) -> Instant:
        text = self._records.of_type(answer.body, "expires_at", str)
        try:
            return parse_rfc3339(text)
        except ValueError:
            raise StoreUnusable(self._records.name, f"a lease of it expires at {text[:40]!r}") from None


def _whole_args(action: Action | Unreadable, output: str, found: Mapping[str, Metadata]) -> str:
    if isinstance(action, Unreadable):
        return ""
    is_there = action.args_ref and output in found
    return whole_args(action, decoded(decode_output, output, found[output]) if is_there else None)
