"""What a gesture came to. Refusals are answers too, so that no face has to catch them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from actions.errors import (
    ActionNotOpen,
    ActionsError,
    DecisionIdReused,
    InvalidDecision,
    RecordUnreadable,
    StoreError,
    StoreReadOnly,
    StoreUnavailable,
    StoreUnusable,
)
from actions.queries import ActionItem, get_action
from actions.records import ActionClass, ActionRef, Entry
from actions.redaction import redact_text
from console.models import Decision, DecisionState, Note
from console.services.decisions import current_decisions
from console.services.deliver import Attempt, find_ending
from console.services.evidence import find_contradiction
from console.stores import UnknownStore, get_store
from console.tool_rules import read_rules
from console.trouble import log_unexpected

log = logging.getLogger(__name__)

DATABASE_TROUBLE = "the console's own database did not answer in time or cannot be written"
UNKNOWN_OUTCOME = "whether it was written is not known; ask again with the same decision id, it is never written twice"


class AnswerKind(StrEnum):
    """What happened, or what stood in the way. Only `written` and `repeated` mean that the agent's records say so."""

    WRITTEN = "written"  # this request wrote it
    REPEATED = "repeated"  # the same id again; it stands written since the first time
    PROPOSED = "proposed"  # kept: a second person has to approve it
    HELD = "held"  # kept: it can be undone until `decision.held_until`, and is written then
    WAITING = "waiting"  # kept: its agent is alive; delivered once the lease is free
    NOTED = "noted"  # a note was kept; nothing was written to the agent
    WITHDRAWN = "withdrawn"  # taken back; it will not be written
    TURNED_DOWN = "turned_down"  # refused by a second person; it will not be written
    NOT_PROPOSED = "not_proposed"  # nobody has to approve it any more; `detail` says who did what, `decision` is what stands
    OWN_DECISION = "own_decision"  # nobody is the second person of their own decision; nothing was changed
    CONFIRM = "confirm_identity"  # whoever says so has to prove first who they are; nothing was kept
    CLOSED = "closed"  # somebody ended it first; `entry` and `item` say who and what
    PENDING = "pending"  # another decision is on its way; `decision` is it
    NOTHING = "nothing"  # there is no decision to withdraw
    EVICTED = "evicted"  # this request took the lease away; `entry` says from whom
    NOT_NEEDED = "not_needed"  # no decision waits for the lease, so nobody is evicted
    ID_REUSED = "id_reused"  # the id stands for another decision, or for one that was withdrawn; make a new id
    CHANGED = "changed"  # it is not what was shown; `item` is what it is now
    INVALID = "invalid"  # it breaks a rule; `detail` says which
    READ_ONLY = "read_only"  # the store cannot be written; nothing was; `detail` is the remedy
    UNAVAILABLE = "unavailable"  # no answer; `detail` says whether it may be written. Ask again with the same id


STATUS: Mapping[AnswerKind, int] = {
    AnswerKind.WRITTEN: 201,
    AnswerKind.REPEATED: 200,
    AnswerKind.PROPOSED: 202,
    AnswerKind.HELD: 202,
    AnswerKind.WAITING: 202,
    AnswerKind.NOTED: 201,
    AnswerKind.WITHDRAWN: 200,
    AnswerKind.TURNED_DOWN: 200,
    AnswerKind.NOT_PROPOSED: 409,
    AnswerKind.OWN_DECISION: 403,
    AnswerKind.CONFIRM: 403,
    AnswerKind.CLOSED: 409,
    AnswerKind.PENDING: 409,
    AnswerKind.NOTHING: 404,
    AnswerKind.EVICTED: 201,
    AnswerKind.NOT_NEEDED: 409,
    AnswerKind.ID_REUSED: 409,
    AnswerKind.CHANGED: 412,
    AnswerKind.INVALID: 422,
    # The request was fine and can be sent again once the store is prepared: the service's fault, not the client's.
    AnswerKind.READ_ONLY: 503,
    AnswerKind.UNAVAILABLE: 503,
}
"""The HTTP status of each answer (contract, API)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a gesture came to. `detail` is one sentence for a person, redacted."""

    kind: AnswerKind
    detail: str
    decision: Decision | None = None  # the one this is about: ours, or the one that stands in the way
    note: Note | None = None
    item: ActionItem | None = None  # the action as it is now; None where the store did not answer
    entry: Entry | None = None  # who ended it first, where the store's chain knows
    warnings: tuple[str, ...] = ()


def must_confirm(item: ActionItem | None) -> Answer:
    """Nothing is kept: neither that somebody tried, nor what they typed."""
    detail = "prove who you are first: this tool's policy asks for that within the last ten minutes; nothing was kept"
    return Answer(kind=AnswerKind.CONFIRM, detail=detail, item=item)


def answer_of(after: Attempt | None, row: Decision, item: ActionItem, *, fresh: bool) -> Answer:
    """What an attempt came to. `fresh`: this request made the decision, so it is told of every obstacle."""
    decision = after.decision if after else row
    problem = after.problem if after else None
    now = item if decision.is_pending else _look_again(item)
    if decision.state == DecisionState.WRITTEN:
        kind = AnswerKind.WRITTEN if fresh else AnswerKind.REPEATED
        detail = decision.why or "its agent reads it when it resumes"
        return Answer(kind=kind, detail=detail, decision=decision, item=now, warnings=_warnings_about(item, decision.outcome))
    if decision.state == DecisionState.REFUSED:
        return _refused(decision, problem, now, item.ref)
    if decision.state == DecisionState.WITHDRAWN:
        return Answer(kind=AnswerKind.ID_REUSED, detail="this decision was withdrawn meanwhile", decision=decision, item=now)
    warnings = _warnings_about(item, decision.outcome)
    if decision.state == DecisionState.PROPOSED:
        detail = f"nothing is written: {decision.shown_rule or 'a second person has to approve it'}"
        return Answer(kind=AnswerKind.PROPOSED, detail=detail, decision=decision, item=now, warnings=warnings)
    if decision.state == DecisionState.HELD and decision.held_until is not None:
        detail = f"nothing is written yet: it can be undone until {decision.held_until:%H:%M:%S} UTC"
        return Answer(kind=AnswerKind.HELD, detail=detail, decision=decision, item=now, warnings=warnings)
    if isinstance(problem, StoreError):
        return Answer(kind=AnswerKind.UNAVAILABLE, detail=f"{problem}; {UNKNOWN_OUTCOME}", decision=decision, item=now)
    detail = f"not written yet: {redact_text(decision.why)}" if decision.why else f"not written yet: it is {decision.state}"
    return Answer(kind=AnswerKind.WAITING, detail=detail, decision=decision, item=now, warnings=warnings)


def answer_closed(ref: ActionRef, item: ActionItem | None, *, entry: Entry | None = None) -> Answer:
    """Somebody ended it: who, what and when, as far as the store's history and our own decisions know."""
    entry = entry or _ending_of(ref)
    current = current_decisions([ref]).get(ref)
    decision = current if current is not None and current.state == DecisionState.WRITTEN else None
    ended = item.action.status if item is not None and item.action is not None else "closed"
    who = entry.actor if entry is not None else "its agent or another program"
    reason = f": {entry.reason}" if entry is not None and entry.reason else ""
    return Answer(
        kind=AnswerKind.CLOSED, detail=f"it already ended {ended}, by {who}{reason}", decision=decision, item=item, entry=entry
    )


def answer_changed(item: ActionItem) -> Answer:
    """It is not what was shown: nothing was written."""
    return Answer(kind=AnswerKind.CHANGED, detail="it has changed since it was shown; look at it again", item=item)


def answer_pending(other: Decision | None, item: ActionItem | None) -> Answer:
    """Another decision is on its way: nothing of this one was kept. `other` None: it was a moment ago."""
    detail = "another decision about it is on its way"
    if other is not None:
        detail = f"{other.actor} has decided it {other.outcome}; that decision is {other.state}"
    return Answer(kind=AnswerKind.PENDING, detail=detail, decision=other, item=item)


def _warnings_about(item: ActionItem, outcome: str) -> tuple[str, ...]:
    """What a person should know who decides about this action, or has."""
    found = []
    if item.action is not None and item.action.action_class is ActionClass.IDEMPOTENT:
        found.append("it is idempotent: left alone, its agent would run it again with the same key, which does no harm")
    if against := find_contradiction(item.ref, outcome):
        found.append(f"{against.resolver} {against.says} ({against.evidence_id})")
    return tuple(found)


def _refused(decision: Decision, problem: ActionsError | None, now: ActionItem | None, ref: ActionRef) -> Answer:
    detail = redact_text(decision.why)
    if isinstance(problem, ActionNotOpen) or (now is not None and now.action is not None and not now.action.is_open):
        return answer_closed(ref, now, entry=problem.entry if isinstance(problem, ActionNotOpen) else None)
    if isinstance(problem, StoreReadOnly | StoreUnusable):
        return Answer(kind=AnswerKind.READ_ONLY, detail=f"{problem}; nothing was written", decision=decision, item=now)
    if isinstance(problem, StoreUnavailable):
        return Answer(kind=AnswerKind.UNAVAILABLE, detail=f"{problem}; nothing was written", decision=decision, item=now)
    if isinstance(problem, DecisionIdReused):
        return Answer(kind=AnswerKind.ID_REUSED, detail=detail, decision=decision, item=now, entry=problem.entry)
    if isinstance(problem, InvalidDecision | RecordUnreadable):
        return Answer(kind=AnswerKind.INVALID, detail=detail, decision=decision, item=now)
    return Answer(kind=AnswerKind.CHANGED, detail=f"nothing was written: {detail}", decision=decision, item=now)


def _ending_of(ref: ActionRef) -> Entry | None:
    try:
        return find_ending(get_store(ref.store), ref)
    except (StoreError, UnknownStore):
        return None
    except Exception as exc:
        log_unexpected(log, f"looking for who ended {ref}", exc)
        return None


def _look_again(item: ActionItem) -> ActionItem | None:
    """The action as it is now; None where its store does not answer: what happened is known all the same."""
    try:
        return get_action(get_store(item.store), item.ref, read_rules())
    except (ActionsError, UnknownStore):
        return None
    except Exception as exc:
        log_unexpected(log, f"reading {item.ref} again", exc)
        return None
