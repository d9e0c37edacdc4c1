"""How a screen writes other people's text, times, ages and states. Everything is built by format_html: nothing is marked safe."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, tzinfo
from decimal import Decimal
from functools import lru_cache
from typing import Any, Protocol
from urllib.parse import urlencode

from django import template
from django.http import HttpRequest
from django.template import Context
from django.templatetags.static import static
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from actions.kept import Kept
from actions.records import Entry, Lease
from actions.times import Instant, format_rfc3339, to_datetime
from console import addresses
from console.durations import format_duration
from console.history import changed_in
from console.htmx import FROM_QUEUE, queue_query
from console.services.denials import words_of
from console.services.people import zone_of
from console.untrusted import LINE_CHARS, Piece, redact_any, show
from console.words import ENTRY_KINDS, STATES, RunWord

register = template.Library()


class HasLease(Protocol):
    """What was read of an agent's lease, and whether its store can say at all: the one is not shown without the other."""

    @property
    def lease(self) -> Lease | None: ...
    @property
    def leases_known(self) -> bool: ...


KEPT_CHARS, KEPT_TEXTS = 400, 4_096
"""Of texts up to so long, so many stay as they are drawn."""
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_ID = re.compile(r"(?<![\w@.:/-])(?=[\w-]{0,15}\d)([^\W_]+(?:-[^\W_]+){1,3})(?![\w@/-]|[.:]\w)", re.ASCII)
"""Order numbers, agents, keys such as `A-17`, `billing-agent-2`: browsers break lines at the hyphen."""
_LONGEST_ID = 24


@register.simple_tag
def shown(text: object, limit: int = LINE_CHARS) -> SafeString:
    """One line of somebody else's text that is redacted already: hidden characters named, isolated from its neighbours' direction."""
    return _html(str(text), limit, lines=False)


@register.simple_tag
def shown_lines(text: object, limit: int = 4096) -> SafeString:
    """The same over several lines; goes into an element that keeps line feeds."""
    return _html(str(text), limit, lines=True)


@register.simple_tag
def redacted(text: object, limit: int = LINE_CHARS) -> SafeString:
    """One line of a text that nobody redacted yet."""
    return _redacted_html(str(text), limit, lines=False)


@register.simple_tag
def redacted_lines(text: object, limit: int = 4096) -> SafeString:
    """Several lines of a text that nobody redacted yet."""
    return _redacted_html(str(text), limit, lines=True)


def _html(text: str, limit: int, *, lines: bool) -> SafeString:
    # Pages refresh by themselves, and most of what they show was shown before.
    return _short_html(text, limit, lines) if len(text) <= KEPT_CHARS else _made_html(text, limit, lines)


def _redacted_html(text: str, limit: int, *, lines: bool) -> SafeString:
    """Kept as well, but under a digest: a text that nobody redacted is kept nowhere."""
    if len(text) > KEPT_CHARS:
        return _made_html(redact_any(text), limit, lines)
    return _redacted.get((text,), (limit, lines), lambda: _made_html(redact_any(text), limit, lines))


def _made_html(text: str, limit: int, lines: bool) -> SafeString:
    found = show(text, limit=limit, lines=lines)
    body = format_html_join("", "{}", ((part,) for piece in found.pieces for part in _parts(piece, lines)))
    if not found.left_out:
        return format_html("<bdi>{}</bdi>", body)
    return format_html('<bdi>{}</bdi> <span class="cut">… {} more characters</span>', body, f"{found.left_out:,}")


_short_html = lru_cache(maxsize=KEPT_TEXTS)(_made_html)
_redacted = Kept[SafeString](KEPT_TEXTS)


def _parts(piece: Piece, lines: bool) -> Iterator[str | SafeString]:
    if piece.is_escape:
        yield format_html('<span class="esc">{}</span>', piece.text)
        return
    for at, text in enumerate([piece.text] if lines else _ID.split(piece.text)):
        yield format_html('<span class="id">{}</span>', text) if at % 2 and len(text) <= _LONGEST_ID else text


@register.simple_tag
def action_url(store: str, agent: str, seq: int | None) -> str:
    """The address of an action's page; empty where no address can name it: show it without a link then."""
    return addresses.action_address(store, agent, seq)


@register.simple_tag(takes_context=True)
def queue_url(context: Context) -> str:
    """The queue with the filter that this person came from."""
    query = _queue_query(context)
    return f"{reverse('queue')}?{query}" if query else reverse("queue")


@register.simple_tag(takes_context=True)
def from_queue(context: Context, url: str) -> str:
    """An action's address that remembers that filter, for pages of their own and their way back."""
    query = _queue_query(context)
    return f"{url}?{_from_queue(query)}" if query and url else url


@lru_cache(maxsize=256)
def _from_queue(query: str) -> str:
    return urlencode({FROM_QUEUE: query})


@register.simple_tag(takes_context=True)
def queue_field(context: Context) -> SafeString | str:
    """The same for a form, whose answer leads on."""
    query = _queue_query(context)
    return format_html('<input type="hidden" name="{}" value="{}">', FROM_QUEUE, query) if query else ""


def _queue_query(context: Context) -> str:
    """A template that is included with `only` still knows the request; what is drawn without one leads to the whole queue."""
    request = getattr(context, "request", None)
    if request is None:
        return ""
    if not hasattr(request, "came_from"):  # a list asks for every row
        request.came_from = queue_query(request)
    return str(request.came_from)


@register.simple_tag
def agent_url(store: str, agent: str, view: str = "agent") -> str:
    """The address of an agent's page, or of a piece of it; empty where no address can name it."""
    return addresses.agent_address(store, agent, view=view)


@register.filter
def of_number(found: Mapping[int, object], number: int) -> object:
    """What a mapping by numbers has for one of them; None where it has nothing."""
    return found.get(number)


@register.simple_tag
def tool_url(tool: str) -> str:
    """The address of a tool's page; empty where it has no name."""
    return addresses.tool_address(tool)


@register.simple_tag
def entry_url(store: str, number: int | None) -> str:
    """The address of an entry of the history; empty where no address can name it."""
    return addresses.entry_address(store, number)


@register.simple_tag
def state(name: str) -> SafeString:
    """A state as shape and word. What no state is called may be anything that stands in a row, and is shown as such."""
    if not name.isascii():
        return shown(name, 80)
    return _state_html(name)


@register.simple_tag
def stands(word: RunWord) -> SafeString:
    """Where a run or an approval stands, as shape and word; what it means is said where the pointer rests."""
    return format_html('<span class="state is-{}" title="{}">{} {}</span>', word.state, word.says, shape(word.shape), word.word)


@register.inclusion_tag("agents/_lease.html")
def lease_of(read: HasLease) -> dict[str, Any]:
    """Who holds the agent. Takes what was read whole, so that no page can leave out whether the store can say."""
    return {"lease": read.lease, "leases_known": read.leases_known}


@lru_cache(maxsize=256)
def _state_html(name: str) -> SafeString:
    word = STATES[name].word if name in STATES else name.replace("_", " ")
    return format_html('<span class="state is-{}">{} {}</span>', name, shape(name), word)


@register.simple_tag
@lru_cache(maxsize=256)
def shape(name: str) -> SafeString:
    """The shape of a state; says nothing to a screen reader, so a word always stands beside it."""
    return format_html('<svg class="shape" aria-hidden="true"><use href="{}#{}"></use></svg>', static("shapes.svg"), name)


@register.simple_tag(takes_context=True)
def instant(context: Context, at: Instant | datetime | None) -> SafeString | str:
    """A moment in the reader's zone, which it names: `18:20 UTC` today, `28 Nov 18:20 UTC` on other days of the year."""
    if at is None:
        return "—"
    moment, today = _local(context, at), _local(context, timezone.now())
    if moment.date() == today.date():
        return _time(at, moment, "%H:%M")
    return _time(at, moment, "%-d %b %H:%M" if moment.year == today.year else "%-d %b %Y %H:%M")


@register.simple_tag(takes_context=True)
def clock(context: Context, at: datetime | None) -> SafeString | str:
    """A moment of today to the second: what is counted down to."""
    return "—" if at is None else _time(at, _local(context, at), "%H:%M:%S")


@register.simple_tag(takes_context=True)
def dated(context: Context, at: Instant | datetime) -> SafeString:
    """A moment with its date, whatever day it is: for lists that are read much later."""
    moment = _local(context, at)
    return _time(at, moment, "%-d %b %H:%M" if moment.year == _local(context, timezone.now()).year else "%-d %b %Y %H:%M")


def _local(context: Context, at: Instant | datetime) -> datetime:
    """In the zone of the person of this request: a template that is included with `only` still knows the request."""
    moment = at if isinstance(at, datetime) else to_datetime(at)
    request = getattr(context, "request", None)
    try:
        return moment.astimezone(UTC if request is None else _zone_of(request))
    except OverflowError:
        return moment.astimezone(UTC)


def _zone_of(request: HttpRequest) -> tzinfo:
    zone: tzinfo | None = getattr(request, "read_in_zone", None)
    if zone is None:  # a time line asks for every line
        user = getattr(request, "user", None)
        zone = request.read_in_zone = UTC if user is None else zone_of(user)  # type: ignore[attr-defined]
    return zone


def _time(at: Instant | datetime, moment: datetime, pattern: str) -> SafeString:
    exact = at.isoformat() if isinstance(at, datetime) else format_rfc3339(at)
    name = moment.strftime("%Z")
    zone = name if name[:1].isalpha() else f"UTC{name}"
    return format_html('<time datetime="{}" title="{}">{} {}</time>', exact, exact, moment.strftime(pattern), zone)


@register.filter
def as_json(value: object) -> str:
    """For an attribute that a script reads; the template escapes it."""
    return json.dumps(value)


@register.filter
def age(seconds: int) -> str:
    """`40 s`, `41 min`, `3 h 20 min`, `2 d 4 h`, `40 d`: two units at most."""
    seconds = max(0, int(seconds))
    if seconds < _MINUTE:
        return f"{seconds} s"
    if seconds < _HOUR:
        return f"{seconds // _MINUTE} min"
    if seconds < _DAY:
        return _two(seconds, _HOUR, "h", _MINUTE, "min")
    return _two(seconds, _DAY, "d", _HOUR, "h") if seconds < 14 * _DAY else f"{seconds // _DAY} d"


def _two(seconds: int, big: int, big_name: str, small: int, small_name: str) -> str:
    whole, rest = divmod(seconds, big)
    return f"{whole} {big_name} {rest // small} {small_name}" if rest // small else f"{whole} {big_name}"


@register.filter
def duration(seconds: int) -> str:
    """Exactly so many seconds, as forms take them: `1 h 30 min`."""
    return format_duration(int(seconds))


@register.filter
def plain(text: object) -> str:
    """For places that hold no elements, as an option: hidden characters named in brackets, cut short."""
    return show(redact_any(str(text)), limit=80).plain


@register.filter
def since(at: Instant | datetime) -> int:
    """Seconds from a moment until now, by this server's clock; 0 where it lies ahead."""
    moment = at if isinstance(at, datetime) else to_datetime(at)
    return max(0, int((timezone.now() - moment).total_seconds()))


@register.filter
def sentence(text: object) -> str:
    """A text that ends like a sentence, whoever wrote it."""
    said = str(text).strip()
    return said if said[-1:] in ".?!" else f"{said}."


@register.filter
def capped(number: int, most: int = 1000) -> str:
    """A count that never claims more than was worth counting: `1,000+`."""
    return f"{most:,}+" if number > most else f"{number:,}"


@register.simple_tag
def money(amount: Decimal) -> str:
    """An amount with every digit it has, at least two of them behind the point."""
    exponent = amount.as_tuple().exponent
    return f"{amount:,.{max(2, -exponent) if isinstance(exponent, int) else 2}f}"


@register.filter
def changed_of(entry: Entry) -> tuple[tuple[str, str, str | None], ...]:
    """What a change was about, for its line: the first few names with before and after. The entry's own page has all."""
    return changed_in({"changed": entry.detail.get("changed")})[:3]


@register.filter
def with_words(values: Iterable[object], words: Iterable[str]) -> list[tuple[str, object]]:
    """Each value of a row with the word of its column."""
    return list(zip(words, values, strict=True))


@register.filter
def about_of(entry: Entry) -> str:
    """Whom or what a step of the console's own was about, as it reads behind its verb. Of a refused attempt: what was tried, in words."""
    about = entry.detail.get("about") or ""
    if entry.kind == "denied" and about:
        return str(entry.detail.get("tried") or words_of(str(about)))
    return str(about)


@register.filter
def kind_says(entry: Entry) -> str:
    """What an entry's kind means, as the verb between who and what."""
    return ENTRY_KINDS.get(entry.kind) or shown(entry.kind, 80)
