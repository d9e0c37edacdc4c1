"""Which actions are asked about by themselves: found by a sweep, in every store, for every tool whose policy names a resolver."""

from __future__ import annotations

import logging
import time
from datetime import timedelta
from weakref import WeakKeyDictionary

from django.db.models import Exists, OuterRef
from django.utils import timezone

from actions.errors import StoreError
from actions.queries import MAX_ROWS_PER_STORE
from actions.records import OPEN_STATUSES, Action, ActionClass, ActionRef, ActionState, Reading, Watch
from actions.rules import state_of_reading
from actions.store.base import ActionStore
from actions.times import to_datetime
from console.access import is_possible
from console.models import Decision, DecisionOutcome, DecisionState, Inquiry, Policy
from console.services.changes import bump
from console.services.deliver import as_column
from console.services.policies import all_policies
from console.services.resolve import holder_of, is_fenced
from console.stores import list_stores

log = logging.getLogger(__name__)

RECHECK_AFTER = timedelta(hours=24)
RECHECK_WITHIN = timedelta(days=7)
"""A `failed` older than that is looked at again only when the provider itself calls."""
LOOK_ANYWAY_S = 60.0
_ASKED_ABOUT = frozenset({ActionState.INTERRUPTED, ActionState.UNKNOWN})

_looked: WeakKeyDictionary[ActionStore, tuple[Watch, frozenset[tuple[str, str]], float]] = WeakKeyDictionary()
"""By store: the numbers, policies and moment of the last look of this process; only to spare the store a read that would see the same."""


def discover() -> int:
    """Begin an inquiry about every interrupted or unknown external action that has none and whose tool has a resolver. How many are new.

    Safe to run in several workers at once; an action has one inquiry. A store that does not answer is left to the next sweep.
    """
    policies = {tool: policy for tool, policy in all_policies().items() if policy.resolver}
    if not policies:
        return 0
    return sum(_discover_in(store, policies) for store in list_stores())


def recheck_failed() -> int:
    """Make the actions due again that were written as failed a day ago, each once. How many."""
    policies = [tool for tool, policy in all_policies().items() if policy.resolver]
    now = timezone.now()
    seen = Inquiry.objects.filter(store=OuterRef("store"), agent=OuterRef("agent"), seq=OuterRef("seq"))
    rechecked = seen.filter(recheck_done=OuterRef("decision_id"))
    rows = Decision.objects.filter(
        state=DecisionState.WRITTEN,
        outcome=DecisionOutcome.FAILED,
        tool__in=policies,
        updated_at__lte=now - RECHECK_AFTER,
        updated_at__gte=now - RECHECK_AFTER - RECHECK_WITHIN,
    ).exclude(Exists(rechecked))
    return sum(look_again(row) for row in rows[:200])


def look_again(decision: Decision, *, is_called: bool = False) -> bool:
    """Make one failed action due once more: for the recheck of this decision, or because its provider called, which is not the recheck."""
    policy = all_policies().get(decision.tool)
    if policy is None or not policy.resolver:
        return False
    row, _ = Inquiry.objects.get_or_create(
        store=decision.store,
        agent=decision.agent,
        seq=decision.seq,
        defaults={"tool": decision.tool, "resolver": policy.resolver},
    )
    now = timezone.now()
    why = {"woken_at": now} if is_called else {"recheck_done": decision.decision_id}
    Inquiry.objects.filter(pk=row.pk).update(
        due_at=now, queued_until=None, recheck_of=decision.decision_id, resolver=policy.resolver, **why
    )
    return True


def _discover_in(store: ActionStore, policies: dict[str, Policy]) -> int:
    try:
        watch = store.read_watch()
        if not _is_worth_a_look(store, watch, policies):
            return 0
        read = store.read_actions(OPEN_STATUSES, limit=MAX_ROWS_PER_STORE)
    except StoreError as exc:
        log.info("open actions of store %s are not asked about: %s", store.name, exc.problem)
        return 0
    new = [row for reading in read.readings if (row := _inquiry(store, reading, policies)) is not None]
    known = set(Inquiry.objects.filter(store=store.name).values_list("agent", "seq")) if new else set()
    fresh = [row for row in new if (row.agent, row.seq) not in known]
    Inquiry.objects.bulk_create(fresh, batch_size=500, ignore_conflicts=True)
    if fresh:
        bump(store.name)
    _looked[store] = (watch, _resolvers(policies), time.monotonic())
    return len(fresh)


def _inquiry(store: ActionStore, reading: Reading, policies: dict[str, Policy]) -> Inquiry | None:
    action = reading.action
    if not isinstance(action, Action) or action.action_class is not ActionClass.EXTERNAL:
        return None
    # One agent with an id that no row of ours can name must not keep all others from being asked about.
    if not is_possible(ActionRef(store.name, action.agent, action.seq)):
        return None
    policy = policies.get(as_column(action.tool))
    if policy is None or state_of_reading(reading, leases_known=store.leases_known) not in _ASKED_ABOUT:
        return None
    holder = holder_of(action, reading.lease)
    return Inquiry(
        store=store.name,
        agent=action.agent,
        seq=action.seq,
        tool=as_column(action.tool),
        resolver=policy.resolver,
        due_at=timezone.now(),
        first_holder=holder,
        lost_at=to_datetime(reading.read_at) if is_fenced(action, reading.lease, first_holder=holder) else None,
    )


def _is_worth_a_look(store: ActionStore, watch: Watch, policies: dict[str, Policy]) -> bool:
    """Not where nothing was written, no lease has run out and no policy changed since the last look; now and then anyway."""
    before = _looked.get(store)
    if before is None or before[1] != _resolvers(policies) or time.monotonic() - before[2] > LOOK_ANYWAY_S:
        return True
    old = before[0]
    has_expired = old.next_expiry is not None and old.next_expiry <= watch.read_at
    return old.revision != watch.revision or old.next_expiry != watch.next_expiry or has_expired


def _resolvers(policies: dict[str, Policy]) -> frozenset[tuple[str, str]]:
    return frozenset((policy.tool, policy.resolver) for policy in policies.values())
