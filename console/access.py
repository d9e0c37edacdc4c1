"""Who may do what: the one choke point for pages, partials, the API, counts and live updates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from functools import cache

from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import PermissionDenied
from django.http import Http404

from actions.errors import ActionNotFound, InvalidDecision, InvalidQuery
from actions.queries import ActionItem, get_action
from actions.records import ActionRef
from actions.rules import check_text
from console.models import Grant, Role
from console.stores import CONSOLE_CHAIN, ActionStore, EntryChain, console_chain, get_store, list_stores
from console.tool_rules import read_rules

Person = User | AnonymousUser
_MAX_SEQ = 2**63 - 1


class Right(StrEnum):
    """What may be done."""

    READ = "read"  # see actions and agents
    HISTORY = "history"  # see who decided what
    SETTLE = "settle"  # decide, withdraw, claim, ask resolvers
    APPROVE = "approve"  # be the second person
    EXPORT = "export"  # take the history out
    REVEAL = "reveal"  # see what redaction hides
    EVICT = "evict"  # take a live lease away, so that a waiting decision can be written
    ADMIN = "admin"  # edit policies, resolvers, users; alone it cannot settle


RIGHTS: dict[str, frozenset[Right]] = {
    Role.VIEWER: frozenset({Right.READ, Right.HISTORY}),
    Role.OPERATOR: frozenset({Right.READ, Right.HISTORY, Right.SETTLE}),
    Role.APPROVER: frozenset({Right.READ, Right.APPROVE}),
    Role.AUDITOR: frozenset({Right.READ, Right.HISTORY, Right.EXPORT, Right.REVEAL}),
    Role.ADMIN: frozenset({Right.READ, Right.HISTORY, Right.EVICT, Right.ADMIN}),
}
"""What each role allows (contract, Rights). Roles add up; a superuser has every one."""


def may(user: Person, right: Right, *, store: str = "", tool: str = "") -> bool:
    """Whether the user has this right for one tool of one store.

    An empty tool asks for *every* tool of the store, an empty store for *every* store: a forgotten argument refuses rather than allows.
    Whether there is anything at all that the user may do is `may_somewhere`.
    """
    if not user.is_active:
        return False
    if user.is_superuser:
        return True
    return any(right in RIGHTS[g.role] and g.store in ("", store) and g.tool in ("", tool) for g in _grants(user))


def may_somewhere(user: Person, right: Right, *, store: str = "") -> bool:
    """Whether the user has this right for anything at all, or for anything in this store: for menus and for whole pages, never for a row."""
    if not user.is_active:
        return False
    if user.is_superuser:
        return True
    return any(right in RIGHTS[g.role] and (not store or g.store in ("", store)) for g in _grants(user))


def sees_problems(user: Person, store: str) -> bool:
    """Whether the user reads what a store itself says is wrong with it: hosts, users, rights. For those who run or settle it."""
    return any(may_somewhere(user, right, store=store) for right in (Right.SETTLE, Right.ADMIN))


def visible(user: Person, right: Right = Right.READ) -> Callable[[str, str], bool]:
    """The question "may this user see it?" for rows of a list: by store and tool; an empty tool asks for every tool of that store.

    Made for one list: what was answered once is remembered, because a list may have 20,000 rows and a dozen tools.
    """
    return cache(lambda store, tool: may(user, right, store=store, tool=tool))


def visible_stores(user: Person, right: Right = Right.READ) -> tuple[ActionStore, ...]:
    """The stores of which the user may see anything, in the configured order."""
    return tuple(store for store in list_stores() if may_somewhere(user, right, store=store.name))


def visible_chains(user: Person, right: Right = Right.HISTORY) -> tuple[EntryChain, ...]:
    """The histories of which the user may see anything: those of stores in the configured order, then the console's own."""
    own = (console_chain(),) if may_somewhere(user, right, store=CONSOLE_CHAIN) else ()
    return (*visible_stores(user, right), *own)


def may_see_tool(user: Person, tool: str) -> bool:
    """Whether the user may read this tool's calls in at least one store: then its policy, which holds for every store, is theirs to read."""
    return any(may(user, Right.READ, store=store.name, tool=tool) for store in list_stores())


def require_known(stores: Sequence[ActionStore | EntryChain], wanted: Iterable[str]) -> None:
    """Refuse a filter that names a store which is not there for this person: an empty list would look like good news.

    Raises:
        InvalidQuery: names it, and those that there are.
    """
    names = [store.name for store in stores]
    for name in wanted:
        if name not in names:
            raise InvalidQuery(f"no store is called {name[:63]!r} here; there are {', '.join(names) or 'none'}")


def has_any_role(user: Person) -> bool:
    """Whether the user has any role anywhere; without one a page says so and shows nothing."""
    return user.is_active and (user.is_superuser or bool(_grants(user)))


def item_or_404(user: Person, ref: ActionRef, right: Right = Right.READ) -> ActionItem:
    """The action, for somebody who has this right on it. One read of its store, one statement for the policies.

    Raises:
        Http404: there is no such store or action, or the user may not see it: both look the same.
        PermissionDenied: the user may see it, but lacks this right.
        StoreError: the store did not answer; nothing is known.
    """
    if not is_possible(ref):
        raise Http404(f"there is no action {ref.seq} of that agent")
    store = get_store(ref.store)
    if not may_somewhere(user, Right.READ, store=ref.store):
        raise Http404(f"no store is called {ref.store!r}")
    try:
        item = get_action(store, ref, read_rules())
    except ActionNotFound as exc:
        raise Http404(str(exc)) from exc
    tool = item.action.tool if item.action else ""
    require(user, right, store=ref.store, tool=tool, missing=f"store {ref.store} has no action {ref.seq} of agent {ref.agent}")
    return item


def store_of_agent_or_404(user: Person, name: str, agent: str, right: Right) -> ActionStore:
    """The store of an agent, for somebody who has this right on everything in it: what befalls an agent concerns all its tools.

    Nothing is read: whether the store knows such an agent, it says itself.

    Raises:
        Http404: there is no such store, or no agent can be called so, or the user may see nothing there: all look the same.
        PermissionDenied: the user may see something there, but lacks this right for every tool.
    """
    store = get_store(name)
    if not may_somewhere(user, Right.READ, store=name):
        raise Http404(f"no store is called {name!r}")
    if not is_possible(ActionRef(name, agent, 1)):
        raise Http404(f"store {name} has no agent of that name")
    if not may(user, right, store=name):
        raise PermissionDenied(f"you need a role that may {right} in all of store {name}")
    return store


def require(user: Person, right: Right, *, store: str, tool: str, missing: str) -> None:
    """Refuse who may not see it as if it were not there, and who may see it but not do this.

    Raises:
        Http404: the user may not see it; `missing` is what is said.
        PermissionDenied: the user may see it, but lacks this right.
    """
    if not may(user, Right.READ, store=store, tool=tool):
        raise Http404(missing)
    if not may(user, right, store=store, tool=tool):
        raise PermissionDenied(f"you need a role that may {right} here")


def may_all(user: Person, right: Right, *, store: str, tools: Iterable[str]) -> bool:
    """Whether the user has this right for each of these tools of a store: what a run may do, who runs it has to be allowed. No tools: every one."""
    wanted = tuple(tools) or ("",)
    return all(may(user, right, store=store, tool=tool) for tool in wanted)


def require_run(user: Person, right: Right, *, store: str, tools: Iterable[str], missing: str) -> None:
    """As `require`, for a run with all the tools of its type. Raises Http404, PermissionDenied."""
    named = tuple(tools)
    if not may_all(user, Right.READ, store=store, tools=named):
        raise Http404(missing)
    if not may_all(user, right, store=store, tools=named):
        raise PermissionDenied(f"you need a role that may {right} every tool of this run")


def is_possible(ref: ActionRef) -> bool:
    """Whether any store could have such an action: a number in range, an agent id that a database can be asked for."""
    try:
        check_text("agent", ref.agent)
    except InvalidDecision:
        return False
    return 0 < ref.seq <= _MAX_SEQ and 0 < len(ref.agent) <= 255


def forget(user: Person) -> None:
    """Drop the roles remembered on this object, after they have changed."""
    if hasattr(user, _REMEMBERED):
        delattr(user, _REMEMBERED)


_REMEMBERED = "_settle_grants"


def _grants(user: Person) -> Iterable[Grant]:
    """The user's roles, remembered on the object: a request makes its own, so the memory ends with it."""
    remembered: tuple[Grant, ...] | None = getattr(user, _REMEMBERED, None)  # not `vars`: a request's user is a lazy wrapper
    if remembered is None:
        remembered = tuple(Grant.objects.filter(user_id=user.pk)) if user.is_authenticated else ()
        setattr(user, _REMEMBERED, remembered)
    return remembered
