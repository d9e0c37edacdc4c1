"""Who may do what in the demo's databases."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from polign_recall import Client
from psycopg import sql

from actions.store import open_store
from demo import databases, records
from demo.databases import Addresses
from local import postgres
from local.postgres import connect


@pytest.fixture(scope="module")
def addresses() -> Iterator[Addresses]:
    """A server of its own, since roles belong to a whole server; made twice, as by two starts of the demo."""
    with postgres.start() as running:
        for _ in range(2):
            made = databases.create(running.server, console_password="first", agents_password="second")
        assert not records.is_there(made.agents)
        with Client(agent=True, backend="pgvector", backend_url=made.agents) as client, client.resume("ops-agent-1") as agent:
            agent.begin_action("open_ticket", "external", {"title": "Cold store"})
        open_store(made.store_owner).prepare()
        databases.let_console_in(made.store_owner)
        yield made


def test_agents_need_no_superuser(addresses: Addresses) -> None:
    with connect(addresses.agents) as connection:
        assert connection.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user").fetchone() == (False,)
    assert records.agents(addresses.agents) == {"ops-agent-1"}
    assert [(call.tool, call.status) for call in records.calls(addresses.agents)] == [("open_ticket", "started")]


def test_the_console_may_settle_and_has_no_right_too_many(addresses: Addresses) -> None:
    check = open_store(addresses.store).check()
    assert (check.can_settle, check.why_not, check.warnings) == (True, "", ())


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM {}",
        "DELETE FROM recall.recall_leases",
        "TRUNCATE {}",
        "CREATE TABLE recall.mine (id integer)",
        "UPDATE settle_audit.entries SET text = ''",
        "DELETE FROM settle_audit.heads",
    ],
)
def test_the_console_may_not_delete_or_own(addresses: Addresses, statement: str) -> None:
    with connect(addresses.store) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(sql.SQL(statement).format(records.table(connection)))  # type: ignore[arg-type]
