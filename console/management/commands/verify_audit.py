"""`verify_audit [--store STORE] [--anchor FILE]`: whether the history is whole and unchanged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser

from actions.errors import StoreError
from actions.store.base import EntryChain
from actions.store.checkpoints import Anchors, BadSignature, History, read_anchors
from console.management.base import Command as Base
from console.management.base import misused, printable, refuse, store_named
from console.services.audit import HistoryCheck, check_history
from console.services.checkpoints import trusted_keys
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
        for chain in chains:
            try:
                check = check_history(chain, kept, told=self._progress(chain.name))
            except StoreError as exc:
                unknown.append(f"store {chain.name}: {exc.problem}")
                self._say(f"{chain.name}: not verified: {exc.problem}")
                continue
            found.add((check.name, check.chain))
            total += check.report.entries
            anchored += check.report.anchored
            self._tell(check)
            if check.first_bad:
                broken.append(f"store {chain.name}, {check.first_bad}")
        if not options["store"] and (gone := sorted(set(kept.checkpoints) - found)) and not unknown:
            says = f"checkpoints of chain {gone[0][1]} are in the file, and no store has such a history"
            broken.append(f"store {gone[0][0]}: {says}")
        for line in broken:
            self._say(f"broken: {line}")
        if broken or unknown:
            said = [f"the history is broken: {line}" for line in broken] + [f"not verified: {line}" for line in unknown]
            refuse("; ".join(said))
        self._say(f"intact: {total} entries, anchored up to {anchored}")

    def _tell(self, check: HistoryCheck) -> None:
        report = check.report
        if report.is_intact:
            is_kept = report.entries or check.name == CONSOLE_CHAIN or get_store(check.name).check().is_prepared
            says = f"{report.entries} entries{'' if is_kept else ', not prepared'}, anchored up to {report.anchored}"
            self._say(f"{check.name}: {says}")
            return
        self._say(f"{check.name}: integrity: {report.broken.says if report.broken else 'holds'}")
        self._say(f"{check.name}: completeness: {report.missing.says if report.missing else 'holds'}")

    def _progress(self, name: str) -> Callable[[int], None] | None:
        """On a terminal only; a log wants the result."""
        if not self.stderr.isatty():
            return None
        return lambda count: self.stderr.write(f"\r{name}: {count:,} entries", ending="")

    def _say(self, line: str) -> None:
        self.stdout.write(printable(line))


def _chains(only: str) -> list[EntryChain]:
    if only and only != CONSOLE_CHAIN:
        return [store_named(only)]
    chains = [chain for chain in list_chains() if only in ("", chain.name)]
    if not only and len(chains) == 1:
        refuse("no store is configured; set ACTION_STORES")
    return chains


def _read_anchor_file(path: Path) -> Anchors:
    """Refused where it does not hold: with a forged anchor nothing that it says of a history is worth anything."""
    try:
        kept = read_anchors(path.read_text("ascii").splitlines(), trusted_keys())
    except BadSignature as exc:
        refuse(f"{path}: {exc}; nothing was verified")
    except (OSError, UnicodeDecodeError) as exc:
        refuse(f"{path} cannot be read as checkpoints: {type(exc).__name__}; nothing was verified")
    if not kept.checkpoints:
        misused(f"--anchor: {path} holds no checkpoint; nothing was verified")
    return kept
