"""A database of its own with a role that may only read, for the tests of the kind `sql`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import psycopg

from local.postgres import Postgres


@dataclass(frozen=True, slots=True, kw_only=True)
class Shop:
    """`url` is the superuser's; `reader` may read what is granted to it, and see other sessions."""

    server: Postgres
    database: str
    connection: psycopg.Connection[Any]  # the superuser's, in autocommit
    reader: str
    password: str = "a reader's password 4711"

    @property
    def url(self) -> str:
        return self.server.url(self.database)

    def execute(self, statements: str) -> None:
        self.connection.execute(statements)


@contextmanager
def open_shop(server: Postgres) -> Iterator[Shop]:
    name = uuid4().hex[:12]
    url = server.create_database(f"shop_{name}")
    connection = psycopg.connect(url, autocommit=True)
    shop = Shop(server=server, database=f"shop_{name}", connection=connection, reader=f"reader_{name}")
    password = shop.password.replace("'", "''")
    shop.execute(f"CREATE ROLE {shop.reader} LOGIN PASSWORD '{password}'; GRANT pg_read_all_stats TO {shop.reader}")
    try:
        yield shop
    finally:
        connection.close()
        server.drop_database(shop.database)
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute(f"DROP ROLE {shop.reader}")
