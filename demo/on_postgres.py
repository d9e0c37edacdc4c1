"""The demo's PostgreSQL and who reaches it as whom: the console owns its own database, the agents own their records."""

from __future__ import annotations

from dataclasses import replace
from typing import LiteralString

import psycopg
from psycopg import sql

from demo.addresses import AGENTS, COLLECTION, CONSOLE, RECORDS, Passwords, Store
from local.postgres import Postgres

CONSOLE_DATABASE = "settle"

# All that the console's role may do in a store.
GRANTS: tuple[LiteralString, ...] = (
    "USAGE ON SCHEMA recall, settle_audit",
    "SELECT ON ALL TABLES IN SCHEMA recall, settle_audit",
    "INSERT, UPDATE ON recall.recall_leases, {records}",
    "UPDATE ON recall.recall_collections",
    "INSERT ON settle_audit.entries",
    "INSERT, UPDATE ON settle_audit.heads",
)


def console_address(server: Postgres, passwords: Passwords) -> str:
    """The console's own database, which its role owns."""
    return replace(server, user=CONSOLE, password=passwords.console).url(CONSOLE_DATABASE)


def store(server: Postgres, name: str, passwords: Passwords) -> Store:
    """A store on `server`, given as its superuser."""
    return Store(
        name=name,
        console=replace(server, user=CONSOLE, password=passwords.console).url(RECORDS),
        owner=server.url(RECORDS),
        agents=replace(server, user=AGENTS, password=passwords.agents).url(RECORDS),
    )


def create(server: Postgres, passwords: Passwords, *, with_records: bool) -> None:
    """Make the roles and databases; harmless when all is there."""
    roles = {CONSOLE: passwords.console, AGENTS: passwords.agents}
    owners = {CONSOLE_DATABASE: CONSOLE, **({RECORDS: AGENTS} if with_records else {})}
    with psycopg.connect(server.url(), autocommit=True) as connection:
        for role, password in roles.items():
            known = connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [role]).fetchone()
            statement = sql.SQL("ALTER ROLE {} LOGIN PASSWORD {}" if known else "CREATE ROLE {} LOGIN PASSWORD {}")
            connection.execute(statement.format(sql.Identifier(role), sql.Literal(password)))
        for database, owner in owners.items():
            server.ensure_database(database)
            statement = sql.SQL("ALTER DATABASE {} OWNER TO {}")
            connection.execute(statement.format(sql.Identifier(database), sql.Identifier(owner)))
    if with_records:
        with psycopg.connect(server.url(RECORDS)) as connection:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")  # else the agents would need a superuser


def let_console_in(owner: str) -> bool:
    """Give the console's role what it needs in a prepared store and nothing more: no DELETE, no ownership, a history it only adds to.

    False while Recall has not made its tables; nothing was granted then.
    """
    with psycopg.connect(owner) as connection:
        table = records_table(connection)
        if table is None:
            return False
        for grant in GRANTS:
            statement = sql.SQL("GRANT " + grant + " TO {role}")
            connection.execute(statement.format(records=table, role=sql.Identifier(CONSOLE)))
    return True


def records_table(connection: psycopg.Connection) -> sql.Identifier | None:
    """Where the agents' records are, by Recall's own registry."""
    (registry,) = connection.execute("SELECT to_regclass('recall.recall_collections')").fetchone() or (None,)
    if registry is None:
        return None
    row = connection.execute("SELECT tbl FROM recall.recall_collections WHERE name = %s", [COLLECTION]).fetchone()
    return sql.Identifier("recall", row[0]) if row else None
