"""The console as a Django app."""

from __future__ import annotations

from django.apps import AppConfig


class ConsoleConfig(AppConfig):
    name = "console"
    verbose_name = "Settle"

    def ready(self) -> None:
        from console import sign_ins  # noqa: F401 - listens from now on; models are not there before
