"""The kind `http`: one GET of a JSON interface, its answer read by CEL expressions of the definition. The key is compared here, whole."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from time import monotonic
from typing import Any
from urllib.parse import urlencode

from actions.facts import read_number
from actions.money import from_minor, to_minor
from actions.redaction import redact_text
from actions.resolvers.base import (
    Allowed,
    Canary,
    Claim,
    Effect,
    Field,
    FieldType,
    Finding,
    InvalidDefinition,
    Kind,
    Match,
    MatchedBy,
    Reply,
    Resolver,
)
from actions.resolvers.cel import EvaluationFailed, Expression, InvalidExpression
from actions.resolvers.claim import people_in
from actions.resolvers.texts import Texts, read_texts
from actions.resolvers.verdict import CLOCK_SKEW, compare
from actions.resolvers.web import RESERVED_HEADERS, AddressRefused, NoResponse, Response, WebLimits, fetch, parse_address
from actions.times import SECOND, Instant, from_datetime, parse_rfc3339, to_datetime

MAX_OBJECTS = 500
MAX_PARAMS = 20
MAX_FOUND_CHARS = 2_000
MAX_SHOWN_CHARS = 300
_LAST_SECOND = 253_402_300_799

_ANSWER = frozenset({"status", "body", "action"})
_OBJECT = frozenset({"object", "action"})

KIND = Kind(
    name="http",
    label="JSON over HTTP",
    help="Asks a provider's interface with one GET and reads the JSON with short expressions (CEL).",
    fields=(
        Field(
            name="url",
            label="Address",
            help="https:// with host and path, fixed. What belongs to an action goes into the parameters.",
            is_required=True,
            is_address=True,
        ),
        Field(
            name="params",
            label="Parameters",
            type=FieldType.LINES,
            help="One a line, name=value. A value may hold {key}, {recipient}, {amount}, {currency}, {reference}, {agent}, {seq} and "
            "{tool}; each is encoded. Best is a provider's parameter that filters by the key.",
        ),
        Field(
            name="auth",
            label="Credentials",
            type=FieldType.CHOICE,
            choices=("none", "bearer", "header"),
            default="none",
            help="bearer sends Authorization: Bearer and the secret; header sends the secret in the header named below.",
        ),
        Field(name="auth_header", label="Header", help="Name of the header for the secret, such as X-Api-Key.", is_address=True),
        Field(
            name="secret",
            label="Secret",
            type=FieldType.SECRET,
            help="Token or key with the right to read only. Never shown again.",
        ),
        Field(
            name="objects",
            label="Objects",
            type=FieldType.CODE,
            help="The list of objects in the answer, such as body.data. Knows status, body and action. "
            "Empty: the body itself where it is a list, else the body as the only object.",
        ),
        Field(
            name="key",
            label="Key of an object",
            type=FieldType.CODE,
            is_required=True,
            help="Where an object holds the idempotency key, such as object.metadata.key. Knows object and action, as do all below. Where "
            'some objects have none: has(object.metadata) && has(object.metadata.key) ? object.metadata.key : ""',
        ),
        Field(name="id", label="Its id", type=FieldType.CODE, help="The provider's own id, such as object.id; shown to people."),
        Field(
            name="recipient", label="Its recipient", type=FieldType.CODE, help="Such as object.payee: a text or a list of texts."
        ),
        Field(
            name="amount", label="Its amount", type=FieldType.CODE, help="Such as object.amount: a number, or a text that is one."
        ),
        Field(
            name="currency",
            label="Its currency",
            type=FieldType.CODE,
            help='Such as object.currency, or "EUR" if it is always that.',
        ),
        Field(
            name="is_minor",
            label="Amounts count cents",
            type=FieldType.FLAG,
            help="Amounts of this provider are in the currency's minor unit, in answers and in the parameter {amount}.",
        ),
        Field(name="reference", label="Its reference", type=FieldType.CODE, help="Such as object.invoice."),
        Field(
            name="at",
            label="When it came to be",
            type=FieldType.CODE,
            help="Such as object.created: a text like 2026-11-29T12:00:00Z, or seconds since 1970.",
        ),
        Field(
            name="effect",
            label="What came of it",
            type=FieldType.CODE,
            help='"happened", "pending" or "undone", such as object.status == "paid" ? "happened" : "pending". Empty: it happened.',
        ),
        Field(
            name="complete",
            label="The answer is complete",
            type=FieldType.CODE,
            default="status == 200",
            help="True where the answer holds every object that could be ours, such as status == 200 && !body.has_more. "
            "Knows status, body and action.",
        ),
        Field(
            name="absent_statuses",
            label="Statuses that mean none",
            help="Such as 404. Leave it empty where a 404 may also mean: hidden from you.",
        ),
        Field(
            name="canary_key",
            label="Key of the canary",
            help="Of a known object of the same account that the same request finds; proves that address, credentials and scope are right.",
        ),
        Field(
            name="proves_absence",
            label="Absence is proof",
            type=FieldType.FLAG,
            help="What this request does not find does not exist: all objects are searched, of the right account, by exact key. "
            "Needs a canary.",
        ),
        Field(name="account", label="Account", help="Whose account is asked, in words for people. Empty: the host."),
        Field(
            name="timeout_s",
            label="Time limit in seconds",
            type=FieldType.NUMBER,
            default="10",
            help="For the whole question, both requests included; at most 10.",
        ),
    ),
)

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
PLACEHOLDERS = ("key", "recipient", "amount", "currency", "reference", "agent", "seq", "tool")
_PARAM_NAME = re.compile(r"[A-Za-z0-9_.~\[\]$-]{1,100}", re.ASCII)
_PLAIN_KEY = re.compile(r"[A-Za-z0-9._@-]{1,200}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Definition:
    url: str
    params: tuple[tuple[str, str], ...]
    headers: Mapping[str, str] = field(repr=False)
    allowed_hosts: frozenset[str]
    objects: Expression | None
    parts: Mapping[str, Expression]  # of an object, by name
    complete: Expression
    absent_statuses: frozenset[int]
    canary_key: str
    is_minor: bool
    account: str
    seconds: float


def build(name: str, settings: Mapping[str, str], secrets: Mapping[str, str], allowed: Allowed) -> Resolver:
    texts = read_texts(KIND, settings, secrets)
    try:
        address = parse_address(texts.text("url"), allowed.hosts)
    except AddressRefused as exc:
        raise InvalidDefinition("url", str(exc)) from None
    proves_absence = texts.flag("proves_absence")
    if proves_absence and not texts.text("canary_key"):
        raise InvalidDefinition("canary_key", "is needed where absence is proof")
    return HttpResolver(
        name=name,
        proves_absence=proves_absence,
        definition=_Definition(
            url=str(address),
            params=_read_params(texts.lines("params")),
            headers=_read_headers(texts),
            allowed_hosts=allowed.hosts,
            objects=_read_expression(texts, "objects", _ANSWER),
            parts={part: expression for part in _PARTS if (expression := _read_expression(texts, part, _OBJECT)) is not None},
            complete=_read_expression(texts, "complete", _ANSWER) or Expression("status == 200", names=_ANSWER),
            absent_statuses=_read_statuses(texts.text("absent_statuses")),
            canary_key=texts.text("canary_key"),
            is_minor=texts.flag("is_minor"),
            account=texts.text("account") or address.authority,
            seconds=float(texts.number("timeout_s", at_least=Decimal("0.05"), at_most=10)),
        ),
    )


_PARTS = ("key", "id", "recipient", "amount", "currency", "reference", "at", "effect")


def _read_params(lines: Iterable[str]) -> tuple[tuple[str, str], ...]:
    params = []
    for line in lines:
        name, equals, value = line.partition("=")
        if not equals or not _PARAM_NAME.fullmatch(name.strip()):
            raise InvalidDefinition("params", f"{line[:40]!r} is not name=value")
        for placeholder in _PLACEHOLDER.findall(value):
            if placeholder not in PLACEHOLDERS:
                raise InvalidDefinition(
                    "params", f"there is no {{{placeholder[:40]}}}; there are {{{'}, {'.join(PLACEHOLDERS)}}}"
                )
        if re.search(r"[{}]", _PLACEHOLDER.sub("", value)):
            raise InvalidDefinition("params", f"a brace in {line[:40]!r} has no partner")
        params.append((name.strip(), value.strip()))
    if len(params) > MAX_PARAMS:
        raise InvalidDefinition("params", f"are more than {MAX_PARAMS}")
    return tuple(params)


def _read_headers(texts: Texts) -> dict[str, str]:
    auth, secret, header = texts.text("auth"), texts.text("secret"), texts.text("auth_header")
    if auth == "none":
        if secret:
            raise InvalidDefinition("auth", "a secret is given, but nothing says how it is sent")
        return {}
    if not secret:
        raise InvalidDefinition("secret", "is needed")
    if not re.fullmatch(r"[\x21-\x7e]+(?: [\x21-\x7e]+)*", secret, re.ASCII):
        raise InvalidDefinition("secret", "holds a line break, an outer space or characters beyond ASCII, which no header can")
    if auth == "bearer":
        return {"Authorization": f"Bearer {secret}"}
    if not re.fullmatch(r"[A-Za-z0-9-]{1,100}", header, re.ASCII) or header.lower() in RESERVED_HEADERS:
        raise InvalidDefinition("auth_header", "is no name of a header that can hold a secret")
    return {header: secret}


def _read_statuses(text: str) -> frozenset[int]:
    parts = [part for part in re.split(r"[\s,;]+", text) if part]
    for part in parts:
        if part not in ("404", "410"):
            raise InvalidDefinition(
                "absent_statuses", f"{part[:20]!r} is neither 404 nor 410; no other status means that there is none"
            )
    return frozenset(int(part) for part in parts)


def _read_expression(texts: Texts, name: str, names: frozenset[str]) -> Expression | None:
    if not texts.text(name):
        return None
    try:
        return Expression(texts.text(name), names=names)
    except InvalidExpression as exc:
        raise InvalidDefinition(name, str(exc)) from None


# --- asking ----------------------------------------------------------------------------------------------------------


class _NoAnswer(Exception):
    """The answer cannot be used; says nothing about the world."""

    def __init__(self, problem: str, *, reply: Reply = Reply.NO_ANSWER, retry_after_s: int = 0) -> None:
        self.problem, self.reply, self.retry_after_s = problem, reply, retry_after_s
        super().__init__(problem)


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
    definition: _Definition
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
        except _NoAnswer as exc:
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
            raise _NoAnswer(str(exc), reply=Reply.UNUSABLE) from None
        except NoResponse as exc:
            raise _NoAnswer(str(exc)) from None
        question.status = str(response.status)
        question.has_answer = True
        question.digest.update(response.body)
        return self._read(question, response, claim)

    def _read(self, question: _Question, response: Response, claim: Claim) -> _Answer:
        status = response.status
        if status in self.definition.absent_statuses:
            return _Answer(objects=(), is_complete=True)
        if not 200 <= status < 300:
            raise _refusal(response)
        values = {"status": status, "body": _parse_json(response), "action": _action_values(claim)}
        is_complete = _evaluate("complete", self.definition.complete, values)
        if not isinstance(is_complete, bool):
            raise _NoAnswer("complete: is neither true nor false")
        objects = self._objects(values)
        keys = [self._text(question, "key", {"object": one, "action": values["action"]}) for one in objects]
        return _Answer(objects=tuple(zip(keys, objects, strict=True)), is_complete=is_complete)

    def _objects(self, values: Mapping[str, Any]) -> list[Any]:
        if self.definition.objects is None:
            found = values["body"]
            found = found if isinstance(found, list) else [found]
        else:
            found = _evaluate("objects", self.definition.objects, values)
        if not isinstance(found, list):
            raise _NoAnswer("objects: is no list")
        if len(found) > MAX_OBJECTS:
            raise _NoAnswer(f"objects: there are {len(found):,}; at most {MAX_OBJECTS} are looked at, so ask more narrowly")
        return found

    # --- objects

    def _matches(self, question: _Question, answer: _Answer) -> tuple[Match, ...]:
        claim = question.claim
        values = {"action": _action_values(claim)}
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
            raise _NoAnswer(f"reading the answer took longer than {self.definition.seconds:.3g} s")
        expression = self.definition.parts.get(name)
        return None if expression is None else _evaluate(name, expression, values)

    def _text(self, question: _Question, name: str, values: Mapping[str, Any]) -> str:
        found = self._part(question, name, values)
        if found is None:
            return ""
        # Ids and references are numbers at some providers; a key that is one is another key.
        if isinstance(found, int) and not isinstance(found, bool) and name in ("id", "reference"):
            found = str(found)
        if not isinstance(found, str):
            raise _NoAnswer(f"{name}: is no text")
        if len(found) > MAX_FOUND_CHARS:
            raise _NoAnswer(f"{name}: is longer than {MAX_FOUND_CHARS:,} characters")
        return found

    def _people(self, question: _Question, values: Mapping[str, Any]) -> tuple[str, ...]:
        found = self._part(question, "recipient", values)
        if found is None:
            return ()
        people = found if isinstance(found, list) else [found]
        if len(people) > 100 or not all(isinstance(one, str) and len(one) <= MAX_FOUND_CHARS for one in people):
            raise _NoAnswer("recipient: is neither a text nor a list of texts")
        return people_in(people)

    def _amount(self, question: _Question, values: Mapping[str, Any], currency: str) -> Decimal | None:
        found = self._part(question, "amount", values)
        if found is None or found == "":
            return None
        number = read_number(found)
        if number is None:
            raise _NoAnswer("amount: is no number of money")
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
            raise _NoAnswer("at: is no time with a zone, such as 2026-11-29T12:00:00Z") from None
        if isinstance(found, int | Decimal) and not isinstance(found, bool) and 0 < found <= _LAST_SECOND:
            return int(found * SECOND)
        raise _NoAnswer("at: is neither a time nor seconds since 1970")

    def _effect(self, question: _Question, values: Mapping[str, Any]) -> Effect:
        if "effect" not in self.definition.parts:
            return Effect.HAPPENED
        try:
            return Effect(self._text(question, "effect", values))
        except ValueError:
            raise _NoAnswer(f"effect: is none of {', '.join(Effect)}") from None


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
            raise _NoAnswer(f"the question needs a {name}, and the call tells none", reply=Reply.UNUSABLE)
        if name == "key" and found[0] != template and not _PLAIN_KEY.fullmatch(text):
            raise _NoAnswer("the key holds characters that could change what the parameter around it means", reply=Reply.UNUSABLE)
        return text

    return _PLACEHOLDER.sub(value, template)


def _placeholder(name: str, claim: Claim, *, is_minor: bool) -> str:
    action = claim.action
    if name == "amount":
        if claim.amount is None or (is_minor and not claim.currency):
            return ""
        return f"{to_minor(claim.amount, claim.currency) if is_minor else claim.amount:f}"
    if name == "recipient":
        if len(claim.recipients) > 1:
            raise _NoAnswer("the call has several recipients, and the question asks for one", reply=Reply.UNUSABLE)
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


def _action_values(claim: Claim) -> dict[str, Any]:
    action = claim.action
    return {
        "key": action.key,
        "agent": action.agent,
        "seq": action.seq,
        "tool": action.tool,
        "started_at": to_datetime(action.started_at),
        "args": claim.arguments.value,
        "recipient": claim.recipients[0] if claim.recipients else "",
        "recipients": list(claim.recipients),
        "amount": claim.amount,
        "currency": claim.currency,
        "reference": claim.reference,
    }


# --- answers ---------------------------------------------------------------------------------------------------------


def _refusal(response: Response) -> _NoAnswer:
    status = response.status
    if status in (401, 403):
        return _NoAnswer(f"the credentials are refused ({status})", reply=Reply.UNUSABLE)
    if status == 429:
        return _NoAnswer("too many questions (429)", retry_after_s=response.retry_after_s)
    if status in (404, 410):
        return _NoAnswer(f"not found ({status}), which may also mean: hidden from these credentials")
    if status >= 500 or status in (408, 425) or status < 200:
        return _NoAnswer(f"the server fails ({status})", retry_after_s=response.retry_after_s)
    return _NoAnswer(f"the server does not take this question ({status})", reply=Reply.UNUSABLE)


def _parse_json(response: Response) -> Any:
    """
    Raises:
        _NoAnswer: HTML, no JSON, or JSON that can be read in two ways.
    """
    if "html" in response.content_type:
        raise _NoAnswer("the answer is HTML where JSON was expected")

    def refuse_twice(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) != len(items):
            raise _NoAnswer("the answer is JSON in which a name stands twice in one object")
        return found

    def refuse_constant(text: str) -> None:
        raise _NoAnswer(f"the answer is no JSON: it holds {text}")

    try:
        return json.loads(
            response.body.decode("utf-8"), parse_float=Decimal, object_pairs_hook=refuse_twice, parse_constant=refuse_constant
        )
    except (ValueError, RecursionError, ArithmeticError):
        raise _NoAnswer("the answer is no JSON that can be read") from None


def _evaluate(name: str, expression: Expression, values: Mapping[str, Any]) -> Any:
    try:
        return expression.evaluate(values)
    except EvaluationFailed as exc:
        raise _NoAnswer(f"{name}: {exc}") from None


# --- trying expressions out ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What one expression gives. `value` is JSON, cut and redacted; `problem` says where it is wrong or what it lacks."""

    field: str
    number: int = 0  # of the object; 0 where it is about the whole answer
    value: str = ""
    problem: str = ""


MAX_TRIED_OBJECTS = 5
MAX_TRIED_CHARS = 500


def try_expressions(settings: Mapping[str, str], status: int, body: str, claim: Claim) -> tuple[Tried, ...]:
    """Every expression of a form on an answer that somebody pasted; the first few objects of it. Asks nobody and never raises."""
    action = _action_values(claim)
    try:
        parsed = _parse_json(
            Response(status=status, content_type="application/json", body=body.encode("utf-8", "replace"), retry_after_s=0)
        )
    except _NoAnswer as exc:
        return (Tried(field="body", problem=exc.problem),)
    values = {"status": status, "body": parsed, "action": action}
    found, objects = [_try("complete", settings.get("complete", "") or "status == 200", _ANSWER, values)[0]], parsed
    if settings.get("objects", "").strip():
        tried, objects = _try("objects", settings["objects"], _ANSWER, values)
        found.append(tried)
    elif not isinstance(parsed, list):
        objects = [parsed]
    if isinstance(objects, list):
        for number, one in enumerate(objects[:MAX_TRIED_OBJECTS], start=1):
            of_object = {"object": one, "action": action}
            found += [
                _try(part, settings[part], _OBJECT, of_object, number)[0] for part in _PARTS if settings.get(part, "").strip()
            ]
    elif not found[-1].problem:
        found[-1] = replace(found[-1], problem="is no list")
    return tuple(found)


def _try(name: str, text: str, names: frozenset[str], values: Mapping[str, Any], number: int = 0) -> tuple[Tried, Any]:
    try:
        value = Expression(text.strip(), names=names).evaluate(values)
    except (InvalidExpression, EvaluationFailed) as exc:
        return Tried(field=name, number=number, problem=redact_text(str(exc))), None
    shown = redact_text(json.dumps(value, ensure_ascii=False, default=str))
    cut = shown if len(shown) <= MAX_TRIED_CHARS else f"{shown[:MAX_TRIED_CHARS]} …"
    return Tried(field=name, number=number, value=cut), value
