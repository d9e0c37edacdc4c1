"""Agents: all that can be seen, one with its whole story on a time line, and what it will read when it starts again."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_safe

from actions.errors import InvalidQuery
from actions.queries import AgentView, read_agent
from console.access import (
    Right,
    may,
    may_somewhere,
    require_known,
    store_of_agent_or_404,
    visible,
    visible_stores,
)
from console.checks import recent_check, recent_checks
from console.forms import AgentFilters, problems_of
from console.htmx import render_part
from console.run_reading import run_of_agent
from console.services.aftermath import aftermaths
from console.services.agents import list_agents
from console.services.around import what_is_around
from console.services.briefing import next_briefing
from console.services.evict import is_waited_for
from console.services.story import PAGE_SIZE, Event, read_story, says_done
from console.store_news import told
from console.stores import get_store
from console.tool_rules import read_rules
from console.views.gate import signed_in

TURNS_LOOKED_AT = 10
"""Newest turns among which its last own words are looked for."""
MAX_SHOWN = 400_000
"""Characters of a briefing that are shown; Recall's usual budget is a tenth of it."""
CAP = 1_000


@signed_in
@require_safe
def agents(request: HttpRequest) -> HttpResponse:
    """Every agent of the visible stores; those limited to some tools find the agents that have open calls of theirs."""
    filters = AgentFilters(request.GET)
    if not filters.is_valid():
        raise InvalidQuery(problems_of(filters))
    only, text = filters.cleaned_data["store"], filters.cleaned_data["text"]
    stores = visible_stores(request.user)
    require_known(stores, [only] if only else [])
    asked = [store for store in stores if only in ("", store.name)]
    page = list_agents(asked, may_see=visible(request.user), text=text, cursor=request.GET.get("cursor"))
    answered = {store.name for store in page.stores if not store.problem}
    checks = recent_checks([store for store in asked if store.name in answered])
    context = {
        "page": page,
        "cap": CAP,
        "problems": [(store.name, told(request.user, store.name, store.problem)) for store in page.stores if store.problem],
        "notes": [store for store in page.stores if not store.problem],
        "cautions": [(name, check.cautions) for name, check in checks.items() if check.cautions],
        "filters": filters,
        "stores": [store.name for store in stores],
        "is_filtered": bool(only or text),
        "is_first_page": not request.GET.get("cursor"),
        "first_page": f"{reverse('agents')}?{urlencode({name: value for name, value in (('store', only), ('text', text)) if value})}",
    }
    return render_part(request, "agents/agents.html", "agents/_list.html", context)


@signed_in
@require_safe
def agent(request: HttpRequest, store: str, agent: str) -> HttpResponse:
    """The agent's page; those limited to some tools see their own calls and what became of them, not the agent's words."""
    if not may_somewhere(request.user, Right.READ, store=store):
        raise Http404(f"no store is called {store!r}")
    kept, rules = get_store(store), read_rules()
    found = read_agent(kept, agent, turns=PAGE_SIZE + 1, rules=rules)
    # The store walks over all turns of an agent to find its newest, so they are asked for once.
    story = read_story(kept, agent, rules=rules, cursor=request.GET.get("cursor"), newest=found.turns)
    sees_all = may(request.user, Right.READ, store=store)
    may_see = visible(request.user)
    open_actions = tuple(item for item in found.open_actions if sees_all or (item.action and may_see(store, item.action.tool)))
    events = tuple(
        event for event in story.events if _is_visible(event, store, sees_all, may_see, visible(request.user, Right.HISTORY))
    )
    told_of = [event for event in story.events if event.kind != "holder"]
    is_newest = "cursor" not in request.GET
    nothing = found.lease is None and found.working_state is None and not told_of and not found.open_actions
    is_hidden = not sees_all and is_newest and not open_actions and not any(event.kind != "holder" for event in events)
    if nothing or is_hidden:
        raise Http404(f"store {store} has no agent {agent}")
    entries = [event.entry for event in events if event.entry is not None]
    context = {
        "store": store,
        "agent": agent,
        "found": found,
        "cautions": recent_check(kept).cautions,
        "working_state": found.working_state if sees_all else None,
        "pointers": found.pointers if sees_all else (),
        "open_actions": open_actions,
        "events": events,
        "hidden_turns": sum(event.kind == "turn" for event in story.events) - sum(event.kind == "turn" for event in events),
        "older": story.next,
        "aftermaths": aftermaths(kept, agent, entries, seen=story.holders),
        "says_done": says_done(found.working_state, found.turns[:TURNS_LOOKED_AT], found.open_actions) if sees_all else None,
        "seen": next(iter(story.holders), None),
        "sees_all": sees_all,
        "may_ask_all": any(i.action and may(request.user, Right.SETTLE, store=store, tool=i.action.tool) for i in open_actions),
        "is_newest": is_newest,
        "may_evict": _may_evict(request, store, found),
        "run": run_of_agent(store, agent, request.user) if what_is_around(request.user).runs else None,
        "may_export": may(request.user, Right.EXPORT, store=store),
    }
    return render_part(request, "agents/agent.html", "agents/_agent.html", context)


@signed_in
@require_safe
def briefing(request: HttpRequest, store: str, agent: str) -> HttpResponse:
    """What the agent's next process will read; for those who may see every tool of its store."""
    kept = store_of_agent_or_404(request.user, store, agent, Right.READ)
    found = next_briefing(kept, agent, rules=read_rules())
    if found.is_empty:
        raise Http404(f"store {store} has no agent {agent}")
    context = {
        "store": store,
        "agent": agent,
        "briefing": found,
        "max_shown": MAX_SHOWN,
        "cautions": recent_check(kept).cautions,
    }
    return render_part(request, "agents/briefing.html", "agents/_briefing.html", context)


def _is_visible(
    event: Event,
    store: str,
    sees_all: bool,
    may_see: Callable[[str, str], bool],
    may_read_history: Callable[[str, str], bool],
) -> bool:
    """An entry is history; everything else that has a tool is the tool's; what is left is the agent's own words, or who had it."""
    if event.kind == "entry":
        return may_read_history(store, event.tool)
    if event.kind == "holder":
        return True
    return sees_all or (bool(event.tool) and may_see(store, event.tool))


def _may_evict(request: HttpRequest, store: str, found: AgentView) -> bool:
    """Whether this person could open the way for a decision that waits for the lease."""
    is_held = found.lease is not None and found.lease.is_live
    return is_held and may(request.user, Right.EVICT, store=store) and is_waited_for(store, found.agent)
