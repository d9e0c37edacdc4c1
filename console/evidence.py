"""Verdicts in words and shapes for a screen, and as a start for a decision. Pure but for the clock; texts were redacted when they were stored."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils import timezone

from actions.resolvers.verdict import Grade, Outcome
from actions.times import Instant
from console.models import StoredVerdict
from console.services.evidence import Standing
from console.words import Word

GRADES: Mapping[str, Word] = {
    Grade.EXACT: Word("exact", "our key was found, and every field that both sides tell agrees"),
    Grade.STRONG: Word("strong", "the provider's own id, or our key in something that tells nothing to compare"),
    Grade.WEAK: Word("weak", "it looks like it, without our key: never proof"),
    Grade.CONFLICT: Word("conflict", "our key is there, but something differs: somebody has to look"),
    "": Word("nothing found", "nothing that could be this call was found, or nobody answered"),
}
OUTCOMES: Mapping[str, Word] = {
    Outcome.DONE: Word("It happened", "found"),
    Outcome.FAILED: Word("It did not happen", "not found, and it would have to be there by now"),
    Outcome.UNKNOWN: Word("Cannot tell", "this proves nothing either way"),
}
CANARIES: Mapping[str, str] = {
    "found": "found: account, folder and rights are the right ones",
    "missing": "missing: account, folder or rights may be wrong",
    "not asked": "not looked for",
}
_STATE_OF = {Outcome.DONE: "done", Outcome.FAILED: "failed", Outcome.UNKNOWN: "unknown"}
_DECISION_OF = {Outcome.DONE: "done", Outcome.FAILED: "failed", Outcome.UNKNOWN: "later"}
_MAX_REASON_CHARS = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictView:
    """One verdict, or what a dry run came to, as the evidence panel draws it."""

    id: str  # empty for a dry run
    resolver: str
    version: int | None
    outcome: str
    grade: str
    evidence: Mapping[str, Any]
    asked_at: datetime | Instant
    check_again_at: datetime | Instant | None
    has_given_up: bool
    asked_for: str

    @property
    def state(self) -> str:
        """The state whose shape and colour stand for the outcome."""
        return "unclear" if self.grade == Grade.CONFLICT else _STATE_OF.get(Outcome(self.outcome), "unknown")

    @property
    def word(self) -> str:
        return OUTCOMES[self.outcome].word

    @property
    def grade_word(self) -> Word:
        return GRADES.get(self.grade, GRADES[""])

    @property
    def grade_shape(self) -> str:
        return f"grade-{self.grade or 'none'}"

    @property
    def canary(self) -> str:
        return CANARIES.get(str(self.evidence.get("canary", "")), str(self.evidence.get("canary", "")))

    @property
    def fields(self) -> list[dict[str, Any]]:
        """Claim against world; where one side does not tell, nothing agrees or differs."""
        return [
            {**row, "word": _AGREEMENTS[row["agrees"]][0], "shape": _AGREEMENTS[row["agrees"]][1]}
            for row in self.evidence["fields"]
        ]

    @property
    def decides(self) -> str:
        """The outcome that a decision resting on this would say."""
        return _DECISION_OF[Outcome(self.outcome)]


_AGREEMENTS = {True: ("agrees", "agrees"), False: ("differs", "differs"), None: ("not told", "not-told")}


def view_of(verdict: StoredVerdict) -> VerdictView:
    return VerdictView(
        id=verdict.evidence_id,
        resolver=verdict.resolver,
        version=verdict.version,
        outcome=verdict.outcome,
        grade=verdict.grade,
        evidence=json.loads(verdict.evidence),
        asked_at=verdict.asked_at,
        check_again_at=verdict.check_again_at,
        has_given_up=verdict.has_given_up,
        asked_for=verdict.asked_for,
    )


def views_of(verdicts: Iterable[StoredVerdict]) -> tuple[VerdictView, ...]:
    """Newest first."""
    return tuple(view_of(verdict) for verdict in sorted(verdicts, key=lambda verdict: -verdict.pk))


def reason_of(verdict: StoredVerdict) -> str:
    """What a person would write who decides by this verdict: what was found, where, when. They see it before anything is written."""
    grade = f", {verdict.grade}" if verdict.grade else ""
    said = " ".join(verdict.resolution.split())[:_MAX_REASON_CHARS]
    return f"{said} (resolver {verdict.resolver}{grade}, asked {verdict.asked_at:%Y-%m-%d %H:%M} UTC, {verdict.evidence_id})"


def in_few_words(standing: Standing) -> tuple[str, str]:
    """For a row of the queue: the newest verdict in a few words, and the state whose shape stands beside it."""
    name = standing.resolver
    if standing.is_asking or (standing.is_due and not standing.outcome and not standing.problem):
        return f"asking {name} …", "waiting"
    if not standing.outcome:
        return (f"{name} cannot be asked" if standing.problem else ""), "unreadable"
    words, state = _found(standing)
    return f"{name}: {words}{_when_again(standing)}", state


def _found(standing: Standing) -> tuple[str, str]:
    if standing.grade == Grade.CONFLICT:
        return "found, but it differs", "unclear"
    if standing.outcome == Outcome.DONE:
        return ("found" if standing.grade == Grade.EXACT else f"found ({standing.grade})"), "done"
    if standing.outcome == Outcome.FAILED:
        return "it did not happen", "failed"
    if standing.grade in (Grade.EXACT, Grade.STRONG):
        return "found, not certain", "unknown"
    if standing.grade == Grade.WEAK:
        return "only something like it", "unknown"
    return ("not yet" if standing.is_answered else "no answer"), "unknown"


def _when_again(standing: Standing) -> str:
    if standing.has_given_up:
        return ", gave up"
    at = standing.check_again_at
    # Where something differs, asking again seldom tells more: somebody has to look.
    if at is None or standing.outcome != Outcome.UNKNOWN or standing.grade == Grade.CONFLICT:
        return ""
    return f", look again {at:%H:%M} UTC" if at.date() == timezone.now().date() else f", look again {at.day} {at:%b}"
