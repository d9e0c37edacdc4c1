#!/usr/bin/env python
"""Django's command line for Settle. Whatever goes wrong is one line on stderr and an exit code; --traceback shows more."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from pathlib import Path

WRONG_USAGE = 2
# Whose commands there are (settings.INSTALLED_APPS and Django's own), known without any setting.
_WITH_COMMANDS = ["django.core", "axes", "console", "allauth.account", "allauth.mfa", "allauth.socialaccount"]
_WITH_COMMANDS += [f"django.contrib.{app}" for app in ("auth", "contenttypes", "sessions", "staticfiles")]


def main(argv: list[str]) -> int:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line

    if any("\ud800" <= char <= "\udfff" for text in argv for char in text):
        return _say("an argument is not UTF-8", WRONG_USAGE)
    if len(argv) > 1 and argv[1] not in commands():
        return _say(f"there is no command {argv[1][:60]!r}; ./run help lists them", WRONG_USAGE)
    try:
        _without_pool()
        execute_from_command_line(argv)
    except ImproperlyConfigured as exc:
        return _say(str(exc), 1)
    except Exception as exc:
        if "--traceback" in argv:
            raise
        return _say(f"{type(exc).__name__}: {next(iter(str(exc).splitlines()), '')}; --traceback shows more", 1)
    return 0


def _without_pool() -> None:
    """A command is one process with one connection: opened by itself it says at once why it could not be, a pool after ten seconds."""
    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured

    with contextlib.suppress(ImproperlyConfigured):  # `help` needs no settings; whoever does says what is wrong with them
        settings.DATABASES["default"]["OPTIONS"].pop("pool", None)


def commands() -> frozenset[str]:
    """Every command's name, and what Django takes for one."""
    from django.core.management import find_commands

    names = {"help", "version", "--help", "-h", "--version"}
    for package in _WITH_COMMANDS:
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            names.update(find_commands(str(Path(spec.origin).parent / "management")))
    return frozenset(names)


def _say(message: str, code: int) -> int:
    shown = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in " ".join(message.split()))
    print(f"manage.py: {shown}", file=sys.stderr)
    return code


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv))
    except KeyboardInterrupt:
        sys.exit(130)  # somebody changed their mind; as a shell has it
