"""What one settle, or the correction of one, checks and writes, the same for every store: pure. The adapters bring the rows and make it
one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from actions.arguments import parse_arguments
from actions.digests import action_digest, claim_digest, sha256_text
from actions.errors import ActionChanged, CorrectedMeanwhile, DecisionIdReused, NothingToCorrect, RecordUnreadable
from actions.keys import result_ref
from actions.records import (
    Action,
    ActionEnd,
    ActionRef,
    Correction,
    Entry,
    Lease,
    NewEntry,
    Output,
    Settled,
    Turn,
    Unreadable,
)
from actions.redaction import redact_arguments, redact_text
from actions.rules import check_end_for
from actions.store.codec import (
    MAX_INTEGER,
    Metadata,
    decode_working_state,
    encode_end,
    encode_output,
    encode_turn,
    output_id,
    turn_id,
)
from actions.times import Instant, format_rfc3339
from actions.turns import SettlementTurn, correction_turn, settlement_turn, store_value

MARKED_TURNS = 200
"""Among how many of an agent's newest turns a marked one is looked for."""
ENTRY_CHARS = 4_000
"""How much of arguments and results an entry keeps, redacted; their digests are over the whole."""
ENDINGS = ("settled", "corrected")
"""The kinds of entries that say how an action ended; the newest one is what its agent was told last."""
ENDINGS_LOOKED_AT = 200
"""How many of them about one action are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """The records of one settle or correction: the action as it will stand, what is new beside it, and the entry that says so."""

    action: Metadata | None  # None: it stays as it is, being corrected
    inserted: Mapping[str, Metadata]  # by record id: the turn, and the output of a result that overflowed
    turn: Turn
    entry: NewEntry

    @property
    def turn_seq(self) -> int:
        return self.turn.seq

    @property
    def records_written(self) -> int:
        return (self.action is not None) + len(self.inserted)


def whole_args(action: Action, output: Output | Unreadable | None) -> str:
    """The arguments that a digest is taken over: whole, or as stored where their output is missing or unreadable."""
    return output.content if isinstance(output, Output) else action.args


def newest_turn(largest: int, head: tuple[str, object] | None) -> int:
    """The agent's newest turn number: the larger of what is stored and what the working state's head claims (recall-records 3.6).

    `head` is the head's id and metadata; None where there is none.

    Raises:
        RecordUnreadable: the head cannot be decoded, and with it the number that Recall would believe; or no turn can follow the one
            that it claims. Nothing was written.
    """
    if head is None:
        return largest
    claimed = decode_working_state(*head).turn_seq
    if claimed >= MAX_INTEGER:
        raise RecordUnreadable(head[0], f"it says that the newest turn is {claimed}, after which Recall can number none")
    return max(largest, claimed)


def check_seen(ref: ActionRef, action: Action, args: str, *, seen: str | None, claim: str | None) -> None:
    """Compare with what was shown.

    Raises:
        ActionChanged: it is not what was shown; `.action` is what it is now. Nothing was written.
    """
    if seen is not None and seen != action_digest(action, args):
        raise ActionChanged(ref, action)
    if claim is not None and claim != claim_digest(action, args):
        raise ActionChanged(ref, action)


def find_told(turns: Iterable[Turn | Unreadable], marker: str) -> Turn | None:
    """The turn that tells a decision already, by its message id; None without a marker."""
    return next((turn for turn in turns if marker and isinstance(turn, Turn) and turn.message_id == marker), None)


def answer_repeat(entry: Entry, new: NewEntry) -> Settled:
    """What the same decision id wrote before.

    Raises:
        DecisionIdReused: the id stands for another decision. Nothing was written now.
    """
    turn = entry.detail.get("turn")
    if entry.content_digest != new.content_digest or not isinstance(turn, int):
        raise DecisionIdReused(entry)
    return Settled(entry=entry, turn_seq=turn, is_repeat=True)


def plan_closing(
    action: Action,
    metadata: Metadata,
    end: ActionEnd,
    new: NewEntry,
    *,
    args: str,
    newest: int,
    found: Lease | None,
    epoch: int,
    at: Instant,
    seen: str | None = None,
    claim: str | None = None,
    message_id: str = "",
    told: Turn | None = None,
) -> Closing:
    """Shape everything that one settle writes. `found` is the lease as it was before we took it, `epoch` ours; `message_id` is the turn's.
    `told` is the turn that tells this decision already: then none is written.

    Raises:
        InvalidDecision: the end does not fit the action's class. Nothing was written.
        RecordUnreadable: the newest turn has the largest number there is, so that none can follow. Nothing was written.
    """
    check_end_for(action, end)
    value = store_value(end.result, result_ref(action.seq))
    words = settlement_turn(end, value.text)
    after = _next_turn(action, words, newest=newest, message_id=message_id, at=at)
    turn = told or after
    inserted = {} if told else {turn_id(turn.agent, turn.seq): encode_turn(turn, epoch=epoch)}
    if value.ref:
        output = Output(agent=action.agent, ref=value.ref, content=value.whole, tool=action.tool, at=at)
        inserted[output_id(output.agent, output.ref)] = encode_output(output, epoch=epoch)
    detail = {
        **new.detail,
        "before": {
            "status": action.status.value,
            "resolution": redact_text(action.resolution),
            "error": _cut(redact_text(action.error)),
            "result": _redacted(action.result, new.redacted),
            "epoch": action.written_epoch,
            "args": _redacted(args, new.redacted),
            "args_digest": sha256_text(args),
        },
        "after": {
            "status": end.status.value,
            "resolution": redact_text(end.resolution or action.resolution),
            "error": _cut(redact_text(end.error)),
            "result": _redacted(end.result, new.redacted),
            "result_digest": sha256_text(end.result),
            "epoch": epoch,
        },
        "turn": turn.seq,
        "started_at": format_rfc3339(action.started_at),
        "lease": _lease_detail(found),
        **{name: digest for name, digest in (("seen", seen), ("claim", claim)) if digest is not None},
    }
    return Closing(
        action=encode_end(metadata, end, epoch=epoch, result=value.text, ref=value.ref, at=at),
        inserted=inserted,
        turn=turn,
        entry=replace(new, tool=redact_text(action.tool), detail=detail),
    )


def check_correctable(
    ref: ActionRef, action: Action, endings: Iterable[Entry], new: NewEntry, *, basis: int | None
) -> Entry | Settled:
    """What its agent was told last, by an entry of ours; or the answer, where this very correction is written already.

    `endings` are our entries of the kinds ENDINGS about this action, newest first; `basis` the number of the one that was shown.

    Raises:
        NothingToCorrect: it is open, or ended otherwise than we wrote. Nothing was written.
        CorrectedMeanwhile: another one than `basis` is the newest by now. Nothing was written.
        DecisionIdReused: the id stands for another decision or correction of this action. Nothing was written now.
    """
    known = tuple(endings)
    for entry in known:
        if entry.decision_id == new.decision_id:
            return answer_repeat(entry, new)
    settled = next((entry for entry in known if entry.kind == "settled"), None)
    if action.is_open or settled is None or settled.outcome != action.status:
        raise NothingToCorrect(ref, action)
    if basis is not None and known[0].number != basis:
        raise CorrectedMeanwhile(ref, known[0])
    return known[0]


def plan_correction(
    action: Action,
    correction: Correction,
    new: NewEntry,
    *,
    told: Entry,
    newest: int,
    found: Lease | None,
    epoch: int,
    at: Instant,
    message_id: str = "",
) -> Closing:
    """Shape everything that one correction writes: a turn and an entry. `told` is the entry that it corrects; the rest as `plan_closing`.

    Raises:
        RecordUnreadable: the newest turn has the largest number there is, so that none can follow. Nothing was written.
    """
    words = correction_turn(action.seq, told.outcome, correction)
    turn = _next_turn(action, words, newest=newest, message_id=message_id, at=at)
    detail = {
        **new.detail,
        "corrects": told.number,
        "before": {"outcome": told.outcome, "turn": told.detail.get("turn")},
        "after": {"outcome": correction.outcome.value, "resolution": redact_text(correction.resolution), "epoch": epoch},
        "turn": turn.seq,
        "lease": _lease_detail(found),
    }
    return Closing(
        action=None,
        inserted={turn_id(turn.agent, turn.seq): encode_turn(turn, epoch=epoch)},
        turn=turn,
        entry=replace(new, tool=redact_text(action.tool), detail=detail),
    )


def readable(action: Action | Unreadable) -> Action:
    """Raises RecordUnreadable where the action could not be decoded: nothing is guessed, so nothing is written."""
    if isinstance(action, Unreadable):
        raise RecordUnreadable(action.record_id, action.problem)
    return action


def _next_turn(action: Action, words: SettlementTurn, *, newest: int, message_id: str, at: Instant) -> Turn:
    if not 0 <= newest < MAX_INTEGER:
        raise RecordUnreadable(turn_id(action.agent, newest), "Recall can number no turn after it")
    return Turn(
        agent=action.agent,
        seq=newest + 1,
        role="tool",
        name=action.tool,
        content=words.content,
        brief=words.brief,
        message_id=message_id,
        at=at,
    )


def _lease_detail(lease: Lease | None) -> dict[str, object] | None:
    if lease is None:
        return None
    return {"holder": redact_text(lease.holder), "epoch": lease.epoch, "expires_at": format_rfc3339(lease.expires_at)}


def _redacted(text: str, names: frozenset[str]) -> str:
    return _cut(redact_arguments(parse_arguments(text), names).text)


def _cut(text: str) -> str:
    return text if len(text) <= ENTRY_CHARS else text[: ENTRY_CHARS - 1] + "…"
