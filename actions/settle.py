"""The one path by which anybody's decision reaches a store: operators, resolvers, the API, bulk and tasks all come through `settle`."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping

from actions.digests import decision_digest, eviction_digest, sha256_text
from actions.errors import InvalidDecision
from actions.keys import result_ref
from actions.records import Action, ActionEnd, ActionRef, ActionStatus, Entry, NewEntry, Settled
from actions.redaction import redact_text
from actions.rules import MAX_REASON_CHARS, check_end, check_end_for, check_text, has_visible_text
from actions.store.base import CONSOLE_HOLDER, ActionStore
from actions.turns import SettlementTurn, settlement_turn, store_value

DECISION_ID = re.compile(r"[A-Za-z0-9-]{8,64}", re.ASCII)


def make_end(status: ActionStatus, reason: str, *, actor: str, result: str = "", error: str = "") -> ActionEnd:
    """An end in the contract's words: resolution `<actor>: <reason>` on one line; a failed call's error defaults to the reason.

    Raises:
        InvalidDecision: the end breaks a rule. Nothing was read or written.
    """
    reason = reason.strip()
    end = ActionEnd(
        status=status,
        reason=reason,
        resolution=f"{actor}: {' '.join(reason.split())}",
        result=result,
        error=error.strip() or (reason if status is ActionStatus.FAILED else ""),
    )
    check_end(end)
    return end


def preview_turn(action: Action, end: ActionEnd) -> SettlementTurn:
    """The turn that the agent will read, exactly as `settle` would write it now. Pure.

    Raises:
        InvalidDecision: the end does not fit the action's class.
    """
    check_end_for(action, end)
    return settlement_turn(end, store_value(end.result, result_ref(action.seq)).text)


def settle(
    store: ActionStore,
    ref: ActionRef,
    end: ActionEnd,
    *,
    actor: str,
    decision_id: str,
    seen: str | None = None,
    claim: str | None = None,
    evidence_id: str = "",
    detail: Mapping[str, object] | None = None,
    marker: str = "",
    redacted: frozenset[str] = frozenset(),
) -> Settled:
    """Close an open action, tell its agent, and record who decided: one transaction under the agent's lease, all or nothing.

    The holder string is made here and used once. The same decision id again answers what it wrote before. `redacted`: names of arguments
    that the entry hides beside the usual ones (`ToolRule.redacted`). Errors and the state of the
    world when each is raised: `ActionStore.settle`.

    Raises:
        InvalidDecision: the end or the decision id breaks a rule. Nothing was read or written.
    """
    entry = settled_entry(
        ref, end, actor=actor, decision_id=decision_id, evidence_id=evidence_id, detail=detail, redacted=redacted
    )
    return store.settle(ref, end, entry=entry, holder=one_time_holder(actor), seen=seen, claim=claim, marker=marker)


def settled_entry(
    ref: ActionRef,
    end: ActionEnd,
    *,
    actor: str,
    decision_id: str,
    evidence_id: str = "",
    detail: Mapping[str, object] | None = None,
    redacted: frozenset[str] = frozenset(),
) -> NewEntry:
    """The entry of a settle, before its store adds what it found and wrote.

    Raises:
        InvalidDecision: the end or the decision id breaks a rule.
    """
    check_end(end)
    check_decision_id(decision_id)
    return NewEntry(
        kind="settled",
        actor=actor,
        agent=ref.agent,
        seq=ref.seq,
        decision_id=decision_id,
        outcome=end.status.value,
        reason=redact_text(end.reason),
        evidence_id=evidence_id,
        content_digest=decision_digest(ref, end),
        detail=detail or {},
        redacted=redacted,
    )


def evict(store: ActionStore, agent: str, *, holder: str, reason: str, actor: str, decision_id: str) -> Entry:
    """Take a live lease away from the holder that was shown, and record who did and why: a deliberate override.

    Closes nothing and tells the agent nothing: a decision that waits is settled afterwards, by `settle`. Errors and the state of the world
    when each is raised: `ActionStore.evict`.

    Raises:
        InvalidDecision: the reason or the decision id breaks a rule. Nothing was read or written.
    """
    check_decision_id(decision_id)
    reason = reason.strip()
    if not has_visible_text(reason):
        raise InvalidDecision("a reason is required: how do you know that its process is gone?")
    if len(reason) > MAX_REASON_CHARS:
        raise InvalidDecision(f"the reason has {len(reason)} characters; the limit is {MAX_REASON_CHARS}")
    check_text("reason", reason)
    entry = NewEntry(
        kind="evicted",
        actor=actor,
        agent=agent,
        decision_id=decision_id,
        reason=redact_text(reason),
        content_digest=eviction_digest(agent, sha256_text(holder), reason, actor),
    )
    return store.evict(agent, holder=holder, entry=entry)


def check_decision_id(decision_id: str) -> None:
    """Raises InvalidDecision where the id is not 8 to 64 letters, digits or hyphens. Nothing was read or written."""
    if not DECISION_ID.fullmatch(decision_id):
        raise InvalidDecision("a decision id is 8 to 64 letters, digits or hyphens, made anew for each decision")


def one_time_holder(actor: str) -> str:
    """A holder string that nobody had before and nobody will have again: equal holders are not fenced from each other."""
    return f"{CONSOLE_HOLDER}{re.sub(r'[^A-Za-z0-9._-]+', '-', actor)[:40]}:{secrets.token_hex(8)}"
