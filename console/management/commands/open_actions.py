"""`open_actions [--json]`: the open actions of every store."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from datetime import UTC
from typing import Any

from django.core.management.base import CommandParser
from django.db import DatabaseError, ProgrammingError
from django.utils import timezone

from actions.queries import MAX_ROWS_PER_STORE, ActionFilter, ActionItem, StoreStatus, list_actions
from actions.records import ActionRef
from actions.redaction import redact_text
from console.management.base import Command as Base
from console.management.base import printable, refuse
from console.models import Claim, KnownCount
from console.services.claimed import all_live_claims
from console.shapes import item_json
from console.stores import list_stores
from console.tool_rules import read_rules

_HEADINGS = ("STATE", "AGE", "TOOL", "ACTION", "WHAT")


class Command(Base):
    help = (
        "List the open actions of every store, in the order of the queue: what is risky first, then the oldest. "
        "A store that does not answer is named on stderr with what was last known of it, the others are listed all the same, and the exit code is 1."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="JSON Lines, with the keys of the API's items")

    def run(self, **options: Any) -> None:
        stores = list_stores()
        if not stores:
            refuse("no store is configured; set ACTION_STORES")
        page = list_actions(stores, ActionFilter(), limit=MAX_ROWS_PER_STORE * len(stores), rules=read_rules())
        if options["json"]:
            claims = self._claims()
            for item in page.items:
                self.stdout.write(json.dumps(item_json(item, claims.get(item.ref))))
        elif page.items:
            self._print_table(page.items)
        elif all(store.is_listed for store in page.stores):
            self.stdout.write("no open actions")
        missing = [status for status in page.stores if status.problem or status.is_truncated]
        if missing:
            known = _known([status.name for status in missing if not status.is_listed])
            refuse("; ".join(_missing(status, known.get(status.name)) for status in missing))

    def _claims(self) -> dict[ActionRef, Claim]:
        """Every live claim; what agents left open is listed also where the console's database does not answer."""
        try:
            return all_live_claims()
        except ProgrammingError:
            return {}  # not migrated: nobody has claimed anything
        except DatabaseError:
            self.stderr.write("warning: the console's database does not answer; who has claimed what is not known")
            return {}

    def _print_table(self, items: tuple[ActionItem, ...]) -> None:
        rows = [_HEADINGS, *(_row(item) for item in items)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS) - 1)]
        # A line is cut for a person's screen only; a file or a pipe gets it whole.
        width = max(80, shutil.get_terminal_size().columns) if self.stdout.isatty() else None
        for row in rows:
            cells = [cell.ljust(size) for cell, size in zip(row, widths, strict=False)]
            self.stdout.write("  ".join([*cells, row[-1]])[:width].rstrip())


def _missing(status: StoreStatus, known: KnownCount | None) -> str:
    said = f"store {status.name}: {status.problem or 'it has more open actions than are read at once'}"
    if known is None:
        return said
    more, age = "+" if known.is_capped else "", _age(max(0, int((timezone.now() - known.counted_at).total_seconds())))
    at = known.counted_at.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"{said} (last known: {known.in_doubt}{more} in doubt, at {at}, {age} ago)"


def _known(names: Sequence[str]) -> dict[str, KnownCount]:
    """What the console remembers of stores that are down; nothing where its own database does not answer either."""
    try:
        return {row.store: row for row in KnownCount.objects.filter(store__in=names)} if names else {}
    except DatabaseError:
        return {}


def _row(item: ActionItem) -> tuple[str, ...]:
    what = item.facts.sentence if item.facts else f"unreadable: {item.unreadable.problem if item.unreadable else ''}"
    tool = item.action.tool if item.action else "?"
    where = f"{item.store}/{item.agent}/{item.seq if item.seq is not None else '?'}"
    return tuple(printable(cell) for cell in (item.state.value, _age(item.age_s), redact_text(tool)[:40], where, what))


def _age(seconds: int) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
