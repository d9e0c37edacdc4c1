"""What people fill in: the queue's filters, a decision, the history's filters. Plain forms; they work without JavaScript."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

from django import forms

from actions.errors import InvalidQuery
from actions.queries import IN_DOUBT, ActionFilter, parse_classes, parse_states
from actions.records import Action, ActionClass, ActionRef, ActionState
from actions.rules import MAX_ERROR_CHARS, MAX_REASON_CHARS
from actions.times import Instant, parse_rfc3339
from console.history import HistoryFilter
from console.services.decide import DecisionRequest
from console.services.evict import EvictionRequest, holder_digest
from console.services.evidence import NOBODY_ASKED, refs_with_verdict
from console.words import OUTCOMES, STATES

SETTLED = "done,failed,abandoned"
ANY = "any"
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

    def add_prefix(self, field_name: str) -> str:
        return "class" if field_name == "cls" else field_name

    def to_filter(self) -> ActionFilter:
        """What the list is asked. Nothing said about states and classes means: external calls in doubt.

        Raises:
            InvalidQuery: a state, class or verdict that does not exist, named in the message.
        """
        said = self.cleaned_data
        only, without = self._by_verdict(said["verdict"])
        states = self._states(said["state"])
        narrowed = said["tool"] or said["text"] or said["verdict"]
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
        return not any(self.cleaned_data.get(name) for name in self.fields)

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
        )


def new_decision_form(digest: str, action: Action | None = None) -> DecisionForm:
    """An empty form for what is shown now; its decision id is made here, so that sending it twice is one decision."""
    initial = {"decision_id": str(uuid.uuid4()), "seen": digest}
    if action is not None and action.action_class is ActionClass.PURE:
        initial["outcome"] = "abandoned"
    return DecisionForm(initial=initial)


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
    """The history's filters as they stand in its address."""

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

    def clean_since(self) -> Instant | None:
        return _moment(self.cleaned_data["since"])

    def clean_until(self) -> Instant | None:
        return _moment(self.cleaned_data["until"])

    def to_filter(self) -> HistoryFilter:
        return HistoryFilter(**self.cleaned_data)


def _moment(said: str) -> Instant | None:
    """A day or a minute as a browser's field says it, in UTC; or RFC 3339 with its zone."""
    if not said:
        return None
    texts = (said, f"{said}Z", f"{said}:00Z", f"{said}T00:00:00Z")
    for text in texts:
        try:
            return parse_rfc3339(text)
        except ValueError:
            continue
    raise forms.ValidationError("a day (2026-11-30), a minute in UTC (2026-11-30T18:20), or RFC 3339 with a zone")


def problems_of(form: forms.Form) -> str:
    """What is wrong with a form that has no page of its own, in one line."""
    return "; ".join(f"{name}: {' '.join(str(problem) for problem in problems)}" for name, problems in form.errors.items())


def _names(said: str) -> frozenset[str]:
    return frozenset(name.strip() for name in said.split(",") if name.strip())


def _with(options: Iterable[tuple[str, str]], said: str) -> list[tuple[str, str]]:
    """The options, and the one that stands in the address even where no option says it."""
    found = list(options)
    return found if said in {value for value, _ in found} else [*found, (said, said.replace(",", ", "))]
