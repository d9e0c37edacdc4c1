"""The contract of a store, in words and signatures, and what every settle checks. Every method is required, every adapter passes tests/store/.

Reads never lock a lease row (a lock would stall the agent's writes and renewals). All "now" is the store's own clock. Every read raises
StoreUnavailable when the store does not answer and StoreUnusable when what it answers is not Recall's schema. A store whose tables Recall
has not created yet is empty, not broken.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol

from actions.errors import StoreUnusable, WriteConflict
from actions.records import (
    ActionEnd,
    ActionRef,
    ActionsRead,
    ActionStatus,
    AgentRecords,
    ChainHead,
    Change,
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

MAX_EPOCH = 2**63 - 1
"""The highest epoch a lease can have; a settle needs two more than it finds: one for the lease, one for giving it back."""

MAX_REMOVED = 20_000
"""How many entries one transaction removes: the history cannot be written meanwhile."""

CONSOLE_HOLDER = "console:"
"""How the holder strings of our own settles begin; each is used once."""

SETTLE_TTL = timedelta(seconds=60)
"""How long the lease taken by a settle would live if the transaction could outlive its connection; it cannot."""


def cannot_remove(store: str, last: ChainHead, head: ChainHead, found: str | None) -> WriteConflict | None:
    """Why the range up to `last` is not removed; None where it may be. `found`: the hash that stands at its number."""
    if found != last.hash:
        return WriteConflict(store, f"entry {last.number} is not the one that the tombstone stands for")
    if last.number >= head.number:
        return WriteConflict(store, f"entry {last.number} is the newest one; at least one entry is kept")
    return None


def check_epoch(store: str, lease: Lease | None) -> None:
    """Before a settle takes a lease that is free.

    Raises:
        StoreUnusable: nothing can follow its epoch. Nothing was written.
    """
    if lease is not None and lease.epoch > MAX_EPOCH - 2:
        raise StoreUnusable(
            store,
            f"the lease of agent {lease.agent} has epoch {lease.epoch}, which no other can follow; nobody can take it any more",
        )


class EntryChain(Protocol):
    """What is read of a history, whichever database it stands in. Each method as `ActionStore` has it."""

    name: str  # the store's, or `console`

    def list_entries(
        self, *, limit: int, before: int | None = None, agent: str | None = None, seq: int | None = None
    ) -> tuple[Entry, ...]: ...

    def iterate_links(self, *, after: int = 0) -> Iterator[Link]: ...

    def read_head(self) -> ChainHead: ...


class OwnChain(EntryChain, Protocol):
    """A history that stands in a PostgreSQL database by itself, beside no records: the console's own."""

    def prepare(self) -> tuple[str, ...]:
        """As `ActionStore.prepare`."""
        ...

    def append(self, new: NewEntry) -> Entry:
        """Append one entry, in a transaction of its own. Raises as `ActionStore.append_entry` does."""
        ...

    def remove_entries(self, last: ChainHead, entry: NewEntry) -> Entry:
        """As `ActionStore.remove_entries`."""
        ...

    def append_on(self, connection: Any, new: NewEntry) -> Entry:
        """Append one entry in an open transaction of the caller's on this database: it commits or vanishes with what it tells of.

        The chain's head is held until that transaction ends: call it last in there. `connection` is a psycopg connection, whoever's.

        Raises:
            StoreReadOnly, StoreUnusable, WriteConflict: nothing was written, and the caller's transaction must not be committed.
        """
        ...

    def close(self) -> None: ...


class ActionStore(Protocol):
    """Recall's records of one collection, over all its agents, plus our audit entries beside them."""

    name: str  # as configured; part of every ActionRef
    leases_known: bool  # False: leases cannot be read here, so nobody can tell in flight from interrupted, and no reading has one

    # --- the store itself ---

    def check(self) -> StoreCheck:
        """What this store can be used for now. Never raises StoreError: what is wrong stands in the answer."""
        ...

    def prepare(self, *, index: bool = False) -> tuple[str, ...]:
        """Create or upgrade what is ours (the audit schema; with `index` the partial index of recall-records 10.1). Idempotent.

        Never creates or changes a table of Recall's. Answers one line for each thing done or found in place.

        Raises:
            StoreReadOnly: this connection lacks a right; `.problem` names it. What was created before stays and does no harm.
        """
        ...

    def close(self) -> None:
        """Give back connections. The store may be used again afterwards; it opens new ones."""
        ...

    def read_watch(self) -> Watch:
        """The few numbers that move when a screen of this store may have changed; one round trip to each server.

        They may move without a change; nothing that a screen shows changes without one of them, a lease that cannot be read excepted.
        """
        ...

    # --- reads over all agents ---

    def read_actions(self, statuses: Collection[ActionStatus], *, limit: int, agent: str | None = None) -> ActionsRead:
        """Actions with one of these statuses, each with its agent's lease, in one statement; ordered by record id, at most `limit`.

        Selected by the metadata's status and decoded one by one: a record that cannot be decoded is listed as Unreadable.
        Arguments and results that overflowed are as stored (shortened); `read_outputs` has them whole.
        """
        ...

    def read_outputs(self, wanted: Collection[tuple[str, str]]) -> Mapping[tuple[str, str], Output | Unreadable]:
        """Outputs by (agent, ref), whole, in one round trip (none for an empty collection). Missing ones are left out."""
        ...

    def get_action(self, agent: str, seq: int) -> Reading:
        """One action with its lease; Unreadable inside the reading where it cannot be decoded.

        Raises:
            ActionNotFound: the store answered and has no such record.
        """
        ...

    def read_leases(self, *, limit: int) -> LeasesRead:
        """The leases of all agents in one statement, those that end last first, then by agent; at most `limit`. Takes no lock.

        So where there are more, what is live or died last is among them. Empty where leases are not known.
        """
        ...

    def read_last_turns(self, agents: Collection[str]) -> Mapping[str, Turn | Unreadable]:
        """The newest turn of each of these agents, in one statement where the server has one for it; agents without turns are left out."""
        ...

    # --- one agent ---

    def find_lease(self, agent: str) -> Lease | None:
        """The agent's lease row; None where it was never leased, or where leases are not known. Takes no lock."""
        ...

    def list_turns(self, agent: str, *, limit: int, before: int | None = None) -> tuple[Turn | Unreadable, ...]:
        """The newest turns, newest first, at most `limit`; with `before` those with a smaller number."""
        ...

    def list_agent_actions(self, agent: str, *, limit: int, before: int | None = None) -> tuple[Reading, ...]:
        """The newest actions of one agent of any status, newest number first, at most `limit`; with `before` those with a smaller number."""
        ...

    def find_working_state(self, agent: str) -> WorkingState | Unreadable | None:
        """The newest working state (the head); None where the agent has none."""
        ...

    def list_working_states(self, agent: str, *, limit: int, before: int | None = None) -> tuple[WorkingState | Unreadable, ...]:
        """The versions that the agent left, newest first, at most `limit`; with `before` those with a smaller number. Never the head."""
        ...

    def list_outputs(self, agent: str, *, limit: int) -> tuple[Output | Unreadable, ...]:
        """An agent's outputs, whole, by their refs' ids as Recall reads them for a briefing, at most `limit`. Each may be a megabyte."""
        ...

    def list_pointers(self, agent: str, *, limit: int = 1000) -> tuple[Pointer | Unreadable, ...]:
        """Pointers that were not removed, by name."""
        ...

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
        """Take the lease, close an open action, append its turn and audit entry, release: one transaction, all or nothing.

        The lease is taken only where nobody holds it; `holder` is used once and by nobody else (two processes with one holder string
        are not fenced from each other, recall-records 1.5). Times come from the store's clock. `seen` is the digest of what was shown;
        `claim` the digest without the status, for a decision that was kept. The same `entry.decision_id` again answers what it wrote
        before, without writing. `marker`: where a turn with this message id stands among the newest ones, it tells this decision already
        (it was begun through the tenant's server), and no second one is written. The stored entry gets `before`, `after`, turn number and
        lease from inside the transaction.

        A store without transactions (`check().cautions` says so) writes in the steps of steps.py instead. There a settle that was cut off may
        be half written, which is StoreUnavailable with `may_be_written`; entries of kind `settling` say what was begun; and asking again with
        the same decision id writes what is missing, also the entry alone.

        Raises:
            ActionNotFound, RecordUnreadable: nothing was written.
            LeaseLive: a process holds the agent. Nothing was written; `.lease` says who and until when.
            ActionNotOpen: somebody closed it first. Nothing was written; `.action` is what stands there, `.entry` our entry if we have one.
            ActionChanged: it is not what was shown. Nothing was written; `.action` is what it is now.
            InvalidDecision: the end does not fit the action's class. Nothing was written.
            DecisionIdReused: the id stands for another decision. Nothing was written now.
            StoreReadOnly: not prepared, rights missing, a standby. Nothing was written.
            StoreUnusable: what stands there is not Recall's, or its lease is at the end of its epochs. Nothing was written.
            WriteConflict: the records moved although we held the lease. Nothing was written.
            StoreUnavailable: `.may_be_written` tells whether the outcome is open. Ask again with the same decision id.
        """
        ...

    # --- "I was wrong" ---

    def correct(
        self, ref: ActionRef, correction: Correction, *, entry: NewEntry, holder: str, basis: int | None = None
    ) -> Settled:
        """Tell the agent that an end which we wrote was wrong: one turn and one `corrected` entry, under its lease, all or nothing.

        The action stays as it is: what is closed is never reopened. The lease is taken as in `settle`. Only an action that a `settled` entry
        of ours ended, as it stands there, can be corrected; a correction can be corrected again. `basis` is the number of the entry that is
        corrected, as it was shown: of two who correct the same one at one moment the first does. The same `entry.decision_id` about the same
        action again answers what it wrote before, without writing. The stored entry gets `corrects` (that number), `before`, `after`, turn
        number and lease from inside the transaction.

        A store without transactions writes in the steps of steps.py; what `settle` says about those holds here too.

        Raises:
            ActionNotFound, RecordUnreadable: nothing was written.
            LeaseLive: a process holds the agent. Nothing was written; `.lease` says who and until when.
            NothingToCorrect: it is open, or nobody here ended it as it stands there. Nothing was written.
            CorrectedMeanwhile: another entry than `basis` is the newest about it. Nothing was written; `.entry` is it.
            DecisionIdReused, StoreReadOnly, StoreUnusable, WriteConflict, StoreUnavailable: as in `settle`.
        """
        ...

    # --- the other write: a deliberate override ---

    def evict(self, agent: str, *, holder: str, entry: NewEntry) -> Entry:
        """Take a live lease away from exactly this holder, and append the entry that says so: one transaction, all or nothing.

        The lease is left released under the next epoch: the holder's next write or renewal is fenced off, and whoever comes first takes it.
        Its process is not stopped, nor a call that it is making. The same `entry.decision_id` for the same agent again answers what it
        wrote before, without writing. The stored entry gets the lease as it was found.

        Raises:
            LeaseMoved: somebody else holds the agent, or nobody. Nothing was written; `.lease` is what stands there now.
            DecisionIdReused: the id stands for another eviction of this agent. Nothing was written now.
            StoreReadOnly: not prepared, rights missing, a standby. Nothing was written.
            StoreUnusable: what stands there is not Recall's, it does not fence writes, or its lease is at the end of its epochs. Nothing
                was written.
            WriteConflict: the lease moved although we held it. Nothing was written.
            StoreUnavailable: `.may_be_written` tells whether the outcome is open. Ask again with the same decision id.
        """
        ...

    # --- audit entries: empty where the store was never prepared; StoreUnusable where entries are there that we may not read ---

    def append_entry(self, entry: NewEntry) -> Entry:
        """Append one entry that stands alone (proposed, waiting, withdrawn, refused, observed), in a transaction of its own.

        Also the `settled` one of a settle that was written in steps: of those there is one for each decision id.

        Raises:
            DecisionIdReused: a `settled` entry of this id is there already; `.entry` is it. Nothing was written now.
            StoreReadOnly: not prepared or no right to insert. Nothing was written.
            StoreUnavailable: as in `settle`; entries of this kind carry no once-only promise.
        """
        ...

    def find_settled_entry(self, decision_id: str) -> Entry | None:
        """The entry that a settle with this decision id wrote; None where it wrote nothing (or the store is not prepared)."""
        ...

    def list_entries(
        self, *, limit: int, before: int | None = None, agent: str | None = None, seq: int | None = None
    ) -> tuple[Entry, ...]:
        """The newest entries, newest first, at most `limit`; with `before` those with a smaller number. Empty where not prepared.

        A row that was tampered with is shown as kind `unreadable`; `iterate_links` with audit.verify_chain says what is wrong with it.
        """
        ...

    def iterate_links(self, *, after: int = 0) -> Iterator[Link]:
        """All rows with a greater number exactly as they stand, oldest first, streamed in batches: flat memory however long the chain.

        `after=0` is from the very first row, also where somebody put one before number 1. `Link.misfiled` names the first thing beside
        `text` that searches go by (at, kind, actor, agent, seq, tool, decision_id, outcome) and that does not say what `text` says.
        """
        ...

    def remove_entries(self, last: ChainHead, entry: NewEntry) -> Entry:
        """Remove every entry up to `last`, and append the one that says so: one transaction, all or nothing. For an owner's connection only.

        Nothing else ever removes an entry; the console's own role cannot (contract, Audit entries). At most MAX_REMOVED at a time.

        Raises:
            WriteConflict: the entry of that number is not there with that hash, or it is the newest one. Nothing was removed.
            StoreReadOnly: this connection's role is not the owner's. Nothing was removed.
            StoreUnavailable: `.may_be_written` tells whether they may be gone.
        """
        ...

    def read_head(self) -> ChainHead:
        """The chain's newest number and hash as kept beside the entries; number 0 where it is empty or not prepared."""
        ...


class AgentStore(ActionStore, Protocol):
    """What an agent's own process needs beside: its lease, its records, and writing them. memory, postgres and mongo; polign_db fences nothing,
    so it is none.

    All "now" is the store's clock. A write belongs to whoever holds the lease: same holder, an epoch not older than its own, not released.
    Expiry decides who may take over, never who may write (recall-records 5.2).
    """

    def create_records(self) -> tuple[str, ...]:
        """Recall's tables or collections, and those of this collection, where they are missing, in the form that Recall gives them.

        Idempotent, also when two do it at one moment. Answers one line for each thing created; empty where all was there.

        Raises:
            StoreReadOnly: this connection may not create them; `.problem` names the remedy. What was created before stays and does no harm.
            StoreUnusable, StoreUnavailable: as everywhere.
        """
        ...

    def acquire_lease(self, agent: str, *, holder: str, ttl: timedelta) -> Lease:
        """Take the lease if and only if nobody holds it. The epoch goes up by one.

        Raises:
            LeaseLive: a process holds the agent, perhaps under this very holder string; `.lease` is it. Nothing was written.
            StoreUnusable: nothing can follow its epoch. Nothing was written.
            StoreUnavailable: with `may_be_written` it may be ours, under an epoch that we do not know. Nobody else has it then until it ends.
        """
        ...

    def renew_lease(self, lease: Lease, *, ttl: timedelta, in_doubt: int = 0) -> Lease:
        """Hold it for another `ttl` from now, under the next epoch. An expired lease that nobody took over is renewed too.

        `in_doubt`: how many renewals of this lease were asked for whose answers were lost; each may have raised the epoch by one.

        Raises:
            LeaseLost: another epoch stands there, or it was released. Nothing was written.
            StoreUnavailable: with `may_be_written` it may be renewed: ask again with one more `in_doubt`.
        """
        ...

    def release_lease(self, lease: Lease, *, in_doubt: int = 0) -> None:
        """Hand it over now. Does nothing where it was lost. `in_doubt` as in `renew_lease`."""
        ...

    def load_agent(self, agent: str) -> AgentRecords:
        """All that a process starts from, in one consistent read. Takes no lock. Turns, pointers and outputs bounded, open actions all.

        Raises:
            RecordUnreadable: a record of what it starts from cannot be decoded, or no number can follow the newest one.
        """
        ...

    def write(self, lease: Lease, changes: Sequence[Change]) -> None:
        """Write these records of the lease's agent: the fence, each change on its condition, the revision. One transaction, all or nothing.

        The records carry the lease's epoch in their metadata. At least one change, at most one of each record.

        Raises:
            LeaseLost: fenced off. Nothing was written.
            WriteConflict: a record that should be NEW is there already. Nothing was written.
            ActionNotOpen: an action that should be OPEN is closed; `.action` is what stands there. Nothing was written.
            ActionNotFound: an action that should be OPEN is not there. Nothing was written.
            StoreReadOnly, StoreUnusable: nothing was written.
            StoreUnavailable: `.may_be_written` tells whether the outcome is open. The same changes again write them, or conflict with themselves.
        """
        ...
