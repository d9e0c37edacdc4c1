"""The statements of queries.sql by name, with the quoted names of a store's tables filled in."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from psycopg import sql


@cache
def _statements() -> Mapping[str, str]:
    text = files("actions.store").joinpath("queries.sql").read_text(encoding="utf-8")
    parts = (part.partition("\n") for part in text.split("-- name: ")[1:])
    return {name.strip(): _without_comments(statement) for name, _, statement in parts}


def _without_comments(statement: str) -> str:
    return "\n".join(line for line in statement.splitlines() if line.strip() and not line.lstrip().startswith("--"))


def compose(statement: str, schema: str, records: str | None, **parts: sql.Composable) -> str:
    names = {
        "collections": sql.Identifier(schema, "recall_collections"),
        "leases": sql.Identifier(schema, "recall_leases"),
        "entries": sql.Identifier("settle_audit", "entries"),
        "heads": sql.Identifier("settle_audit", "heads"),
        "records": sql.Identifier(schema, records or "recall_has_no_records_yet"),
    }
    return sql.SQL(_statements()[statement]).format(**names, **parts).as_string(None)
