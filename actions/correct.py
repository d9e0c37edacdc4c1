"""Correcting an end that was wrong: the one path by which anybody's "I was wrong" reaches a store. What is closed is never reopened."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum

from actions.digests import correction_digest
from actions.errors import InvalidDecision
from actions.records import Action, ActionRef, CorrectedOutcome, Correction, Entry, NewEntry, Settled, Turn, Unreadable
from actions.redaction import redact_text
from actions.rules import MAX_REASON_CHARS, check_text, has_visible_text
from actions.settle import check_decision_id, one_time_holder
from actions.store.base import ActionStore
from actions.turns import SettlementTurn, correction_turn

ENTRIES_READ = 200
TURNS_READ = 200
_ENDINGS = ("settled", "corrected")


class WasRead(StrEnum):
    """Whether the agent had read what it was told first."""

    YES = "yes"  # it wrote turns of its own after ours, so it was resumed with ours in its history
    NO = "no"  # nobody has had its lease since
    UNKNOWN = "unknown"  # somebody has, or may have, and wrote no turn: a resume reads the history before it writes


def make_correction(outcome: str, reason: str, *, actor: str) -> Correction:
    """A correction in the contract's words: resolution `<actor>: <reason>` on one line.

    Raises:
        InvalidDecision: it breaks a rule. Nothing was read or written.
    """
    reason = reason.strip()
    if outcome not in list(CorrectedOutcome):
        raise InvalidDecision(f"outcome {outcome[:40]!r} cannot be what really happened; choose done, failed or unknown")
    if not has_visible_text(reason):
        raise InvalidDecision("a reason is required: what did you see, and where?")
    if len(reason) > MAX_REASON_CHARS:
        raise InvalidDecision(f"the reason has {len(reason)} characters; the limit is {MAX_REASON_CHARS}")
    check_text("reason", reason)
    resolution = f"{actor}: {' '.join(reason.split())}"
    return Correction(outcome=CorrectedOutcome(outcome), reason=reason, resolution=resolution)


def preview_correction(action: Action, told: Entry, correction: Correction) -> SettlementTurn:
    """The turn that the agent will read, exactly as `correct` would write it now. Pure.

    Raises:
        InvalidDecision: its agent was told just that.
    """
    check_differs(told, correction)
    return correction_turn(action.seq, told.outcome, correction)


def check_differs(told: Entry, correction: Correction) -> None:
    """Raises InvalidDecision where the agent was told just that last. Nothing was written."""
    if told.outcome == correction.outcome:
        raise InvalidDecision(f"its agent was told {told.outcome} already; a correction says something else")


def correct(
    store: ActionStore,
    ref: ActionRef,
    correction: Correction,
    *,
    actor: str,
    decision_id: str,
    basis: int | None = None,
    detail: Mapping[str, object] | None = None,
) -> Settled:
    """Tell the agent that an end was wrong, and record who says so: one transaction under the agent's lease, all or nothing.

    `detail`: what the entry says besides, redacted. The holder string is made here and used once. The same id again answers what it wrote
    before. Errors and the state of the world when each is raised: `ActionStore.correct`.

    Raises:
        InvalidDecision: the id breaks a rule. Nothing was read or written.
    """
    check_decision_id(decision_id)
    entry = NewEntry(
        kind="corrected",
        actor=actor,
        agent=ref.agent,
        seq=ref.seq,
        decision_id=decision_id,
        outcome=correction.outcome.value,
        reason=redact_text(correction.reason),
        content_digest=correction_digest(ref, correction),
        detail=dict(detail or {}),
    )
    return store.correct(ref, correction, entry=entry, holder=one_time_holder(actor), basis=basis)


def find_told(store: ActionStore, ref: ActionRef) -> Entry | None:
    """What the agent was told last about an action, by an entry of ours; None where nobody here ended it. One read."""
    return next(iter(store.list_entries(limit=1, agent=ref.agent, seq=ref.seq, kinds=_ENDINGS)), None)


def was_read(store: ActionStore, told: Entry, *, before: int | None = None) -> WasRead:
    """Whether the agent has read the turn of this entry, by what stands after it; `before`: up to that turn. Three reads at most.

    Turns that entries of ours wrote are nobody's reading. Bounded: of very many turns or entries since, the newest 200 tell.
    """
    first = told.detail.get("turn")
    if not isinstance(first, int):
        return WasRead.UNKNOWN
    entries = store.list_entries(limit=ENTRIES_READ, agent=told.agent, kinds=_ENDINGS)
    ours = {entry.detail.get("turn") for entry in entries}
    turns = store.list_turns(told.agent, limit=TURNS_READ, before=before)
    if _others(turns, after=first, ours=ours):
        return WasRead.YES
    if not store.leases_known or len(entries) == ENTRIES_READ or any(isinstance(turn, Unreadable) for turn in turns):
        return WasRead.UNKNOWN
    lease = store.find_lease(told.agent)
    return WasRead.NO if lease is not None and lease.epoch == _last_epoch_of_ours(entries, told) else WasRead.UNKNOWN


def _others(turns: Collection[Turn | Unreadable], *, after: int, ours: Collection[object]) -> bool:
    return any(isinstance(turn, Turn) and turn.seq > after and turn.seq not in ours for turn in turns)


def _last_epoch_of_ours(entries: Collection[Entry], told: Entry) -> int | None:
    """The epoch that the lease has if nobody but us has had it since: each write of ours takes it once and releases it once."""
    expected: int | None = None
    for entry in sorted(entries, key=lambda one: one.number):
        if entry.kind not in _ENDINGS or entry.number < told.number:
            continue
        after = entry.detail.get("after")
        epoch = after.get("epoch") if isinstance(after, dict) else None
        if not isinstance(epoch, int) or (expected is not None and epoch != expected + 1):
            return None
        expected = epoch + 1
    return expected
