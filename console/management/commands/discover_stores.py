"""`discover_stores URL`: which collections of agents a database holds, as texts for ACTION_STORES."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import CommandParser

from actions.errors import InvalidQuery, StoreError
from actions.store.discovery import MAX_COLLECTIONS, MAX_COUNTED, Discovery, Offered, discover
from console.management.base import Command as Base
from console.management.base import misused, printable, refuse


class Command(Base):
    help = (
        "List every collection of agents in a database of Recall's, also those of the tenants of `recall serve`, with the text that makes each "
        "a store in ACTION_STORES. Reads only. Passwords are not repeated: *** stands for them. Exit code 1 where something could not be read."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("url", help="postgres://user:password@host/db[?schema=NAME] or mongodb://host/db")
        parser.add_argument(
            "--namespace",
            action="append",
            default=[],
            help="a tenant's namespace to look for, beside those that have keys; repeatable",
        )
        parser.add_argument("--json", action="store_true", help="JSON Lines")

    def run(self, **options: Any) -> None:
        try:
            found = discover(options["url"], namespaces=options["namespace"])
        except InvalidQuery as exc:
            misused(str(exc))
        except StoreError as exc:
            refuse(f"the database: {exc.problem}")
        for offered in found.offered:
            lines = [json.dumps(_json(offered))] if options["json"] else _lines(offered)
            for line in lines:
                self.stdout.write(line if options["json"] else printable(line))
        for note in _notes(found):
            self.stderr.write(printable(note))
        problems = [
            *found.problems,
            *(f"{one.found.collection}: {one.found.problem}" for one in found.offered if one.found.problem),
        ]
        if problems:
            refuse("; ".join(problems))


def _lines(offered: Offered) -> list[str]:
    found = offered.found
    whose = ["namespace " + (offered.namespace or "not known")] if offered.namespace or found.is_tenant else []
    counts = (
        [found.problem] if found.problem else [f"{_count(found.agents)} agents", f"{_count(found.open_actions)} open actions"]
    )
    return [f"{offered.store}: {', '.join([f'collection {found.collection}', *whose, *counts])}", f"    {_setting(offered)}"]


def _json(offered: Offered) -> dict[str, object]:
    found = offered.found
    return {
        "store": offered.store,
        "collection": found.collection,
        "schema": found.schema or None,
        "is_tenant": found.is_tenant,
        "namespace": offered.namespace or None,
        "agents": found.agents,
        "open_actions": found.open_actions,
        "action_store": _setting(offered),
        "problem": found.problem or None,
    }


def _setting(offered: Offered) -> str:
    return f"{offered.store}={offered.address}"


def _count(number: int | None) -> str:
    return f"{MAX_COUNTED:,}+" if number is not None and number > MAX_COUNTED else f"{number or 0:,}"


def _notes(found: Discovery) -> list[str]:
    """What a person should know beside the list; on stderr, so that the list stays what it is."""
    notes = []
    if not found.offered and not found.problems:
        notes.append("no collection of agents here; Recall makes it with its first agent's first record")
    if any("***" in one.address for one in found.offered):
        notes.append("note: *** stands for a password; put it in, special characters as %XX")
    if unknown := sum(1 for one in found.offered if one.found.is_tenant and not one.namespace):
        notes.append(f"note: {unknown} namespaces are not known (no key names them); --namespace NAME tries one")
    notes += [f"note: namespace {name} has no collection of agents here" for name in found.unmatched]
    if found.is_truncated:
        notes.append(f"note: there is more than is shown; the first {MAX_COLLECTIONS:,} collections were looked at")
    return notes
