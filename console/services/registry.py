"""The registry of tools: every tool seen in a store that the person may see, what is to be done about it, and how its calls were settled.

Seen means: among the open calls that are read, among the first few thousand closed ones, in a decision, or in a policy. Nothing is kept.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from django.contrib.auth.models import User
from django.db.models import Count, Q

from actions.errors import StoreError
from actions.facts import is_irreversible, kind_of_name, moves_money
from actions.queries import MAX_ROWS_PER_STORE
from actions.records import CLOSED_STATUSES, OPEN_STATUSES, Action, ActionClass, ActionRef, ActionsRead, Reading
from actions.side_by_side import ask_each
from actions.store.base import ActionStore
from actions.times import SECOND
from console.access import may_see_tool, visible, visible_stores
from console.models import Decision, DecisionState, Definition, Policy, WrittenBy
from console.run_lines import gaps_by_tool, known_types
from console.services.decisions import of_actions
from console.services.definitions import list_definitions
from console.services.deliver import as_column
from console.services.policies import all_policies
from console.tool_rules import rule_from

MAX_CLOSED_PER_STORE = 2_000
"""How many closed calls of a store are read for names, classes and times; in the order of their ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolLine:
    """One tool as the registry shows it. The name is the agents': redact and mark it like any text of theirs."""

    tool: str
    classes: tuple[ActionClass, ...]
    stores: tuple[str, ...]  # where it was seen
    open_count: int
    policy: Policy  # version 0: the defaults
    definition: Definition | None  # of the resolver that the policy names, where it exists
    by_people: int
    by_resolver: int
    refused: int
    median_s: int | None  # from the beginning of the call until it was settled here
    timed: int  # how many calls that median is over
    unguarded_in: tuple[str, ...] = ()  # run types that call it with neither an approval gate nor a compensation

    @property
    def moves_money(self) -> bool:
        return moves_money(kind_of_name(self.tool), rule_from(self.policy))

    @property
    def is_irreversible(self) -> bool:
        return is_irreversible(kind_of_name(self.tool), rule_from(self.policy))

    @property
    def gaps(self) -> tuple[str, ...]:
        runs = [
            f"Run type {name} calls it with neither an approval gate nor a compensation, and it cannot be undone."
            for name in self.unguarded_in
        ]
        return (*design_gaps(self.policy, self.definition, self.classes, self.tool), *runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """The tools by name, and what could not be looked at."""

    lines: tuple[ToolLine, ...]
    problems: Mapping[str, str]  # by store that did not answer: its tools may be missing
    truncated: tuple[str, ...]  # stores with more open calls than are read


@dataclass(slots=True)
class _Seen:
    classes: set[ActionClass] = field(default_factory=set)
    stores: set[str] = field(default_factory=set)
    open_count: int = 0
    took_s: list[float] = field(default_factory=list)
    by_people: int = 0
    by_resolver: int = 0
    refused: int = 0


def read_registry(user: User) -> Registry:
    """Every tool that this person may see, by name. Two reads of each store, side by side; three statements here, and one a store."""
    seen: dict[str, _Seen] = {}
    problems: dict[str, str] = {}
    truncated = []
    may_see = visible(user)
    stores = visible_stores(user)
    for store, read in zip(stores, ask_each(stores, _read), strict=True):
        if isinstance(read, StoreError):
            problems[store.name] = read.problem
            continue
        opened, closed = read
        if opened.is_truncated:
            truncated.append(store.name)
        mine = [a for a in _actions([*opened.readings, *closed.readings]) if may_see(store.name, a.tool)]
        _note_actions(seen, store, mine)
    _note_decisions(seen, user)
    policies = {tool: policy for tool, policy in all_policies().items() if tool in seen or may_see_tool(user, tool)}
    definitions = {definition.name: definition for definition in list_definitions()}
    names = sorted({*seen, *policies}, key=lambda tool: (tool.casefold(), tool))
    unguarded = gaps_by_tool(known_types())
    lines = tuple(_line(tool, seen.get(tool) or _Seen(), policies.get(tool), definitions, unguarded) for tool in names)
    return Registry(lines=lines, problems=problems, truncated=tuple(truncated))


def find_line(registry: Registry, tool: str) -> ToolLine | None:
    """The tool's line; None where it was not seen. `tool` as an agent wrote it."""
    name = as_column(tool)
    return next((line for line in registry.lines if line.tool == name), None)


def empty_line(tool: str, policy: Policy, definition: Definition | None) -> ToolLine:
    """A tool that nobody has called yet."""
    return _line(
        as_column(tool), _Seen(), policy, {definition.name: definition} if definition else {}, gaps_by_tool(known_types())
    )


def design_gaps(policy: Policy, definition: Definition | None, classes: Collection[ActionClass], tool: str) -> Iterable[str]:
    """What is missing before a call of this tool in doubt can end well, in sentences."""
    kind, rule = kind_of_name(tool), rule_from(policy)
    money, irreversible = moves_money(kind, rule), is_irreversible(kind, rule)
    is_external = not classes or ActionClass.EXTERNAL in classes
    if (money or irreversible) and is_external and not policy.resolver and not policy.compensation:
        says = " and ".join(word for word, holds in (("moves money", money), ("cannot be taken back", irreversible)) if holds)
        yield f"It {says}, and has neither a resolver nor a compensation."
    if policy.resolver and definition is None:
        yield f"Its policy names resolver {policy.resolver}, which does not exist."
    elif definition is not None and not definition.is_enabled:
        yield f"Its resolver {definition.name} is switched off, so nobody is asked."
    if len(classes) > 1:
        yield f"It is recorded as {' and as '.join(sorted(classes))}: agents disagree about what a second run does."


def _read(store: ActionStore) -> tuple[ActionsRead, ActionsRead] | StoreError:
    try:
        opened = store.read_actions(OPEN_STATUSES, limit=MAX_ROWS_PER_STORE)
        return opened, store.read_actions(CLOSED_STATUSES, limit=MAX_CLOSED_PER_STORE)
    except StoreError as exc:
        return exc


def _actions(readings: Iterable[Reading]) -> list[Action]:
    return [reading.action for reading in readings if isinstance(reading.action, Action)]


def _note_actions(seen: dict[str, _Seen], store: ActionStore, actions: Iterable[Action]) -> None:
    ended: dict[ActionRef, Action] = {}
    for action in actions:
        line = seen.setdefault(as_column(action.tool), _Seen())
        line.stores.add(store.name)
        line.classes.add(action.action_class)
        line.open_count += action.is_open
        if action.ended_at is not None:
            ended[ActionRef(store.name, action.agent, action.seq)] = action
    if not ended:
        return
    ours = Decision.objects.filter(state=DecisionState.WRITTEN, written_by=WrittenBy.US)
    for row in of_actions(ours, set(ended)).only("store", "agent", "seq"):
        settled = ended.get(row.ref)
        if settled is not None and settled.ended_at is not None:
            seen[as_column(settled.tool)].took_s.append(max(0, settled.ended_at - settled.started_at) / SECOND)


def _note_decisions(seen: dict[str, _Seen], user: User) -> None:
    may_see = visible(user)
    written = Q(state=DecisionState.WRITTEN)
    rows = Decision.objects.values("store", "tool").annotate(
        by_people=Count("pk", filter=written & Q(by__isnull=False)),
        by_resolver=Count("pk", filter=written & Q(by__isnull=True)),
        refused=Count("pk", filter=Q(state=DecisionState.REFUSED)),
    )
    for row in rows:
        if not row["tool"] or not may_see(row["store"], row["tool"]):
            continue
        line = seen.setdefault(row["tool"], _Seen())
        line.stores.add(row["store"])
        line.by_people += row["by_people"]
        line.by_resolver += row["by_resolver"]
        line.refused += row["refused"]


def _line(
    tool: str,
    seen: _Seen,
    policy: Policy | None,
    definitions: Mapping[str, Definition],
    unguarded: Mapping[str, tuple[str, ...]],
) -> ToolLine:
    policy = policy or Policy(tool=tool, version=0)
    return ToolLine(
        tool=tool,
        classes=tuple(sorted(seen.classes)),
        stores=tuple(sorted(seen.stores)),
        open_count=seen.open_count,
        policy=policy,
        definition=definitions.get(policy.resolver),
        by_people=seen.by_people,
        by_resolver=seen.by_resolver,
        refused=seen.refused,
        median_s=round(statistics.median(seen.took_s)) if seen.took_s else None,
        timed=len(seen.took_s),
        unguarded_in=unguarded.get(tool, ()),
    )
