"""Deciding about many actions at once, up to the word "go": the set as a preview fixes it, what it would write, and the commit.

Nothing here writes to a store. What was committed is decided item by item in batches.py, each through `decide`.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal

from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db import IntegrityError, transaction
from django.http import Http404
from django.utils import timezone

from actions.digests import canonical_json, sha256_text
from actions.errors import ActionsError, InvalidDecision, StoreError
from actions.facts import CallKind
from actions.queries import ActionFilter, ActionItem, list_actions
from actions.records import OPEN_STATES, ActionClass, ActionEnd, ActionRef, ActionStatus
from actions.settle import check_decision_id, make_end
from actions.turns import SettlementTurn, settlement_turn
from console.access import Right, item_or_404, may_somewhere, visible, visible_stores
from console.evidence import reason_of
from console.models import Batch, BatchItem, BatchState, Decision, ItemState, Policy, StoredVerdict
from console.services.decide import LATER, DecisionRequest, actor_of, end_of_request
from console.services.decisions import current_decisions
from console.services.deliver import as_column
from console.services.evidence import Contradiction, contradiction_of, is_proof, telling_verdicts
from console.services.gates import asked_for, is_confirmed
from console.services.policies import policies_of
from console.tool_rules import read_rules

MAX_SELECTED = 500
"""How many actions one gesture may name."""
MAX_MATCHING = 5_000
"""How many a filter may match; beyond, it has to be narrowed."""
DRAFTS_KEPT = timedelta(days=1)
NO_AMOUNT = "?"
"""In place of the amount of a call that moves money and names none that can be read."""
_AWAY = "its store does not answer; make the preview again when it does"


class BulkRefused(ActionsError):
    """The gesture as a whole is refused, in one line for a person. Nothing was kept, nothing decided."""


class BatchCommitted(ActionsError):
    """The id stands for a batch that was sent before, with other content. Nothing was changed; `.batch` is that one."""

    def __init__(self, batch: Batch, problem: str) -> None:
        self.batch = batch
        super().__init__(problem)


# --- the preview -----------------------------------------------------------------------------------------------------


def draft_selected(
    refs: Iterable[ActionRef], *, by: User, is_proven: bool = False, batch_id: str = "", content_digest: str = ""
) -> Batch:
    """Fix these actions, each once, as a batch that decides nothing yet. Of each that cannot be decided it says why.

    Raises:
        BulkRefused: none, or more than MAX_SELECTED.
        BatchCommitted: `batch_id` is taken; the batch is as it is.
        PermissionDenied: this person may settle nothing.
    """
    wanted = list(dict.fromkeys(refs))
    _require_settling(by)
    if not wanted:
        raise BulkRefused("Select at least one action.")
    if len(wanted) > MAX_SELECTED:
        raise BulkRefused(f"{len(wanted):,} are selected; at most {MAX_SELECTED} can be named at once. Narrow a filter instead.")
    stores = [store for store in visible_stores(by) if store.name in {ref.store for ref in wanted}]
    page = list_actions(
        stores,
        ActionFilter(states=OPEN_STATES, only=frozenset(wanted)),
        limit=len(wanted),
        may_see=visible(by),
        rules=read_rules(),
    )
    items = {item.ref: item for item in page.items}
    away = {status.name for status in page.stores if not status.is_listed}
    lines = [*_lines(page.items, by=by, is_proven=is_proven), *_missing((ref for ref in wanted if ref not in items), away, by=by)]
    said = f"{len(wanted)} selected"
    return _keep(lines, said, (), by=by, is_proven=is_proven, batch_id=batch_id, content_digest=content_digest)


def draft_matching(
    wanted: ActionFilter,
    *,
    narrows: bool,
    said: str,
    by: User,
    is_proven: bool = False,
    batch_id: str = "",
    content_digest: str = "",
) -> Batch:
    """Fix all open actions that match now. `narrows`: the filter leaves something out; an empty filter is not a filter.

    Raises:
        BulkRefused: it does not narrow, matches nothing that is open, or more than MAX_MATCHING.
        BatchCommitted: `batch_id` is taken; the batch is as it is.
        PermissionDenied: this person may settle nothing.
    """
    _require_settling(by)
    if not narrows:
        raise BulkRefused(
            "An empty filter is not a filter: say which tool, agent, text, age or verdict is meant, then all of those."
        )
    states = wanted.wanted_states & OPEN_STATES
    if not states:
        raise BulkRefused("That filter asks for calls that have ended; only open ones can be decided.")
    page = list_actions(
        visible_stores(by), replace(wanted, states=states), limit=MAX_MATCHING, may_see=visible(by), rules=read_rules()
    )
    if page.total > MAX_MATCHING:
        raise BulkRefused(f"{page.total:,} calls match; at most {MAX_MATCHING:,} are decided at once. Narrow the filter.")
    notes = [f"Store {one.name} did not answer: what it holds is not in this batch." for one in page.stores if not one.is_listed]
    notes += [
        f"Store {one.name} holds more than is read at once: the rest is not here." for one in page.stores if one.is_truncated
    ]
    unreadable = sum(item.action is None for item in page.items)
    if unreadable:
        notes.append(f"Unreadable records among them, which nobody can decide: {unreadable}.")
    items = [item for item in page.items if item.action is not None]
    if not items:
        raise BulkRefused(" ".join(["No open call matches that filter.", *notes]))
    lines = _lines(items, by=by, is_proven=is_proven)
    return _keep(lines, said, notes, by=by, is_proven=is_proven, batch_id=batch_id, content_digest=content_digest)


def _require_settling(by: User) -> None:
    if not may_somewhere(by, Right.SETTLE):
        raise PermissionDenied("you need a role that may settle somewhere")


def _lines(items: Sequence[ActionItem], *, by: User, is_proven: bool) -> list[BatchItem]:
    """The rows of a preview, unsaved. Two statements, whatever the number."""
    refs = [item.ref for item in items]
    decisions, verdicts, may_settle = current_decisions(refs), telling_verdicts(refs), visible(by, Right.SETTLE)
    found = []
    for item in items:
        line = _line(item)
        verdict = verdicts.get(item.ref)
        line.why = _why_left_out(item, decisions.get(item.ref), verdict, is_proven=is_proven)
        if not may_settle(item.store, item.action.tool if item.action else ""):
            line.why = "you may not settle this tool"
        line.state = ItemState.LEFT_OUT if line.why else ItemState.READY
        if is_proven and verdict is not None and not line.why:
            line.outcome, line.reason, line.evidence_id = verdict.outcome, reason_of(verdict), verdict.evidence_id
        found.append(line)
    return found


def _line(item: ActionItem) -> BatchItem:
    line = BatchItem(store=item.store, agent=item.agent, seq=item.ref.seq, digest=item.digest, claim=item.claim)
    line.call_state = item.state.value
    if item.action is not None and item.facts is not None:
        line.tool = as_column(item.action.tool)
        line.action_class = item.action.action_class.value
        line.sentence = as_column(item.facts.sentence)
        is_minor = any(label == "Amount" and value.endswith("minor units") for label, value in item.facts.rows)
        if item.facts.kind is CallKind.MONEY:
            line.amount = f"{item.facts.amount:f}" if item.facts.amount is not None else NO_AMOUNT
        line.currency = as_column(f"{item.facts.currency}{' minor units' if is_minor else ''}")
    return line


def _why_left_out(item: ActionItem, decision: Decision | None, verdict: StoredVerdict | None, *, is_proven: bool) -> str:
    """Empty where it can be decided, as far as the record, other people and, where asked for, the evidence say."""
    if item.action is None:
        return "the record is unreadable"
    if not item.action.is_open:
        return f"it has ended already: {item.action.status}"
    if not item.digest:
        return "its whole arguments could not be read, so nothing could be bound to them"
    if decision is not None and decision.is_pending:
        return f"{decision.actor} has decided it {decision.outcome}; that decision is {decision.state}"
    if is_proven and (verdict is None or not is_proof(verdict, item.claim)):
        return "nothing is proved about it" if verdict is not None else "nobody was asked about it"
    if is_proven and verdict is not None and item.action.action_class is ActionClass.PURE:
        return "it only reads: it can only be given up"
    return ""


def _missing(refs: Iterable[ActionRef], away: set[str], *, by: User) -> Iterable[BatchItem]:
    """Those that are not among the open ones: what became of each, as far as this person may know."""
    for ref in refs:
        line = BatchItem(store=as_column(ref.store)[:63], agent=as_column(ref.agent)[:255], seq=ref.seq, state=ItemState.LEFT_OUT)
        try:
            if ref.store in away:
                line.why = _AWAY
            else:
                item = item_or_404(by, ref, Right.READ)
                line = _line(item)
                line.state, line.why = ItemState.LEFT_OUT, _why_left_out(item, None, None, is_proven=False) or _AWAY
        except (Http404, PermissionDenied):
            line.why = "not found"
        except StoreError:
            away.add(ref.store)
            line.why = _AWAY
        yield line


def _keep(
    lines: Sequence[BatchItem], said: str, notes: Iterable[str], *, by: User, is_proven: bool, batch_id: str, content_digest: str
) -> Batch:
    """Commit the draft with all its rows. Old drafts of the same person go."""
    batch_id = batch_id or str(uuid.uuid4())
    check_decision_id(batch_id)
    Batch.objects.filter(by=by, state=BatchState.DRAFT, created_at__lt=timezone.now() - DRAFTS_KEPT).delete()
    try:
        with transaction.atomic(durable=True):
            batch = Batch.objects.create(
                batch_id=batch_id,
                by=by,
                username=by.get_username(),
                is_proven=is_proven,
                said=as_column(said),
                notes="\n".join(notes),
                content_digest=content_digest,
            )
            for number, line in enumerate(lines, start=1):
                line.batch, line.number, line.decided_as = batch, number, decision_id_of(batch_id, line.ref)
            BatchItem.objects.bulk_create(lines, batch_size=1_000)
    except IntegrityError as exc:
        known = Batch.objects.filter(batch_id=batch_id).first()
        if known is None:
            raise
        if content_digest and (known.by_id, known.content_digest) == (by.pk, content_digest):
            return known  # the same request twice at once
        raise BatchCommitted(known, "this batch id was used before") from exc
    return batch


def decision_id_of(batch_id: str, ref: ActionRef) -> str:
    """The id of one item's decision: always the same, so that an item is decided once. All of one batch begin alike, in the history too."""
    return f"{id_prefix(batch_id)}{sha256_text(canonical_json([batch_id, ref.store, ref.agent, ref.seq]))[:24]}"


def id_prefix(batch_id: str) -> str:
    """How the decision ids of a batch begin."""
    return f"bulk-{sha256_text(batch_id)[:16]}-"


# --- what the preview shows ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Money:
    """What the calls of one currency come to."""

    currency: str  # with `minor units` where amounts are in those; empty: they name none
    total: Decimal
    calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """A preview in numbers, over what can be decided."""

    ready: int
    left_out: int
    tools: tuple[tuple[str, int], ...]
    stores: tuple[tuple[str, int], ...]
    states: tuple[tuple[str, int], ...]
    outcomes: tuple[tuple[str, int], ...]  # of proven ones
    evidence: tuple[tuple[str, int], ...]
    money: tuple[Money, ...]
    without_amount: int  # calls that move money and name no amount that can be read
    idempotent: int
    live: int
    gates: tuple[tuple[str, str], ...]  # tools whose decisions may not be written at once, and what is asked for
    may_need_proof: tuple[str, ...]  # tools whose policy asks for a proof of identity, of these calls or of others


_SAYS = (
    ("it happened", lambda one: one.outcome == "done"),
    ("it did not happen", lambda one: one.outcome == "failed"),
    ("found, but it differs", lambda one: one.grade == "conflict"),
    ("cannot tell", lambda one: True),
)


def overview_of(batch: Batch) -> Overview:
    """Counts and sums over a draft. Four statements, whatever the number."""
    ready = list(BatchItem.objects.filter(batch=batch, state=ItemState.READY))
    verdicts = telling_verdicts([item.ref for item in ready])
    said = Counter(
        next(words for words, holds in _SAYS if holds(verdicts[item.ref])) if item.ref in verdicts else "nobody was asked"
        for item in ready
    )
    policies = policies_of(item.tool for item in ready)
    sums: dict[str, Money] = {}
    for item in ready:
        if item.amount and item.amount != NO_AMOUNT:
            so_far = sums.get(item.currency, Money(currency=item.currency, total=Decimal(0), calls=0))
            sums[item.currency] = replace(so_far, total=so_far.total + Decimal(item.amount), calls=so_far.calls + 1)
    return Overview(
        ready=len(ready),
        left_out=BatchItem.objects.filter(batch=batch, state=ItemState.LEFT_OUT).count(),
        tools=_counted(item.tool for item in ready),
        stores=_counted(item.store for item in ready),
        states=_counted(item.call_state for item in ready),
        outcomes=_counted(item.outcome for item in ready if item.outcome),
        evidence=tuple(said.most_common()),
        money=tuple(sums[currency] for currency in sorted(sums)),
        without_amount=sum(1 for item in ready if item.amount == NO_AMOUNT),
        idempotent=sum(1 for item in ready if item.action_class == ActionClass.IDEMPOTENT),
        live=sum(1 for item in ready if item.call_state == "in_flight"),
        gates=tuple((tool, says) for tool in sorted(policies) if (says := asked_for(policies[tool]))),
        may_need_proof=_asking_for_proof(policies),
    )


def may_need_proof(batch: Batch) -> tuple[str, ...]:
    """Tools of what can be decided whose policy asks for a proof of identity; whether of these very calls, only each decision finds out."""
    tools = BatchItem.objects.filter(batch=batch, state=ItemState.READY).values_list("tool", flat=True).distinct()
    return _asking_for_proof(policies_of(tools))


def _asking_for_proof(policies: Mapping[str, Policy]) -> tuple[str, ...]:
    return tuple(tool for tool in sorted(policies) if policies[tool].step_up_when.strip())


def _counted(values: Iterable[str]) -> tuple[tuple[str, int], ...]:
    return tuple(Counter(values).most_common())


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """What a batch would write with this outcome and reason. `digest` binds a commit to what was shown."""

    turn: SettlementTurn | None  # the same words for every agent; None for a proven batch, whose rows differ
    against: tuple[tuple[BatchItem, Contradiction], ...]  # left out unless ticked one by one
    unfit: int  # calls that only read, where the outcome is not to give up
    ready: int  # what is decided, if nothing is ticked
    digest: str


def review(batch: Batch, *, outcome: str, reason: str, by: User) -> Review:
    """Weigh a draft as it would be committed. Two statements, whatever the number; writes nothing.

    Raises:
        InvalidDecision: outcome or reason break a rule; the message says which.
    """
    ready = list(BatchItem.objects.filter(batch=batch, state=ItemState.READY).order_by("number"))
    if batch.is_proven:
        return Review(turn=None, against=(), unfit=0, ready=len(ready), digest=sha256_text(batch.batch_id))
    end = check_said(outcome, reason, by=by)
    turn = settlement_turn(end, end.result)
    fit = [item for item in ready if item.action_class != ActionClass.PURE or outcome == ActionStatus.ABANDONED]
    against = _against(fit, outcome)
    said = {"content": turn.content, "brief": turn.brief, "against": sorted(one.evidence_id for _, one in against)}
    return Review(
        turn=turn,
        against=tuple(against),
        unfit=len(ready) - len(fit),
        ready=len(fit) - len(against),
        digest=sha256_text(canonical_json(said)),
    )


def check_said(outcome: str, reason: str, *, by: User) -> ActionEnd:
    """The end that every item of a batch gets. Raises InvalidDecision: outcome or reason break a rule. Pure."""
    if outcome == LATER:
        raise InvalidDecision("a note is kept about one action at a time")
    return end_of_request(DecisionRequest(outcome=outcome, reason=reason, decision_id=id_prefix("")), by=by)


def _against(items: Sequence[BatchItem], outcome: str) -> list[tuple[BatchItem, Contradiction]]:
    verdicts = telling_verdicts([item.ref for item in items])
    found = ((item, contradiction_of(verdicts.get(item.ref), outcome)) for item in items)
    return [(item, against) for item, against in found if against is not None]


def turn_of_item(item: BatchItem, *, by: User) -> SettlementTurn | None:
    """What the agent of one proven item will read; None where it has no outcome of its own."""
    if not item.outcome:
        return None
    end = make_end(ActionStatus(item.outcome), item.reason, actor=actor_of(by))
    return settlement_turn(end, end.result)


# --- go --------------------------------------------------------------------------------------------------------------


def commit(
    batch_id: str,
    *,
    by: User,
    outcome: str = "",
    reason: str = "",
    despite: Collection[str] = (),
    confirmed_at: datetime | None = None,
) -> tuple[Batch, bool]:
    """Say go: from here a worker decides item by item. `despite`: ids of the verdicts against it that were ticked, one by one.

    `confirmed_at`: when they last proved who they are. If that counts now it counts for every item, however long the worker takes.

    The second value: whether this call did it. The same again, from another tab or by Back, is harmless: one batch.

    Raises:
        Http404: there is no such batch of this person.
        InvalidDecision: outcome or reason break a rule. BulkRefused: nothing in it can be decided so. Nothing was changed.
        BatchCommitted: it was committed before with another outcome or reason.
        PermissionDenied: this person may settle nothing any more.
    """
    _require_settling(by)
    with transaction.atomic(durable=True):
        batch = Batch.objects.select_for_update(of=("self",)).filter(batch_id=batch_id, by=by).first()
        if batch is None:
            raise Http404("there is no such batch")
        if not batch.is_draft:
            return _committed_before(batch, outcome, reason), False
        weighed = review(batch, outcome=outcome, reason=reason, by=by)
        _set_items(batch, weighed, outcome=outcome, despite=despite)
        if not BatchItem.objects.filter(batch=batch, state=ItemState.QUEUED).exists():
            raise BulkRefused("Nothing in this batch can be decided like that. Nothing was written.")
        now = timezone.now()
        said = {"outcome": "" if batch.is_proven else outcome, "reason": "" if batch.is_proven else reason.strip()}
        changed = Batch.objects.filter(pk=batch.pk, state=BatchState.DRAFT).update(
            state=BatchState.RUNNING, committed_at=now, due_at=now, is_confirmed=is_confirmed(confirmed_at, now), **said
        )
        if changed != 1:
            raise RuntimeError(f"batch {batch.pk} changed while it was locked")
        batch.refresh_from_db()
    return batch, True


def _committed_before(batch: Batch, outcome: str, reason: str) -> Batch:
    if batch.is_proven or (batch.outcome, batch.reason) == (outcome, reason.strip()):
        return batch
    raise BatchCommitted(batch, f"this batch was sent before, as {batch.outcome}; what it says is not changed any more")


def _set_items(batch: Batch, weighed: Review, *, outcome: str, despite: Collection[str]) -> None:
    """Each item of a locked draft: on its way, or left out with why."""
    items = BatchItem.objects.filter(batch=batch, state=ItemState.READY)
    if not batch.is_proven and outcome != ActionStatus.ABANDONED:
        pure = items.filter(action_class=ActionClass.PURE.value)
        pure.update(state=ItemState.LEFT_OUT, why="it only reads: it can only be given up")
    ticked: list[BatchItem] = []
    for item, against in weighed.against:
        is_ticked = against.evidence_id in despite
        item.state = ItemState.QUEUED if is_ticked else ItemState.LEFT_OUT
        item.seen_against = against.evidence_id if is_ticked else ""
        item.why = (
            "" if is_ticked else as_column(f"{against.resolver} {against.says} ({against.evidence_id}), and that was not ticked")
        )
        ticked.append(item)
    BatchItem.objects.bulk_update(ticked, ["state", "seen_against", "why"], batch_size=500)
    items.update(state=ItemState.QUEUED)


def content_of(values: Mapping[str, object]) -> str:
    """What a caller's own batch id stands for."""
    return sha256_text(canonical_json(values))
