"""prepare() and check(): what is ours to create, which rights a role needs, and which are too many."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.types.json import Jsonb

from actions.errors import StoreReadOnly, StoreUnavailable, StoreUnusable
from actions.records import ActionRef, ActionStatus, NewEntry
from actions.store.postgres import PostgresStore
from bench.chain import fill
from local.postgres import Postgres
from tests.recall_writer import RecallWriter
from tests.store.gestures import decide, look_at_world, race, verify

OPEN = [ActionStatus.STARTED, ActionStatus.UNKNOWN]
READ_RECALL = ["GRANT USAGE ON SCHEMA {schema} TO {role}", "GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}"]
WRITE_RECALL = [
    "GRANT INSERT, UPDATE ON {leases}, {records} TO {role}",
    "GRANT UPDATE ON {collections} TO {role}",
]
WRITE_AUDIT = [
    "GRANT USAGE ON SCHEMA settle_audit TO {role}",
    "GRANT SELECT, INSERT ON settle_audit.entries TO {role}",
    "GRANT SELECT, INSERT, UPDATE ON settle_audit.heads TO {role}",
]

Alone = tuple[PostgresStore, RecallWriter]


@pytest.fixture(scope="session")
def roles(pg_server: Postgres) -> Iterator[list[str]]:
    """The roles that the tests made; they go when every database that knows them has gone."""
    made: list[str] = []
    yield made
    with psycopg.connect(pg_server.url(), autocommit=True) as connection:
        for name in made:
            connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


@pytest.fixture
def role(pg_server: Postgres, roles: list[str]) -> str:
    """A role that may log in and nothing else; its password is its name."""
    return make_role(pg_server, roles, f"r_{uuid4().hex[:12]}")


def make_role(server: Postgres, roles: list[str], name: str) -> str:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(name), sql.Literal(name)))
    roles.append(name)
    return name


def url_as(role: str, url: str) -> str:
    parts = urlsplit(url)
    return f"postgres://{role}:{role}@{parts.hostname}:{parts.port}{parts.path}"


def grant(recall: RecallWriter, role: str, *statements: str) -> None:
    for statement in statements:
        recall.run(statement.replace("{role}", role))


def tables(recall: RecallWriter) -> set[str]:
    rows = recall.run(
        "SELECT schemaname || '.' || tablename FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
    )
    return {row[0] for row in rows}


# --- prepare -----------------------------------------------------------------------------------------------------------


def test_prepare_creates_what_is_ours_and_nothing_of_recalls(pg_url: str) -> None:
    with closing(PostgresStore(pg_url)) as store, RecallWriter(pg_url) as recall:
        assert store.prepare() == ("schema settle_audit: created (version 2)",)

        assert tables(recall) == {"settle_audit.entries", "settle_audit.heads", "settle_audit.version"}


def test_prepare_twice_finds_it_in_place(alone: Alone) -> None:
    store, recall = alone
    store.append_entry(NewEntry(kind="refused", actor="operator ana"))
    before = tables(recall)

    assert store.prepare() == ("schema settle_audit: in place (version 2)",)

    assert tables(recall) == before
    assert store.read_head().number == 1


def make_old(recall: RecallWriter) -> None:
    """As version 1 left it."""
    recall.run("DROP INDEX settle_audit.entries_agent")
    recall.run("UPDATE settle_audit.version SET number = 1")


def test_prepare_brings_an_older_schema_up_to_date_and_leaves_its_entries(alone: Alone) -> None:
    store, recall = alone
    entry = store.append_entry(NewEntry(kind="refused", actor="operator ana", agent="a", seq=1))
    make_old(recall)
    assert "older version" in " ".join(store.check().warnings)
    assert (store.check().is_prepared, store.list_entries(limit=5, agent="a")) == (True, (entry,))

    assert store.prepare() == ("schema settle_audit: upgraded (version 1 to 2)",)
    assert store.prepare() == ("schema settle_audit: in place (version 2)",)

    assert "older version" not in " ".join(store.check().warnings)
    assert store.list_entries(limit=5) == (entry,)
    assert store.append_entry(NewEntry(kind="refused", actor="operator ana")).number == 2


def test_of_several_who_upgrade_at_once_one_does(alone_url: str) -> None:
    with RecallWriter(alone_url) as recall:
        make_old(recall)
    stores = [PostgresStore(alone_url) for _ in range(4)]

    answers = race(*(store.prepare for store in stores))

    assert sorted(str(answer) for answer in answers) == [
        *["('schema settle_audit: in place (version 2)',)"] * 3,
        "('schema settle_audit: upgraded (version 1 to 2)',)",
    ]
    for store in stores:
        store.close()


def test_a_page_of_an_agent_is_read_in_its_order_and_never_sorted(alone: Alone) -> None:
    store, recall = alone
    fill(recall.url, store.read_head(), 3_000)
    statement = (
        "EXPLAIN SELECT number FROM settle_audit.entries WHERE chain = %s AND agent = 'agent-7' ORDER BY number DESC LIMIT 200"
    )

    plan = " ".join(row[0] for row in recall.run(statement, [store.chain]))

    assert "entries_agent" in plan
    assert "Sort" not in plan


def test_recall_makes_its_tables_after_us(pg_url: str) -> None:
    with closing(PostgresStore(pg_url)) as store, RecallWriter(pg_url) as recall:
        store.prepare()
        assert store.read_actions(OPEN, limit=5).readings == ()
        recall.create()

        assert decide(store, recall.action("a", 1)).turn_seq == 1


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
def test_several_who_prepare_at_once_do_it_once(pg_url: str, isolation: str) -> None:
    with RecallWriter(pg_url) as recall:
        recall.run(f"ALTER DATABASE {urlsplit(pg_url).path[1:]} SET default_transaction_isolation = '{isolation}'")
    stores = [PostgresStore(pg_url) for _ in range(6)]

    answers = race(*(store.prepare for store in stores))

    assert sorted(map(str, answers)).count("('schema settle_audit: created (version 2)',)") == 1, answers
    assert sum("in place" in str(answer) for answer in answers) == 5
    for store in stores:
        store.close()


def test_a_role_that_may_not_create_is_told_who_can(pg_url: str, role: str) -> None:
    with closing(PostgresStore(url_as(role, pg_url))) as store, RecallWriter(pg_url) as recall:
        with pytest.raises(StoreReadOnly, match="as the database's owner"):
            store.prepare()
        assert tables(recall) == set()


def test_a_role_without_rights_to_create_finds_it_in_place(alone: Alone, alone_url: str, role: str) -> None:
    grant(alone[1], role, *WRITE_AUDIT)
    with closing(PostgresStore(url_as(role, alone_url))) as store:
        assert "in place" in store.prepare()[0]


def test_the_index_is_made_once(alone: Alone) -> None:
    store, recall = alone

    names = [f"index {recall.table}_settle_{suffix}" for suffix in ("turns", "open")]
    assert store.prepare(index=True)[1:] == tuple(f"{name}: created" for name in names)
    assert store.prepare(index=True)[1:] == tuple(f"{name}: in place" for name in names)
    assert store.check().has_index


def test_an_index_of_ours_that_an_older_release_did_not_make_is_named_and_made(alone: Alone) -> None:
    store, recall = alone
    store.prepare(index=True)
    recall.run(f"DROP INDEX recall.{recall.table}_settle_turns")
    (warning,) = [said for said in store.check().warnings if "index" in said]
    assert f"{recall.table}_settle_turns is missing" in warning

    lines = store.prepare(index=True)

    assert lines[1:] == (f"index {recall.table}_settle_turns: created", f"index {recall.table}_settle_open: in place")
    assert not [said for said in store.check().warnings if "index" in said]


def test_the_index_waits_for_recalls_table(pg_url: str) -> None:
    with closing(PostgresStore(pg_url)) as store:
        assert "not there yet" in store.prepare(index=True)[-1]


def test_an_index_left_half_made_is_made_anew(alone: Alone) -> None:
    store, recall = alone
    store.prepare(index=True)
    recall.run("UPDATE pg_index SET indisvalid = false WHERE indexrelid = %s::regclass", [f"recall.{recall.table}_settle_open"])
    assert not store.check().has_index
    assert any("not valid" in warning for warning in store.check().warnings)

    assert store.prepare(index=True)[-1].endswith("created")
    assert store.check().has_index


def test_a_role_that_does_not_own_the_table_cannot_make_the_index(alone: Alone, alone_url: str, role: str) -> None:
    grant(alone[1], role, *READ_RECALL, *WRITE_AUDIT)
    with closing(PostgresStore(url_as(role, alone_url))) as store:
        with pytest.raises(StoreReadOnly, match="its owner"):
            store.prepare(index=True)
        assert not store.check().has_index


def test_a_broken_record_neither_stops_the_index_nor_is_stopped_by_it(alone: Alone) -> None:
    """An index over (seq)::bigint would fail Recall's own write here."""
    store, recall = alone
    recall.action("a", 1, meta={"seq": "not a number"})

    assert store.prepare(index=True)[-1].endswith("created")
    recall.action("a", 2, meta={"seq": {"absurd": True}})

    assert len(store.read_actions(OPEN, limit=5).readings) == 2


def test_names_that_reach_postgresqls_limit_work(pg_url: str) -> None:
    schema, collection = "s" * 63, "Tenant:" + "x" * 90
    url = f"{pg_url}?schema={schema}&collection={collection}"
    with closing(PostgresStore(url)) as store, RecallWriter(url) as recall:
        recall.create()
        assert len(recall.table) == 57
        store.prepare(index=True)

        assert decide(store, recall.action("a", 1)).entry.chain == f"{schema}.{collection}_agents"
        assert store.check().has_index
        assert verify(store).is_intact


# --- entries are final -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE settle_audit.entries SET actor = 'eve'",
        "DELETE FROM settle_audit.entries",
        "TRUNCATE settle_audit.entries",
        "UPDATE settle_audit.entries SET actor = 'eve' WHERE false",
        "SET session_replication_role = replica; DELETE FROM settle_audit.entries",
        "MERGE INTO settle_audit.entries e USING (SELECT 1) s ON true WHEN MATCHED THEN DELETE",
    ],
)
def test_nobody_changes_entries_not_even_the_owner(alone: Alone, statement: str) -> None:
    store, recall = alone
    store.append_entry(NewEntry(kind="refused", actor="operator ana"))

    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="never changed or removed"):
        recall.run(statement)

    recall.close()
    assert store.list_entries(limit=5)[0].actor == "operator ana"


def test_the_public_may_do_nothing_with_the_audit(alone: Alone, alone_url: str, role: str) -> None:
    with psycopg.connect(url_as(role, alone_url), autocommit=True) as connection:
        for statement in ("SELECT 1 FROM settle_audit.entries", "INSERT INTO settle_audit.heads VALUES ('x', 0, 'x')"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)


# --- rights ------------------------------------------------------------------------------------------------------------


def test_the_least_rights_are_enough_to_settle(alone: Alone, alone_url: str, role: str) -> None:
    owner, recall = alone
    ref = recall.action("a", 1)
    recall.lease("a", state="expired")
    grant(recall, role, *READ_RECALL, *WRITE_RECALL, *WRITE_AUDIT)
    with closing(PostgresStore(url_as(role, alone_url))) as store:
        settled = decide(store, ref)

        assert settled.turn_seq == 1
        assert store.append_entry(NewEntry(kind="revealed", actor="operator ana")).number == 2
        assert store.read_watch().entries == 2
        check = store.check()
        assert (check.can_settle, check.why_not, check.warnings) == (True, "", ())
    assert verify(owner).is_intact


def test_a_role_that_may_only_read_reads(alone: Alone, alone_url: str, role: str) -> None:
    _, recall = alone
    ref = recall.action("a", 1)
    grant(recall, role, *READ_RECALL)
    before = look_at_world(alone[0], recall, "a")
    with closing(PostgresStore(url_as(role, alone_url))) as store:
        assert len(store.read_actions(OPEN, limit=5).readings) == 1
        assert store.read_watch().revision == 1
        with pytest.raises(StoreUnusable, match="GRANT SELECT ON settle_audit.entries"):
            store.list_entries(limit=5)
        with pytest.raises(StoreReadOnly, match="GRANT USAGE ON SCHEMA settle_audit") as caught:
            decide(store, ref)
        assert role in caught.value.problem
        assert not store.check().can_settle
    assert look_at_world(alone[0], recall, "a") == before


ONE_BY_ONE = [*READ_RECALL, *WRITE_RECALL, *WRITE_AUDIT]


@pytest.mark.parametrize("left_out", range(len(ONE_BY_ONE)))
def test_each_missing_right_refuses_and_is_named(alone: Alone, alone_url: str, role: str, left_out: int) -> None:
    _, recall = alone
    ref = recall.action("a", 1)
    grant(recall, role, *(text for place, text in enumerate(ONE_BY_ONE) if place != left_out))
    before = look_at_world(alone[0], recall, "a")
    with closing(PostgresStore(url_as(role, alone_url))) as store:
        with pytest.raises((StoreReadOnly, StoreUnusable)):
            decide(store, ref)

        check = store.check()
        assert check.is_reachable
        assert not check.can_settle
        assert "GRANT" in check.why_not
    assert look_at_world(alone[0], recall, "a") == before


def test_what_check_says_is_missing_is_enough(alone: Alone, alone_url: str, role: str) -> None:
    """Its sentences are statements: run them until it is content."""
    _, recall = alone
    ref = recall.action("a", 1)
    with closing(PostgresStore(url_as(role, alone_url))) as store:
        for _ in range(5):
            why_not = store.check().why_not
            if not why_not:
                break
            for statement in why_not.partition("as the owner: ")[2].split("; "):
                recall.run(statement)

        assert store.check().can_settle
        assert decide(store, ref).turn_seq == 1


def test_a_superuser_is_warned_about(alone: Alone) -> None:
    check = alone[0].check()

    assert check.can_settle
    assert any("superuser" in warning and "empty promise" in warning for warning in check.warnings)


def test_the_owner_is_warned_about(pg_url: str, role: str) -> None:
    with RecallWriter(pg_url) as recall:
        recall.create()
        grant(recall, role, *READ_RECALL, *WRITE_RECALL, f"GRANT CREATE ON DATABASE {urlsplit(pg_url).path[1:]} TO {{role}}")
        with closing(PostgresStore(url_as(role, pg_url))) as store:
            store.prepare()

            check = store.check()
            assert check.can_settle
            assert any("owns the audit schema" in warning for warning in check.warnings)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("GRANT DELETE ON settle_audit.entries TO {role}", "may DELETE audit entries"),
        ("GRANT DELETE ON {records} TO {role}", "may DELETE Recall's records"),
    ],
)
def test_rights_that_nothing_needs_are_warned_about(alone: Alone, alone_url: str, role: str, extra: str, words: str) -> None:
    _, recall = alone
    grant(recall, role, *ONE_BY_ONE, extra)
    with closing(PostgresStore(url_as(role, alone_url))) as store:
        assert any(words in warning for warning in store.check().warnings)


def test_a_role_whose_name_needs_quotes_gets_a_grant_that_works(
    alone: Alone, alone_url: str, pg_server: Postgres, roles: list[str]
) -> None:
    name = make_role(pg_server, roles, f"console-{uuid4().hex[:8]}")
    with closing(PostgresStore(url_as(name, alone_url))) as store:
        assert f'TO "{name}"' in store.check().why_not


# --- check -------------------------------------------------------------------------------------------------------------


def test_check_says_what_is_there(alone: Alone) -> None:
    store, recall = alone
    recall.action("a", 1)

    check = store.check()

    assert check.server.startswith("PostgreSQL ")
    assert (check.is_reachable, check.has_records, check.is_prepared, check.has_index, check.can_settle) == (
        True,
        True,
        True,
        False,
        True,
    )


def test_check_says_that_it_is_not_prepared(pg_url: str) -> None:
    with closing(PostgresStore(pg_url, name="books")) as store, RecallWriter(pg_url) as recall:
        recall.create()
        check = store.check()

    assert (check.is_reachable, check.has_records, check.is_prepared, check.can_settle) == (True, True, False, False)
    assert "prepare_store books" in check.why_not


def test_check_says_that_recall_has_not_been_here(pg_url: str) -> None:
    with closing(PostgresStore(pg_url)) as store:
        store.prepare()
        check = store.check()

    assert (check.is_reachable, check.has_records, check.is_prepared, check.can_settle) == (True, False, True, False)
    assert "no Recall tables in schema recall" in check.why_not


def test_check_says_that_the_collection_is_another(alone: Alone, alone_url: str) -> None:
    with closing(PostgresStore(f"{alone_url}?collection=typo")) as store:
        assert "typo_agents is not in Recall's registry" in store.check().why_not
        assert store.read_actions(OPEN, limit=5).readings == ()


def test_check_says_that_it_is_read_only(alone: Alone, alone_url: str) -> None:
    _, recall = alone
    ref = recall.action("a", 1)
    with closing(PostgresStore(f"{alone_url}?options=-c%20default_transaction_read_only%3Don")) as store:
        check = store.check()
        assert (check.is_reachable, check.can_settle) == (True, False)
        assert "read-only" in check.why_not
        with pytest.raises(StoreReadOnly, match="read-only"):
            decide(store, ref)
        with pytest.raises(StoreReadOnly, match="read-only"):
            store.append_entry(NewEntry(kind="refused", actor="operator ana"))
        assert len(store.read_actions(OPEN, limit=5).readings) == 1


def test_without_the_vector_extension_records_are_read_and_check_says_so(pg_url: str) -> None:
    with closing(PostgresStore(pg_url)) as store, RecallWriter(pg_url) as recall:
        recall.run("DROP EXTENSION vector")
        recall.create(vector=False)
        store.prepare()
        recall.action("a", 1)

        assert len(store.read_actions(OPEN, limit=5).readings) == 1
        check = store.check()
        assert not check.can_settle
        assert "vector" in check.why_not
        assert any("vector" in warning for warning in check.warnings)


def test_the_vector_extension_may_live_in_a_schema_of_its_own(pg_url: str) -> None:
    with closing(PostgresStore(pg_url)) as store, RecallWriter(pg_url) as recall:
        recall.run("CREATE SCHEMA extensions")
        recall.create()
        recall.run("ALTER EXTENSION vector SET SCHEMA extensions")
        store.prepare()
        ref_writer = RecallWriter(f"{pg_url}?options=-c%20search_path%3Dextensions,public")
        ref = ref_writer.action("a", 1)
        ref_writer.close()

        assert decide(store, ref).turn_seq == 1


SHAPES: dict[str, list[str]] = {
    "no leases": ["DROP TABLE {leases}"],
    "no registry": ["DROP TABLE {collections}"],
    "a registry without its columns": ["ALTER TABLE {collections} RENAME COLUMN tbl TO table_name"],
    "leases without their columns": ["ALTER TABLE {leases} RENAME COLUMN holder TO owner"],
    "records without their columns": ["ALTER TABLE {records} RENAME COLUMN metadata TO meta"],
    "a registry that names no table": ["DROP TABLE {records}"],
    "a dimension that is none": ["UPDATE {collections} SET dim = -1"],
    "a table name that is a number": ["ALTER TABLE {collections} ALTER tbl TYPE integer USING 1"],
}


@pytest.mark.parametrize("shape", SHAPES)
def test_another_programs_tables_are_not_taken_for_recalls(alone: Alone, shape: str) -> None:
    store, recall = alone
    ref = recall.action("a", 1)
    store.read_watch()
    for statement in SHAPES[shape]:
        recall.run(statement)
    store.close()
    fresh = PostgresStore(recall.url)

    reads: list[Callable[[], object]] = [
        lambda: fresh.read_actions(OPEN, limit=5),
        lambda: fresh.get_action("a", 1),
        lambda: decide(fresh, ref),
    ]
    for read in reads:
        with pytest.raises(StoreUnusable):
            read()
    assert fresh.check().is_reachable
    assert fresh.list_entries(limit=5) == ()  # the history is read whatever became of the records
    fresh.close()


def test_a_schema_that_does_not_exist_is_a_slip_of_the_pen(pg_url: str) -> None:
    with closing(PostgresStore(f"{pg_url}?schema=recal")) as store:
        with pytest.raises(StoreUnusable, match="there is no schema recal"):
            store.read_actions(OPEN, limit=5)
        check = store.check()
        assert (check.is_reachable, check.has_records, check.can_settle) == (True, False, False)
        assert store.prepare()


def test_recalls_own_schema_may_still_be_missing(pg_url: str) -> None:
    with closing(PostgresStore(f"{pg_url}?schema=recall")) as store:
        assert store.read_actions(OPEN, limit=5).readings == ()
        assert store.find_lease("a") is None
        assert store.read_watch().revision == 0


def test_an_agent_that_resumed_and_wrote_nothing_has_a_lease_and_no_records(pg_url: str) -> None:
    with closing(PostgresStore(pg_url)) as store, RecallWriter(pg_url) as recall:
        recall.create(records=False)
        recall.lease("a", holder="pod-a", epoch=1, state="live")

        lease = store.find_lease("a")
        assert lease is not None
        assert lease.is_live
        assert store.read_actions(OPEN, limit=5).readings == ()
        assert store.read_watch().next_expiry == lease.expires_at
        recall.create_records()
        recall.action("a", 1)
        assert len(store.read_actions(OPEN, limit=5).readings) == 1


@pytest.mark.parametrize("when", ["infinity", "-infinity", "4000-01-01", "294000-01-01", "0001-01-01 BC"])
def test_a_lease_that_ends_at_an_absurd_time_is_read(pg: tuple[PostgresStore, RecallWriter], when: str) -> None:
    store, recall = pg
    recall.action("a", 1)
    recall.lease("a")
    recall.run("UPDATE {leases} SET expires_at = %s::timestamptz WHERE collection = %s", [when, recall.collection])

    (reading,) = store.read_actions(OPEN, limit=5).readings

    assert reading.lease is not None
    assert reading.lease.is_live == (when not in ("-infinity", "0001-01-01 BC"))
    assert store.read_watch().read_at == pytest.approx(reading.read_at, abs=60e9)


def test_a_records_table_of_another_dimension_gets_its_own_zero_vector(alone: Alone) -> None:
    _, recall = alone
    recall.action("a", 1)
    kept = recall.metadata_of("a:act:1")
    recall.run("DELETE FROM {records}")
    recall.run(f"DROP INDEX {{schema}}.{recall.table}_embedding")
    recall.run("ALTER TABLE {records} ALTER embedding TYPE vector(3)")
    recall.run("UPDATE {collections} SET dim = 3")
    recall.run(
        """INSERT INTO {records} VALUES ('a:act:1', '[0,0,0]', %s)""",
        [Jsonb(kept)],
    )
    with closing(PostgresStore(recall.url)) as fresh:
        assert decide(fresh, ActionRef("main", "a", 1)).turn_seq == 1


def test_a_server_that_is_not_there_is_told_without_raising() -> None:
    with closing(PostgresStore("postgres://ana:geheim-123@127.0.0.1:1/x")) as store:
        check = store.check()

        assert (check.is_reachable, check.server) == (False, "")
        assert "geheim" not in check.why_not
        with pytest.raises(StoreUnavailable):
            store.prepare()
