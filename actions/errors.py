"""What can go wrong, and the state of the world when it is raised. Each error carries what a screen needs to show."""

from __future__ import annotations

from actions.records import Action, ActionRef, Entry, Lease
from actions.times import format_rfc3339


class ActionsError(Exception):
    """Base of all errors of this library."""


class InvalidDecision(ActionsError):
    """The decision breaks a rule (a result with failed, an empty reason). Nothing was read or written."""


class InvalidQuery(ActionsError):
    """A filter or cursor that cannot be understood. Nothing was read."""


class InvalidRecord(ActionsError, ValueError):
    """What an agent's process wants to write breaks a limit of the records (recall-records 3.8). Nothing was read or written."""


class ActionNotFound(ActionsError):
    """The store answered, and has no such action. Nothing was written."""

    def __init__(self, ref: ActionRef) -> None:
        self.ref = ref
        super().__init__(f"store {ref.store} has no action {ref.seq} of agent {ref.agent}")


class OutputNotFound(ActionsError):
    """The store answered, and the agent has no such output."""

    def __init__(self, agent: str, ref: str) -> None:
        self.agent = agent
        self.ref = ref
        super().__init__(f"agent {agent} has no output {ref}")


class RecordUnreadable(ActionsError):
    """A stored record cannot be decoded. Nothing was written, nothing is guessed."""

    def __init__(self, record_id: str, problem: str) -> None:
        self.record_id = record_id
        self.problem = problem
        super().__init__(f"record {record_id} is unreadable: {problem}")


class LeaseLive(ActionsError):
    """A process holds the agent. Nothing was written; `.lease` says who and until when."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        super().__init__(
            f"lease of agent {lease.agent} is held by {lease.holder} until {format_rfc3339(lease.expires_at)} "
            f"(epoch {lease.epoch}); it is free then, or once that process releases it"
        )


class LeaseLost(ActionsError):
    """The lease is this process's no more, and never will be again. Nothing was written; `.lease` is what it held.

    Stop: another process has the agent, or may have it. A call in progress is in that one's hands, or in an operator's.
    """

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        super().__init__(
            f"lease of agent {lease.agent} was lost: {lease.holder} (epoch {lease.epoch}) may write no more; "
            "stop, and resume the agent again"
        )


class LeaseNotHeld(ActionsError):
    """This process has not acquired the agent's lease, or has released it. Nothing was written."""

    def __init__(self, agent: str, problem: str) -> None:
        self.agent = agent
        super().__init__(f"lease of agent {agent} is not held: {problem}")


class LeaseMoved(ActionsError):
    """The lease is not what was shown. Nothing was written; `.lease` is what stands there now, None where the agent was never leased."""

    def __init__(self, agent: str, holder: str, lease: Lease | None) -> None:
        self.lease = lease
        now = (
            f"{lease.holder} holds it until {format_rfc3339(lease.expires_at)}" if lease and lease.is_live else "nobody holds it"
        )
        super().__init__(f"lease of agent {agent} is not what was shown, held by {holder}: {now}; look again")


class ActionNotOpen(ActionsError):
    """Somebody closed it first. Nothing was written; `.action` is what stands there, `.entry` who decided it if we know."""

    def __init__(self, ref: ActionRef, action: Action, entry: Entry | None = None) -> None:
        self.ref = ref
        self.action = action
        self.entry = entry
        by = f" by {entry.actor}" if entry else ""
        super().__init__(f"action {ref} already ended {action.status}{by}")


class ActionChanged(ActionsError):
    """It is not what was shown. Nothing was written; `.action` is what it is now."""

    def __init__(self, ref: ActionRef, action: Action) -> None:
        self.ref = ref
        self.action = action
        super().__init__(f"action {ref} has changed since it was shown; look at it again")


class NothingToCorrect(ActionsError):
    """The action is open, or nobody here ended it as it stands there. Nothing was written; `.action` is what stands there."""

    def __init__(self, ref: ActionRef, action: Action) -> None:
        self.ref = ref
        self.action = action
        why = "it is open; decide it instead" if action.is_open else f"no decision or resolver here ended it {action.status}"
        super().__init__(f"action {ref} cannot be corrected: {why}")


class CorrectedMeanwhile(ActionsError):
    """Somebody has corrected it since it was shown. Nothing was written; `.entry` is what stands now."""

    def __init__(self, ref: ActionRef, entry: Entry) -> None:
        self.ref = ref
        self.entry = entry
        super().__init__(f"action {ref} was corrected meanwhile by {entry.actor}: {entry.outcome}; look at it again")


class DecisionIdReused(ActionsError):
    """The decision id stands for another decision. Nothing was written now; `.entry` is what the id wrote before."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        super().__init__(f"decision id {entry.decision_id} was used for another decision (entry {entry.number})")


class StoreError(ActionsError):
    """Something about a whole store; `.store` names it."""

    def __init__(self, store: str, problem: str) -> None:
        self.store = store
        self.problem = problem
        super().__init__(f"store {store}: {problem}")


class StoreUnavailable(StoreError):
    """The store did not answer. Reads: nothing is known. Writes: `.may_be_written` says whether the outcome is open.

    When it is, ask again with the same decision id: it finds its own entry or settles now.
    """

    def __init__(self, store: str, problem: str, *, may_be_written: bool = False) -> None:
        self.may_be_written = may_be_written
        super().__init__(store, problem)


class StoreReadOnly(StoreError):
    """The store can be read but not settled (not prepared, rights missing, a standby). Nothing was written; `.problem` is the remedy."""


class StoreUnusable(StoreError):
    """The store answered with something that is not Recall's schema. Nothing was written; `.problem` says what was found."""


class WriteConflict(StoreError):
    """The records moved in a way that the lease should have prevented. Nothing was written; look at the agent before trying again."""
