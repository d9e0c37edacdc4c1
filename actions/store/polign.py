"""The polign_db store, over HTTP. Reads are one request or a few; a settle goes in steps, because there are no transactions (steps.py).

The server keeps no history of ours: entries stand in the console's PostgreSQL database, in a chain of their own. It cannot be asked who
holds an agent, and it does not compare the lease that a write names: what follows from that is in CAUTIONS, which every screen shows.
A read over all agents costs the server a scan of the collection, however little it finds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic
from typing import Any, TypeVar
from urllib.parse import quote

from actions.errors import (
    ActionNotFound,
    LeaseLive,
    RecordUnreadable,
    StoreError,
    StoreReadOnly,
    StoreUnavailable,
    StoreUnusable,
    WriteConflict,
)
from actions.keys import args_ref
from actions.records import (
    Action,
    ActionEnd,
    ActionRef,
    ActionsRead,
    ActionStatus,
    ChainHead,
    Correction,
    Entry,
    Lease,
    LeasesRead,
    Link,
    NewEntry,
    Output,
    Pointer,
    Reading,
    Settled,
    StoreCheck,
    Turn,
    Unreadable,
    Watch,
    WorkingState,
)
from actions.store.audit import GENESIS
from actions.store.closing import Closing, whole_args
from actions.store.codec import (
    Metadata,
    action_id,
    decode_action,
    decode_output,
    decode_pointer,
    decode_turn,
    decode_working_state,
    head_id,
    output_id,
    turn_id,
    unreadable,
)
from actions.store.deadlines import LeftAlone, Timeouts, for_read
from actions.store.polign_http import CONFLICT, NOT_FOUND, Address, Answer, Server, parse_address
from actions.store.postgres_entries import PostgresEntries, open_entries
from actions.store.steps import Found, Held, correct_in_steps, settle_in_steps
from actions.times import SECOND, Instant, parse_rfc3339

T = TypeVar("T")

CAUTIONS = (
    "polign_db 0.14 does not fence writes: a process that lost this agent without noticing may still overwrite what is decided here",
    "polign_db does not say who holds an agent: a call that is open may still be running",
)
NO_ENTRIES = "there is no database for the history of its decisions: set DATABASE_URL to the console's PostgreSQL"
PAGE = 1_000
"""How many records the server gives at most in one answer."""
OVERLAP = 100
WINDOW = 200
"""How many of an agent's newest turns are looked at in a settle."""
_NUMBER = re.compile(r":(?:act|turn|ws):([0-9]{1,18})\Z", re.ASCII)
_NUMBERS = frozenset({"epoch", "seq", "tokens", "version"})
_WATERMARK_DIGITS = 15  # 60 bits of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """Records by id, in its order; `total` is how many matched in all."""

    rows: tuple[tuple[str, Metadata], ...]
    total: int
    at: Instant


class PolignStore:
    """ActionStore over one collection of a polign_db server. Connects on first use; safe to share between threads and across fork.

    Nobody waits for the server longer than `timeouts` say; one that did not answer is left alone for a while, then one caller asks it again.
    `entries_url` is the console's PostgreSQL database; without it records are read and nothing is settled.
    """

    leases_known = False

    def __init__(self, url: str, *, name: str = "main", entries_url: str | None = None, timeouts: Timeouts | None = None) -> None:
        self.name = name
        self._address = parse_address(name, url)
        self._timeouts = timeouts or Timeouts()
        self._server = Server(name, self._address, self._timeouts)
        self.chain = chain_of(name, self._address)
        self._entries = open_entries(name, entries_url, self.chain) if entries_url else None
        self._path = f"/v1/collections/{quote(self._address.collection, safe='')}"

    # --- the store itself ---

    def check(self) -> StoreCheck:
        try:
            described = self._server.read(f"{self._path}/describe", until=self._until())
            has_records = described.status != NOT_FOUND
        except StoreError as exc:
            is_prepared, _, _ = self._check_entries()  # the history stands elsewhere
            is_reachable = not isinstance(exc, StoreUnavailable)
            return StoreCheck(is_reachable=is_reachable, is_prepared=is_prepared, why_not=exc.problem, cautions=CAUTIONS)
        is_prepared, why_not, warnings = self._check_entries()
        if not why_not and not has_records:
            why_not = (
                f"there is no collection {self._address.collection} yet: Recall makes it with its first agent's first record; check the address "
                "if one has run"
            )
        return StoreCheck(
            server="polign_db",
            is_reachable=True,
            has_records=has_records,
            is_prepared=is_prepared,
            has_index=True,  # there are none to make
            can_settle=not why_not,
            why_not=why_not,
            warnings=warnings,
            cautions=CAUTIONS,
        )

    def prepare(self, *, index: bool = False) -> tuple[str, ...]:
        """In the console's database; nothing is made in polign_db."""
        lines = self._with_entries(lambda entries: entries.prepare())
        return (*lines, *(["index of open actions: not needed, polign_db has none"] if index else []))

    def close(self) -> None:
        self._server.close()
        if self._entries is not None:
            self._entries.close()

    def read_watch(self) -> Watch:
        """Two round trips: the collection's watermark, which the server need not search for, and the chain's head.

        There is no revision. The watermark moves with every write, and now and then without one, when the server tidies up; it only
        tells whether it is worth looking. What a lease does moves nothing. A console's database that is down stops no reading.
        """
        answer = self._server.read(f"{self._path}/watermark", until=self._until())
        mark = answer.body.get("watermark")
        try:
            revision = int(str(mark)[:_WATERMARK_DIGITS], 16)
        except ValueError:
            raise StoreUnusable(self.name, f"what answers there is not polign_db: a watermark {str(mark)[:40]!r}") from None
        try:
            entries = self.read_head().number
        except StoreError:
            entries = 0
        return Watch(revision=revision, next_expiry=None, entries=entries, read_at=answer.at)

    # --- reads over all agents ---

    def read_actions(self, statuses: Collection[ActionStatus], *, limit: int, agent: str | None = None) -> ActionsRead:
        if not statuses or not _can_be_stored(agent or ""):
            return ActionsRead(readings=(), is_truncated=False)
        wanted = {"record": "action", "status": {"$in": sorted(status.value for status in statuses)}}
        listed = self._list(wanted | ({} if agent is None else {"recall_agent": agent}), limit=limit)
        return ActionsRead(
            readings=tuple(_reading(record_id, metadata, listed.at) for record_id, metadata in listed.rows),
            is_truncated=listed.total > limit,
        )

    def read_outputs(self, wanted: Collection[tuple[str, str]]) -> Mapping[tuple[str, str], Output | Unreadable]:
        keys = {output_id(agent, ref): (agent, ref) for agent, ref in wanted}
        found = self._find(list(keys), until=self._until())
        return {keys[record_id]: _decoded(decode_output, record_id, metadata) for record_id, metadata in found.items()}

    def get_action(self, agent: str, seq: int) -> Reading:
        record, at = self._get(action_id(agent, seq), until=self._until())
        if record is None:
            raise ActionNotFound(ActionRef(self.name, agent, seq))
        return _reading(action_id(agent, seq), record.metadata, at)

    def read_leases(self, *, limit: int) -> LeasesRead:
        """Always empty: leases cannot be listed."""
        return LeasesRead(leases=(), is_truncated=False)

    def read_last_turns(self, agents: Collection[str]) -> Mapping[str, Turn | Unreadable]:
        """Two requests for each agent: how many turns there are, and those near the last; the server groups nothing."""
        found: dict[str, Turn | Unreadable] = {}
        until = self._until()
        for agent in sorted({agent for agent in agents if _can_be_stored(agent)}):
            wanted: dict[str, object] = {"recall_agent": agent, "record": "turn"}
            total = self._of_type(self._page(wanted, limit=1, offset=0, until=until).body, "total", int)
            if not total:
                continue
            near = self._list(wanted | {"seq": {"$gte": total - OVERLAP}}, limit=PAGE, until=until).rows
            newest = max(near or self._list(wanted, limit=PAGE, until=until).rows, key=lambda row: (number_of(row[0]), row[0]))
            found[agent] = _decoded(decode_turn, *newest)
        return found

    # --- one agent ---

    def find_lease(self, agent: str) -> Lease | None:
        """Always None: a lease cannot be read, only asked for."""
        return None

    def list_turns(self, agent: str, *, limit: int, before: int | None = None) -> tuple[Turn | Unreadable, ...]:
        listed = self._newest(agent, "turn", limit=limit, before=before, until=self._until())
        return tuple(_decoded(decode_turn, record_id, metadata) for record_id, metadata in listed.rows)

    def list_agent_actions(self, agent: str, *, limit: int, before: int | None = None) -> tuple[Reading, ...]:
        listed = self._newest(agent, "action", limit=limit, before=before, until=self._until())
        return tuple(_reading(record_id, metadata, listed.at) for record_id, metadata in listed.rows)

    def find_working_state(self, agent: str) -> WorkingState | Unreadable | None:
        found = self._find([head_id(agent)], until=self._until())
        return _decoded(decode_working_state, head_id(agent), found[head_id(agent)]) if found else None

    def list_working_states(self, agent: str, *, limit: int, before: int | None = None) -> tuple[WorkingState | Unreadable, ...]:
        listed = self._newest(agent, "working_state", limit=limit, before=before, until=self._until(), number="version")
        return tuple(_decoded(decode_working_state, record_id, metadata) for record_id, metadata in listed.rows)

    def list_outputs(self, agent: str, *, limit: int) -> tuple[Output | Unreadable, ...]:
        if not _can_be_stored(agent) or limit < 1:
            return ()
        listed = self._list({"record": "output", "recall_agent": agent}, limit=limit)
        return tuple(_decoded(decode_output, record_id, metadata) for record_id, metadata in listed.rows)

    def list_pointers(self, agent: str, *, limit: int = 1000) -> tuple[Pointer | Unreadable, ...]:
        if not _can_be_stored(agent):
            return ()
        listed = self._list({"record": "pointer", "recall_agent": agent, "removed": {"$ne": True}}, limit=limit)
        decoded = (_decoded(decode_pointer, record_id, metadata) for record_id, metadata in listed.rows)
        return tuple(pointer for pointer in decoded if pointer is not None)

    # --- the one write for operators ---

    def settle(
        self,
        ref: ActionRef,
        end: ActionEnd,
        *,
        entry: NewEntry,
        holder: str,
        seen: str | None = None,
        claim: str | None = None,
        marker: str = "",
    ) -> Settled:
        """Not one transaction: in steps.py's order, each step repairable by asking again. The lease is held for as long as a settle and one
        unanswered request may take together, so that what we are answered to was written under it."""

        def work(entries: PostgresEntries) -> Settled:
            hands = self._hands(entries, ref)
            return settle_in_steps(hands, entries, ref, end, entry=entry, holder=holder, seen=seen, claim=claim)

        return self._with_entries(work)

    def correct(
        self, ref: ActionRef, correction: Correction, *, entry: NewEntry, holder: str, basis: int | None = None
    ) -> Settled:
        """In steps, as a settle."""

        def work(entries: PostgresEntries) -> Settled:
            hands = self._hands(entries, ref)
            return correct_in_steps(hands, entries, ref, correction, entry=entry, holder=holder, basis=basis)

        return self._with_entries(work)

    def _hands(self, entries: PostgresEntries, ref: ActionRef) -> _Hands:
        # What no column can hold could not be looked up again.
        if not (_can_be_stored(ref.agent) and "\x00" not in ref.agent):
            raise ActionNotFound(ref)
        entries.require_prepared()
        return _Hands(self, self._until(self._timeouts.write_s))

    def evict(self, agent: str, *, holder: str, entry: NewEntry) -> Entry:
        """Impossible here: nothing would keep the holder from writing on."""
        raise StoreUnusable(
            self.name, "polign_db compares no lease when it writes, so nobody can be evicted from it; stop the process"
        )

    # --- audit entries, in the console's database ---

    def append_entry(self, entry: NewEntry) -> Entry:
        return self._with_entries(lambda entries: entries.append_alone(entry))

    def append_observed(self, entry: NewEntry) -> Entry | None:
        return self._with_entries(lambda entries: entries.append_observed(entry))

    def find_settled_entry(self, decision_id: str) -> Entry | None:
        return self._entries.find_settled(decision_id) if self._entries else None

    def list_entries(
        self,
        *,
        limit: int,
        before: int | None = None,
        agent: str | None = None,
        seq: int | None = None,
        kinds: Collection[str] | None = None,
    ) -> tuple[Entry, ...]:
        if self._entries is None:
            return ()
        return self._entries.list_entries(limit=limit, before=before, agent=agent, seq=seq, kinds=kinds)

    def iterate_links(self, *, after: int = 0) -> Iterator[Link]:
        return self._entries.iterate_links(after=after) if self._entries else iter(())

    def remove_entries(self, last: ChainHead, entry: NewEntry) -> Entry:
        return self._with_entries(lambda entries: entries.remove_entries(last, entry))

    def read_head(self) -> ChainHead:
        return self._entries.read_head() if self._entries else ChainHead(chain=self.chain, number=0, hash=GENESIS)

    def _with_entries(self, work: Callable[[PostgresEntries], T]) -> T:
        if self._entries is None:
            raise StoreReadOnly(self.name, NO_ENTRIES)
        return work(self._entries)

    def _check_entries(self) -> tuple[bool, str, tuple[str, ...]]:
        """Whether the history is prepared, why nothing can be written to it, and what to warn of."""
        if self._entries is None:
            return False, NO_ENTRIES, ()
        try:
            check = self._entries.check()
        except StoreError as exc:
            return False, f"the history of its decisions: {exc.problem}", ()
        return check.is_prepared, check.why_not, check.warnings

    # --- requests ---

    def _until(self, within_s: float | None = None) -> float:
        try:
            return monotonic() + (within_s or for_read(self._timeouts.read_s))
        except LeftAlone as exc:
            raise StoreUnavailable(self.name, str(exc)) from exc

    def _get(self, record_id: str, *, until: float) -> tuple[_Record | None, Instant]:
        """One record whole, its numbers as numbers; and the server's time."""
        if not _can_be_stored(record_id):
            return None, 0
        answer = self._server.read(f"{self._path}/vectors/{quote(record_id, safe='')}", until=until, params={"typed": "true"})
        if answer.status == NOT_FOUND:
            return None, answer.at
        return _Record(metadata=self._metadata(answer.body), values=self._of_type(answer.body, "values", list)), answer.at

    def _find(self, record_ids: Sequence[str], *, until: float) -> dict[str, Metadata]:
        """Records by their ids, in one request; missing ones are left out. The server answers every value as a text here."""
        ids = [record_id for record_id in record_ids if _can_be_stored(record_id)]
        if not ids:
            return {}
        answer = self._server.read(f"{self._path}/vectors:get", until=until, body={"ids": ids})
        if answer.status == NOT_FOUND:
            return {}
        return {record_id: _with_numbers(metadata) for record_id, metadata in self._rows(answer)}

    def _list(self, wanted: Mapping[str, object], *, limit: int, until: float | None = None) -> Listed:
        """Records whose metadata match, in the order of their ids, page by page.

        The pages are no snapshot: each begins some records before the end of the one before, so that none is left out because others
        stopped matching meanwhile.

        Raises:
            StoreUnavailable: they moved by more than a page while they were read.
        """
        until = until or self._until()
        rows: list[tuple[str, Metadata]] = []
        overlap = OVERLAP
        while True:
            start = max(len(rows) - overlap, 0)
            asked = min(PAGE, max(limit, 1) - start)
            answer = self._page(wanted, limit=asked, offset=start, until=until)
            page, total = self._rows(answer), self._of_type(answer.body, "total", int)
            if rows and (not page or page[0][0] > rows[-1][0]):
                if overlap >= PAGE - 1:
                    raise StoreUnavailable(self.name, "its records changed too fast to be listed; try again")
                overlap = min(overlap * 4, PAGE - 1)
                continue
            fresh = [row for row in page if not rows or row[0] > rows[-1][0]]
            rows += fresh
            if len(rows) >= limit or not page or start + len(page) >= total:
                return Listed(rows=tuple(rows[: max(limit, 0)]), total=total, at=answer.at)

    def _page(self, wanted: Mapping[str, object], *, limit: int, offset: int, until: float) -> Answer:
        params = {"filter": json.dumps(wanted), "limit": str(limit), "offset": str(offset), "typed": "true"}
        return self._server.read(f"{self._path}/vectors", until=until, params=params)

    def _newest(self, agent: str, record: str, *, limit: int, before: int | None, until: float, number: str = "seq") -> Listed:
        """An agent's newest records of one kind, newest first, by the number in the id; those without one come last.

        Up to 1000 are all read and put in order here. Beyond that only those are asked for whose metadata say a number near the newest,
        which relies on Recall's numbers having no gaps.
        """
        if limit < 1 or not _can_be_stored(agent):
            return Listed(rows=(), total=0, at=0)
        wanted: dict[str, object] = {"recall_agent": agent, "record": record}
        listed = self._list(wanted, limit=PAGE, until=until)
        if listed.total > PAGE:
            top = min(listed.total + 1, before) if before is not None else listed.total + 1
            near: dict[str, object] = {"$gte": top - limit - OVERLAP}
            if before is not None:
                near["$lt"] = before
            listed = self._list(wanted | {number: near}, limit=limit + 10 * PAGE, until=until)
        rows = [row for row in listed.rows if before is None or 0 <= number_of(row[0]) < before]
        rows.sort(key=lambda row: (number_of(row[0]), row[0]), reverse=True)
        return Listed(rows=tuple(rows[:limit]), total=listed.total, at=listed.at)

    def _rows(self, answer: Answer) -> list[tuple[str, Metadata]]:
        vectors = self._of_type(answer.body, "vectors", list)
        return [(self._of_type(vector, "id", str), self._metadata(vector)) for vector in vectors]

    def _metadata(self, vector: object) -> Metadata:
        return self._of_type(vector, "metadata", dict, {})

    def _of_type(self, found: object, name: str, kind: type[T], default: T | None = None) -> T:
        value = found.get(name, default) if isinstance(found, Mapping) else None
        if not isinstance(value, kind):
            raise StoreUnusable(self.name, f"what answers there is not polign_db: it says no {name}")
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """One record with its vector, as it must be written again."""

    metadata: Metadata
    values: list[Any]


class _Hands:
    """What steps.py asks of a server, for one settle. Remembers the action's vector from one step to the next."""

    def __init__(self, store: PolignStore, until: float) -> None:
        self._store = store
        self._until = until
        self._values: list[Any] = []
        self._holder = ""

    def read(self, ref: ActionRef, turns: Collection[int]) -> Found:
        store, until = self._store, self._until
        record, _ = store._get(action_id(ref.agent, ref.seq), until=until)
        if record is None:
            raise ActionNotFound(ref)
        self._values = record.values
        action = _decoded(decode_action, action_id(ref.agent, ref.seq), record.metadata)
        output = output_id(ref.agent, (isinstance(action, Action) and action.args_ref) or args_ref(ref.seq))
        wanted = [head_id(ref.agent), output, *(turn_id(ref.agent, number) for number in turns)]
        found = store._find(wanted, until=until)
        newest = dict(store._newest(ref.agent, "turn", limit=WINDOW, before=None, until=until).rows)
        asked = {turn_id(ref.agent, number) for number in turns} - newest.keys()
        told = {**newest, **{record_id: metadata for record_id, metadata in found.items() if record_id in asked}}
        return Found(
            action=action,
            metadata=record.metadata,
            args=_whole_args(action, output, found),
            turns=tuple(_decoded(decode_turn, record_id, metadata) for record_id, metadata in told.items()),
            largest_turn=max(0, *map(number_of, told)) if told else 0,
            head=(head_id(ref.agent), found[head_id(ref.agent)]) if head_id(ref.agent) in found else None,
        )

    def hold(self, agent: str, holder: str) -> Held:
        store, timeouts = self._store, self._store._timeouts
        ttl = timedelta(seconds=max(timeouts.write_s + timeouts.answer_s, MIN_TTL_S))
        began = monotonic()
        answer = self._acquire(agent, holder, ttl)
        expires_at, epoch = self._expiry(answer), store._of_type(answer.body, "epoch", int)
        if answer.status == CONFLICT:
            other = store._of_type(answer.body, "holder", str)
            # It was held when the server answered, whose clock it tells in whole seconds only.
            read_at = min(answer.at, expires_at - 1)
            raise LeaseLive(Lease(agent=agent, holder=other, epoch=epoch, expires_at=expires_at, read_at=read_at))
        self._holder = holder
        at = expires_at - ttl // timedelta(microseconds=1) * (SECOND // 1_000_000)
        return Held(epoch=epoch, at=at, until=began + ttl.total_seconds() - timeouts.answer_s)

    def _acquire(self, agent: str, holder: str, ttl: timedelta) -> Answer:
        """Of two who ask at one moment the server refuses one without saying whom it let in: that one asks again."""
        store = self._store
        body = {"holder": holder, "ttl_ms": ttl // timedelta(milliseconds=1)}
        for _ in range(MAX_UNSAID):
            try:
                answer = store._server.write("POST", f"{self._lease(agent)}/acquire", until=self._until, body=body)
            except StoreUnavailable as exc:
                raise StoreUnavailable(store.name, exc.problem) from exc  # a lease is no record: it runs out, nothing is written
            if answer.status != CONFLICT or answer.body.get("holder"):
                return answer
        raise StoreUnavailable(store.name, "others took the lease first, again and again; try again")

    def write_turn(self, closing: Closing, held: Held) -> int:
        """What a crashed attempt left of the output is replaced; a turn is put only where none is."""
        store, agent = self._store, closing.turn.agent
        told = turn_id(agent, closing.turn_seq)
        there, _ = store._get(told, until=self._until)
        if there is not None:
            raise WriteConflict(store.name, f"turn {closing.turn_seq} of agent {agent} exists although we hold its lease")
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
        store = self._store
        store._server.write("POST", f"{self._lease(agent)}/release", until=store._until(), body=body)

    def may_be_ours(self, intended: object, found: int) -> bool:
        """Nobody else writes under the epoch of a lease of ours."""
        return intended == found

    def _put(self, agent: str, record_id: str, metadata: Metadata, values: list[Any], held: Held) -> None:
        """Names the lease as Recall does: 0.14 ignores it, a later server may not."""
        store = self._store
        lease = {"Polign-Lease-Name": agent, "Polign-Lease-Holder": self._holder, "Polign-Lease-Epoch": str(held.epoch)}
        path = f"{store._path}/vectors/{quote(record_id, safe='')}"
        body = {"metadata": metadata, "values": values}
        answer = store._server.write("PUT", path, until=self._until, body=body, headers=lease)
        if answer.status in (CONFLICT, NOT_FOUND):
            raise WriteConflict(store.name, f"the server refused record {record_id}: {answer.error[:160]}")

    def _lease(self, agent: str) -> str:
        return f"{self._store._path}/leases/{quote(agent, safe='')}"

    def _expiry(self, answer: Answer) -> Instant:
        text = self._store._of_type(answer.body, "expires_at", str)
        try:
            return parse_rfc3339(text)
        except ValueError:
            raise StoreUnusable(self._store.name, f"a lease of it expires at {text[:40]!r}") from None


MIN_TTL_S = 5
"""The shortest lease that the server gives."""
MAX_UNSAID = 10


def chain_of(name: str, address: Address) -> str:
    """The name of a store's chain in the console's database, where several stores' may stand, and a PostgreSQL store's own.

    By the store's name, as decisions are: two stores of one console never share one. By its collection, so that a name that is pointed at
    other records begins a new one. Not by its address: servers move. No PostgreSQL store's chain has a colon before its first dot.
    """
    return f"polign:{name}:{address.collection}"


def number_of(record_id: str) -> int:
    """The number in an action's, a turn's or a working state's id, which alone is unique; -1 where there is none."""
    match = _NUMBER.search(record_id)
    return int(match[1]) if match else -1


def _reading(record_id: str, metadata: Metadata, at: Instant) -> Reading:
    return Reading(action=_decoded(decode_action, record_id, metadata), lease=None, read_at=at)


def _decoded(decode: Callable[[str, object], T], record_id: str, metadata: Metadata) -> T | Unreadable:
    """One record, decoded for itself alone: what cannot be is told with its id and spoils no list."""
    try:
        return decode(record_id, metadata)
    except RecordUnreadable as exc:
        return unreadable(exc.record_id, exc.problem)


def _whole_args(action: Action | Unreadable, output: str, found: Mapping[str, Metadata]) -> str:
    if isinstance(action, Unreadable):
        return ""
    is_there = action.args_ref and output in found
    return whole_args(action, _decoded(decode_output, output, found[output]) if is_there else None)


def _with_numbers(metadata: Metadata) -> Metadata:
    """Metadata of which every value came as a text, with those that Recall keeps as numbers as numbers."""
    return {
        name: int(value) if name in _NUMBERS and isinstance(value, str) and value.isascii() and value.isdigit() else value
        for name, value in metadata.items()
    }


def _can_be_stored(text: str) -> bool:
    """Whether a record could have such an id at all. What cannot be is not there."""
    return not any("\ud800" <= char <= "\udfff" for char in text)
