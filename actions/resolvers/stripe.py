"""Stripe: lists what was made since the call began and looks for the key in its metadata. Only reads; asks by the official SDK.

There is no way to ask Stripe by an idempotency key, and its search lags behind. So every object of the time is listed, page by page, and
compared here; no value of an argument or key is ever sent.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from time import monotonic
from typing import Any
from urllib.parse import unquote, urlsplit

import stripe

from actions.money import minor_digits
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
    Windows,
)
from actions.resolvers.texts import Texts, read_settings, read_texts
from actions.resolvers.web import AddressRefused, NoResponse, Response, WebLimits, fetch, parse_address
from actions.times import SECOND, Instant

MAX_BYTES = 1_048_576
PAGE_SIZE = 100
MAX_PAGES = 10
CLOCK_SKEW_S = 300
"""How far Stripe's clock may run behind the agent's."""

OBJECTS = ("payment_intent", "charge", "refund", "transfer", "payout")
API_BASE = "https://api.stripe.com"

# Where Stripe counts other than ISO 4217 does: https://docs.stripe.com/currencies, special cases. For HUF and TWD only what may be
# paid out is restricted, not how it is counted.
_DIGITS = {"ISK": 2, "UGX": 2, "MGA": 0}

_RESTRICTED_KEY = re.compile(r"rk_(test|live)_[A-Za-z0-9_]{1,200}")
_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,40}")
_ACCOUNT = re.compile(r"acct_[A-Za-z0-9_]{1,60}")
_OBJECT_ID = re.compile(r"[a-z]{2,8}_[A-Za-z0-9_]{1,120}")

stripe.enable_telemetry = False  # else the SDK tells Stripe about this machine, and keeps a file for it

KIND = Kind(
    name="stripe",
    label="Stripe",
    help="Lists the payments (or refunds, transfers ...) since the call began and looks for the action's key in their metadata. The tool "
    "has to write the key there: Stripe cannot be asked by an idempotency key.",
    windows=Windows(settle_window_s=3_600, retention_s=30 * 86_400),
    fields=(
        Field(
            name="api_key",
            label="Restricted key",
            help="A restricted key (rk_...) that may only read: the object below, charges for refunds, and the account.",
            type=FieldType.SECRET,
            is_required=True,
        ),
        Field(
            name="object",
            label="What the tool makes",
            help="The object that it creates; the key is looked for in its metadata.",
            type=FieldType.CHOICE,
            choices=OBJECTS,
            default="payment_intent",
        ),
        Field(
            name="metadata_key",
            label="The key stands in",
            help="The entry of the metadata that holds the action's key.",
            default="idempotency_key",
        ),
        Field(
            name="recipient_metadata",
            label="The recipient stands in",
            help="An entry of the metadata that names the recipient. Empty: compared with customer, receipt email or destination, "
            "whichever is of the sort that the action names.",
        ),
        Field(
            name="reference_metadata",
            label="The reference stands in",
            help="An entry of the metadata that holds the order or invoice number.",
            default="reference",
        ),
        Field(
            name="window_s",
            label="Look how far",
            help="Seconds after the beginning of the call in which the object must have come. Empty: until now, which is always right, but "
            f"an account with more than {PAGE_SIZE * MAX_PAGES:,} objects since then is not seen whole. A number must be larger than the "
            "tool's time limit and the longest lease together.",
            type=FieldType.NUMBER,
        ),
        Field(
            name="account",
            label="Connected account",
            help="acct_..., to look into an account of a platform. Empty: the key's own.",
        ),
        Field(
            name="canary_id",
            label="Canary",
            help="Id of an object of this sort that is known to be in the account. Finding it proves that key, mode and account are the "
            "right ones. Empty: any object of the last days.",
        ),
        Field(
            name="canary_days",
            label="Days of the canary",
            help="Without a canary of your own: an object of at most so many days ago counts as one.",
            type=FieldType.NUMBER,
            default="7",
        ),
        Field(
            name="proves_absence",
            label="What is not found was not made",
            help="Set this if the tool writes the key into the metadata of every object in the same request that makes it.",
            type=FieldType.FLAG,
        ),
        Field(
            name="api_base",
            label="Address",
            help="Only for a stand-in that this deployment allows.",
            default=API_BASE,
            is_address=True,
        ),
        Field(
            name="timeout_s",
            label="Time limit",
            help="Seconds for one question, all its pages together, at most 10.",
            type=FieldType.NUMBER,
            default="10",
        ),
    ),
)


def build(name: str, settings: Mapping[str, str], secrets: Mapping[str, str], allowed: Allowed) -> StripeResolver:
    """See base.Build. A refused address is said before a secret is asked for."""
    _api_base(read_settings(KIND, settings), allowed)
    texts = read_texts(KIND, settings, secrets)
    for setting in ("metadata_key", "recipient_metadata", "reference_metadata"):
        if texts.text(setting) and not _NAME.fullmatch(texts.text(setting)):
            raise InvalidDefinition(setting, "is the name of an entry: at most 40 letters, digits, '_', '-' and '.'")
    if not texts.text("metadata_key"):
        raise InvalidDefinition("metadata_key", "is needed")
    if texts.text("account") and not _ACCOUNT.fullmatch(texts.text("account")):
        raise InvalidDefinition("account", "is an account's id: acct_...")
    if texts.text("canary_id") and not _OBJECT_ID.fullmatch(texts.text("canary_id")):
        raise InvalidDefinition("canary_id", "is an object's id, such as pi_...")
    _load()
    return StripeResolver(
        name=name,
        proves_absence=texts.flag("proves_absence"),
        api_key=_api_key(texts),
        api_base=_api_base(texts, allowed),
        allowed_hosts=allowed.hosts,
        account=texts.text("account"),
        object=texts.text("object"),
        metadata_key=texts.text("metadata_key"),
        recipient_metadata=texts.text("recipient_metadata"),
        reference_metadata=texts.text("reference_metadata"),
        window_s=int(texts.number("window_s", at_least=60, at_most=30 * 86_400)) if texts.text("window_s") else None,
        canary_id=texts.text("canary_id"),
        canary_days=int(texts.number("canary_days", at_least=1, at_most=365)),
        timeout_s=float(texts.number("timeout_s", at_least=Decimal("0.05"), at_most=10)),
    )


@cache
def _load() -> None:
    """What the SDK loads when it is first used, so that the first question has all of its time."""
    client = stripe.StripeClient("rk_test_nobody", http_client=_Line(until=0.0, allowed_hosts=frozenset()))
    for kind in OBJECTS:
        getattr(client.v1, f"{kind}s")


def _api_key(texts: Texts) -> str:
    key = texts.text("api_key")
    if not _RESTRICTED_KEY.fullmatch(key):
        why = "; a secret key could move money" if key.startswith("sk_") else ""
        raise InvalidDefinition("api_key", f"is a restricted key, rk_live_... or rk_test_...{why}")
    return key


def _api_base(texts: Texts, allowed: Allowed) -> str:
    base = texts.text("api_base").rstrip("/")
    if base == API_BASE:
        return base
    try:
        address = parse_address(base, allowed.hosts)
    except AddressRefused as exc:
        raise InvalidDefinition("api_base", str(exc)) from None
    if not address.is_allowed or address.target != "/":
        raise InvalidDefinition("api_base", f"is {API_BASE}, or the bare address of a host that this deployment allows")
    return base


@dataclass(frozen=True, slots=True, kw_only=True)
class StripeResolver:
    """One sort of object of one account."""

    name: str
    kind: str = "stripe"
    proves_absence: bool
    copies_are_normal: bool = False
    api_key: str = field(repr=False)
    api_base: str
    allowed_hosts: frozenset[str]
    account: str
    object: str
    metadata_key: str
    recipient_metadata: str
    reference_metadata: str
    window_s: int | None
    canary_id: str
    canary_days: int
    timeout_s: float

    def ask(self, claim: Claim, *, now: Instant) -> Finding:
        """See base.Resolver."""
        began = monotonic()
        line = _Line(until=began + self.timeout_s, allowed_hosts=self.allowed_hosts)
        answer: dict[str, Any] = {}
        retry_after_s = 0
        try:
            answer = self._look(line, claim, now)
            reply, problem = Reply.ANSWERED, ""
        except _NoAnswer as exc:
            reply, problem, retry_after_s = Reply.NO_ANSWER, str(exc), exc.retry_after_s
        except AddressRefused as exc:
            reply, problem = Reply.UNUSABLE, str(exc)
        except (stripe.AuthenticationError, stripe.PermissionError) as exc:
            reply, problem = Reply.UNUSABLE, f"Stripe refuses this key, or it may not read {self.object}s ({exc.http_status})"
        except stripe.InvalidRequestError as exc:
            reply, problem = Reply.UNUSABLE, f"Stripe refuses the question ({exc.http_status}{_code(exc)})"
        except stripe.StripeError as exc:
            reply, problem = Reply.NO_ANSWER, f"Stripe answered with an error ({exc.http_status or type(exc).__name__})"
        account = answer.pop("account", "") or self.account or "an account that this key does not tell"
        return Finding(
            reply=reply,
            problem=problem,
            asked=tuple(line.asked),
            account=f"{account}, {'live' if self.api_key.startswith('rk_live_') else 'test'} mode",
            asked_at=now,
            took_ms=int((monotonic() - began) * 1000),
            status=line.status,
            answer_digest=line.digest.hexdigest() if line.status else "",
            retry_after_s=retry_after_s,
            **answer,
        )

    def _look(self, line: _Line, claim: Claim, now: Instant) -> dict[str, Any]:
        client = self._client(line)
        service = getattr(client.v1, f"{self.object}s")
        begin = claim.action.started_at // SECOND
        created = {"gte": begin - CLOCK_SKEW_S}
        if self.window_s is not None:
            created["lte"] = begin + self.window_s
        objects, is_complete = self._list(service, created)
        notes = () if is_complete else (f"more than {len(objects):,} {self.object}s since then: not all of them were looked at",)
        matches = [self._match(client, one, MatchedBy.KEY, claim) for one in objects if self._key_of(one) == claim.action.key]
        if not matches:
            matches = [
                match
                for match in (self._match(client, one, MatchedBy.FIELDS, claim) for one in objects if not self._key_of(one))
                if _is_alike(match, claim)
            ]
        return {
            "matches": tuple(matches),
            "canary": self._look_for_canary(service, now),
            "is_complete": is_complete,
            "notes": notes,
            "account": self._own_account(client),
        }

    def _client(self, line: _Line) -> stripe.StripeClient:
        return stripe.StripeClient(
            self.api_key,
            base_addresses={"api": self.api_base},
            stripe_account=self.account or None,
            max_network_retries=0,  # whoever asks again decides it, not the SDK
            http_client=line,
        )

    def _list(self, service: Any, created: dict[str, int]) -> tuple[list[dict[str, Any]], bool]:
        objects: list[dict[str, Any]] = []
        params: dict[str, Any] = {"created": created, "limit": PAGE_SIZE}
        for _ in range(MAX_PAGES):
            found, has_more = _read_page(service.list(params=params))
            objects += found
            if not has_more or not found:
                return objects, not has_more
            params = {**params, "starting_after": objects[-1]["id"]}
        return objects, False

    def _key_of(self, one: dict[str, Any]) -> str:
        return _text(_mapping(one.get("metadata")).get(self.metadata_key))

    def _match(self, client: stripe.StripeClient, one: dict[str, Any], by: MatchedBy, claim: Claim) -> Match:
        currency = _text(one.get("currency")).upper()
        effect, note = _EFFECTS[self.object](one)
        if by is MatchedBy.KEY and self.object == "payment_intent" and effect is Effect.HAPPENED:
            effect, note = self._with_refunds(client, one, currency, note)
        metadata = _mapping(one.get("metadata"))
        return Match(
            object_id=one["id"],
            by=by,
            effect=effect,
            recipients=self._recipients(one, metadata, claim),
            amount=_amount(_moved(self.object, one), currency),
            currency=currency,
            reference=_text(metadata.get(self.reference_metadata)),
            at=_count(one.get("created")) * SECOND or None,
            note=note,
        )

    def _with_refunds(self, client: stripe.StripeClient, one: dict[str, Any], currency: str, note: str) -> tuple[Effect, str]:
        """A payment intent does not tell what was paid back; its charge does."""
        charge_id = _text(one.get("latest_charge"))
        if not _OBJECT_ID.fullmatch(charge_id):
            return Effect.HAPPENED, note
        try:
            charge = client.v1.charges.retrieve(charge_id).to_dict()
        except (stripe.PermissionError, stripe.InvalidRequestError):
            return Effect.HAPPENED, f"{note}; this key may not read charges, so refunds were not looked at"
        effect, of_charge = _of_charge(charge)
        is_news = effect is not Effect.HAPPENED or bool(_count(charge.get("amount_refunded")))
        return effect, f"{note}; {of_charge}" if is_news else note

    def _recipients(self, one: dict[str, Any], metadata: Mapping[str, Any], claim: Claim) -> tuple[str, ...]:
        """Those that can be compared: an email address says nothing against a customer's id."""
        if self.recipient_metadata:
            named = _text(metadata.get(self.recipient_metadata))
            return (named,) if named else ()
        told = [one.get(name) for name in ("customer", "receipt_email", "destination")]
        told.append(_mapping(one.get("transfer_data")).get("destination"))
        texts = dict.fromkeys(filter(None, map(_text, told)))
        sorts = {_sort(person) for person in claim.recipients}
        return tuple(text for text in texts if not sorts or _sort(text) in sorts)

    def _look_for_canary(self, service: Any, now: Instant) -> Canary:
        if not self.canary_id:
            since = now // SECOND - self.canary_days * 86_400
            found, _ = _read_page(service.list(params={"created": {"gte": since}, "limit": 1}))
            return Canary.FOUND if found else Canary.MISSING
        try:
            one = service.retrieve(self.canary_id).to_dict()
        except stripe.InvalidRequestError as exc:
            if exc.http_status == 404:
                return Canary.MISSING
            raise
        return Canary.FOUND if one.get("id") == self.canary_id and one.get("object") == self.object else Canary.MISSING

    def _own_account(self, client: stripe.StripeClient) -> str:
        if self.account:
            return self.account
        try:
            return _text(client.v1.accounts.retrieve_current().to_dict().get("id"))
        except (stripe.PermissionError, stripe.InvalidRequestError):
            return ""


# --- what an object says ---------------------------------------------------------------------------------------------


def _of_payment_intent(one: Mapping[str, Any]) -> tuple[Effect, str]:
    status = _text(one.get("status"))
    if status == "succeeded":
        return Effect.HAPPENED, "succeeded"
    if status == "canceled":
        return Effect.UNDONE, "canceled"
    if status == "requires_capture":
        return Effect.PENDING, "authorised, not captured: no money has moved yet"
    return Effect.PENDING, f"{status or 'no status'}: no money has moved yet"


def _of_charge(one: Mapping[str, Any]) -> tuple[Effect, str]:
    status = _text(one.get("status"))
    refunded, amount = _count(one.get("amount_refunded")), _count(one.get("amount"))
    if status == "failed":
        return Effect.UNDONE, "failed"
    if one.get("refunded") is True or refunded >= amount > 0:
        return Effect.UNDONE, "refunded whole"
    if status != "succeeded" or one.get("captured") is False:
        return Effect.PENDING, f"{status or 'no status'}{', not captured' if one.get('captured') is False else ''}"
    return Effect.HAPPENED, f"{_money(refunded, one)} of it refunded" if refunded else "succeeded"


def _of_refund(one: Mapping[str, Any]) -> tuple[Effect, str]:
    status = _text(one.get("status"))
    if status in ("failed", "canceled"):
        return Effect.UNDONE, status
    return (Effect.HAPPENED, status) if status == "succeeded" else (Effect.PENDING, status or "no status")


def _of_transfer(one: Mapping[str, Any]) -> tuple[Effect, str]:
    back, amount = _count(one.get("amount_reversed")), _count(one.get("amount"))
    if one.get("reversed") is True or back >= amount > 0:
        return Effect.UNDONE, "reversed whole"
    return Effect.HAPPENED, f"{_money(back, one)} of it reversed" if back else "made"


def _of_payout(one: Mapping[str, Any]) -> tuple[Effect, str]:
    status = _text(one.get("status"))
    if status in ("failed", "canceled"):
        return Effect.UNDONE, status
    return (Effect.HAPPENED, status) if status == "paid" else (Effect.PENDING, status or "no status")


_EFFECTS = {
    "payment_intent": _of_payment_intent,
    "charge": _of_charge,
    "refund": _of_refund,
    "transfer": _of_transfer,
    "payout": _of_payout,
}


def _moved(kind: str, one: Mapping[str, Any]) -> Any:
    """What was captured where that is less than what was meant."""
    received = one.get("amount_received")
    if kind == "payment_intent" and one.get("status") == "succeeded" and isinstance(received, int) and received > 0:
        return received
    return one.get("amount")


def _amount(minor: Any, currency: str) -> Decimal | None:
    if isinstance(minor, bool) or not isinstance(minor, int) or not currency or abs(minor) > 10**15:
        return None
    return Decimal(minor).scaleb(-_DIGITS.get(currency, minor_digits(currency)))


def _money(minor: int, one: Mapping[str, Any]) -> str:
    currency = _text(one.get("currency")).upper()
    amount = _amount(minor, currency)
    return f"a part ({minor})" if amount is None else f"{amount:f} {currency}"


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _is_alike(match: Match, claim: Claim) -> bool:
    """Same amount, same currency, and nobody else's."""
    people = {one.casefold() for one in match.recipients}
    is_theirs = not people or not claim.recipients or people == {one.casefold() for one in claim.recipients}
    return claim.amount is not None and match.amount == claim.amount and match.currency == claim.currency and is_theirs


def _sort(person: str) -> str:
    """What sort of name it is: email, cus, acct ...; the rest are names of people."""
    if "@" in person:
        return "email"
    return person.partition("_")[0] if _OBJECT_ID.fullmatch(person) else "name"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _read_page(page: Any) -> tuple[list[dict[str, Any]], bool]:
    """Its objects, and whether more come after them."""
    value = page.to_dict()
    objects, has_more = value.get("data"), value.get("has_more")
    if not isinstance(objects, list) or not all(isinstance(one, dict) and _text(one.get("id")) for one in objects):
        raise _NoAnswer("Stripe's list is no list of objects")
    if not isinstance(has_more, bool):
        raise _NoAnswer("Stripe's list does not tell whether it is whole")
    return objects, has_more


def _code(exc: stripe.StripeError) -> str:
    return f", {exc.code}" if exc.code and re.fullmatch(r"[a-z_]{1,60}", exc.code) else ""


# --- the line --------------------------------------------------------------------------------------------------------


class _NoAnswer(Exception):
    """Nothing that says anything about the payments."""

    def __init__(self, problem: str, *, retry_after_s: int = 0) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(problem)


class _Line(stripe.HTTPClient):
    """What the SDK talks through: GET only, within time and size, and nothing but an answer in JSON gets back to it."""

    name = "settle"

    def __init__(self, *, until: float, allowed_hosts: frozenset[str]) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.status = ""
        self.digest = hashlib.sha256()
        self._until = until
        self._allowed_hosts = allowed_hosts

    def request(
        self, method: str, url: str, headers: Mapping[str, str] | None, post_data: Any = None, **_: Any
    ) -> tuple[str, int, Mapping[str, str]]:
        if method.lower() != "get" or post_data:
            raise _NoAnswer("only questions are asked, and this was none")  # the SDK reads by GET alone
        path = urlsplit(url)
        self.asked.append(f"GET {path.path}{'?' if path.query else ''}{unquote(path.query)}"[:1_000])
        limits = WebLimits(seconds=self._until - monotonic(), body_bytes=MAX_BYTES)
        try:
            response = fetch(url, headers=headers, allowed_hosts=self._allowed_hosts, limits=limits)
        except NoResponse as exc:
            raise _NoAnswer(str(exc)) from None
        self.status = str(response.status)
        self.digest.update(response.body)
        _check(response)
        return response.body.decode(), response.status, {}

    def close(self) -> None:
        """Each request has a connection of its own, which is closed by now."""


def _check(response: Response) -> None:
    """Before the SDK sees it: what is no answer in JSON never becomes one."""
    status = response.status
    if status == 429:
        raise _NoAnswer("Stripe asks for patience (429)", retry_after_s=response.retry_after_s)
    if status >= 500 or status < 200:
        raise _NoAnswer(f"Stripe answered {status}", retry_after_s=response.retry_after_s)
    try:
        value = json.loads(response.body.decode())
    except (ValueError, RecursionError):
        raise _NoAnswer(f"Stripe answered {status} with something that is no JSON") from None
    is_object = isinstance(value, dict) and isinstance(value.get("object"), str)
    is_error = status >= 400 and isinstance(value, dict) and isinstance(value.get("error"), dict)
    if not (is_object if status < 300 else is_error):
        raise _NoAnswer(f"Stripe answered {status} with something that is not Stripe's")
