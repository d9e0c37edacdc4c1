"""`set_role USER ROLE [--store S] [--tool T]`: give somebody a role, everywhere or for one store or tool."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from console.management.base import Command as Base
from console.management.base import misused, refuse, store_named, user_named
from console.models import Role
from console.services.people import give_role, take_role


class Command(Base):
    help = (
        "Give a user a role; roles add up. viewer reads, operator settles, approver is the second person, auditor exports and reveals, admin "
        "edits policies, resolvers and users. --remove takes exactly that role away again."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("user")
        parser.add_argument("role", choices=Role.values)
        parser.add_argument("--store", default="", help="only for this store")
        parser.add_argument("--tool", default="", help="only for this tool")
        parser.add_argument("--remove", action="store_true")

    def run(self, **options: Any) -> None:
        user, store, tool = user_named(options["user"]), options["store"], options["tool"]
        if store:
            store_named(store)
        if len(tool) > 255 or "\x00" in tool:
            misused("that is no tool's name")
        if options["remove"]:
            if not take_role(user, options["role"], store=store, tool=tool, by=None):
                refuse(f"{user.get_username()} is not {options['role']} there")
            self.stdout.write(f"{user.get_username()} is no longer {options['role']}{_where(store, tool)}")
            return
        is_new = give_role(user, options["role"], store=store, tool=tool, by=None)
        self.stdout.write(f"{user.get_username()} is {'' if is_new else 'already '}{options['role']}{_where(store, tool)}")


def _where(store: str, tool: str) -> str:
    return (f" in store {store}" if store else "") + (f" for tool {tool}" if tool else "")
