"""The doubt queue: unresolved calls of all stores, and on wide screens the opened one beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from actions.digests import sha256_text
from actions.errors import InvalidQuery, StoreError
from actions.facts import LOWEST_RISK
from actions.queries import ActionFilter, ActionItem, ActionPage, list_actions
from actions.records import ActionRef
from actions.redaction import redact_text
from console.access import Right, may_somewhere, require_known, visible, visible_stores
from console.addresses import action_address, parse_ref
from console.evidence import in_few_words
from console.forms import QueueFilters, problems_of
from console.htmx import render_part, wants_partial
from console.models import Decision, Note
from console.services import known_counts
from console.services.decisions import current_decisions, latest_notes, list_stranded
from console.services.evidence import Standing, standings_of
from console.services.resolve import NobodyToAsk, check_askable
from console.store_news import read_news
from console.stores import ActionStore
from console.untrusted import show
from console.views.action import action_context
from console.views.gate import signed_in
from console.words import GROUPS, UNREADABLE_GROUP

PAGE_SIZE = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One strip of the queue."""

    item: ActionItem
    group: str  # heading above this strip; empty where it is the one before's
    decision: Decision | None
    note: Note | None
    is_open_beside: bool
    standing: Standing | None = None  # what the world has said so far
    can_be_selected: bool = False  # this person may ask the world about it

    @property
    def href(self) -> str:
        """Empty where no address can name the action: an unreadable record with a broken id."""
        return action_address(self.item.store, self.item.agent, self.item.seq)

    @property
    def key(self) -> str:
        """A stable id for the element, whatever the agent is called."""
        item = self.item
        record = item.unreadable.record_id if item.unreadable else ""
        return sha256_text(f"{item.store}/{item.agent}/{item.seq}/{record}")[:16]

    @property
    def version(self) -> str:
        """Moves when something about the strip that a person would want to see has changed."""
        decision = f"{self.decision.pk}:{self.decision.state}" if self.decision else ""
        return sha256_text(
            f"{self.item.digest}/{self.item.state}/{decision}/{self.note.pk if self.note else ''}/{self.evidence}"
        )[:16]

    @property
    def evidence(self) -> tuple[str, str]:
        """The newest verdict in a few words, and the state whose shape stands beside it."""
        return in_few_words(self.standing) if self.standing else ("", "")

    @property
    def way(self) -> bool:
        """Whether anything has been said about it."""
        return bool(self.evidence[0] or self.decision or self.note or self.item.unreadable)

    @property
    def weighs(self) -> bool:
        return self.item.facts is not None and self.item.facts.risk < LOWEST_RISK


@signed_in
@require_safe
def queue(request: HttpRequest) -> HttpResponse:
    """The list, as page or as the piece that live updates fetch."""
    filters = QueueFilters(request.GET)
    if not filters.is_valid():
        raise InvalidQuery(problems_of(filters))
    wanted = filters.to_filter()
    opened = parse_ref(request.GET.get("open", ""))
    stores = visible_stores(request.user)
    require_known(stores, wanted.stores)
    page = _read(request, stores, wanted)
    known_counts.remember(page.stores)
    rows = tuple(_rows(page.items, opened, visible(request.user, Right.SETTLE)))
    context: dict[str, Any] = {
        "filters": filters,
        "page": page,
        "rows": rows,
        "can_select": any(row.can_be_selected for row in rows),
        "selects_all": request.GET.get("select") == "all",
        "news": read_news(request.user, stores, page.stores),
        "stranded": list_stranded(request.user),
        "not_known": [store.name for store in page.stores if not store.is_listed],
        "is_first_page": not request.GET.get("cursor"),
        "open": opened,
        "has_several_stores": len(stores) > 1,
        "tools": _plain_tools(page.items),
        "may_settle": may_somewhere(request.user, Right.SETTLE),
    }
    if opened and not wants_partial(request):
        context |= _opened(request, opened)
    return render_part(request, "queue/queue.html", "queue/_list.html", context)


def _opened(request: HttpRequest, ref: ActionRef) -> dict[str, Any]:
    """The action beside the list; the list goes on where it cannot be shown."""
    try:
        return action_context(request, ref)
    except (Http404, PermissionDenied, StoreError) as exc:
        return {"opened_problem": str(exc)}


def next_in_doubt(request: HttpRequest, after: ActionRef) -> tuple[ActionItem | None, bool]:
    """The first action of the queue that is not the one just dealt with, and whether every store was there to be asked."""
    filters = QueueFilters({})
    filters.is_valid()
    page = list_actions(visible_stores(request.user), filters.to_filter(), limit=2, may_see=visible(request.user))
    found = next((item for item in page.items if item.ref != after and item.action), None)
    return found, all(store.is_listed for store in page.stores)


def _read(request: HttpRequest, stores: Sequence[ActionStore], wanted: ActionFilter) -> ActionPage:
    return list_actions(
        stores,
        wanted,
        limit=PAGE_SIZE,
        cursor=request.GET.get("cursor"),
        may_see=visible(request.user),
    )


def _rows(items: Sequence[ActionItem], opened: ActionRef | None, may_settle: Callable[[str, str], bool]) -> Iterator[Row]:
    refs = [item.ref for item in items]
    decisions, notes, standings = current_decisions(refs), latest_notes(refs), standings_of(refs)
    group = ""
    for item in items:
        heading = GROUPS[item.facts.risk] if item.facts else UNREADABLE_GROUP
        decision = decisions.get(item.ref)
        yield Row(
            item=item,
            group="" if heading == group else heading,
            decision=decision if decision and decision.is_pending else None,
            note=notes.get(item.ref),
            is_open_beside=item.ref == opened,
            standing=standings.get(item.ref),
            can_be_selected=_is_askable(item) and may_settle(item.store, item.action.tool if item.action else ""),
        )
        group = heading


def _is_askable(item: ActionItem) -> bool:
    """Whether the record allows a question, and an address can name it in one."""
    try:
        check_askable(item)
    except NobodyToAsk:
        return False
    return bool(action_address(item.store, item.agent, item.seq))


def _plain_tools(items: Sequence[ActionItem]) -> list[str]:
    """Names to choose from in the filter: only those that are what they look like and hold no secret."""
    names = {item.action.tool for item in items if item.action}
    return sorted(name for name in names if show(name).plain == name and redact_text(name) == name)
