"""SQL: asks a PostgreSQL database by one SELECT for the row that the call should have made. The server holds us to reading.

Everything runs in one READ ONLY transaction, which no statement inside it can turn back; values of arguments are parameters of the protocol
and never become text of the statement.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from math import inf
from time import monotonic
from typing import Any

import psycopg
from psycopg import IsolationLevel, RawCursor, generators, waiting
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from actions.facts import read_number
from actions.redaction import redact_text
from actions.resolvers.base import (
    Allowed,
    Canary,
    Claim,
    Effect,
    Field,
    FieldType,
    Finding,
    InvalidDefinition,
    Kind,
    Match,
    MatchedBy,
    Reply,
    Windows,
)
from actions.resolvers.claim import people_in
from actions.resolvers.sql_query import PARAMETERS, Query, read_query
from actions.resolvers.texts import Texts, read_settings, read_texts
from actions.resolvers.web import AddressRefused, NoResponse, WebAddress, parse_host, resolve
from actions.times import Instant, parse_rfc3339

MAX_ROWS = 50
MAX_ROW_BYTES = 20_000
"""Together at most a mebibyte, whatever the query brings."""
MAX_KEY_CHARS = 1_000

COLUMNS = ("key", "id", "recipient", "amount", "currency", "reference", "at", "effect")

_DSN_PARTS = frozenset(
    "host port dbname user sslmode sslrootcert sslcert sslkey channel_binding gssencmode target_session_attrs "
    "require_auth application_name".split()
)
_SECURE = ("verify-full", "verify-ca", "require")
_WAKE_S = 0.05

KIND = Kind(
    name="sql",
    label="Database (PostgreSQL)",
    help="Runs one SELECT for the row that the tool writes. Use the primary, and a role that may only read those tables.",
    windows=Windows(settle_window_s=60, retention_s=365 * 86_400),
    fields=(
        Field(
            name="dsn",
            label="Address",
            help="postgresql://reader@db.example/shop?sslmode=verify-full, without the password. The primary, not a replica. A host in a "
            "private network, or without TLS, has to be allowed by this deployment.",
            is_required=True,
            is_address=True,
        ),
        Field(name="password", label="Password", help="Of that role.", type=FieldType.SECRET, is_required=True),
        Field(
            name="query",
            label="Query",
            help="One SELECT that compares the key whole: WHERE idempotency_key = :key. It may ask for "
            f"{', '.join(f':{name}' for name in PARAMETERS)}, and gives columns named {', '.join(COLUMNS)} (key is needed; use AS). "
            "amount is in the main unit; at has a time zone; effect is happened, pending or undone. "
            "Rows without a key are shown as look-alikes. It should answer within a second: there is an index on the key, or should be.",
            type=FieldType.CODE,
            is_required=True,
        ),
        Field(
            name="canary_key",
            label="Canary",
            help="The key of a row that is known to be there. The same query has to find it: proof of database, table and rights.",
        ),
        Field(
            name="proves_absence",
            label="What is not found was not done",
            help="Set this if the tool writes the row in the same transaction as its effect, with the key, and nobody deletes it. "
            "On a replica nothing is proved: it lags.",
            type=FieldType.FLAG,
        ),
        Field(
            name="open_transaction_s",
            label="Old transactions",
            help="While a transaction that writes there is open for longer than so many seconds, nothing proves absence: it may be the dead "
            "worker's, and may still commit. To see them the role needs pg_read_all_stats; else any open one counts.",
            type=FieldType.NUMBER,
            default="10",
        ),
        Field(
            name="timeout_s",
            label="Time limit",
            help="Seconds for one question, everything in it, at most 10.",
            type=FieldType.NUMBER,
            default="10",
        ),
    ),
)


def build(name: str, settings: Mapping[str, str], secrets: Mapping[str, str], allowed: Allowed) -> SqlResolver:
    """See base.Build. A refused address is said before a secret is asked for."""
    given = _read_dsn(read_settings(KIND, settings))
    addresses = _addresses(given, allowed)
    texts = read_texts(KIND, settings, secrets)
    timeout_s = float(texts.number("timeout_s", at_least=Decimal("0.05"), at_most=10))
    return SqlResolver(
        name=name,
        proves_absence=texts.flag("proves_absence"),
        addresses=addresses,
        conninfo=make_conninfo("", **{**given, "password": texts.text("password"), **_own_settings(timeout_s)}),
        password=texts.text("password"),
        query=read_query(texts.text("query")),
        canary_key=texts.text("canary_key"),
        open_transaction_s=float(texts.number("open_transaction_s", at_least=0, at_most=86_400)),
        timeout_s=timeout_s,
    )


def _read_dsn(texts: Texts) -> dict[str, Any]:
    """The parts of the address. Nothing of it is repeated in a refusal: somebody may have left a password in it."""
    try:
        given = {name: value for name, value in conninfo_to_dict(texts.text("dsn")).items() if value is not None}
    except psycopg.Error:
        raise InvalidDefinition("dsn", "is not an address that PostgreSQL understands; write special characters as %XX") from None
    if "password" in given:
        raise InvalidDefinition("dsn", "holds a password; that belongs into its own field")
    if unknown := sorted(set(given) - _DSN_PARTS):
        raise InvalidDefinition("dsn", f"may not set {unknown[0]}")
    if not (given.get("host") and given.get("dbname") and given.get("user")):
        raise InvalidDefinition("dsn", "names a host, a database and a user")
    if given.get("target_session_attrs") == "read-write":
        raise InvalidDefinition("dsn", "finds the primary by target_session_attrs=primary: what is asked here may never write")
    return given


def _addresses(given: Mapping[str, Any], allowed: Allowed) -> tuple[WebAddress, ...]:
    """Each host with its port. One that the deployment does not allow by name has to be public, and is spoken to by TLS only."""
    hosts = str(given["host"]).split(",")
    ports = str(given.get("port") or "5432").split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    if len(ports) != len(hosts) or not all(re.fullmatch(r"[0-9]{1,5}", port, re.ASCII) for port in ports):
        raise InvalidDefinition("dsn", "has a port that is no number, or not one for each host")
    try:
        found = tuple(parse_host(host, int(port), allowed.hosts) for host, port in zip(hosts, ports, strict=True))
    except AddressRefused as exc:
        raise InvalidDefinition("dsn", f"host: {exc}") from None
    if given.get("sslmode") not in _SECURE and not all(address.is_allowed for address in found):
        raise InvalidDefinition("dsn", f"needs sslmode={' or '.join(_SECURE)}, unless the deployment allows this host by name")
    return found


def _own_settings(timeout_s: float) -> dict[str, str]:
    limit = f"{max(1, int(timeout_s * 1000))}ms"
    return {
        "application_name": "settle resolver",
        "client_encoding": "UTF8",
        "options": f"-c default_transaction_read_only=on -c statement_timeout={limit} -c lock_timeout={limit} "
        f"-c idle_in_transaction_session_timeout=30s -c standard_conforming_strings=on -c jit=off",
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlResolver:
    """One query on one database."""

    name: str
    kind: str = "sql"
    proves_absence: bool
    copies_are_normal: bool = False
    addresses: tuple[WebAddress, ...]
    conninfo: str = field(repr=False)
    password: str = field(repr=False)
    query: Query
    canary_key: str
    open_transaction_s: float
    timeout_s: float

    def ask(self, claim: Claim, *, now: Instant) -> Finding:
        """See base.Resolver."""
        began = monotonic()
        asking = _Asking(account=f"a database at {self._place()}")
        answer: dict[str, Any] = {}
        try:
            if not _can_stand(claim.action.key):
                raise _Unusable("this action's key cannot stand in a database")
            with _opened(self.conninfo, self.addresses, began + self.timeout_s) as connection:
                answer = self._look(connection, claim, asking)
            reply, problem = Reply.ANSWERED, ""
        except (_Unusable, AddressRefused) as exc:
            reply, problem = Reply.UNUSABLE, str(exc)
        except NoResponse as exc:
            reply, problem = Reply.NO_ANSWER, str(exc)
        except TimeoutError:
            reply, problem = Reply.NO_ANSWER, f"the database did not answer within {self.timeout_s:g} s"
        except psycopg.Error as exc:
            reply, problem = _meaning(exc, self.password)
            asking.status = exc.sqlstate or asking.status
        return Finding(
            reply=reply,
            problem=problem,
            asked=tuple(asking.asked),
            account=asking.account,
            asked_at=now,
            took_ms=int((monotonic() - began) * 1000),
            status=asking.status,
            answer_digest=asking.digest.hexdigest() if asking.asked else "",
            **answer,
        )

    def _place(self) -> str:
        return ", ".join(address.host for address in self.addresses)

    def _look(self, connection: _Connection, claim: Claim, asking: _Asking) -> dict[str, Any]:
        asking.account, doubts = self._describe(connection)
        # Before the query: what is still open now may be missed by it, what has ended by now cannot be.
        doubts += self._open_transactions(connection)
        values, is_altered = _values_of(claim)
        if is_altered:
            doubts.append("an argument holds characters that no database can hold: it was asked without them")
        rows = self._run(connection, values, asking)
        matches, of_rows = _read_rows(rows, claim)
        doubts += of_rows
        canary = Canary.NOT_ASKED
        if self.canary_key:
            found = self._run(connection, {**values, "key": self.canary_key}, asking)
            is_there = any(row is not None and row.get("key") == self.canary_key for row in found)
            canary = Canary.FOUND if is_there else Canary.MISSING
        is_found = any(match.by is MatchedBy.KEY for match in matches)
        return {
            "matches": matches,
            "canary": canary,
            "is_complete": not doubts,
            "notes": () if is_found else tuple(doubts),
        }

    def _describe(self, connection: _Connection) -> tuple[str, list[str]]:
        database, user, is_replica = connection.one("SELECT current_database(), current_user, pg_is_in_recovery()", [])
        doubts = ["this is a replica: it may lag behind, so what is not there proves nothing"] if is_replica else []
        return f"database {database} at {self._place()}, as {user}", doubts

    def _open_transactions(self, connection: _Connection) -> list[str]:
        """A worker that died inside of a transaction, or whose connection hangs, may have written without having committed."""
        old, sees_all, any_open = connection.one(_OPEN_TRANSACTIONS, [self.open_transaction_s])
        if old:
            many = f"{old} transactions that write here have" if old > 1 else "a transaction that writes here has"
            return [f"{many} been open for more than {self.open_transaction_s:g} s: a dead worker's may still commit"]
        if any_open and not sees_all:
            return [
                "a transaction is open whose age this role may not see, and which may still commit; grant it pg_read_all_stats"
            ]
        return []

    def _run(self, connection: _Connection, values: Mapping[str, Any], asking: _Asking) -> list[dict[str, Any] | None]:
        """The rows, None for one that is too long; at most one more than `MAX_ROWS`."""
        asking.tell(self.query.sql, {name: values[name] for name in self.query.parameters})
        found = connection.all(_BOUNDED.format(query=self.query.sql), [values[name] for name in self.query.parameters])
        asking.status = "OK"
        rows: list[dict[str, Any] | None] = []
        for (text,) in found:
            asking.digest.update(f"{text}\n".encode())
            rows.append(_read_row(text))
        return rows


# As JSON, so that each type comes as a text or a number and the server can say how long a row is before it sends it.
_BOUNDED = f"""
SELECT CASE WHEN octet_length(r.j) <= {MAX_ROW_BYTES} THEN r.j END
FROM (SELECT row_to_json(t)::text AS j, t.key IS NULL FROM (
{{query}}
) AS t LIMIT {MAX_ROWS + 1}) AS r
"""  # noqa: S608

_OPEN_TRANSACTIONS = """
SELECT
    (SELECT count(*) FROM pg_stat_activity
     WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_xid IS NOT NULL
       AND xact_start < clock_timestamp() - make_interval(secs => $1::float8))
  + (SELECT count(*) FROM pg_prepared_xacts
     WHERE database = current_database() AND prepared < clock_timestamp() - make_interval(secs => $1::float8)),
    pg_has_role(current_user, 'pg_read_all_stats', 'USAGE'),
    EXISTS (SELECT FROM pg_snapshot_xip(pg_current_snapshot()))
"""


# --- questions -------------------------------------------------------------------------------------------------------


class _Unusable(Exception):
    """Nobody can answer until somebody mends the definition or the database."""


@dataclass(slots=True, kw_only=True)
class _Asking:
    """What has been asked so far and what came of it."""

    account: str
    asked: list[str] = field(default_factory=list)
    status: str = ""
    digest: Any = field(default_factory=hashlib.sha256)

    def tell(self, query: str, values: Mapping[str, Any]) -> None:
        shown = ", ".join(
            f"${number} = {value if name == 'key' else redact_text(_shown(value))}"
            for number, (name, value) in enumerate(values.items(), start=1)
        )
        self.asked.append(f"{query[:5_000]} -- {shown}"[:8_000])


def _shown(value: Any) -> str:
    return "NULL" if value is None else str(value)[:200]


def _can_stand(key: str) -> bool:
    return 0 < len(key) <= MAX_KEY_CHARS and _cleaned(key) == key


def _cleaned(text: str) -> str:
    """Without what PostgreSQL cannot store; so what is left matches nothing that the argument itself would have matched."""
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def _values_of(claim: Claim) -> tuple[dict[str, Any], bool]:
    """Each parameter's value, NULL where the claim does not tell; and whether one had to be altered."""
    action = claim.action
    texts = {
        "key": action.key,
        "recipient": claim.recipients[0] if claim.recipients else "",
        "currency": claim.currency,
        "reference": claim.reference,
        "agent": action.agent,
        "tool": action.tool,
    }
    values: dict[str, Any] = {name: _cleaned(text) or None for name, text in texts.items()}
    is_altered = any(text and values[name] != text for name, text in texts.items())
    return {**values, "amount": claim.amount, "seq": action.seq}, is_altered


def _read_row(text: str | None) -> dict[str, Any] | None:
    try:
        return None if text is None else json.loads(text, parse_float=Decimal)
    except (RecursionError, ValueError):  # nested deeper than we go, or a number longer than we read
        return None


def _read_rows(rows: list[dict[str, Any] | None], claim: Claim) -> tuple[tuple[Match, ...], list[str]]:
    """Matches and why not everything could be looked at."""
    doubts = []
    if len(rows) > MAX_ROWS:
        doubts.append(f"the query brings more than {MAX_ROWS} rows: not all of them were looked at")
    if any(row is None for row in rows):
        doubts.append(f"a row is longer than {MAX_ROW_BYTES:,} bytes, or nested too deep, and was not looked at")
    matches, others = [], 0
    for number, row in enumerate((row for row in rows[:MAX_ROWS] if row is not None), start=1):
        key = row.get("key")
        if key == claim.action.key:
            matches.append(_match(row, MatchedBy.KEY, number))
        elif key in (None, ""):
            matches.append(_match(row, MatchedBy.FIELDS, number))
        else:
            others += 1
    if others:
        doubts.append(
            f"the query brings {others} rows with another key, or with ours written otherwise: does it compare it whole?"
        )
    return tuple(matches), doubts


def _match(row: Mapping[str, Any], by: MatchedBy, number: int) -> Match:
    at, of_time = _time(row.get("at"))
    effect, of_effect = _effect(row)
    return Match(
        object_id=_text(row.get("id")) or f"row {number}",
        by=by,
        effect=effect,
        recipients=_people(row.get("recipient")),
        amount=read_number(row.get("amount")),
        currency=_text(row.get("currency")).upper(),
        reference=_text(row.get("reference")),
        at=at,
        note="; ".join(filter(None, [of_time, of_effect])),
    )


def _people(value: Any) -> tuple[str, ...]:
    return people_in([one for one in value if isinstance(one, str)] if isinstance(value, list) else value)


def _time(value: Any) -> tuple[Instant | None, str]:
    if value is None:
        return None, ""
    try:
        return parse_rfc3339(str(value)), ""
    except ValueError:
        return None, "its time has no zone, so it says nothing"


def _effect(row: Mapping[str, Any]) -> tuple[Effect, str]:
    """A row is the effect unless it says otherwise; what cannot be understood is no proof of anything."""
    if "effect" not in row:
        return Effect.HAPPENED, ""
    said = _text(row["effect"]).strip().lower()
    if said in set(Effect):
        return Effect(said), "" if said == Effect.HAPPENED else f"its effect is {said}"
    return Effect.PENDING, f"its effect is {redact_text(said[:60]) or 'not told'}, which is none of {', '.join(Effect)}"


def _text(value: Any) -> str:
    return str(value).strip() if isinstance(value, str | int | Decimal) and not isinstance(value, bool) else ""


# --- one connection --------------------------------------------------------------------------------------------------


class _Connection(psycopg.Connection[tuple[Any, ...]]):
    """Nothing on it is waited for beyond a moment of our own clock."""

    until = inf

    def one(self, statement: str, values: list[Any]) -> tuple[Any, ...]:
        return self.all(statement, values)[0]

    def all(self, statement: str, values: list[Any]) -> list[tuple[Any, ...]]:
        """With `$1` as placeholders; always by the extended protocol, which takes one statement only."""
        cursor = RawCursor(self)
        return cursor.execute(statement.encode(), values, prepare=False).fetchall()

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **kwargs: Any) -> Any:
        return super().wait(_watched(gen, self.until), *args, **kwargs)


def _watched(gen: Generator[Any, Any, Any], until: float) -> Generator[Any, Any, Any]:
    """The same, given up when the time is over; psycopg wakes it up several times a second."""
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if monotonic() >= until:
                raise TimeoutError
            wanted = gen.send(ready)
    except StopIteration as answer:
        return answer.value


@contextmanager
def _opened(conninfo: str, addresses: tuple[WebAddress, ...], until: float) -> Iterator[_Connection]:
    """In a READ ONLY transaction in which each statement sees what was committed before it; closed in any case."""
    # To addresses that were checked; libpq keeps the names for certificates.
    pinned = [(one.host, found, str(one.port)) for one in addresses for found in resolve(one, seconds=until - monotonic())]
    hosts, found, ports = (",".join(part) for part in zip(*pinned, strict=True))
    conninfo = make_conninfo(conninfo, host=hosts, hostaddr=found, port=ports)
    # Not psycopg's own connect(): it waits for two seconds at least.
    connection = _Connection(waiting.wait_conn(_watched(generators.connect(conninfo), until), interval=_WAKE_S))
    try:
        connection.until = until
        connection.prepare_threshold = None
        connection.isolation_level = IsolationLevel.READ_COMMITTED
        connection.read_only = True
        yield connection
    finally:
        connection.close()


_FOR_SOMEBODY_TO_MEND = ("0A", "22", "25", "28", "3D", "3F", "42")
"""SQLSTATE classes that say the same tomorrow: not supported, data, transaction state, authorization, no such database or schema, syntax."""
_REFUSED_AT_THE_DOOR = (
    "authentication failed",
    "no pg_hba.conf entry",
    "does not exist",
    "is not permitted to log in",
    "no password supplied",
    "certificate verify failed",
    "does not match host name",
    "server does not support SSL",
    "root certificate",
    "authentication method requirement",
)
"""What libpq says before there is a connection comes without a SQLSTATE. In another language it is taken for a passing trouble."""


def _meaning(exc: psycopg.Error, password: str) -> tuple[Reply, str]:
    said = " ".join(str(exc.diag.message_primary or exc).split())
    said = redact_text((said.replace(password, "***") if len(password) > 2 else said)[:300])
    state = exc.sqlstate or ""
    if state == "25006":
        return Reply.UNUSABLE, f"the query tries to write, and the database refused it: {said}"
    if state == "57014":
        return Reply.NO_ANSWER, "the query took too long and the database gave it up"
    if state[:2] in _FOR_SOMEBODY_TO_MEND:
        return Reply.UNUSABLE, f"the database refuses the query: {said} ({state})"
    if not state and any(text in said for text in _REFUSED_AT_THE_DOOR):
        return Reply.UNUSABLE, f"the database refuses the connection: {said}"
    return Reply.NO_ANSWER, f"no answer from the database: {said}"
