"""A folder of a real IMAP server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any, Self
from uuid import uuid4

import pytest

from actions.resolvers import build_resolver
from actions.resolvers.base import Allowed, Claim, Resolver
from actions.times import SECOND
from tests.resolvers.mail import DOMAIN, MailServer
from tests.resolvers.makers import BEGAN, HOUR, make_claim
from tests.resolvers.wire import Wire
from tests.resolvers.worlds import CREDENTIALS, HTML, REFUSED, SLOW

CANARY = f"<canary-1@{DOMAIN}>"
MAIL = {"to": "lena@example.net", "subject": "Your order A-0971", "body": "It is on its way."}


class World:
    kind = "imap"
    breaks = frozenset({SLOW, HTML, CREDENTIALS, REFUSED})
    tells = frozenset({"recipient"})

    def __init__(self, server: MailServer) -> None:
        self.server = server
        self.secrets: tuple[str, ...] = (server.password,)
        self.folder = f"Sent {uuid4().hex[:12]}"
        self.password = server.password
        self.wire = Wire(server.port)
        server.create(f'"{self.folder}"')

    @classmethod
    @contextmanager
    def open(cls, request: pytest.FixtureRequest) -> Iterator[Self]:
        world = cls(request.getfixturevalue("mail_server"))
        try:
            yield world
        finally:
            world.wire.close()

    def claim(self, **changes: Any) -> Claim:
        return make_claim(**{"tool": "send_email", "args": MAIL, **changes})

    def resolver(self, **settings: str) -> Resolver:
        usual = {
            "host": "127.0.0.1",
            "port": str(self.wire.port),
            "security": "none",
            "user": self.server.user,
            "folder": self.folder,
            "message_id_domain": DOMAIN,
            "canary_message_id": CANARY,
            "proves_absence": "yes",
            "timeout_s": "0.3" if self.wire.how == SLOW else "10",
        }
        return build_resolver(
            "imap",
            "sent-folder",
            {**usual, **settings},
            {"password": self.password},
            allowed=Allowed(hosts=frozenset({"127.0.0.1"})),
        )

    def put(
        self,
        claim: Claim,
        *,
        key: str | None = None,
        amount: Decimal | None = None,
        recipient: str | None = None,
        currency: str | None = None,
    ) -> None:
        key = claim.action.key if key is None else key
        headers = {
            "Message-ID": f"<{key}@{DOMAIN}>" if key else f"<{uuid4()}@{DOMAIN}>",
            "X-Idempotency-Key": key,
            "To": recipient or ", ".join(claim.recipients),
        }
        self.put_mail(headers, at=BEGAN + SECOND)

    def put_canary(self, *, suffix: str = "") -> None:
        self.put_mail({"Message-ID": f"{CANARY}{suffix}", "To": "postmaster@mail.example"}, at=BEGAN - 2 * HOUR)

    def put_mail(self, headers: dict[str, str], *, at: int = BEGAN + SECOND, flags: str = r"(\Seen)") -> None:
        """A header without a value is left out."""
        given = {"From": self.server.user, "Subject": MAIL["subject"], **headers}
        lines = [f"{name}: {value}".encode() for name, value in given.items() if value]
        self.server.append(f'"{self.folder}"', b"\r\n".join([*lines, b"", b"Hello."]), at=at, flags=flags)

    def break_with(self, how: str) -> None:
        if how == CREDENTIALS:
            self.password = "something else"
            self.secrets += (self.password,)
        else:
            self.wire.break_with(how)

    def asked_count(self) -> int:
        return len(re.findall(rb" UID SEARCH ", self.wire.sent()))

    def shapes(self) -> tuple[str, ...]:
        """Commands without tags, UIDs and what stands in quotes."""
        lines = self.wire.sent().decode("latin-1").splitlines()
        return tuple(re.sub(r'"(\\.|[^"\\])*"', '"..."', re.sub(r"^\S+ |\b\d+\b", "", line)) for line in lines)
