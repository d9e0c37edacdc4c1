"""`check_stores`: what each store can be used for now."""

from __future__ import annotations

from typing import Any

from actions.records import StoreCheck
from console.management.base import Command as Base
from console.management.base import printable, refuse
from console.stores import list_stores


class Command(Base):
    help = (
        "Say for each configured store whether it answers, what it holds, and which rights are missing or too many. "
        "Exit code 1 where one does not answer; a store that can only be read is said to be so, and is no failure."
    )

    def run(self, **options: Any) -> None:
        stores = list_stores()
        if not stores:
            refuse("no store is configured; set ACTION_STORES")
        checks = {store.name: store.check() for store in stores}
        for name, check in checks.items():
            for line in _lines(name, check):
                self.stdout.write(printable(line))
        unreachable = [
            f"store {name}: {check.why_not or 'it does not answer'}" for name, check in checks.items() if not check.is_reachable
        ]
        if unreachable:
            refuse("; ".join(unreachable))


def _lines(name: str, check: StoreCheck) -> list[str]:
    if not check.is_reachable:
        return [f"{name}: not reachable: {check.why_not}"]
    found = [
        "holds Recall's records" if check.has_records else "holds no records of Recall yet",
        "prepared" if check.is_prepared else "not prepared",
        "with the index of open actions" if check.has_index else "without the index of open actions",
    ]
    can = "can be settled" if check.can_settle else f"can only be read: {check.why_not}"
    return [f"{name}: {check.server}; {', '.join(found)}; {can}", *(f"{name}: warning: {warning}" for warning in check.warnings)]
