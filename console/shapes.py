"""Records as JSON values with the contract's names: for the API and for commands. Everything that leaves here is redacted."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from actions.arguments import parse_arguments
from actions.queries import ActionItem
from actions.records import Entry, Lease
from actions.redaction import redact_arguments, redact_text, redact_value
from actions.times import format_rfc3339, from_datetime
from actions.tool_rules import ToolRule
from console.models import (
    Approval,
    Batch,
    BatchItem,
    Claim,
    Correction,
    Decision,
    DecisionState,
    KnownCount,
    Note,
    Run,
    RunEvent,
    StoredVerdict,
)

Json = dict[str, Any]

ARGS_BYTES = 4_096
"""How much of an action's arguments a list shows."""
TOLD_TO_AGENTS = frozenset({DecisionState.WAITING, DecisionState.WRITTEN})
"""States in which an agent is told the outcome: what is only proposed or held may still be taken back."""


def item_json(item: ActionItem, claim: Claim | None = None) -> Json:
    """One action as lists show it; `claim` is the live one."""
    action = item.action
    args, is_cut = cut_text(item.arguments.text, ARGS_BYTES)
    return {
        "store": item.store,
        "agent": item.agent,
        "seq": item.seq,
        "tool": redact_text(action.tool) if action else None,
        "class": action.action_class.value if action else None,
        "key": action.key if action else None,
        "status": action.status.value if action else None,
        "state": item.state.value,
        "args": args,
        "args_truncated": is_cut or item.is_args_missing,
        "started_at": format_rfc3339(action.started_at) if action else None,
        "epoch": action.epoch if action else None,
        "digest": item.digest or None,
        "claimed_by": claim.username if claim else None,
        "lease": lease_json(item.lease),
        "problem": redact_text(f"{item.unreadable.record_id}: {item.unreadable.problem}") if item.unreadable else None,
    }


def whole_item_json(
    item: ActionItem,
    *,
    result: str,
    decision: Decision | None,
    note: Note | None,
    sees_problems: bool,
    verdicts: Sequence[StoredVerdict] = (),
    claim: Claim | None = None,
    notes: Sequence[Note] = (),
    correction: Correction | None = None,
) -> Json:
    """One action on its own: whole arguments, whole result, what was found and decided. `result` must be redacted already."""
    action = item.action
    return {
        **item_json(item, claim),
        "args": item.arguments.text,
        "args_truncated": item.is_args_missing,
        "ended_at": format_rfc3339(action.ended_at) if action and action.ended_at is not None else None,
        "result": result,
        "error": redact_text(action.error) if action else "",
        "resolution": redact_text(action.resolution) if action else "",
        "verdicts": [verdict_json(verdict) for verdict in verdicts],
        "decision": decision_json(decision, sees_problems=sees_problems) if decision else None,
        "note": note_json(note) if note else None,
        "notes": [note_json(one) for one in notes],
        "correction": correction_json(correction, sees_problems=sees_problems) if correction else None,
    }


def batch_json(
    batch: Batch,
    items: Sequence[BatchItem],
    *,
    counts: Mapping[str, int],
    cursor: str | None,
    sees_problems: Callable[[str], bool],
) -> Json:
    """A batch with some of its items; `cursor` None: these are the last. `sees_problems(store)`: the caller reads what that store says."""
    return {
        "id": batch.batch_id,
        "state": batch.state,
        "outcome": batch.outcome or None,
        "reason": batch.shown_reason,
        "by": batch.username,
        "at": format_rfc3339(from_datetime(batch.committed_at)) if batch.committed_at else None,
        "counts": dict(counts),
        "items": [
            {
                "store": item.store,
                "agent": item.agent,
                "seq": item.seq,
                "outcome": item.outcome_shown,
                "detail": item.why_for(sees_problems=sees_problems(item.store)),
                "decision_id": item.decided_as,
            }
            for item in items
        ],
        "next": cursor,
    }


def lease_json(lease: Lease | None) -> Json | None:
    if lease is None:
        return None
    return {
        "holder": redact_text(lease.holder),
        "epoch": lease.epoch,
        "expires_at": format_rfc3339(lease.expires_at),
        "live": lease.is_live,
    }


def decision_json(decision: Decision, *, sees_problems: bool) -> Json:
    """A decision for people, redacted; `sees_problems`: they may read what its store says."""
    return {
        "id": decision.decision_id,
        "state": decision.state,
        "outcome": decision.outcome,
        "reason": decision.shown_reason,
        "result": decision.shown_result,
        "error": decision.shown_error,
        "by": decision.username,
        "at": time_json(decision.created_at),
        "why": redact_text(decision.why) if sees_problems or not decision.waits_for_store else "its store does not take it now",
        "written_by": decision.written_by or None,
        "turn": decision.turn_seq,
        "entry": decision.entry_number,
        "rule": decision.shown_rule or None,
        "second": decision.second_username or None,
        "second_reason": decision.shown_second_reason or None,
        "held_until": time_json(decision.held_until) if decision.held_until else None,
        "broke_glass": decision.shown_broke_glass or None,
        "broke_glass_by": decision.broke_glass_by or None,
    }


def agent_decision_json(decision: Decision) -> Json:
    """A decision for the agent that it is about: word for word what its records will say, once it is sure enough to be told."""
    told = decision.state in TOLD_TO_AGENTS
    return {
        "id": decision.decision_id,
        "state": decision.state,
        "outcome": decision.outcome if told else None,
        "reason": decision.reason if told else None,
        "result": decision.result if told else None,
        "error": decision.error if told else None,
        "resolution": f"{decision.actor}: {' '.join(decision.reason.split())}" if told else None,
        "by": decision.username if told else None,
        "at": time_json(decision.created_at),
        # Which call it was about: a number may be used again where an agent's records begin anew.
        "tool": decision.tool if told else None,
        "claim": decision.claim if told else None,
    }


def verdict_json(verdict: StoredVerdict) -> Json:
    """What one question came to; redacted when it was stored."""
    return {
        "id": verdict.evidence_id,
        "resolver": verdict.resolver,
        "outcome": verdict.outcome,
        "grade": verdict.grade or None,
        "resolution": verdict.resolution,
        "evidence": json.loads(verdict.evidence),
        "asked_at": time_json(verdict.asked_at),
        "check_again_at": time_json(verdict.check_again_at) if verdict.check_again_at else None,
        "has_given_up": verdict.has_given_up,
        "asked_for": verdict.asked_for or None,
    }


def correction_json(correction: Correction, *, sees_problems: bool) -> Json:
    """A correction for people, redacted; `was_read`: whether the agent had read what it was told first."""
    why = redact_text(correction.why) if sees_problems or not correction.waits_for_store else "its store does not take it now"
    return {
        "id": correction.correction_id,
        "state": correction.state,
        "outcome": correction.outcome,
        "told": correction.told,
        "reason": correction.shown_reason,
        "by": correction.username,
        "at": time_json(correction.created_at),
        "why": why,
        "turn": correction.turn_seq,
        "entry": correction.entry_number,
        "was_read": correction.was_read or None,
    }


def note_json(note: Note) -> Json:
    return {
        "id": note.decision_id,
        "state": "noted",
        "outcome": "later",
        "reason": note.shown_text,
        "look_again_at": time_json(note.look_again_at) if note.look_again_at else None,
        "by": note.username,
        "at": time_json(note.created_at),
    }


def entry_json(store: str, entry: Entry) -> Json:
    """One link of a chain; entries are redacted before they are stored."""
    return {
        "store": store,
        "chain": entry.chain,
        "number": entry.number,
        "at": format_rfc3339(entry.at),
        "kind": entry.kind,
        "actor": entry.actor,
        "agent": entry.agent,
        "seq": entry.seq,
        "tool": entry.tool,
        "outcome": entry.outcome,
        "reason": entry.reason,
        "decision_id": entry.decision_id,
        "evidence_id": entry.evidence_id,
        "content_digest": entry.content_digest,
        "detail": entry.detail,
        "text": entry.text,
        "prev": entry.prev,
        "hash": entry.hash,
    }


def run_json(run: Run, *, sees_problems: bool) -> Json:
    """A run as lists show it. Its input is redacted; what it came to and why it stands still were when they were kept."""
    return {
        "id": run.run_id,
        "type": run.type,
        "store": run.store,
        "status": run.status,
        "parked": run.parked or None,
        "problem": run.problem if sees_problems or run.parked != "store" else "its store does not answer",
        "result": run.result,
        "input": redact_value(json.loads(run.input)),
        "started_by": run.started_by,
        "started_at": time_json(run.created_at),
        "changed_at": time_json(run.changed_at),
        "ended_at": time_json(run.ended_at) if run.ended_at else None,
        "steps": run.steps,
        "resumes": run.resumes,
        "cost": format(run.cost.normalize(), "f"),
        "busy_ms": run.busy_ms,
        "cancel_asked_by": run.cancel_asked_by or None,
        "undoing": run.undoing or None,
        "restart_of": run.restart_of.run_id if run.restart_of else None,
    }


def run_event_json(event: RunEvent) -> Json:
    """One event of a run, redacted when it was kept."""
    return {
        "number": event.number,
        "at": time_json(event.at),
        "kind": event.kind,
        "by": event.by or None,
        "detail": json.loads(event.detail),
    }


def approval_json(approval: Approval, *, args: Any, edited_args: Any) -> Json:
    """What a run asks, or asked; `args` without what is hidden."""
    return {
        "id": approval.approval_id,
        "run": approval.run.run_id,
        "type": approval.run.type,
        "store": approval.run.store,
        "started_by": approval.run.started_by,
        "tool": redact_text(approval.tool),
        "args": args,
        "digest": approval.digest,
        "description": redact_text(approval.description),
        "allowed": approval.allowed,
        "needs_another": approval.needs_another,
        "asked_at": time_json(approval.asked_at),
        "expires_at": time_json(approval.expires_at) if approval.expires_at else None,
        "state": approval.state,
        "answered_by": approval.answered_by or None,
        "answered_at": time_json(approval.answered_at) if approval.answered_at else None,
        "message": redact_text(approval.message),
        "edited_args": edited_args,
    }


def undo_step_json(step: Any, rule: ToolRule, rule_of_undo: ToolRule) -> Json:
    """One step of walking a run backward; arguments without what is hidden."""
    return {
        "seq": step.call.seq,
        "tool": redact_text(step.call.tool),
        "args": arguments_json(step.call.args, rule),
        "status": step.call.status.value,
        "state": step.state.value,
        "by_tool": redact_text(step.tool) or None,
        "by_args": None if step.args is None else arguments_json(json.dumps(dict(step.args), default=str), rule_of_undo),
        "by_seq": step.undone_by.seq if step.undone_by else None,
        "problem": redact_text(step.problem),
    }


def arguments_json(text: str, rule: ToolRule) -> Any:
    """As JSON where they are that without a doubt, else as the text that may be shown."""
    arguments = redact_arguments(parse_arguments(text), rule.redacted)
    return arguments.text if arguments.value is None or arguments.problems else json.loads(arguments.text)


def known_json(known: KnownCount) -> Json:
    return {"in_doubt": known.in_doubt, "or_more": known.is_capped, "at": time_json(known.counted_at)}


def time_json(moment: datetime) -> str:
    return format_rfc3339(from_datetime(moment))


def cut_text(text: str, limit: int) -> tuple[str, bool]:
    """The longest start that fits into so many bytes, never half a character, and whether anything is missing. Keeps lone surrogates."""
    data = text.encode("utf-8", "surrogatepass")
    if len(data) <= limit:
        return text, False
    while data[limit] & 0xC0 == 0x80:
        limit -= 1
    return data[:limit].decode("utf-8", "surrogatepass"), True
