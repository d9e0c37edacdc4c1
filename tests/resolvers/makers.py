"""Actions, claims, findings and circumstances of a moment long enough ago, for one difference at a time."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from typing import Any

from actions.keys import action_key
from actions.records import Action, ActionClass, ActionStatus, Lease
from actions.resolvers.base import Canary, Claim, Finding, Match, MatchedBy, Reply, Windows
from actions.resolvers.claim import claim_of
from actions.resolvers.verdict import Circumstances, Negative, Verdict, judge
from actions.times import RELEASED, SECOND, Instant

BEGAN: Instant = 1_795_976_957 * SECOND
HOUR: Instant = 3_600 * SECOND
WINDOWS = Windows(tool_timeout_s=300, settle_window_s=3_600, retention_s=30 * 86_400, give_up_after_s=3 * 86_400)
LONG_AFTER: Instant = BEGAN + 10 * HOUR
PAYMENT = {"amount": 120.0, "currency": "EUR", "payee": "ACME GmbH", "reference": "R-7"}


def make_action(**changes: Any) -> Action:
    args = changes.pop("args", PAYMENT)
    action = Action(
        agent="billing-1",
        seq=2,
        tool="create_payment",
        action_class=ActionClass.EXTERNAL,
        key=action_key("billing-1", 2),
        args=args if isinstance(args, str) else json.dumps(args),
        status=ActionStatus.STARTED,
        epoch=1,
        written_epoch=1,
        started_at=BEGAN,
    )
    return replace(action, **changes)


def make_claim(**changes: Any) -> Claim:
    action = make_action(**changes)
    return claim_of(action, action.args)


def make_match(**changes: Any) -> Match:
    """The payment that the claim speaks of, found by its key."""
    fields: dict[str, Any] = {
        "object_id": "pay_1",
        "by": MatchedBy.KEY,
        "recipients": ("ACME GmbH",),
        "amount": Decimal("120.00"),
        "currency": "EUR",
        "reference": "R-7",
        "at": BEGAN + SECOND,
    }
    return Match(**{**fields, **changes})


def make_finding(*matches: Match, **changes: Any) -> Finding:
    """Answered, whole, with a canary, long after the call."""
    fields: dict[str, Any] = {
        "reply": Reply.ANSWERED,
        "matches": matches,
        "canary": Canary.FOUND,
        "is_complete": True,
        "asked_at": LONG_AFTER,
    }
    return Finding(**{**fields, **changes})


def make_lease(**changes: Any) -> Lease:
    fields: dict[str, Any] = {
        "agent": "billing-1",
        "holder": "host:1:aa",
        "epoch": 3,
        "expires_at": BEGAN + 60 * SECOND,
        "read_at": LONG_AFTER,
    }
    return Lease(**{**fields, **changes})


def make_circumstances(**changes: Any) -> Circumstances:
    """The lease ran out, one negative two hours before the finding: a second one proves absence."""
    fields: dict[str, Any] = {
        "lease": make_lease(),
        "first_holder": "host:1:aa",
        "negatives": (Negative(asked_at=LONG_AFTER - 2 * HOUR),),
        "first_asked_at": LONG_AFTER - 2 * HOUR,
        "asked": 1,
    }
    return Circumstances(**{**fields, **changes})


def released(**changes: Any) -> Lease:
    return make_lease(expires_at=RELEASED, **changes)


def weigh(finding: Finding | None = None, claim: Claim | None = None, **changes: Any) -> Verdict:
    """`judge` with everything as it should be, but for the changes."""
    arguments: dict[str, Any] = {
        "circumstances": make_circumstances(),
        "windows": WINDOWS,
        "proves_absence": True,
        "jitter": 0.0,
    }
    return judge(finding or make_finding(), claim or make_claim(), **{**arguments, **changes})
