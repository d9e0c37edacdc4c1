"""Deciding about many actions in one gesture: the preview, the word "go", and what became of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods

from actions.errors import InvalidDecision, InvalidQuery
from actions.records import ActionState
from actions.rules import MAX_REASON_CHARS
from actions.turns import SettlementTurn
from console.access import Right, may, may_somewhere, require_known, sees_problems, visible, visible_stores
from console.addresses import parse_ref
from console.forms import QueueFilters, problems_of
from console.htmx import go_to, render_part
from console.identity import confirmed_at
from console.models import Batch, BatchItem
from console.refusals import denied
from console.services import batches as running
from console.services import bulk
from console.services.answers import AnswerKind
from console.services.bulk import BatchCommitted, BulkRefused, Review
from console.services.decide import LATER
from console.services.gates import is_confirmed
from console.tasks import send_batch
from console.texts import take_texts
from console.tool_rules import read_book
from console.views.gate import only_post, signed_in, user_of
from console.words import BATCH_STATES, BECAME, OUTCOME_LABELS, OUTCOMES, STATES, Became

ROWS = 50
_PROVE = "Prove first that it is you: the policy of a tool among these asks for that. Once is enough for all of them."
MAX_TICKS = 200
"""How many contradicted items a preview offers to tick; what is beyond them is decided one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One item of a batch, as somebody who may see its tool reads it."""

    item: BatchItem
    is_shown: bool  # else only how many there are is said
    why: str
    turn: SettlementTurn | None = None  # of a proven one, before it is written

    @property
    def became(self) -> Became:
        return BECAME[self.item.outcome_shown]


@signed_in
@require_http_methods(["GET", "HEAD", "POST"])
def batches(request: HttpRequest) -> HttpResponse:
    """Batches of mine; of everybody, for an admin of everything. A POST fixes a set as a preview and shows it; it decides nothing."""
    if request.method == "POST":
        return _draft(request)
    before = request.GET.get("before", "")
    found = running.list_batches(
        request.user, before=int(before) if before.isascii() and before.isdigit() and len(before) < 19 else None
    )
    progress = running.progress_of(found)
    context = {
        "lines": [(one, progress[one.pk], BATCH_STATES[one.state], OUTCOME_LABELS.get(one.outcome, "")) for one in found],
        "older": found[-1].pk if len(found) == running.MAX_LISTED else None,
        "of_all": may(request.user, Right.ADMIN),
        "is_active": any(one.is_active for one in found),
    }
    return render_part(request, "bulk/bulk.html", "bulk/_list.html", context)


@signed_in
@require_http_methods(["GET", "HEAD", "POST"])
def batch(request: HttpRequest, batch_id: str) -> HttpResponse:
    """A preview, or a batch on its way. A POST reviews what a preview would write, and commits what was reviewed."""
    found = running.find_batch(request.user, batch_id)
    if request.method == "POST":
        return _decide(request, found)
    if not found.is_draft:
        return _progress(request, found)
    # What a proven one would write stands in its rows already.
    weighed = bulk.review(found, outcome="", reason="", by=user_of(request)) if found.is_proven else None
    return _preview(request, found, weighed=weighed)


def _page_of(batch_id: str) -> str:
    return reverse("batch", args=[batch_id])


@signed_in
@only_post(_page_of)
def cancel(request: HttpRequest, batch_id: str) -> HttpResponse:
    """Decide nothing more of it; what is written stays."""
    return _after(request, batch_id, lambda: running.cancel(batch_id, by=user_of(request)))


@signed_in
@only_post(_page_of)
def undo(request: HttpRequest, batch_id: str) -> HttpResponse:
    """Withdraw what is not written yet."""
    return _after(request, batch_id, lambda: running.undo(batch_id, by=user_of(request)))


@signed_in
@only_post(_page_of)
def again(request: HttpRequest, batch_id: str) -> HttpResponse:
    """Try the failed ones again."""
    return _after(request, batch_id, lambda: running.again(batch_id, by=user_of(request), confirmed_at=confirmed_at(request)))


def _after(request: HttpRequest, batch_id: str, gesture: Callable[[], Batch]) -> HttpResponse:
    try:
        changed = gesture()
    except BulkRefused as exc:
        return _progress(request, running.find_batch(request.user, batch_id), problem=str(exc), status=409)
    if changed.is_active:
        send_batch(changed.pk)
    return go_to(request, _page_of(batch_id))


# --- the preview -----------------------------------------------------------------------------------------------------


def _draft(request: HttpRequest) -> HttpResponse:
    """From the ticked rows (`ref`), or from everything that matches (`filter`: the queue's query)."""
    by, is_proven = user_of(request), bool(request.POST.get("proven"))
    if not may_somewhere(by, Right.SETTLE):
        raise PermissionDenied("you need a role that may settle somewhere")
    try:
        if "filter" in request.POST:
            made = _draft_matching(request, by, is_proven=is_proven)
        else:
            refs = [parse_ref(text) for text in request.POST.getlist("ref")]
            made = bulk.draft_selected([ref for ref in refs if ref is not None], by=by, is_proven=is_proven)
    except (BulkRefused, InvalidQuery) as exc:
        return render_part(request, "bulk/refused.html", "bulk/_refused.html", {"problem": str(exc)}, status=422)
    return go_to(request, _page_of(made.batch_id))


def _draft_matching(request: HttpRequest, by: User, *, is_proven: bool) -> Batch:
    said = QueryDict(request.POST["filter"])
    for name in said:
        if not QueueFilters().knows(name):
            raise InvalidQuery(f"there is no filter {name[:40]!r}; nothing was selected")
    filters = QueueFilters(said)
    if not filters.is_valid():
        raise InvalidQuery(problems_of(filters))
    stores, wanted = visible_stores(by), filters.to_filter(by)
    require_known(stores, wanted.stores)
    words = ", ".join(f"{name} {value}" for name, value in said.items() if str(value).strip())
    narrows = filters.narrows(wanted, [store.name for store in stores])
    return bulk.draft_matching(wanted, narrows=narrows, said=f"all with {words}", by=by, is_proven=is_proven)


def _preview(
    request: HttpRequest,
    found: Batch,
    *,
    outcome: str = "",
    reason: str = "",
    problem: str = "",
    weighed: Review | None = None,
    status: int = 200,
) -> HttpResponse:
    overview = bulk.overview_of(found)
    rows, older = _rows(request, found)
    against = weighed.against if weighed else ()
    _hide_anew(found, [item for item, _ in against[:MAX_TICKS]])
    context = {
        "batch": found,
        "overview": overview,
        "states": [(STATES[state], state, count) for state, count in overview.states],
        "rows": rows,
        "next_from": older,
        "outcomes": [one for one in OUTCOMES if one.value != LATER],
        "outcome": next((one for one in OUTCOMES if one.value == outcome), None),
        "reason": reason,
        "max_chars": MAX_REASON_CHARS,
        "problem": problem,
        "review": weighed,
        "against": against[:MAX_TICKS],
        "against_beyond": max(0, len(against) - MAX_TICKS),
        "ticked": request.POST.getlist("despite"),
        "will_write": (weighed.ready + _ticked(request, weighed)) if weighed else 0,
        "is_mine": found.by_id == request.user.pk,
        "confirm_url": _confirm_url(request, found, overview.may_need_proof),
    }
    return render_part(request, "bulk/batch.html", "bulk/_preview.html", context, status=status)


def _confirm_url(request: HttpRequest, found: Batch, tools: Sequence[str]) -> str:
    """Where to prove who one is, before anything is typed; empty where nothing asks for that, or it was done just now."""
    if not tools or is_confirmed(confirmed_at(request), timezone.now()):
        return ""
    return f"{reverse('confirm')}?{urlencode({'next': _page_of(found.batch_id)})}"


def _decide(request: HttpRequest, found: Batch) -> HttpResponse:
    """Show what would be written, and write it once exactly that was shown."""
    odd = take_texts(request)
    outcome, reason = request.POST.get("outcome", ""), request.POST.get("reason", "")
    if found.by_id != request.user.pk:
        raise Http404("there is no such batch of yours")
    despite = request.POST.getlist("despite")[:MAX_TICKS]
    try:
        if odd:
            raise InvalidDecision(next(iter(odd.values())))
        if found.is_draft:
            if not outcome and not found.is_proven:
                raise InvalidDecision("Say what happened first.")
            weighed = bulk.review(found, outcome=outcome, reason=reason, by=user_of(request))
            is_seen = "review" not in request.POST and request.POST.get("seen") == _bound(weighed, despite)
            found.refresh_from_db()  # sent from another tab this very moment, nothing is left to weigh: what was sent says what it came to
            if not is_seen and found.is_draft:
                return _preview(request, found, weighed=weighed, outcome=outcome, reason=reason)
            if found.is_draft and bulk.may_need_proof(found) and not is_confirmed(confirmed_at(request), timezone.now()):
                page = _preview(request, found, weighed=weighed, outcome=outcome, reason=reason, problem=_PROVE, status=403)
                return denied(page, AnswerKind.CONFIRM, _PROVE)
        done, is_new = bulk.commit(
            found.batch_id,
            by=user_of(request),
            despite=despite,
            outcome=outcome,
            reason=reason,
            confirmed_at=confirmed_at(request),
        )
    except InvalidDecision as exc:
        return _preview(request, found, problem=str(exc), status=422, outcome=outcome, reason=reason)
    except BulkRefused as exc:
        return _preview(request, found, problem=str(exc), status=409, outcome=outcome, reason=reason)
    except BatchCommitted as exc:
        return _progress(request, exc.batch, problem=f"{str(exc)[:1].upper()}{str(exc)[1:]}.", status=409)
    if is_new:
        send_batch(done.pk)
    return go_to(request, _page_of(done.batch_id))


def _bound(weighed: Review, despite: Sequence[str]) -> str:
    """What the button of a review is bound to. Ticking more or less beside it is the person's last word, and needs no other look."""
    offered = {against.evidence_id for _, against in weighed.against[:MAX_TICKS]}
    return weighed.digest if offered >= set(despite) else ""


def _ticked(request: HttpRequest, weighed: Review) -> int:
    despite = set(request.POST.getlist("despite"))
    return sum(against.evidence_id in despite for _, against in weighed.against)


# --- on its way ------------------------------------------------------------------------------------------------------


def _progress(request: HttpRequest, found: Batch, *, problem: str = "", status: int = 200) -> HttpResponse:
    progress = running.progress_of((found,))[found.pk]
    shown = request.GET.get("show", "")
    rows, older = _rows(request, found, shown=shown)
    by_outcome = [(key, BECAME[key], progress.outcomes[key]) for key in BECAME if progress.outcomes.get(key)]
    context = {
        "batch": found,
        "progress": progress,
        "state": BATCH_STATES[found.state],
        "waits": progress.on_its_way if found.state == "finished" else 0,
        "outcome": next((one for one in OUTCOMES if one.value == found.outcome), None),
        "rows": rows,
        "next_from": older,
        "shown": shown,
        "by_outcome": by_outcome,
        "problem": problem,
        "is_mine": found.by_id == request.user.pk,
        "can_cancel": found.state == "running",
        "can_try_again": progress.can_try_again if found.state in running.ENDED_STATES and not found.is_active else 0,
        "id_prefix": bulk.id_prefix(found.batch_id),
        "open_states": ",".join(
            one.value for one in (ActionState.INTERRUPTED, ActionState.UNKNOWN, ActionState.UNCLEAR, ActionState.IN_FLIGHT)
        ),
    }
    return render_part(request, "bulk/batch.html", "bulk/_progress.html", context, status=status)


def _rows(request: HttpRequest, found: Batch, *, shown: str = "") -> tuple[list[Row], int | None]:
    """One page of items, and the number after which the next one begins."""
    if shown and shown not in BECAME and shown not in (running.FAILED, running.ON_ITS_WAY):
        raise InvalidQuery(f"no outcome is called {shown[:40]!r}; there are {', '.join(BECAME)}")
    said = request.GET.get("after", "")
    after = int(said) if said.isascii() and said.isdigit() and len(said) < 10 else 0
    items = list(running.items_showing(found, shown).filter(number__gt=after)[: ROWS + 1])
    _hide_anew(found, items)
    may_see, is_mine = visible(request.user), found.by_id == request.user.pk
    rows = [
        Row(
            item=item,
            is_shown=may_see(item.store, item.tool) if item.tool else is_mine,
            why=item.why_for(sees_problems=sees_problems(request.user, item.store)),
            turn=bulk.turn_of_item(item, by=user_of(request)) if found.is_draft else None,
        )
        for item in items[:ROWS]
    ]
    return rows, rows[-1].item.number if len(items) > ROWS else None


def _hide_anew(found: Batch, items: Sequence[BatchItem]) -> None:
    """Sentences were kept when the preview was made. Where a policy came later that hides something, its tool's are not shown any more."""
    if items:
        later = {tool for tool, one in read_book().policies.items() if one.redacted_names and one.created_at > found.created_at}
        for item in items:
            item.sentence = "" if item.tool in later else item.sentence
