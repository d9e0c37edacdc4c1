"""`check_stores`: what each store can be used for now."""

from __future__ import annotations

from typing import Any

from actions.errors import StoreError
from actions.records import ActionStatus, StoreCheck
from actions.side_by_side import ask_each
from console.management.base import Command as Base
from console.management.base import printable, refuse
from console.stores import ActionStore, find_server, list_stores

_OPEN = (ActionStatus.STARTED, ActionStatus.UNKNOWN)


class Command(Base):
    help = (
        "Say for each configured store whether it answers, what it holds, and which rights are missing or too many. Exit code 1 where one does "
        "not answer or its records cannot be read; a store that can only be read is said to be so, and is no failure."
    )

    def run(self, **options: Any) -> None:
        stores = list_stores()
        if not stores:
            refuse("no store is configured; set ACTION_STORES")
        unusable = []
        for store, (check, problem) in zip(stores, ask_each(stores, _ask), strict=True):
            for line in [*_lines(store.name, check, problem), *_server_lines(store.name)]:
                self.stdout.write(printable(line))
            if problem:
                unusable.append(f"store {store.name}: {problem}")
        if unusable:
            refuse("; ".join(unusable))


def _ask(store: ActionStore) -> tuple[StoreCheck, str]:
    check = store.check()
    return check, _problem(store, check)


def _server_lines(name: str) -> list[str]:
    """The tenant's own server, where the store's address names one."""
    server = find_server(name)
    if server is None:
        return []
    problem = server.check()
    return [
        f"{name}: warning: nothing can be written through its tenant's server: {problem}"
        if problem
        else f"{name}: decisions for live agents can be written through its tenant's server"
    ]


def _problem(store: ActionStore, check: StoreCheck) -> str:
    """Why its open actions cannot be listed, found by reading as `open_actions` does; empty where they can."""
    if not check.is_reachable:
        return check.why_not or "it does not answer"
    try:
        store.read_watch()
        store.read_actions(_OPEN, limit=1)
    except StoreError as exc:
        return exc.problem
    return ""


def _lines(name: str, check: StoreCheck, problem: str) -> list[str]:
    """What it is, what it cannot promise, what to mend."""
    if not check.is_reachable:
        return [f"{name}: not reachable: {problem}"]
    found = [
        "holds Recall's records" if check.has_records else "holds no records of Recall yet",
        "prepared" if check.is_prepared else "not prepared",
        "with the index of open actions" if check.has_index else "without the index of open actions",
    ]
    can = "can be settled" if check.can_settle else f"can only be read: {check.why_not}"
    if problem:
        can = f"cannot be used: {problem}"
        remedy = [f"{name}: {check.why_not}"] if check.why_not else []
        return [f"{name}: {check.server}; {can}", *remedy, *(f"{name}: caution: {caution}" for caution in check.cautions)]
    said = [*(f"caution: {caution}" for caution in check.cautions), *(f"warning: {warning}" for warning in check.warnings)]
    return [f"{name}: {check.server}; {', '.join(found)}; {can}", *(f"{name}: {line}" for line in said)]
