"""The world beside an action: what resolvers found, and where the asking stands."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.utils import timezone

from actions.digests import canonical_json, sha256_text
from actions.queries import ActionItem
from console.access import Right, may
from console.addresses import tool_address
from console.evidence import views_of
from console.models import Inquiry
from console.services.around import EVERYTHING, There
from console.services.asking import NobodyToAsk, check_askable, who_is_asked
from console.services.incidents import incidents_of
from console.services.verdicts import inquiries_of, verdicts_of

VERDICTS_SHOWN = 20


def world_context(request: HttpRequest, item: ActionItem, there: There = EVERYTHING) -> dict[str, Any]:
    """Everything that the panel shows of one action, for somebody who may read it. What is not `there` is not read."""
    ref = item.ref
    tool = item.action.tool if item.action else ""
    row = inquiries_of([ref]).get(ref) if there.inquiries else None
    views = views_of(verdicts_of(ref, limit=VERDICTS_SHOWN)) if row is not None else ()
    nobody, resolver = _whom(item)
    incidents = incidents_of(ref) if there.incidents else ()
    is_open = item.action is not None and item.action.is_open
    return {
        "verdicts": views,
        "inquiry": row,
        "asking": _asking(row),
        "nobody": nobody,
        "resolver_name": resolver,
        "may_ask": is_open and not nobody and may(request.user, Right.SETTLE, store=item.store, tool=tool),
        "tool_url": tool_address(tool),
        "may_admin_tool": bool(tool) and may(request.user, Right.ADMIN, tool=tool),
        "dry_run_resolver": resolver if resolver and may(request.user, Right.ADMIN) else "",
        "reads_resolvers": may(request.user, Right.READ),
        "incidents": incidents,
        "world_version": _version(views, row, nobody, resolver, item, incidents),
    }


def _whom(item: ActionItem) -> tuple[str, str]:
    """Why nobody can be asked about it, or who is."""
    try:
        action = check_askable(item)
    except NobodyToAsk as exc:
        if item.action is None or item.action.is_open:
            return str(exc), ""
        action = item.action  # it has ended: whom one would ask is still worth a link
    try:
        policy, _ = who_is_asked(action.tool)
    except NobodyToAsk as exc:
        return str(exc), ""
    return "", policy.resolver


def _asking(row: Inquiry | None) -> str:
    """Where the question stands: asking, waiting for a worker, due later, or nothing to say."""
    now = timezone.now()
    if row is None:
        return ""
    if row.asking_until is not None and row.asking_until > now:
        return "asking"
    if row.due_at is not None and row.due_at <= now:
        return "queued"
    return "later" if row.due_at is not None else ""


def _version(
    views: tuple[Any, ...], row: Inquiry | None, nobody: str, resolver: str, item: ActionItem, incidents: tuple[Any, ...]
) -> str:
    """Moves when the panel would say something else: only then a live update replaces what somebody reads."""
    inquiry = [str(getattr(row, name)) for name in ("asked", "problem", "due_at", "given_up_at")] if row else []
    verdicts, opened = [view.id for view in views], [f"{one.pk} {one.closed_at}" for one in incidents]
    said = [verdicts, inquiry, _asking(row), nobody, resolver, item.state.value, opened]
    return sha256_text(canonical_json({"said": said}))[:16]
