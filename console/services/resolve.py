"""Asking the world about open actions: who asks when, what is kept of it, and what an exact answer may write.

What is due stands in the database alone. A task may come twice or never, a worker may die at any point: whoever asks holds a claim that runs
out, and only the holder's answer is kept. What an exact answer settles is a decision like a person's, committed with its verdict.
"""

from __future__ import annotations

import json
import logging
import random
import time
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import F, Q
from django.utils import timezone

from actions.digests import decision_digest
from actions.errors import ActionNotFound, InvalidDecision, StoreError
from actions.queries import ActionItem, get_action, read_whole_args
from actions.records import Action, ActionClass, ActionState, ActionStatus, Lease, NewEntry
from actions.redaction import redact_text
from actions.resolvers.base import Finding, InvalidDefinition, Reply, Resolver
from actions.resolvers.claim import claim_of
from actions.resolvers.hiding import hide_in_verdict
from actions.resolvers.verdict import Circumstances, Evidence, Fence, Negative, Outcome, Verdict, fence_of, judge
from actions.settle import make_end
from actions.store.base import ActionStore
from actions.times import format_rfc3339, from_datetime, to_datetime
from console import spans
from console.models import Decision, DecisionId, DecisionState, Definition, Inquiry, Mode, Pace, Policy, StoredVerdict
from console.services.asking import QUEUED, NobodyToAsk, who_is_asked
from console.services.changes import bump
from console.services.definitions import build
from console.services.deliver import announce, as_column, attempt, kept_before
from console.services.gates import Gates
from console.services.incidents import announce_incident, open_incident
from console.services.journal import enter_beside
from console.services.policies import gates_before, roles_of, windows_of
from console.services.tallies import count
from console.stores import UnknownStore, get_store
from console.tool_rules import rule_from
from console.trouble import log_unexpected, name_of

log = logging.getLogger(__name__)

STORE_PAUSE = timedelta(seconds=20)
"""How long a question waits for a store that does not answer."""
UNUSABLE_PAUSE = timedelta(minutes=5)
"""The same where no resolver can be built: somebody has to mend it."""


# --- one question ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a question brought and what may be said of it."""

    finding: Finding
    verdict: Verdict


def ask(pk: int) -> StoredVerdict | None:
    """Ask one due question, keep the verdict, and settle where the policy lets an exact one settle. Safe to call twice, or never.

    None: it is not due, somebody else is asking, or nobody can be asked (then `Inquiry.problem` says why).
    """
    row = Inquiry.objects.filter(pk=pk, due_at__lte=timezone.now()).first()
    ready = _prepare(row) if row is not None else None
    if row is None or ready is None:
        return None
    token = _take(row, ready.definition)
    if token is None:
        return None
    began = time.perf_counter()
    try:
        circumstances = circumstances_of(row, ready.item, ready.definition, ready.store)
        asked = ask_about(ready.resolver, ready.item, ready.action, ready.policy, store=ready.store, circumstances=circumstances)
    except StoreError as exc:
        _tell_asked(row, ready.definition, began, problem=exc)
        _put_off(row, str(exc), timezone.now() + STORE_PAUSE, token=token)
        return None
    except Exception as exc:
        _tell_asked(row, ready.definition, began, problem=exc)
        log_unexpected(log, f"asking {ready.definition.name} about {row.ref}", exc)
        _put_off(row, f"something unexpected went wrong here: {name_of(exc)}", timezone.now() + UNUSABLE_PAUSE, token=token)
        count("settle_resolver_failures_total", ready.definition.name)
        return None
    _tell_asked(row, ready.definition, began, asked.verdict)
    return _keep(row, token, ready, asked)


def _tell_asked(
    row: Inquiry, definition: Definition, began: float, verdict: Verdict | None = None, problem: Exception | None = None
) -> None:
    """One span for each question. Nothing of what was asked or found."""
    said: dict[str, spans.Value] = {
        "settle.resolver": definition.name,
        "settle.resolver.kind": definition.kind,
        "settle.store": row.store,
        "settle.call.seq": row.seq,
        "settle.outcome": str(verdict.outcome) if verdict is not None else None,
        "settle.grade": str(verdict.grade) if verdict is not None and verdict.grade is not None else None,
    }
    spans.tell("resolver.ask", row.agent, said, took=time.perf_counter() - began, problem=problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ready:
    """All that a question needs."""

    store: ActionStore
    item: ActionItem
    action: Action
    policy: Policy
    definition: Definition
    resolver: Resolver


def _prepare(row: Inquiry) -> _Ready | None:
    """The action as it is now and whom to ask; None where it cannot be asked about now: then the row says why and when to try again."""
    try:
        store = get_store(row.store)
        item = get_action(store, row.ref)
    except ActionNotFound as exc:
        _set_aside(row, str(exc))
        return None
    except (StoreError, UnknownStore) as exc:
        _put_off(row, str(exc), timezone.now() + STORE_PAUSE)
        return None
    action = item.action
    if action is None:
        _set_aside(row, "the record is unreadable, so nobody can be asked about it")
        return None
    if not action.is_open and not (action.status is ActionStatus.FAILED and row.recheck_of):
        _set_aside(row, "")
        return None
    observe(row, item)
    try:
        policy, definition = who_is_asked(action.tool)
        resolver = build(definition)
    except (NobodyToAsk, InvalidDefinition) as exc:
        # Without a colon: what follows `password:` would be taken for one and hidden.
        why = f"the resolver's field {exc.field} {exc.problem}" if isinstance(exc, InvalidDefinition) else str(exc)
        # Counted as a miss: saving the resolver or the policy asks again at once.
        _put_off(row, why, timezone.now() + UNUSABLE_PAUSE, misses=row.misses + 1)
        return None
    return _Ready(store=store, item=item, action=action, policy=policy, definition=definition, resolver=resolver)


def ask_about(
    resolver: Resolver, item: ActionItem, action: Action, policy: Policy, *, store: ActionStore, circumstances: Circumstances
) -> Asked:
    """Ask a resolver and judge what it found. Stores nothing and settles nothing: a dry run is this and no more.

    Times are the store's clock: lease, action and question are compared with each other.
    """
    whole, roles = read_whole_args(store, action), roles_of(policy)
    claim = claim_of(action, whole, roles)
    finding = resolver.ask(claim, now=item.read_at)
    verdict = judge(
        finding,
        claim,
        circumstances=circumstances,
        windows=windows_of(policy),
        proves_absence=resolver.proves_absence,
        copies_are_normal=resolver.copies_are_normal,
        accepts_strong=policy.accepts_strong,
        jitter=random.random(),  # noqa: S311
    )
    return Asked(finding=finding, verdict=hide_in_verdict(verdict, whole, roles, rule_from(policy).redacted))


def circumstances_of(row: Inquiry | None, item: ActionItem, definition: Definition | None, store: ActionStore) -> Circumstances:
    """What is known of earlier questions; negatives of another version of the resolver do not count."""
    negatives: Iterable[datetime] = ()
    if row is not None and row.pk and definition is not None:
        same = StoredVerdict.objects.filter(inquiry=row, resolver=definition.name, version=definition.version, is_negative=True)
        negatives = same.values_list("asked_at", flat=True)
    return Circumstances(
        lease=_as_kept(item.lease),
        leases_known=store.leases_known,
        first_holder=row.first_holder if row else "",
        lost_at=from_datetime(row.lost_at) if row and row.lost_at else None,
        negatives=tuple(Negative(asked_at=from_datetime(at)) for at in negatives),
        first_asked_at=from_datetime(row.first_asked_at) if row and row.first_asked_at else None,
        misses=row.misses if row else 0,
        asked=row.asked if row else 0,
    )


def observe(row: Inquiry, item: ActionItem) -> None:
    """Note who held the lease when the action was first seen, and when its holder was first seen fenced off: Recall keeps neither."""
    action = item.action
    if action is None:
        return
    holder = holder_of(action, item.lease)
    if holder and not row.first_holder:
        Inquiry.objects.filter(pk=row.pk, first_holder="").update(first_holder=holder)
        row.first_holder = holder
    if row.lost_at is None and is_fenced(action, item.lease, first_holder=row.first_holder):
        at = to_datetime(item.read_at)
        Inquiry.objects.filter(pk=row.pk, lost_at=None).update(lost_at=at)
        row.lost_at = at


def holder_of(action: Action, lease: Lease | None) -> str:
    """The holder under whom a started action may be at work; empty: unknown."""
    return as_column(lease.holder) if lease is not None and action.status is ActionStatus.STARTED else ""


def is_fenced(action: Action, lease: Lease | None, *, first_holder: str) -> bool:
    """Whether nobody can be at work on it any more, for good. A lease that has only run out does not count: a process that was frozen may renew
    it and go on (recall-records 5.3)."""
    return fence_of(action, _as_kept(lease), first_holder=first_holder) is Fence.FENCED


def _as_kept(lease: Lease | None) -> Lease | None:
    """With its holder as a column keeps it: else a holder with a NUL in it would differ from itself, and count as fenced off."""
    return replace(lease, holder=as_column(lease.holder)) if lease is not None else None


# --- claims ----------------------------------------------------------------------------------------------------------


def _take(row: Inquiry, definition: Definition) -> str | None:
    """A turn at this provider and the claim to this question, in one transaction; None where somebody else has either."""
    now, token = timezone.now(), uuid.uuid4().hex
    interval = timedelta(minutes=1) / definition.per_minute
    with transaction.atomic(durable=True):
        Pace.objects.get_or_create(name=definition.name, defaults={"next_at": now})
        pace = Pace.objects.select_for_update().get(name=definition.name)
        asking = Inquiry.objects.filter(resolver=definition.name, asking_until__gt=now).exclude(pk=row.pk).count()
        if pace.next_at > now or asking >= definition.at_once:
            count("settle_resolver_waits_total", definition.name)
            later = max(pace.next_at, now + interval)
            Inquiry.objects.filter(pk=row.pk).update(queued_until=later)
            return None
        is_free = Q(asking_until=None) | Q(asking_until__lte=now)
        taken = Inquiry.objects.filter(is_free, pk=row.pk, due_at__lte=now).update(
            asking_until=now + timedelta(seconds=settings.RESOLVER_CLAIM_S), asking_token=token, resolver=definition.name
        )
        if taken != 1:
            return None
        # Unused turns are kept, up to as many as may be asked at once.
        pace.next_at = max(pace.next_at, now - definition.at_once * interval) + interval
        pace.save(update_fields=["next_at"])
    return token


def claim_due(limit: int) -> list[int]:
    """Take up to `limit` due questions, oldest first, as many of each resolver as it can be asked now; put off by QUEUED: two sweeps never
    take the same one. A task that is lost costs only that time."""
    now, pks = timezone.now(), list[int]()
    for name, quota in _quotas(now).items():
        free = Q(queued_until=None) | Q(queued_until__lte=now)
        idle = Q(asking_until=None) | Q(asking_until__lte=now)
        with transaction.atomic():
            due = Inquiry.objects.filter(free, idle, resolver=name, due_at__lte=now).order_by("due_at", "pk")
            found = list(due.select_for_update(skip_locked=True).values_list("pk", flat=True)[: min(quota, limit - len(pks))])
            Inquiry.objects.filter(pk__in=found).update(queued_until=now + QUEUED)
        pks += found
    return pks


def _quotas(now: datetime) -> dict[str, int]:
    """How many questions each resolver can take until the next sweep."""
    paces = {pace.name: pace.next_at for pace in Pace.objects.all()}
    quotas = {}
    for definition in Definition.objects.order_by("name", "-version").distinct("name"):
        if not definition.is_enabled:
            continue
        wait = max(0.0, (paces.get(definition.name, now) - now).total_seconds())
        soon = int(max(0.0, settings.RESOLVER_SWEEP_S - wait) * definition.per_minute / 60)
        quotas[definition.name] = definition.at_once + soon
    return quotas


# --- what is kept ----------------------------------------------------------------------------------------------------


def _keep(row: Inquiry, token: str, ready: _Ready, asked: Asked) -> StoredVerdict | None:
    """Commit the verdict with everything that follows from it; None where our claim ran out and somebody else asks.

    That it was asked enters the history first, beside its action: a verdict that is kept is never without its entry. Where an automatic
    question has found nothing new (as before: cannot tell) it adds none, or asking every few minutes would bury the decisions.
    """
    item, policy, definition = ready.item, ready.policy, ready.definition
    verdict, decision, incident = asked.verdict, None, None
    gates = _gates_before(verdict, item, policy)
    with transaction.atomic(durable=True):
        now = Inquiry.objects.select_for_update().filter(pk=row.pk, asking_token=token).first()
        if now is None:
            return None
        before = StoredVerdict.objects.filter(inquiry=now).order_by("-pk").first()
        stored = StoredVerdict.objects.create(
            inquiry=now,
            resolver=definition.name,
            version=definition.version,
            policy_version=policy.version,
            outcome=verdict.outcome.value,
            grade=verdict.grade.value if verdict.grade else "",
            resolution=as_column(redact_text(verdict.resolution)),
            evidence=evidence_text(verdict.evidence),
            is_answered=verdict.evidence.is_answered,
            is_negative=verdict.evidence.is_negative,
            asked_at=to_datetime(asked.finding.asked_at),
            check_again_at=to_datetime(verdict.check_again_at) if verdict.check_again_at is not None else None,
            has_given_up=verdict.has_given_up,
            asked_for=now.asked_for,
            claim=item.claim,
        )
        is_open = ready.action.is_open
        reports_giving_up = verdict.has_given_up and now.given_up_at is None
        # The provider called while it was being asked: what it told us of may not have been in its answer.
        is_woken = now.woken_at is not None and now.asking_until is not None and now.woken_at >= _began(now.asking_until)
        Inquiry.objects.filter(pk=now.pk).update(
            due_at=timezone.now() if is_woken else stored.check_again_at if is_open else None,
            queued_until=None,
            asking_until=None,
            asking_token="",
            asked_for="",
            problem="",
            recheck_of=now.recheck_of if is_open or is_woken else "",
            asked=F("asked") + 1,
            misses=0 if asked.finding.reply is Reply.ANSWERED else F("misses") + 1,
            first_asked_at=now.first_asked_at or stored.asked_at,
            given_up_at=timezone.now() if reports_giving_up else now.given_up_at,
        )
        if is_open:
            decision = _decide(now, stored, item, policy, verdict, gates)
        else:
            incident = open_incident(now, stored)
        bump(row.store)
        if stored.asked_for or not _says_no_more(stored, before):
            _enter_asked(row, stored, verdict)
        if reports_giving_up:
            _report_giving_up(row, stored)
    _count_asked(definition.name, stored, asked)
    if incident is not None:
        announce_incident(incident)
    if decision is not None and decision.state == DecisionState.WAITING:
        attempt(decision.pk)
    elif decision is not None:
        announce(decision, decision.state, why=decision.rule)
    return stored


def _count_asked(resolver: str, stored: StoredVerdict, asked: Asked) -> None:
    count("settle_resolver_questions_total", resolver)
    count("settle_resolver_verdicts_total", resolver, stored.outcome, stored.grade)
    if asked.finding.reply is not Reply.ANSWERED:
        count("settle_resolver_failures_total", resolver)


def _says_no_more(stored: StoredVerdict, before: StoredVerdict | None) -> bool:
    """Whether nobody can tell, as the last time. The sentence does not count: it may name times."""
    if before is None or stored.outcome != Outcome.UNKNOWN:
        return False
    said = ("outcome", "grade", "is_answered", "is_negative", "has_given_up", "resolver", "version")
    return all(getattr(stored, name) == getattr(before, name) for name in said)


def _enter_asked(row: Inquiry, stored: StoredVerdict, verdict: Verdict) -> None:
    detail: dict[str, object] = {
        "version": stored.version,
        "grade": stored.grade,
        "rule": redact_text(verdict.evidence.rule),
        "asked_by": stored.asked_for or "itself",
        "took_ms": verdict.evidence.took_ms,
    }
    entry = NewEntry(
        kind="asked",
        actor=f"resolver {stored.resolver}",
        agent=row.agent,
        seq=row.seq,
        tool=redact_text(row.tool),
        outcome=stored.outcome,
        reason=stored.resolution,
        evidence_id=stored.evidence_id,
        detail=detail,
    )
    enter_beside(row.store, entry)


def _began(asking_until: datetime) -> datetime:
    """When whoever holds a claim took it."""
    return asking_until - timedelta(seconds=settings.RESOLVER_CLAIM_S)


def _gates_before(verdict: Verdict, item: ActionItem, policy: Policy) -> Gates:
    """What stands before the decision that an exact verdict makes. Nobody can ask a program who it is: a person has to, who then proves it."""
    if not settles_alone(verdict, item, policy):
        return Gates()
    try:
        gates = gates_before(item, ActionStatus.DONE.value)
    except StoreError as exc:
        log.warning("the arguments of %s cannot be read: %s", item.ref, exc)
        return Gates(needs_second=True, rule="a second person, because the arguments could not be read")
    return replace(gates, needs_second=gates.needs_second or gates.needs_step_up)


def _decide(
    row: Inquiry, stored: StoredVerdict, item: ActionItem, policy: Policy, verdict: Verdict, gates: Gates
) -> Decision | None:
    """The decision that an exact verdict makes where the policy says `settle`; None otherwise, and where a person is deciding already.

    The gates of a person's decision stand before it as well: where a second person is asked for, it waits for one.

    On its way from here as every other: the attempt that follows writes it, or the sweep after a crash.
    """
    if not settles_alone(verdict, item, policy):
        return None
    actor, decision_id = f"resolver {stored.resolver}", f"resolver-{uuid.uuid4().hex}"
    try:
        end = make_end(ActionStatus.DONE, stored.resolution, actor=actor)
    except InvalidDecision as exc:
        log.error("the verdict %s cannot be written: %s", stored.pk, exc)
        return None
    try:
        with transaction.atomic():
            DecisionId.objects.create(id=decision_id)
            return Decision.objects.create(
                decision_id=decision_id,
                store=row.store,
                agent=row.agent,
                seq=row.seq,
                tool=row.tool,
                outcome=end.status.value,
                reason=end.reason,
                by=None,
                username=f"resolver:{stored.resolver}",
                actor=actor,
                claim=item.claim,
                content_digest=decision_digest(row.ref, end),
                evidence_id=stored.evidence_id,
                **kept_before(gates, item),
            )
    except IntegrityError:
        return None


def settles_alone(verdict: Verdict, item: ActionItem, policy: Policy) -> bool:
    """Whether this verdict about this action, as it is now, is written without a person."""
    action = item.action
    may_settle = policy.mode == Mode.SETTLE and verdict.may_settle_alone
    if not may_settle or action is None or action.action_class is not ActionClass.EXTERNAL:
        return False
    return item.state in (ActionState.INTERRUPTED, ActionState.UNKNOWN)


def _report_giving_up(row: Inquiry, stored: StoredVerdict) -> None:
    """That it is not asked again by itself and stays open. Once; where somebody dies before the commit, twice rather than never."""
    entry = NewEntry(
        kind="gave_up",
        actor=f"resolver {stored.resolver}",
        agent=row.agent,
        seq=row.seq,
        tool=redact_text(row.tool),
        reason=stored.resolution,
        evidence_id=stored.evidence_id,
    )
    enter_beside(row.store, entry)


def evidence_text(evidence: Evidence) -> str:
    """Evidence as JSON text, redacted; times as RFC 3339. ASCII, so that every database keeps it as it is."""
    fields = asdict(evidence) | {"asked_at": format_rfc3339(evidence.asked_at)}
    return json.dumps(_redacted(fields), sort_keys=True)


def _redacted(value: Any) -> Any:
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, dict):
        return {name: item if name == "answer_digest" else _redacted(item) for name, item in value.items()}
    return [_redacted(item) for item in value] if isinstance(value, list | tuple) else value


def _set_aside(row: Inquiry, problem: str) -> None:
    """Not asked again by itself: it has ended, or nobody can be asked. A new policy or a person makes it due again."""
    changed = Inquiry.objects.filter(pk=row.pk).exclude(due_at=None, problem=problem)
    changed.update(due_at=None, queued_until=None, problem=as_column(problem), asked_for="")
    bump(row.store)


def _put_off(row: Inquiry, problem: str, until: datetime, *, token: str = "", misses: int | None = None) -> None:
    """Asked again later; nothing was learnt. With `token` the claim is given back, if it is still ours."""
    rows = Inquiry.objects.filter(pk=row.pk, asking_token=token) if token else Inquiry.objects.filter(pk=row.pk)
    given_back = {"asking_until": None, "asking_token": ""} if token else {}
    counted = {} if misses is None else {"misses": misses}
    rows.update(due_at=until, queued_until=None, problem=as_column(problem), **given_back, **counted)
    bump(row.store)
