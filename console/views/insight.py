"""Insight: how well doubt is settled, as small charts with their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from zoneinfo import ZoneInfo

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_safe

from actions.errors import InvalidQuery
from console.access import Right, may_somewhere, require_known, visible_stores
from console.charts import Bars, Columns, bars, columns
from console.durations import format_duration
from console.forms import DEFAULT_SPAN, SPANS, InsightFilters, problems_by_field, typed_in
from console.htmx import render_part
from console.services.insight import AGES, Insight, read_insight
from console.services.insight_histories import MAX_LISTED
from console.services.insight_settled import PEOPLE, RESOLVERS, Took
from console.services.people import preferences_of
from console.store_news import told
from console.templatetags.settle import age
from console.untrusted import redact_any, show
from console.views.gate import signed_in

LABEL = 28
"""Characters of a tool's name above its bar; whole in the table."""
BARS = 12
"""Tools that are drawn; the table has more."""
SPAN_WORDS = {"24h": "24 hours", "7d": "7 days", "30d": "30 days", "90d": "90 days"}


@signed_in
@require_safe
def insight(request: HttpRequest) -> HttpResponse:
    """The numbers of a range, for those who may read the history; each of what they may see. No number where a condition means nothing."""
    if not may_somewhere(request.user, Right.HISTORY):
        raise PermissionDenied("you need a role that may read the history")
    zone = ZoneInfo(preferences_of(request.user).time_zone)
    filters = InsightFilters(request.GET, now=timezone.now(), zone=zone)
    stores = visible_stores(request.user)
    wrong, typed = problems_by_field(filters), typed_in(filters)
    try:
        require_known(stores, [filters.cleaned_data["store"]] if filters.cleaned_data.get("store") else [])
    except InvalidQuery as exc:
        wrong["store"] = str(exc)
    has_times = bool(typed["since"] or typed["until"])
    form = {
        "stores": [store.name for store in stores],
        "spans": [(name, SPAN_WORDS[name], not has_times and name == (typed["span"] or DEFAULT_SPAN)) for name in SPANS],
        "is_filtered": any(typed.values()),
        "zone_name": zone.key,
        "wrong": wrong,
    }
    if wrong:
        return render_part(request, "insight/insight.html", "insight/_insight.html", {**form, "typed": typed}, status=400)
    asked = filters.to_asked()
    found = read_insight(request.user, asked, zone)
    times = {"since": _in_field(asked.since, zone), "until": _in_field(asked.until, zone), "span": ""} if has_times else {}
    context = {
        **form,
        "typed": typed | times,
        "found": found,
        "asked": asked,
        "ages": [word for word, _ in AGES],
        "problems": [(name, told(request.user, name, problem)) for name, problem in found.problems.items()],
        "open_total": sum(found.by_age),
        "settled_total": sum(found.settled.values()),
        "max_listed": MAX_LISTED,
        **_charts(found, zone),
    }
    return render_part(request, "insight/insight.html", "insight/_insight.html", context)


def _charts(found: Insight, zone: ZoneInfo) -> dict[str, Bars | Columns | list[str] | list[tuple[str, str, Took]]]:
    pattern = "%-d %b %H:%M" if found.is_hourly else "%-d %b"
    edges = [f"{found.slots[n].at.astimezone(zone):{pattern}}" for n in (0, -1)] if found.slots else []
    spans = [
        (by, since, found.took[by][number])
        for by in (PEOPLE, RESOLVERS)
        for number, since in enumerate(("since it began", "since it was first asked about"))
    ]
    return {
        "age_chart": bars([(word, f"{n:,}", [n]) for (word, _), n in zip(AGES, found.by_age, strict=True)]),
        "slot_chart": columns([(slot.people, slot.resolvers, slot.agents) for slot in found.slots]),
        "slot_edges": edges,
        "took_rows": spans,
        "took_chart": bars([_took_row(by, since, one) for by, since, one in spans if one.count]),
        "share_chart": bars(
            [
                (_label(line.tool), f"{line.share} % of {line.total:,}", [line.people, line.resolvers, line.agents])
                for line in found.tools[:BARS]
            ],
            is_share=True,
        ),
        "pace_chart": bars(
            [
                (show(line.name, limit=LABEL).plain, format_duration(round(line.pace.median_s or 0)), [line.pace.median_s or 0])
                for line in found.reviewers[:BARS]
                if line.pace.count
            ]
        ),
    }


def _took_row(by: str, since: str, one: Took) -> tuple[str, str, Sequence[float]]:
    """The median as the solid part, and from there to the 95th percentile hatched."""
    median, p95 = one.median_s or 0, one.p95_s or 0
    return f"{by}, {since}", f"{_length(median)} · {_length(p95)}", [median, p95 - median]


def _length(seconds: float | None) -> str:
    return "—" if seconds is None else age(round(seconds))


def _label(tool: str) -> str:
    """For inside a drawing, which holds no elements: hidden characters named, cut short."""
    return show(redact_any(tool), limit=LABEL).plain + ("…" if len(tool) > LABEL else "")


def _in_field(at: datetime, zone: ZoneInfo) -> str:
    return f"{at.astimezone(zone):%Y-%m-%dT%H:%M}"
