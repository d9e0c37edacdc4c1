"""The tools of the demo's agents. Each acts on the world's files, and can be told to die or to hang inside a call."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, NoReturn

import psutil  # type: ignore[import-untyped]
from langchain_core.tools import BaseTool, InjectedToolArg, tool

from demo.cast import HANGS
from demo.world import INVOICES, MAIL, PAYMENTS, TICKETS, World

CLASSES = {
    "lookup_order": "pure",
    "save_invoice": "idempotent",
    "send_email": "external",
    "send_receipt": "external",
    "create_payment": "external",
    "open_ticket": "external",
}

ORDERS = {
    "A-0971": ("Lena Hoffmann", "lena.hoffmann@example.net", "oak shelf", 149.00),
    "A-0988": ("Kontor GmbH", "accounts@xn--mnchen-3ya.example", "12 desk pads", 118.80),
    "A-0997": ("Jonas Weber", "jonas.weber@example.org", "espresso grinder", 120.00),
    "A-1007": ("Amira Haddad", "amira.haddad@example.com", "linen curtains", 64.90),
    "A-1019": ("Per Lindqvist", "per.lindqvist@example.com", "wool blanket", 89.90),
    "A-1042": ("Marta Nowak", "marta.nowak@example.com", "walnut desk lamp", 74.50),
}

Key = Annotated[str, InjectedToolArg]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """What befalls the agent, and inside which tool; nothing when a name is empty."""

    kill_in: str = ""
    after: bool = False  # killed after the effect, not before it
    hang: str = ""


def die() -> NoReturn:
    """SIGKILL for Recall's process, so that it cannot hand the lease over, then for this one: a machine that went away."""
    for child in psutil.Process().children(recursive=True):
        child.kill()
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


class Hands:
    """Does a tool's effect, unless the agent's fate strikes first."""

    def __init__(self, world: World, fate: Fate, tell: Callable[[str], None]) -> None:
        self.world = world
        self.fate = fate
        self.tell = tell

    def act(self, name: str, file: str, key: str, effect: dict[str, object]) -> None:
        """Write the effect. Killed before it, nothing is written; killed after it, the caller never learns."""
        if self.fate.hang == name:
            self.tell(HANGS.format(tool=name))
            threading.Event().wait()
        if self.fate.kill_in == name and not self.fate.after:
            self.tell(f"killed in {name}, before the effect")
            die()
        self.world.append(file, key, effect)
        if self.fate.kill_in == name:
            self.tell(f"killed in {name}, after the effect")
            die()


def build_tools(hands: Hands) -> list[BaseTool]:
    """The six tools, acting through these hands."""

    def post(name: str, to: str, subject: str, body: str, key: str) -> str:
        message_id = f"<{key}@mail.example>"
        hands.act(name, MAIL, key, {"message_id": message_id, "to": to, "subject": subject, "body": body})
        return f"sent, message-id {message_id}"

    @tool
    def lookup_order(order: str) -> str:
        """Look an order up: customer, address, goods, total."""
        if order not in ORDERS:
            return json.dumps({"order": order, "found": False})
        name, address, goods, total = ORDERS[order]
        return json.dumps({"order": order, "customer": name, "email": address, "goods": goods, "total": total, "currency": "EUR"})

    @tool
    def save_invoice(invoice: str, supplier: str, total: float, currency: str, idempotency_key: Key = "") -> str:
        """File an invoice. The same key again files nothing more."""
        if not hands.world.has(INVOICES, idempotency_key):
            effect: dict[str, object] = {"invoice": invoice, "supplier": supplier, "total": total, "currency": currency}
            hands.act("save_invoice", INVOICES, idempotency_key, effect)
        return f"filed {invoice}"

    @tool
    def send_email(to: str, subject: str, body: str, idempotency_key: Key = "") -> str:
        """Send an email."""
        return post("send_email", to, subject, body, idempotency_key)

    @tool
    def send_receipt(to: str, subject: str, body: str, idempotency_key: Key = "") -> str:
        """Send the receipt of a paid order."""
        return post("send_receipt", to, subject, body, idempotency_key)

    @tool
    def create_payment(amount: float, currency: str, payee: str, reference: str, idempotency_key: Key = "") -> str:
        """Pay an amount to a payee."""
        number = f"pay_{idempotency_key[:12]}"
        effect = {"id": number, "amount": amount, "currency": currency, "payee": payee, "reference": reference}
        hands.act("create_payment", PAYMENTS, idempotency_key, effect)
        return f"paid, {number}"

    @tool
    def open_ticket(title: str, body: str, priority: str, idempotency_key: Key = "") -> str:
        """Open a ticket."""
        number = f"T-{idempotency_key[:6].upper()}"
        hands.act("open_ticket", TICKETS, idempotency_key, {"id": number, "title": title, "body": body, "priority": priority})
        return f"opened {number}"

    return [lookup_order, save_invoice, send_email, send_receipt, create_payment, open_ticket]
