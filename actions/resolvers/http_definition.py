"""What defines a resolver of the kind `http`: the fields of its form, and what they are read into. Nothing is asked here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from actions.resolvers.base import Allowed, Field, FieldType, InvalidDefinition, Kind
from actions.resolvers.cel import Expression, InvalidExpression
from actions.resolvers.texts import Texts, read_texts
from actions.resolvers.web import RESERVED_HEADERS, AddressRefused, parse_address

MAX_PARAMS = 20
ANSWER_NAMES = frozenset({"status", "body", "action"})
OBJECT_NAMES = frozenset({"object", "action"})
PARTS = ("key", "id", "recipient", "amount", "currency", "reference", "at", "effect")
PLACEHOLDERS = ("key", "recipient", "amount", "currency", "reference", "agent", "seq", "tool")
PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_PARAM_NAME = re.compile(r"[A-Za-z0-9_.~\[\]$-]{1,100}", re.ASCII)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One definition, read and checked: what is asked, and where in an answer what stands."""

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
    proves_absence: bool


def read_definition(settings: Mapping[str, str], secrets: Mapping[str, str], allowed: Allowed) -> Definition:
    """The texts of a form, read; nobody is asked.

    Raises:
        InvalidDefinition: a setting cannot be used; it says which, and never repeats a secret.
    """
    texts = read_texts(KIND, settings, secrets)
    try:
        address = parse_address(texts.text("url"), allowed.hosts)
    except AddressRefused as exc:
        raise InvalidDefinition("url", str(exc)) from None
    proves_absence = texts.flag("proves_absence")
    if proves_absence and not texts.text("canary_key"):
        raise InvalidDefinition("canary_key", "is needed where absence is proof")
    return Definition(
        url=str(address),
        params=_read_params(texts.lines("params")),
        headers=_read_headers(texts),
        allowed_hosts=allowed.hosts,
        objects=_read_expression(texts, "objects", ANSWER_NAMES),
        parts={part: expression for part in PARTS if (expression := _read_expression(texts, part, OBJECT_NAMES)) is not None},
        complete=_read_expression(texts, "complete", ANSWER_NAMES) or Expression("status == 200", names=ANSWER_NAMES),
        absent_statuses=_read_statuses(texts.text("absent_statuses")),
        canary_key=texts.text("canary_key"),
        is_minor=texts.flag("is_minor"),
        account=texts.text("account") or address.authority,
        seconds=float(texts.number("timeout_s", at_least=Decimal("0.05"), at_most=10)),
        proves_absence=proves_absence,
    )


def _read_params(lines: Iterable[str]) -> tuple[tuple[str, str], ...]:
    params = []
    for line in lines:
        name, equals, value = line.partition("=")
        if not equals or not _PARAM_NAME.fullmatch(name.strip()):
            raise InvalidDefinition("params", f"{line[:40]!r} is not name=value")
        for placeholder in PLACEHOLDER.findall(value):
            if placeholder not in PLACEHOLDERS:
                raise InvalidDefinition(
                    "params", f"there is no {{{placeholder[:40]}}}; there are {{{'}, {'.join(PLACEHOLDERS)}}}"
                )
        if re.search(r"[{}]", PLACEHOLDER.sub("", value)):
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
