"""A resolver of the team's own, as the kind `python` calls it: it brings what a test says, and remembers what it was asked about."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from django.contrib.auth.models import User

from actions.records import ActionRef
from actions.resolvers.base import Canary, Finding, Match, MatchedBy, Reply
from console.models import Definition, Inquiry, Pace, Policy, StoredVerdict
from console.services import resolve
from console.services.asking import request_asking
from console.services.definitions import save_definition
from console.services.policies import policy_of, save_policy

PATH = "tests.console.own_resolver.resolver"

brings: list[Any] = []
asked: list[int] = []


def resolver(action: Any) -> Any:
    asked.append(action.seq)
    return brings[-1] if brings else None


def bring(*matches: Match, **changes: Any) -> None:
    """What every question brings from now on: answered, whole, with a canary."""
    fields: dict[str, Any] = {
        "reply": Reply.ANSWERED,
        "matches": matches,
        "canary": Canary.FOUND,
        "is_complete": True,
        "asked_at": 0,
    }
    brings.append(Finding(**{**fields, **changes}))


def match(**changes: Any) -> Match:
    """A mail to the one that the writer's records name, found by its key."""
    fields: dict[str, Any] = {"object_id": "msg-1", "by": MatchedBy.KEY, "recipients": ("b@example.com",)}
    return Match(**{**fields, **changes})


def payment(amount: str = "120.00", **changes: Any) -> Match:
    return match(**{"object_id": "pay_1", "recipients": ("ACME",), "amount": Decimal(amount), "currency": "EUR", **changes})


def define(by: User, name: str = "sent-folder", **options: Any) -> Definition:
    """Save it, as a superuser or admin."""
    current = Definition.objects.filter(name=name).count()
    values = {"callable": PATH, "proves_absence": "yes", **options.pop("values", {})}
    return save_definition(name, "python", values, {}, seen_version=current, by=by, **options)


def name_it(by: User, tool: str = "send_email", resolver: str = "sent-folder", **values: Any) -> Policy:
    return save_policy(tool, {"resolver": resolver, **values}, seen_version=policy_of(tool).version, by=by)


def ask(ref: ActionRef, by: User) -> StoredVerdict:
    """Ask now and be the worker too, whose turn at the provider has come."""
    Pace.objects.all().delete()
    row: Inquiry = request_asking(ref, by=by)
    verdict = resolve.ask(row.pk)
    assert verdict is not None
    return verdict
