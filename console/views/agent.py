"""One agent: who holds it, what it says it is doing, its turns and its actions."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from actions.errors import InvalidQuery
from actions.queries import ActionItem, AgentView, read_agent
from actions.records import Turn, Unreadable
from console.access import Right, may, may_somewhere, visible
from console.checks import recent_check
from console.htmx import render_part
from console.services.evict import is_waited_for
from console.stores import get_store
from console.tool_rules import read_rules
from console.views.gate import signed_in

TURNS = 30
ACTIONS = 50


@signed_in
@require_safe
def agent(request: HttpRequest, store: str, agent: str) -> HttpResponse:
    """The agent's page; those limited to some tools see their own calls and what became of them, not the agent's words."""
    if not may_somewhere(request.user, Right.READ, store=store):
        raise Http404(f"no store is called {store!r}")
    found = read_agent(get_store(store), agent, turns=TURNS, actions=ACTIONS, before_turn=_before(request), rules=read_rules())
    sees_all = may(request.user, Right.READ, store=store)
    may_see = visible(request.user)
    actions = tuple(item for item in found.actions if sees_all or (item.action and may_see(store, item.action.tool)))
    turns = tuple(turn for turn in found.turns if sees_all or _is_own(turn, store, may_see))
    nothing = found.lease is None and found.working_state is None and not found.turns and not found.actions
    if nothing or (not sees_all and not actions and not turns):
        raise Http404(f"store {store} has no agent {agent}")
    context = {
        "store": store,
        "agent": agent,
        "found": found,
        "cautions": recent_check(get_store(store)).cautions,
        "working_state": found.working_state if sees_all else None,
        "pointers": found.pointers if sees_all else (),
        "turns": turns,
        "actions": actions,
        "open_count": sum(1 for item in actions if _is_open(item)),
        "hidden_turns": len(found.turns) - len(turns),
        "older": _older(found.turns),
        "sees_all": sees_all,
        "may_ask_all": any(
            _is_open(i) and i.action and may(request.user, Right.SETTLE, store=store, tool=i.action.tool) for i in actions
        ),
        "is_newest": "before" not in request.GET,
        "may_evict": _may_evict(request, store, found),
    }
    return render_part(request, "agents/agent.html", "agents/_agent.html", context)


def _may_evict(request: HttpRequest, store: str, found: AgentView) -> bool:
    """Whether this person could open the way for a decision that waits for the lease."""
    is_held = found.lease is not None and found.lease.is_live
    return is_held and may(request.user, Right.EVICT, store=store) and is_waited_for(store, found.agent)


def _before(request: HttpRequest) -> int | None:
    said = request.GET.get("before", "")
    if not said:
        return None
    if not said.isascii() or not said.isdigit() or len(said) > 19 or int(said) >= 2**63:
        raise InvalidQuery(f"before is {said[:40]!r}; it is the number of a turn")
    return int(said)


def _is_own(turn: Turn | Unreadable, store: str, may_see: object) -> bool:
    return isinstance(turn, Turn) and turn.role == "tool" and callable(may_see) and bool(turn.name) and may_see(store, turn.name)


def _is_open(item: ActionItem) -> bool:
    return item.action is None or item.action.is_open


def _older(turns: tuple[Turn | Unreadable, ...]) -> int | None:
    """The number before which older turns stand; None at the beginning."""
    last = turns[-1].seq if len(turns) == TURNS else None
    return last if last and 1 < last < 2**63 else None
