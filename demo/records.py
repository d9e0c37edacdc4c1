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
        return frozenset(name for (name,) in rows)


def calls(url: str) -> list[Call]:
    """Every recorded call, ordered by record id; records that cannot be read are left out."""
    with psycopg.connect(url) as connection:
        found = table(connection)
        if found is None:
            return []
        query = sql.SQL("SELECT metadata->>'recall_agent', metadata->>'body' FROM {} WHERE metadata @> %s ORDER BY id")
        rows = connection.execute(query.format(found), ['{"record": "action"}']).fetchall()
    return [call for agent, body in rows if (call := _call(agent, body))]


def _call(agent: str, body: str) -> Call | None:
    try:
        read = json.loads(body)
        return Call(agent=agent, tool=read["tool"], action_class=read["class"], status=read["status"], key=read["key"])
    except (ValueError, KeyError, TypeError):
        return None


def table(connection: psycopg.Connection) -> sql.Identifier | None:
    """The records' table, by Recall's own registry."""
    (registry,) = connection.execute("SELECT to_regclass('recall.recall_collections')").fetchone() or (None,)
    if registry is None:
        return None
    row = connection.execute("SELECT tbl FROM recall.recall_collections WHERE name = %s", [COLLECTION]).fetchone()
    return sql.Identifier("recall", row[0]) if row else None
