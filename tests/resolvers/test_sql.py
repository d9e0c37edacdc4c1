"""What only the kind `sql` can hold: a server that refuses writes, replicas, open transactions, rows of every shape."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from actions.resolvers import build_resolver
from actions.resolvers.base import Allowed, Canary, Effect, Finding, InvalidDefinition, MatchedBy, Reply
from actions.resolvers.verdict import Outcome
from actions.times import SECOND
from local import postgres
from tests.resolvers.makers import BEGAN, LONG_AFTER, make_claim, weigh
from tests.resolvers.shop import Shop
from tests.resolvers.worlds.sql import World

KEY = make_claim().action.key


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with World.open(request) as opened:
        yield opened


def find(world: World, query: str = "", **settings: str) -> Finding:
    settings = {"query": query, **settings} if query else settings
    return world.resolver(**settings).ask(world.claim(), now=LONG_AFTER)


# --- it cannot write -------------------------------------------------------------------------------------------------


@pytest.fixture
def writer(world: World) -> Iterator[str]:
    """A role that may write, with a function that does, and everything granted: only the transaction stands in the way."""
    name = f"w_{uuid4().hex[:12]}"
    world.shop.execute(
        f"CREATE FUNCTION {name}() RETURNS text LANGUAGE sql SECURITY DEFINER AS "
        f"$$ INSERT INTO {world.table} (payee) VALUES ('written') RETURNING payee $$;"
        f"CREATE SEQUENCE {name}_seq; GRANT ALL ON {name}_seq, {world.table}, {world.table}_id_seq TO {world.shop.reader};"
        f"GRANT CREATE ON SCHEMA public TO {world.shop.reader}"
    )
    yield name
    world.shop.execute(f"DROP FUNCTION {name}; DROP SEQUENCE {name}_seq; REVOKE CREATE ON SCHEMA public FROM {world.shop.reader}")


WRITES = {
    "a function that inserts": "SELECT :key AS key, {writer}() AS id",
    "a sequence": "SELECT :key AS key, nextval('{writer}_seq') AS id",
    "read only switched off first": "SELECT :key AS key, set_config('transaction_read_only', 'off', false), {writer}() AS id",
    "read only switched off for the session": "SELECT :key AS key, set_config('default_transaction_read_only', 'off', false), {writer}() AS id",
    "another way to switch it off": "WITH a AS MATERIALIZED (SELECT set_config('transaction_read_only', 'false', true) AS x) "
    "SELECT :key AS key, a.x, {writer}() AS id FROM a",
    "a large object": "SELECT :key AS key, lo_create(0) AS id",
    "statements inside of a function": "SELECT :key AS key, query_to_xml("
    "'INSERT INTO {table} (payee) VALUES (1) RETURNING 1', true, true, '')::text AS id",
}


@pytest.mark.parametrize("how", WRITES)
def test_what_gets_past_the_reader_of_queries_still_cannot_write(world: World, writer: str, how: str) -> None:
    found = find(world, WRITES[how].format(writer=writer, table=world.table))

    assert (found.reply, found.matches, found.canary) == (Reply.UNUSABLE, (), Canary.NOT_ASKED)
    assert any(why in found.problem for why in ("read-only", "before any query", "not allowed in a non-volatile function"))
    with psycopg.connect(world.shop.url) as connection:
        assert connection.execute(f"SELECT count(*) FROM {world.table}").fetchone() == (0,)
        assert connection.execute(f"SELECT is_called FROM {writer}_seq").fetchone() == (False,)


def test_a_query_that_takes_too_long_is_given_up_by_the_server_too(world: World) -> None:
    found = find(world, "SELECT :key AS key, pg_sleep(20)", timeout_s="0.2")

    assert (found.reply, found.canary) == (Reply.NO_ANSWER, Canary.NOT_ASKED)
    with psycopg.connect(world.shop.url) as connection:
        waiting = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE usename = %s AND state = 'active' AND xact_start < now() - interval '5 s'",
            [world.shop.reader],
        ).fetchone()
    assert waiting == (0,)


# --- what proves nothing ---------------------------------------------------------------------------------------------


def test_a_transaction_that_is_open_may_be_the_dead_workers_and_may_still_commit(world: World) -> None:
    claim = world.claim()
    world.put_canary()
    resolver = world.resolver(open_transaction_s="0")
    with psycopg.connect(world.shop.url) as dead_worker:
        dead_worker.execute(f"INSERT INTO {world.table} (idempotency_key) VALUES (%s)", [KEY])
        meanwhile = resolver.ask(claim, now=LONG_AFTER)
        dead_worker.rollback()
    afterwards = resolver.ask(claim, now=LONG_AFTER)

    assert (meanwhile.reply, meanwhile.canary, meanwhile.is_complete) == (Reply.ANSWERED, Canary.FOUND, False)
    assert weigh(meanwhile, claim).outcome is Outcome.UNKNOWN
    assert "may still commit" in meanwhile.notes[0]
    assert (afterwards.is_complete, weigh(afterwards, claim).outcome) == (True, Outcome.FAILED)


def test_a_role_that_may_not_see_how_old_transactions_are_counts_every_one(world: World) -> None:
    world.put_canary()
    with psycopg.connect(world.shop.url) as somebody:
        somebody.execute(f"INSERT INTO {world.table} (payee) VALUES ('x')")
        world.shop.execute(f"REVOKE pg_read_all_stats FROM {world.shop.reader}")
        try:
            found = find(world)
        finally:
            world.shop.execute(f"GRANT pg_read_all_stats TO {world.shop.reader}")
        somebody.rollback()

    assert (found.canary, found.is_complete) == (Canary.FOUND, False)
    assert "pg_read_all_stats" in found.notes[0]


def test_a_young_transaction_of_somebody_else_is_no_reason_to_doubt(world: World) -> None:
    world.put_canary()
    with psycopg.connect(world.shop.url) as somebody:
        somebody.execute(f"INSERT INTO {world.table} (payee) VALUES ('x')")
        found = find(world, open_transaction_s="3600")
        somebody.rollback()

    assert (found.is_complete, found.notes) == (True, ())


def test_a_replica_finds_but_proves_no_absence(tmp_path: Path) -> None:
    claim = make_claim()
    with postgres.start(tmp_path / "server"):
        pass  # a primary in its life before
    (postgres.place_of_data(tmp_path / "server") / "standby.signal").touch()
    with postgres.start(tmp_path / "server") as replica:
        server = replica.server
        form = {
            "dsn": f"postgresql://{server.user}@127.0.0.1:{server.port}/postgres",
            "query": "SELECT key FROM (VALUES ('canary-1'), ('here')) AS p (key) WHERE key = :key",
            "canary_key": "canary-1",
            "proves_absence": "yes",
        }
        allowed = Allowed(hosts=frozenset({f"127.0.0.1:{server.port}"}))
        resolver = build_resolver("sql", "replica", form, {"password": server.password}, allowed=allowed)
        missing = resolver.ask(claim, now=LONG_AFTER)
        there = resolver.ask(replace(claim, action=replace(claim.action, key="here")), now=LONG_AFTER)
    postgres.remove_data(tmp_path / "server")

    assert (missing.canary, missing.is_complete, weigh(missing, claim).outcome) == (Canary.FOUND, False, Outcome.UNKNOWN)
    assert "replica" in missing.notes[0]
    assert [match.by for match in there.matches] == [MatchedBy.KEY]


def test_rows_beyond_the_cap_are_not_looked_at_and_that_is_said(world: World) -> None:
    found = find(world, "SELECT NULL AS key, n AS id FROM generate_series(1, 1000) AS n WHERE :key::text IS NOT NULL")

    assert (found.reply, found.is_complete, len(found.matches)) == (Reply.ANSWERED, False, 50)
    assert "more than 50 rows" in found.notes[0]


def test_a_row_that_is_too_long_is_not_fetched_and_that_is_said(world: World) -> None:
    found = find(world, "SELECT :key AS key, repeat('x', 3000000) AS id")

    assert (found.reply, found.is_complete, found.matches) == (Reply.ANSWERED, False, ())
    assert "longer than" in found.notes[0]


def test_a_row_that_is_nested_too_deep_is_not_looked_at_and_that_is_said(world: World) -> None:
    found = find(world, "SELECT :key AS key, (repeat('[', 3000) || repeat(']', 3000))::json AS recipient")

    assert (found.reply, found.is_complete, found.matches) == (Reply.ANSWERED, False, ())
    assert "nested too deep" in found.notes[0]


@pytest.mark.parametrize("other", [f"x{KEY}", KEY.upper(), f"{KEY[:8]}-{KEY[8:]}"])
def test_a_query_that_does_not_compare_whole_is_told_so_and_proves_nothing(world: World, other: str) -> None:
    """As a uuid column would give it back, or citext, or LIKE."""
    world.put_canary()
    world.put_row(idempotency_key=other)

    found = find(world, f"SELECT idempotency_key AS key FROM {world.table} WHERE idempotency_key = :key OR payee IS NULL")

    assert (found.matches, found.canary, found.is_complete) == ((), Canary.FOUND, False)
    assert "another key" in found.notes[0]


# --- rows ------------------------------------------------------------------------------------------------------------


def test_columns_of_every_type_are_read(world: World) -> None:
    world.put_row(payee="x")
    query = """SELECT :key AS key, 9007199254740993 AS id, ARRAY['a@example.net', 'B <b@example.net>'] AS recipient,
        119.90::numeric(9, 3) AS amount, 'eur' AS currency, 42 AS reference, timestamptz '2026-11-29 19:29:18.5+01' AS at"""

    (match,) = find(world, query).matches

    assert match.object_id == "9007199254740993"
    assert match.recipients == ("a@example.net", "b@example.net")
    assert (match.amount, match.currency, match.reference) == (Decimal("119.9"), "EUR", "42")
    assert match.at == BEGAN + SECOND + SECOND // 2


@pytest.mark.parametrize(
    ("effect", "read", "note"),
    [
        ("'happened'", Effect.HAPPENED, ""),
        ("'Pending'", Effect.PENDING, "its effect is pending"),
        ("'undone'", Effect.UNDONE, "its effect is undone"),
        ("'refunded'", Effect.PENDING, "none of"),
        ("NULL", Effect.PENDING, "not told"),
        ("true", Effect.PENDING, "not told"),
    ],
)
def test_an_effect_that_is_not_understood_is_not_taken_for_one_that_happened(
    world: World, effect: str, read: Effect, note: str
) -> None:
    (match,) = find(world, f"SELECT :key AS key, {effect} AS effect").matches

    assert match.effect is read
    assert note in match.note


@pytest.mark.parametrize("amount", ["'NaN'::numeric", "'a lot'", "true", "NULL", "'{}'::json"])
def test_an_amount_that_is_no_number_is_not_told(world: World, amount: str) -> None:
    (match,) = find(world, f"SELECT :key AS key, {amount} AS amount").matches

    assert match.amount is None


def test_a_time_without_a_zone_says_nothing(world: World) -> None:
    (match,) = find(world, "SELECT :key AS key, timestamp '2026-11-29 10:00' AS at").matches

    assert match.at is None
    assert "no zone" in match.note


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT 1 AS id WHERE 'a' = :key", "key"),
        ("SELECT a AS key FROM no_such_table WHERE a = :key", "no_such_table"),
        ("SELECT :key AS key FROM pg_authid", "permission denied"),
        ("SELECT :key AS key, 1 AS key", "ambiguous"),
        ("SELECT :recipient::uuid AS id, :key AS key", "uuid"),
        ("SELECT FROM WHERE :key", "syntax"),
    ],
)
def test_a_query_that_the_database_refuses_is_for_somebody_to_mend(world: World, query: str, said: str) -> None:
    found = find(world, query)

    assert (found.reply, found.matches) == (Reply.UNUSABLE, ())
    assert said in found.problem


def test_what_was_asked_is_told_without_secrets_of_the_arguments(world: World) -> None:
    claim = replace(world.claim(), recipients=("Bearer sk_live_4eC39HqLyjWDarjtT1zdp7dc",))

    asked = world.resolver().ask(claim, now=LONG_AFTER).asked

    assert f"$1 = {KEY}" in asked[0]
    assert "sk_live_4eC39HqLyjWDarjtT1zdp7dc" not in repr(asked)


# --- definitions -----------------------------------------------------------------------------------------------------

FORM: dict[str, str] = {"dsn": "postgresql://reader@db.example.net/shop?sslmode=verify-full", "query": "SELECT :key AS key"}

WRONG: list[tuple[str, dict[str, str]]] = [
    ("dsn", {"dsn": "postgresql://reader:hunter2hunter2@db.example.net/shop?sslmode=require"}),
    ("dsn", {"dsn": "host=db.example.net dbname=shop user=reader password=hunter2hunter2"}),
    ("dsn", {"dsn": "postgresql://reader@db.example.net:hunter2hunter2/shop"}),
    ("dsn", {"dsn": "postgresql://hunter2hunter2@@@"}),
    ("dsn", {"dsn": "postgresql://reader@db.example.net/shop"}),
    ("dsn", {"dsn": "postgresql://reader@db.example.net/shop?sslmode=prefer"}),
    ("dsn", {"dsn": "postgresql://reader@10.0.0.7/shop?sslmode=verify-full"}),
    ("dsn", {"dsn": "postgresql://reader@db.example.net,127.0.0.1/shop?sslmode=verify-full"}),
    ("dsn", {"dsn": "host=/var/run/postgresql dbname=shop user=reader sslmode=require"}),
    ("dsn", {"dsn": "host=db.example.net hostaddr=10.0.0.7 dbname=shop user=reader sslmode=require"}),
    ("dsn", {"dsn": "postgresql://db.example.net/shop?sslmode=require"}),
    ("dsn", {"dsn": "postgresql://reader@db.example.net/?sslmode=require"}),
    ("dsn", {"dsn": f"{FORM['dsn']}&options=-c%20default_transaction_read_only%3Doff"}),
    ("dsn", {"dsn": f"{FORM['dsn']}&passfile=/etc/passwd"}),
    ("dsn", {"dsn": f"{FORM['dsn']}&service=other"}),
    ("dsn", {"dsn": f"{FORM['dsn']}&target_session_attrs=read-write"}),
    ("query", {"query": "DELETE FROM p WHERE key = :key"}),
    ("open_transaction_s", {"open_transaction_s": "-1"}),
    ("timeout_s", {"timeout_s": "11"}),
]


@pytest.mark.parametrize(("field", "settings"), WRONG)
def test_a_setting_that_cannot_be_used_is_named(field: str, settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidDefinition) as refused:
        build_resolver("sql", "shop", {**FORM, **settings}, {"password": "pass-phrase"})

    assert refused.value.field == field
    assert "pass-phrase" not in str(refused.value)
    assert "hunter2hunter2" not in str(refused.value)


def test_a_definition_that_can_be_used_shows_no_password(shop: Shop) -> None:
    assert "pass-phrase" not in repr(build_resolver("sql", "shop", FORM, {"password": "pass-phrase"}))
