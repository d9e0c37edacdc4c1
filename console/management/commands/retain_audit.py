"""`retain_audit STORE --before TIME --export FILE --owner URL --reason TEXT`: remove the oldest entries of a history, as its owner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandParser

from actions.rules import has_visible_text
from actions.times import parse_rfc3339
from console.management.base import Command as Base
from console.management.base import misused, printable, refuse, shell_user, store_named
from console.services.retention import NotRetained, check_history, export_range, find_range, remove
from console.stores import CONSOLE_CHAIN, console_chain, open_as_owner


class Command(Base):
    help = (
        "Remove every entry of a history that is older than TIME: the whole leading range or nothing. The history is verified first, the range is "
        "exported to FILE and the file verified; then it is removed in an owner's transactions, each of which leaves a signed tombstone in the "
        "chain, so that verify_audit still holds. The owner's address stands in the variable OWNER_URL, never on a command line. Without --yes it "
        "only says what it would do."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("store", help="its name; `console` for the console's own history")
        parser.add_argument("--before", required=True, metavar="TIME", help="RFC 3339 with a zone")
        parser.add_argument(
            "--export", required=True, type=Path, metavar="FILE", help="where the range is kept; must not be there yet"
        )
        parser.add_argument("--reason", required=True, help="which rule asks for it; the history keeps this")
        parser.add_argument("--yes", action="store_true", help="remove, and do not only say what would be")

    def run(self, **options: Any) -> None:
        name, path = options["store"], options["export"]
        chain = console_chain() if name == CONSOLE_CHAIN else store_named(name)
        try:
            before = parse_rfc3339(options["before"])
        except ValueError as exc:
            misused(f"--before: {exc}")
        if not has_visible_text(options["reason"]):
            misused("--reason says nothing")
        if path.exists():
            refuse(f"{path} is there already; nothing was removed")
        found = find_range(chain, before)
        if found is None:
            self.stdout.write(printable(f"{name}: no entry is older than {options['before']}; nothing to remove"))
            return
        if not options["yes"]:
            said = f"would remove {found.count} entries up to number {found.last.number} of {name}; --yes does it"
            self.stdout.write(printable(said))
            return
        if not settings.OWNER_URL:
            refuse(
                "OWNER_URL is not set: the address of this database as its owner, who alone may remove entries; nothing was removed"
            )
        by = f"shell {shell_user()}"
        with open_as_owner(name, settings.OWNER_URL) as owner:
            owner.read_head()  # who is not let in leaves no file that would stand in the way of the next attempt
            try:
                check_history(chain)
                export_range(chain, found, path, by=by)
            except NotRetained as exc:
                refuse(str(exc))
            for entry in remove(owner, found, by=by, reason=options["reason"]):
                self.stdout.write(printable(f"entry {entry.number}: removed up to {entry.detail['removed'][1]}"))  # type: ignore[index]
        self.stdout.write(printable(f"removed {found.count} entries; they stand in {path}"))
