"""The turn that an agent reads after a decision: the same words as Recall's own reconcile (recall-records 7)."""

from __future__ import annotations

from dataclasses import dataclass

from actions.records import ActionEnd, ActionStatus, CorrectedOutcome, Correction

OVERFLOW_BYTES = 8_000
"""Above this a value moves to an output of its own: more than 2000 tokens of four bytes (recall-records 3.5)."""
PREVIEW_BYTES = 400
BRIEF_BYTES = 4_096
BRIEF_TEXT_CHARS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class SettlementTurn:
    """The words of a settlement or correction turn; role `tool`, named after the tool. A message id only where it is written in steps."""

    content: str
    brief: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredValue:
    """A value as its record keeps it: whole, or shortened with the ref of the output that has it whole."""

    text: str
    ref: str = ""
    whole: str = ""  # the output's content; empty where ref is empty


def store_value(value: str, ref: str, *, threshold: int = OVERFLOW_BYTES // 4) -> StoredValue:
    """Shorten a value over 8000 bytes as Recall does: 400 bytes, cut at a character, and a pointer to the output `ref`.

    `threshold` in tokens of four bytes; a negative one keeps everything whole.
    """
    data = value.encode()
    if threshold < 0 or (len(data) + 3) // 4 <= threshold:
        return StoredValue(text=value)
    head = data[:PREVIEW_BYTES].decode("utf-8", "ignore")
    tokens = (len(data) + 3) // 4
    return StoredValue(text=f"{head}...\n[... {tokens} more tokens stored as output {ref}]", ref=ref, whole=value)


def settlement_turn(end: ActionEnd, stored_result: str) -> SettlementTurn:
    """What the agent will read. `stored_result` is the result as its record keeps it (shortened when it overflowed).

    Recall writes no turn for `abandoned` and leaves the model blind; ours is in the contract, "what the agent reads".
    """
    if end.status is ActionStatus.DONE:
        content = stored_result or "done"
        shown = content
    elif end.status is ActionStatus.FAILED:
        content = f"failed: {end.error}".strip()
        shown = content
    else:
        content = f"abandoned: {end.reason}"
        shown = "abandoned"
    brief = f"(settled after a crash: {end.status}; {end.resolution or '-'}) {shown[:BRIEF_TEXT_CHARS]}"
    return SettlementTurn(content=content, brief=cut_bytes(brief, BRIEF_BYTES))


_IN_TRUTH = {
    CorrectedOutcome.DONE: "in truth it happened",
    CorrectedOutcome.FAILED: "in truth it did not happen",
    CorrectedOutcome.UNKNOWN: "in truth nobody knows whether it happened",
}


def correction_turn(seq: int, told: str, correction: Correction) -> SettlementTurn:
    """What the agent will read after an end that was wrong. `told` is the outcome that it was told before.

    Named after the tool like the first turn; says the action's number, because other turns stand between the two by now.
    """
    content = (
        f"correction: action {seq} was settled as {told}, which was wrong; {_IN_TRUTH[correction.outcome]}: {correction.reason}"
    )
    head = f"(correction of action {seq}: {told}, now {correction.outcome}; {correction.resolution})"
    return SettlementTurn(content=content, brief=cut_bytes(f"{head} {content[:BRIEF_TEXT_CHARS]}", BRIEF_BYTES))


def cut_bytes(text: str, limit: int) -> str:
    """The longest start of a text that fits into so many bytes of UTF-8, never half a character."""
    data = text.encode()
    return text if len(data) <= limit else data[:limit].decode("utf-8", "ignore")
