"""Servers of the resolvers' tests: one mail server for a whole run, since each world takes a folder of its own there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.resolvers.mail import MailServer, serve_mail


@pytest.fixture(scope="session")
def mail_server() -> Iterator[MailServer]:
    with serve_mail() as server:
        yield server
