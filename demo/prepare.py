"""The console's part of a start, in one process: tables, the demo user with every role, the stores' histories, a token, resolvers.

`python -m demo.prepare TOKEN_FILE OUTSIDE_FILE`; settings as for the console, but with the owner's addresses; DEMO_PASSWORD is the user's.
"""

from __future__ import annotations

import os
import sys
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from demo.outside import Outside
from demo.policies import ensure_policies, ensure_resolvers

if TYPE_CHECKING:
    from django.contrib.auth.models import User

USERNAME = "demo"
SECOND = "second"
"""Settles and approves: for what `demo` proposes. The same password."""


def main(argv: list[str]) -> int:
    token_file, outside_file = map(Path, argv)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")
    import django
    from django.conf import settings
    from django.core.management import call_command

    django.setup()
    call_command("migrate", interactive=False, verbosity=0)
    user = ensure_user(os.environ["DEMO_PASSWORD"])
    ensure_second(os.environ["DEMO_PASSWORD"])
    ensure_resolvers(Outside.read(outside_file), user)
    ensure_policies(user)
    for store in settings.ACTION_STORES:
        call_command("prepare_store", store)
    if not token_file.exists():
        written = StringIO()
        call_command("create_token", USERNAME, stdout=written)
        token_file.touch(mode=0o600)
        token_file.write_text(written.getvalue().strip())
    return 0


def ensure_user(password: str) -> User:
    """The demo user, a superuser: that is every role."""
    from django.contrib.auth import get_user_model

    user, _ = get_user_model().objects.get_or_create(username=USERNAME, defaults={"is_staff": True, "is_superuser": True})
    if not user.check_password(password):
        user.set_password(password)
        user.save()
    return user


def ensure_second(password: str) -> None:
    """The second person, who has two roles and no more."""
    from django.contrib.auth import get_user_model

    from console.models import Grant, Role

    user, _ = get_user_model().objects.get_or_create(username=SECOND)
    if not user.check_password(password):
        user.set_password(password)
        user.save()
    for role in (Role.OPERATOR, Role.APPROVER):
        Grant.objects.get_or_create(user=user, role=role, store="", tool="")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
