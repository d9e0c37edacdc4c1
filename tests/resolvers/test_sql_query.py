"""Which texts are one SELECT with named parameters, and what becomes of them."""

from __future__ import annotations

import pytest

from actions.resolvers.base import InvalidDefinition
from actions.resolvers.sql_query import read_query

READ = [
    ("SELECT id FROM p WHERE key = :key", "SELECT id FROM p WHERE key = $1", ("key",)),
    ("select :key, :recipient, :key", "select $1, $2, $1", ("key", "recipient")),
    ("SELECT :key::text, x::int", "SELECT $1::text, x::int", ("key",)),
    ("SELECT ':recipient', 'it''s :amount' WHERE k = :key", "SELECT ':recipient', 'it''s :amount' WHERE k = $1", ("key",)),
    (r"SELECT E'\':amount', e'\\' WHERE k = :key", r"SELECT E'\':amount', e'\\' WHERE k = $1", ("key",)),
    (r"SELECT '\' WHERE k = :key", r"SELECT '\' WHERE k = $1", ("key",)),
    ('SELECT ":amount", "a""b:seq" WHERE k = :key', 'SELECT ":amount", "a""b:seq" WHERE k = $1', ("key",)),
    ("SELECT $$ :amount; $$, $t$ $$ :seq $t$ WHERE k = :key", "SELECT $$ :amount; $$, $t$ $$ :seq $t$ WHERE k = $1", ("key",)),
    ("SELECT 1 -- :amount; '\nWHERE k = :key", "SELECT 1  WHERE k = $1", ("key",)),
    ("SELECT 1 /* ; ' :amount /* nested */ */ WHERE k = :key -- end", "SELECT 1   WHERE k = $1", ("key",)),
    ("WITH a AS (SELECT 1) SELECT 2 FROM a WHERE k = :key;", "WITH a AS (SELECT 1) SELECT 2 FROM a WHERE k = $1", ("key",)),
    ("SELECT :key ; -- done", "SELECT $1", ("key",)),
    ("SELECT a LIKE '%x%', b % 2 WHERE k = :key", "SELECT a LIKE '%x%', b % 2 WHERE k = $1", ("key",)),
    ("SELECT \"update\", insert_date, j #>> '{into}' FROM t WHERE k = :key", None, ("key",)),
    ("SELECT substring(a FROM 1 FOR 3) WHERE k = :key", None, ("key",)),
    ("SELECT a$1b WHERE k = :key", "SELECT a$1b WHERE k = $1", ("key",)),
    ("SELECT U&'d\\0061ta', x'1F' WHERE k=:key", "SELECT U&'d\\0061ta', x'1F' WHERE k=$1", ("key",)),
]


@pytest.mark.parametrize(("text", "sql", "parameters"), READ)
def test_names_become_numbers_outside_of_texts_names_and_comments(
    text: str, sql: str | None, parameters: tuple[str, ...]
) -> None:
    query = read_query(text)

    assert " ".join(query.sql.split()) == " ".join((sql or text.replace(":key", "$1")).split())
    assert query.parameters == parameters


REFUSED = [
    ("SELECT 1", "does not ask for :key"),
    ("SELECT ':key'", "does not ask for :key"),
    ("SELECT 1 -- :key", "does not ask for :key"),
    ("SELECT :key; SELECT 2", "several statements"),
    ("SELECT :key; DROP TABLE p", "several statements"),
    ("SELECT :key;;", "several statements"),
    ("SELECT :key /* */; /* */ x", "several statements"),
    ("", "is no SELECT"),
    ("-- :key", "is no SELECT"),
    ("VALUES (:key)", "is no SELECT"),
    ("TABLE p", "is no SELECT"),
    ("EXPLAIN ANALYZE SELECT :key", "is no SELECT"),
    ("DO $$ :key $$", "is no SELECT"),
    ("CALL pay(:key)", "is no SELECT"),
    ("COPY p TO PROGRAM ':key'", "is no SELECT"),
    ("UPDATE p SET a = 1 WHERE key = :key", "is no SELECT"),
    ("/* SELECT */ DELETE FROM p WHERE key = :key", "is no SELECT"),
    ("WITH a AS (DELETE FROM p WHERE key = :key RETURNING 1) SELECT 1", "DELETE"),
    ("WITH a AS (insert INTO p VALUES (:key) RETURNING 1) SELECT 1", "INSERT"),
    ("WITH a AS (MERGE INTO p USING q ON :key WHEN MATCHED THEN DELETE) SELECT 1", "MERGE"),
    ("SELECT :key INTO t FROM p", "INTO"),
    ("SELECT 1 FROM p WHERE key = :key FOR UPDATE", "UPDATE"),
    ("SELECT 1 FROM p WHERE key = :key FOR NO KEY UPDATE", "UPDATE"),
    ("SELECT 1 FROM p WHERE key = :key FOR /* */ SHARE", "locks rows"),
    ("SELECT 1 FROM p WHERE key = :key for key share", "locks rows"),
    ("SELECT :key, :password", ":password"),
    ("SELECT :KEY", ":KEY"),
    ("SELECT :key, a[1:n]", ":n"),
    ("SELECT :key, $1", "$1"),
    ("SELECT :key, 'unfinished", "quotation mark"),
    ("SELECT :key, E'unfinished\\'", "quotation mark"),
    ('SELECT :key, "unfinished', "quotation mark"),
    ("SELECT :key, $a$ unfinished $b$", "$a$"),
    ("SELECT :key /* unfinished /* */", "comment"),
    ("SELECT (:key", "bracket"),
    ("SELECT :key) AS t, (SELECT 1", "bracket"),
]


@pytest.mark.parametrize(("text", "why"), REFUSED)
def test_whatever_is_not_one_select_that_asks_for_the_key_is_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidDefinition) as refused:
        read_query(text)

    assert refused.value.field == "query"
    assert why in refused.value.problem
