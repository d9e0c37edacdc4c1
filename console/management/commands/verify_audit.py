"""`verify_audit [--store STORE] [--anchor FILE]`: whether the history is whole and unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser

from console.management.base import Command as Base
from console.management.base import misused, printable, refuse, store_named
from console.services.audit import verify_store
from console.stores import list_stores


class Command(Base):
    help = (
        "Walk the history of every store from its first entry. The last line is `intact: N entries, anchored up to M`, or the first bad entry "
        "with exit code 1. Anchors are checkpoints kept elsewhere; without one, a tail that was cut off cannot be noticed."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--store", default="", help="only this one")
        parser.add_argument("--anchor", type=Path, help="a file of checkpoints; none are made yet, so nothing is anchored")

    def run(self, **options: Any) -> None:
        if options["anchor"] is not None and not options["anchor"].is_file():
            misused(f"there is no file {options['anchor']}")
        stores = [store_named(options["store"])] if options["store"] else list_stores()
        if not stores:
            refuse("no store is configured; set ACTION_STORES")
        total = 0
        for store in stores:
            report = verify_store(store)
            if not report.is_intact:
                self.stdout.write(printable(f"broken: store {store.name}, entry {report.first_bad}: {report.problem}"))
                refuse(f"the history of store {store.name} is broken at entry {report.first_bad}")
            self.stdout.write(f"{store.name}: {report.entries} entries")
            total += report.entries
        self.stdout.write(f"intact: {total} entries, anchored up to 0")
