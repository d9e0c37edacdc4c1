"""`export_audit --format csv|jsonl --output FILE [filters]`: the history as a file that proves itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from django.core.exceptions import PermissionDenied
from django.core.management.base import CommandParser

from actions.errors import InvalidQuery
from actions.store.audit_file import FORMATS
from actions.times import Instant, parse_rfc3339
from console.access import Right, may, may_somewhere, visible, visible_chains
from console.history import HistoryFilter, require_kind
from console.management.base import Command as Base
from console.management.base import misused, printable, refuse, shell_user, store_named, user_named
from console.services.exports import begin_export, places_of, write_export
from console.stores import CONSOLE_CHAIN
from console.words import ENTRY_OUTCOMES


class Command(Base):
    help = (
        "Write the history, or what of it the filters name, to FILE, and a signed manifest to FILE.manifest.json: filter, number of rows, the first "
        "and the last number and the head of each chain. Both can be verified with no database: `python -m actions.store.audit verify FILE "
        "[--anchor CHECKPOINTS]`. That it was exported stands in the console's own history. The last line says how many entries were written."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--format", required=True, choices=FORMATS)
        parser.add_argument("--output", required=True, type=Path, metavar="FILE")
        parser.add_argument("--force", action="store_true", help="replace FILE and its manifest where they are there already")
        parser.add_argument(
            "--user", default="", help="export what this auditor may see; by default everything, as whoever sits at this shell"
        )
        parser.add_argument("--store", default="", help="only this store's; `console` for the console's own")
        parser.add_argument("--agent", default="")
        parser.add_argument("--seq", type=int, help="the number of one action of the agent")
        parser.add_argument("--tool", default="")
        parser.add_argument("--kind", default="", help="settled, refused, withdrawn ...")
        parser.add_argument("--actor", default="", help="`operator ana`, or only `ana`")
        parser.add_argument("--outcome", default="", choices=["", *ENTRY_OUTCOMES])
        parser.add_argument("--since", default="", help="RFC 3339 with a zone: 2026-11-01T00:00:00Z")
        parser.add_argument("--until", default="", help="not included")
        parser.add_argument("--text", default="", help="found in what the entry says")

    def run(self, **options: Any) -> None:
        if options["store"] not in ("", CONSOLE_CHAIN):
            store_named(options["store"])
        filters = _filters(options)
        path: Path = options["output"]
        if not options["force"] and (there := next((one for one in places_of(path) if os.path.lexists(one)), None)):
            refuse(f"{there} is there already; --force replaces it; nothing was exported")
        given: dict[str, Any] = {"by": f"shell {shell_user()}"}
        if options["user"]:
            user = user_named(options["user"])
            if not may_somewhere(user, Right.EXPORT):
                raise PermissionDenied(
                    f"user {user.get_username()} may not export; set_role {user.get_username()} auditor allows it"
                )
            given = {
                "chains": visible_chains(user, Right.EXPORT),
                "by": f"operator {user.get_username()}",
                "may_see": visible(user, Right.EXPORT),
                "is_limited": not may(user, Right.EXPORT),
            }
        export = begin_export(options["format"], filters, **given)
        try:
            manifest = write_export(export, path, is_new=not options["force"])
        except FileExistsError as exc:
            refuse(f"{exc.filename} is there already; --force replaces it; nothing was exported")
        except OSError as exc:
            refuse(f"{path} cannot be written: {exc.strerror}; nothing was exported")
        if not export.tally.rows and filters.said:
            self.stderr.write("0 entries match")
        if export.left_out:
            self.stderr.write(printable(f"left out: {export.says_left_out}; {options['user']} may not see every tool"))
        self.stdout.write(printable(f"manifest: {manifest}"))
        self.stdout.write(printable(f"exported {export.tally.rows} entries to {path}"))


def _filters(options: Mapping[str, Any]) -> HistoryFilter:
    try:
        kind = require_kind(options["kind"])
    except InvalidQuery as exc:
        misused(f"--kind: {exc}")
    return HistoryFilter(
        **{name: options[name] for name in ("store", "agent", "seq", "tool", "actor", "outcome", "text")},
        kind=kind,
        since=_instant("since", options["since"]),
        until=_instant("until", options["until"]),
    )


def _instant(name: str, text: str) -> Instant | None:
    try:
        return parse_rfc3339(text) if text else None
    except ValueError as exc:
        misused(f"--{name}: {exc}")
