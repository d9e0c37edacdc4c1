"""The world outside of agents and console, where it is reached: mailbox, payment provider, ticket tracker. Addresses and credentials."""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Self

from local import processes
from local.processes import ServerError

HOST = "127.0.0.1"
MAIL_USER = "agents@mail.example"
MAIL_DOMAIN = "mail.example"
SENT = "Sent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """Drawn once and kept: resolvers are defined by these addresses, in the console's tables."""

    mail_port: int
    payments_port: int
    tickets_port: int
    mail_password: str
    payments_key: str
    tickets_token: str
    former_ports: tuple[int, ...] = ()  # ours once, taken by somebody else since

    @classmethod
    def draw(cls) -> Self:
        mail, payments, tickets = _free_ports(3, avoid=())
        return cls(
            mail_port=mail,
            payments_port=payments,
            tickets_port=tickets,
            mail_password=secrets.token_urlsafe(18),
            payments_key=f"rk_test_{secrets.token_hex(12)}",
            tickets_token=secrets.token_urlsafe(18),
        )

    @classmethod
    def read(cls, file: Path) -> Self:
        kept = json.loads(file.read_text())
        return cls(**{**kept, "former_ports": tuple(kept["former_ports"])})

    @property
    def ports(self) -> tuple[int, int, int]:
        return self.mail_port, self.payments_port, self.tickets_port

    @property
    def allowed_hosts(self) -> str:
        """As RESOLVER_ALLOWED_HOSTS has them: this machine, and nothing of it but these ports."""
        return " ".join(f"{HOST}:{port}" for port in self.ports)


def kept_outside(file: Path) -> Outside:
    """That of the last start, with other ports in place of those that somebody has taken; drawn and written at the first one."""
    outside = Outside.draw() if not file.exists() else _moved(Outside.read(file))
    from local import postgres  # its driver, which the providers, who only read that file, do not need

    postgres.write_private(file, json.dumps(asdict(outside), indent=2) + "\n")
    return outside


def _moved(outside: Outside) -> Outside:
    taken = [port for port in outside.ports if not _becomes_free(port)]
    if not taken:
        return outside
    former = (*outside.former_ports, *taken)
    new = dict(zip(taken, _free_ports(len(taken), avoid={*outside.ports, *former}), strict=True))
    mail, payments, tickets = (new.get(port, port) for port in outside.ports)
    return replace(outside, mail_port=mail, payments_port=payments, tickets_port=tickets, former_ports=former)


def _becomes_free(port: int) -> bool:
    """Whether it is free; one left by a demo that was killed a moment ago becomes so by itself."""
    try:
        processes.wait_until(lambda: _is_free(port), what=f"port {port}", timeout=timedelta(seconds=2))
    except ServerError:
        return False
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return True
    return False


def _free_ports(count: int, *, avoid: Collection[int]) -> list[int]:
    ports: list[int] = []
    while len(ports) < count:
        port = processes.free_port()
        if port not in ports and port not in avoid:
            ports.append(port)
    return ports
