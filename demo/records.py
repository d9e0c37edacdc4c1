"""What the demo itself reads in Recall's tables: which agents there are and which calls they recorded."""

from __future__ import annotations

import json
from dataclasses import dataclass

import psycopg
from psycopg import sql

COLLECTION = "recall_lexical_v1_agents"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One recorded call."""

    agent: str
    tool: str
    action_class: str
    status: str
    key: str

    @property
    def is_open(self) -> bool:
        return self.status in ("started", "unknown")


def is_there(url: str) -> bool:
    """Whether Recall has made the table that agents write to."""
    with psycopg.connect(url) as connection:
        return table(connection) is not None


def agents(url: str) -> frozenset[str]:
    """Every agent that ever had a lease; none while Recall has not made its tables."""
    with psycopg.connect(url) as connection:
        if table(connection) is None:
            return frozenset()
        rows = connection.execute("SELECT name FROM recall.recall_leases WHERE collection = %s", [COLLECTION])
        return frozenset(name for (name,) in rows if name)


def calls(url: str) -> list[Call]:
    """Every recorded call, ordered by record id; records that cannot be read are left out."""
    with psycopg.connect(url) as connection:
        found = table(connection)
        if found is None:
            return []
        query = sql.SQL("SELECT metadata->>'recall_agent', metadata->>'body' FROM {} WHERE metadata @> %s ORDER BY id")
        rows = connection.execute(query.format(found), ['{"record": "action"}']).fetchall()
    return [call for agent, body in rows if (call := _call(agent, body))]


def _call(agent: object, body: object) -> Call | None:
    """None where it cannot be read: what is wrong with it, the console shows; the demo has no business with it."""
    try:
        read = json.loads(body) if isinstance(body, str) else {}
        said = [agent, *(read[name] for name in ("tool", "class", "status", "key"))]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not all(isinstance(text, str) for text in said):
        return None
    return Call(agent=said[0], tool=said[1], action_class=said[2], status=said[3], key=said[4])


def table(connection: psycopg.Connection) -> sql.Identifier | None:
    """The records' table, by Recall's own registry."""
    (registry,) = connection.execute("SELECT to_regclass('recall.recall_collections')").fetchone() or (None,)
    if registry is None:
        return None
    row = connection.execute("SELECT tbl FROM recall.recall_collections WHERE name = %s", [COLLECTION]).fetchone()
    return sql.Identifier("recall", row[0]) if row else None
