"""A resolver of the team's own for the browser's tests: it finds what was sent to an address that begins with `found`, and nothing else."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from actions.resolvers.base import Canary, Finding, Match, MatchedBy, Reply

PATH = "tests.browser.ledger.resolver"


def resolver(action: Any) -> Finding:
    args = json.loads(action.args)
    to = str(args.get("to", ""))
    amount = Decimal(str(args["amount"])) if "amount" in args else None
    fields: dict[str, Any] = {"recipients": (to,), "amount": amount, "currency": args.get("currency", "")}
    if to.startswith("differs"):
        fields["recipients"] = ("somebody-else@example.com",)
    match = Match(object_id="<msg-7f3a@mail.example.com>", by=MatchedBy.KEY, note="Filed in Sent.", **fields)
    matches = (match,) if to.startswith(("found", "differs")) else ()
    return Finding(
        reply=Reply.ANSWERED,
        matches=matches,
        canary=Canary.FOUND,
        is_complete=True,
        asked=('UID SEARCH HEADER Message-ID "<7f3a@mail.example.com>"',),
        account="sent@example.com",
        status="OK",
        answer_digest="5f2d" * 16,
        asked_at=0,
    )
