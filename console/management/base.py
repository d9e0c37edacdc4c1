"""What every command of ours has: exit codes 0, 1 and 2, and one line on stderr instead of a traceback."""

from __future__ import annotations

import getpass
import logging
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError
from django.http import Http404

from actions.errors import ActionsError
from actions.rules import is_utf8
from console.access import Right, has_any_role, may_somewhere
from console.services.denials import leave_denial
from console.stores import ActionStore, UnknownStore, get_store, list_stores
from console.trouble import name_of
from console.untrusted import is_hidden

REFUSED = 1  # refused or impossible
WRONG_USAGE = 2


class Command(BaseCommand):
    """A command says `run`; whatever goes wrong in it is one line and an exit code. Want of a right is PermissionDenied, and an entry."""

    requires_system_checks: list[str] = []
    may_be_empty: frozenset[str] = frozenset()
    """Options that mean the same empty as left out. All others are refused: an empty variable in a script must not mean "every"."""

    def run(self, **options: Any) -> None:
        raise NotImplementedError

    def handle(self, *args: Any, **options: Any) -> None:
        # What the pool has to say about a database that is down, we say once ourselves.
        logging.getLogger("psycopg.pool").setLevel(logging.ERROR)
        if getattr(self, "_called_from_command_line", False):
            # What a service tells the log, a command's own words say, on a line that a script reads.
            logging.getLogger("console").setLevel(logging.WARNING)
        try:
            self.run(**options)
        except CommandError:
            raise
        except BrokenPipeError:
            # Whoever read us has seen enough; nothing more can be said, not even at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(0) from None
        except DatabaseError as exc:
            refuse(f"the console's database: {_first_line(exc)}; is it there, and migrated?")
        except PermissionDenied as exc:
            self._enter_refusal(_first_line(exc), options)
            refuse(_first_line(exc))
        except Http404 as exc:
            if not isinstance(exc, UnknownStore):  # of a store that is not configured nobody can be refused
                self._enter_refusal(_first_line(exc), options, why="missing")
            refuse(_first_line(exc))
        except (ActionsError, ImproperlyConfigured) as exc:
            refuse(_first_line(exc))
        except Exception as exc:
            if options.get("traceback"):
                raise
            refuse(f"something unexpected went wrong here: {name_of(exc)}; --traceback shows more")

    def _enter_refusal(self, reason: str, options: Mapping[str, Any], *, why: str = "forbidden") -> None:
        """Whoever a command acts as and who lacks the right leaves the entry that a page's refusal leaves."""
        if options.get("user"):
            about = {name: options[name] for name in ("store", "agent", "seq") if options.get(name)}
            leave_denial(
                f"user {options['user']}", f"command {type(self).__module__.rpartition('.')[2]}", why=why, reason=reason, **about
            )

    def execute(self, *args: Any, **options: Any) -> Any:
        try:
            return super().execute(*args, **options)
        except CommandError as exc:
            if not getattr(self, "_called_from_command_line", False):
                raise
            self.stderr.write(str(exc))
            raise SystemExit(exc.returncode) from None

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        """Usage errors in one line as well; `--help` has the rest."""
        parser = super().create_parser(prog_name, subcommand, **kwargs)
        if getattr(parser, "called_from_command_line", False):
            parser.error = lambda message: _exit(f"{subcommand}: {message}")  # type: ignore[method-assign]
        parse = parser.parse_args

        def checked(args: Sequence[str] | None = None, namespace: Any = None) -> Any:
            if problem := self._problem_with(list(args or ())):
                _exit(f"{subcommand}: {problem}") if getattr(parser, "called_from_command_line", False) else misused(problem)
            return parse(args, namespace)

        parser.parse_args = checked  # type: ignore[method-assign,assignment]
        return parser

    def _problem_with(self, arguments: list[str]) -> str:
        """What no command takes: text that is not UTF-8, and options or names that are there and say nothing."""
        if not all(is_utf8(text) for text in arguments):
            return "an argument is not UTF-8"
        for before, text in zip(["", *arguments], arguments, strict=False):
            name, equals, value = text.partition("=")
            option = name if text.startswith("--") and equals else before if before.startswith("-") and "=" not in before else ""
            if (value if option == name else text) == "" and option not in self.may_be_empty:
                return f"{option or 'an argument'} is given empty; leave it out or name something"
        return ""


def refuse(message: str) -> NoReturn:
    raise CommandError(_clean(message), returncode=REFUSED)


def misused(message: str) -> NoReturn:
    raise CommandError(_clean(message), returncode=WRONG_USAGE)


def store_named(name: str) -> ActionStore:
    """The configured store of that name; wrong usage where there is none."""
    try:
        return get_store(name)
    except UnknownStore as exc:
        known = ", ".join(store.name for store in list_stores()) or "none"
        misused(f"{exc}; configured: {known}")


def user_named(name: str) -> User:
    """The user of that name; wrong usage where there is none, or where they may not come in any more."""
    user = User.objects.filter(username=name).first() if "\x00" not in name else None
    if user is None:
        misused(f"there is no user {name[:150]!r}")
    if not user.is_active:
        misused(f"user {name!r} is not active")
    return user


def typed_secret(what: str) -> str:
    """The first line of stdin; whoever sits at a terminal is asked for it, and nobody reads along. Empty where nothing comes."""
    if not sys.stdin.isatty():
        return sys.stdin.readline()
    try:
        return getpass.getpass(f"{what}: ", stream=sys.stderr)
    except EOFError:
        return ""


def shell_user() -> str:
    """Who sits at this shell; where the machine has no name for them, as a container may not, their number."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def require_reader(user: User, store: str) -> None:
    """Whoever sits at a shell is told why they see nothing of a store; a page says 404 to strangers. Raises PermissionDenied."""
    if not has_any_role(user):
        raise PermissionDenied(f"user {user.get_username()} has no role here; set_role {user.get_username()} operator gives one")
    if not may_somewhere(user, Right.READ, store=store):
        raise PermissionDenied(f"user {user.get_username()} has no role in store {store}; their roles are limited to others")


def printable(text: str) -> str:
    """A text for a terminal: nothing that moves its cursor or that nobody sees reaches it, whatever an agent wrote."""
    return "".join(char.encode("unicode_escape").decode() if is_hidden(char) else char for char in text)


def _clean(message: str) -> str:
    """One line, in which no address shows its password: an argument may be one, and argparse repeats what it does not understand."""
    return printable(re.sub(r"(://[^/@\s:]*:)\S*@", r"\1***@", " ".join(message.split())))


def _first_line(exc: Exception) -> str:
    return next(iter(str(exc).splitlines()), "") or type(exc).__name__


def _exit(message: str) -> NoReturn:
    print(_clean(message), file=sys.stderr)
    raise SystemExit(WRONG_USAGE)
