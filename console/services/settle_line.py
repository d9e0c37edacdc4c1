"""One line and one count for each attempt that changed what a decision is, or that its store stood in the way of."""

from __future__ import annotations

import time

import structlog

from actions.errors import ActionsError, StoreError
from console import spans
from console.models import Correction, Decision, DecisionState, WrittenBy
from console.services.tallies import count, observe_settle

log = structlog.get_logger("console.settle")


def tell_attempt(row: Decision, *, before: str, began: float, problem: ActionsError | None = None) -> None:
    """After the commit. No reason, no result, no argument; `began` by time.perf_counter."""
    has_moved = row.state != before
    if not has_moved and not isinstance(problem, StoreError):
        return
    took = time.perf_counter() - began
    _say("settle", row, row.decision_id, took, problem)
    if has_moved:
        count("settle_decisions_total", row.state, row.outcome)
    if has_moved and row.state == DecisionState.WRITTEN and row.written_by == WrittenBy.US:
        observe_settle(row.store, took)


def tell_ended(row: Decision, state: DecisionState) -> None:
    """A person ended it without its store: taken back, or turned down."""
    log.info(
        "settle", decision=row.decision_id, store=row.store, agent=row.agent, seq=row.seq, outcome=row.outcome, state=state.value
    )
    count("settle_decisions_total", state.value, row.outcome)


def tell_correction(row: Correction, *, before: str, began: float, problem: ActionsError | None = None) -> None:
    """The same of a correction."""
    has_moved = row.state != before
    if not has_moved and not isinstance(problem, StoreError):
        return
    _say("correct", row, row.correction_id, time.perf_counter() - began, problem)
    if has_moved:
        count("settle_corrections_total", row.state, row.outcome)


def _say(event: str, row: Decision | Correction, number: str, took: float, problem: ActionsError | None) -> None:
    log.info(
        event,
        decision=number,
        store=row.store,
        agent=row.agent,
        seq=row.seq,
        outcome=row.outcome,
        state=row.state,
        ms=round(took * 1000, 1),
        **({"problem": type(problem).__name__} if problem is not None else {}),
    )
    said: dict[str, spans.Value] = {
        "settle.decision": number,
        "settle.store": row.store,
        "settle.call.seq": row.seq,
        "settle.outcome": row.outcome,
        "settle.state": row.state,
    }
    spans.tell(event, row.agent, said, took=took, problem=problem)
