"""`create_user NAME [--superuser] < password`: an account without a question asked."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.core.management.base import CommandParser
from django.db import IntegrityError, transaction

from actions.rules import is_utf8
from console.management.base import Command as Base
from console.management.base import misused, refuse, typed_secret
from console.services import journal
from console.services.people import added


class Command(Base):
    help = (
        "Create a user. The password is the first line of stdin, or asked for on a terminal, so that it stands in no process list. Without a "
        "role they see nothing: set_role."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--superuser", action="store_true", help="with every role")

    def run(self, **options: Any) -> None:
        password = _password()
        name = User.normalize_username(options["name"])
        user = User(username=name, is_superuser=options["superuser"], is_staff=options["superuser"])
        user.set_password(password)
        try:
            validate_password(password, user)
            user.full_clean(exclude=["password"], validate_unique=False)
        except ValidationError as exc:
            misused("; ".join(exc.messages))
        # People take `Ana` and `ana` for one person, and so do those who read the history.
        if like := User.objects.filter(username__iexact=name).first():
            refuse(f"there is a user {like.get_username()!r} already")
        try:
            with transaction.atomic():
                user.save()
                added(user, actor=journal.A_COMMAND)
        except IntegrityError:
            refuse(f"there is a user {name!r} already")
        self.stdout.write(f"created user {name}")


def _password() -> str:
    try:
        password = typed_secret("Password").rstrip("\r\n")
    except UnicodeDecodeError:
        misused("the password on stdin is not UTF-8")
    if not is_utf8(password) or "\x00" in password:
        misused("the password on stdin is not UTF-8, or holds a NUL")
    if not password:
        misused("there is no password on stdin")
    return password
