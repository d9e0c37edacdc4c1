"""`create_token USER` or `create_token --agent STORE AGENT`: a bearer token for the API."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from actions.records import ActionRef
from console.access import is_possible
from console.management.base import Command as Base
from console.management.base import misused, store_named, user_named
from console.services.tokens import create_agent_token, create_user_token


class Command(Base):
    help = (
        "Make a token for the API and print it, alone; only its hash is kept, so nobody can print it again. A user's token acts as that user. "
        "An agent's token reads the decisions about that agent's actions and nothing else. revoke_token takes it back."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("user", nargs="?")
        parser.add_argument("--agent", nargs=2, metavar=("STORE", "AGENT"))

    def run(self, **options: Any) -> None:
        user, agent = options["user"], options["agent"]
        if (user is None) == (agent is None):
            misused("name either a user or --agent STORE AGENT")
        if user is not None:
            self.stdout.write(create_user_token(user_named(user)))
            return
        store, name = agent
        store_named(store)
        if not is_possible(ActionRef(store, name, 1)):
            misused("that is no agent's id")
        self.stdout.write(create_agent_token(store, name))
