"""The demo's two databases and who reaches them as whom: the console owns its own, the agents own their records."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import LiteralString

import psycopg
from psycopg import sql

from demo import records
from local.postgres import Postgres

CONSOLE_ROLE = "settle_console"
AGENTS_ROLE = "settle_agents"
CONSOLE_DATABASE = "settle"
RECORDS_DATABASE = "records"

# All that the console's role may do in a store.
GRANTS: tuple[LiteralString, ...] = (
    "USAGE ON SCHEMA recall, settle_audit",
    "SELECT ON ALL TABLES IN SCHEMA recall, settle_audit",
    "INSERT, UPDATE ON recall.recall_leases, {records}",
    "UPDATE ON recall.recall_collections",
    "INSERT ON settle_audit.entries",
    "INSERT, UPDATE ON settle_audit.heads",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Every database, for everyone who reaches it."""

    console: str  # the console's own database, which its role owns
    store: str  # Recall's, for the console's role: it may settle there, but owns nothing
    store_owner: str  # Recall's, for whoever prepares it
    agents: str  # Recall's, for the agents

    @classmethod
    def on(cls, server: Postgres, *, console_password: str, agents_password: str) -> Addresses:
        """`server` as its superuser."""
        console = replace(server, user=CONSOLE_ROLE, password=console_password)
        agents = replace(server, user=AGENTS_ROLE, password=agents_password)
        return cls(
            console=console.url(CONSOLE_DATABASE),
            store=console.url(RECORDS_DATABASE),
            store_owner=server.url(RECORDS_DATABASE),
            agents=agents.url(RECORDS_DATABASE),
        )


def create(server: Postgres, *, console_password: str, agents_password: str) -> Addresses:
    """Make the roles and databases; harmless when all is there."""
    with psycopg.connect(server.url(), autocommit=True) as connection:
        for role, password in ((CONSOLE_ROLE, console_password), (AGENTS_ROLE, agents_password)):
            known = connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [role]).fetchone()
            statement = sql.SQL("ALTER ROLE {} LOGIN PASSWORD {}" if known else "CREATE ROLE {} LOGIN PASSWORD {}")
            connection.execute(statement.format(sql.Identifier(role), sql.Literal(password)))
        for database, owner in ((CONSOLE_DATABASE, CONSOLE_ROLE), (RECORDS_DATABASE, AGENTS_ROLE)):
            server.ensure_database(database)
            statement = sql.SQL("ALTER DATABASE {} OWNER TO {}")
            connection.execute(statement.format(sql.Identifier(database), sql.Identifier(owner)))
    with psycopg.connect(server.url(RECORDS_DATABASE)) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")  # else the agents would need a superuser
    return Addresses.on(server, console_password=console_password, agents_password=agents_password)


def let_console_in(store_owner: str) -> None:
    """Give the console's role what it needs in a prepared store and nothing more: no DELETE, no ownership, a history it only adds to.

    Raises:
        LookupError: Recall has not made its tables yet; nothing was granted.
    """
    with psycopg.connect(store_owner) as connection:
        table = records.table(connection)
        if table is None:
            raise LookupError("Recall has not made its tables yet")
        for grant in GRANTS:
            statement = sql.SQL("GRANT " + grant + " TO {role}")
            connection.execute(statement.format(records=table, role=sql.Identifier(CONSOLE_ROLE)))
