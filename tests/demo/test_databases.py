"""Who may do what in the demo's databases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest
from polign_recall import Client
from psycopg import sql
from pymongo import MongoClient
from pymongo.database import Database
from pymongo.errors import OperationFailure

from actions.store import open_store
from demo import databases, records
from demo.addresses import Addresses, Passwords, Store
from demo.home import Home
from demo.kinds import STORES
from demo.on_postgres import records_table
from local.postgres import connect

pytestmark = pytest.mark.xdist_group("demo-databases")  # one pair of servers for all of them


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    """Servers of its own, since roles belong to a whole server; started twice, as by two starts of the demo."""
    home = Home(tmp_path_factory.mktemp("demo"), "both")
    with home.held():
        with databases.started(home) as servers:
            made = databases.create(servers, STORES["both"], Passwords(console="first", agents="of-yesterday"))
            for store in made.stores:
                assert not databases.let_console_in(store)
                work(store.agents)
                with closing(open_store(store.owner, name=store.name)) as owned:
                    owned.prepare()
        with databases.started(home) as servers:
            made = databases.create(servers, STORES["both"], Passwords(console="first", agents="second"))
            assert all(databases.let_console_in(store) for store in made.stores)
            yield made
        home.forget_everything()


def work(url: str) -> None:
    backend = "mongodb" if url.startswith("mongodb:") else "pgvector"
    with Client(agent=True, backend=backend, backend_url=url) as client, client.resume("ops-agent-1") as agent:
        agent.begin_action("open_ticket", "external", {"title": "Cold store"})


@pytest.fixture(params=["main", "ops"])
def store(request: pytest.FixtureRequest, addresses: Addresses) -> Store:
    return next(store for store in addresses.stores if store.name == request.param)


def test_what_agents_recorded_before_the_last_start_is_read_with_their_own_rights(store: Store) -> None:
    assert records.agents(store.agents) == {"ops-agent-1"}
    assert [(call.tool, call.status) for call in records.calls(store.agents)] == [("open_ticket", "started")]


def test_agents_need_no_superuser(addresses: Addresses) -> None:
    with connect(addresses.agents["main"]) as connection:
        assert connection.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user").fetchone() == (False,)
    with mongo(addresses.agents["ops"]) as db, pytest.raises(OperationFailure, match="not authorized"):
        db.client.somewhere.things.find_one()


def test_the_console_may_settle_and_has_no_right_too_many(store: Store) -> None:
    check = open_store(store.console, name=store.name).check()
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
def test_on_postgres_the_console_may_not_delete_or_own(addresses: Addresses, statement: str) -> None:
    with connect(addresses.stores[0].console) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(sql.SQL(statement).format(records_table(connection)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "gesture",
    [
        lambda db: db.rc_recall_lexical_v1_agents.delete_many({}),
        lambda db: db.recall_leases.delete_one({}),
        lambda db: db.settle_audit_entries.drop(),
        lambda db: db.settle_audit_entries.drop_indexes(),
        lambda db: db.create_collection("mine"),
        lambda db: db.client.admin.command("createUser", "mine", pwd="x", roles=["root"]),
        lambda db: db.client.somewhere.things.find_one(),
    ],
)
def test_on_mongodb_the_console_may_not_delete_or_own(addresses: Addresses, gesture: Callable[[Database[Any]], object]) -> None:
    """Nor change an entry; but SecantusDB knows no rights on one collection, so that only a real MongoDB refuses it."""
    with mongo(addresses.stores[1].console) as db, pytest.raises(OperationFailure, match="not authorized"):
        gesture(db)
    assert len(records.calls(addresses.agents["ops"])) == 1


def test_the_agents_address_follows_from_the_consoles(store: Store) -> None:
    """`--resume` knows no more than what the running demo told, and the kept password."""
    address = databases.agents_address(store.console, "second")
    assert records.agents(address) == {"ops-agent-1"}
    assert "first" not in address


def test_the_kind_of_a_demo_follows_from_its_stores(addresses: Addresses) -> None:
    main, ops = (store.console for store in addresses.stores)
    assert databases.kind_of({"main": main, "ops": ops}) == "both"
    assert databases.kind_of({"main": main}) == "postgres"
    assert databases.kind_of({"main": ops}) == "mongo"


@contextmanager
def mongo(url: str) -> Iterator[Database[dict[str, Any]]]:
    client: MongoClient[dict[str, Any]] = MongoClient(url)
    with client:
        yield client.get_default_database()
