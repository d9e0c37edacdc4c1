"""An admin takes a live lease away, so that the decisions that wait for it can be written: a deliberate override, with a reason and an entry.

Two transactions on purpose: the eviction, which is the admin's, and then each waiting decision, which is its operator's, through the
ordinary path. Between them anybody may take the lease; then the decision goes on waiting.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db import Error as ConsoleDatabaseError
from django.http import Http404
from django.utils import timezone

from actions.digests import eviction_digest, sha256_text
from actions.errors import (
    DecisionIdReused,
    InvalidDecision,
    LeaseMoved,
    StoreError,
    StoreReadOnly,
    StoreUnavailable,
    StoreUnusable,
)
from actions.records import Action, Entry, Lease, Turn
from actions.redaction import redact_text
from actions.settle import evict as take_lease
from actions.store.base import ActionStore
from actions.times import Instant
from console.access import Right, store_of_agent_or_404
from console.models import Decision, DecisionState
from console.services.answers import AnswerKind
from console.services.deliver import attempt
from console.trouble import log_unexpected, name_of

log = logging.getLogger(__name__)

DELIVERED_AT_ONCE = 10
"""How many of the waiting decisions are delivered before the answer; the sweep has the rest."""
_LOOKED_BACK = 50
_DIGEST = "sha256:"
_NOTHING = "nothing was written"
_UNKNOWN = "whether the lease was taken away is not known; send it again with the same decision id, it is never done twice"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionRequest:
    """What a person sends: the holder that was shown, the reason, the agent's id typed once more, and the id made with the form."""

    holder: str  # as it was shown, or `holder_digest` of it
    reason: str
    confirm: str
    decision_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """What it came to. Only `evicted` and `repeated` mean that the lease was taken away."""

    kind: AnswerKind
    detail: str  # one sentence for a person, redacted
    entry: Entry | None = None
    lease: Lease | None = None  # as it was when this was answered; None where nobody knows, or there is none
    decisions: tuple[Decision, ...] = ()  # those that waited, as they stand now

    @property
    def is_unwritten(self) -> bool:
        """Whether it is known that nothing was done."""
        return self.entry is None and self.detail.endswith(_NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """Who holds an agent, and what is known of it: what an admin looks at before evicting."""

    lease: Lease | None
    leases_known: bool  # False: its store cannot say who holds it
    seen_since: Instant | None  # the first entry that names this holder as standing in a decision's way; None: nobody looked
    last_record: Instant | None  # its newest turn or action; None where it has none that can be read
    decisions: tuple[Decision, ...]  # that wait for the lease

    @property
    def can_be_evicted(self) -> bool:
        return self.lease is not None and self.lease.is_live and bool(self.decisions)


def holder_digest(holder: str) -> str:
    """Stands for a holder in a form, where its text may hold what a browser changes or nobody should see."""
    return f"{_DIGEST}{sha256_text(holder)}"


def look(store_name: str, agent: str, *, by: User) -> Holding:
    """What an eviction of this agent would be about.

    Raises:
        Http404, PermissionDenied: as `access.store_of_agent_or_404`.
        StoreError: the store did not answer; nothing is known.
    """
    store = store_of_agent_or_404(by, store_name, agent, Right.EVICT)
    lease = store.find_lease(agent)
    return Holding(
        lease=lease,
        leases_known=store.leases_known,
        seen_since=_seen_since(store, lease) if lease is not None and lease.is_live else None,
        last_record=_last_record(store, agent),
        decisions=_waiting(store_name, agent),
    )


def evict(store_name: str, agent: str, request: EvictionRequest, *, by: User) -> Eviction:
    """Take the lease from exactly the holder that was shown, then deliver what waited for it.

    The same id again answers what was done, and tries once more to deliver what still waits.

    Raises:
        Http404, PermissionDenied: as `access.store_of_agent_or_404`. Nothing was written.
    """
    store = store_of_agent_or_404(by, store_name, agent, Right.EVICT)
    try:
        return _evict(store, agent, request, by)
    except InvalidDecision as exc:
        return Eviction(kind=AnswerKind.INVALID, detail=str(exc))
    except LeaseMoved as exc:
        return _moved(exc)
    except DecisionIdReused as exc:
        return Eviction(kind=AnswerKind.ID_REUSED, detail=f"nothing was written: {exc}", entry=exc.entry)
    except (StoreReadOnly, StoreUnusable) as exc:
        return Eviction(kind=AnswerKind.READ_ONLY, detail=f"{exc}; {_NOTHING}")
    except StoreError as exc:
        is_open = isinstance(exc, StoreUnavailable) and exc.may_be_written
        return Eviction(kind=AnswerKind.UNAVAILABLE, detail=f"{exc}; {_UNKNOWN if is_open else _NOTHING}")
    except ConsoleDatabaseError as exc:
        log.error("evicting agent %s of store %s: the console's database: %s", agent, store_name, type(exc).__name__)
        return Eviction(kind=AnswerKind.UNAVAILABLE, detail=f"the console's own database did not answer; {_UNKNOWN}")
    except (Http404, PermissionDenied):
        raise
    except Exception as exc:
        log_unexpected(log, f"evicting agent {agent} of store {store_name}", exc)
        return Eviction(kind=AnswerKind.UNAVAILABLE, detail=f"something unexpected went wrong here ({name_of(exc)}); {_UNKNOWN}")


def _evict(store: ActionStore, agent: str, request: EvictionRequest, by: User) -> Eviction:
    actor, reason = f"admin {by.get_username()}", request.reason.strip()
    if request.confirm.strip() != agent:
        raise InvalidDecision("type the agent's id exactly, to confirm that it is this one")
    known = _find_eviction(store, agent, request.decision_id)
    if known is not None:
        if known.content_digest != eviction_digest(agent, _hash_of(request.holder), reason, actor):
            raise DecisionIdReused(known)
        return _evicted(store, agent, AnswerKind.REPEATED, "the lease was taken away before", known)
    lease = store.find_lease(agent)
    if lease is None or not lease.is_live or not _is_shown(lease, request.holder):
        raise LeaseMoved(agent, "somebody else" if request.holder.startswith(_DIGEST) else request.holder[:80], lease)
    if not is_waited_for(store.name, agent):
        detail = "no decision waits for this lease, so there is nothing to evict its holder for"
        return Eviction(kind=AnswerKind.NOT_NEEDED, detail=detail, lease=lease)
    entry = take_lease(store, agent, holder=lease.holder, reason=reason, actor=actor, decision_id=request.decision_id)
    return _evicted(store, agent, AnswerKind.EVICTED, "the lease was taken away", entry)


def _evicted(store: ActionStore, agent: str, kind: AnswerKind, detail: str, entry: Entry) -> Eviction:
    return Eviction(kind=kind, detail=detail, entry=entry, decisions=_deliver(store.name, agent))


def _moved(problem: LeaseMoved) -> Eviction:
    lease = problem.lease
    is_held = lease is not None and lease.is_live
    now = f"{redact_text(lease.holder)[:80]} holds it" if lease is not None and is_held else "nobody holds it"
    return Eviction(
        kind=AnswerKind.CHANGED, detail=f"nothing was written: the lease is not what was shown; {now} now", lease=lease
    )


def is_waited_for(store_name: str, agent: str) -> bool:
    """Whether a decision waits for this agent's lease. One query."""
    return Decision.objects.filter(store=store_name, agent=agent, state=DecisionState.WAITING).exists()


def _deliver(store_name: str, agent: str) -> tuple[Decision, ...]:
    """Bring the waiting decisions to their store now; the agent is free, but anybody may be quicker. What fails is left to the sweep."""
    waiting = _waiting(store_name, agent)
    Decision.objects.filter(pk__in=[row.pk for row in waiting], state=DecisionState.WAITING).update(next_try_at=timezone.now())
    shown: list[Decision] = []
    for row in waiting:
        try:
            done = attempt(row.pk, wait=True) if len(shown) < DELIVERED_AT_ONCE else None
        except ConsoleDatabaseError as exc:
            log.error("delivering decision %s after an eviction: %s", row.decision_id, type(exc).__name__)
            done = None
        shown.append(done.decision if done else row)
    return tuple(shown)


def _waiting(store_name: str, agent: str) -> tuple[Decision, ...]:
    rows = Decision.objects.filter(store=store_name, agent=agent, state=DecisionState.WAITING)
    return tuple(rows.order_by("seq", "pk")[:_LOOKED_BACK])


def _hash_of(holder: str) -> str:
    return holder.removeprefix(_DIGEST) if holder.startswith(_DIGEST) else sha256_text(holder)


def _is_shown(lease: Lease, holder: str) -> bool:
    return holder in (lease.holder, redact_text(lease.holder), holder_digest(lease.holder))


def _find_eviction(store: ActionStore, agent: str, decision_id: str) -> Entry | None:
    entries = store.list_entries(limit=_LOOKED_BACK, agent=agent, kinds=("evicted",))
    return next((entry for entry in entries if entry.decision_id == decision_id), None)


def _seen_since(store: ActionStore, lease: Lease) -> Instant | None:
    """A decision that met this holder left an entry that names it."""
    named = f": {redact_text(lease.holder[:80])} holds the lease "
    met = [
        e
        for e in store.list_entries(limit=_LOOKED_BACK, agent=lease.agent, kinds=("waiting",))
        if named in str(e.detail.get("why"))
    ]
    return min((entry.at for entry in met), default=None)


def _last_record(store: ActionStore, agent: str) -> Instant | None:
    turns = [turn.at for turn in store.list_turns(agent, limit=1) if isinstance(turn, Turn)]
    actions = [one.action for one in store.list_agent_actions(agent, limit=1) if isinstance(one.action, Action)]
    return max([*turns, *(action.ended_at or action.started_at for action in actions)], default=None)
