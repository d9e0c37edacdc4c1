"""Asking now: a person makes questions about open actions due, one or several in one gesture. Asking itself is a task's (resolve.py)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta

from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404
from django.utils import timezone

from actions.errors import ActionsError, StoreError
from actions.queries import MAX_ROWS_PER_STORE, ActionItem
from actions.records import OPEN_STATUSES, Action, ActionClass, ActionRef
from actions.times import to_datetime
from console.access import Right, item_or_404, visible
from console.models import Definition, Inquiry, Policy, StoredVerdict
from console.services.changes import bump
from console.services.definitions import find_definition
from console.services.deliver import as_column
from console.services.policies import policy_of
from console.services.verdicts import inquiries_of, newest_verdicts
from console.stores import get_store

QUEUED = timedelta(seconds=30)
"""How long a sweep leaves a question to the task that was sent for it."""
MAX_ASKED_AT_ONCE = 200
"""How many actions one gesture asks about at most."""
LATELY = timedelta(seconds=30)
"""An answer so young is not asked for again by a gesture over several actions."""


class NobodyToAsk(ActionsError):
    """No resolver can be asked about this action; the message says why and what to do. Nothing was asked or stored."""


def request_asking(ref: ActionRef, *, by: User) -> Inquiry:
    """Make this action's question due at once. Asking itself is a task's; pressed again before the answer is there it asks once.

    Raises:
        Http404, PermissionDenied: as `access.item_or_404`; who may settle may ask.
        NobodyToAsk: no resolver for its tool, it is unreadable, or it has ended.
        StoreError: the store did not answer. In each case nothing was changed.
    """
    item = item_or_404(by, ref, Right.SETTLE)
    action = check_askable(item)
    _, definition = who_is_asked(action.tool)
    question = _Question(item=item, action=action, definition=definition)
    begun = _begin({ref: question})
    with transaction.atomic(durable=True):
        rows = _lock(begun)
        _make_due(rows, {ref: question}, by=by)
    return rows[ref]


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedFor:
    """What became of one of several questions: `inquiry` is due, or `answered` came a moment ago, or `why` says why nobody is asked."""

    ref: ActionRef
    item: ActionItem | None = None  # None: nothing of it may be shown
    inquiry: Inquiry | None = None
    answered: StoredVerdict | None = None
    why: str = ""
    is_away: bool = False  # its store did not answer: worth another try


def request_asking_many(refs: Iterable[ActionRef], *, by: User) -> tuple[AskedFor, ...]:
    """As `request_asking` for each of these actions, in their order, each once; what stands in the way of one stops no other.

    Who may not see an action or may not settle it hears the same of it: not found. What its resolver answered within LATELY is not
    asked again, so a gesture that is sent twice asks once. What is made due commits together. The caller keeps to MAX_ASKED_AT_ONCE.
    """
    said: dict[ActionRef, AskedFor] = {}
    questions: dict[ActionRef, _Question] = {}
    away: set[str] = set()
    for ref in dict.fromkeys(refs):
        one = _prepare_question(ref, by=by, away=away)
        if isinstance(one, _Question):
            questions[ref] = one
        said[ref] = one if isinstance(one, AskedFor) else AskedFor(ref=ref, item=one.item)
    begun = _begin(questions)
    with transaction.atomic(durable=True):
        rows = _lock(begun)
        # Under the locks: an answer that is being kept is seen, and is not asked for again.
        answered = {ref: verdict for ref, verdict in newest_verdicts(rows).items() if _is_lately(verdict, questions[ref])}
        due = {ref: row for ref, row in rows.items() if ref not in answered}
        _make_due(due, questions, by=by)
    for ref in questions:
        said[ref] = replace(said[ref], inquiry=due.get(ref), answered=answered.get(ref))
    return tuple(said.values())


def open_calls_of(agent: str, store: str, *, by: User) -> tuple[ActionRef, ...]:
    """What this agent left open, did more than read, and is this person's to settle: by number, at most MAX_ASKED_AT_ONCE. One read.

    Raises:
        Http404: no such store.
        StoreError: the store did not answer; nothing is known.
    """
    may_settle = visible(by, Right.SETTLE)
    read = get_store(store).read_actions(OPEN_STATUSES, limit=MAX_ROWS_PER_STORE, agent=agent)
    actions = [reading.action for reading in read.readings if isinstance(reading.action, Action)]
    mine = [a for a in actions if a.action_class is not ActionClass.PURE and may_settle(store, a.tool)]
    return tuple(ActionRef(store, agent, seq) for seq in sorted(action.seq for action in mine)[:MAX_ASKED_AT_ONCE])


def check_askable(item: ActionItem) -> Action:
    """Raises NobodyToAsk where the record itself stands in the way."""
    if item.action is None:
        raise NobodyToAsk("the record is unreadable, so nobody can be asked about it")
    if not item.action.is_open:
        raise NobodyToAsk(f"it has ended already: {item.action.status}")
    if item.action.action_class is ActionClass.PURE:
        raise NobodyToAsk("it is pure: it only read, so there is nothing in the world to look for")
    return item.action


def who_is_asked(tool: str) -> tuple[Policy, Definition]:
    """The policy of a tool and the resolver that it names. Raises NobodyToAsk."""
    policy = policy_of(tool)
    if not policy.resolver:
        raise NobodyToAsk(f"no resolver is configured for {tool[:60]}; an admin can name one under Tools")
    definition = find_definition(policy.resolver)
    if definition is None:
        raise NobodyToAsk(f"the policy of {tool[:60]} names resolver {policy.resolver}, which does not exist")
    if not definition.is_enabled:
        raise NobodyToAsk(f"resolver {definition.name} is switched off")
    return policy, definition


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """An action that can be asked about, and who is asked."""

    item: ActionItem
    action: Action
    definition: Definition


def _prepare_question(ref: ActionRef, *, by: User, away: set[str]) -> _Question | AskedFor:
    """`away`: stores that did not answer a moment ago; they are not waited for again."""
    item = None
    try:
        if ref.store in away:
            return AskedFor(ref=ref, why="its store does not answer", is_away=True)
        item = item_or_404(by, ref, Right.SETTLE)
        action = check_askable(item)
        _, definition = who_is_asked(action.tool)
    except (Http404, PermissionDenied):
        return AskedFor(ref=ref, why="not found")
    except NobodyToAsk as exc:
        return AskedFor(ref=ref, item=item, why=str(exc))
    except StoreError:
        away.add(ref.store)
        return AskedFor(ref=ref, why="its store does not answer", is_away=True)
    return _Question(item=item, action=action, definition=definition)


def _is_lately(verdict: StoredVerdict, question: _Question) -> bool:
    """Whether this resolver as it is now has just answered. Both times are the store's clock."""
    is_same = (verdict.resolver, verdict.version) == (question.definition.name, question.definition.version)
    return is_same and to_datetime(question.item.read_at) - verdict.asked_at < LATELY


def _begin(questions: Mapping[ActionRef, _Question]) -> list[int]:
    """The inquiry of each, begun where there is none. Row by row, each committed: whoever begins others meanwhile never waits for us."""
    known = inquiries_of(questions)
    for ref, question in questions.items():
        if ref not in known:
            defaults = {"tool": as_column(question.action.tool), "resolver": question.definition.name}
            known[ref], _ = Inquiry.objects.get_or_create(store=ref.store, agent=ref.agent, seq=ref.seq, defaults=defaults)
    return [row.pk for row in known.values()]


def _lock(pks: Collection[int]) -> dict[ActionRef, Inquiry]:
    """Always in the same order, so that two gestures over the same actions never wait for each other."""
    return {row.ref: row for row in Inquiry.objects.select_for_update().filter(pk__in=pks).order_by("pk")}


def _make_due(rows: Mapping[ActionRef, Inquiry], questions: Mapping[ActionRef, _Question], *, by: User) -> None:
    """Needs the locks of these rows."""
    now = timezone.now()
    for ref, row in rows.items():
        row.due_at, row.queued_until, row.asked_for = now, now + QUEUED, by.get_username()
        row.resolver, row.problem, row.given_up_at = questions[ref].definition.name, "", None
    Inquiry.objects.bulk_update(
        rows.values(), ["due_at", "queued_until", "asked_for", "resolver", "problem", "given_up_at"], batch_size=500
    )
    for store in sorted({ref.store for ref in rows}):
        bump(store)
