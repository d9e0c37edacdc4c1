"""In a process of its own: tables, the agents' records, an operator with a token, a resolver that reads the files, policies of seconds."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from bench.chaos.stage import STORE

OPERATOR = "operator"
POLICY = {"resolver": "files", "mode": "settle", "tool_timeout_s": 1, "settle_window_s": 60}
WINDOW_S = 1
"""Shorter than any policy may be: files have no index that lags, and the test should not wait for one."""


def prepare(token: Path) -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")
    import django
    from django.core.management import call_command

    django.setup()
    from django.conf import settings
    from django.contrib.auth.models import User

    from actions.store import open_agent_store
    from agents.harness import DurableAgent
    from console.models import Grant, Policy, Role
    from console.services.definitions import save_definition
    from console.services.policies import save_policy
    from console.services.tokens import create_user_token

    with DurableAgent.resume(open_agent_store(settings.ACTION_STORES[STORE]), "first"):
        pass  # makes the tables
    call_command("migrate", interactive=False, verbosity=0)
    call_command("prepare_store", STORE)
    user = User.objects.create_user(OPERATOR)
    for role in (Role.OPERATOR, Role.ADMIN, Role.AUDITOR):
        Grant.objects.create(user=user, role=role, store="", tool="")
    values = {"callable": "bench.chaos.runs.find", "proves_absence": "yes", "timeout_s": "5"}
    save_definition("files", "python", values, {}, seen_version=0, by=user, per_minute=6_000, at_once=8)
    for tool in ("send", "note"):
        save_policy(tool, POLICY, seen_version=0, by=user)
    Policy.objects.update(settle_window_s=WINDOW_S)
    token.touch(mode=0o600)
    token.write_text(create_user_token(user))


if __name__ == "__main__":
    prepare(Path(sys.argv[1]))
