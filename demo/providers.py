"""The outside world as servers: a mailbox (IMAP), a payment provider (Stripe's API) and a ticket tracker (JSON over HTTP), in one process.

`python -m demo.providers FILE WORLD`: FILE says where and with which credentials. What they show follows from the world's files alone, which
the agents' tools write; so nothing is there that no agent did, and nothing is lost when this process is killed.
"""

from __future__ import annotations

import asyncio
import imaplib
import json
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from decimal import Decimal
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from mail_devel.service import Service  # type: ignore[import-untyped]

from actions.money import to_minor
from demo.outside import HOST, MAIL_DOMAIN, MAIL_USER, SENT, Outside
from demo.world import MAIL, PAYMENTS, TICKETS, World
from local.provider import Provider, Receive, Scope, Send, application, serve

CANARY = "canary"  # key of a ticket that was always there
POLL_S = 0.1

App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Fresh:
    """The effects in one of the world's files, each told once, oldest first."""

    def __init__(self, world: World, file: str) -> None:
        self._path = world.folder / file
        self._told = 0  # bytes

    def effects(self) -> list[dict[str, Any]]:
        """Those since the last time; a line that is only half written waits for the next."""
        if not self._path.exists() or self._path.stat().st_size == self._told:
            return []
        with self._path.open("rb") as lines:
            lines.seek(self._told)
            whole, newline, _ = lines.read().rpartition(b"\n")
        self._told += len(whole + newline)
        return [json.loads(line) for line in whole.splitlines()]


# --- mail ------------------------------------------------------------------------------------------------------------


def serve_mail(outside: Outside) -> None:
    """An IMAP server in a thread of its own, for as long as this process lives; returns when it answers."""
    threading.Thread(target=lambda: asyncio.run(_run_mail(outside)), daemon=True).start()
    deadline = time.monotonic() + 20
    while True:
        try:
            with imaplib.IMAP4(HOST, outside.mail_port, timeout=5):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


async def _run_mail(outside: Outside) -> None:
    given = ["--host", HOST, "--imap-port", str(outside.mail_port), "--user", MAIL_USER, "--no-http"]
    # In one word: a password may begin with a dash.
    service = await Service.init(Service.parse([*given, f"--password={outside.mail_password}"]))
    service.smtp = service.smtps = None  # nobody sends by it
    async with service.start():
        await asyncio.Event().wait()


def file_mails(mails: Fresh, outside: Outside) -> None:
    """File a copy of every new mail in the Sent folder, as the sending provider does."""
    effects = mails.effects()
    if not effects:
        return
    with imaplib.IMAP4(HOST, outside.mail_port, timeout=10) as client:
        client.login(MAIL_USER, outside.mail_password)
        for effect in effects:
            client.append(SENT, r"(\Seen)", imaplib.Time2Internaldate(_moment(effect)), written(effect))


def create_sent_folder(outside: Outside) -> None:
    with imaplib.IMAP4(HOST, outside.mail_port, timeout=10) as client:
        client.login(MAIL_USER, outside.mail_password)
        client.create(SENT)  # refused where the server has made it by itself


def written(effect: Mapping[str, Any]) -> bytes:
    """The mail as it went out: the action's key in its Message-ID and in a header of its own."""
    mail = EmailMessage(policy=SMTP)
    mail["From"] = f"Customer care <{MAIL_USER}>"
    mail["To"] = effect["to"]
    mail["Subject"] = effect["subject"]
    mail["Date"] = format_datetime(_moment(effect))
    mail["Message-ID"] = f"<{effect['key']}@{MAIL_DOMAIN}>"
    mail["X-Idempotency-Key"] = effect["key"]
    mail.set_content(effect["body"])
    return mail.as_bytes()


# --- payments and tickets --------------------------------------------------------------------------------------------


def payments(world: World, outside: Outside) -> App:
    """The payment provider: each payment as a payment intent that succeeded, with the key in its metadata."""
    provider = Provider(key=outside.payments_key, account="acct_demo")
    fresh, talk = Fresh(world, PAYMENTS), application(provider)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for effect in fresh.effects():
            _pay(provider, effect)
        await talk(scope, receive, send)

    return app


def _pay(provider: Provider, effect: Mapping[str, Any]) -> None:
    amount = int(to_minor(Decimal(str(effect["amount"])), effect["currency"]))
    provider.file(
        "payment_intent",
        created=int(_moment(effect).timestamp()),
        id=effect["id"],
        amount=amount,
        amount_received=amount,
        currency=effect["currency"].lower(),
        status="succeeded",
        metadata={"idempotency_key": effect["key"], "payee": effect["payee"], "reference": effect["reference"]},
    )


def tickets(world: World, outside: Outside) -> App:
    """The tracker: `GET /api/tickets?external_id=KEY`, with a bearer token. The key is an external id, as Zendesk has it."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        answer: dict[str, Any]
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if headers.get("authorization") != f"Bearer {outside.tickets_token}":
            status, answer = 401, {"error": "no such token"}
        elif scope["method"] != "GET" or scope["path"] != "/api/tickets":
            status, answer = 404, {"error": "there is GET /api/tickets and nothing else"}
        else:
            wanted = parse_qs(scope["query_string"].decode("latin-1")).get("external_id")
            found = [ticket for ticket in _tickets_of(world) if wanted is None or ticket["external_id"] in wanted]
            status, answer = 200, {"tickets": found, "count": len(found)}
        kind = (b"content-type", b"application/json")
        await send({"type": "http.response.start", "status": status, "headers": [kind]})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})

    return app


def _tickets_of(world: World) -> list[dict[str, Any]]:
    first = {"id": "T-000001", "external_id": CANARY, "title": "This tracker is open", "created_at": "2026-01-01T00:00:00+00:00"}
    return [first] + [
        {"id": one["id"], "external_id": one["key"], "title": one["title"], "priority": one["priority"], "created_at": one["at"]}
        for one in world.effects(TICKETS)
    ]


def _moment(effect: Mapping[str, Any]) -> datetime:
    return datetime.fromisoformat(effect["at"])


def main(argv: list[str]) -> int:
    file, folder = map(Path, argv)
    outside, world = Outside.read(file), World(folder)
    mails = Fresh(world, MAIL)
    serve_mail(outside)
    create_sent_folder(outside)
    file_mails(mails, outside)
    # The demo waits for these two: whoever can ask them finds the mails of earlier starts, too.
    with serve(payments(world, outside), port=outside.payments_port), serve(tickets(world, outside), port=outside.tickets_port):
        while True:
            time.sleep(POLL_S)
            file_mails(mails, outside)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
