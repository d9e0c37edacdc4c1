"""The console as a Django app."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class ConsoleConfig(AppConfig):
    name = "console"
    verbose_name = "Settle"

    def ready(self) -> None:
        from console import sign_ins  # noqa: F401 - listens from now on; models are not there before

        post_migrate.connect(_prepare_own_schemas, sender=self)


def _prepare_own_schemas(using: str = "default", **_: Any) -> None:
    """The console's own history and the states of runs stand beside Django's tables and are made with them; by whoever migrates, who owns them."""
    from console.stores import console_chain, prepare_run_checkpoints  # settings and models are ready only now

    if using == "default":
        console_chain().prepare()
        prepare_run_checkpoints()
