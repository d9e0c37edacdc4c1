"""`verify_audit [--store STORE] [--anchor FILE]`: whether the history is whole and unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser

from actions.errors import StoreError
from actions.records import Link
from actions.store.audit import show_entry
from console.management.base import Command as Base
from console.management.base import printable, refuse, store_named
from console.models import Decision
from console.services.audit import verify_store
from console.stores import ActionStore, list_stores


class Command(Base):
    help = (
        "Walk the history of every store from its first entry, and look for the decisions that the console knows to be written there. The last "
        "line is `intact: N entries, anchored up to M`, or the first bad entry with exit code 1. Anchors are checkpoints kept elsewhere; without "
        "one, a tail that was cut off cannot be noticed where the console knows of no decision in it."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--store", default="", help="only this one")
        parser.add_argument("--anchor", type=Path, help="a file of checkpoints; none are made yet, so it is refused")

    def run(self, **options: Any) -> None:
        if options["anchor"] is not None:
            refuse("anchors come with checkpoints, which are not made yet; nothing was verified")
        stores = [store_named(options["store"])] if options["store"] else list_stores()
        if not stores:
            refuse("no store is configured; set ACTION_STORES")
        total = 0
        broken: list[str] = []
        unknown: list[str] = []
        for store in stores:
            try:
                found, entries = _verify(store)
            except StoreError as exc:
                unknown.append(f"store {store.name}: {exc.problem}")
                self._say(f"{store.name}: not verified: {exc.problem}")
                continue
            total += entries
            if found:
                broken.append(f"store {store.name}, {found}")
            else:
                self._say(f"{store.name}: {entries} entries{'' if entries or _is_prepared(store) else ', not prepared'}")
        for line in broken:
            self._say(f"broken: {line}")
        if broken or unknown:
            said = [f"the history is broken: {line}" for line in broken] + [f"not verified: {line}" for line in unknown]
            refuse("; ".join(said))
        self._say(f"intact: {total} entries, anchored up to 0")

    def _say(self, line: str) -> None:
        self.stdout.write(printable(line))


def _verify(store: ActionStore) -> tuple[str, int]:
    """The first bad entry and what is wrong with it, empty where all is well; and how many entries were good.

    Raises StoreError where the history cannot be read: then nothing is known.
    """
    report = verify_store(store)
    if not report.is_intact:
        return f"entry {report.first_bad}: {report.problem}", report.entries
    return _missing_decision(store), report.entries


def _missing_decision(store: ActionStore) -> str:
    """The first entry that the console's own decisions say was written, and that is not there or is another decision's.

    Decisions are read first: an entry is committed before the console notes its number. Both are streamed in the order of the numbers.
    """
    written = Decision.objects.filter(store=store.name, entry_number__isnull=False).order_by("entry_number")
    links = store.iterate_links()
    link: Link | None = None
    for number, decision_id in written.values_list("entry_number", "decision_id").iterator():
        while link is None or link.number < (number or 0):
            link = next(links, None)
            if link is None:
                gone = "the history ends before it" if _is_prepared(store) else "the store is not prepared: its history is gone"
                return f"entry {number}: decision {decision_id} was written there, and {gone}"
        entry = show_entry(link)
        if (entry.number, entry.kind, entry.decision_id) != (number, "settled", decision_id):
            return f"entry {number}: decision {decision_id} was written there, and another entry stands in its place"
    return ""


def _is_prepared(store: ActionStore) -> bool:
    return store.check().is_prepared
