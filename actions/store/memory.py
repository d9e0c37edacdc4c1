"""The reference store: dictionaries and a lock. Keeps the very metadata that Recall keeps, so that the codec is exercised.

For tests and for looking around; nothing outlives the process.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import NamedTuple

from actions.errors import (
    ActionNotFound,
    ActionNotOpen,
    DecisionIdReused,
    LeaseLive,
    LeaseLost,
    StoreReadOnly,
    WriteConflict,
)
from actions.records import (
    OPEN_STATUSES,
    ActionEnd,
    ActionRef,
    ActionsRead,
    ActionStatus,
    AgentRecords,
    ChainHead,
    Change,
    Condition,
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
from actions.store.audit import GENESIS, seal, show_entry
from actions.store.base import SETTLE_TTL, cannot_remove, check_epoch
from actions.store.closing import (
    ENDINGS,
    MARKED_TURNS,
    Closing,
    answer_repeat,
    check_correctable,
    check_seen,
    find_told,
    newest_turn,
    plan_closing,
    plan_correction,
    readable,
    whole_args,
)
from actions.store.codec import (
    Metadata,
    action_id,
    decode_action,
    decode_output,
    decode_pointer,
    decode_turn,
    decode_working_state,
    decoded,
    encode_changes,
    head_id,
    output_id,
)
from actions.store.evicting import EVICTED, answer_eviction, eviction_entry, require_held
from actions.store.loading import MAX_LOADED_OUTPUTS, MAX_LOADED_POINTERS, MAX_LOADED_TURNS, agent_records
from actions.store.observing import LOOKED_AT, find_observed, is_ours
from actions.times import RELEASED, Instant

NOT_PREPARED = "not prepared for decisions: run `prepare_store {name}` as the database's owner"
_NUMBER = re.compile(r":(?:act|turn|ws):([0-9]{1,18})\Z", re.ASCII)


class LeaseRow(NamedTuple):
    """One agent's lease as it stands."""

    holder: str
    epoch: int
    expires_at: Instant


class MemoryStore:
    """ActionStore and AgentStore in one process. `hold()` gives its dictionaries to whoever plays an agent; `clock` is the store's own."""

    leases_known = True

    def __init__(
        self,
        name: str = "main",
        *,
        clock: Callable[[], Instant] = time.time_ns,
        is_prepared: bool = True,
        collection: str = "recall_lexical_v1_agents",
    ) -> None:
        self.name = name
        self.chain = f"memory.{collection}"
        self.clock = clock
        self.records: dict[str, Metadata] = {}
        self.leases: dict[str, LeaseRow] = {}
        self.links: list[Link] = []
        self.revision = 0
        self._is_prepared = is_prepared
        self._settled: dict[str, int] = {}  # decision id -> number of its entry
        self._lock = threading.RLock()

    @contextmanager
    def hold(self) -> Iterator[MemoryStore]:
        """Nobody else reads or writes meanwhile: what is changed inside is one transaction."""
        with self._lock:
            yield self

    # --- what an agent's process does ---

    def put(self, record_id: str, metadata: Mapping[str, object]) -> None:
        """Write one record whole and move the revision, as Recall's own write does once it is past the fence."""
        with self._lock:
            self.records[record_id] = json.loads(json.dumps(metadata))
            self.revision += 1

    def acquire(self, agent: str, holder: str, ttl_ns: int = SETTLE_TTL.seconds * 10**9) -> int | None:
        """An agent takes its lease as Recall does: the new epoch, or None while somebody holds it."""
        with self._lock:
            now, row = self.clock(), self.leases.get(agent)
            if row is not None and row.expires_at > now:
                return None
            self.leases[agent] = LeaseRow(holder, row.epoch + 1 if row else 1, now + ttl_ns)
            return self.leases[agent].epoch

    def write_fenced(self, agent: str, holder: str, epoch: int, record_id: str, metadata: Mapping[str, object]) -> bool:
        """An agent writes one record as Recall does, overwriting; False: fenced off, nothing was written (recall-records 5.2)."""
        with self._lock:
            row = self.leases.get(agent)
            if row is None or row.holder != holder or row.epoch < epoch or row.expires_at <= RELEASED:
                return False
            self.put(record_id, metadata)
            return True

    # --- the store itself ---

    def check(self) -> StoreCheck:
        return StoreCheck(
            server="memory",
            is_reachable=True,
            has_records=bool(self.records),
            is_prepared=self._is_prepared,
            has_index=True,
            can_settle=self._is_prepared,
            why_not="" if self._is_prepared else self._not_prepared(),
            warnings=("everything in it is gone when the process ends",),
        )

    def prepare(self, *, index: bool = False) -> tuple[str, ...]:
        with self._lock:
            found = "in place" if self._is_prepared else "created"
            self._is_prepared = True
        return (f"audit entries of {self.chain}: {found}", *(["index of open actions: not needed in memory"] if index else []))

    def close(self) -> None:
        pass

    def read_watch(self) -> Watch:
        with self._lock:
            now = self.clock()
            live = [row.expires_at for row in self.leases.values() if row.expires_at > now]
            return Watch(
                revision=self.revision, next_expiry=min(live, default=None), entries=self.read_head().number, read_at=now
            )

    # --- reads over all agents ---

    def read_actions(self, statuses: Collection[ActionStatus], *, limit: int, agent: str | None = None) -> ActionsRead:
        wanted = [
            {"record": "action", "status": status.value, **({"recall_agent": agent} if agent else {})} for status in statuses
        ]
        with self._lock:
            ids = [key for key in sorted(self.records) if any(_contains(self.records[key], pairs) for pairs in wanted)]
            now = self.clock()
            return ActionsRead(readings=tuple(self._read(key, now) for key in ids[:limit]), is_truncated=len(ids) > limit)

    def read_outputs(self, wanted: Collection[tuple[str, str]]) -> Mapping[tuple[str, str], Output | Unreadable]:
        with self._lock:
            found = {(agent, ref): self._find_output(agent, ref) for agent, ref in wanted}
        return {key: output for key, output in found.items() if output is not None}

    def get_action(self, agent: str, seq: int) -> Reading:
        with self._lock:
            if action_id(agent, seq) not in self.records:
                raise ActionNotFound(ActionRef(self.name, agent, seq))
            return self._read(action_id(agent, seq), self.clock())

    def read_leases(self, *, limit: int) -> LeasesRead:
        with self._lock:
            now = self.clock()
            agents = sorted(self.leases, key=lambda agent: (-self.leases[agent].expires_at, agent))
            found = (self._lease(agent, now) for agent in agents[:limit])
            return LeasesRead(leases=tuple(lease for lease in found if lease is not None), is_truncated=len(agents) > limit)

    def read_last_turns(self, agents: Collection[str]) -> Mapping[str, Turn | Unreadable]:
        with self._lock:
            newest = {agent: self._newest(agent, "turn", 1, None) for agent in agents}
            return {agent: decoded(decode_turn, ids[0], self.records[ids[0]]) for agent, ids in newest.items() if ids}

    # --- one agent ---

    def find_lease(self, agent: str) -> Lease | None:
        with self._lock:
            return self._lease(agent, self.clock())

    def list_turns(self, agent: str, *, limit: int, before: int | None = None) -> tuple[Turn | Unreadable, ...]:
        with self._lock:
            return tuple(decoded(decode_turn, key, self.records[key]) for key in self._newest(agent, "turn", limit, before))

    def list_agent_actions(self, agent: str, *, limit: int, before: int | None = None) -> tuple[Reading, ...]:
        with self._lock:
            now = self.clock()
            return tuple(self._read(key, now) for key in self._newest(agent, "action", limit, before))

    def find_working_state(self, agent: str) -> WorkingState | Unreadable | None:
        with self._lock:
            metadata = self.records.get(head_id(agent))
        if metadata is None:
            return None
        return decoded(decode_working_state, head_id(agent), metadata)

    def list_working_states(self, agent: str, *, limit: int, before: int | None = None) -> tuple[WorkingState | Unreadable, ...]:
        with self._lock:
            return tuple(
                decoded(decode_working_state, key, self.records[key])
                for key in self._newest(agent, "working_state", limit, before)
            )

    def list_outputs(self, agent: str, *, limit: int) -> tuple[Output | Unreadable, ...]:
        wanted = {"record": "output", "recall_agent": agent}
        with self._lock:
            found = [key for key in sorted(self.records) if _contains(self.records[key], wanted)]
            return tuple(decoded(decode_output, key, self.records[key]) for key in found[: max(limit, 0)])

    def list_pointers(self, agent: str, *, limit: int = 1000) -> tuple[Pointer | Unreadable, ...]:
        wanted = {"record": "pointer", "recall_agent": agent}
        with self._lock:
            found = [(key, self.records[key]) for key in sorted(self.records) if _contains(self.records[key], wanted)]
        pointers = [decoded(decode_pointer, key, metadata) for key, metadata in found]
        return tuple([pointer for pointer in pointers if pointer is not None][:limit])

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
        """Everything that can fail comes before the first change, all under the lock."""
        with self._lock:
            self._require_prepared()
            if entry.decision_id in self._settled:
                return answer_repeat(self._entry(self._settled[entry.decision_id]), entry)
            reading = self.get_action(ref.agent, ref.seq)
            action = readable(reading.action)
            if not action.is_open:
                raise ActionNotOpen(ref, action, self._entry_of(ref))
            lease = reading.lease
            if lease is not None and lease.is_live:
                raise LeaseLive(lease)
            check_epoch(self.name, lease)
            args = whole_args(action, self._find_output(action.agent, action.args_ref) if action.args_ref else None)
            check_seen(ref, action, args, seen=seen, claim=claim)
            now = self.clock()
            epoch = (lease.epoch if lease else 0) + 1
            closing = plan_closing(
                action,
                self.records[action_id(ref.agent, ref.seq)],
                end,
                entry,
                args=args,
                newest=self._newest_turn(ref.agent),
                found=lease,
                epoch=epoch,
                at=now,
                seen=seen,
                claim=claim,
                told=find_told(self.list_turns(ref.agent, limit=MARKED_TURNS), marker),
            )
            return self._write(ref, closing, holder, epoch, now)

    def correct(
        self, ref: ActionRef, correction: Correction, *, entry: NewEntry, holder: str, basis: int | None = None
    ) -> Settled:
        with self._lock:
            self._require_prepared()
            reading = self.get_action(ref.agent, ref.seq)
            action = readable(reading.action)
            told = check_correctable(ref, action, self._endings_of(ref), entry, basis=basis)
            if isinstance(told, Settled):
                return told
            lease = reading.lease
            if lease is not None and lease.is_live:
                raise LeaseLive(lease)
            check_epoch(self.name, lease)
            now = self.clock()
            epoch = (lease.epoch if lease else 0) + 1
            newest = self._newest_turn(ref.agent)
            closing = plan_correction(action, correction, entry, told=told, newest=newest, found=lease, epoch=epoch, at=now)
            return self._write(ref, closing, holder, epoch, now)

    def _write(self, ref: ActionRef, closing: Closing, holder: str, epoch: int, now: Instant) -> Settled:
        sealed = self._append(closing.entry, now)
        ended = {} if closing.action is None else {action_id(ref.agent, ref.seq): closing.action}
        for key, metadata in {**ended, **closing.inserted}.items():
            self.put(key, metadata)
        self.leases[ref.agent] = LeaseRow(holder, epoch + 1, RELEASED)
        return Settled(entry=sealed, turn_seq=closing.turn_seq, is_repeat=False)

    def evict(self, agent: str, *, holder: str, entry: NewEntry) -> Entry:
        with self._lock:
            self._require_prepared()
            for known in self.list_entries(limit=len(self.links), agent=agent):
                if (known.kind, known.decision_id) == (EVICTED, entry.decision_id):
                    return answer_eviction(known, entry)
            now = self.clock()
            found = require_held(self.name, agent, holder, self._lease(agent, now))
            sealed = self._append(eviction_entry(entry, found), now)
            self.leases[agent] = LeaseRow(holder, found.epoch + 1, RELEASED)
            return sealed

    # --- what an agent's process writes through the contract ---

    def create_records(self) -> tuple[str, ...]:
        return ()

    def acquire_lease(self, agent: str, *, holder: str, ttl: timedelta) -> Lease:
        with self._lock:
            found = self._lease(agent, self.clock())
            check_epoch(self.name, found)
            if self.acquire(agent, holder, _nanoseconds(ttl)) is None and found is not None:
                raise LeaseLive(found)
            return self._held(agent)

    def renew_lease(self, lease: Lease, *, ttl: timedelta, in_doubt: int = 0) -> Lease:
        with self._lock:
            if not self._is_ours(lease, in_doubt):
                raise LeaseLost(lease)
            epoch = self.leases[lease.agent].epoch + 1
            self.leases[lease.agent] = LeaseRow(lease.holder, epoch, self.clock() + _nanoseconds(ttl))
            return self._held(lease.agent)

    def release_lease(self, lease: Lease, *, in_doubt: int = 0) -> None:
        with self._lock:
            if self._is_ours(lease, in_doubt):
                self.leases[lease.agent] = LeaseRow(lease.holder, self.leases[lease.agent].epoch + 1, RELEASED)

    def load_agent(self, agent: str) -> AgentRecords:
        with self._lock:
            head = self.records.get(head_id(agent))
            opened = [
                action
                for key, metadata in self.records.items()
                if _contains(metadata, {"record": "action", "recall_agent": agent}) and metadata.get("status") in OPEN_STATUSES
                for action in [self._read(key, 0).action]
            ]
            return agent_records(
                agent,
                lease=self._lease(agent, self.clock()),
                largest_turn=self._largest(agent, "turn"),
                largest_action=self._largest(agent, "action"),
                head=None if head is None else (head_id(agent), head),
                open_actions=opened,
                pointers=self.list_pointers(agent, limit=MAX_LOADED_POINTERS),
                outputs=self.list_outputs(agent, limit=MAX_LOADED_OUTPUTS),
                turns=self.list_turns(agent, limit=MAX_LOADED_TURNS),
            )

    def write(self, lease: Lease, changes: Sequence[Change]) -> None:
        with self._lock:
            row = self.leases.get(lease.agent)
            if row is None or row.holder != lease.holder or row.epoch < lease.epoch or row.expires_at <= RELEASED:
                raise LeaseLost(lease)
            stored = encode_changes(changes, epoch=lease.epoch)
            for each in stored:
                if each.condition is Condition.NEW and each.record_id in self.records:
                    raise WriteConflict(self.name, f"record {each.record_id} is there already")
                if each.condition is Condition.OPEN:
                    ref = ActionRef(self.name, lease.agent, each.metadata["seq"])
                    action = readable(self.get_action(ref.agent, ref.seq).action)
                    if not action.is_open:
                        raise ActionNotOpen(ref, action, self._entry_of(ref))
            for each in stored:
                self.put(each.record_id, each.metadata)

    def _held(self, agent: str) -> Lease:
        row = self.leases[agent]
        return Lease(agent=agent, holder=row.holder, epoch=row.epoch, expires_at=row.expires_at, read_at=self.clock())

    def _is_ours(self, lease: Lease, in_doubt: int) -> bool:
        row = self.leases.get(lease.agent)
        is_epoch = row is not None and lease.epoch <= row.epoch <= lease.epoch + in_doubt
        return row is not None and is_epoch and row.holder == lease.holder and row.expires_at > RELEASED

    # --- audit entries ---

    def append_entry(self, entry: NewEntry) -> Entry:
        with self._lock:
            self._require_prepared()
            if entry.kind == "settled" and entry.decision_id in self._settled:
                raise DecisionIdReused(self._entry(self._settled[entry.decision_id]))
            return self._append(entry, self.clock())

    def append_observed(self, entry: NewEntry) -> Entry | None:
        with self._lock:
            self._require_prepared()
            known = self.list_entries(limit=len(self.links), agent=entry.agent, seq=entry.seq, kinds=LOOKED_AT)
            if (written := find_observed(known, entry)) or is_ours(known):
                return written
            return self._append(entry, self.clock())

    def find_settled_entry(self, decision_id: str) -> Entry | None:
        with self._lock:
            number = self._settled.get(decision_id)
            return self._entry(number) if number else None

    def list_entries(
        self,
        *,
        limit: int,
        before: int | None = None,
        agent: str | None = None,
        seq: int | None = None,
        kinds: Collection[str] | None = None,
    ) -> tuple[Entry, ...]:
        with self._lock:
            entries = [show_entry(link) for link in reversed(self.links) if before is None or link.number < before]
        matching = [e for e in entries if (agent is None or e.agent == agent) and (seq is None or e.seq == seq)]
        matching = matching if kinds is None else [e for e in matching if e.kind in kinds]
        return tuple(matching[:limit])

    def iterate_links(self, *, after: int = 0) -> Iterator[Link]:
        with self._lock:
            links = [link._replace(misfiled=self._misfiled(link)) for link in self.links if link.number > after or not after]
        yield from links

    def remove_entries(self, last: ChainHead, entry: NewEntry) -> Entry:
        with self._lock:
            found = next((link.hash for link in self.links if link.number == last.number), None)
            if problem := cannot_remove(self.name, last, self.read_head(), found):
                raise problem
            self.links[:] = [link for link in self.links if link.number > last.number]
            self._settled = {key: number for key, number in self._settled.items() if number > last.number}
            return self._append(entry, self.clock())

    def read_head(self) -> ChainHead:
        with self._lock:
            last = self.links[-1] if self.links else Link(0, "", "", GENESIS)
        return ChainHead(chain=self.chain, number=last.number, hash=last.hash)

    # --- inside ---

    def _read(self, record_id: str, now: Instant) -> Reading:
        metadata = self.records[record_id]
        action = decoded(decode_action, record_id, metadata)
        agent = metadata.get("recall_agent")
        return Reading(action=action, lease=self._lease(agent, now) if isinstance(agent, str) else None, read_at=now)

    def _lease(self, agent: str, now: Instant) -> Lease | None:
        row = self.leases.get(agent)
        if row is None:
            return None
        return Lease(agent=agent, holder=row.holder, epoch=row.epoch, expires_at=row.expires_at, read_at=now)

    def _find_output(self, agent: str, ref: str) -> Output | Unreadable | None:
        record_id = output_id(agent, ref)
        return decoded(decode_output, record_id, self.records[record_id]) if record_id in self.records else None

    def _newest(self, agent: str, record: str, limit: int, before: int | None) -> list[str]:
        """Ids of the newest records, by the number in the id: it alone is unique. Ids without a number come last."""
        wanted = {"record": record, "recall_agent": agent}
        ids = [key for key, metadata in self.records.items() if _contains(metadata, wanted)]
        if before is not None:
            ids = [key for key in ids if 0 <= _number(key) < before]
        return sorted(ids, key=lambda key: (_number(key), key), reverse=True)[:limit]

    def _newest_turn(self, agent: str) -> int:
        head = self.records.get(head_id(agent))
        return newest_turn(self._largest(agent, "turn"), None if head is None else (head_id(agent), head))

    def _largest(self, agent: str, record: str) -> int:
        ids = self._newest(agent, record, 1, None)
        return max(0, _number(ids[0])) if ids else 0

    def _require_prepared(self) -> None:
        if not self._is_prepared:
            raise StoreReadOnly(self.name, self._not_prepared())

    def _not_prepared(self) -> str:
        return NOT_PREPARED.format(name=self.name)

    def _append(self, new: NewEntry, at: Instant) -> Entry:
        sealed = seal(new, self.read_head(), at)
        self.links.append(Link(sealed.number, sealed.text, sealed.prev, sealed.hash))
        if sealed.kind == "settled" and sealed.decision_id:
            self._settled[sealed.decision_id] = sealed.number
        return sealed

    def _misfiled(self, link: Link) -> str:
        entry = show_entry(link)
        is_found = entry.kind != "settled" or not entry.decision_id or self._settled.get(entry.decision_id) == link.number
        return "" if is_found else "decision_id"

    def _entry(self, number: int) -> Entry:
        return next(show_entry(link) for link in self.links if link.number == number)

    def _entry_of(self, ref: ActionRef) -> Entry | None:
        return next((entry for entry in self._endings_of(ref) if entry.kind == "settled"), None)

    def _endings_of(self, ref: ActionRef) -> tuple[Entry, ...]:
        found = self.list_entries(limit=len(self.links), agent=ref.agent, seq=ref.seq)
        return tuple(entry for entry in found if entry.kind in ENDINGS)


def _contains(metadata: Metadata, pairs: Mapping[str, str]) -> bool:
    return isinstance(metadata, dict) and all(metadata.get(key) == value for key, value in pairs.items())


def _nanoseconds(ttl: timedelta) -> int:
    return ttl // timedelta(microseconds=1) * 1000


def _number(record_id: str) -> int:
    match = _NUMBER.search(record_id)
    return int(match[1]) if match else -1
