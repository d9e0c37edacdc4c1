"""`approve STORE AGENT SEQ`: be the second person of a proposed decision from a shell, through the same service as the page."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from actions.records import ActionRef
from console.access import Right, item_or_404
from console.management.base import Command as Base
from console.management.base import misused, printable, refuse, store_named, user_named
from console.models import Decision, DecisionState
from console.services.answers import AnswerKind
from console.services.approve import approve, turn_down

_GOOD = frozenset({AnswerKind.WRITTEN, AnswerKind.REPEATED, AnswerKind.HELD, AnswerKind.WAITING, AnswerKind.TURNED_DOWN})


class Command(Base):
    help = (
        "Approve the decision that is proposed about an action, as USER, who is neither its proposer nor of the same email address. The first "
        "word of the output is the state of the decision: written, held, waiting, or refused with --turn-down. Needs no broker."
    )

    may_be_empty = frozenset({"--reason"})

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("store")
        parser.add_argument("agent")
        parser.add_argument("seq", type=int, help="the action's number")
        parser.add_argument("--user", required=True, help="who approves")
        parser.add_argument("--reason", default="", help="what you looked at; needed to turn it down")
        parser.add_argument("--decision-id", default="", help="only this one; by default the one that is proposed")
        parser.add_argument("--turn-down", action="store_true", help="refuse it instead; its proposer reads the reason")

    def run(self, **options: Any) -> None:
        user = user_named(options["user"])
        store_named(options["store"])
        ref = ActionRef(options["store"], options["agent"], options["seq"])
        if options["turn_down"] and not options["reason"].strip():
            misused("--turn-down needs a --reason")
        item_or_404(user, ref, Right.APPROVE)
        decision_id = options["decision_id"] or _proposed(ref)
        if not decision_id:
            refuse("no decision is proposed about this action")
        if options["turn_down"]:
            answer = turn_down(ref, decision_id, by=user, reason=options["reason"])
        else:
            answer = approve(ref, decision_id, by=user, reason=options["reason"])
        if answer.kind not in _GOOD or answer.decision is None:
            refuse(f"{answer.kind}: {answer.detail}")
        row = answer.decision
        self.stdout.write(printable(f"{row.state} ({row.outcome} by {row.username}: {row.shown_reason}; {answer.detail})"))


def _proposed(ref: ActionRef) -> str:
    rows = Decision.objects.filter(store=ref.store, agent=ref.agent, seq=ref.seq, state=DecisionState.PROPOSED)
    return rows.values_list("decision_id", flat=True).first() or ""
