"""What is ours to create in a PostgreSQL database, and what a connection may and should do there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, LiteralString

import psycopg
from psycopg import errors, sql

from actions.errors import StoreReadOnly
from actions.records import StoreCheck
from actions.store.postgres_connection import Address, Connection

VERSION = 2
_UPGRADES = {2: "CREATE INDEX entries_agent ON settle_audit.entries (chain, agent, number)"}
"""What brings the audit schema up to each version, as `audit_schema.sql` makes it anew."""
_UPGRADING_S = 600
_NEWEST_INDEX = "entries_agent"  # by which a role that may not read the version knows that an upgrade is missing
_PLAIN = re.compile(r"[a-z_][a-z0-9_]*", re.ASCII)
_LOCK = "hashtext('settle:audit')"
_INDEX_LOCK_TIMEOUT_S = 600

_TURNS, _OPEN = "settle_turns", "settle_open"
_INDEXES: dict[str, LiteralString] = {
    _TURNS: """((metadata->>'recall_agent'), (substring(id FROM ':turn:([0-9]{{1,18}})$')::bigint) DESC NULLS LAST, id COLLATE "C" DESC)
        WHERE metadata->>'record' = 'turn'""",
    _OPEN: """(id COLLATE "C") WHERE metadata->>'record' = 'action' AND metadata->>'status' IN ('started', 'unknown')""",
}
"""Our indexes on Recall's table, by the end of their names. No expression in them can fail: that would stop an agent's write."""

_RIGHTS: tuple[tuple[str, str, str], ...] = (
    ("recall_collections", "SELECT", "read"),
    ("recall_leases", "SELECT", "read"),
    ("recall_collections", "UPDATE", "settle"),
    ("recall_leases", "INSERT", "settle"),
    ("recall_leases", "UPDATE", "settle"),
)
_RECORD_RIGHTS = (("SELECT", "read"), ("INSERT", "settle"), ("UPDATE", "settle"))
_AUDIT_RIGHTS = (("entries", "SELECT"), ("entries", "INSERT"), ("heads", "SELECT"), ("heads", "INSERT"), ("heads", "UPDATE"))
_TOO_MUCH = ("UPDATE", "DELETE", "TRUNCATE")
_READ_ONLY = "its database is read-only here (a standby, or default_transaction_read_only); point this store at the primary"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Role:
    """Who we are here, and what kind of server this is."""

    name: str  # quoted where SQL needs it
    server: str
    is_superuser: bool
    is_read_only: bool
    has_vector: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EntriesCheck:
    """What a connection can do with the entries alone, in a database that need not hold any records."""

    server: str
    is_prepared: bool
    why_not: str  # one sentence with the remedy; empty where entries can be written
    warnings: tuple[str, ...]


# --- check -----------------------------------------------------------------------------------------------------------


def check(connection: Connection, address: Address, name: str) -> StoreCheck:
    """What this connection can be used for: a handful of statements over the catalogues, and one over the registry."""
    role = _role(connection)
    tables = _tables(connection, address.schema)
    row = _collection(connection, address, tables)
    records = row[0] if row else None
    is_prepared = _has_audit(connection)
    missing = _missing_rights(connection, role, address.schema, records, is_prepared=is_prepared)
    why_not = _why_not(address, name, role, tables=tables, records=records, is_prepared=is_prepared, missing=missing)
    return StoreCheck(
        server=role.server,
        is_reachable=True,
        has_records=records is not None,
        is_prepared=is_prepared,
        has_index=records is not None and _index_state(connection, address.schema, records) is True,
        can_settle=not why_not,
        why_not=why_not,
        warnings=tuple(_warnings(connection, role, address, records, is_prepared=is_prepared)),
    )


def check_entries(connection: Connection, name: str) -> EntriesCheck:
    """The same for the audit schema alone."""
    role = _role(connection)
    is_prepared = _has_audit(connection)
    missing = _missing_grants(connection, role, _wanted_audit() if is_prepared else [])
    why_not = ""
    if role.is_read_only:
        why_not = _READ_ONLY
    elif not is_prepared:
        why_not = _not_prepared(name)
    elif missing:
        why_not = _rights_missing(missing)
    return EntriesCheck(
        server=role.server,
        is_prepared=is_prepared,
        why_not=why_not,
        warnings=tuple(_audit_warnings(connection, role, is_prepared=is_prepared)),
    )


def not_prepared(connection: Connection, name: str) -> str:
    """Why entries cannot be written: the schema is not there, or this role may not use it."""
    if _exists(connection, "settle_audit", "entries"):
        role = _role(connection).name
        return f"role {role} may not use the audit schema; as its owner: {_grant_audit(role)}"
    return _not_prepared(name)


def no_history(connection: Connection) -> str:
    """Why entries cannot be read although something of ours is there."""
    gone = {"entries", "heads"} - _tables(connection, "settle_audit")
    if gone:
        return f"the history of decisions cannot be read: table settle_audit.{min(gone)} is not there any more"
    role = _role(connection).name
    return (
        f"role {role} may not read the history of decisions; as its owner: GRANT USAGE ON SCHEMA settle_audit TO {role}; "
        f"GRANT SELECT ON settle_audit.entries, settle_audit.heads TO {role}"
    )


def _role(connection: Connection) -> _Role:
    name, version, is_superuser, is_read_only, has_vector = connection.execute(
        """SELECT current_user, current_setting('server_version'),
            (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user),
            pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean,
            EXISTS (SELECT FROM pg_catalog.pg_extension WHERE extname = 'vector')"""
    ).fetchall()[0]
    return _Role(
        name=name if _PLAIN.fullmatch(name) else sql.Identifier(name).as_string(None),
        server=f"PostgreSQL {version.split()[0]}",
        is_superuser=is_superuser,
        is_read_only=is_read_only,
        has_vector=has_vector,
    )


def _tables(connection: Connection, schema: str) -> frozenset[str]:
    rows = connection.execute(
        """SELECT c.relname FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
        WHERE n.nspname = %s AND c.relkind IN ('r', 'p', 'v', 'f')""",
        [schema],
    ).fetchall()
    return frozenset(row[0] for row in rows)


def _exists(connection: Connection, schema: str, table: str) -> bool:
    return table in _tables(connection, schema)


def _has_audit(connection: Connection) -> bool:
    return {"entries", "heads"} <= _tables(connection, "settle_audit")


def _collection(connection: Connection, address: Address, tables: frozenset[str]) -> tuple[Any, ...] | None:
    """The registry's row; None where there is none, or where we may not read it (which the missing rights say)."""
    if "recall_collections" not in tables:
        return None
    query = sql.SQL("SELECT tbl, dim FROM {} WHERE name = %s").format(sql.Identifier(address.schema, "recall_collections"))
    try:
        return connection.execute(query, [address.collection]).fetchone()
    except errors.InsufficientPrivilege:
        return None


def _missing_rights(connection: Connection, role: _Role, schema: str, records: str | None, *, is_prepared: bool) -> list[str]:
    wanted = [(schema, table, right) for table, right, _ in _RIGHTS]
    wanted += [(schema, records, right) for right, _ in _RECORD_RIGHTS] if records else []
    return _missing_grants(connection, role, wanted + (_wanted_audit() if is_prepared else []))


def _wanted_audit() -> list[tuple[str, str, str]]:
    return [("settle_audit", table, right) for table, right in _AUDIT_RIGHTS]


def _missing_grants(connection: Connection, role: _Role, wanted: Sequence[tuple[str, str, str]]) -> list[str]:
    """Of these rights (schema, table, right) the ones that are missing, as statements that the owner can run."""
    missing: dict[tuple[str, str], list[str]] = {}
    for owner, table, right in wanted:
        if not _may(connection, owner, table, right):
            missing.setdefault((owner, table), []).append(right)
    statements = [
        f"GRANT USAGE ON SCHEMA {owner} TO {role.name}"
        for owner in sorted({key[0] for key in missing})
        if not _may_use(connection, owner)
    ]
    statements += [f"GRANT {', '.join(rights)} ON {owner}.{table} TO {role.name}" for (owner, table), rights in missing.items()]
    return statements


def _may(connection: Connection, schema: str, table: str, right: str) -> bool:
    """Whether this role has a right on a table; True where the table is not there, which others say."""
    row = connection.execute(
        """SELECT has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, %s)
        FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s""",
        [right, schema, table],
    ).fetchone()
    return row is None or bool(row[0])


def _may_use(connection: Connection, schema: str) -> bool:
    row = connection.execute(
        "SELECT has_schema_privilege(oid, 'USAGE') FROM pg_catalog.pg_namespace WHERE nspname = %s", [schema]
    ).fetchone()
    return row is None or bool(row[0])


def _why_not(
    address: Address,
    name: str,
    role: _Role,
    *,
    tables: frozenset[str],
    records: str | None,
    is_prepared: bool,
    missing: Sequence[str],
) -> str:
    """One sentence with the remedy; empty where a decision can be written."""
    if role.is_read_only:
        return _READ_ONLY
    if not is_prepared:
        return _not_prepared(name)
    if missing:
        return _rights_missing(missing)
    if "recall_collections" not in tables:
        return f"no Recall tables in schema {address.schema} yet: its first agent makes them; check the address if one has run"
    if records is None:
        return f"the collection {address.collection} is not in Recall's registry yet: its first agent makes it; check the address if one has run"
    if not role.has_vector:
        return "the extension vector is missing, so no turn can be written: CREATE EXTENSION vector"
    return ""


def _not_prepared(name: str) -> str:
    return f"not prepared: run `prepare_store {name}` as the database's owner"


def _rights_missing(missing: Sequence[str]) -> str:
    return f"rights are missing; as the owner: {'; '.join(missing)}"


def _warnings(connection: Connection, role: _Role, address: Address, records: str | None, *, is_prepared: bool) -> list[str]:
    warnings = []
    if not role.has_vector:
        warnings.append("the extension vector is missing: records can be read, but no turn can be written")
    warnings += _audit_warnings(connection, role, is_prepared=is_prepared)
    if records and not role.is_superuser and _may(connection, address.schema, records, "DELETE"):
        warnings.append(f"{role.name} may DELETE Recall's records, which nothing here ever does; revoke it")
    if records:
        warnings += _index_warnings(connection, address.schema, records)
    return warnings


def _index_warnings(connection: Connection, schema: str, records: str) -> list[str]:
    """Of our indexes: all of them are there, or none; one that is half made slows every write and serves nobody."""
    states = {suffix: _index_state(connection, schema, records, suffix) for suffix in _INDEXES}
    found = [
        f"the index {index_name(records, suffix)} is not valid: run `prepare_store --index` again"
        for suffix, state in states.items()
        if state is False
    ]
    if states[_OPEN] and states[_TURNS] is None:
        found.append(
            f"the index {index_name(records, _TURNS)} is missing: agents with long histories are slow; run `prepare_store --index` again"
        )
    return found


_OUTDATED = "the audit schema is of an older version: pages of its history are slow for busy agents; run prepare_store again, as its owner"


def _may_look(connection: Connection) -> bool:
    """Without USAGE nobody can name what stands in the schema."""
    row = connection.execute(
        "SELECT coalesce(bool_or(has_schema_privilege(oid, 'USAGE')), false) FROM pg_catalog.pg_namespace WHERE nspname = 'settle_audit'"
    ).fetchone()
    return bool(row and row[0])


def _audit_warnings(connection: Connection, role: _Role, *, is_prepared: bool) -> list[str]:
    if is_prepared and _may_look(connection) and _index_is_missing(connection):
        return [_OUTDATED, *_promise_warnings(connection, role, is_prepared=is_prepared)]
    return _promise_warnings(connection, role, is_prepared=is_prepared)


def _promise_warnings(connection: Connection, role: _Role, *, is_prepared: bool) -> list[str]:
    promise = '"entries are only inserted" is an empty promise; connect as a role of its own'
    if role.is_superuser:
        return [f"{role.name} is a superuser: {promise}"]
    if is_prepared and _owns_audit(connection):
        return [f"{role.name} owns the audit schema: {promise}"]
    too_much = [right for right in _TOO_MUCH if _may(connection, "settle_audit", "entries", right)] if is_prepared else []
    return [f"{role.name} may {', '.join(too_much)} audit entries; revoke it"] if too_much else []


def _owns_audit(connection: Connection) -> bool:
    row = connection.execute(
        """SELECT bool_or(pg_has_role(c.relowner, 'MEMBER')) FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n
        ON n.oid = c.relnamespace WHERE n.nspname = 'settle_audit' AND c.relname IN ('entries', 'heads')"""
    ).fetchone()
    return bool(row and row[0])


def _grant_audit(role: str) -> str:
    return (
        f"GRANT USAGE ON SCHEMA settle_audit TO {role}; GRANT SELECT, INSERT ON settle_audit.entries TO {role}; "
        f"GRANT SELECT, INSERT, UPDATE ON settle_audit.heads TO {role}"
    )


# --- prepare ---------------------------------------------------------------------------------------------------------


def prepare(connection: Connection, name: str) -> tuple[str, ...]:
    """The audit schema, made or brought up to date in one transaction under an advisory lock, so that two who prepare at once do it once.

    An upgrade makes an index: no entry can be written for the seconds that it takes; whoever wants to waits, or tries again.
    """
    try:
        with connection.transaction():
            connection.execute(f"SELECT pg_advisory_xact_lock({_LOCK})")
            if not _exists(connection, "settle_audit", "entries"):
                connection.execute(_audit_schema())
            elif _is_outdated(connection):
                connection.allow_more(_UPGRADING_S)
                before = _upgrade(connection)
                return (f"schema settle_audit: upgraded (version {before} to {VERSION})",)
            else:
                return (f"schema settle_audit: in place ({_version_text(connection)})",)
    except errors.InsufficientPrivilege as exc:
        role = _role(connection).name
        said = exc.diag.message_primary
        raise StoreReadOnly(
            name, f"role {role} may not create or upgrade the audit schema ({said}); run prepare_store as the database's owner"
        ) from exc
    return (f"schema settle_audit: created (version {VERSION})",)


def prepare_index(connection: Connection, address: Address, records: str | None, name: str) -> tuple[str, ...]:
    """Our partial indexes, without stopping the agents' writes; one left half made by an earlier attempt is made anew."""
    if records is None:
        return ("index of open actions: not made, Recall's table is not there yet; run this again after its first agent",)
    states = {suffix: _index_state(connection, address.schema, records, suffix) for suffix in _INDEXES}
    missing = [suffix for suffix, state in states.items() if not state]
    try:
        if missing:
            # Made beside running writers, each waits for every transaction that is open then; a big table takes as long as it takes.
            connection.execute(
                "SELECT set_config('lock_timeout', %s, false), set_config('statement_timeout', '0', false)",
                [f"{_INDEX_LOCK_TIMEOUT_S}s"],
            )
        for suffix in missing:
            if states[suffix] is False:
                index = sql.Identifier(address.schema, index_name(records, suffix))
                connection.execute(sql.SQL("DROP INDEX CONCURRENTLY IF EXISTS {}").format(index))
            made = sql.SQL("CREATE INDEX CONCURRENTLY {} ON {} " + _INDEXES[suffix])
            table = sql.Identifier(address.schema, records)
            connection.execute(made.format(sql.Identifier(index_name(records, suffix)), table))
    except errors.InsufficientPrivilege as exc:
        role = _role(connection).name
        said = exc.diag.message_primary
        raise StoreReadOnly(
            name, f"role {role} may not make an index on Recall's table ({said}); run prepare_store as its owner"
        ) from exc
    finally:
        if missing and not connection.closed:
            connection.close()  # with its timeouts
    return tuple(f"index {index_name(records, suffix)}: {'created' if suffix in missing else 'in place'}" for suffix in _INDEXES)


def index_name(records: str, suffix: str = _OPEN) -> str:
    """The index's name, within PostgreSQL's 63 bytes."""
    return f"{records[: 63 - len(suffix) - 1]}_{suffix}"


def _index_state(connection: Connection, schema: str, records: str, suffix: str = _OPEN) -> bool | None:
    """True: made and valid; False: left half made; None: not there."""
    row = connection.execute(
        """SELECT i.indisvalid FROM pg_catalog.pg_index AS i JOIN pg_catalog.pg_class AS c ON c.oid = i.indexrelid
        JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s""",
        [schema, index_name(records, suffix)],
    ).fetchone()
    return None if row is None else bool(row[0])


def _is_outdated(connection: Connection) -> bool:
    return _exists(connection, "settle_audit", "version") and _index_is_missing(connection)


def _index_is_missing(connection: Connection) -> bool:
    row = connection.execute("SELECT to_regclass(%s) IS NULL", [f"settle_audit.{_NEWEST_INDEX}"]).fetchone()
    return bool(row and row[0])


def _upgrade(connection: Connection) -> int:
    """The version that it had."""
    row = connection.execute("SELECT max(number) FROM settle_audit.version").fetchone()
    found: int = row[0] if row and row[0] else 1
    connection.execute(f"SET LOCAL statement_timeout = '{_UPGRADING_S}s'")
    for number in range(found + 1, VERSION + 1):
        connection.execute(_UPGRADES[number])
    connection.execute("UPDATE settle_audit.version SET number = %s", [VERSION])
    return found


def _version_text(connection: Connection) -> str:
    try:
        with connection.transaction():
            row = connection.execute("SELECT max(number) FROM settle_audit.version").fetchone()
    except psycopg.Error:
        return "of a version that this role may not read"
    return f"version {row[0] if row else '?'}"


def _audit_schema() -> str:
    return files("actions.store").joinpath("audit_schema.sql").read_text(encoding="utf-8")
