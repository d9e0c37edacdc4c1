"""Recall's rows and documents as they stand in a database, and what may befall them: one class for each kind of database."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from bson import Int64
from psycopg.types.json import Jsonb
from pymongo import MongoClient
from pymongo.database import Database

from local import postgres

COLLECTION = "recall_lexical_v1_agents"
RELEASED = datetime(1970, 1, 1, tzinfo=UTC)


class Rows(Protocol):
    """What the tests look at and change behind everybody's back."""

    def expire_lease(self, agent: str, *, in_s: float = -1) -> None:
        """It ends in so many seconds, or has ended so long ago."""
        ...

    def forget_leases(self) -> None: ...

    def records(self, agent: str) -> dict[str, dict[str, Any]]:
        """Metadata by record id, in order."""
        ...

    def lease(self, agent: str) -> tuple[str, int, bool, bool]:
        """Holder, epoch, live, released, by the server's clock."""
        ...

    def revision(self) -> int:
        """0 where the collection is not there."""
        ...

    def delete(self, record_id: str) -> None: ...

    def vector(self, record_id: str) -> tuple[float, ...]: ...

    def load(self, fixture: Mapping[str, Any]) -> None:
        """Replace everything by a fixture's; a lease that was live when it was dumped is live now, for as long as it was then."""
        ...


def rows_of(url: str) -> Rows:
    return MongoRows(url) if url.startswith("mongodb") else PostgresRows(url)


class PostgresRows:
    def __init__(self, url: str) -> None:
        self._url = url

    def expire_lease(self, agent: str, *, in_s: float = -1) -> None:
        with postgres.connect(self._url) as connection:
            moved = connection.execute(
                "UPDATE recall.recall_leases SET expires_at = clock_timestamp() + make_interval(secs => %s) WHERE name = %s",
                [in_s, agent],
            )
            assert moved.rowcount == 1

    def forget_leases(self) -> None:
        with postgres.connect(self._url) as connection:
            connection.execute("DELETE FROM recall.recall_leases")

    def records(self, agent: str) -> dict[str, dict[str, Any]]:
        with postgres.connect(self._url) as connection:
            rows = connection.execute(
                f"SELECT id, metadata FROM recall.{COLLECTION} WHERE metadata->>'recall_agent' = %s ORDER BY id", [agent]
            )
            return dict(rows.fetchall())

    def lease(self, agent: str) -> tuple[str, int, bool, bool]:
        with postgres.connect(self._url) as connection:
            row = connection.execute(
                "SELECT holder, epoch, expires_at > clock_timestamp(), expires_at = to_timestamp(0) "
                "FROM recall.recall_leases WHERE name = %s",
                [agent],
            ).fetchone()
        assert row is not None
        holder, epoch, live, released = row
        return holder, epoch, live, released

    def revision(self) -> int:
        with postgres.connect(self._url) as connection:
            row = connection.execute("SELECT revision FROM recall.recall_collections WHERE name = %s", [COLLECTION]).fetchone()
        return int(row[0]) if row else 0

    def delete(self, record_id: str) -> None:
        with postgres.connect(self._url) as connection:
            gone = connection.execute(f"DELETE FROM recall.{COLLECTION} WHERE id = %s", [record_id])
            assert gone.rowcount == 1

    def vector(self, record_id: str) -> tuple[float, ...]:
        with postgres.connect(self._url) as connection:
            row = connection.execute(f"SELECT embedding::text FROM recall.{COLLECTION} WHERE id = %s", [record_id]).fetchone()
        assert row is not None
        return tuple(json.loads(row[0]))

    def load(self, fixture: Mapping[str, Any]) -> None:
        dumped_at = datetime.fromisoformat(fixture["dumped_at"])
        with postgres.connect(self._url) as connection, connection.transaction():
            connection.execute(f"TRUNCATE recall.{COLLECTION}, recall.recall_leases")
            for row in fixture["tables"][COLLECTION]:
                connection.execute(
                    f"INSERT INTO recall.{COLLECTION} (id, embedding, metadata) VALUES (%s, array_fill(0, ARRAY[256])::vector, %s)",
                    [row["id"], Jsonb(row["metadata"])],
                )
            for lease in fixture["recall_leases"]:
                expires_at = datetime.fromisoformat(lease["expires_at"])
                connection.execute(
                    "INSERT INTO recall.recall_leases (collection, name, holder, epoch, expires_at) VALUES (%s, %s, %s, %s, "
                    "CASE WHEN %s THEN to_timestamp(0) ELSE clock_timestamp() + %s END)",
                    [
                        lease["collection"],
                        lease["name"],
                        lease["holder"],
                        lease["epoch"],
                        expires_at.timestamp() == 0,
                        expires_at - dumped_at,
                    ],
                )


class MongoRows:
    def __init__(self, url: str) -> None:
        self._url = url

    @contextmanager
    def connected(self) -> Iterator[Database[dict[str, Any]]]:
        client: MongoClient[dict[str, Any]] = MongoClient(self._url, tz_aware=True)
        with client:
            yield client.get_default_database()

    def expire_lease(self, agent: str, *, in_s: float = -1) -> None:
        with self.connected() as db:
            ends = [{"$set": {"expires_at": {"$add": ["$$NOW", Int64(in_s * 1000)]}}}]
            assert db.recall_leases.update_one({"_id": lease_id(agent)}, ends).modified_count == 1

    def forget_leases(self) -> None:
        with self.connected() as db:
            db.recall_leases.delete_many({})

    def records(self, agent: str) -> dict[str, dict[str, Any]]:
        """By `m`, once `md` says the same in Recall's own types: every number a double, sorted by key."""
        with self.connected() as db:
            found = {}
            of_agent = {"md": {"$elemMatch": {"k": "recall_agent", "v": agent}}}
            for document in db[f"rc_{COLLECTION}"].find(of_agent).sort("_id", 1):
                metadata = json.loads(document["m"])
                doubles = {k: float(v) if type(v) in (int, float) else v for k, v in metadata.items()}
                assert [(entry["k"], entry["v"], type(entry["v"])) for entry in document["md"]] == [
                    (key, doubles[key], type(doubles[key])) for key in sorted(doubles)
                ]
                found[document["_id"]] = metadata
            return found

    def lease(self, agent: str) -> tuple[str, int, bool, bool]:
        with self.connected() as db:
            stages = [{"$match": {"_id": lease_id(agent)}}, {"$addFields": {"now": "$$NOW"}}]
            (lease,) = db.recall_leases.aggregate(stages)
        assert type(lease["epoch"]) is Int64
        assert type(lease["fenced_writes"]) is Int64
        live, released = lease["expires_at"] > lease["now"], lease["expires_at"] == RELEASED
        return lease["holder"], int(lease["epoch"]), live, released

    def revision(self) -> int:
        with self.connected() as db:
            document = db.recall_collections.find_one({"_id": COLLECTION})
        if document is None:
            return 0
        assert (type(document["revision"]), type(document["dim"])) == (Int64, int)
        return int(document["revision"])

    def delete(self, record_id: str) -> None:
        with self.connected() as db:
            assert db[f"rc_{COLLECTION}"].delete_one({"_id": record_id}).deleted_count == 1

    def vector(self, record_id: str) -> tuple[float, ...]:
        with self.connected() as db:
            document = db[f"rc_{COLLECTION}"].find_one({"_id": record_id})
        assert document is not None
        assert {type(number) for number in (*document["v"], document["norm"])} == {float}
        assert document["text"] == ""
        return tuple(document["v"])

    def load(self, fixture: Mapping[str, Any]) -> None:
        dumped_at = datetime.fromisoformat(fixture["dumped_at"])
        with self.connected() as db:
            for name in (f"rc_{COLLECTION}", "recall_leases"):
                db[name].delete_many({})
            db[f"rc_{COLLECTION}"].insert_many(
                [{**document, "v": [0.0] * 256} for document in fixture["collections"][f"rc_{COLLECTION}"]]
            )
            for lease in fixture["collections"]["recall_leases"]:
                expires_at = lease["expires_at"].replace(tzinfo=UTC)
                left = Int64((expires_at - dumped_at) // timedelta(milliseconds=1))
                expires = RELEASED if expires_at == RELEASED else {"$add": ["$$NOW", left]}
                fields = {name: {"$literal": value} for name, value in lease.items() if name not in ("_id", "expires_at")}
                db.recall_leases.update_one({"_id": lease["_id"]}, [{"$set": {**fields, "expires_at": expires}}], upsert=True)


def lease_id(agent: str) -> str:
    return f"{len(COLLECTION)}:{COLLECTION}/{agent}"
