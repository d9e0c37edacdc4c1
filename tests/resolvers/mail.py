"""A real IMAP server in this process (mail-devel) for the tests of the kind `imap`: one for a whole run, a folder of its own for each test."""

from __future__ import annotations

import asyncio
import imaplib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mail_devel.service import Service
from pymap.backend.dict import DictBackend
from pysasl.hashing import Cleartext

from actions.times import Instant, to_datetime
from local.processes import free_port

USER = "agents@mail.example"
PASSWORD = 'correct horse \\ "battery" 1'
DOMAIN = "mail.example"


@dataclass(frozen=True, slots=True, kw_only=True)
class MailServer:
    """Where it is. `user` may log in with `password` and do everything."""

    port: int
    host: str = "127.0.0.1"
    user: str = USER
    password: str = PASSWORD

    def create(self, folder: str) -> None:
        with self._client() as client:
            assert client.create(folder)[0] == "OK"

    def append(self, folder: str, message: bytes, *, at: Instant, flags: str = r"(\Seen)") -> None:
        """File a mail, as a sender does: byte for byte."""
        with self._client() as client:
            moment = to_datetime(at).astimezone()
            assert client.append(folder, flags, imaplib.Time2Internaldate(moment), message)[0] == "OK"

    def flags(self, folder: str) -> list[bytes]:
        with self._client() as client:
            client.select(folder, readonly=True)
            return [part for part in client.fetch("1:*", "(FLAGS)")[1] if isinstance(part, bytes)]

    @contextmanager
    def _client(self) -> Iterator[imaplib.IMAP4]:
        with imaplib.IMAP4(self.host, self.port, timeout=60) as client:
            client.login(self.user, self.password)
            yield client


async def _keep_password_readable(service: Service) -> None:
    """Hashing it takes longer than everything else in a test."""
    assert service.config is not None
    assert service.login is not None
    service.config.hash_context = Cleartext()  # type: ignore[misc]
    service.login.__init__(service.config)  # type: ignore[misc]
    await DictBackend._add_demo_user(service.config, service.login)


async def _end_sessions() -> None:
    """Those whose client went away without a word, too."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


@contextmanager
def serve_mail(*, certificate: Path | None = None, key: Path | None = None) -> Iterator[MailServer]:
    """Plain, and with STARTTLS where there is a certificate."""
    server = MailServer(port=free_port())
    given = ["--host", server.host, "--imap-port", str(server.port), "--user", USER, "--password", PASSWORD, "--no-http"]
    if certificate and key:
        given += ["--cert", str(certificate), "--key", str(key)]
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def wait(work: object) -> None:
        asyncio.run_coroutine_threadsafe(work, loop).result(timeout=60)  # type: ignore[arg-type]

    async def prepare() -> Service:
        service = await Service.init(Service.parse(given))
        await _keep_password_readable(service)
        service.smtp = service.smtps = None
        assert service.config is not None
        service.config._tls_enabled = bool(certificate)  # or it would have STARTTLS and not say so
        return service

    running = asyncio.run_coroutine_threadsafe(prepare(), loop).result(timeout=60).start()
    wait(running.__aenter__())
    try:
        yield server
    finally:
        wait(running.__aexit__(None, None, None))
        wait(_end_sessions())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout=60)
        loop.close()
