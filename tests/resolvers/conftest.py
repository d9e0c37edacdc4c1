"""Servers of the resolvers' tests: one of a sort for a whole run, since each world takes a folder or an account of its own there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from local.postgres import Postgres
from tests.resolvers.hosted import HostedProvider, host_provider
from tests.resolvers.mail import MailServer, serve_mail
from tests.resolvers.shop import Shop, open_shop


@pytest.fixture(scope="session")
def mail_server() -> Iterator[MailServer]:
    with serve_mail() as server:
        yield server


@pytest.fixture(scope="session")
def hosted_provider() -> Iterator[HostedProvider]:
    with host_provider() as hosted:
        yield hosted


@pytest.fixture(scope="session")
def shop(pg_server: Postgres) -> Iterator[Shop]:
    with open_shop(pg_server) as opened:
        yield opened
