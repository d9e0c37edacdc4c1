"""`revoke_token TOKEN`, `revoke_token --user NAME` or `revoke_token --agent STORE AGENT`: take API tokens back."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import CommandParser

from actions.rules import is_utf8
from console.management.base import Command as Base
from console.management.base import misused, refuse, typed_secret
from console.services.tokens import revoke_agent_tokens, revoke_token, revoke_user_tokens

_STDIN = "-"


class Command(Base):
    help = (
        "Take one token back, or every token of a user or of an agent; whoever holds one is a stranger from then on. TOKEN may be - : then it "
        "is the first line of stdin, and stands in no process list. Exit code 1 where there was none. create_token makes new ones."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("token", nargs="?", help="the token itself, or - to read it from stdin")
        parser.add_argument("--user", metavar="NAME", help="every token of this user, also of one who may not come in any more")
        parser.add_argument("--agent", nargs=2, metavar=("STORE", "AGENT"), help="every token of this agent")

    def run(self, **options: Any) -> None:
        token, name, agent = options["token"], options["user"], options["agent"]
        if [token, name, agent].count(None) != 2:
            misused("name one of a token, --user NAME and --agent STORE AGENT")
        if token is not None:
            self._say(revoke_token(_from_stdin() if token == _STDIN else token), "such token; perhaps it was revoked before")
        elif name is not None:
            self._say(revoke_user_tokens(_user(name)), f"token of user {name}")
        else:
            store, agent_id = agent  # the store may be gone from the settings: its tokens go all the same
            if "\x00" in store + agent_id:
                misused("that is no agent's id")
            self._say(revoke_agent_tokens(store, agent_id), f"token of agent {agent_id} in store {store}")

    def _say(self, gone: int, what: str) -> None:
        if not gone:
            refuse(f"there is no {what}")
        self.stdout.write(f"revoked {gone} token{'' if gone == 1 else 's'}")


def _user(name: str) -> User:
    user = User.objects.filter(username=name).first() if "\x00" not in name else None
    if user is None:
        misused(f"there is no user {name[:150]!r}")
    return user


def _from_stdin() -> str:
    try:
        token = typed_secret("Token").strip()
    except UnicodeDecodeError:
        token = ""
    if not token or not is_utf8(token):
        misused("there is no token on stdin")
    return token
