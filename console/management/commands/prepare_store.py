"""`prepare_store STORE [--index]`: make a store ready for decisions."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from console.management.base import Command as Base
from console.management.base import store_named


class Command(Base):
    help = (
        "Create or upgrade what is ours in a store: the history of decisions, beside Recall's tables, which are never created or changed. "
        "May be run again at any time, and before Recall's tables exist. Needs the rights of the database's owner once; the console itself does not."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("store", help="its name in ACTION_STORES")
        parser.add_argument("--index", action="store_true", help="also create the partial indexes of open actions and of turns")

    def run(self, **options: Any) -> None:
        for line in store_named(options["store"]).prepare(index=options["index"]):
            self.stdout.write(line)
