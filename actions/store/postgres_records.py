"""Recall's tables on PostgreSQL, for an agent that starts where no Recall ever ran: the form that Recall gives them (recall-records 2.2)."""

from __future__ import annotations

import hashlib
import re
import secrets

from psycopg import errors, sql

from actions.errors import StoreReadOnly
from actions.store.postgres_connection import Connection
from actions.store.postgres_database import Database

DIMENSION = 256
"""Of Recall's built-in word embedder. An agent of another one starts with Recall itself."""
_MAX_NAME = 48
_OTHER = re.compile(r"[^a-z0-9_]")

_COMMON = """
CREATE TABLE IF NOT EXISTS {schema}.recall_collections (
    name text PRIMARY KEY, tbl text NOT NULL UNIQUE, dim integer NOT NULL, nonce bigint NOT NULL,
    revision bigint NOT NULL DEFAULT 0, created_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE IF NOT EXISTS {schema}.recall_leases (
    collection text NOT NULL, name text NOT NULL, holder text NOT NULL, epoch bigint NOT NULL, expires_at timestamptz NOT NULL,
    PRIMARY KEY (collection, name));
"""
_RECORDS = """
CREATE TABLE IF NOT EXISTS {schema}.{table} (
    id text PRIMARY KEY, embedding {vectors}.vector({dim}) NOT NULL, metadata jsonb NOT NULL,
    tsv tsvector GENERATED ALWAYS AS (to_tsvector('english'::regconfig, coalesce(metadata->>'text', ''))) STORED);
CREATE INDEX IF NOT EXISTS {embedding} ON {schema}.{table} USING hnsw (embedding {vectors}.vector_cosine_ops);
CREATE INDEX IF NOT EXISTS {metadata} ON {schema}.{table} USING gin (metadata jsonb_path_ops);
CREATE INDEX IF NOT EXISTS {tsv} ON {schema}.{table} USING gin (tsv);
CREATE INDEX IF NOT EXISTS {observed} ON {schema}.{table}
    ((CASE WHEN jsonb_typeof(metadata->'observed_ms') = 'number' THEN (metadata->'observed_ms')::float8 END));
"""


def table_name(collection: str) -> str:
    """The table that Recall makes for a collection. One that exists is read from the registry, never reckoned."""
    plain = _OTHER.sub("_", collection.lower())
    if plain[:1].isdigit():
        plain = f"c_{plain}"
    if plain == collection and len(plain) <= _MAX_NAME:
        return plain
    return f"{plain[:_MAX_NAME].rstrip('_')}_{hashlib.sha256(collection.encode()).hexdigest()[:8]}"


def create(database: Database, connection: Connection) -> tuple[str, ...]:
    """In one transaction, under the locks that Recall itself takes, so that both may start at one moment.

    Raises:
        StoreReadOnly: this role may not create them. Nothing was created.
    """
    schema, collection = database.address.schema, database.address.collection
    table = table_name(collection)
    connection.allow_for_ever()  # whoever creates them at this moment is waited for; the server's own timeouts still hold
    try:
        with database.transaction(connection):
            for lock in (f"recall:{schema}", f"recall:{schema}:{collection}"):
                connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [lock])
            vectors = _extension(connection)
            had_schema = connection.execute("SELECT to_regnamespace(%s)::oid", [schema]).fetchall()[0][0]
            if had_schema is None:
                connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)).as_string(None))
            connection.execute(sql.SQL(_COMMON).format(schema=sql.Identifier(schema)).as_string(None))
            values = {"name": collection, "tbl": table, "dim": DIMENSION, "nonce": secrets.randbits(63)}
            registered = sql.SQL(
                "INSERT INTO {}.recall_collections (name, tbl, dim, nonce) VALUES (%(name)s, %(tbl)s, %(dim)s, %(nonce)s) "
                "ON CONFLICT (name) DO NOTHING"
            ).format(sql.Identifier(schema))
            if not connection.execute(registered.as_string(None), values).rowcount:
                return ()
            names = {part: sql.Identifier(f"{table}_{part}") for part in ("embedding", "metadata", "tsv", "observed")}
            made = sql.SQL(_RECORDS).format(
                schema=sql.Identifier(schema),
                table=sql.Identifier(table),
                vectors=sql.Identifier(vectors),
                dim=sql.Literal(DIMENSION),
                **names,
            )
            connection.execute(made.as_string(None))
    except errors.InsufficientPrivilege as exc:
        said = str(exc.diag.message_primary or exc)[:200]
        raise StoreReadOnly(
            database.name,
            f"this connection's role may not create Recall's tables ({said}); start one agent as the database's owner",
        ) from exc
    except (errors.UndefinedFile, errors.FeatureNotSupported) as exc:
        raise StoreReadOnly(database.name, "its server has no pgvector, which Recall's tables need; install it") from exc
    return (f"records of {collection}: table {schema}.{table} created",)


def _extension(connection: Connection) -> str:
    """The schema of pgvector, which is created where it is missing."""
    look = "SELECT n.nspname FROM pg_extension AS e JOIN pg_namespace AS n ON n.oid = e.extnamespace WHERE e.extname = 'vector'"
    found = connection.execute(look).fetchall()
    if not found:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        found = connection.execute(look).fetchall()
    return str(found[0][0])
