"""`evict STORE AGENT`: take a live lease away from a shell, through the same service as the page."""

from __future__ import annotations

import uuid
from typing import Any

from django.core.exceptions import PermissionDenied
from django.core.management.base import CommandParser

from console.access import Right, may_somewhere
from console.management.base import Command as Base
from console.management.base import misused, printable, refuse, store_named, user_named
from console.services.answers import AnswerKind
from console.services.evict import EvictionRequest, evict


class Command(Base):
    help = (
        "Take the live lease of AGENT away from the holder H, as USER says, so that the decisions that wait for it are written. For admins. The old "
        "process is not stopped, nor a call that it is making: that call may still take effect. The first word of the output is `evicted`."
    )

    may_be_empty = frozenset({"--reason"})  # refused by the rules, in their words

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("store")
        parser.add_argument("agent")
        parser.add_argument("--holder", required=True, help="who holds the lease, as its page shows it; nobody else is evicted")
        parser.add_argument("--reason", required=True, help="how do you know that its process is gone; the history keeps this")
        parser.add_argument("--user", required=True, help="who evicts: an admin")
        parser.add_argument("--decision-id", default="", help="the same id again is the same eviction; made anew by default")

    def run(self, **options: Any) -> None:
        user, store = user_named(options["user"]), store_named(options["store"])
        request = EvictionRequest(
            holder=options["holder"],
            reason=options["reason"],
            confirm=options["agent"],
            decision_id=options["decision_id"] or f"cli-{uuid.uuid4()}",
        )
        # A page says 404 to strangers; who sits at a shell may be told why.
        if not may_somewhere(user, Right.READ, store=store.name):
            raise PermissionDenied(
                f"user {user.get_username()} has no role in store {store.name}; set_role {user.get_username()} admin gives one"
            )
        answer = evict(store.name, options["agent"], request, by=user)
        if answer.kind is AnswerKind.INVALID:
            misused(answer.detail)
        if answer.entry is None or answer.kind not in (AnswerKind.EVICTED, AnswerKind.REPEATED):
            again = f" (decision id {request.decision_id})" if answer.kind is AnswerKind.UNAVAILABLE else ""
            refuse(f"{answer.kind}: {answer.detail}{again}")
        self.stderr.write("warning: the old process may still be running; a call that it is making is not stopped")
        self.stdout.write(printable(f"evicted (entry {answer.entry.number}: {answer.detail})"))
        for decision in answer.decisions:
            self.stdout.write(printable(f"{decision.state} {decision.ref} {decision.outcome}"))
