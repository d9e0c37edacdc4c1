"""Records as Recall writes them, for tests: ids, metadata, bodies, leases. Written from the format, not with our own codec.

`RecordWriter` shapes records; where they go is a subclass's matter (`RecallWriter`: PostgreSQL, with raw SQL). Every method has a switch
for broken records: `meta` and `body` replace what was made, `drop` leaves keys of the metadata out.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, Self
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg import sql

from actions.records import ActionRef

Metadata = dict[str, Any]
Params = Sequence[Any] | Mapping[str, Any]
LeaseState = Literal["live", "expired", "released"]
DIMENSION = 256
BEGAN = datetime(2026, 11, 29, 18, 29, 6, tzinfo=UTC)
"""When the first action began; the others follow by their number in seconds."""


def recall_json(value: object) -> str:
    """Compact JSON in Go's habit: everything readable but `<`, `>`, `&` and the two line separators."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    text = json.dumps(value, separators=(",", ":")) if re.search("[\ud800-\udfff]", text) else text
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def time_text(offset_s: float) -> str:
    """A time so many seconds after BEGAN, as Recall writes it."""
    return (BEGAN + timedelta(seconds=offset_s)).strftime("%Y-%m-%dT%H:%M:%S.%f").rstrip("0").rstrip(".") + "Z"


def table_name(collection: str) -> str:
    """The table of a collection (recall-records 2.2)."""
    name = re.sub(r"[^a-z0-9_]", "_", collection.lower())
    name = f"c_{name}" if name[0].isdigit() else name
    if name == collection and len(name) <= 48:
        return name
    return f"{name[:48].rstrip('_')}_{hashlib.sha256(collection.encode()).hexdigest()[:8]}"


def shortened(value: str, ref: str) -> str:
    """What a record keeps of a value that moved to an output."""
    data = value.encode()
    return f"{data[:400].decode(errors='ignore')}...\n[... {(len(data) + 3) // 4} more tokens stored as output {ref}]"


def overflows(value: str) -> bool:
    return len(value.encode("utf-8", "surrogatepass")) > 8000


class RecordWriter:
    """Shapes Recall's records. A subclass says where they go: `put`, `lease`, `acquire`, `write_fenced`, `metadata_of`, `revision`."""

    store: str

    # --- where it goes -----------------------------------------------------------------------------------------------

    def put(self, record_id: str, metadata: Mapping[str, Any]) -> None:
        """Write one record whole, whoever holds the agent, and move the revision."""
        raise NotImplementedError

    def lease(
        self,
        agent: str,
        holder: str = "pod-a:1:aaaa",
        epoch: int = 1,
        state: LeaseState = "expired",
        *,
        ttl: timedelta = timedelta(seconds=60),
    ) -> None:
        """Set the agent's lease row. `live` ends after `ttl`, `expired` ended so long ago."""
        raise NotImplementedError

    def acquire(self, agent: str, holder: str, ttl: timedelta = timedelta(seconds=60)) -> int | None:
        """An agent's process takes the lease as Recall does: the new epoch, or None while somebody holds it."""
        raise NotImplementedError

    def renew(self, agent: str, holder: str, epoch: int, ttl: timedelta = timedelta(seconds=60)) -> int | None:
        """An agent's process renews its lease as Recall does, in the background: the new epoch, or None where it is lost."""
        raise NotImplementedError

    def write_fenced(self, agent: str, holder: str, epoch: int, record_id: str, metadata: Mapping[str, Any]) -> bool:
        """An agent's process writes one record as Recall does, with upsert; False: fenced off (`lease_lost`), nothing was written."""
        raise NotImplementedError

    def metadata_of(self, record_id: str) -> Metadata | None:
        """What stands there now."""
        raise NotImplementedError

    def record_ids(self) -> list[str]:
        """The ids of all records, in order."""
        raise NotImplementedError

    def revision(self) -> int:
        raise NotImplementedError

    def lease_of(self, agent: str) -> tuple[str, int, LeaseState] | None:
        """Holder, epoch and state as they stand."""
        raise NotImplementedError

    def body_of(self, record_id: str) -> dict[str, Any]:
        metadata = self.metadata_of(record_id)
        assert metadata is not None, f"no record {record_id}"
        body: dict[str, Any] = json.loads(metadata["body"])
        return body

    # --- records -----------------------------------------------------------------------------------------------------

    def action(
        self,
        agent: str,
        seq: int,
        *,
        tool: str = "send_email",
        cls: str = "external",
        status: str = "started",
        args: Mapping[str, Any] | str | None = None,
        started_at: str | None = None,
        ended_at: str | None = None,
        result: str = "",
        error: str = "",
        resolution: str = "",
        key: str | None = None,
        epoch: int = 1,
        written_epoch: int | None = None,
        args_ref: str | None = None,
        result_ref: str | None = None,
        record_id: str | None = None,
        meta: Mapping[str, Any] | None = None,
        body: object = None,
        drop: Collection[str] = (),
    ) -> ActionRef:
        """One action. Arguments and results over 8000 bytes move to an output, written first.

        `meta` is laid over the metadata; `body` replaces the body (a mapping is laid over it; anything else is stored as it is).
        """
        text = (
            json.dumps({"to": "ann@example.com"} if args is None else args, sort_keys=True) if not isinstance(args, str) else args
        )
        if args_ref is None:
            args_ref = self._overflow(agent, f"act-{seq}-args", text, tool, epoch)
            text = shortened(text, args_ref) if args_ref else text
        if result_ref is None:
            result_ref = self._overflow(agent, f"act-{seq}-result", result, tool, epoch)
            result = shortened(result, result_ref) if result_ref else result
        is_closed = status in ("done", "failed", "abandoned")
        made = {
            "seq": seq,
            "tool": tool,
            "class": cls,
            "args": text,
            "key": key if key is not None else hashlib.sha256(f"{agent}:{seq}".encode()).hexdigest()[:32],
            "status": status,
            "result": result,
            "error": error,
            "resolution": resolution,
            "args_ref": args_ref,
            "result_ref": result_ref,
            "epoch": epoch,
            "started_at": started_at or time_text(seq),
            "ended_at": ended_at or (time_text(seq + 0.5) if is_closed else ""),
        }
        kept = {k: v for k, v in made.items() if v != "" or k in ("tool", "class", "key", "status", "started_at")}
        metadata = {
            "act": str(seq),
            "seq": seq,
            "page": str((seq - 1) // 64),
            "class": cls,
            "status": status,
            "epoch": epoch if written_epoch is None else written_epoch,
            "record": "action",
            "recall_agent": agent,
        }
        self._put(record_id or f"{agent}:act:{seq}", metadata, kept, meta, body, drop)
        return ActionRef(self.store, agent, seq)

    def turn(
        self,
        agent: str,
        seq: int,
        content: str = "hello",
        *,
        role: str = "user",
        name: str = "",
        brief: str = "",
        message_id: str = "",
        output_ref: str = "",
        at: str | None = None,
        epoch: int = 1,
        record_id: str | None = None,
        meta: Mapping[str, Any] | None = None,
        body: object = None,
        drop: Collection[str] = (),
    ) -> str:
        """One turn; answers its record id."""
        record_id = record_id or f"{agent}:turn:{seq}"
        metadata, made = turn_record(
            agent, seq, content, role=role, name=name, brief=brief, message_id=message_id, at=at, epoch=epoch
        )
        if output_ref:
            made["output_ref"] = output_ref
        self._put(record_id, metadata, made, meta, body, drop)
        return record_id

    def turns(self, agent: str, count: int) -> None:
        """So many turns, from 1."""
        for seq in range(1, count + 1):
            self.turn(agent, seq, f"turn {seq}")

    def working_state(
        self,
        agent: str,
        *,
        version: int = 1,
        turn_seq: int = 0,
        action_seq: int = 0,
        goal: str = "Refund order 881",
        epoch: int = 1,
        meta: Mapping[str, Any] | None = None,
        body: object = None,
        drop: Collection[str] = (),
        **fields: Any,
    ) -> None:
        """One version and, with the same body, the head."""
        made = {
            "goal": goal,
            **fields,
            "version": version,
            "turn_seq": turn_seq,
            "action_seq": action_seq,
            "updated_at": time_text(version),
        }
        kept = {k: v for k, v in made.items() if v or k in ("version", "updated_at")}
        common = {"epoch": epoch, "recall_agent": agent}
        self._put(f"{agent}:ws:{version}", {**common, "record": "working_state", "version": version}, kept, meta, body, drop)
        self._put(f"{agent}:ws:head", {**common, "record": "working_state_head"}, kept, meta, body, drop)

    def output(
        self,
        agent: str,
        ref: str,
        content: str,
        *,
        tool: str = "send_email",
        epoch: int = 1,
        meta: Mapping[str, Any] | None = None,
        body: object = None,
        drop: Collection[str] = (),
    ) -> None:
        data = content.encode("utf-8", "surrogatepass")
        made = {
            "ref": ref,
            "tool": tool,
            "summary": data[:200].decode(errors="ignore") + "...",
            "content": content,
            "at": time_text(0),
        }
        common = {"epoch": epoch, "recall_agent": agent, "record": "output", "ref": ref, "tokens": (len(data) + 3) // 4}
        self._put(f"{agent}:out:{ref}", common, made, meta, body, drop)

    def pointer(
        self,
        agent: str,
        name: str,
        *,
        type: str = "external",  # noqa: A002
        fields: Mapping[str, str] | None = None,
        note: str = "",
        removed: bool = False,
        epoch: int = 1,
        meta: Mapping[str, Any] | None = None,
        body: object = None,
        drop: Collection[str] = (),
    ) -> None:
        made = {
            "name": name,
            "type": type,
            "fields": {"id": "x-1"} if fields is None else dict(fields),
            "note": note,
            "at": time_text(0),
        }
        kept = {} if removed else {k: v for k, v in made.items() if v or k != "note"}
        common: Metadata = {"epoch": epoch, "recall_agent": agent, "record": "pointer", "name": name}
        self._put(f"{agent}:ptr:{name}", common | ({"removed": True} if removed else {}), kept, meta, body, drop)

    def _overflow(self, agent: str, ref: str, value: str, tool: str, epoch: int) -> str:
        if not overflows(value):
            return ""
        self.output(agent, ref, value, tool=tool, epoch=epoch)
        return ref

    def _put(
        self,
        record_id: str,
        metadata: Metadata,
        made: Mapping[str, Any],
        meta: Mapping[str, Any] | None,
        body: object,
        drop: Collection[str],
    ) -> None:
        if isinstance(body, Mapping):
            made = {**made, **body}
        text = recall_json(made) if body is None or isinstance(body, Mapping) else body
        whole = {**metadata, "body": text, **(meta or {})}
        self.put(record_id, {key: value for key, value in whole.items() if key not in drop})


def turn_record(
    agent: str,
    seq: int,
    content: str,
    *,
    role: str = "user",
    name: str = "",
    brief: str = "",
    message_id: str = "",
    at: str | None = None,
    epoch: int = 1,
) -> tuple[Metadata, dict[str, Any]]:
    """A turn's metadata without its body, and the body's keys."""
    made = {
        "seq": seq,
        "role": role,
        "name": name,
        "content": content,
        "message_id": message_id,
        "brief": brief,
        "at": at or time_text(seq),
    }
    kept = {k: v for k, v in made.items() if v != "" or k == "content"}
    return {"seq": seq, "page": str((seq - 1) // 64), "epoch": epoch, "record": "turn", "recall_agent": agent}, kept


def turn_metadata(agent: str, seq: int, content: str, *, epoch: int = 1) -> Metadata:
    """A whole turn as an agent's process would write it."""
    metadata, body = turn_record(agent, seq, content, epoch=epoch)
    return {**metadata, "body": recall_json(body)}


class RecallWriter(RecordWriter):
    """Writes into a PostgreSQL database as Recall does. One connection in autocommit, opened on first use."""

    def __init__(self, url: str, schema: str = "recall", collection: str = "recall_lexical_v1", *, store: str = "main") -> None:
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query))
        self.schema = query.pop("schema", schema)
        self.collection = query.pop("collection", collection) + "_agents"
        self.store = store
        self.table = table_name(self.collection)
        self.url = urlunsplit(parts._replace(query=urlencode(query, quote_via=quote)))
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def connection(self) -> psycopg.Connection[tuple[Any, ...]]:
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self.url, autocommit=True)
        return self._connection

    def create(self, *, records: bool = True, vector: bool = True) -> Self:
        """Recall's tables, as it makes them. Without `records`: as after a resume that wrote nothing yet."""
        if vector:
            self.run("CREATE EXTENSION IF NOT EXISTS vector")
        self.run("CREATE SCHEMA IF NOT EXISTS {schema}")
        self.run("""CREATE TABLE IF NOT EXISTS {collections} (
            name text PRIMARY KEY, tbl text NOT NULL UNIQUE, dim integer NOT NULL, nonce bigint NOT NULL,
            revision bigint NOT NULL DEFAULT 0, created_at timestamptz NOT NULL DEFAULT now())""")
        self.run("""CREATE TABLE IF NOT EXISTS {leases} (
            collection text NOT NULL, name text NOT NULL, holder text NOT NULL, epoch bigint NOT NULL, expires_at timestamptz NOT NULL,
            PRIMARY KEY (collection, name))""")
        return self.create_records(vector=vector) if records else self

    def create_records(self, *, vector: bool = True) -> Self:
        """The table of the agents collection and its row in the registry."""
        embedding = f"vector({DIMENSION})" if vector else "real[]"
        self.run(f"""CREATE TABLE {{records}} (
            id text PRIMARY KEY, embedding {embedding} NOT NULL, metadata jsonb NOT NULL,
            tsv tsvector GENERATED ALWAYS AS (to_tsvector('english'::regconfig, coalesce(metadata->>'text',''))) STORED)""")
        if vector:
            self.run(f"CREATE INDEX {self.table}_embedding ON {{records}} USING hnsw (embedding vector_cosine_ops)")
        self.run(f"CREATE INDEX {self.table}_metadata ON {{records}} USING gin (metadata jsonb_path_ops)")
        self.run(f"CREATE INDEX {self.table}_tsv ON {{records}} USING gin (tsv)")
        self.run(f"""CREATE INDEX {self.table}_observed ON {{records}}
            ((CASE WHEN jsonb_typeof(metadata->'observed_ms')='number' THEN (metadata->'observed_ms')::float8 END))""")
        self.run(
            "INSERT INTO {collections} (name, tbl, dim, nonce) VALUES (%s, %s, %s, %s)",
            [self.collection, self.table, DIMENSION, 42],
        )
        return self

    def run(self, statement: str, params: Params | None = None) -> list[tuple[Any, ...]]:
        """One statement; `{records}`, `{leases}`, `{collections}` and `{schema}` stand for Recall's tables."""
        return run_on(self, self.connection, statement, params)

    def put(self, record_id: str, metadata: Mapping[str, Any]) -> None:
        with self.connection.transaction():
            self._write(self.connection, record_id, metadata)

    def lease(
        self,
        agent: str,
        holder: str = "pod-a:1:aaaa",
        epoch: int = 1,
        state: LeaseState = "expired",
        *,
        ttl: timedelta = timedelta(seconds=60),
    ) -> None:
        expires = {
            "live": "clock_timestamp() + %(ttl)s",
            "expired": "clock_timestamp() - %(ttl)s",
            "released": "to_timestamp(0)",
        }[state]
        self.run(
            f"""INSERT INTO {{leases}} (collection, name, holder, epoch, expires_at) VALUES (%(coll)s, %(agent)s, %(holder)s, %(epoch)s, {expires})
            ON CONFLICT (collection, name) DO UPDATE SET holder = EXCLUDED.holder, epoch = EXCLUDED.epoch, expires_at = EXCLUDED.expires_at""",
            {"coll": self.collection, "agent": agent, "holder": holder, "epoch": epoch, "ttl": ttl},
        )

    def acquire(self, agent: str, holder: str, ttl: timedelta = timedelta(seconds=60)) -> int | None:
        rows = self.run(
            """INSERT INTO {leases} AS l (collection, name, holder, epoch, expires_at) VALUES (%s, %s, %s, 1, clock_timestamp() + %s)
            ON CONFLICT (collection, name) DO UPDATE SET holder = EXCLUDED.holder, epoch = l.epoch + 1, expires_at = EXCLUDED.expires_at
            WHERE l.expires_at <= clock_timestamp() RETURNING epoch""",
            [self.collection, agent, holder, ttl],
        )
        return rows[0][0] if rows else None

    def renew(self, agent: str, holder: str, epoch: int, ttl: timedelta = timedelta(seconds=60)) -> int | None:
        rows = self.run(
            """UPDATE {leases} SET epoch = epoch + 1, holder = %s, expires_at = clock_timestamp() + %s
            WHERE collection = %s AND name = %s AND epoch = %s RETURNING epoch""",
            [holder, ttl, self.collection, agent, epoch],
        )
        return rows[0][0] if rows else None

    def write_fenced(self, agent: str, holder: str, epoch: int, record_id: str, metadata: Mapping[str, Any]) -> bool:
        with self.connection.transaction() as transaction:
            rows = self.run(
                """SELECT holder = %s AND epoch >= %s AND expires_at > to_timestamp(0) FROM {leases}
                WHERE collection = %s AND name = %s FOR SHARE""",
                [holder, epoch, self.collection, agent],
            )
            if not rows or not rows[0][0]:
                raise psycopg.Rollback(transaction)
            self._write(self.connection, record_id, metadata)
            return True
        return False

    def metadata_of(self, record_id: str) -> Metadata | None:
        rows = self.run("SELECT metadata FROM {records} WHERE id = %s", [record_id])
        return rows[0][0] if rows else None

    def record_ids(self) -> list[str]:
        return [row[0] for row in self.run('SELECT id FROM {records} ORDER BY id COLLATE "C"')]

    def revision(self) -> int:
        revision: int = self.run("SELECT revision FROM {collections} WHERE name = %s", [self.collection])[0][0]
        return revision

    def lease_of(self, agent: str) -> tuple[str, int, LeaseState] | None:
        rows = self.run(
            """SELECT holder, epoch, CASE WHEN expires_at = to_timestamp(0) THEN 'released'
            WHEN expires_at > clock_timestamp() THEN 'live' ELSE 'expired' END FROM {leases} WHERE collection = %s AND name = %s""",
            [self.collection, agent],
        )
        return (rows[0][0], rows[0][1], rows[0][2]) if rows else None

    def _write(self, connection: psycopg.Connection[tuple[Any, ...]], record_id: str, metadata: Mapping[str, Any]) -> None:
        run_on(self, connection, "UPDATE {collections} SET revision = revision + 1 WHERE name = %s", [self.collection])
        run_on(
            self,
            connection,
            """INSERT INTO {records} (id, embedding, metadata) VALUES (%s, array_fill(0::real, ARRAY[%s::integer]), %s::jsonb)
            ON CONFLICT (id) DO UPDATE SET embedding = EXCLUDED.embedding, metadata = EXCLUDED.metadata""",
            [record_id, DIMENSION, json.dumps(metadata)],
        )


def run_on(
    writer: RecallWriter, connection: psycopg.Connection[tuple[Any, ...]], statement: str, params: Params | None = None
) -> list[tuple[Any, ...]]:
    """One statement of a writer's tables on another connection."""
    query = sql.SQL(statement).format(
        schema=sql.Identifier(writer.schema),
        collections=sql.Identifier(writer.schema, "recall_collections"),
        leases=sql.Identifier(writer.schema, "recall_leases"),
        records=sql.Identifier(writer.schema, writer.table),
    )
    cursor = connection.execute(query, params)
    return cursor.fetchall() if cursor.description else []
