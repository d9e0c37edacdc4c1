"""The demo's run type: a refund in four steps, each call of it durable, with a gate above 1000 EUR and a way back.

A worker of the demo's console advances it. Its tools write the world's files (DEMO_WORLD) as the agents' tools do. An accident that the demo
arranged befalls one call: the worker's process dies by SIGKILL right after the effect, or the tracker refuses.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from agents.runs import Gate, RunTool, RunType, Undo
from demo.world import MAIL, PAYMENTS, TICKETS, World

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage

WORLD = "DEMO_WORLD"
TAKEN_BACK = "taken_back.jsonl"
CLOSED = "closed_tickets.jsonl"
ACCIDENTS = "accidents"
"""A folder in the world: a file `ORDER.TOOL` there befalls that call, once where it holds `die`, always where it holds `refuse`."""
GATE_ABOVE_EUR = 1000
_PAID, _OPENED = re.compile(r"\bpay_[0-9a-f]+\b"), re.compile(r"\bT-[0-9A-F]+\b")

ORDERS = {
    "A-0971": ("Lena Hoffmann", "lena.hoffmann@example.net", "oak shelf"),
    "A-0993": ("Noor Bakker", "noor.bakker@example.com", "reading chair"),
    "A-0997": ("Jonas Weber", "jonas.weber@example.org", "espresso grinder"),
    "A-1007": ("Amira Haddad", "amira.haddad@example.com", "linen curtains"),
    "A-1042": ("Marta Nowak", "marta.nowak@example.com", "walnut desk lamp"),
}


def _whole_cents(amount: float) -> float:
    if round(amount, 2) != amount:
        raise ValueError("at most two decimals")
    return amount


Amount = Annotated[float, Field(gt=0, le=1_000_000, allow_inf_nan=False), AfterValidator(_whole_cents)]


class Refund(BaseModel):
    """What a refund is started with."""

    model_config = ConfigDict(extra="forbid", strict=True)

    order: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._/#-]{0,63}$")] = Field(
        title="Order", description="Its number, such as A-0997", examples=["A-0997"]
    )
    amount: Amount = Field(
        title="Amount", description=f"In EUR; above {GATE_ABOVE_EUR} somebody has to approve the payment", examples=[120.0]
    )


# --- tools ------------------------------------------------------------------------------------------------------------


def lookup_order(order: str) -> str:
    """Look an order up: customer, address, goods."""
    name, address, goods = ORDERS.get(order) or (f"Customer of {order}", f"{_slug(order)}@customers.example", "goods")
    return json.dumps({"order": order, "customer": name, "email": address, "goods": goods})


def create_payment(amount: Amount, currency: str, payee: str, reference: str, idempotency_key: str = "") -> str:
    """Pay an amount to a payee."""
    number = f"pay_{idempotency_key[:12]}"
    effect = {"id": number, "amount": amount, "currency": currency, "payee": payee, "reference": reference}
    _act("create_payment", reference.removeprefix("Refund "), PAYMENTS, idempotency_key, effect)
    return f"paid, {number}"


def take_back_payment(payment: str, amount: float, currency: str, idempotency_key: str = "") -> str:
    """Take a payment back."""
    _act("take_back_payment", payment, TAKEN_BACK, idempotency_key, {"payment": payment, "amount": amount, "currency": currency})
    return f"taken back, {payment}"


def send_email(to: str, subject: str, body: str, idempotency_key: str = "") -> str:
    """Send an email."""
    return _post("send_email", subject.rpartition(" ")[2], to, subject, body, idempotency_key)


def send_correction(to: str, subject: str, body: str, idempotency_key: str = "") -> str:
    """Tell somebody who was written to that it is not so."""
    return _post("send_correction", subject.rpartition(" ")[2], to, subject, body, idempotency_key)


def open_ticket(title: str, body: str, priority: str, idempotency_key: str = "") -> str:
    """Open a ticket."""
    number = f"T-{idempotency_key[:6].upper()}"
    effect = {"id": number, "title": title, "body": body, "priority": priority}
    _act("open_ticket", title.rpartition(" ")[2], TICKETS, idempotency_key, effect)
    return f"opened {number}"


def close_ticket(ticket: str, idempotency_key: str = "") -> str:
    """Close a ticket. Closing it again changes nothing."""
    world = _world()
    if not world.has(CLOSED, idempotency_key):
        world.append(CLOSED, idempotency_key, {"ticket": ticket})
    return f"closed {ticket}"


def _post(tool: str, order: str, to: str, subject: str, body: str, key: str) -> str:
    message_id = f"<{key}@mail.example>"
    _act(tool, order, MAIL, key, {"message_id": message_id, "to": to, "subject": subject, "body": body})
    return f"sent, message-id {message_id}"


def _act(tool: str, order: str, file: str, key: str, effect: Mapping[str, object]) -> None:
    """Write the effect, unless an accident comes first."""
    world = _world()
    accident = world.folder / ACCIDENTS / f"{_slug(order)}.{tool}"
    kind = accident.read_text().strip() if accident.exists() else ""
    if kind == "refuse":
        raise RuntimeError(f"{tool} was refused: order {order} is locked by an audit")
    world.append(file, key, effect)
    if kind == "die":
        accident.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def arrange(world: World, order: str, tool: str, kind: str) -> None:
    """Let `die` or `refuse` befall that call of the refund of that order."""
    folder = world.folder / ACCIDENTS
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / f"{_slug(order)}.{tool}").write_text(kind)


def _world() -> World:
    folder = os.environ.get(WORLD)
    if not folder:
        raise RuntimeError(f"{WORLD} is not set; it names the folder that the demo's tools write to")
    return World(Path(folder))


def _slug(order: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in order.lower())


# --- the way back -----------------------------------------------------------------------------------------------------


def of_payment(args: Mapping[str, Any], result: str) -> Mapping[str, Any]:
    return {"payment": _number_in(result, _PAID, "payment"), "amount": args["amount"], "currency": args["currency"]}


def of_email(args: Mapping[str, Any], result: str) -> Mapping[str, Any]:
    subject = f"Correction: {args['subject']}"
    body = "Hello,\n\nplease disregard our last mail: the refund has been taken back, and we will write again.\n\nBilling"
    return {"to": args["to"], "subject": subject, "body": body}


def of_ticket(args: Mapping[str, Any], result: str) -> Mapping[str, Any]:
    return {"ticket": _number_in(result, _OPENED, "ticket")}


def _number_in(result: str, pattern: re.Pattern[str], what: str) -> str:
    """Raises ValueError where there is none, or more than one: where a person settled the call, its result is their words."""
    found = set(pattern.findall(result))
    if len(found) != 1:
        raise ValueError(f"the result of the call does not name one {what}")
    return found.pop()


# --- graph ------------------------------------------------------------------------------------------------------------


def start(given: Refund) -> Mapping[str, Any]:
    from langchain_core.messages import HumanMessage

    text = f"Refund order {given.order}: {given.amount:.2f} EUR. Tell the customer, and open a ticket for accounting."
    return {"messages": [HumanMessage(content=text, additional_kwargs={"refund": given.model_dump()})]}


def build(tools: Sequence[Any], hooks: Any, checkpointer: Any) -> Any:
    """A prebuilt agent around a scripted model, so that no key and no network are needed."""
    from langchain.agents import create_agent

    from demo.run_model import RefundModel

    return create_agent(RefundModel(), list(tools), middleware=[hooks.middleware()], checkpointer=checkpointer)


def result(state: Mapping[str, Any]) -> str:
    messages: Sequence[BaseMessage] = state.get("messages") or ()
    return str(messages[-1].content) if messages else ""


def cost(message: Any) -> Decimal:
    """In EUR: what a message of this length would cost at a model's list price."""
    used = message.usage_metadata or {}
    return Decimal(used.get("input_tokens", 0)) * Decimal("0.000003") + Decimal(used.get("output_tokens", 0)) * Decimal(
        "0.000015"
    )


REFUND = RunType(
    name="refund",
    version=1,
    title="Refund an order",
    summary="Refund of {amount} EUR, order {order}",
    input=Refund,
    build=build,
    start=start,
    result=result,
    cost=cost,
    tools=(
        RunTool(lookup_order, "pure"),
        RunTool(
            create_payment,
            "external",
            gate=Gate(when=f"args.amount > {GATE_ABOVE_EUR}.0", description=f"A refund above {GATE_ABOVE_EUR} EUR"),
            compensate=Undo("take_back_payment", of_payment),
            moves_money=True,
        ),
        RunTool(send_email, "external", compensate=Undo("send_correction", of_email)),
        RunTool(open_ticket, "external", compensate=Undo("close_ticket", of_ticket)),
        RunTool(take_back_payment, "external", only_undoes=True),
        RunTool(send_correction, "external", only_undoes=True),
        RunTool(close_ticket, "idempotent", only_undoes=True),
    ),
)
RUN_TYPES = (REFUND,)
