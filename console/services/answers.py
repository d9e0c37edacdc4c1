"""What a gesture came to. Refusals are answers too, so that no face has to catch them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from actions.queries import ActionItem
from actions.records import Entry
from console.models import Decision, Note


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
