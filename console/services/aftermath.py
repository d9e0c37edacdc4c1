"""What became of a decision: when its agent went on, and whether it made the same call again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from actions.arguments import canonical_arguments
from actions.records import Action, ActionStatus, Entry, Output, Turn
from actions.store.closing import ENDINGS
from actions.times import to_datetime
from console.models import Observation
from console.services.sightings import holders_of
from console.stores import ActionStore

CALLS = 500
"""Calls after a decided one that are compared with it."""
TURNS = 200
"""Turns after a decision's that are looked through for one of the agent's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aftermath:
    """What is known of the time after one decision was written."""

    outcome: str  # done, failed or abandoned
    resumed_at: datetime | None  # None: nothing of it was seen or recorded so far
    is_seen: bool  # a holder was seen; else its own records say it
    holder: str  # who was seen; text of others
    repeated_as: int | None  # the first later call of the same tool with the same arguments
    is_repeat_open: bool
    is_repeat_before: bool  # it was begun before the decision was written, so the agent could not know
    calls_compared: int
    is_cut: bool  # there are later calls that were not compared

    @property
    def is_flagged(self) -> bool:
        """A call that was decided to have happened, and was made again."""
        return self.outcome == ActionStatus.DONE and self.repeated_as is not None


def aftermaths(
    store: ActionStore, agent: str, entries: Iterable[Entry], *, seen: Sequence[Observation] | None = None
) -> dict[int, Aftermath]:
    """What became of each of these entries that settled an action of the agent, by their numbers. Reads two bounded lists, one where none did.

    Raises StoreError as the store's reads do.
    """
    settled = {entry.number: entry for entry in entries if entry.kind == "settled" and entry.seq is not None}
    if not settled:
        return {}
    last = max(_turn_of(entry) for entry in settled.values())
    turns = store.list_turns(agent, limit=TURNS, before=last + TURNS + 1)
    newest = max(entry.seq or 0 for entry in settled.values())
    readings = store.list_agent_actions(agent, limit=CALLS, before=newest + CALLS + 1)
    actions = sorted((r.action for r in readings if isinstance(r.action, Action)), key=lambda action: action.seq)
    tools = {action.tool for action in actions if action.seq in {entry.seq for entry in settled.values()}}
    said = _canonical(store, [action for action in actions if action.tool in tools])
    ours = {_turn_of(entry) for entry in store.list_entries(limit=TURNS, agent=agent, kinds=ENDINGS)} - {0}
    holders = holders_of(store.name, agent) if seen is None else seen
    is_cut = bool(actions) and actions[-1].seq == newest + CALLS
    own_turns = [turn for turn in turns if isinstance(turn, Turn) and turn.seq not in ours]
    return {number: _aftermath(entry, own_turns, actions, said, holders, is_cut) for number, entry in settled.items()}


def _aftermath(
    entry: Entry,
    turns: Sequence[Turn],
    actions: Sequence[Action],
    said: Mapping[int, str],
    holders: Sequence[Observation],
    is_cut: bool,
) -> Aftermath:
    later = [action for action in actions if action.seq > (entry.seq or 0)]
    first = next((action for action in actions if action.seq == entry.seq), None)
    again = None
    if first is not None:
        again = next((a for a in later if a.tool == first.tool and said[a.seq] == said[first.seq]), None)
    at, holder = _resumed(entry, turns, later, holders)
    return Aftermath(
        outcome=entry.outcome,
        resumed_at=at,
        is_seen=bool(holder),
        holder=holder,
        repeated_as=again.seq if again else None,
        is_repeat_open=again is not None and again.is_open,
        is_repeat_before=again is not None and again.started_at < entry.at,
        calls_compared=len(later),
        is_cut=is_cut,
    )


def _resumed(
    entry: Entry, turns: Sequence[Turn], later: Sequence[Action], holders: Sequence[Observation]
) -> tuple[datetime | None, str]:
    """The first sign of life after the decision: a turn after ours, a call begun, or a holder seen under a later epoch than ours."""
    own = [turn.at for turn in turns if turn.seq > _turn_of(entry) > 0 and turn.at >= entry.at]
    own += [action.started_at for action in later if action.started_at >= entry.at]
    by_records = to_datetime(min(own)) if own else None
    epoch = _epoch_of(entry)
    seen = [row for row in holders if epoch is not None and row.lowest_epoch > epoch]
    first = min(seen, key=lambda row: row.first_seen_at, default=None)
    if first is not None and (by_records is None or first.first_seen_at <= by_records):
        return first.first_seen_at, first.holder
    return by_records, ""


def _canonical(store: ActionStore, actions: Sequence[Action]) -> dict[int, str]:
    """Whole arguments in one form; shortened ones of which the whole is gone are compared as they stand."""
    wanted = {(action.agent, action.args_ref) for action in actions if action.args_ref}
    outputs = store.read_outputs(wanted) if wanted else {}
    found = {}
    for action in actions:
        output = outputs.get((action.agent, action.args_ref)) if action.args_ref else None
        found[action.seq] = canonical_arguments(output.content if isinstance(output, Output) else action.args)
    return found


def _turn_of(entry: Entry) -> int:
    """The number of the turn that it wrote; 0 where it wrote none."""
    turn = entry.detail.get("turn")
    return turn if isinstance(turn, int) and not isinstance(turn, bool) else 0


def _epoch_of(entry: Entry) -> int | None:
    """The epoch of our lease in that settle."""
    after = entry.detail.get("after")
    epoch = after.get("epoch") if isinstance(after, dict) else None
    return epoch if isinstance(epoch, int) and not isinstance(epoch, bool) else None
