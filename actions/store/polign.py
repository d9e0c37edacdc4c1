"""The polign_db store, over HTTP. Reads are one request or a few; a settle goes in steps, because there are no transactions (steps.py).

The server keeps no history of ours: entries stand in the console's PostgreSQL database, in a chain of their own. It cannot be asked who
holds an agent, and it does not compare the lease that a write names: what follows from that is in CAUTIONS, which every screen shows.
A read over all agents costs the server a scan of the collection, however little it finds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TypeVar

from actions.errors import ActionNotFound, StoreError, StoreReadOnly, StoreUnavailable, StoreUnusable
from actions.records import (
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
from actions.store.codec import (
    Metadata,
    action_id,
    decode_action,
    decode_output,
    decode_pointer,
    decode_turn,
    decode_working_state,
    decoded,
    head_id,
    output_id,
)
from actions.store.deadlines import Timeouts
from actions.store.polign_http import NOT_FOUND, Address, Server, parse_address
from actions.store.polign_records import OVERLAP, PAGE, PolignRecords, can_be_stored, number_of
from actions.store.polign_steps import PolignHands
from actions.store.postgres_entries import PostgresEntries, open_entries
from actions.store.steps import correct_in_steps, settle_in_steps
from actions.times import Instant

T = TypeVar("T")

CAUTIONS = (
    "polign_db 0.14 does not fence writes: a process that lost this agent without noticing may still overwrite what is decided here",
    "polign_db does not say who holds an agent: a call that is open may still be running",
)
NO_ENTRIES = "there is no database for the history of its decisions: set DATABASE_URL to the console's PostgreSQL"
_WATERMARK_DIGITS = 15  # 60 bits of it


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
        self._records = PolignRecords(self._server, self._address.collection)

    # --- the store itself ---

    def check(self) -> StoreCheck:
        try:
            described = self._server.read(f"{self._records.path}/describe", until=self._server.until())
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
        answer = self._server.read(f"{self._records.path}/watermark", until=self._server.until())
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
        if not statuses or not can_be_stored(agent or ""):
            return ActionsRead(readings=(), is_truncated=False)
        wanted: dict[str, object] = {"record": "action", "status": {"$in": sorted(status.value for status in statuses)}}
        wanted |= {} if agent is None else {"recall_agent": agent}
        listed = self._records.list_records(wanted, limit=limit, until=self._server.until())
        return ActionsRead(
            readings=tuple(_reading(record_id, metadata, listed.at) for record_id, metadata in listed.rows),
            is_truncated=listed.total > limit,
        )

    def read_outputs(self, wanted: Collection[tuple[str, str]]) -> Mapping[tuple[str, str], Output | Unreadable]:
        keys = {output_id(agent, ref): (agent, ref) for agent, ref in wanted}
        found = self._records.find_records(list(keys), until=self._server.until())
        return {keys[record_id]: decoded(decode_output, record_id, metadata) for record_id, metadata in found.items()}

    def get_action(self, agent: str, seq: int) -> Reading:
        record, at = self._records.get_record(action_id(agent, seq), until=self._server.until())
        if record is None:
            raise ActionNotFound(ActionRef(self.name, agent, seq))
        return _reading(action_id(agent, seq), record.metadata, at)

    def read_leases(self, *, limit: int) -> LeasesRead:
        """Always empty: leases cannot be listed."""
        return LeasesRead(leases=(), is_truncated=False)

    def read_last_turns(self, agents: Collection[str]) -> Mapping[str, Turn | Unreadable]:
        """Two requests for each agent: how many turns there are, and those near the last; the server groups nothing."""
        found: dict[str, Turn | Unreadable] = {}
        until = self._server.until()
        for agent in sorted({agent for agent in agents if can_be_stored(agent)}):
            wanted: dict[str, object] = {"recall_agent": agent, "record": "turn"}
            total = self._records.count_records(wanted, until=until)
            if not total:
                continue
            near = self._records.list_records(wanted | {"seq": {"$gte": total - OVERLAP}}, limit=PAGE, until=until).rows
            newest = max(
                near or self._records.list_records(wanted, limit=PAGE, until=until).rows,
                key=lambda row: (number_of(row[0]), row[0]),
            )
            found[agent] = decoded(decode_turn, *newest)
        return found

    # --- one agent ---

    def find_lease(self, agent: str) -> Lease | None:
        """Always None: a lease cannot be read, only asked for."""
        return None

    def list_turns(self, agent: str, *, limit: int, before: int | None = None) -> tuple[Turn | Unreadable, ...]:
        listed = self._records.list_newest(agent, "turn", limit=limit, before=before, until=self._server.until())
        return tuple(decoded(decode_turn, record_id, metadata) for record_id, metadata in listed.rows)

    def list_agent_actions(self, agent: str, *, limit: int, before: int | None = None) -> tuple[Reading, ...]:
        listed = self._records.list_newest(agent, "action", limit=limit, before=before, until=self._server.until())
        return tuple(_reading(record_id, metadata, listed.at) for record_id, metadata in listed.rows)

    def find_working_state(self, agent: str) -> WorkingState | Unreadable | None:
        found = self._records.find_records([head_id(agent)], until=self._server.until())
        return decoded(decode_working_state, head_id(agent), found[head_id(agent)]) if found else None

    def list_working_states(self, agent: str, *, limit: int, before: int | None = None) -> tuple[WorkingState | Unreadable, ...]:
        listed = self._records.list_newest(
            agent, "working_state", limit=limit, before=before, until=self._server.until(), number="version"
        )
        return tuple(decoded(decode_working_state, record_id, metadata) for record_id, metadata in listed.rows)

    def list_outputs(self, agent: str, *, limit: int) -> tuple[Output | Unreadable, ...]:
        if not can_be_stored(agent) or limit < 1:
            return ()
        listed = self._records.list_records({"record": "output", "recall_agent": agent}, limit=limit, until=self._server.until())
        return tuple(decoded(decode_output, record_id, metadata) for record_id, metadata in listed.rows)

    def list_pointers(self, agent: str, *, limit: int = 1000) -> tuple[Pointer | Unreadable, ...]:
        if not can_be_stored(agent):
            return ()
        wanted = {"record": "pointer", "recall_agent": agent, "removed": {"$ne": True}}
        listed = self._records.list_records(wanted, limit=limit, until=self._server.until())
        pointers = (decoded(decode_pointer, record_id, metadata) for record_id, metadata in listed.rows)
        return tuple(pointer for pointer in pointers if pointer is not None)

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

    def _hands(self, entries: PostgresEntries, ref: ActionRef) -> PolignHands:
        # What no column can hold could not be looked up again.
        if not (can_be_stored(ref.agent) and "\x00" not in ref.agent):
            raise ActionNotFound(ref)
        entries.require_prepared()
        return PolignHands(self._server, self._records, self._timeouts)

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


def chain_of(name: str, address: Address) -> str:
    """The name of a store's chain in the console's database, where several stores' may stand, and a PostgreSQL store's own.

    By the store's name, as decisions are: two stores of one console never share one. By its collection, so that a name that is pointed at
    other records begins a new one. Not by its address: servers move. No PostgreSQL store's chain has a colon before its first dot.
    """
    return f"polign:{name}:{address.collection}"


def _reading(record_id: str, metadata: Metadata, at: Instant) -> Reading:
    return Reading(action=decoded(decode_action, record_id, metadata), lease=None, read_at=at)
