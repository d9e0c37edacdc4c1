"""`verify_audit [--store STORE] [--anchor FILE]`: whether the history is whole and unchanged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser

from actions.errors import StoreError
from actions.records import Link
from actions.store.audit import Anchor, ChainReport, Fault, show_entry
from actions.store.base import EntryChain
from actions.store.checkpoints import Anchors, BadSignature, History, read_anchors
from console.management.base import Command as Base
from console.management.base import printable, refuse, store_named
from console.models import Decision
from console.services.audit import verify_history
from console.services.checkpoints import stored_anchors, trusted_keys
from console.stores import CONSOLE_CHAIN, get_store, list_chains


class Command(Base):
    help = (
        "Walk every history from its first entry, compare it with the checkpoints that this console signed and with those of FILE, and look for the "
        "decisions that the console knows to be written there. Integrity and completeness are told apart. The last line is `intact: N entries, "
        "anchored up to M`, or the first bad entry with exit code 1. Only checkpoints that were kept elsewhere show that nobody cut off the "
        "newest entries and the checkpoints with them."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--store", default="", help="only this one; `console` for the console's own history")
        parser.add_argument("--anchor", type=Path, help="a file of checkpoints that was kept elsewhere, a line each")

    def run(self, **options: Any) -> None:
        chains = _chains(options["store"])
        kept = _read_anchor_file(options["anchor"]) if options["anchor"] is not None else Anchors()
        broken: list[str] = []
        unknown: list[str] = []
        total = anchored = 0
        found: set[History] = set()
        for name, chain in chains:
            try:
                head = chain.read_head()
                found.add((name, head.chain))
                report = verify_history(
                    name, chain, [*_stored(name, head.chain, broken), *kept.of(name, head.chain)], told=self._progress(name)
                )
                missing = _missing_decision(chain, name, report.removed) if report.is_intact and name != CONSOLE_CHAIN else None
            except StoreError as exc:
                unknown.append(f"store {name}: {exc.problem}")
                self._say(f"{name}: not verified: {exc.problem}")
                continue
            total += report.entries
            anchored += report.anchored
            report = replace(report, missing=report.missing or missing)
            self._tell(name, chain, report)
            if fault := report.first_fault:
                broken.append(f"store {name}, entry {fault.number}: {fault.says}")
        if not options["store"] and (gone := sorted(set(kept.checkpoints) - found)):
            broken.append(
                f"store {gone[0][0]}: checkpoints of chain {gone[0][1]} are in the file, and no store has such a history"
            )
        for line in broken:
            self._say(f"broken: {line}")
        if broken or unknown:
            said = [f"the history is broken: {line}" for line in broken] + [f"not verified: {line}" for line in unknown]
            refuse("; ".join(said))
        self._say(f"intact: {total} entries, anchored up to {anchored}")

    def _tell(self, name: str, chain: EntryChain, report: ChainReport) -> None:
        if report.is_intact:
            says = "" if report.entries or name == CONSOLE_CHAIN or get_store(name).check().is_prepared else ", not prepared"
            self._say(f"{name}: {report.entries} entries{says}, anchored up to {report.anchored}")
            return
        self._say(f"{name}: integrity: {report.broken.says if report.broken else 'holds'}")
        self._say(f"{name}: completeness: {report.missing.says if report.missing else 'holds'}")

    def _progress(self, name: str) -> Callable[[int], None] | None:
        """On a terminal only; a log wants the result."""
        if not self.stderr.isatty():
            return None
        return lambda count: self.stderr.write(f"\r{name}: {count:,} entries", ending="")

    def _say(self, line: str) -> None:
        self.stdout.write(printable(line))


def _chains(only: str) -> list[tuple[str, EntryChain]]:
    if only and only != CONSOLE_CHAIN:
        return [(only, store_named(only))]
    chains = [(name, chain) for name, chain in list_chains() if only in ("", name)]
    if not only and len(chains) == 1:
        refuse("no store is configured; set ACTION_STORES")
    return chains


def _read_anchor_file(path: Path) -> Anchors:
    """Refused where it does not hold: with a forged anchor nothing that it says of a history is worth anything."""
    try:
        return read_anchors(path.read_text("ascii").splitlines(), trusted_keys())
    except BadSignature as exc:
        refuse(f"{path}: {exc}; nothing was verified")
    except (OSError, UnicodeDecodeError) as exc:
        refuse(f"{path} cannot be read as checkpoints: {type(exc).__name__}; nothing was verified")


def _stored(name: str, chain: str, broken: list[str]) -> tuple[Anchor, ...]:
    try:
        return stored_anchors(name).of(name, chain)
    except BadSignature as exc:
        broken.append(f"store {name}, the console's own checkpoints: {exc}")
        return ()


def _missing_decision(chain: EntryChain, name: str, removed: int) -> Fault | None:
    """The first entry that the console's own decisions say was written, and that is not there or is another decision's.

    Decisions are read first: an entry is committed before the console notes its number. Both are streamed in the order of the numbers.
    """
    written = Decision.objects.filter(store=name, entry_number__gt=removed).order_by("entry_number")
    links = chain.iterate_links()
    link: Link | None = None
    for number, decision_id in written.values_list("entry_number", "decision_id").iterator():
        while link is None or link.number < (number or 0):
            link = next(links, None)
            if link is None:
                gone = (
                    "the history ends before it"
                    if get_store(name).check().is_prepared
                    else "the store is not prepared: its history is gone"
                )
                return Fault(number=number or 0, says=f"decision {decision_id} was written there, and {gone}")
        entry = show_entry(link)
        if (entry.number, entry.kind, entry.decision_id) != (number, "settled", decision_id):
            return Fault(
                number=number or 0, says=f"decision {decision_id} was written there, and another entry stands in its place"
            )
    return None
