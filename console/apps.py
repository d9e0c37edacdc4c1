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

        post_migrate.connect(_prepare_console_chain, sender=self)


def _prepare_console_chain(using: str = "default", **_: Any) -> None:
    """The console's own history stands beside Django's tables and is made with them; by whoever migrates, who owns them."""
    from console.stores import console_chain  # settings and models are ready only now

    if using == "default":
        console_chain().prepare()
