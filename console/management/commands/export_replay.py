"""`export_replay STORE AGENT --output FILE`: everything that is known of one agent, in order, as JSON Lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser

from actions.records import ActionRef
from console.access import Right, is_possible, store_of_agent_or_404
from console.management.base import Command as Base
from console.management.base import misused, printable, refuse, shell_user, store_named, user_named
from console.services.decide import actor_of
from console.services.replay import begin_replay, write_file
from console.tool_rules import read_rules


class Command(Base):
    help = (
        "Write one agent's trajectory to FILE, oldest first: turns, calls with their ends, working states, who was seen to hold it, verdicts, "
        "decisions and corrections (docs/replay.md). Secrets are hidden. That it was taken out stands in the console's own history. The last "
        "line says how many lines were written."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("store", metavar="STORE")
        parser.add_argument("agent", metavar="AGENT")
        parser.add_argument("--output", required=True, type=Path, metavar="FILE")
        parser.add_argument("--force", action="store_true", help="write over a file that is there")
        parser.add_argument("--user", default="", help="as this auditor; by default as whoever sits at this shell")

    def run(self, **options: Any) -> None:
        store, path = store_named(options["store"]), options["output"]
        if not is_possible(ActionRef(store.name, options["agent"], 1)):
            misused("no agent can be called so")
        by = f"shell {shell_user()}"
        if options["user"]:
            user = user_named(options["user"])
            store_of_agent_or_404(user, store.name, options["agent"], Right.EXPORT)
            by = actor_of(user)
        if path.exists() and not options["force"]:
            refuse(f"{path} is there already; --force writes over it")
        replay = begin_replay(store, options["agent"], by=by, rules=read_rules())
        try:
            lines = write_file(replay, path)
        except OSError as exc:
            refuse(f"{path} cannot be written: {exc.strerror}; nothing was taken out")
        for sentence in replay.left_out:
            self.stderr.write(printable(f"left out: {sentence}"))
        self.stdout.write(printable(f"wrote {lines} lines about agent {options['agent']} to {path}"))
