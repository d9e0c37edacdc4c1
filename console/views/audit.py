"""Whether the histories hold, and taking them out: for those who may read or export them."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator

from asgiref.sync import sync_to_async
from django.core.exceptions import PermissionDenied
from django.db import connection
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_safe

from actions.errors import InvalidQuery
from console.access import Person, Right, may, may_somewhere, require_known, visible, visible_chains
from console.forms import HistoryFilters, problems_of
from console.history import require_kind
from console.htmx import render_part
from console.models import ExportRecord
from console.services import journal
from console.services.checkpoints import trusted_keys
from console.services.decide import actor_of
from console.services.exports import FORMATS, Export, begin_export
from console.services.verification import ask, is_running, newest_of
from console.store_news import told
from console.stores import EntryChain
from console.tasks import send_verifying
from console.views.gate import only_post, signed_in, user_of

_PIECE = 65_536


@signed_in
@require_safe
def verification(request: HttpRequest) -> HttpResponse:
    """What the last walk through each history found."""
    chains = _chains(request, Right.HISTORY)
    newest = newest_of(chain.name for chain in chains)
    lines = [
        (chain.name, row, told(request.user, chain.name, row.problem) if row is not None else "")
        for chain in chains
        for row in [newest.get(chain.name)]
    ]
    context = {
        "lines": lines,
        "running": {row.name for row in newest.values() if is_running(row)},
        "keys": trusted_keys(),
        "may_export": may_somewhere(request.user, Right.EXPORT),
        "may_verify": any(_may_verify(request.user, chain.name) for chain in chains),
    }
    return render_part(request, "history/verification.html", "history/_verification.html", context)


@signed_in
@only_post(lambda: reverse("verification"))
def verify_now(request: HttpRequest) -> HttpResponse:
    """Ask a worker for a walk through one history, or through each. It reads every entry there is, so it is for those who run or audit it."""
    chains = tuple(chain for chain in _chains(request, Right.HISTORY) if _may_verify(request.user, chain.name))
    if not chains:
        raise PermissionDenied(
            "you need the role auditor or admin to have the history verified; what the last walk found stands here"
        )
    only = request.POST.get("name", "")
    require_known(chains, [only] if only else [])
    asked = [ask(chain.name, by=actor_of(user_of(request))) for chain in chains if only in ("", chain.name)]
    send_verifying([row.pk for row, is_new in asked if is_new])
    return redirect("verification")


def _may_verify(user: Person, chain: str) -> bool:
    return any(may_somewhere(user, right, store=chain) for right in (Right.EXPORT, Right.ADMIN))


@signed_in
@only_post(lambda: reverse("history"))
def export(request: HttpRequest) -> HttpResponse:
    """The file as a stream; its manifest can be fetched once the last piece is out. That it was taken out is an entry, written first."""
    if not may_somewhere(request.user, Right.EXPORT):
        raise PermissionDenied("you need a role that may export the history")
    filters = HistoryFilters(request.POST)
    if not filters.is_valid():
        raise InvalidQuery(problems_of(filters))
    wanted = filters.to_filter()
    require_kind(wanted.kind)
    chains = visible_chains(request.user, Right.EXPORT)
    require_known(chains, [wanted.store] if wanted.store else [])
    format_ = request.POST.get("format", "")
    if format_ not in FORMATS:
        raise InvalidQuery(f"no format is called {format_[:20]!r}; there are {', '.join(FORMATS)}")
    by = actor_of(user_of(request))
    may_see, is_limited = visible(request.user, Right.EXPORT), not may(request.user, Right.EXPORT)
    made = begin_export(format_, wanted, by=by, chains=chains, may_see=may_see, is_limited=is_limited)
    file = f"settle-history-{timezone.now():%Y%m%d-%H%M%S}.{format_}"
    record = ExportRecord.objects.create(key=uuid.uuid4(), by=user_of(request), file=file)
    journal.record("exported", actor=by, detail={"filter": wanted.said, "format": format_, "export": str(record.key)})
    response = StreamingHttpResponse(_stream(made, record), content_type=_TYPES[format_])
    response["Content-Disposition"] = f'attachment; filename="{file}"'
    response["X-Content-Type-Options"] = "nosniff"
    response["X-Settle-Manifest"] = reverse("export-manifest", args=[record.key])
    response["Cache-Control"] = "no-store"
    return response  # type: ignore[return-value]  # a streamed response is one to Django, and not to its types


@signed_in
@require_safe
def exports(request: HttpRequest) -> HttpResponse:
    """What this person has taken out lately, with the manifests."""
    if not may_somewhere(request.user, Right.EXPORT):
        raise PermissionDenied("you need a role that may export the history")
    rows = ExportRecord.objects.filter(by=user_of(request)).order_by("-id")[:50]
    return render_part(request, "history/exports.html", "history/_exports.html", {"exports": rows})


@signed_in
@require_safe
def manifest(request: HttpRequest, key: uuid.UUID) -> HttpResponse:
    """The signed manifest of an export of one's own."""
    record = ExportRecord.objects.filter(key=key, by=user_of(request)).first()
    if record is None or not record.manifest:
        raise Http404("there is no such manifest, or its export did not come to its end")
    response = HttpResponse(record.manifest, content_type="application/json")
    response["Content-Disposition"] = f'attachment; filename="{record.file}.manifest.json"'
    return response


_TYPES = {"csv": "text/csv; charset=utf-8", "jsonl": "application/x-ndjson"}


async def _stream(made: Export, record: ExportRecord) -> AsyncIterator[bytes]:
    """In pieces; a history that cannot be read on breaks the download off, and there is no manifest for what came."""
    pieces = made.pieces()
    while piece := await sync_to_async(_take)(pieces):
        yield piece
    await sync_to_async(_finish)(made, record)


def _take(pieces: Iterator[bytes]) -> bytes:
    taken = bytearray()
    for piece in pieces:
        taken += piece
        if len(taken) >= _PIECE:
            break
    return bytes(taken)


def _finish(made: Export, record: ExportRecord) -> None:
    try:
        text = made.manifest(record.file)
        ExportRecord.objects.filter(pk=record.pk).update(finished_at=timezone.now(), rows=made.tally.rows, manifest=text)
    finally:
        if not connection.in_atomic_block:
            connection.close()


def _chains(request: HttpRequest, right: Right) -> tuple[EntryChain, ...]:
    if not may_somewhere(request.user, right):
        raise PermissionDenied(f"you need a role that may {'read' if right is Right.HISTORY else right} the history")
    return visible_chains(request.user, right)
