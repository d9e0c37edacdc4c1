"""The console's resolvers and policies for the demo's tools, made once by the demo user. What a person changes later stays changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from demo.outside import HOST, MAIL_DOMAIN, MAIL_USER, SENT, Outside

if TYPE_CHECKING:
    from django.contrib.auth.models import User

PER_MINUTE = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One resolver as it is defined first. `address` are those of its values that hold a port."""

    name: str
    kind: str
    values: Mapping[str, str]
    address: str
    port: int
    secrets: Mapping[str, str]


def wanted(outside: Outside) -> tuple[Wanted, ...]:
    """The resolvers, by where the outside world is."""
    sent_folder = Wanted(
        name="sent-folder",
        kind="imap",
        values={
            "host": HOST,
            "port": str(outside.mail_port),
            "security": "none",
            "user": MAIL_USER,
            "folder": SENT,
            "message_id_domain": MAIL_DOMAIN,
            "timeout_s": "5",
        },
        address="port",
        port=outside.mail_port,
        secrets={"password": outside.mail_password},
    )
    payments = Wanted(
        name="payments",
        kind="stripe",
        values={
            "object": "payment_intent",
            "metadata_key": "idempotency_key",
            "recipient_metadata": "payee",
            "reference_metadata": "reference",
            "proves_absence": "yes",
            "api_base": f"http://{HOST}:{outside.payments_port}",
            "timeout_s": "5",
        },
        address="api_base",
        port=outside.payments_port,
        secrets={"api_key": outside.payments_key},
    )
    tracker = Wanted(
        name="tracker",
        kind="http",
        values={
            "url": f"http://{HOST}:{outside.tickets_port}/api/tickets",
            "params": "external_id={key}",
            "auth": "bearer",
            "objects": "body.tickets",
            "key": "object.external_id",
            "id": "object.id",
            "reference": "object.title",
            "at": "object.created_at",
            "complete": "status == 200 && body.count == size(body.tickets)",
            "canary_key": "canary",
            "proves_absence": "yes",
            "account": "the tracker of operations",
            "timeout_s": "5",
        },
        address="url",
        port=outside.tickets_port,
        secrets={"secret": outside.tickets_token},
    )
    return sent_folder, payments, tracker


# Receipts are routine: where the copy in the Sent folder agrees in everything, nobody has to look. Everything else is proposed to a person.
POLICIES: Mapping[str, Mapping[str, Any]] = {
    "send_receipt": {"resolver": "sent-folder", "mode": "settle", "tool_timeout_s": 5, "settle_window_s": 60},
    "send_email": {"resolver": "sent-folder", "mode": "propose", "tool_timeout_s": 5, "settle_window_s": 60},
    "create_payment": {
        "resolver": "payments",
        "mode": "propose",
        "tool_timeout_s": 5,
        "settle_window_s": 60,
        "second_person_when": "amount > 1000",
    },
    "open_ticket": {
        "resolver": "tracker",
        "mode": "propose",
        "tool_timeout_s": 5,
        "settle_window_s": 60,
        "reference": "title",
    },
}


def ensure_resolvers(outside: Outside, by: User) -> None:
    """Define what nobody has defined yet; let a definition follow a server of ours that had to move, and change nothing else in it."""
    from console.services.definitions import find_definition, options_of, save_definition

    for one in wanted(outside):
        current = find_definition(one.name)
        if current is None:
            save_definition(one.name, one.kind, one.values, one.secrets, seen_version=0, by=by, per_minute=PER_MINUTE)
            continue
        options = options_of(current)
        if current.kind == one.kind and options.get(one.address) in _former_addresses(one, outside):
            save_definition(
                one.name,
                one.kind,
                {**options, one.address: one.values[one.address]},
                one.secrets,
                seen_version=current.version,
                by=by,
                per_minute=current.per_minute,
                at_once=current.at_once,
                is_enabled=current.is_enabled,
            )


def _former_addresses(one: Wanted, outside: Outside) -> set[str]:
    return {one.values[one.address].replace(str(one.port), str(port)) for port in outside.former_ports}


def ensure_policies(by: User) -> None:
    """Set the policies of tools that have none yet."""
    from console.services.policies import policy_of, save_policy

    for tool, values in POLICIES.items():
        if policy_of(tool).version == 0:
            save_policy(tool, values, seen_version=0, by=by)
