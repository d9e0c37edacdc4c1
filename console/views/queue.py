"""The doubt queue: unresolved calls of all stores, and on wide screens the opened one beside them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_safe

from actions.digests import sha256_text
from actions.errors import InvalidQuery, StoreError
from actions.facts import LOWEST_RISK
from actions.queries import IN_DOUBT, MAX_LIMIT, ActionFilter, ActionItem, list_actions, rules_version
from actions.records import ActionRef
from actions.redaction import redact_text
from console.access import Person, Right, may_somewhere, require_known, visible, visible_stores
from console.addresses import action_address, parse_ref
from console.clocks import EvidenceClock, evidence_clock, is_late
from console.evidence import in_few_words
from console.forms import BY_CRASH, QueueFilters, problems_of
from console.htmx import queue_query, render_part, wants_partial
from console.models import Claim, Decision, Note
from console.services import known_counts
from console.services.around import read_beside, what_is_around
from console.services.asking import NobodyToAsk, check_askable
from console.services.batches import failed_refs
from console.services.claims import undismissed
from console.services.crashes import CrashGroup, groups_of
from console.services.decisions import list_stranded, refs_on_their_way
from console.services.notes import refs_put_off
from console.services.saved_views import View, list_views
from console.store_news import read_news
from console.stores import ActionStore
from console.tool_rules import PolicyBook, read_book, read_rules
from console.untrusted import show
from console.views.action import action_context, claimed_by
from console.views.approvals import waiting_context
from console.views.approving import proposals_context
from console.views.gate import signed_in
from console.words import GROUPS, UNREADABLE_GROUP

PAGE_SIZE = 50
EVERYTHING = "in=doubt"
"""The address of the queue without any filter, for those whose queue begins with a view."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One strip of the queue."""

    item: ActionItem
    href: str  # empty where no address can name the action: an unreadable record with a broken id
    key: str  # a stable id for the element, whatever the agent is called
    group: str  # heading above this strip; empty where it is the one before's
    decision: Decision | None
    note: Note | None
    is_open_beside: bool
    evidence: tuple[str, str] = ("", "")  # the newest verdict in a few words, and the state whose shape stands beside it
    claim: Claim | None = None  # the live one
    claimed_by: str = ""
    is_due: bool = False  # somebody noted to look at it again, and that time has come
    can_be_selected: bool = False  # this person may ask the world about it
    clock: EvidenceClock | None = None
    is_late: bool = False
    crash: CrashGroup | None = None
    crash_refs: tuple[ActionRef, ...] = ()  # on the first strip of a group: its calls on this page that may be asked about

    @property
    def version(self) -> str:
        """Moves when something about the strip that a person would want to see has changed."""
        decision = f"{self.decision.pk}:{self.decision.state}" if self.decision else ""
        return sha256_text(
            f"{self.item.digest}/{self.item.state}/{decision}/{self.note.pk if self.note else ''}/{self.evidence}"
            f"/{self.claim.pk if self.claim else ''}/{self.is_due}"
            f"/{self.is_late}/{self.clock.is_close if self.clock else ''}/{self.clock.is_over if self.clock else ''}"
        )[:16]

    @property
    def claim_age_s(self) -> int:
        return int((timezone.now() - self.claim.claimed_at).total_seconds()) if self.claim else 0

    @property
    def way(self) -> bool:
        """Whether anything has been said about it."""
        return bool(self.evidence[0] or self.decision or self.note or self.item.unreadable or self.claim or self.is_due)

    @property
    def weighs(self) -> bool:
        return self.item.facts is not None and self.item.facts.risk < LOWEST_RISK


@signed_in
@require_safe
def queue(request: HttpRequest) -> HttpResponse:
    """The list, as page or as the piece that live updates fetch."""
    around = what_is_around(request.user)
    views = list_views(request.user) if around.views else ()
    stores = visible_stores(request.user)
    tabs = _tabs(views, stores, request.user)
    first = next((tab for tab in tabs if tab.view.is_first), None)
    if first is not None and not request.GET and not wants_partial(request) and not first.problem:
        return redirect(first.href)
    filters = QueueFilters(request.GET)
    if not filters.is_valid():
        raise InvalidQuery(problems_of(filters))
    wanted = filters.to_filter(request.user)
    opened = parse_ref(request.GET.get("open", ""))
    require_known(stores, wanted.stores)
    if batch_id := request.GET.get("batch"):
        wanted = replace(wanted, only=failed_refs(request.user, batch_id))
    book = read_book(rules_version(request.GET.get("cursor")))
    is_grouped = filters.cleaned_data["group"] == BY_CRASH
    page = list_actions(
        stores,
        wanted,
        limit=MAX_LIMIT if is_grouped else PAGE_SIZE,
        cursor=request.GET.get("cursor"),
        may_see=visible(request.user),
        rules=book.rules,
        counted=[tab.wanted for tab in tabs if tab.wanted is not None],
    )
    known_counts.remember(page.stores)
    groups = groups_of(page.items) if is_grouped else {}
    rows = tuple(_rows(_in_groups(page.items, groups), opened, visible(request.user, Right.SETTLE), request.user, book, groups))
    context: dict[str, Any] = {
        "filters": filters,
        "page": page,
        "rows": rows,
        "can_select": any(row.can_be_selected for row in rows),
        "selects_all": request.GET.get("select") == "all",
        "news": read_news(request.user, stores, page.stores),
        "stranded": list_stranded(request.user) if around.stranded else (),
        "not_known": [store.name for store in page.stores if not store.is_listed],
        "is_first_page": not request.GET.get("cursor"),
        "open": opened,
        "has_several_stores": len(stores) > 1,
        "tools": _plain_tools(page.items),
        "may_settle": may_somewhere(request.user, Right.SETTLE),
        "handed": undismissed(request.user) if around.handed and not wants_partial(request) else (),
        "tabs": _counted(tabs, page.counts, filters.query),
        "first": first,
        "doubt_url": f"{reverse('queue')}?{EVERYTHING}" if first else reverse("queue"),
        "is_grouped": is_grouped,
        "is_new_here": not rows and filters.is_default and not Decision.objects.exists(),
        "narrows": not batch_id and filters.narrows(wanted, [store.name for store in stores]),
    }
    if not wants_partial(request):
        context |= waiting_context(request, is_any=around.approvals) | proposals_context(request, is_any=around.proposals)
    if opened and not wants_partial(request):
        context |= _opened(request, opened)
    return render_part(request, "queue/queue.html", "queue/_list.html", context)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tab:
    """A saved view above the list."""

    view: View
    wanted: ActionFilter | None  # None: its filter cannot be asked any more, `problem` says why
    problem: str = ""
    count: int | None = None  # of the actions that match it; None: not known from this read
    is_current: bool = False

    @property
    def href(self) -> str:
        return f"{reverse('queue')}?{self.view.query}"


def _tabs(views: Sequence[View], stores: Sequence[ActionStore], viewer: Person) -> list[Tab]:
    """The views with their filters; what has left the world since they were saved is said, and nothing else suffers from it."""
    tabs = []
    for view in views:
        filters = QueueFilters(QueryDict(view.query))
        try:
            if not filters.is_valid():
                raise InvalidQuery(problems_of(filters))
            wanted = filters.to_filter(viewer)
            require_known(stores, wanted.stores)
            tabs.append(Tab(view=view, wanted=wanted))
        except InvalidQuery as exc:
            tabs.append(Tab(view=view, wanted=None, problem=str(exc)))
    return tabs


def _counted(tabs: Sequence[Tab], counts: Sequence[int | None], query: str) -> list[Tab]:
    numbers = iter(counts)
    return [
        replace(tab, count=next(numbers) if tab.wanted is not None else None, is_current=bool(query) and tab.view.query == query)
        for tab in tabs
    ]


def _in_groups(items: Sequence[ActionItem], groups: Mapping[ActionRef, CrashGroup]) -> list[ActionItem]:
    """Each group together where its first call stands, in the order of the list; what belongs to none stays in its place at the end."""
    places: dict[str, int] = {}
    for place, item in enumerate(items):
        if (group := groups.get(item.ref)) is not None:
            places.setdefault(group.key, place)
    return sorted(items, key=lambda item: places[groups[item.ref].key] if item.ref in groups else len(items))


def _opened(request: HttpRequest, ref: ActionRef) -> dict[str, Any]:
    """The action beside the list; the list goes on where it cannot be shown."""
    try:
        return action_context(request, ref)
    except (Http404, PermissionDenied, StoreError) as exc:
        return {"opened_problem": str(exc)}


@dataclass(frozen=True, slots=True, kw_only=True)
class GoesOn:
    """Where to go on after a decision. `item` None: `waits` tells how many calls in doubt wait for somebody else, or for a time."""

    item: ActionItem | None
    waits: int
    is_all_known: bool  # every store answered
    is_outside: bool = False  # nothing is left of the filter that this person came from: this one is of the whole queue


def what_next(request: HttpRequest, after: ActionRef) -> GoesOn:
    """The first action of the queue on which there is something to do: not the one just dealt with, none that has a decision on its way,
    and none that somebody put off, or this person has just found nothing out about. Of the filter that they came from first, as far as it
    lists calls in doubt; of the whole queue where nothing is left of that."""
    everything = QueueFilters({})
    everything.is_valid()
    stores, rules, may_see = visible_stores(request.user), read_rules(), visible(request.user)
    wanted = everything.to_filter()
    aside = refs_on_their_way() | refs_put_off(request.user) | {after}
    narrower = _filter_before(request)
    for one in (narrower, wanted):
        if one is None:
            continue
        page = list_actions(stores, replace(one, without=one.without | aside), limit=5, may_see=may_see, rules=rules)
        found = next((item for item in page.items if item.action and action_address(item.store, item.agent, item.seq)), None)
        is_all_known = all(store.is_listed for store in page.stores)
        if found is not None:
            return GoesOn(item=found, waits=0, is_all_known=is_all_known, is_outside=narrower not in (None, one))
    rest = list_actions(stores, replace(wanted, without=frozenset({after})), limit=1, may_see=may_see, rules=rules)
    return GoesOn(item=None, waits=rest.total, is_all_known=is_all_known)


def _filter_before(request: HttpRequest) -> ActionFilter | None:
    """The calls in doubt of the filter that this person came from; None where they came from the whole queue, or it lists none."""
    filters = QueueFilters(QueryDict(queue_query(request)))
    if not filters.is_valid() or filters.is_default:
        return None
    try:
        wanted = filters.to_filter(request.user)
        require_known(visible_stores(request.user), wanted.stores)
    except InvalidQuery:
        return None
    states = wanted.states & IN_DOUBT.states
    return replace(wanted, states=states) if states else None


def _rows(
    items: Sequence[ActionItem],
    opened: ActionRef | None,
    may_settle: Callable[[str, str], bool],
    viewer: Person,
    book: PolicyBook,
    groups: Mapping[ActionRef, CrashGroup],
) -> Iterator[Row]:
    refs = [item.ref for item in items]
    beside, now = read_beside(refs), timezone.now()
    addresses = [action_address(ref.store, ref.agent, item.seq) for ref, item in zip(refs, items, strict=True)]
    askable = {
        ref
        for ref, item, href in zip(refs, items, addresses, strict=True)
        if href and _is_askable(item) and may_settle(ref.store, item.action.tool if item.action else "")
    }
    heading: tuple[str, str] = ("", "")
    for ref, item, href in zip(refs, items, addresses, strict=True):
        crash = groups.get(ref)
        before, heading = heading, (crash.key, crash.label) if crash else ("", _heading_of(item, is_grouped=bool(groups)))
        is_new = heading != before
        decision, standing, claim = beside.decisions.get(ref), beside.standings.get(ref), beside.claims.get(ref)
        policy = book.policy_of(item.action.tool) if item.action else None
        yield Row(
            item=item,
            href=href,
            key=_key_of(item),
            group=heading[1] if is_new else "",
            crash=crash,
            crash_refs=_askable_of(crash, groups, askable, refs) if crash and is_new else (),
            decision=decision if decision and decision.is_pending else None,
            note=beside.notes.get(ref),
            is_open_beside=ref == opened,
            evidence=in_few_words(standing) if standing else ("", ""),
            claim=claim,
            claimed_by=claimed_by(claim, viewer),
            is_due=ref in beside.looks and beside.looks[ref] <= now,
            can_be_selected=ref in askable,
            clock=evidence_clock(item, standing, policy) if policy else None,
            is_late=policy is not None and is_late(item, policy),
        )


def _key_of(item: ActionItem) -> str:
    record = item.unreadable.record_id if item.unreadable else ""
    return sha256_text(f"{item.store}/{item.agent}/{item.seq}/{record}")[:16]


def _askable_of(
    crash: CrashGroup, groups: Mapping[ActionRef, CrashGroup], askable: Collection[ActionRef], refs: Sequence[ActionRef]
) -> tuple[ActionRef, ...]:
    return tuple(ref for ref in refs if ref in askable and (group := groups.get(ref)) is not None and group.key == crash.key)


def _heading_of(item: ActionItem, *, is_grouped: bool) -> str:
    if item.facts is None:
        return UNREADABLE_GROUP
    return "No crash was seen" if is_grouped else GROUPS[item.facts.risk]


def _is_askable(item: ActionItem) -> bool:
    """Whether the record allows a question."""
    try:
        check_askable(item)
    except NobodyToAsk:
        return False
    return True


def _plain_tools(items: Sequence[ActionItem]) -> list[str]:
    """Names to choose from in the filter: only those that are what they look like and hold no secret."""
    names = {item.action.tool for item in items if item.action}
    return sorted(name for name in names if show(name).plain == name and redact_text(name) == name)
