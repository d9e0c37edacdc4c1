"""The JSON API at /api/v1/: what programs and agents may ask. Bearer tokens only, so no cookie can be misused from another site."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import wraps
from typing import Annotated, Any

from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.db import Error as ConsoleDatabaseError
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from ninja import Body, NinjaAPI, Path, Query, Schema
from ninja.errors import AuthenticationError, HttpError, ValidationError
from ninja.parser import Parser
from ninja.security import HttpBearer
from pydantic import ConfigDict, Field

from actions.errors import InvalidDecision, InvalidQuery, StoreError
from actions.queries import (
    MAX_LIMIT,
    ActionFilter,
    StoreStatus,
    list_actions,
    parse_classes,
    parse_states,
    read_result,
    rules_version,
)
from actions.records import ActionRef
from actions.rules import check_text
from actions.times import parse_rfc3339, to_datetime
from console import shapes
from console.access import (
    Person,
    Right,
    has_any_role,
    item_or_404,
    may_somewhere,
    sees_problems,
    store_of_agent_or_404,
    visible,
    visible_chains,
    visible_stores,
)
from console.addresses import read_ref
from console.downloads import download
from console.forms import HistoryFilters, QueueFilters, problems_of
from console.history import list_history, require_kind
from console.models import Batch, DecisionState
from console.services import batches, bulk, known_counts
from console.services.answers import STATUS, Answer, AnswerKind
from console.services.approve import approve, break_glass, proposal_digest, turn_down
from console.services.bulk import BatchCommitted, BulkRefused
from console.services.claimed import find_claim, live_claims
from console.services.claims import ClaimAnswer, ClaimKind, claim, release, take_over
from console.services.correct import (
    STATUS_OF_CORRECTION,
    CorrectionAnswer,
    CorrectionKind,
    CorrectionRequest,
    correct_end,
    standing_correction,
    withdraw_correction,
)
from console.services.decide import DecisionRequest, actor_of, decide, withdraw
from console.services.decisions import current_decisions
from console.services.evict import EvictionRequest, evict
from console.services.known_counts import last_known
from console.services.notes import notes_on
from console.services.replay import begin_replay, file_name
from console.services.resolve import NobodyToAsk, request_asking, verdicts_of
from console.services.through import write_through
from console.services.tokens import Caller, find_caller
from console.store_news import complain, told
from console.stores import get_store
from console.tasks import send_asking, send_batch
from console.tool_rules import read_book, read_rules, rule_of
from console.trouble import log_unexpected

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 2_621_440  # a result of 1 MiB, escaped; the same as settings.DATA_UPLOAD_MAX_MEMORY_SIZE
DEFAULT_LIMIT = 50
_TRUNCATED = "it has more open actions than are read at once; the rest is not listed"


# --- shapes, for the OpenAPI document and for what comes in ----------------------------------------------------------


class LeaseOut(Schema):
    holder: str
    epoch: int
    expires_at: str
    live: bool


class ItemOut(Schema):
    """One action. Unreadable ones have a `problem`, and null where nothing is known."""

    store: str
    agent: str
    seq: int | None
    tool: str | None
    class_: Annotated[str | None, Field(alias="class")]
    key: str | None
    status: str | None
    state: str
    args: str
    args_truncated: bool
    started_at: str | None
    epoch: int | None
    digest: str | None
    claimed_by: str | None
    lease: LeaseOut | None
    problem: str | None


class DecisionOut(Schema):
    id: str
    state: str
    outcome: str | None
    reason: str | None
    result: str | None
    error: str | None
    by: str | None
    at: str
    rule: str | None = None
    second: str | None = None
    second_reason: str | None = None
    held_until: str | None = None
    broke_glass: str | None = None
    broke_glass_by: str | None = None
    seen: str | None = Field(None, description="of a proposal: what an approval may be bound to")
    tool: str | None = Field(None, description="to an agent: the tool of the action that was decided about")
    claim: str | None = Field(None, description="to an agent: the digest of that action, without its status")


class TokenOut(Schema):
    """Whose token it is: a user's, or one agent's of one store."""

    user: str | None
    store: str | None
    agent: str | None


class WholeItemOut(ItemOut):
    ended_at: str | None
    result: str
    error: str
    resolution: str
    verdicts: list[dict[str, Any]]
    decision: DecisionOut | None
    note: dict[str, Any] | None
    notes: list[dict[str, Any]]
    correction: CorrectionOut | None


class CorrectionOut(Schema):
    """What was told to the agent after an end that was wrong. `was_read`: yes, no or unknown, of what it was told first."""

    id: str
    state: str
    outcome: str
    told: str
    reason: str
    by: str
    at: str
    why: str
    turn: int | None
    entry: int | None
    was_read: str | None


class ClaimOut(Schema):
    claimed_by: str | None
    claimed_at: str | None
    expires_at: str | None
    detail: str


class AskingOut(Schema):
    state: str
    resolver: str
    asked: int


class LastKnownOut(Schema):
    """What a store held when it last answered: at least so many where `or_more`."""

    in_doubt: int
    or_more: bool
    at: str


class StoreProblemOut(Schema):
    """A store of which the list does not hold everything. `last_known` only for those who may see every tool of it."""

    store: str
    detail: str
    last_known: LastKnownOut | None = None


class ItemsOut(Schema):
    items: list[ItemOut]
    next: str | None
    problems: list[StoreProblemOut]


class EntryOut(Schema):
    store: str
    chain: str
    number: int
    at: str
    kind: str
    actor: str
    agent: str
    seq: int | None
    tool: str
    outcome: str
    reason: str
    decision_id: str
    evidence_id: str
    content_digest: str
    detail: dict[str, Any]
    text: str
    prev: str
    hash: str


class EntriesOut(Schema):
    items: list[EntryOut]
    next: str | None
    problems: list[StoreProblemOut]


class ErrorOut(Schema):
    error: str
    detail: str


class DecisionIn(Schema):
    """A decision. What its texts may hold, the rules say; sizes and characters are checked there."""

    model_config = ConfigDict(extra="forbid", strict=True)

    outcome: str = Field(description="done, failed, abandoned or later")
    reason: str
    decision_id: str = Field(description="8 to 64 of A-Z a-z 0-9 -, made anew for each decision")
    seen: str | None = Field(None, description="the item's digest; compared where given")
    result: str | None = None
    error: str | None = None
    look_again_at: str | None = Field(None, description="RFC 3339; only with later")


class ApprovalIn(Schema):
    """The second person of a proposed decision."""

    model_config = ConfigDict(extra="forbid", strict=True)

    decision_id: str = Field(description="of the decision that is proposed")
    reason: str = Field("", description="what they looked at")
    seen: str | None = Field(None, description="`decision.seen` of the action; compared where given")


class TurnDownIn(Schema):
    """The second person refuses a proposed decision."""

    model_config = ConfigDict(extra="forbid", strict=True)

    decision_id: str = Field(description="of the decision that is proposed")
    reason: str = Field(description="what is wrong with it; whoever proposed it reads this")


class BreakGlassIn(Schema):
    """A proposed decision goes on without a second person."""

    model_config = ConfigDict(extra="forbid", strict=True)

    decision_id: str = Field(description="of the decision that is proposed")
    reason: str = Field(description="why no second person can be waited for: at least 10 characters, kept in the history")


class CorrectionIn(Schema):
    """What really happened to an action that a decision or resolver here ended."""

    model_config = ConfigDict(extra="forbid", strict=True)

    outcome: str = Field(description="done, failed or unknown: what really happened")
    reason: str
    correction_id: str = Field(description="8 to 64 of A-Z a-z 0-9 -, made anew for each correction")


class ClaimIn(Schema):
    """Whose claim is taken over; left out, only what nobody has is claimed."""

    model_config = ConfigDict(extra="forbid", strict=True)

    take_over_from: str | None = Field(None, description="the user who has it, as `claimed_by` says")


class BulkIn(Schema):
    """Many decisions in one gesture: those named in `refs`, or those that `filter` matches; one outcome and reason, or `proven`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    batch_id: str = Field(description="8 to 64 of A-Z a-z 0-9 -, made anew for each batch; sent again it is the same batch")
    refs: list[str] | None = Field(None, description="store/agent/number each, at most 500")
    filter: dict[str, str] | None = Field(
        None, description="as the queue's address: state, class, tool, store, agent, age, text, verdict"
    )
    outcome: str = Field("", description="done, failed or abandoned; not with proven")
    reason: str = ""
    proven: bool = Field(False, description="each as its newest evidence proves; the rest is left as it is")


class BulkItemOut(Schema):
    """One action of a batch. `outcome`: what became of it."""

    store: str
    agent: str
    seq: int
    outcome: str
    detail: str
    decision_id: str


class BulkOut(Schema):
    """A batch with one page of its items; `counts`: how many show which outcome."""

    id: str
    state: str
    outcome: str | None
    reason: str
    by: str
    at: str | None
    counts: dict[str, int]
    items: list[BulkItemOut]
    next: str | None


class ThroughIn(Schema):
    """That a decision which waits is to be written through the tenant's own server."""

    model_config = ConfigDict(extra="forbid", strict=True)

    decision_id: str = Field(description="of the decision that waits")
    confirm: str = Field(description="the agent's id once more: its process may be alive")


class EvictionIn(Schema):
    """An eviction; what its texts may hold, the rules say."""

    model_config = ConfigDict(extra="forbid", strict=True)

    holder: str = Field(description="the lease's holder, as the item or the agent's page shows it: nobody else is evicted")
    reason: str = Field(description="how do you know that its process is gone")
    confirm: str = Field(description="the agent's id once more")
    decision_id: str = Field(description="8 to 64 of A-Z a-z 0-9 -, made anew for each eviction")


class EvictionOut(Schema):
    """What an eviction came to: its entry, and the decisions that waited, as they stand now."""

    entry: EntryOut
    decisions: list[DecisionOut]
    detail: str


_ERRORS: dict[Any, Any] = {401: ErrorOut, 403: ErrorOut, 404: ErrorOut, 422: ErrorOut}


# --- coming in -------------------------------------------------------------------------------------------------------


class BadBody(Exception):
    """The body cannot be read; the message says why."""


class StrictParser(Parser):
    """One JSON object in UTF-8, of bounded size; names standing twice and numbers that JSON does not have are refused."""

    def parse_body(self, request: HttpRequest) -> dict[str, Any]:
        if request.content_type != "application/json":
            raise HttpError(415, "send the body as application/json")
        if len(request.body) > MAX_BODY_BYTES:
            raise RequestDataTooBig
        try:
            found = json.loads(request.body.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_constant)
        except RecursionError as exc:
            raise BadBody("the body is nested too deeply") from exc
        except UnicodeDecodeError as exc:
            raise BadBody("the body is not UTF-8") from exc
        except ValueError as exc:
            raise BadBody(f"the body is not JSON: {str(exc)[:120]}") from exc
        if not isinstance(found, dict):
            raise BadBody("the body is not a JSON object")
        return found


class Bearer(HttpBearer):
    def authenticate(self, request: HttpRequest, token: str) -> Caller:
        """Who calls. A user without any role is told so here, whatever was asked."""
        caller = find_caller(token)
        if caller is None:
            raise AuthenticationError
        request.auth = caller  # type: ignore[attr-defined]  # also of whom we refuse: the entry that says so names them
        if caller.user is not None and not has_any_role(caller.user):
            raise PermissionDenied("you have no role here; ask an administrator")
        return caller


def _for_those_inside(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """The OpenAPI document is for whoever is signed in or has a token."""

    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if request.user.is_authenticated or Bearer()(request):
            return view(request, *args, **kwargs)
        raise AuthenticationError

    def answered(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            return guarded(request, *args, **kwargs)
        except (AuthenticationError, PermissionDenied) as exc:
            return api.on_exception(request, exc)

    return answered


api: NinjaAPI = NinjaAPI(
    title="Settle",
    version="1",
    description="Open actions of durable agents, and what was decided about them.",
    urls_namespace="api",
    docs_url=None,
    openapi_url="/openapi.json",
    auth=Bearer(),
    parser=StrictParser(),
    docs_decorator=_for_those_inside,
)

Store = Annotated[str, Path()]
Agent = Annotated[str, Path()]
Seq = Annotated[int, Path()]
_ACTION = "/actions/{store}/{agent}/{int:seq}"
_DECISION = f"{_ACTION}/decision"
_RESOLVE = f"{_ACTION}/resolve"
_THROUGH = f"{_DECISION}/through-server"
_APPROVE, _TURN_DOWN, _BREAK_GLASS = (f"{_DECISION}/{way}" for way in ("approve", "turn-down", "break-glass"))
_CLAIM = f"{_ACTION}/claim"
_CORRECTION = f"{_ACTION}/correction"
_EVICTION = "/agents/{store}/{agent}/eviction"
_BATCH = "/bulk/{batch_id}"
_REPLAY = "/agents/{store}/{agent}/replay"


# --- what may be asked -----------------------------------------------------------------------------------------------


@api.get("/actions", response={200: ItemsOut, **_ERRORS}, by_alias=True, summary="Actions, the open ones by default")
def list_items(
    request: HttpRequest,
    state: str = "",
    class_: Annotated[str, Query(alias="class")] = "",
    tool: str = "",
    store: str = "",
    agent: str = "",
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = DEFAULT_LIMIT,
    cursor: str = "",
) -> HttpResponse:
    """Each filter takes values joined by commas. Order: risk, then oldest first. Stores that did not answer stand in `problems`."""
    user = _user(request)
    _know_query(request, "state", "class", "tool", "store", "agent", "limit", "cursor")
    stores = visible_stores(user)
    _require_stores(_split(store), [one.name for one in stores])
    wanted = ActionFilter(
        states=parse_states(_split(state)),
        classes=parse_classes(_split(class_)),
        tools=frozenset(_split(tool)),
        stores=frozenset(_split(store)),
        agents=frozenset(_split(agent)),
    )
    rules = read_book(rules_version(cursor or None)).rules
    page = list_actions(stores, wanted, limit=limit, cursor=cursor or None, may_see=visible(user), rules=rules)
    known_counts.remember(page.stores)
    problems = _problems(user, page.stores)
    if page.stores and not any(status.is_listed for status in page.stores):
        return _unavailable(user, StoreError(page.stores[0].name, page.stores[0].problem), problems=problems)
    claims = live_claims([item.ref for item in page.items])
    items = [shapes.item_json(item, claims.get(item.ref)) for item in page.items]
    return _json({"items": items, "next": page.next, "problems": problems})


@api.get(_ACTION, response={200: WholeItemOut, **_ERRORS}, by_alias=True, summary="One action, whole")
def get_item(request: HttpRequest, store: Store, agent: Agent, seq: Seq) -> HttpResponse:
    ref = ActionRef(store, agent, seq)
    _know_query(request)
    user = _user(request)
    item = item_or_404(user, ref)
    result = read_result(get_store(store), item.action, rule_of(item.action.tool)) if item.action else ""
    decision, notes = current_decisions([ref]).get(ref), notes_on(ref)
    shown = shapes.whole_item_json(
        item,
        result=result,
        decision=decision,
        note=notes[0] if notes else None,
        notes=notes,
        verdicts=verdicts_of(ref),
        claim=find_claim(ref),
        correction=standing_correction(ref),
        sees_problems=sees_problems(user, store),
    )
    if decision is not None and decision.state == DecisionState.PROPOSED:
        shown["decision"]["seen"] = proposal_digest(decision, item)
    return _json(shown)


@api.post(_RESOLVE, response={202: AskingOut, 409: ErrorOut, 503: ErrorOut, **_ERRORS}, summary="Ask the tool's resolver now")
def post_resolve(request: HttpRequest, store: Store, agent: Agent, seq: Seq) -> HttpResponse:
    """202: it is asked at once, by a worker; what it found stands in the action's `verdicts`. 409: nobody can be asked about it."""
    ref = ActionRef(store, agent, seq)
    _know_query(request)
    inquiry = request_asking(ref, by=_user(request))
    send_asking([inquiry.pk])
    return _json({"state": "asking", "resolver": inquiry.resolver, "asked": inquiry.asked}, status=202)


@api.post(
    _DECISION,
    response={200: DecisionOut, 201: DecisionOut, 202: DecisionOut, 409: ErrorOut, 412: ErrorOut, 503: ErrorOut, **_ERRORS},
    summary="Decide",
)
def post_decision(
    request: HttpRequest, store: Store, agent: Agent, seq: Seq, body: Annotated[DecisionIn, Body()]
) -> HttpResponse:
    """201: written by this request. 200: the same id again. 202: kept, not written yet. 503: not written, or unknown; send it again as it is."""
    user = _user(request)
    wanted = DecisionRequest(
        outcome=body.outcome,
        reason=body.reason,
        decision_id=body.decision_id,
        seen=body.seen or "",
        result=body.result or "",
        error=body.error or "",
        look_again_at=_time(body.look_again_at) if body.look_again_at else None,
    )
    return _answer(decide(ActionRef(store, agent, seq), wanted, by=user))


@api.get(_DECISION, response={200: DecisionOut, **_ERRORS}, summary="The decision that matters, if there is one")
def get_decision(request: HttpRequest, store: Store, agent: Agent, seq: Seq) -> HttpResponse:
    """An agent's token may ask about its own actions, and is told an outcome only once it is waiting or written."""
    ref = ActionRef(store, agent, seq)
    _know_query(request)
    caller = _caller(request)
    if caller.user is None:
        if (caller.store, caller.agent) != (store, agent):
            raise PermissionDenied("this token reads the decisions of another agent")
    else:
        item_or_404(caller.user, ref)
    decision = current_decisions([ref]).get(ref)
    if decision is None:
        raise Http404("nothing was decided about this action")
    if caller.user is None:
        return _json(shapes.agent_decision_json(decision))
    return _json(shapes.decision_json(decision, sees_problems=sees_problems(caller.user, store)))


@api.get("/token", response={200: TokenOut, **_ERRORS}, summary="Whose token this is")
def get_token(request: HttpRequest) -> HttpResponse:
    """A user's name, or a store and an agent: what an agent needs to know to ask about its own actions."""
    _know_query(request)
    caller = _caller(request)
    if caller.user is not None:
        return _json({"user": caller.user.get_username(), "store": None, "agent": None})
    return _json({"user": None, "store": caller.store, "agent": caller.agent})


@api.delete(_DECISION, response={200: DecisionOut, 409: ErrorOut, **_ERRORS}, summary="Withdraw the decision that is on its way")
def delete_decision(request: HttpRequest, store: Store, agent: Agent, seq: Seq, decision_id: str = "") -> HttpResponse:
    """Once withdrawn it is never written; 409 where it is written already."""
    user = _user(request)
    _know_query(request, "decision_id")
    return _answer(withdraw(ActionRef(store, agent, seq), by=user, decision_id=decision_id))


_GATED = {200: DecisionOut, 201: DecisionOut, 202: DecisionOut, 409: ErrorOut, 412: ErrorOut, 503: ErrorOut, **_ERRORS}


@api.post(_APPROVE, response=_GATED, summary="Be the second person of a proposed decision")
def post_approval(
    request: HttpRequest, store: Store, agent: Agent, seq: Seq, body: Annotated[ApprovalIn, Body()]
) -> HttpResponse:
    """201: written. 202: held, or waiting for the lease. 403: your own, or `confirm_identity`, which no token can. 409: somebody was first."""
    user, ref = _user(request), ActionRef(store, agent, seq)
    answer = approve(ref, body.decision_id, by=user, reason=body.reason, seen=body.seen or "")
    return _answer(answer, sees=sees_problems(user, store))


@api.post(_TURN_DOWN, response=_GATED, summary="Refuse a proposed decision as its second person")
def post_turn_down(
    request: HttpRequest, store: Store, agent: Agent, seq: Seq, body: Annotated[TurnDownIn, Body()]
) -> HttpResponse:
    """It is never written; whoever proposed it is shown the reason."""
    user, ref = _user(request), ActionRef(store, agent, seq)
    return _answer(turn_down(ref, body.decision_id, by=user, reason=body.reason), sees=sees_problems(user, store))


@api.post(_BREAK_GLASS, response=_GATED, summary="Go on without a second person, on the record")
def post_break_glass(
    request: HttpRequest, store: Store, agent: Agent, seq: Seq, body: Annotated[BreakGlassIn, Body()]
) -> HttpResponse:
    """For whoever may settle; it passes no hold. 503: the history could not be written, so nothing passed."""
    return _answer(break_glass(ActionRef(store, agent, seq), body.decision_id, by=_user(request), reason=body.reason))


@api.post(
    _CORRECTION,
    response={200: CorrectionOut, 201: CorrectionOut, 202: CorrectionOut, 409: ErrorOut, 412: ErrorOut, 503: ErrorOut, **_ERRORS},
    summary="Say that a written end was wrong",
)
def post_correction(
    request: HttpRequest, store: Store, agent: Agent, seq: Seq, body: Annotated[CorrectionIn, Body()]
) -> HttpResponse:
    """The action keeps its end; its agent is told by one turn more. 201: written. 200: the same id again. 202: kept, its agent is alive."""
    wanted = CorrectionRequest(outcome=body.outcome, reason=body.reason, correction_id=body.correction_id)
    return _correction_answer(correct_end(ActionRef(store, agent, seq), wanted, by=_user(request)))


@api.delete(_CORRECTION, response={200: CorrectionOut, 409: ErrorOut, **_ERRORS}, summary="Withdraw the correction on its way")
def delete_correction(request: HttpRequest, store: Store, agent: Agent, seq: Seq, correction_id: str = "") -> HttpResponse:
    user = _user(request)
    _know_query(request, "correction_id")
    return _correction_answer(withdraw_correction(ActionRef(store, agent, seq), by=user, correction_id=correction_id))


@api.post(_CLAIM, response={200: ClaimOut, 201: ClaimOut, 409: ErrorOut, **_ERRORS}, summary="Claim an open action")
def post_claim(request: HttpRequest, store: Store, agent: Agent, seq: Seq, body: ClaimIn | None = None) -> HttpResponse:
    """201: yours now. 200: it was yours; renewed. 409: somebody else's (`claimed_by`), or it has ended. A claim keeps nobody from deciding."""
    ref, user = ActionRef(store, agent, seq), _user(request)
    _know_query(request)
    whose = body.take_over_from if body else None
    return _claim_answer(take_over(ref, whose=whose, by=user) if whose else claim(ref, by=user))


@api.delete(_CLAIM, response={200: ClaimOut, 404: ErrorOut, **_ERRORS}, summary="Give one's own claim back")
def delete_claim(request: HttpRequest, store: Store, agent: Agent, seq: Seq) -> HttpResponse:
    ref, user = ActionRef(store, agent, seq), _user(request)
    _know_query(request)
    item_or_404(user, ref, Right.SETTLE)
    return _claim_answer(release(ref, by=user))


@api.post(
    _THROUGH,
    response={200: DecisionOut, 201: DecisionOut, 202: DecisionOut, 409: ErrorOut, 503: ErrorOut, **_ERRORS},
    summary="Write the decision that waits through the tenant's own server",
)
def post_through(request: HttpRequest, store: Store, agent: Agent, seq: Seq, body: Annotated[ThroughIn, Body()]) -> HttpResponse:
    """For an agent whose server keeps its lease alive. 503: not written, or a part of it may be; send it again as it is."""
    return _answer(
        write_through(ActionRef(store, agent, seq), decision_id=body.decision_id, confirm=body.confirm, by=_user(request))
    )


@api.post(
    _EVICTION,
    response={200: EvictionOut, 201: EvictionOut, 409: ErrorOut, 412: ErrorOut, 503: ErrorOut, **_ERRORS},
    summary="Take an agent's live lease away, for the decisions that wait for it",
)
def post_eviction(request: HttpRequest, store: Store, agent: Agent, body: Annotated[EvictionIn, Body()]) -> HttpResponse:
    """For admins. 201: taken by this request. 200: the same id again. 412: held otherwise by now. Does not stop the old process."""
    wanted = EvictionRequest(holder=body.holder, reason=body.reason, confirm=body.confirm, decision_id=body.decision_id)
    answer = evict(store, agent, wanted, by=_user(request))
    status = STATUS[answer.kind]
    entry = shapes.entry_json(store, answer.entry) if answer.entry else None
    if status < 400:
        decisions = [shapes.decision_json(one, sees_problems=True) for one in answer.decisions]  # an admin of the store
        return _json({"entry": entry, "decisions": decisions, "detail": answer.detail}, status=status)
    body_of_error = {
        "error": answer.kind.value,
        "detail": answer.detail,
        "lease": shapes.lease_json(answer.lease),
        "entry": entry,
    }
    return _with_retry(_json(body_of_error, status=status), answer.kind)


@api.post(
    "/bulk",
    response={200: BulkOut, 202: BulkOut, 409: ErrorOut, 503: ErrorOut, **_ERRORS},
    summary="Decide about many actions in one gesture",
)
def post_bulk(request: HttpRequest, body: Annotated[BulkIn, Body()]) -> HttpResponse:
    """202: a worker decides one after the other. 200: this batch id again. What the world says otherwise is left out: decide it alone."""
    user = _user(request)
    _know_query(request)
    if (body.refs is None) == (body.filter is None):
        raise InvalidQuery("name the actions in refs, or say which in filter: one of the two")
    if body.proven and (body.outcome or body.reason):
        raise InvalidDecision("proven takes outcome and reason from the evidence; send neither")
    if not body.proven:
        bulk.check_said(body.outcome, body.reason, by=user)
    said = {"refs": body.refs, "filter": body.filter, "outcome": body.outcome, "reason": body.reason, "proven": body.proven}
    content = bulk.content_of(said)
    known = batches.find_own(user, body.batch_id)
    if known is not None and known.content_digest != content:
        raise BatchCommitted(known, "this batch id was used for another batch")
    if known is None:
        how = {"by": user, "is_proven": body.proven, "batch_id": body.batch_id, "content_digest": content}
        known = bulk.draft_selected(_refs(body.refs), **how) if body.refs is not None else _matching(user, body.filter or {}, how)
    batch, is_new = bulk.commit(known.batch_id, by=user, outcome=body.outcome, reason=body.reason)
    if is_new:
        send_batch(batch.pk)
    return _batch(user, batch, status=202 if is_new else 200)


@api.get(_BATCH, response={200: BulkOut, **_ERRORS}, summary="A batch, and what became of each of its actions")
def get_bulk(
    request: HttpRequest,
    batch_id: Annotated[str, Path()],
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = DEFAULT_LIMIT,
    cursor: Annotated[int, Query(ge=0, lt=2**31)] = 0,
) -> HttpResponse:
    """Yours; for an admin of everything, anybody's. Items in the order of the queue."""
    user = _user(request)
    _know_query(request, "limit", "cursor")
    return _batch(user, batches.find_batch(user, batch_id), limit=limit, after=cursor)


def _refs(texts: Sequence[str]) -> list[ActionRef]:
    found = [(text, read_ref(text)) for text in texts]
    for text, ref in found:
        if ref is None:
            raise InvalidQuery(f"{text[:80]!r} names no action: write store/agent/number")
    return [ref for _, ref in found if ref is not None]


def _matching(user: Any, said: dict[str, str], how: dict[str, Any]) -> Batch:
    filters = QueueFilters(said)
    for name in said:
        if not filters.knows(name):
            raise InvalidQuery(f"there is no filter {name[:40]!r}")
    if not filters.is_valid():
        raise InvalidQuery(problems_of(filters))
    stores, wanted = visible_stores(user), filters.to_filter(user)
    _require_stores(sorted(wanted.stores), [one.name for one in stores])
    words = ", ".join(f"{name} {value}" for name, value in said.items() if value.strip())
    narrows = filters.narrows(wanted, [one.name for one in stores])
    return bulk.draft_matching(wanted, narrows=narrows, said=f"all with {words}", **how)


def _batch(user: Any, batch: Batch, *, status: int = 200, limit: int = DEFAULT_LIMIT, after: int = 0) -> HttpResponse:
    """A batch as JSON. An action that its caller may not see any more is counted and not listed."""
    items = list(batches.items_showing(batch, "").filter(number__gt=after)[: limit + 1])
    may_see, is_mine = visible(user), batch.by_id == user.pk
    listed = [item for item in items[:limit] if (may_see(item.store, item.tool) if item.tool else is_mine)]
    counts = batches.progress_of((batch,))[batch.pk].outcomes
    more = str(items[limit - 1].number) if len(items) > limit else None
    return _json(
        shapes.batch_json(batch, listed, counts=counts, cursor=more, sees_problems=lambda store: sees_problems(user, store)),
        status=status,
    )


@api.get("/audit", response={200: EntriesOut, **_ERRORS}, summary="The history, newest first")
def list_entries(
    request: HttpRequest,
    store: str = "",
    agent: str = "",
    seq: Annotated[int | None, Query(ge=1, lt=2**63)] = None,
    kind: str = "",
    tool: str = "",
    actor: str = "",
    outcome: str = "",
    since: str = "",
    until: str = "",
    text: str = "",
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = DEFAULT_LIMIT,
    cursor: str = "",
) -> HttpResponse:
    """Entries carry their own `prev` and `hash`; `text` is what the hash covers."""
    user = _user(request)
    _know_query(request, "store", "agent", "seq", "kind", "tool", "actor", "outcome", "since", "until", "text", "limit", "cursor")
    if not may_somewhere(user, Right.HISTORY):
        raise PermissionDenied("you need a role that may read the history")
    stores = visible_chains(user, Right.HISTORY)
    _require_stores([store] if store else [], [one.name for one in stores])
    filters = HistoryFilters(request.GET)
    if not filters.is_valid():
        raise InvalidQuery(problems_of(filters))
    wanted = filters.to_filter()
    require_kind(wanted.kind)
    page = list_history(stores, wanted, limit=limit, cursor=cursor or None, may_see=visible(user, Right.HISTORY))
    asked = [one for one in stores if store in ("", one.name)]
    if asked and len(page.problems) == len(asked):
        raise StoreError(*next(iter(page.problems.items())))
    problems = [{"store": name, "detail": told(user, name, problem)} for name, problem in page.problems.items()]
    return _json(
        {"items": [shapes.entry_json(one.store, one.entry) for one in page.items], "next": page.next, "problems": problems}
    )


@api.get(_REPLAY, response={200: str, 503: ErrorOut, **_ERRORS}, summary="One agent's trajectory, oldest first, as JSON Lines")
def get_replay(request: HttpRequest, store: Store, agent: Agent) -> HttpResponse:
    """For auditors of the whole store. Streamed; the last line is of kind `replay_end`, and without it the file is not whole. It is an entry."""
    _know_query(request)
    user = _user(request)
    kept = store_of_agent_or_404(user, store, agent, Right.EXPORT)
    made = begin_replay(kept, agent, by=actor_of(user), rules=read_rules())
    made.record()
    return download(made.pieces(), file=file_name(made), content_type="application/x-ndjson")  # type: ignore[return-value]


_METHODS = {
    "/actions": ["GET"],
    _ACTION: ["GET"],
    _DECISION: ["GET", "POST", "DELETE"],
    _RESOLVE: ["POST"],
    _THROUGH: ["POST"],
    _CLAIM: ["POST", "DELETE"],
    _CORRECTION: ["POST", "DELETE"],
    _EVICTION: ["POST"],
    "/bulk": ["POST"],
    _BATCH: ["GET"],
    "/audit": ["GET"],
    _REPLAY: ["GET"],
}
_ALL_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


def refuse_unknown_method(request: HttpRequest) -> HttpResponse | None:
    """JSON for TRACE and for methods nobody has heard of, which no address here takes; None for the others, which each address answers."""
    return None if request.method in _ALL_METHODS else _refuse(request, ["GET", "POST", "DELETE"])


def _refuse(request: HttpRequest, allowed: Sequence[str]) -> HttpResponse:
    response = _error(
        405, "method_not_allowed", f"{str(request.method)[:20]} is not for this address; it takes {', '.join(allowed)}"
    )
    response["Allow"] = ", ".join(allowed)
    return response


def _refuse_others(path: str, allowed: Sequence[str]) -> None:
    """Answer every other method with JSON too."""
    others = [method for method in _ALL_METHODS if method not in allowed]

    def refuse_for_one(request: HttpRequest, store: Store, agent: Agent, seq: Seq) -> HttpResponse:
        return _refuse(request, allowed)

    def refuse_for_agent(request: HttpRequest, store: Store, agent: Agent) -> HttpResponse:
        return _refuse(request, allowed)

    def refuse_for_batch(request: HttpRequest, batch_id: Annotated[str, Path()]) -> HttpResponse:
        return _refuse(request, allowed)

    def refuse(request: HttpRequest) -> HttpResponse:
        return _refuse(request, allowed)

    if "{batch_id}" in path:
        api.api_operation(others, path, include_in_schema=False)(refuse_for_batch)
        return
    chosen = refuse_for_one if "{int:seq}" in path else refuse_for_agent if "{agent}" in path else refuse
    api.api_operation(others, path, include_in_schema=False)(chosen)


def _nothing_here(request: HttpRequest, rest: str) -> HttpResponse:
    raise Http404("there is no such address in this API")


def _nothing_at_the_root(request: HttpRequest) -> HttpResponse:
    return _nothing_here(request, "")


# --- going out -------------------------------------------------------------------------------------------------------


def _answer(answer: Answer, *, sees: bool = True) -> HttpResponse:
    """A gesture's answer: the decision or note itself, or an error with whatever stands in the way."""
    status = STATUS[answer.kind]
    shown: dict[str, Any] = {}
    if answer.decision is not None:
        shown = shapes.decision_json(answer.decision, sees_problems=sees)  # whoever decides or withdraws may settle there
    elif answer.note is not None:
        shown = shapes.note_json(answer.note)
    if status < 400:
        return _json({**shown, "detail": answer.detail, "warnings": list(answer.warnings)}, status=status)
    body = {
        "error": answer.kind.value,
        "detail": answer.detail,
        "decision": shown or None,
        "item": shapes.item_json(answer.item) if answer.item else None,
        "entry": shapes.entry_json(answer.item.store, answer.entry) if answer.entry and answer.item else None,
    }
    return _with_retry(_json(body, status=status), answer.kind)


def _correction_answer(answer: CorrectionAnswer) -> HttpResponse:
    status = STATUS_OF_CORRECTION[answer.kind]
    # Whoever corrects or withdraws may settle there.
    shown = shapes.correction_json(answer.correction, sees_problems=True) if answer.correction else None
    incident = answer.incident.pk if answer.incident else None
    if status < 400:
        return _json({**(shown or {}), "incident": incident, "detail": answer.detail}, status=status)
    response = _json({"error": answer.kind.value, "detail": answer.detail, "correction": shown}, status=status)
    if answer.kind in (CorrectionKind.UNAVAILABLE, CorrectionKind.READ_ONLY):
        response["Retry-After"] = "5"
    return response


_CLAIM_STATUS = {ClaimKind.CLAIMED: 201, ClaimKind.MINE: 200, ClaimKind.RELEASED: 200, ClaimKind.NOT_MINE: 404}


def _claim_answer(answer: ClaimAnswer) -> HttpResponse:
    found, status = answer.claim, _CLAIM_STATUS.get(answer.kind, 409)
    shown = {
        "claimed_by": found.username if found else None,
        "claimed_at": shapes.time_json(found.claimed_at) if found else None,
        "expires_at": shapes.time_json(found.expires_at) if found else None,
        "detail": answer.detail,
    }
    return _json(shown if status < 400 else {"error": answer.kind.value, **shown}, status=status)


def _with_retry(response: HttpResponse, kind: AnswerKind) -> HttpResponse:
    if kind in (AnswerKind.UNAVAILABLE, AnswerKind.READ_ONLY):
        response["Retry-After"] = "5"
    return response


def _json(body: dict[str, Any], *, status: int = 200) -> HttpResponse:
    """ASCII JSON, so that NUL and lone surrogates of an agent's text arrive as they are; nobody may keep it."""
    response = JsonResponse(body, status=status)
    response["Cache-Control"] = "no-store"
    return response


def _error(status: int, code: str, detail: str) -> HttpResponse:
    return _json({"error": code, "detail": detail}, status=status)


def _problems(user: Person, statuses: Sequence[StoreStatus]) -> list[dict[str, Any]]:
    """The stores of which a list does not hold everything, in words for this caller."""
    known = last_known(user, [status.name for status in statuses if not status.is_listed])
    return [
        {
            "store": status.name,
            "detail": told(user, status.name, status.problem) if status.problem else _TRUNCATED,
            "last_known": shapes.known_json(known[status.name]) if status.name in known else None,
        }
        for status in statuses
        if status.problem or status.is_truncated
    ]


def _unavailable(user: Person | None, exc: StoreError, **more: Any) -> HttpResponse:
    response = _json({"error": "unavailable", "detail": complain(user, exc.store, exc.problem), **more}, status=503)
    response["Retry-After"] = "5"
    return response


# --- checks ----------------------------------------------------------------------------------------------------------


def _caller(request: HttpRequest) -> Caller:
    caller: Caller = request.auth  # type: ignore[attr-defined]
    return caller


def _user(request: HttpRequest) -> Any:
    """The user who calls. Raises PermissionDenied for an agent's token: it reads decisions and nothing else."""
    user: Person | None = _caller(request).user
    if user is None:
        raise PermissionDenied("an agent's token only reads the decisions about that agent's actions")
    return user


def _know_query(request: HttpRequest, *names: str) -> None:
    """A misspelt filter must not mean "everything"."""
    for name, value in request.GET.items():
        if name not in names:
            raise InvalidQuery(f"there is no parameter {name[:40]!r}; there are {', '.join(names) or 'none'}")
        try:
            check_text(name, str(value))
        except InvalidDecision as exc:
            raise InvalidQuery(str(exc)) from exc


def _require_stores(wanted: Sequence[str], visible_names: Sequence[str]) -> None:
    for name in wanted:
        if name not in visible_names:
            raise Http404(f"no store is called {name[:63]!r}")


def _time(text: str) -> datetime:
    try:
        return to_datetime(parse_rfc3339(text))
    except ValueError as exc:
        raise InvalidDecision(f"look_again_at: {exc}") from exc


def _split(values: str) -> list[str]:
    return [value.strip() for value in values.split(",") if value.strip()]


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


# --- what went wrong -------------------------------------------------------------------------------------------------


def _on(kind: type[Exception]) -> Callable[[Callable[[HttpRequest, Any], HttpResponse]], None]:
    return lambda handler: api.add_exception_handler(kind, handler)


@_on(AuthenticationError)
def _unauthenticated(request: HttpRequest, exc: AuthenticationError) -> HttpResponse:
    response = _error(401, "unauthenticated", "send Authorization: Bearer TOKEN with a token that is valid here")
    response["WWW-Authenticate"] = "Bearer"
    return response


@_on(PermissionDenied)
def _forbidden(request: HttpRequest, exc: PermissionDenied) -> HttpResponse:
    return _error(403, "forbidden", str(exc) or "your roles do not allow this")


@_on(Http404)
def _not_found(request: HttpRequest, exc: Http404) -> HttpResponse:
    return _error(404, "not_found", str(exc) or "there is nothing at this address")


@_on(InvalidQuery)
def _bad_query(request: HttpRequest, exc: InvalidQuery) -> HttpResponse:
    return _error(422, "invalid", str(exc))


@_on(InvalidDecision)
def _bad_decision(request: HttpRequest, exc: InvalidDecision) -> HttpResponse:
    return _error(422, "invalid", str(exc))


@_on(NobodyToAsk)
def _nobody_to_ask(request: HttpRequest, exc: NobodyToAsk) -> HttpResponse:
    return _error(409, "nobody_to_ask", str(exc))


@_on(BulkRefused)
def _bulk_refused(request: HttpRequest, exc: BulkRefused) -> HttpResponse:
    return _error(422, "invalid", str(exc))


@_on(BatchCommitted)
def _batch_committed(request: HttpRequest, exc: BatchCommitted) -> HttpResponse:
    return _error(409, "id_reused", str(exc))


@_on(ValidationError)
def _bad_input(request: HttpRequest, exc: ValidationError) -> HttpResponse:
    """The first few problems by name. What was sent is never repeated."""
    said = [f"{'.'.join(str(part) for part in one['loc'][1:] if part != 'body')}: {one['msg']}"[:200] for one in exc.errors[:3]]
    return _error(422, "invalid", "; ".join(line.removeprefix(": ") for line in said))


@_on(StoreError)
def _store_problem(request: HttpRequest, exc: StoreError) -> HttpResponse:
    return _unavailable(_caller(request).user, exc)


@_on(ConsoleDatabaseError)
def _database_problem(request: HttpRequest, exc: ConsoleDatabaseError) -> HttpResponse:
    log.error("the console's database at %s %s: %s", request.method, request.path, type(exc).__name__)
    response = _error(
        503, "unavailable", "the console's database does not answer or cannot be written; the same decision id may be sent again"
    )
    response["Retry-After"] = "5"
    return response


@_on(RequestDataTooBig)
def _too_big(request: HttpRequest, exc: RequestDataTooBig) -> HttpResponse:
    return _error(413, "too_large", f"the body is larger than {MAX_BODY_BYTES} bytes")


@_on(HttpError)
def _http_error(request: HttpRequest, exc: HttpError) -> HttpResponse:
    """What ninja itself refuses; it wraps what the parser said."""
    cause = exc.__cause__
    if isinstance(cause, BadBody):
        return _error(422, "invalid", str(cause))
    if isinstance(cause, HttpError | RequestDataTooBig):
        return api.on_exception(request, cause)
    return _error(exc.status_code, "unsupported" if exc.status_code == 415 else "refused", str(exc))


@_on(Exception)
def _broken(request: HttpRequest, exc: Exception) -> HttpResponse:
    log_unexpected(log, f"answering {request.method} {request.path}", exc)
    return _error(
        500, "broken", "something broke here; what was sent may or may not have been written. The same decision id is harmless"
    )


# --- the routes of runs, and then whatever is left ------------------------------------------------------------------

for _path, _allowed in _METHODS.items():
    _refuse_others(_path, _allowed)

# Made of what stands above, and before the route that takes everything else.
from console.api_runs import METHODS_OF_RUNS as METHODS_OF_RUNS  # noqa: E402

api.api_operation(_ALL_METHODS, "/", include_in_schema=False)(_nothing_at_the_root)
api.api_operation(_ALL_METHODS, "/{path:rest}", include_in_schema=False)(_nothing_here)
