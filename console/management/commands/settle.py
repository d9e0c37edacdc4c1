"""`settle STORE AGENT SEQ OUTCOME`: decide from a shell, through the same service as the page."""

from __future__ import annotations

import uuid
from typing import Any

from django.core.management.base import CommandParser

from actions.errors import InvalidDecision
from actions.records import ActionRef
from console.checks import recent_check
from console.management.base import Command as Base
from console.management.base import misused, printable, refuse, require_reader, store_named, user_named
from console.services.answers import Answer, AnswerKind
from console.services.decide import DecisionRequest, decide, end_of_request

_GOOD = frozenset({AnswerKind.WRITTEN, AnswerKind.REPEATED, AnswerKind.PROPOSED, AnswerKind.HELD, AnswerKind.WAITING})


class Command(Base):
    help = (
        "Settle an open action as USER says. The first word of the output is the state of the decision: written, proposed, held or waiting. "
        "Idempotent actions are settled with a warning, pure ones can only be abandoned. Needs no broker."
    )

    may_be_empty = frozenset({"--result", "--error", "--reason"})  # an empty reason is refused by the rules, in their words

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("store")
        parser.add_argument("agent")
        parser.add_argument("seq", type=int, help="the action's number")
        parser.add_argument("outcome", choices=["done", "failed", "abandoned"])
        parser.add_argument("--reason", required=True, help="what you saw, and where; the agent reads it")
        parser.add_argument("--user", required=True, help="who decides")
        parser.add_argument("--result", default="", help="what the call answered; only with done")
        parser.add_argument("--error", default="", help="only with failed; defaults to the reason")
        parser.add_argument("--decision-id", default="", help="the same id again is the same decision; made anew by default")

    def run(self, **options: Any) -> None:
        user = user_named(options["user"])
        store = store_named(options["store"])
        request = DecisionRequest(
            outcome=options["outcome"],
            reason=options["reason"],
            decision_id=options["decision_id"] or f"cli-{uuid.uuid4()}",
            result=options["result"],
            error=options["error"],
        )
        try:
            end_of_request(request, by=user)
        except InvalidDecision as exc:
            misused(str(exc))
        require_reader(user, options["store"])
        answer = decide(ActionRef(options["store"], options["agent"], options["seq"]), request, by=user)
        if answer.item is not None:
            for caution in recent_check(store).cautions:
                self.stderr.write(printable(f"caution: {caution}"))
        self._say(answer, request)

    def _say(self, answer: Answer, request: DecisionRequest) -> None:
        for warning in answer.warnings:
            self.stderr.write(f"warning: {warning}")
        if answer.kind in _GOOD and answer.decision is not None:
            self.stdout.write(printable(f"{answer.decision.state} ({answer.detail})"))
            return
        again = f" (decision id {request.decision_id})" if answer.kind is AnswerKind.UNAVAILABLE else ""
        refuse(f"{answer.kind}: {answer.detail}{again}")
