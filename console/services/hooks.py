"""Where providers call us: making an address, checking a call's signature, and what a call makes due. Of its body nothing is kept.

A call only ever makes the console ask its own resolver again: what it claims to have happened is never believed.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import re
import secrets
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from actions.errors import ActionsError
from actions.resolvers.base import InvalidDefinition
from console.models import Decision, DecisionOutcome, DecisionState, Definition, Hook, Incident, Inquiry, Provider, StoredVerdict
from console.models.action_key import ActionKey
from console.services import journal
from console.services.changes import bump
from console.services.definitions import find_definition, options_of, require_admin
from console.services.inquiries import look_again
from console.services.policies import all_policies
from console.services.sealing import seal, unseal

log = logging.getLogger(__name__)

MAX_BYTES = 262_144
TOLERANCE_S = 300
"""How far a signature's time may lie from ours, in either direction; as Stripe's own libraries have it."""
MOST_PER_MINUTE = 600
MOST_WOKEN = 20
SPARED = timedelta(seconds=5)
"""How soon after an answer a call makes the console ask again."""
HEADERS: Mapping[str, str] = {Provider.STRIPE: "Stripe-Signature", Provider.GENERIC: "X-Settle-Signature"}
_MOST_SIGNATURES = 8  # several stand in one header while a secret is being rotated
_MAX_HEADER_CHARS = 2_000
_KEY = re.compile(r"[0-9a-f]{32}")
_SIGNATURE = re.compile(r"[0-9a-f]{64}")
_PRINTABLE = re.compile(r"[\x21-\x7e]{16,200}")


class NoHook(ActionsError):
    """Nobody has that address. Nothing was changed."""


class HookChanged(ActionsError):
    """An address was made since the form was drawn, maybe by this very form. Nothing was changed."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the address of {name[:63]} was changed since this form was drawn, or it was sent twice; what is new is shown only once"
        )


class BadSignature(ActionsError):
    """The call is not signed, wrongly signed, or too old. Nothing was changed."""


class TooManyCalls(ActionsError):
    """This address was called too often in this minute. Nothing was changed; the provider tries again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewHook:
    """What is shown once."""

    path: str
    secret: str


# --- for admins ------------------------------------------------------------------------------------------------------


def make_hook(name: str, provider: str, *, by: User, seen: str | None = None) -> NewHook:
    """A new address for this resolver, and a secret; whatever it had before is nobody's from now on.

    `seen`: what `hook_mark` said when the form was drawn. The same form again makes nothing: of two, one wins.

    Raises:
        PermissionDenied: not an admin of everything. Nothing was stored.
        InvalidDefinition: no such resolver or provider. Nothing was stored.
        HookChanged: it is not what was seen any more. Nothing was stored.
    """
    require_admin(by)
    if find_definition(name) is None:
        raise InvalidDefinition("name", f"there is no resolver {name[:63]!r}")
    if provider not in Provider.values:
        raise InvalidDefinition("provider", f"choose {' or '.join(Provider.values)}")
    token, secret = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
    fields: dict[str, Any] = {"provider": provider, "token_hash": _hash(token), "secret": seal(secret), "called_at": None}
    fields |= {"username": by.get_username(), "set_at": timezone.now()}
    with transaction.atomic(durable=True):
        before = _in_entry(Hook.objects.select_for_update().filter(name=name).first())
        if seen is None:
            Hook.objects.update_or_create(name=name, defaults=fields)
        elif seen == "":
            if not Hook.objects.get_or_create(name=name, defaults=fields)[1]:
                raise HookChanged(name)
        elif (at := _moment(seen)) is None or Hook.objects.filter(name=name, set_at=at).update(**fields) != 1:
            raise HookChanged(name)
        after = {"called by": provider, "address": "another" if before else "made", "signed with": "a secret made here"}
        _enter(name, before, after, by)
    return NewHook(path=f"/hooks/{provider}/{token}", secret=secret)


def set_hook_secret(name: str, secret: str, *, by: User) -> None:
    """Sign with a secret of the provider's own making from now on, such as Stripe's whsec_...

    Raises:
        PermissionDenied, NoHook, InvalidDefinition: nothing was stored.
    """
    require_admin(by)
    if not _PRINTABLE.fullmatch(secret):
        raise InvalidDefinition("secret", "16 to 200 printable characters without spaces")
    values = {"secret": seal(secret), "username": by.get_username(), "set_at": timezone.now()}
    with transaction.atomic(durable=True):
        before = _in_entry(Hook.objects.select_for_update().filter(name=name).first())
        if Hook.objects.filter(name=name).update(**values) != 1:
            raise NoHook(f"resolver {name[:63]} has no address to be called at; make one first")
        _enter(name, before, before | {"signed with": "another secret, given by the provider"}, by)


def remove_hook(name: str, *, by: User) -> None:
    """Nobody can call it any more. Harmless where nobody could. Raises PermissionDenied."""
    require_admin(by)
    with transaction.atomic(durable=True):
        before = _in_entry(Hook.objects.select_for_update().filter(name=name).first())
        if Hook.objects.filter(name=name).delete()[0]:
            _enter(name, before, {}, by)


def _in_entry(hook: Hook | None) -> dict[str, object]:
    """Of an address and what signs only that they are there: whoever reads the history must not be able to call."""
    return {"called by": hook.provider, "address": "made", "signed with": "a secret"} if hook is not None else {}


def _enter(name: str, before: Mapping[str, object], after: Mapping[str, object], by: User) -> None:
    journal.record("hook_changed", actor=journal.admin(by), detail={"about": name, "changed": journal.changes(before, after)})


def hook_mark(hook: Hook | None) -> str:
    """What a form remembers of the address it was drawn beside; empty where there was none."""
    return hook.set_at.isoformat() if hook is not None else ""


def _moment(seen: str) -> datetime | None:
    try:
        at = datetime.fromisoformat(seen)
    except ValueError:
        return None
    return at if at.tzinfo is not None else None


def find_hook(name: str) -> Hook | None:
    return Hook.objects.filter(name=name).defer("secret").first()


# --- calls -----------------------------------------------------------------------------------------------------------


def receive(provider: str, token: str, signature: str, body: bytes) -> list[int]:
    """Check one call and make due what it is about; answers the inquiries to be asked now, at most MOST_WOKEN.

    The same call again makes the same due again and changes nothing else. A key that nobody knows changes nothing.

    Raises:
        NoHook, BadSignature, TooManyCalls: nothing was changed.
        sealing.CannotUnseal: nobody can check it here until the secret is set anew. Nothing was changed.
    """
    hook = Hook.objects.filter(provider=provider, token_hash=_hash(token)).first()
    if hook is None:
        raise NoHook("there is no such address")
    check_signature(signature, body, secret=unseal(hook.secret), now_s=time.time())
    _count(hook)
    definition = find_definition(hook.name)
    if definition is None or not definition.is_enabled:
        return []
    key = key_in(body, provider, definition)
    return _wake(hook, key) if key else []


def check_signature(header: str, body: bytes, *, secret: str, now_s: float) -> None:
    """`t=<unix>,v1=<hex of HMAC-SHA256 over "t.body">`, Stripe's scheme; one right `v1` of several is enough. Raises BadSignature."""
    parts = [part.strip().partition("=") for part in header[:_MAX_HEADER_CHARS].split(",")]
    times = [value for name, _, value in parts if name == "t"]
    given = [value for name, _, value in parts if name == "v1" and _SIGNATURE.fullmatch(value)][:_MOST_SIGNATURES]
    if len(times) != 1 or not re.fullmatch(r"[0-9]{1,12}", times[0], re.ASCII):
        raise BadSignature("the call is not signed with one time")
    wanted = hmac.new(secret.encode(), times[0].encode() + b"." + body, hashlib.sha256).hexdigest()
    if not any(hmac.compare_digest(wanted, one) for one in given):
        raise BadSignature("no signature fits")
    if abs(now_s - int(times[0])) > TOLERANCE_S:
        raise BadSignature("the signature is too old, or from the future")


def key_in(body: bytes, provider: str, definition: Definition) -> str:
    """The action's key that a body names; empty where it names none."""
    try:
        said: Any = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    path = ["key"]
    if provider == Provider.STRIPE:
        path = ["data", "object", "metadata", options_of(definition).get("metadata_key") or "idempotency_key"]
    for name in path:
        said = said.get(name) if isinstance(said, dict) else None
    return said if isinstance(said, str) and _KEY.fullmatch(said) else ""


def _count(hook: Hook) -> None:
    """Note that it was called, at most so often in a minute."""
    minute = int(time.time()) // 60
    row = Hook.objects.filter(pk=hook.pk, token_hash=hook.token_hash)
    with transaction.atomic():
        now = row.select_for_update().first()
        calls = 1 if now is None or now.minute != minute else now.calls + 1
        if calls > MOST_PER_MINUTE:
            raise TooManyCalls(f"more than {MOST_PER_MINUTE} calls in a minute")
        row.update(minute=minute, calls=calls, called_at=timezone.now())


def _spare_who_has_just_answered(woken: Collection[int]) -> None:
    """A call sent again and again costs its provider one question in that time; it may also be one that the last answer did not know of yet."""
    recent = StoredVerdict.objects.filter(inquiry__in=woken, is_answered=True, asked_at__gt=timezone.now() - SPARED)
    for verdict in recent.order_by("inquiry_id", "-pk").distinct("inquiry_id"):
        Inquiry.objects.filter(pk=verdict.inquiry_id).update(due_at=verdict.asked_at + SPARED)


def _wake(hook: Hook, key: str) -> list[int]:
    """Open questions about this key are due now; one that was written as failed is looked at once more, unless an incident says it already."""
    tools = [tool for tool, policy in all_policies().items() if policy.resolver == hook.name]
    now = timezone.now()
    with transaction.atomic(durable=True):
        asked = Inquiry.objects.alias(key=ActionKey()).filter(key=key, tool__in=tools, resolver=hook.name)
        woken = {row.pk: row.store for row in asked.order_by("pk")[:MOST_WOKEN]}
        Inquiry.objects.filter(pk__in=woken).update(due_at=now, queued_until=None, woken_at=now)
        failed = Decision.objects.alias(key=ActionKey()).filter(key=key, outcome=DecisionOutcome.FAILED, tool__in=tools)
        for decision in failed.filter(state=DecisionState.WRITTEN).order_by("-pk")[:MOST_WOKEN]:
            ref = {"store": decision.store, "agent": decision.agent, "seq": decision.seq}
            if not Incident.objects.filter(**ref).exists() and look_again(decision, is_called=True):
                woken |= {row.pk: row.store for row in Inquiry.objects.filter(**ref)}
        _spare_who_has_just_answered(woken)
        for store in set(woken.values()):
            bump(store)
    return list(woken)


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
