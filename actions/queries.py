"""Reads shaped for a screen: the queue over all stores, one action, one agent. Bounded, ordered, redacted; nothing here writes."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from actions.arguments import Arguments, parse_arguments
from actions.digests import action_digest, claim_digest
from actions.errors import InvalidQuery, StoreError
from actions.facts import Facts, facts_of, risk_of
from actions.records import (
    CLOSED_STATUSES,
    OPEN_STATES,
    OPEN_STATUSES,
    Action,
    ActionClass,
    ActionRef,
    ActionState,
    ActionStatus,
    Lease,
    Output,
    Pointer,
    Reading,
    Turn,
    Unreadable,
    WorkingState,
)
from actions.redaction import redact_arguments, redact_text
from actions.rules import state_of_reading
from actions.store.base import ActionStore
from actions.times import SECOND, Instant

MAX_ROWS_PER_STORE = 20_000
"""How many rows of one store a list reads; beyond, it says so (contract, Reading safely)."""
MAX_LIMIT = 200

_Kind = TypeVar("_Kind", bound=StrEnum)
SortKey = tuple[int, int, str, str, int, str]
_UNREADABLE_RANK = 9  # after everything that can be decided here


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionFilter:
    """Which actions; an empty collection means no condition, except that no `states` means the open ones."""

    states: frozenset[ActionState] = frozenset()
    classes: frozenset[ActionClass] = frozenset()
    tools: frozenset[str] = frozenset()
    stores: frozenset[str] = frozenset()
    agents: frozenset[str] = frozenset()
    min_age_s: int = 0  # begun at least so long ago, by the store's clock
    text: str = ""  # found in the redacted sentence or arguments, case folded

    @property
    def wanted_states(self) -> frozenset[ActionState]:
        return self.states or OPEN_STATES

    @property
    def statuses(self) -> frozenset[ActionStatus]:
        """The stored statuses that can show one of the wanted states."""
        wanted = self.wanted_states
        closed = {status for status in CLOSED_STATUSES if ActionState(status.value) in wanted}
        return frozenset(closed | (OPEN_STATUSES if wanted & OPEN_STATES else frozenset()))


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionItem:
    """One action as a screen shows it: redacted, with its state, its digest and what it claims to do."""

    store: str
    agent: str
    seq: int | None  # None only where an unreadable record's id has no number
    state: ActionState
    action: Action | None  # None: unreadable. Its args and result are unredacted: never render them, render `arguments`
    unreadable: Unreadable | None
    lease: Lease | None
    read_at: Instant
    arguments: Arguments  # redacted and whole, unless `is_args_missing`
    is_args_missing: bool  # the output that should hold the whole arguments is not there or unreadable
    facts: Facts | None
    digest: str  # of everything shown; empty where unreadable
    claim: str  # the digest without the status

    @property
    def ref(self) -> ActionRef:
        return ActionRef(self.store, self.agent, self.seq or 0)

    @property
    def age_s(self) -> int:
        """Seconds since it began, by the store's clock; 0 where its clock runs ahead of the store's."""
        return max(0, (self.read_at - self.action.started_at) // SECOND) if self.action else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStatus:
    """How the read of one store went."""

    name: str
    problem: str = ""  # one sentence; empty when it answered
    is_truncated: bool = False  # more than MAX_ROWS_PER_STORE rows matched; the rest is not in the list


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionPage:
    """A page of the list, and how many rows matched in all (of those read)."""

    items: tuple[ActionItem, ...]
    next: str | None
    total: int
    stores: tuple[StoreStatus, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentView:
    """One agent as its page shows it. Turns and actions newest first."""

    agent: str
    lease: Lease | None
    working_state: WorkingState | Unreadable | None
    turns: tuple[Turn | Unreadable, ...]
    actions: tuple[ActionItem, ...]
    pointers: tuple[Pointer | Unreadable, ...]


def list_actions(
    stores: Sequence[ActionStore],
    wanted: ActionFilter,
    *,
    limit: int,
    cursor: str | None = None,
    may_see: Callable[[str, str], bool] = lambda store, tool: True,
) -> ActionPage:
    """Actions of all stores in the order of the queue: risk, began, store, agent, number. At most two round trips a store.

    Keyset paging: `cursor` is the `next` of the page before; rows that come or go never shift the others. `may_see(store, tool)` decides
    for each row, and for the total. A store that does not answer is named in `stores`; the others go on.

    Raises:
        InvalidQuery: the cursor is not one of ours.
    """
    after = _read_cursor(cursor)
    statuses: list[StoreStatus] = []
    rows: list[tuple[SortKey, ActionStore, Reading]] = []
    agent = next(iter(wanted.agents)) if len(wanted.agents) == 1 else None
    for store in stores:
        if wanted.stores and store.name not in wanted.stores:
            continue
        try:
            read = store.read_actions(wanted.statuses, limit=MAX_ROWS_PER_STORE, agent=agent)
        except StoreError as exc:
            statuses.append(StoreStatus(name=store.name, problem=exc.problem))
            continue
        statuses.append(StoreStatus(name=store.name, is_truncated=read.is_truncated))
        rows.extend((_sort_key(store.name, r), store, r) for r in read.readings if _matches(store, r, wanted, may_see))
    rows.sort(key=lambda row: row[0])
    start = next((i for i, row in enumerate(rows) if row[0] > after), len(rows)) if after else 0
    shown = rows[start : start + limit]
    items, failed = _make_items(shown)
    more = start + limit < len(rows)
    return ActionPage(
        items=items,
        next=_write_cursor(shown[-1][0]) if more and shown else None,
        total=len(rows),
        stores=tuple(failed.get(status.name, status) for status in statuses),
    )


def get_action(store: ActionStore, ref: ActionRef) -> ActionItem:
    """One action, arguments whole. Raises ActionNotFound and StoreError as `ActionStore.get_action` does."""
    reading = store.get_action(ref.agent, ref.seq)
    return make_item(store, reading, _outputs_of(store, [reading]))


def read_whole_args(store: ActionStore, action: Action) -> str:
    """The whole arguments, unredacted: never for a screen. The shortened text where their output is missing or unreadable.

    Raises StoreError as `ActionStore.read_outputs` does.
    """
    if not action.args_ref:
        return action.args
    output = store.read_outputs([(action.agent, action.args_ref)]).get((action.agent, action.args_ref))
    return output.content if isinstance(output, Output) else action.args


def read_result(store: ActionStore, action: Action) -> str:
    """The whole result, redacted; the shortened text where its output is missing or unreadable."""
    whole = action.result
    if action.result_ref:
        output = store.read_outputs([(action.agent, action.result_ref)]).get((action.agent, action.result_ref))
        whole = output.content if isinstance(output, Output) else action.result
    return redact_arguments(parse_arguments(whole)).text


def read_agent(
    store: ActionStore, agent: str, *, turns: int = 50, actions: int = 50, before_turn: int | None = None
) -> AgentView:
    """One agent: lease, working state, newest turns and actions, pointers. Not one snapshot: a live agent may write between the reads."""
    readings = store.list_agent_actions(agent, limit=actions)
    outputs = _outputs_of(store, readings)
    return AgentView(
        agent=agent,
        lease=store.find_lease(agent),
        working_state=store.find_working_state(agent),
        turns=store.list_turns(agent, limit=turns, before=before_turn),
        actions=tuple(make_item(store, reading, outputs) for reading in readings),
        pointers=store.list_pointers(agent),
    )


def make_item(store: ActionStore, reading: Reading, outputs: dict[tuple[str, str], Output]) -> ActionItem:
    """Shape one reading; `outputs` holds the whole arguments of those that overflowed."""
    state = state_of_reading(reading, leases_known=store.leases_known)
    action = reading.action
    if isinstance(action, Unreadable):
        return ActionItem(
            store=store.name,
            agent=action.agent,
            seq=action.seq,
            state=state,
            action=None,
            unreadable=action,
            lease=reading.lease,
            read_at=reading.read_at,
            arguments=Arguments(text=""),
            is_args_missing=False,
            facts=None,
            digest="",
            claim="",
        )
    output = outputs.get((action.agent, action.args_ref)) if action.args_ref else None
    whole = output.content if output else action.args
    arguments = redact_arguments(parse_arguments(whole))
    return ActionItem(
        store=store.name,
        agent=action.agent,
        seq=action.seq,
        state=state,
        action=action,
        unreadable=None,
        lease=reading.lease,
        read_at=reading.read_at,
        arguments=arguments,
        is_args_missing=bool(action.args_ref) and output is None,
        facts=facts_of(redact_text(action.tool), action.action_class, arguments),
        digest=action_digest(action, whole),
        claim=claim_digest(action, whole),
    )


def parse_states(names: Iterable[str]) -> frozenset[ActionState]:
    """State names from a URL. Raises InvalidQuery naming the one that does not exist and those that do."""
    return frozenset(_member(ActionState, "state", name) for name in names)


def parse_classes(names: Iterable[str]) -> frozenset[ActionClass]:
    """Class names from a URL. Raises InvalidQuery naming the one that does not exist and those that do."""
    return frozenset(_member(ActionClass, "class", name) for name in names)


def _member(kind: type[_Kind], noun: str, name: str) -> _Kind:
    try:
        return kind(name.strip())
    except ValueError as exc:
        raise InvalidQuery(f"no {noun} is called {name[:40]!r}; there are {', '.join(kind)}") from exc


def _matches(store: ActionStore, reading: Reading, wanted: ActionFilter, may_see: Callable[[str, str], bool]) -> bool:
    action = reading.action
    if state_of_reading(reading, leases_known=store.leases_known) not in wanted.wanted_states:
        return False
    if wanted.agents and action.agent not in wanted.agents:
        return False
    if isinstance(action, Unreadable):
        # Tool and class are unknown: shown to those who may see every tool, while neither is asked for or where the state is asked for by name.
        narrowed = wanted.tools or wanted.classes or wanted.text
        return (not narrowed or ActionState.UNREADABLE in wanted.states) and may_see(store.name, "")
    if not may_see(store.name, action.tool):
        return False
    if wanted.classes and action.action_class not in wanted.classes:
        return False
    if wanted.tools and action.tool not in wanted.tools:
        return False
    if wanted.min_age_s and reading.read_at - action.started_at < wanted.min_age_s * SECOND:
        return False
    return not wanted.text or _mentions(action, wanted.text)


def _mentions(action: Action, text: str) -> bool:
    """Search what a person may see: a secret must not be found by guessing at it. Overflowed arguments are searched as stored."""
    arguments = redact_arguments(parse_arguments(action.args))
    needle = text.casefold()
    return (
        needle in arguments.text.casefold() or needle in facts_of(action.tool, action.action_class, arguments).sentence.casefold()
    )


def _sort_key(store: str, reading: Reading) -> SortKey:
    action = reading.action
    if isinstance(action, Unreadable):
        return (_UNREADABLE_RANK, 0, store, action.agent, action.seq or 0, action.record_id)
    return (risk_of(action.tool, action.args), action.started_at, store, action.agent, action.seq, "")


def _make_items(rows: Sequence[tuple[SortKey, ActionStore, Reading]]) -> tuple[tuple[ActionItem, ...], dict[str, StoreStatus]]:
    """Items with whole arguments; a store that stops answering between its two reads is reported, its rows stay as they were read."""
    outputs: dict[str, dict[tuple[str, str], Output]] = {}
    failed: dict[str, StoreStatus] = {}
    for store in {store.name: store for _, store, _ in rows}.values():
        try:
            outputs[store.name] = _outputs_of(store, [reading for _, other, reading in rows if other is store])
        except StoreError as exc:
            failed[store.name] = StoreStatus(name=store.name, problem=exc.problem)
    return tuple(make_item(store, reading, outputs.get(store.name, {})) for _, store, reading in rows), failed


def _outputs_of(store: ActionStore, readings: Collection[Reading]) -> dict[tuple[str, str], Output]:
    wanted = {(r.action.agent, r.action.args_ref) for r in readings if isinstance(r.action, Action) and r.action.args_ref}
    found = store.read_outputs(wanted) if wanted else {}
    return {key: output for key, output in found.items() if isinstance(output, Output)}


def _write_cursor(key: SortKey) -> str:
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode().rstrip("=")


def _read_cursor(cursor: str | None) -> SortKey | None:
    if not cursor:
        return None
    try:
        risk, began, store, agent, seq, record_id = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        if not all(type(n) is int for n in (risk, began, seq)) or not all(type(t) is str for t in (store, agent, record_id)):
            raise ValueError("wrong types")
    except (ValueError, TypeError, RecursionError) as exc:
        raise InvalidQuery("the cursor is not one that this list gave out; start from the first page") from exc
    return risk, began, store, agent, seq, record_id
