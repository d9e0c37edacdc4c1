"""Every agent that can be seen from here: those with a lease and those with open calls, over all stores. Bounded, ordered, keyset-paged."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from actions.digests import sha256_text
from actions.errors import InvalidQuery, StoreError
from actions.queries import IN_DOUBT, MAX_ROWS_PER_STORE
from actions.records import OPEN_STATUSES, Action, ActionsRead, Lease, LeasesRead, Turn, Unreadable
from actions.rules import state_of_reading
from actions.side_by_side import ask_each
from console.services.sightings import SeenResume, resumes_of
from console.stores import ActionStore

PAGE_SIZE = 50
_Key = tuple[int, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLine:
    """One agent of the list. Counts are of the calls that this person may see."""

    store: str
    agent: str
    lease: Lease | None
    leases_known: bool
    open_count: int
    in_doubt: int  # external ones that nobody can say the end of
    last_turn: Turn | Unreadable | None = None
    sees_turns: bool = False  # False: what the agent says may concern other tools; its last turn was not read
    resumed: SeenResume | None = None  # the last time that somebody was seen to take it

    @property
    def key(self) -> str:
        """A stable id for the element, whatever the agent is called."""
        return sha256_text(f"{self.store}/{self.agent}")[:16]

    @property
    def version(self) -> str:
        """Moves when something about the line that a person would want to see has changed: no mere renewal of a lease."""
        lease = (self.lease.holder, self.lease.is_live, self.lease.is_released) if self.lease else None
        turn = self.last_turn.seq if self.last_turn else None
        return sha256_text(f"{lease}/{self.leases_known}/{self.open_count}/{self.in_doubt}/{turn}/{self.resumed}")[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOfAgents:
    """How the reading of one store went."""

    name: str
    problem: str = ""  # the store's own words; empty when it answered
    is_truncated: bool = False  # there are more leases or open calls than are read
    leases_known: bool = True  # False: only agents with open calls can be found
    sees_all: bool = True  # False: this person finds only agents with open calls of their tools


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPage:
    """A page of the list, and how many there are in all (of those read)."""

    lines: tuple[AgentLine, ...]
    next: str | None
    total: int
    stores: tuple[StoreOfAgents, ...]


def list_agents(
    stores: Sequence[ActionStore],
    *,
    may_see: Callable[[str, str], bool],
    text: str = "",
    limit: int = PAGE_SIZE,
    cursor: str | None = None,
) -> AgentPage:
    """Agents of these stores, those with calls in doubt first, then by name. Three reads a store and one query, whatever the number.

    `text` is looked for in the agent's id and its holder's name, case folded. `may_see(store, tool)` decides for each call; an agent without
    a visible call is shown to those who may see every tool of its store. A store that does not answer is named; the others go on.

    Raises:
        InvalidQuery: the cursor is not one of ours.
    """
    after = _read_cursor(cursor)
    reads = ask_each(stores, _read)
    found: list[AgentLine] = []
    told = []
    for store, read in zip(stores, reads, strict=True):
        sees_all = may_see(store.name, "")
        if isinstance(read, StoreError):
            told.append(StoreOfAgents(name=store.name, problem=read.problem))
            continue
        leases, actions = read
        found += _lines(store, leases, actions, may_see, sees_all)
        is_truncated = leases.is_truncated or actions.is_truncated
        told.append(StoreOfAgents(name=store.name, is_truncated=is_truncated, leases_known=store.leases_known, sees_all=sees_all))
    needle = text.casefold()
    matching = sorted((line for line in found if _mentions(line, needle)), key=_key)
    left = [line for line in matching if after is None or _key(line) > after]
    shown = left[:limit]
    whole, problems = _whole(stores, shown, may_see)
    return AgentPage(
        lines=whole,
        next=_write_cursor(_key(shown[-1])) if len(left) > limit else None,
        total=len(matching),
        stores=tuple(told if not problems else [problems.get(store.name, store) for store in told]),
    )


def _read(store: ActionStore) -> tuple[LeasesRead, ActionsRead] | StoreError:
    try:
        return store.read_leases(limit=MAX_ROWS_PER_STORE), store.read_actions(OPEN_STATUSES, limit=MAX_ROWS_PER_STORE)
    except StoreError as exc:
        return exc


@dataclass(slots=True)
class _Counts:
    opened: Counter[str] = field(default_factory=Counter)
    in_doubt: Counter[str] = field(default_factory=Counter)


def _lines(
    store: ActionStore, leases: LeasesRead, actions: ActionsRead, may_see: Callable[[str, str], bool], sees_all: bool
) -> list[AgentLine]:
    counts = _Counts()
    held: dict[str, Lease | None] = {lease.agent: lease for lease in leases.leases} if sees_all else {}
    for reading in actions.readings:
        action = reading.action
        if not may_see(store.name, action.tool if isinstance(action, Action) else ""):
            continue
        held.setdefault(action.agent, reading.lease)
        counts.opened[action.agent] += 1
        state = state_of_reading(reading, leases_known=store.leases_known)
        is_external = not isinstance(action, Action) or action.action_class in IN_DOUBT.classes
        counts.in_doubt[action.agent] += state in IN_DOUBT.states and is_external
    return [
        AgentLine(
            store=store.name,
            agent=agent,
            lease=lease,
            leases_known=store.leases_known,
            open_count=counts.opened[agent],
            in_doubt=counts.in_doubt[agent],
        )
        for agent, lease in held.items()
    ]


def _whole(
    stores: Sequence[ActionStore], lines: Sequence[AgentLine], may_see: Callable[[str, str], bool]
) -> tuple[tuple[AgentLine, ...], Mapping[str, StoreOfAgents]]:
    """The lines of one page with what costs a read of its own. A store that stops answering between its reads keeps its lines."""
    by_store = {store: [line.agent for line in lines if line.store == store.name] for store in stores}
    asked = [store for store, agents in by_store.items() if agents and may_see(store.name, "")]
    answers = ask_each(asked, lambda store: _last_turns(store, by_store[store]))
    turns = {store.name: answer for store, answer in zip(asked, answers, strict=True)}
    resumes = resumes_of([(line.store, line.agent) for line in lines])
    whole = []
    for line in lines:
        said = turns.get(line.store)
        is_read = said is not None and not isinstance(said, StoreError)
        whole.append(
            AgentLine(
                store=line.store,
                agent=line.agent,
                lease=line.lease,
                leases_known=line.leases_known,
                open_count=line.open_count,
                in_doubt=line.in_doubt,
                last_turn=said.get(line.agent) if said is not None and not isinstance(said, StoreError) else None,
                sees_turns=is_read,
                resumed=resumes.get((line.store, line.agent)),
            )
        )
    problems = {
        name: StoreOfAgents(name=name, problem=answer.problem) for name, answer in turns.items() if isinstance(answer, StoreError)
    }
    return tuple(whole), problems


def _last_turns(store: ActionStore, agents: Sequence[str]) -> Mapping[str, Turn | Unreadable] | StoreError:
    try:
        return store.read_last_turns(agents)
    except StoreError as exc:
        return exc


def _mentions(line: AgentLine, needle: str) -> bool:
    return needle in line.agent.casefold() or (line.lease is not None and needle in line.lease.holder.casefold())


def _key(line: AgentLine) -> _Key:
    return (0 if line.in_doubt else 1, line.agent, line.store)


def _write_cursor(key: _Key) -> str:
    return base64.urlsafe_b64encode(json.dumps(key, separators=(",", ":")).encode()).decode().rstrip("=")


def _read_cursor(cursor: str | None) -> _Key | None:
    if not cursor:
        return None
    try:
        rank, agent, store = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        if type(rank) is not int or type(agent) is not str or type(store) is not str:
            raise ValueError("wrong types")
    except (ValueError, TypeError, RecursionError) as exc:
        raise InvalidQuery("the cursor is not one that this list gave out; start from the first page") from exc
    return (rank, agent, store)
