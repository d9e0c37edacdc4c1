"""What people fill in: the queue's filters, a decision, the history's filters. Plain forms; they work without JavaScript."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, NamedTuple
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from django import forms
from django.contrib.auth.models import AnonymousUser

from actions.errors import InvalidQuery
from actions.queries import IN_DOUBT, ActionFilter, parse_classes, parse_states
from actions.records import Action, ActionClass, ActionRef, ActionState
from actions.rules import MAX_ERROR_CHARS, MAX_REASON_CHARS
from actions.times import SECOND, Instant, format_rfc3339, parse_rfc3339, to_datetime
from console.access import Person
from console.history import HistoryFilter
from console.services.claimed import ME, NOBODY, refs_claimed
from console.services.correct import CorrectionRequest
from console.services.decide import DecisionRequest
from console.services.evict import EvictionRequest, holder_digest
from console.services.evidence import NOBODY_ASKED, refs_with_verdict
from console.services.insight_histories import Asked
from console.services.notes import refs_due
from console.words import OUTCOMES, STATES, TRUTHS

SETTLED = "done,failed,abandoned"
ANY = "any"
DUE = "due"
# Nobody knows the class or tool of an unreadable record: it stands with the doubtful ones until something narrower is asked for.
_DOUBT = IN_DOUBT.states - {ActionState.UNREADABLE}
_OPEN_IN_ORDER = (
    ActionState.INTERRUPTED,
    ActionState.UNKNOWN,
    ActionState.UNCLEAR,
    ActionState.IN_FLIGHT,
    ActionState.UNREADABLE,
)
_VERDICTS = [
    ("", "any verdict"),
    ("done", "it happened"),
    ("failed", "it did not happen"),
    ("conflict", "found, but it differs"),
    ("unknown", "cannot tell"),
    (NOBODY_ASKED, "none yet"),
]
_AGES = [("", "any age"), ("300", "over 5 min"), ("3600", "over 1 h"), ("86400", "over 1 day"), ("604800", "over 7 days")]


def _state_choices() -> list[tuple[str, str]]:
    opened = [(state.value, STATES[state].word) for state in _OPEN_IN_ORDER]
    closed = [(state, STATES[state].word) for state in SETTLED.split(",")]
    return [("", "in doubt"), *opened, (SETTLED, "settled"), *closed, (ANY, "any state")]


_CLASS_CHOICES = [
    ("", "external"),
    ("idempotent", "idempotent"),
    ("pure", "pure"),
    ("idempotent,pure", "idempotent, pure"),
    (ANY, "any class"),
]


MAX_SHOWN = 50
"""Verdicts that one decision notes as shown."""
SPANS = {"24h": 1, "7d": 7, "30d": 30, "90d": 90}
"""Named ranges of the insight page, in days."""
DEFAULT_SPAN = "30d"
MAX_DAYS = 366
MAX_TYPED = 1_000
"""Characters of a field that are drawn again; an address may be longer than any condition."""
BY_CRASH = "crash"
_LABELS = {
    "state": "State",
    "cls": "Class",
    "tool": "Tool",
    "store": "Store",
    "agent": "Agent",
    "age": "Age",
    "text": "Text",
    "verdict": "Verdict",
    "claimed": "Claimed by",
    "look": "Look again",
}
_JOINED = frozenset({"state", "cls", "tool", "store", "agent"})


class FilterChip(NamedTuple):
    """One condition of a filter, and the filter without it. `value` is what somebody typed: show it as such."""

    label: str
    value: str
    query: str


class QueueFilters(forms.Form):
    """The queue's filters as they stand in its address. Values may be joined by commas, as in the API; names are checked by the query."""

    state = forms.CharField(required=False, max_length=200)
    cls = forms.CharField(required=False, max_length=100)
    tool = forms.CharField(required=False, max_length=500)
    store = forms.CharField(required=False, max_length=500)
    agent = forms.CharField(required=False, max_length=500)
    age = forms.IntegerField(required=False, min_value=0, max_value=10 * 365 * 86400)
    text = forms.CharField(required=False, max_length=200)
    verdict = forms.CharField(required=False, max_length=20)
    claimed = forms.CharField(required=False, max_length=150)
    look = forms.CharField(required=False, max_length=20)
    group = forms.CharField(required=False, max_length=20)

    def clean_group(self) -> str:
        said: str = self.cleaned_data["group"]
        if said not in ("", BY_CRASH):
            raise forms.ValidationError(f"calls are grouped by {BY_CRASH}, or not at all")
        return said

    def add_prefix(self, field_name: str) -> str:
        return "class" if field_name == "cls" else field_name

    def to_filter(self, by: Person | None = None) -> ActionFilter:
        """What the list is asked. Nothing said about states and classes means: external calls in doubt. `by` is who asks, for "me".

        Raises:
            InvalidQuery: a state, class, verdict or user that does not exist, named in the message.
        """
        said = self.cleaned_data
        only, without = self._by_verdict(said["verdict"])
        if said["claimed"]:
            theirs, others = refs_claimed(said["claimed"], by=by or AnonymousUser())
            only, without = _both(only, theirs), without | others
        if said["look"]:
            if said["look"] != DUE:
                raise InvalidQuery(f"look can only be {DUE}, not {said['look']!r}")
            only = _both(only, refs_due())
        states = self._states(said["state"])
        narrowed = said["tool"] or said["text"] or said["verdict"] or said["claimed"] or said["look"]
        if not said["state"] and not narrowed:
            states |= {ActionState.UNREADABLE}
        return ActionFilter(
            states=states,
            classes=self._classes(said["cls"]),
            tools=_names(said["tool"]),
            stores=_names(said["store"]),
            agents=_names(said["agent"]),
            min_age_s=said["age"] or 0,
            text=said["text"].strip(),
            only=only,
            without=without,
        )

    @staticmethod
    def _by_verdict(said: str) -> tuple[frozenset[ActionRef] | None, frozenset[ActionRef]]:
        """Which actions alone, and which not: verdicts stand in the console's database, not in the stores."""
        if not said:
            return None, frozenset()
        if said not in {value for value, _ in _VERDICTS}:
            raise InvalidQuery(f"no verdict is called {said!r}; there are {', '.join(value for value, _ in _VERDICTS if value)}")
        found = refs_with_verdict(said)
        return (None, found) if said == NOBODY_ASKED else (found, frozenset())

    @staticmethod
    def _states(said: str) -> frozenset[ActionState]:
        if said == ANY:
            return frozenset(ActionState)
        return parse_states(said.split(",")) if said else _DOUBT

    @staticmethod
    def _classes(said: str) -> frozenset[ActionClass]:
        if said == ANY:
            return frozenset()
        return parse_classes(said.split(",")) if said else IN_DOUBT.classes

    @property
    def is_default(self) -> bool:
        return not any(self.cleaned_data.get(name) for name in self.fields if name != "group")

    @property
    def query(self) -> str:
        """The filter as it stands in an address, always written the same way; empty where nothing is filtered or grouped."""
        return self._query({})

    @property
    def chips(self) -> list[FilterChip]:
        """Every condition by itself, in the order of the form."""
        found = []
        for name in self.fields:
            said = str(self.cleaned_data.get(name) or "").strip()
            if not said or name == "group":
                continue
            values = [one.strip() for one in said.split(",") if one.strip()] if name in _JOINED else [said]
            for value in dict.fromkeys(values):
                rest = ",".join(one for one in values if one != value)
                found.append(FilterChip(_LABELS.get(name, name), self._word(name, value), self._query({name: rest})))
        return found

    def _query(self, changed: Mapping[str, str]) -> str:
        said = {name: changed.get(name, str(self.cleaned_data.get(name) or "").strip()) for name in self.fields}
        return urlencode({self.add_prefix(name): value for name, value in said.items() if value}, safe=",")

    def _word(self, name: str, value: str) -> str:
        options = {"state": self.state_options, "cls": self.class_options, "age": self.age_options, "verdict": _VERDICTS}
        options |= {"claimed": self.claimed_options}
        return dict(options.get(name, ())).get(value, value)

    def knows(self, name: str) -> bool:
        """Whether an address may say it: a misspelt filter must not mean "everything"."""
        return name in {self.add_prefix(field) for field in self.fields}

    def narrows(self, wanted: ActionFilter, stores: Collection[str]) -> bool:
        """Whether it (`wanted` is its filter) leaves out any of what is in doubt in these stores: an empty filter is not a filter."""
        by_store = bool(wanted.stores) and not wanted.stores >= set(stores)
        by_class = bool(wanted.classes) and ActionClass.EXTERNAL not in wanted.classes
        by_words = wanted.tools or wanted.agents or wanted.min_age_s or wanted.text or wanted.only is not None or wanted.without
        return bool(by_words or by_store or by_class or not wanted.states >= _DOUBT)

    @property
    def state_options(self) -> list[tuple[str, str]]:
        return _with(_state_choices(), self.cleaned_data.get("state", ""))

    @property
    def class_options(self) -> list[tuple[str, str]]:
        return _with(_CLASS_CHOICES, self.cleaned_data.get("cls", ""))

    @property
    def verdict_options(self) -> list[tuple[str, str]]:
        return _VERDICTS

    @property
    def claimed_options(self) -> list[tuple[str, str]]:
        return _with([("", "anybody or nobody"), (ME, "me"), (NOBODY, "nobody")], self.cleaned_data.get("claimed", ""))

    @property
    def age_value(self) -> str:
        return str(self.cleaned_data.get("age") or "")

    @property
    def age_options(self) -> list[tuple[str, str]]:
        return _with(_AGES, self.age_value)


class DecisionForm(forms.Form):
    """What happened, and how the person knows. `turn_seen` is the digest of the turn that stood on the screen when it was sent.

    `seen_against` is the verdict that the person has seen and decides against.
    """

    outcome = forms.ChoiceField(choices=[(outcome.value, outcome.label) for outcome in OUTCOMES])
    reason = forms.CharField(
        max_length=MAX_REASON_CHARS, error_messages={"required": "A reason is required: what did you see, and where?"}
    )
    result = forms.CharField(required=False, strip=False)
    error = forms.CharField(required=False, max_length=MAX_ERROR_CHARS)
    look_again_at = forms.DateTimeField(required=False)
    decision_id = forms.CharField(max_length=64)
    seen = forms.CharField(required=False, max_length=64)
    turn_seen = forms.CharField(required=False, max_length=64)
    evidence_id = forms.CharField(required=False, max_length=40)
    seen_against = forms.CharField(required=False, max_length=40)

    outcome.error_messages["required"] = "Say what happened first."

    @property
    def look_again_value(self) -> str:
        """As it was typed."""
        return str(self.data.get("look_again_at", "")) if self.is_bound else ""

    def to_request(self) -> DecisionRequest:
        """The decision; what belongs to another outcome than the chosen one is left out."""
        said: dict[str, Any] = self.cleaned_data
        outcome = said["outcome"]
        return DecisionRequest(
            outcome=outcome,
            reason=said["reason"],
            decision_id=said["decision_id"],
            seen=said["seen"],
            result=said["result"] if outcome == "done" else "",
            error=said["error"] if outcome == "failed" else "",
            look_again_at=said["look_again_at"] if outcome == "later" else None,
            evidence_id=said["evidence_id"],
            evidence_shown=tuple(self.data.getlist("shown")[:MAX_SHOWN]) if hasattr(self.data, "getlist") else None,
        )


def new_decision_form(digest: str, action: Action | None = None) -> DecisionForm:
    """An empty form for what is shown now; its decision id is made here, so that sending it twice is one decision."""
    initial = {"decision_id": str(uuid.uuid4()), "seen": digest}
    if action is not None and action.action_class is ActionClass.PURE:
        initial["outcome"] = "abandoned"
    return DecisionForm(initial=initial)


class CorrectionForm(forms.Form):
    """What really happened, and how the person knows. `basis` is the entry that was shown as what the agent was told last."""

    outcome = forms.ChoiceField(choices=[(one.value, one.label) for one in TRUTHS])
    reason = forms.CharField(
        max_length=MAX_REASON_CHARS, error_messages={"required": "A reason is required: what did you see, and where?"}
    )
    correction_id = forms.CharField(max_length=64)
    basis = forms.IntegerField(required=False, min_value=0, max_value=2**63 - 1)
    turn_seen = forms.CharField(required=False, max_length=64)

    outcome.error_messages["required"] = "Say what really happened first."

    def to_request(self) -> CorrectionRequest:
        said: dict[str, Any] = self.cleaned_data
        return CorrectionRequest(
            outcome=said["outcome"], reason=said["reason"], correction_id=said["correction_id"], basis=said["basis"]
        )


def new_correction_form(basis: int) -> CorrectionForm:
    """An empty form about what its agent was told last; its id is made here, so that sending it twice is one correction."""
    return CorrectionForm(initial={"correction_id": str(uuid.uuid4()), "basis": basis})


class NoteForm(forms.Form):
    """A note about an action, and perhaps a time to look again, in UTC."""

    text = forms.CharField(max_length=MAX_REASON_CHARS, error_messages={"required": "A note is required."})
    look_again_at = forms.DateTimeField(required=False)
    note_id = forms.CharField(max_length=64)


class HandOverForm(forms.Form):
    """To whom one's claims go, with a note."""

    to = forms.CharField(max_length=150, error_messages={"required": "Choose who is to have them."})
    text = forms.CharField(required=False, max_length=MAX_REASON_CHARS)
    handover_id = forms.CharField(max_length=64)


class EvictionForm(forms.Form):
    """Why a lease is taken away, and the agent's id typed once more. `holder` is bound to the one that was shown."""

    reason = forms.CharField(
        max_length=MAX_REASON_CHARS,
        error_messages={"required": "A reason is required: how do you know that its process is gone?"},
    )
    confirm = forms.CharField(max_length=255, error_messages={"required": "Type the agent's id to confirm."})
    holder = forms.CharField(max_length=255)
    decision_id = forms.CharField(max_length=64)

    def to_request(self) -> EvictionRequest:
        return EvictionRequest(**self.cleaned_data)


def new_eviction_form(holder: str) -> EvictionForm:
    """An empty form about the holder that is shown now; its id is made here, so that sending it twice is one eviction."""
    return EvictionForm(initial={"decision_id": str(uuid.uuid4()), "holder": holder_digest(holder)})


class HistoryFilters(forms.Form):
    """The history's filters as they stand in its address. Times without a zone are of `zone`: of whoever typed them."""

    store = forms.CharField(required=False, max_length=63)
    agent = forms.CharField(required=False, max_length=255)
    tool = forms.CharField(required=False, max_length=255)
    kind = forms.CharField(required=False, max_length=63)
    actor = forms.CharField(required=False, max_length=200)
    outcome = forms.CharField(required=False, max_length=16)
    seq = forms.IntegerField(required=False, min_value=1, max_value=2**63 - 1)
    since = forms.CharField(required=False, max_length=40)
    until = forms.CharField(required=False, max_length=40)
    text = forms.CharField(required=False, max_length=200)

    def __init__(self, data: Mapping[str, Any], *, zone: tzinfo = UTC) -> None:
        super().__init__(data)
        self._zone = zone

    def clean_since(self) -> Instant | None:
        return _moment(self.cleaned_data["since"], self._zone, is_last=False)

    def clean_until(self) -> Instant | None:
        return _moment(self.cleaned_data["until"], self._zone, is_last=True)

    def to_filter(self) -> HistoryFilter:
        return HistoryFilter(**self.cleaned_data)


def _moment(said: str, zone: tzinfo, *, is_last: bool) -> Instant | None:
    """A day or a minute as a browser's field says it, by the clocks of `zone`; or RFC 3339 with its own zone.

    What the clocks showed twice, or never, is the first moment that it can be, or the last where `is_last`: a range leaves nothing out.
    """
    if not said:
        return None
    with suppress(ValueError):
        return parse_rfc3339(said)
    for text in (f"{said}Z", f"{said}:00Z", f"{said}T00:00:00Z"):
        with suppress(ValueError):
            return _at(parse_rfc3339(text), zone, is_last=is_last)
    raise forms.ValidationError(
        f"this is no time: write a day (2026-11-30), a minute (2026-11-30T18:20, {zone}), or RFC 3339 with a zone"
    )


def _at(shown: Instant, zone: tzinfo, *, is_last: bool) -> Instant:
    """A moment at which the clocks of `zone` show what `shown` is in UTC: of two, or where they skip it, the first or the last that it can be."""
    try:
        local = to_datetime(shown).replace(tzinfo=zone)
        offsets = [local.replace(fold=fold).utcoffset() or timedelta() for fold in (0, 1)]
        moment = shown - int((min(offsets) if is_last else max(offsets)).total_seconds()) * SECOND
        format_rfc3339(moment)  # what no calendar has, none of our texts can say
    except OverflowError:
        return shown
    return moment


class InsightFilters(forms.Form):
    """Which time, in the person's own zone, and of what; times beat a span. Without either: the last 30 days."""

    span = forms.ChoiceField(required=False, choices=[(name, name) for name in SPANS])
    since = forms.CharField(required=False, max_length=40)
    until = forms.CharField(required=False, max_length=40)
    store = forms.CharField(required=False, max_length=63)
    tool = forms.CharField(required=False, max_length=255)

    def __init__(self, data: Mapping[str, Any], *, now: datetime, zone: ZoneInfo) -> None:
        super().__init__(data)
        self._now = now
        self._zone = zone

    def clean_since(self) -> datetime | None:
        return _moment_in(self.cleaned_data["since"], self._zone)

    def clean_until(self) -> datetime | None:
        return _moment_in(self.cleaned_data["until"], self._zone, is_last=True)

    def clean(self) -> dict[str, Any]:
        """One range, begun before it ends, and no longer than a year."""
        said = self.cleaned_data
        if self.errors.keys() & {"span", "since", "until"}:
            return said
        until = said["until"] or self._now
        since = said["since"] or until - timedelta(days=SPANS[said["span"] or DEFAULT_SPAN])
        typed_last = "since" if said["since"] else "until"
        if not since < until:
            self.add_error(typed_last, "the time begins before it ends: give an earlier beginning, or a later end")
        elif until - since > timedelta(days=MAX_DAYS):
            self.add_error(typed_last, f"at most {MAX_DAYS} days are looked at: give a later beginning, or an earlier end")
        return {**said, "since": since, "until": until}

    def to_asked(self) -> Asked:
        said = self.cleaned_data
        return Asked(since=said["since"], until=said["until"], store=said["store"], tool=said["tool"])


def _moment_in(said: str, zone: ZoneInfo, *, is_last: bool = False) -> datetime | None:
    """The same for a page whose range must be one."""
    at = _moment(said, zone, is_last=is_last)
    if at is None:
        return None
    found = to_datetime(at)
    if not 1970 <= found.year <= 9000:  # beyond what any zone can shift, and what no chain is of
        raise forms.ValidationError("no history is of that time")
    return found


class AgentFilters(forms.Form):
    """The filters of the list of agents as they stand in its address."""

    store = forms.CharField(required=False, max_length=63)
    text = forms.CharField(required=False, max_length=255)


def typed_in(form: forms.Form) -> dict[str, str]:
    """What stands in each field as it came, for a form that is drawn again: nothing typed is lost by what is wrong beside it."""
    return {name: str(form.data.get(name, ""))[:MAX_TYPED].replace("\x00", "\ufffd") for name in form.fields}


def problems_by_field(form: forms.Form) -> dict[str, str]:
    """What is wrong with each field, for a form that says it there; empty where nothing is."""
    return {name: " ".join(str(problem) for problem in problems) for name, problems in form.errors.items()}


def problems_of(form: forms.Form) -> str:
    """What is wrong with a form that has no page of its own, in one line."""
    return "; ".join(f"{name}: {problem}" for name, problem in problems_by_field(form).items())


def _names(said: str) -> frozenset[str]:
    return frozenset(name.strip() for name in said.split(",") if name.strip())


def _both(one: frozenset[ActionRef] | None, other: frozenset[ActionRef] | None) -> frozenset[ActionRef] | None:
    """What two conditions leave; None is no condition."""
    return other if one is None else one if other is None else one & other


def _with(options: Iterable[tuple[str, str]], said: str) -> list[tuple[str, str]]:
    """The options, and the one that stands in the address even where no option says it."""
    found = list(options)
    return found if said in {value for value, _ in found} else [*found, (said, said.replace(",", ", "))]
