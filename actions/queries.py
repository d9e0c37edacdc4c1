"""Reads shaped for a screen: the queue over all stores, one action, one agent. Bounded, ordered, redacted; nothing here writes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple, TypeVar

from actions.arguments import Arguments, parse_arguments
from actions.digests import action_digest, claim_digest
from actions.errors import InvalidQuery, StoreError
from actions.facts import Facts, facts_of, risk_of
from actions.kept import Kept
from actions.long_arguments import redacted_arguments
from actions.places import SortKey, read_cursor, turn_to, write_cursor
from actions.records import (
    CLOSED_STATUSES,
    OPEN_STATES,
    OPEN_STATUSES,
    Action,
    ActionClass,
    ActionRef,
    ActionsRead,
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
from actions.side_by_side import ask_each
from actions.store.base import ActionStore
from actions.times import SECOND, Instant
from actions.tool_rules import NO_RULE, NO_RULES, ToolRule, ToolRules

MAX_ROWS_PER_STORE = 20_000
"""How many rows of one store a list reads; beyond, it says so (contract, Reading safely)."""
MAX_LIMIT = 200
COUNTED_UP_TO = 1_000
"""No count of another filter goes further than one more than this; a text is looked for beside the list in at most so many rows."""

MAX_SEARCHED_CHARS = 1_000
"""Of arguments up to so long, the words stay that a text is looked for in: whoever types looks again and again, and redacting is the work."""

MAX_KEPT_CHARS, KEPT_ITEMS = 4_000, 1_000
"""Of actions whose texts are together so long, what is made of them stays for so many: the pages of the queue that people look at."""

_Kind = TypeVar("_Kind", bound=StrEnum)
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
    only: frozenset[ActionRef] | None = None  # None: no condition
    without: frozenset[ActionRef] = frozenset()

    @property
    def wanted_states(self) -> frozenset[ActionState]:
        return self.states or OPEN_STATES

    @property
    def statuses(self) -> frozenset[ActionStatus]:
        """The stored statuses that can show one of the wanted states."""
        wanted = self.wanted_states
        closed = {status for status in CLOSED_STATUSES if ActionState(status.value) in wanted}
        return frozenset(closed | (OPEN_STATUSES if wanted & OPEN_STATES else frozenset()))


IN_DOUBT = ActionFilter(
    states=frozenset({ActionState.INTERRUPTED, ActionState.UNKNOWN, ActionState.UNCLEAR, ActionState.UNREADABLE}),
    classes=frozenset({ActionClass.EXTERNAL}),
)
"""The calls that wait for somebody: external, and nobody can say how they ended. Unreadable ones too, because nobody knows."""


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
    leases_known: bool  # False: its store cannot say who holds an agent, so nobody can tell whether its process is alive
    read_at: Instant
    arguments: Arguments  # redacted and whole, unless `is_args_missing`
    is_args_missing: bool  # the output that should hold the whole arguments is not there or unreadable
    facts: Facts | None
    digest: str  # of everything shown; empty where unreadable, and where the whole arguments could not be asked for
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
    problem: str = ""  # one sentence in the store's own words; empty when it answered
    is_listed: bool = True  # False: its rows are missing. True with a problem: they are there, their overflowed arguments are not
    is_truncated: bool = False  # more than MAX_ROWS_PER_STORE rows matched; the rest is not in the list
    in_doubt: int | None = None  # how many IN_DOUBT it holds, whoever may see them; None: this read cannot tell


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionPage:
    """A page of the list, and how many rows matched in all (of those read). `next` and `previous` are cursors; None at the ends."""

    items: tuple[ActionItem, ...]
    next: str | None
    previous: str | None
    total: int
    stores: tuple[StoreStatus, ...]
    counts: tuple[int | None, ...] = ()  # of `counted`, at most COUNTED_UP_TO + 1; None: this read cannot tell
    partly_searched: int = 0  # rows left out whose arguments are longer than the stored part in which the text was looked for


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentView:
    """One agent as it is now. Turns and actions newest first."""

    agent: str
    lease: Lease | None
    leases_known: bool  # False: its store cannot say who holds it
    working_state: WorkingState | Unreadable | None
    turns: tuple[Turn | Unreadable, ...]
    open_actions: tuple[ActionItem, ...]
    is_truncated: bool  # more of them are open
    pointers: tuple[Pointer | Unreadable, ...]


def list_actions(
    stores: Sequence[ActionStore],
    wanted: ActionFilter,
    *,
    limit: int,
    cursor: str | None = None,
    may_see: Callable[[str, str], bool] = lambda store, tool: True,
    rules: ToolRules = NO_RULES,
    counted: Sequence[ActionFilter] = (),
) -> ActionPage:
    """Actions of all stores in the order of the queue: risk, began, store, agent, number. At most two round trips a store.

    The stores are asked side by side. Keyset paging: `cursor` is the `next` or `previous` of another page; rows that come or go never
    shift the others. `may_see(store, tool)` decides for each row, and for the total; it is asked in the caller's thread.

    `rules` say how each tool's calls are read and what they weigh. A cursor remembers their `version`: whoever turns pages hands in
    weights of that version (`rules_version`), else a row whose weight changes meanwhile can be passed over.

    `counted`: other filters, counted in the rows that this list reads anyway.

    A store that does not answer is named in `stores`; the others go on. What it would have shown comes first on the page on which it
    answers again, and then nothing repeats and nothing is left out; where it stays away, the last page names it too.

    Raises:
        InvalidQuery: the cursor is not one of ours.
    """
    place = read_cursor(cursor)
    asked = [store for store in stores if not wanted.stores or store.name in wanted.stores]
    agent = next(iter(wanted.agents)) if len(wanted.agents) == 1 else None
    reads = ask_each(asked, lambda store: _read_actions(store, wanted, agent))
    statuses: list[StoreStatus] = []
    rows: list[_Row] = []
    counts = [_Count(one, _can_count(one, wanted, agent)) for one in counted]
    partly_searched = 0
    for store, read in zip(asked, reads, strict=True):
        if isinstance(read, StoreError):
            statuses.append(StoreStatus(name=store.name, problem=read.problem, is_listed=False))
            continue
        found = _select(store, read, wanted, may_see, rules)
        rows.extend(found.rows)
        partly_searched += found.partly_searched
        _count(counts, store, read, may_see, rules)
        counts_all = agent is None and wanted.statuses >= OPEN_STATUSES
        statuses.append(
            StoreStatus(name=store.name, is_truncated=read.is_truncated, in_doubt=found.in_doubt if counts_all else None)
        )
    rows.sort(key=lambda row: row.key)
    shown, before, after = turn_to(place, rows, limit, away={status.name for status in statuses if not status.is_listed})
    items, problems = _make_items(shown, rules)
    return ActionPage(
        items=items,
        next=write_cursor(after, rules.version) if after else None,
        previous=write_cursor(before, rules.version) if before else None,
        total=len(rows),
        stores=tuple(replace(status, problem=problems.get(status.name, status.problem)) for status in statuses),
        counts=tuple(count.said for count in counts),
        partly_searched=partly_searched,
    )


def rules_version(cursor: str | None) -> int | None:
    """The version of the rules by which the page before this one was ordered; None on a first page. Raises InvalidQuery as `list_actions`."""
    return read_cursor(cursor).version


def get_action(store: ActionStore, ref: ActionRef, rules: ToolRules = NO_RULES) -> ActionItem:
    """One action, arguments whole. Raises ActionNotFound and StoreError as `ActionStore.get_action` does."""
    reading = store.get_action(ref.agent, ref.seq)
    return make_item(store, reading, _outputs_of(store, [reading]), rules)


def read_whole_args(store: ActionStore, action: Action) -> str:
    """The whole arguments, unredacted: never for a screen. The shortened text where their output is missing or unreadable.

    Raises StoreError as `ActionStore.read_outputs` does.
    """
    if not action.args_ref:
        return action.args
    output = store.read_outputs([(action.agent, action.args_ref)]).get((action.agent, action.args_ref))
    return output.content if isinstance(output, Output) else action.args


def read_whole_result(store: ActionStore, action: Action) -> str:
    """The whole result, unredacted: as `read_whole_args`."""
    if not action.result_ref:
        return action.result
    output = store.read_outputs([(action.agent, action.result_ref)]).get((action.agent, action.result_ref))
    return output.content if isinstance(output, Output) else action.result


def read_result(store: ActionStore, action: Action, rule: ToolRule = NO_RULE) -> str:
    """The whole result, redacted; the shortened text where its output is missing or unreadable."""
    return redact_arguments(parse_arguments(read_whole_result(store, action)), rule.redacted).text


def read_actions_of_agent(
    store: ActionStore, agent: str, *, limit: int, before: int | None = None, rules: ToolRules = NO_RULES
) -> tuple[ActionItem, ...]:
    """One agent's newest actions of any status, newest number first, arguments whole. Raises StoreError as the store's reads do."""
    readings = store.list_agent_actions(agent, limit=limit, before=before)
    outputs = _outputs_of(store, readings)
    return tuple(make_item(store, reading, outputs, rules) for reading in readings)


def read_agent(
    store: ActionStore, agent: str, *, turns: int = 20, open_actions: int = 200, rules: ToolRules = NO_RULES
) -> AgentView:
    """One agent now: lease, working state, newest turns, open actions, pointers. Not one snapshot: a live agent may write between the reads."""
    read = store.read_actions(OPEN_STATUSES, limit=open_actions, agent=agent)
    outputs = _outputs_of(store, read.readings)
    items = [make_item(store, reading, outputs, rules) for reading in read.readings]
    return AgentView(
        agent=agent,
        lease=store.find_lease(agent),
        leases_known=store.leases_known,
        working_state=store.find_working_state(agent),
        turns=store.list_turns(agent, limit=turns),
        open_actions=tuple(sorted(items, key=lambda item: item.seq or 0, reverse=True)),
        is_truncated=read.is_truncated,
        pointers=store.list_pointers(agent),
    )


def make_item(
    store: ActionStore, reading: Reading, outputs: dict[tuple[str, str], Output], rules: ToolRules = NO_RULES
) -> ActionItem:
    """Shape one reading; `outputs` holds the whole arguments of those that overflowed. Digests are over what is stored, not what is shown."""
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
            leases_known=store.leases_known,
            read_at=reading.read_at,
            arguments=Arguments(text=""),
            is_args_missing=False,
            facts=None,
            digest="",
            claim="",
        )
    output = outputs.get((action.agent, action.args_ref)) if action.args_ref else None
    made = _made_of(action, output.content if output else action.args, rules.of(action.tool))
    return ActionItem(
        store=store.name,
        agent=action.agent,
        seq=action.seq,
        state=state,
        action=action,
        unreadable=None,
        lease=reading.lease,
        leases_known=store.leases_known,
        read_at=reading.read_at,
        arguments=made.arguments,
        is_args_missing=bool(action.args_ref) and output is None,
        facts=made.facts,
        digest=made.digest,
        claim=made.claim,
    )


class _Made(NamedTuple):
    """What is made of an action's texts alone, whoever looks and whenever."""

    arguments: Arguments
    facts: Facts
    digest: str
    claim: str


def _made_of(action: Action, whole: str, rule: ToolRule) -> _Made:
    if len(action.tool) + len(action.args) + len(whole) > MAX_KEPT_CHARS:
        return _make(action, whole, rule)
    texts = (action.tool, action.args, whole, action.key)
    others = (action.action_class, action.status, action.epoch, rule)
    return _kept.get(texts, others, lambda: _make(action, whole, rule))


def _make(action: Action, whole: str, rule: ToolRule) -> _Made:
    arguments = redacted_arguments(whole, rule.redacted)
    risk = risk_of(action.tool, action.args, rule)
    return _Made(
        arguments=arguments,
        facts=facts_of(redact_text(action.tool), action.action_class, arguments, rule, risk=risk),
        digest=action_digest(action, whole),
        claim=claim_digest(action, whole),
    )


_kept = Kept[_Made](KEPT_ITEMS)


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


@dataclass(frozen=True, slots=True)
class _Row:
    key: SortKey
    store: ActionStore
    reading: Reading


def _read_actions(store: ActionStore, wanted: ActionFilter, agent: str | None) -> ActionsRead | StoreError:
    try:
        return store.read_actions(wanted.statuses, limit=MAX_ROWS_PER_STORE, agent=agent)
    except StoreError as exc:
        return exc


@dataclass(frozen=True, slots=True, kw_only=True)
class _Selected:
    """What one store's rows came to: those that match, how many of all are in doubt, how many were searched in part."""

    rows: list[_Row]
    in_doubt: int
    partly_searched: int


def _select(
    store: ActionStore, read: ActionsRead, wanted: ActionFilter, may_see: Callable[[str, str], bool], rules: ToolRules
) -> _Selected:
    found, in_doubt, partly_searched = [], 0, 0
    for reading in read.readings:
        state = state_of_reading(reading, leases_known=store.leases_known)
        in_doubt += _is_in_doubt(reading, state)
        if not _matches(store, reading, state, wanted, may_see):
            continue
        action = reading.action
        if not wanted.text or isinstance(action, Unreadable) or wanted.text.casefold() in _words_of(action, rules):
            found.append(_Row(_sort_key(store.name, reading, rules), store, reading))
        else:
            partly_searched += bool(action.args_ref)
    return _Selected(rows=found, in_doubt=in_doubt, partly_searched=partly_searched)


@dataclass(slots=True)
class _Count:
    """One other filter, and how many rows of those read match it so far."""

    wanted: ActionFilter
    can_tell: bool
    number: int = 0

    @property
    def said(self) -> int | None:
        return self.number if self.can_tell else None


def _can_count(other: ActionFilter, wanted: ActionFilter, agent: str | None) -> bool:
    """Whether everything that the other filter could match is read for this one."""
    in_stores = not wanted.stores or (bool(other.stores) and other.stores <= wanted.stores)
    return other.statuses <= wanted.statuses and in_stores and (agent is None or other.agents == {agent})


def _count(
    counts: Sequence[_Count], store: ActionStore, read: ActionsRead, may_see: Callable[[str, str], bool], rules: ToolRules
) -> None:
    """Add one store's rows. Texts are not looked for in very many of them: then that count is not told."""
    asked = [count for count in counts if count.can_tell and (not count.wanted.stores or store.name in count.wanted.stores)]
    if len(read.readings) > COUNTED_UP_TO:
        for count in asked:
            count.can_tell = count.can_tell and not count.wanted.text
    asked = [count for count in asked if count.can_tell]
    for reading in read.readings if asked else ():
        state, action = state_of_reading(reading, leases_known=store.leases_known), reading.action
        words: str | None = None
        for count in asked:
            if count.number > COUNTED_UP_TO or not _matches(store, reading, state, count.wanted, may_see):
                continue
            if count.wanted.text and isinstance(action, Action):
                words = _words_of(action, rules) if words is None else words
                count.number += count.wanted.text.casefold() in words
            else:
                count.number += 1


def _is_in_doubt(reading: Reading, state: ActionState) -> bool:
    action = reading.action
    return state in IN_DOUBT.states and (isinstance(action, Unreadable) or action.action_class in IN_DOUBT.classes)


def _matches(
    store: ActionStore, reading: Reading, state: ActionState, wanted: ActionFilter, may_see: Callable[[str, str], bool]
) -> bool:
    """Everything but the text, which costs most."""
    action = reading.action
    if state not in wanted.wanted_states:
        return False
    if wanted.agents and action.agent not in wanted.agents:
        return False
    if (wanted.only is not None or wanted.without) and not _is_among(
        ActionRef(store.name, action.agent, action.seq or 0), wanted
    ):
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
    return not wanted.min_age_s or reading.read_at - action.started_at >= wanted.min_age_s * SECOND


def _is_among(ref: ActionRef, wanted: ActionFilter) -> bool:
    return (wanted.only is None or ref in wanted.only) and ref not in wanted.without


def _words_of(action: Action, rules: ToolRules) -> str:
    """What is searched: what a person may see, case folded; a secret must not be found by guessing at it.

    Overflowed arguments are searched as stored, which is their beginning.
    """
    rule = rules.of(action.tool)
    if len(action.args) > MAX_SEARCHED_CHARS:
        return _make_words(action.tool, action.action_class, action.args, rule)
    others = (action.action_class, rule)
    return _words.get((action.tool, action.args), others, lambda: _make_words(action.tool, others[0], action.args, rule))


def _make_words(tool: str, action_class: ActionClass, args: str, rule: ToolRule) -> str:
    arguments = redact_arguments(parse_arguments(args), rule.redacted)
    facts = facts_of(redact_text(tool), action_class, arguments, rule)
    return f"{arguments.text}\n{facts.sentence}".casefold()


_words = Kept[str](MAX_ROWS_PER_STORE)


def _sort_key(store: str, reading: Reading, rules: ToolRules) -> SortKey:
    action = reading.action
    if isinstance(action, Unreadable):
        return (_UNREADABLE_RANK, 0, store, action.agent, action.seq or 0, action.record_id)
    return (risk_of(action.tool, action.args, rules.of(action.tool)), action.started_at, store, action.agent, action.seq, "")


def _make_items(rows: Sequence[_Row], rules: ToolRules) -> tuple[tuple[ActionItem, ...], dict[str, str]]:
    """Items with whole arguments; a store that stops answering between its two reads is reported, its rows stay as they were read."""
    stores = list({row.store.name: row.store for row in rows}.values())
    answers = ask_each(stores, lambda store: _outputs_or_problem(store, [row.reading for row in rows if row.store is store]))
    outputs = dict(zip((store.name for store in stores), answers, strict=True))
    items = []
    for row in rows:
        found = outputs[row.store.name]
        if isinstance(found, StoreError):
            item = make_item(row.store, row.reading, {}, rules)
            # A digest of half the arguments would be the digest of nothing that ever stood there.
            items.append(replace(item, digest="", claim="") if item.is_args_missing else item)
        else:
            items.append(make_item(row.store, row.reading, found, rules))
    return tuple(items), {name: found.problem for name, found in outputs.items() if isinstance(found, StoreError)}


def _outputs_or_problem(store: ActionStore, readings: Collection[Reading]) -> dict[tuple[str, str], Output] | StoreError:
    try:
        return _outputs_of(store, readings)
    except StoreError as exc:
        return exc


def _outputs_of(store: ActionStore, readings: Collection[Reading]) -> dict[tuple[str, str], Output]:
    wanted = {(r.action.agent, r.action.args_ref) for r in readings if isinstance(r.action, Action) and r.action.args_ref}
    found = store.read_outputs(wanted) if wanted else {}
    return {key: output for key, output in found.items() if isinstance(output, Output)}
