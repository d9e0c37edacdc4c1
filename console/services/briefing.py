"""The next briefing of an agent, for a person to read: the words are agents/briefing.py's, here they are read, redacted and doubted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from actions.arguments import parse_arguments
from actions.records import OPEN_STATUSES, Action, ActionStatus, Unreadable
from actions.redaction import redact_arguments
from actions.tool_rules import NO_RULES, ToolRules
from agents.briefing import MAX_OUTPUTS, MAX_TURNS, Briefing, as_resumed, write_briefing
from console.stores import ActionStore
from console.untrusted import redact_any

LISTED_BY_RECALL = 200
"""Open actions of one status that Recall lists, by the text of their ids."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class NextBriefing:
    """What the agent's next process would read if it started now."""

    text: str  # redacted; text of others
    tokens: int
    turns_left_out: int
    outputs_left_out: int
    is_redacted: bool  # the agent reads more than is shown
    unreadable: tuple[Unreadable, ...]  # records that would probably make its resume fail
    is_live: bool  # a process has the agent: the next one is not due
    is_empty: bool  # there is nothing of this agent


def next_briefing(store: ActionStore, agent: str, *, rules: ToolRules = NO_RULES) -> NextBriefing:
    """Seven bounded reads, not one snapshot. `rules` say what is hidden of each tool's arguments. Raises StoreError as the reads do."""
    lease, state = store.find_lease(agent), store.find_working_state(agent)
    readings = store.read_actions(OPEN_STATUSES, limit=2 * LISTED_BY_RECALL + 1, agent=agent).readings
    broken: list[Unreadable] = []
    actions = _readable((reading.action for reading in readings), broken)
    pointers = _readable(store.list_pointers(agent), broken)
    outputs = _readable(store.list_outputs(agent, limit=MAX_OUTPUTS), broken)
    turns = _readable(store.list_turns(agent, limit=MAX_TURNS), broken)
    states = _readable([state] if state is not None else [], broken)

    def without_hidden(action: Action) -> str:
        return redact_arguments(parse_arguments(action.args), rules.of(action.tool).redacted).text

    def write(*, is_redacted: bool) -> Briefing:
        return write_briefing(
            agent,
            working_state=states[0] if states else None,
            actions=as_resumed(_listed(actions)),
            pointers=pointers,
            outputs=outputs,
            turns=turns,
            newest_turn=states[0].turn_seq if states else 0,
            redact=redact_any if is_redacted else str,
            args_of=without_hidden if is_redacted else None,
        )

    shown = write(is_redacted=True)
    return NextBriefing(
        text=shown.text,
        tokens=shown.tokens,
        turns_left_out=shown.turns_left_out,
        outputs_left_out=shown.outputs_left_out,
        is_redacted=shown.text != write(is_redacted=False).text,
        unreadable=tuple(broken),
        is_live=lease is not None and lease.is_live,
        is_empty=lease is None and not (states or actions or pointers or outputs or turns or broken),
    )


def _listed(actions: Iterable[Action]) -> list[Action]:
    """What Recall finds of them: the first of each status by the text of their ids."""
    in_order = sorted(actions, key=lambda action: str(action.seq))
    of_status = [[a for a in in_order if a.status is status] for status in (ActionStatus.STARTED, ActionStatus.UNKNOWN)]
    return [action for listed in of_status for action in listed[:LISTED_BY_RECALL]]


def _readable(records: Iterable[_T | Unreadable], broken: list[Unreadable]) -> list[_T]:
    found: list[_T] = []
    for record in records:
        if isinstance(record, Unreadable):
            broken.append(record)
        else:
            found.append(record)
    return found
