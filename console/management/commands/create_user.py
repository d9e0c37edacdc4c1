"""`create_user NAME --password-from-env VAR [--superuser]`: an account without a question asked."""

from __future__ import annotations

import os
from typing import Any

from django.contrib.auth.models import User
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.core.management.base import CommandParser
from django.db import IntegrityError, transaction

from console.management.base import Command as Base
from console.management.base import misused, refuse


class Command(Base):
    help = "Create a user. The password is read from a variable, so that it stands in no process list. Without a role they see nothing: set_role."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--password-from-env", required=True, metavar="VAR", help="the variable that holds the password")
        parser.add_argument("--superuser", action="store_true", help="with every role")

    def run(self, **options: Any) -> None:
        password = os.environ.get(options["password_from_env"], "")
        if not password:
            misused(f"{options['password_from_env']} is not set")
        user = User(username=options["name"], is_superuser=options["superuser"], is_staff=options["superuser"])
        user.set_password(password)
        try:
            validate_password(password, user)
            user.full_clean(exclude=["password"], validate_unique=False)
        except ValidationError as exc:
            misused("; ".join(exc.messages))
        try:
            with transaction.atomic():
                user.save()
        except IntegrityError:
            refuse(f"there is a user {options['name']!r} already")
        self.stdout.write(f"created user {options['name']}")
