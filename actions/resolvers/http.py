"""The kind `http`: one GET of a JSON interface, its answer read by CEL expressions of the definition. The key is compared here, whole."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from time import monotonic
from typing import Any
from urllib.parse import urlencode

from actions.facts import read_number
from actions.money import from_minor, to_minor
from actions.redaction import redact_text
from actions.resolvers.base import Allowed, Canary, Claim, Effect, Finding, Match, MatchedBy, Reply, Resolver
from actions.resolvers.claim import people_in
from actions.resolvers.http_answer import NoAnswer, action_values, evaluate, parse_json, refusal_of
from actions.resolvers.http_definition import KIND, PLACEHOLDER, Definition, read_definition
from actions.resolvers.verdict import CLOCK_SKEW, compare
from actions.resolvers.web import AddressRefused, NoResponse, Response, WebLimits, fetch
from actions.times import SECOND, Instant, from_datetime, parse_rfc3339

__all__ = ["KIND", "HttpResolver", "build"]

MAX_OBJECTS = 500
MAX_FOUND_CHARS = 2_000
MAX_SHOWN_CHARS = 300
_LAST_SECOND = 253_402_300_799
_PLAIN_KEY = re.compile(r"[A-Za-z0-9._@-]{1,200}", re.ASCII)


def build(name: str, settings: Mapping[str, str], secrets: Mapping[str, str], allowed: Allowed) -> Resolver:
    """As `build_resolver`, of the kind `http`."""
    definition = read_definition(settings, secrets, allowed)
    return HttpResolver(name=name, proves_absence=definition.proves_absence, definition=definition)


# --- asking ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Question:
    """What one `ask` has sent and received so far."""

    claim: Claim
    ends: float
    asked: list[str] = field(default_factory=list)
    status: str = ""
    digest: Any = field(default_factory=hashlib.sha256)
    has_answer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """A usable answer: the objects in it, with their keys."""

    objects: tuple[tuple[str, Any], ...]
    is_complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResolver:
    """One definition. The canary is asked for only where nothing was found by key: only absence needs it."""

    name: str
    definition: Definition
    proves_absence: bool
    kind: str = "http"
    copies_are_normal: bool = False

    def ask(self, claim: Claim, *, now: Instant) -> Finding:
        began = monotonic()
        question = _Question(claim=claim, ends=began + self.definition.seconds)
        try:
            answer = self._get(question, claim)
            matches = self._matches(question, answer)
            canary = Canary.NOT_ASKED
            if self.definition.canary_key and not any(match.by is MatchedBy.KEY for match in matches):
                canary = self._canary(question, answer)
            found = Finding(reply=Reply.ANSWERED, matches=matches, canary=canary, is_complete=answer.is_complete, asked_at=now)
        except NoAnswer as exc:
            found = Finding(reply=exc.reply, problem=exc.problem, retry_after_s=exc.retry_after_s, asked_at=now)
        return replace(
            found,
            asked=tuple(question.asked),
            account=self.definition.account,
            took_ms=int((monotonic() - began) * 1000),
            status=question.status,
            answer_digest=question.digest.hexdigest() if question.has_answer else "",
        )

    def _canary(self, question: _Question, answer: _Answer) -> Canary:
        """By the same request with the canary's key in place of ours; where the request has no key, in the same answer."""
        key = self.definition.canary_key
        if self._has_key_in_request():
            claim = question.claim
            answer = self._get(question, replace(claim, action=replace(claim.action, key=key)))
        return Canary.FOUND if any(found == key for found, _ in answer.objects) else Canary.MISSING

    def _has_key_in_request(self) -> bool:
        return any("{key}" in value for _, value in self.definition.params)

    def _get(self, question: _Question, claim: Claim) -> _Answer:
        definition = self.definition
        params = [(name, _filled(value, claim, is_minor=definition.is_minor)) for name, value in definition.params]
        question.asked.append(_shown(definition.url, params))
        try:
            response = fetch(
                definition.url,
                params,
                definition.headers,
                allowed_hosts=definition.allowed_hosts,
                limits=WebLimits(seconds=max(question.ends - monotonic(), 0.001)),
            )
        except AddressRefused as exc:
            raise NoAnswer(str(exc), reply=Reply.UNUSABLE) from None
        except NoResponse as exc:
            raise NoAnswer(str(exc)) from None
        question.status = str(response.status)
        question.has_answer = True
        question.digest.update(response.body)
        return self._read(question, response, claim)

    def _read(self, question: _Question, response: Response, claim: Claim) -> _Answer:
        status = response.status
        if status in self.definition.absent_statuses:
            return _Answer(objects=(), is_complete=True)
        if not 200 <= status < 300:
            raise refusal_of(response)
        values = {"status": status, "body": parse_json(response), "action": action_values(claim)}
        is_complete = evaluate("complete", self.definition.complete, values)
        if not isinstance(is_complete, bool):
            raise NoAnswer("complete: is neither true nor false")
        objects = self._objects(values)
        keys = [self._text(question, "key", {"object": one, "action": values["action"]}) for one in objects]
        return _Answer(objects=tuple(zip(keys, objects, strict=True)), is_complete=is_complete)

    def _objects(self, values: Mapping[str, Any]) -> list[Any]:
        if self.definition.objects is None:
            found = values["body"]
            found = found if isinstance(found, list) else [found]
        else:
            found = evaluate("objects", self.definition.objects, values)
        if not isinstance(found, list):
            raise NoAnswer("objects: is no list")
        if len(found) > MAX_OBJECTS:
            raise NoAnswer(f"objects: there are {len(found):,}; at most {MAX_OBJECTS} are looked at, so ask more narrowly")
        return found

    # --- objects

    def _matches(self, question: _Question, answer: _Answer) -> tuple[Match, ...]:
        claim = question.claim
        values = {"action": action_values(claim)}
        matches = []
        for number, (key, one) in enumerate(answer.objects, start=1):
            # An empty key of ours is in every object without one.
            is_ours = bool(key) and key == claim.action.key
            match = self._match(question, {"object": one, **values}, number, MatchedBy.KEY if is_ours else MatchedBy.FIELDS)
            if is_ours or _looks_like(match, claim):
                matches.append(match)
        return tuple(matches)

    def _match(self, question: _Question, values: Mapping[str, Any], number: int, by: MatchedBy) -> Match:
        currency = self._text(question, "currency", values).strip().upper()
        return Match(
            object_id=redact_text(self._text(question, "id", values))[:200] or f"object {number}",
            by=by,
            effect=self._effect(question, values),
            recipients=self._people(question, values),
            amount=self._amount(question, values, currency or question.claim.currency),
            currency=currency,
            reference=self._text(question, "reference", values),
            at=self._at(question, values),
            note="" if by is MatchedBy.KEY else "recipient and amount agree, the key does not",
        )

    def _part(self, question: _Question, name: str, values: Mapping[str, Any]) -> Any:
        """None where the definition does not say or the object tells null. Each is bounded; together they hold to the deadline."""
        if monotonic() > question.ends:
            raise NoAnswer(f"reading the answer took longer than {self.definition.seconds:.3g} s")
        expression = self.definition.parts.get(name)
        return None if expression is None else evaluate(name, expression, values)

    def _text(self, question: _Question, name: str, values: Mapping[str, Any]) -> str:
        found = self._part(question, name, values)
        if found is None:
            return ""
        # Ids and references are numbers at some providers; a key that is one is another key.
        if isinstance(found, int) and not isinstance(found, bool) and name in ("id", "reference"):
            found = str(found)
        if not isinstance(found, str):
            raise NoAnswer(f"{name}: is no text")
        if len(found) > MAX_FOUND_CHARS:
            raise NoAnswer(f"{name}: is longer than {MAX_FOUND_CHARS:,} characters")
        return found

    def _people(self, question: _Question, values: Mapping[str, Any]) -> tuple[str, ...]:
        found = self._part(question, "recipient", values)
        if found is None:
            return ()
        people = found if isinstance(found, list) else [found]
        if len(people) > 100 or not all(isinstance(one, str) and len(one) <= MAX_FOUND_CHARS for one in people):
            raise NoAnswer("recipient: is neither a text nor a list of texts")
        return people_in(people)

    def _amount(self, question: _Question, values: Mapping[str, Any], currency: str) -> Decimal | None:
        found = self._part(question, "amount", values)
        if found is None or found == "":
            return None
        number = read_number(found)
        if number is None:
            raise NoAnswer("amount: is no number of money")
        if not self.definition.is_minor:
            return number
        # How many digits the minor unit has, only the currency says.
        return from_minor(number, currency) if currency else None

    def _at(self, question: _Question, values: Mapping[str, Any]) -> Instant | None:
        found = self._part(question, "at", values)
        if found is None or found == "":
            return None
        try:
            if isinstance(found, str):
                return parse_rfc3339(found)
            if isinstance(found, datetime):
                return from_datetime(found)
        except ValueError:
            raise NoAnswer("at: is no time with a zone, such as 2026-11-29T12:00:00Z") from None
        if isinstance(found, int | Decimal) and not isinstance(found, bool) and 0 < found <= _LAST_SECOND:
            return int(found * SECOND)
        raise NoAnswer("at: is neither a time nor seconds since 1970")

    def _effect(self, question: _Question, values: Mapping[str, Any]) -> Effect:
        if "effect" not in self.definition.parts:
            return Effect.HAPPENED
        try:
            return Effect(self._text(question, "effect", values))
        except ValueError:
            raise NoAnswer(f"effect: is none of {', '.join(Effect)}") from None


def _looks_like(match: Match, claim: Claim) -> bool:
    """Same recipient and amount; where the call has no amount, same recipient and not older than the call. Nothing differs."""
    rows = {row.name: row.agrees for row in compare(claim, match)}
    if rows.get("recipient") is not True or False in rows.values():
        return False
    if claim.amount is not None:
        return rows.get("amount") is True
    return match.at is not None and match.at >= claim.action.started_at - CLOCK_SKEW


# --- requests --------------------------------------------------------------------------------------------------------


def _filled(template: str, claim: Claim, *, is_minor: bool) -> str:
    """A parameter's value. A missing one is not asked with: an empty filter may find everything or nothing."""

    def value(found: re.Match[str]) -> str:
        name = found[1]
        text = _placeholder(name, claim, is_minor=is_minor)
        if not text:
            raise NoAnswer(f"the question needs a {name}, and the call tells none", reply=Reply.UNUSABLE)
        if name == "key" and found[0] != template and not _PLAIN_KEY.fullmatch(text):
            raise NoAnswer("the key holds characters that could change what the parameter around it means", reply=Reply.UNUSABLE)
        return text

    return PLACEHOLDER.sub(value, template)


def _placeholder(name: str, claim: Claim, *, is_minor: bool) -> str:
    action = claim.action
    if name == "amount":
        if claim.amount is None or (is_minor and not claim.currency):
            return ""
        return f"{to_minor(claim.amount, claim.currency) if is_minor else claim.amount:f}"
    if name == "recipient":
        if len(claim.recipients) > 1:
            raise NoAnswer("the call has several recipients, and the question asks for one", reply=Reply.UNUSABLE)
        return "".join(claim.recipients)
    texts = {
        "key": action.key,
        "currency": claim.currency,
        "reference": claim.reference,
        "agent": action.agent,
        "seq": str(action.seq),
        "tool": action.tool,
    }
    return texts[name]


def _shown(url: str, params: list[tuple[str, str]]) -> str:
    cut = [(name, value if len(value) <= MAX_SHOWN_CHARS else f"{value[:MAX_SHOWN_CHARS]}...") for name, value in params]
    query = urlencode(cut, encoding="utf-8", errors="replace")
    joint = "" if not query else "&" if "?" in url else "?"
    return redact_text(f"GET {url}{joint}{query}")
