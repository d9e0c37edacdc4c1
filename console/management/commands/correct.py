"""`correct STORE AGENT SEQ OUTCOME`: say from a shell that a written end was wrong, through the same service as the page."""

from __future__ import annotations

import uuid
from typing import Any

from django.core.management.base import CommandParser

from actions.correct import make_correction
from actions.errors import InvalidDecision
from actions.records import ActionRef
from console.management.base import Command as Base
from console.management.base import misused, printable, refuse, require_reader, store_named, user_named
from console.services.correct import CorrectionRequest, correct_end
from console.services.correction_answers import CorrectionKind

_GOOD = frozenset({CorrectionKind.WRITTEN, CorrectionKind.REPEATED, CorrectionKind.WAITING, CorrectionKind.PROPOSED})


class Command(Base):
    help = (
        "Tell an agent, as USER says, that what was written about an action of it was wrong. The action keeps its end. The first word of the "
        "output is the state of the correction: written, waiting or proposed. Needs no broker."
    )

    may_be_empty = frozenset({"--reason"})  # an empty reason is refused by the rules, in their words

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("store")
        parser.add_argument("agent")
        parser.add_argument("seq", type=int, help="the action's number")
        parser.add_argument("outcome", choices=["done", "failed", "unknown"], help="what really happened")
        parser.add_argument("--reason", required=True, help="what you saw, and where; the agent reads it")
        parser.add_argument("--user", required=True, help="who says so")
        parser.add_argument("--correction-id", default="", help="the same id again is the same correction; made anew by default")

    def run(self, **options: Any) -> None:
        user = user_named(options["user"])
        store_named(options["store"])
        request = CorrectionRequest(
            outcome=options["outcome"],
            reason=options["reason"],
            correction_id=options["correction_id"] or f"cli-{uuid.uuid4()}",
        )
        try:
            make_correction(request.outcome, request.reason, actor="operator")
        except InvalidDecision as exc:
            misused(str(exc))
        require_reader(user, options["store"])
        answer = correct_end(ActionRef(options["store"], options["agent"], options["seq"]), request, by=user)
        if answer.kind not in _GOOD or answer.correction is None:
            again = f" (correction id {request.correction_id})" if answer.kind is CorrectionKind.UNAVAILABLE else ""
            refuse(printable(f"{answer.kind}: {answer.detail}{again}"))
        if answer.incident is not None:
            self.stderr.write(f"warning: its agent was told the opposite of what happened; incident {answer.incident.pk} is open")
        self.stdout.write(printable(f"{answer.correction.state} ({answer.detail})"))
