"""How many statements, and that none of them reads the whole table: with Recall's own index, with ours, and after a lot of history."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from os import SEEK_END
from pathlib import Path
from typing import Any

import psycopg
import pytest

from actions.queries import ActionFilter, list_actions
from actions.records import ActionRef, ActionStatus, NewEntry, NewTurn
from actions.store.postgres import PostgresStore
from actions.store.postgres_connection import Connection as PostgresConnection
from agents.harness import DurableAgent
from tests.recall_writer import RecallWriter
from tests.store.gestures import an_end, decide

Statements = list[tuple[str, Any]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Statements:
    """What psycopg was asked to execute."""
    statements: Statements = []
    execute = psycopg.Cursor.execute

    def noted(self: psycopg.Cursor[Any], query: Any, params: Any = None, **kwargs: Any) -> psycopg.Cursor[Any]:
        statements.append((query if isinstance(query, str) else query.as_string(None), params))
        return execute(self, query, params, **kwargs)

    monkeypatch.setattr(psycopg.Cursor, "execute", noted)
    return statements


class Wire:
    """What the driver and the server say to each other on every connection that is opened from now on."""

    def __init__(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._out = file.open("w+")
        self.opened: list[PostgresConnection] = []
        self.ready: list[str] = []  # how the transaction stood each time that the server was ready for more
        connect = PostgresConnection.connect

        def traced(*args: Any, **kwargs: Any) -> PostgresConnection:
            self.opened.append(connect(*args, **kwargs))
            return self.opened[-1]

        monkeypatch.setattr(PostgresConnection, "connect", traced)

    def of(self, work: Callable[[], object]) -> list[str]:
        """The kinds of messages that were sent for this piece of work, in their order."""
        began = self._out.seek(0, SEEK_END)
        for connection in self.opened:
            connection.pgconn.trace(self._out.fileno())
        work()
        for connection in self.opened:
            connection.pgconn.untrace()  # which writes out what was traced
        self._out.seek(began)
        told = [line.split("\t") for line in self._out.read().splitlines()]
        self.ready = [fields[4] for fields in told if fields[3] == "ReadyForQuery"]
        return [fields[3] for fields in told if fields[1] == "F"]

    def close(self) -> None:
        self._out.close()


@pytest.fixture
def wire(pg: tuple[PostgresStore, RecallWriter], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    """Listens to the store of the test, whose connections are opened anew."""
    pg[0].close()
    with closing(Wire(tmp_path / "wire", monkeypatch)) as listening:
        yield listening


def work_of(statements: Statements) -> list[str]:
    return [text for text, _ in statements if not text.startswith(("BEGIN", "SET", "COMMIT", "ROLLBACK"))]


def test_a_settle_is_six_statements(pg: tuple[PostgresStore, RecallWriter], asked: Statements) -> None:
    store, recall = pg
    refs = [recall.action("a", seq, args="x" * 9000) for seq in (1, 2)]
    decide(store, refs[0])
    asked.clear()

    decide(store, refs[1], an_end(result="y" * 9000))

    assert len(work_of(asked)) == 6
    assert len(asked) == 8


def test_the_first_settle_of_a_process_is_eight(pg: tuple[PostgresStore, RecallWriter], asked: Statements) -> None:
    store, recall = pg
    ref = recall.action("a", 1)
    asked.clear()

    decide(store, ref)

    assert len(work_of(asked)) == 8


def test_the_lease_is_taken_in_a_statement_of_its_own_before_the_newest_turn_is_read(
    pg: tuple[PostgresStore, RecallWriter], asked: Statements
) -> None:
    store, recall = pg
    decide(store, recall.action("a", 1))

    texts = work_of(asked)
    (lease,) = (place for place, text in enumerate(texts) if "l.epoch + 1" in text)
    (turn,) = (place for place, text in enumerate(texts) if ":turn:" in text)
    assert lease < turn


def test_a_settle_is_four_round_trips_and_one_commit(
    pg: tuple[PostgresStore, RecallWriter], asked: Statements, wire: Wire
) -> None:
    """The look; lease, records and head; what is written; COMMIT. The driver waits after each Sync or Flush; whether it sends one more after
    that, for an answer that is on its way already, depends on which comes first."""
    store, recall = pg
    refs = [recall.action("a", seq, args="x" * 9000) for seq in range(1, 9)]
    for ref in refs[:7]:
        decide(store, ref)  # from the sixth on its statements are prepared
    asked.clear()

    sent = wire.of(lambda: decide(store, refs[7], an_end(result="y" * 9000)))

    assert [text.split()[0] for text, _ in asked].count("BEGIN") == 1
    waited = [kind for kind in sent if kind in ("Sync", "Flush")]
    assert waited[:4] == ["Sync", "Flush", "Flush", "Sync"]
    assert waited[4:] in ([], ["Flush"])
    assert sent.count("Execute") == len(asked) == 8
    assert "Query" not in sent


def test_begin_and_end_are_one_round_trip_and_one_commit_each_whatever_they_carry(
    pg: tuple[PostgresStore, RecallWriter], asked: Statements, wire: Wire
) -> None:
    """Counted on the wire: what the driver sends by itself is seen too."""
    store, _ = pg

    def work(size: int) -> None:
        action = agent.begin_action("send_email", {"body": "x" * size}, "external")
        agent.end_action(action, "done", result="y" * size, turn=NewTurn("tool", "sent"))

    with DurableAgent.resume(store, "a") as agent:
        for size in (10, 9000):
            work(size)
        asked.clear()

        sent = wire.of(lambda: [work(10), work(9000)])

        assert len(wire.opened) == 1
        assert [text.split()[0] for text, _ in asked] == ["WITH"] * 4
        assert sent == ["Bind", "Describe", "Execute", "Sync"] * 4
        assert wire.ready == [" I"] * 4
        assert [(each.seq, each.status) for each in agent.recent_actions()] == [(seq, ActionStatus.DONE) for seq in range(1, 5)]
        assert [turn.seq for turn in agent.recent_turns()] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("read", "count"),
    [
        (lambda store: store.read_watch(), 1),
        (lambda store: store.read_actions([ActionStatus.STARTED], limit=50), 1),
        (lambda store: store.read_outputs([("a", "act-1-args"), ("a", "act-2-args")]), 1),
        (lambda store: store.get_action("a", 1), 1),
        (lambda store: store.find_lease("a"), 1),
        (lambda store: store.list_turns("a", limit=50), 1),
        (lambda store: store.list_agent_actions("a", limit=50), 1),
        (lambda store: store.list_pointers("a"), 1),
        (lambda store: store.find_working_state("a"), 1),
        (lambda store: store.list_entries(limit=50), 1),
        (lambda store: store.read_head(), 1),
        (lambda store: store.find_settled_entry("decision-1"), 1),
        (lambda store: store.append_entry(NewEntry(kind="refused", actor="operator ana")), 2),
        (lambda store: list_actions([store], ActionFilter(), limit=50), 2),
    ],
)
def test_a_read_is_one_round_trip(
    pg: tuple[PostgresStore, RecallWriter], asked: Statements, read: Callable[[PostgresStore], object], count: int
) -> None:
    store, recall = pg
    recall.action("a", 1, args="x" * 9000)
    store.read_watch()
    asked.clear()

    read(store)

    assert len(work_of(asked)) == count


def test_a_store_that_is_not_prepared_is_watched_in_one_round_trip_too(pg_url: str, asked: Statements) -> None:
    with RecallWriter(pg_url) as recall:
        recall.create()
    store = PostgresStore(pg_url)
    store.read_watch()
    asked.clear()
    store.read_watch()
    assert len(asked) == 1

    store.prepare()
    store.append_entry(NewEntry(kind="refused", actor="operator ana"))
    assert store.read_watch().entries == 1
    store.close()


def test_a_store_that_another_process_prepared_is_noticed_by_watching(pg_url: str) -> None:
    with RecallWriter(pg_url) as recall:
        recall.create()
    store, other = PostgresStore(pg_url), PostgresStore(pg_url)
    assert store.read_watch().entries == 0
    other.prepare()
    other.append_entry(NewEntry(kind="refused", actor="operator ana"))

    store.read_watch()

    assert store.read_watch().entries == 1
    store.close()
    other.close()


# --- plans -------------------------------------------------------------------------------------------------------------

ACTIONS, OPEN_EVERY, TURNS = 12_000, 100, 6_000


@pytest.fixture(scope="module")
def history(records_url: str) -> Iterator[tuple[PostgresStore, RecallWriter]]:
    """Thousands of actions of hundreds of agents, each begun as `started` and then closed: dead index entries included."""
    url = f"{records_url}?collection=history"
    store = PostgresStore(url)
    with RecallWriter(url) as recall:
        recall.create()
        recall.run("ALTER TABLE {records} SET (autovacuum_enabled = off)")
        recall.run(
            """INSERT INTO {records} (id, embedding, metadata)
            SELECT 'agent-' || n %% 400 || ':act:' || n / 400 + 1, array_fill(0::real, ARRAY[256]),
                jsonb_build_object('recall_agent', 'agent-' || n %% 400, 'record', 'action', 'status', 'started', 'act', (n / 400 + 1)::text,
                    'seq', n / 400 + 1, 'page', '0', 'class', 'external', 'epoch', 1,
                    'body', '{{"seq":' || n / 400 + 1 || ',"tool":"send_email","class":"external","args":"{{}}","key":"k","status":"started",'
                        || '"epoch":1,"started_at":"2026-11-29T18:29:06Z"}}')
            FROM generate_series(0, %s - 1) AS n""",
            [ACTIONS],
        )
        recall.run(
            """INSERT INTO {records} (id, embedding, metadata)
            SELECT 'agent-' || n %% 400 || ':turn:' || n / 400 + 1, array_fill(0::real, ARRAY[256]),
                jsonb_build_object('recall_agent', 'agent-' || n %% 400, 'record', 'turn', 'seq', n / 400 + 1, 'page', '0', 'epoch', 1,
                    'body', '{{"seq":' || n / 400 + 1 || ',"role":"user","content":"hello","at":"2026-11-29T18:29:06Z"}}')
            FROM generate_series(0, %s - 1) AS n""",
            [TURNS],
        )
        recall.run(
            "INSERT INTO {leases} SELECT %s, 'agent-' || n, 'pod', 1, now() FROM generate_series(0, 399) AS n",
            [recall.collection],
        )
        recall.run(
            """UPDATE {records} SET metadata = metadata || jsonb_build_object('status', 'done',
                'body', replace(metadata->>'body', '"started"', '"done"'))
            WHERE metadata->>'record' = 'action' AND hashtext(id) %% %s <> 0""",
            [OPEN_EVERY],
        )
        recall.run("ANALYZE {records}")
        recall.run("ANALYZE {leases}")
        yield store, recall
    store.close()


def plan_of(recall: RecallWriter, statement: tuple[str, Any]) -> str:
    text, params = statement
    with psycopg.connect(recall.url) as connection:
        (plan,) = connection.execute(f"EXPLAIN (FORMAT JSON) {text}", params).fetchone() or ("",)
    return json.dumps(plan)


def scans_of_records(recall: RecallWriter, plan: str) -> list[str]:
    """How each node of the plan that reads the records table or one of its indexes does it."""
    found: list[str] = []

    def walk(node: dict[str, Any]) -> None:
        if node.get("Relation Name") == recall.table or str(node.get("Index Name", "")).startswith(recall.table):
            found.append(f"{node['Node Type']} {node.get('Index Name', '')}".strip())
        for child in node.get("Plans", []):
            walk(child)

    walk(json.loads(plan)[0]["Plan"])
    return found


READS: dict[str, Callable[[PostgresStore], object]] = {
    "open actions": lambda store: store.read_actions([ActionStatus.STARTED, ActionStatus.UNKNOWN], limit=20_000),
    "started actions": lambda store: store.read_actions([ActionStatus.STARTED], limit=20_000),
    "one agent's open actions": lambda store: store.read_actions([ActionStatus.STARTED], limit=20_000, agent="agent-7"),
    "one action": lambda store: store.get_action("agent-7", 1),
    "one agent's actions": lambda store: store.list_agent_actions("agent-7", limit=50),
    "one agent's turns": lambda store: store.list_turns("agent-7", limit=50),
    "one agent's pointers": lambda store: store.list_pointers("agent-7"),
    "outputs": lambda store: store.read_outputs([("agent-7", "act-1-args"), ("agent-8", "act-1-args")]),
    "a working state": lambda store: store.find_working_state("agent-7"),
}


@pytest.mark.parametrize("what", READS)
def test_no_read_scans_the_records(history: tuple[PostgresStore, RecallWriter], asked: Statements, what: str) -> None:
    store, recall = history
    store.read_watch()
    asked.clear()

    READS[what](store)

    (statement,) = asked
    scans = scans_of_records(recall, plan_of(recall, statement))
    assert scans
    assert not [scan for scan in scans if scan.startswith("Seq Scan")], scans


def test_no_statement_of_a_settle_scans_the_records(history: tuple[PostgresStore, RecallWriter], asked: Statements) -> None:
    store, recall = history
    first, second = store.read_actions([ActionStatus.STARTED], limit=2).readings
    decide(store, ActionRef("main", first.action.agent, first.action.seq or 0))
    asked.clear()

    decide(store, ActionRef("main", second.action.agent, second.action.seq or 0))

    for statement in list(asked):
        if statement[0].startswith(("BEGIN", "COMMIT")):
            continue
        scans = scans_of_records(recall, plan_of(recall, statement))
        assert not [scan for scan in scans if scan.startswith("Seq Scan")], (statement, scans)


def test_open_actions_are_found_by_recalls_own_index_and_by_ours_where_it_is(
    history: tuple[PostgresStore, RecallWriter], asked: Statements
) -> None:
    store, recall = history
    store.read_watch()

    def scans() -> list[str]:
        asked.clear()
        READS["open actions"](store)
        return scans_of_records(recall, plan_of(recall, asked[-1]))

    expected = len(recall.run("SELECT 1 FROM {records} WHERE metadata->>'status' IN ('started', 'unknown')"))
    assert f"Bitmap Index Scan {recall.table}_metadata" in scans()
    assert len(store.read_actions([ActionStatus.STARTED, ActionStatus.UNKNOWN], limit=20_000).readings) == expected

    store.prepare(index=True)

    assert any(f"{recall.table}_settle_open" in scan for scan in scans())
    assert not [scan for scan in scans() if scan.startswith("Seq Scan") or f"{recall.table}_metadata" in scan]
    assert len(store.read_actions([ActionStatus.STARTED, ActionStatus.UNKNOWN], limit=20_000).readings) == expected
    for suffix in ("open", "turns"):
        recall.run(f"DROP INDEX {{schema}}.{recall.table}_settle_{suffix}")


LONG = 3_000


def test_the_newest_turns_of_a_long_history_are_read_without_the_others_once_our_index_is_there(
    history: tuple[PostgresStore, RecallWriter], asked: Statements
) -> None:
    store, recall = history
    recall.run(
        """INSERT INTO {records} (id, embedding, metadata)
        SELECT 'talker:turn:' || n, array_fill(0::real, ARRAY[256]),
            jsonb_build_object('recall_agent', 'talker', 'record', 'turn', 'seq', n, 'page', '0', 'epoch', 1,
                'body', '{{"seq":' || n || ',"role":"user","content":"hello","at":"2026-11-29T18:29:06Z"}}')
        FROM generate_series(1, %s) AS n""",
        [LONG],
    )
    ref = recall.action("talker", 1)
    store.prepare(index=True)
    recall.run("ANALYZE {records}")
    asked.clear()

    settled = decide(store, ref)
    turns = store.list_turns("talker", limit=20)
    older = store.list_turns("talker", limit=20, before=LONG // 2)
    store.load_agent("talker")

    assert settled.turn_seq == LONG + 1
    assert [turn.seq for turn in turns] == list(range(LONG + 1, LONG - 19, -1))
    assert [turn.seq for turn in older] == list(range(LONG // 2 - 1, LONG // 2 - 21, -1))
    assert store.list_turns("talker", limit=1, before=10**30)[0].seq == LONG + 1
    about_turns = [statement for statement in asked if ":turn:" in statement[0]]
    *about_turns, _ = about_turns  # the look beyond all numbers
    assert len(about_turns) == 4
    for statement in about_turns:
        plan = plan_of(recall, statement)
        assert f"{recall.table}_settle_turns" in plan, plan
        assert not [scan for scan in scans_of_records(recall, plan) if scan.startswith("Seq Scan")], plan
    lock, listing, from_the_middle, _ = about_turns
    for statement in (lock, listing, from_the_middle):
        assert f"{recall.table}_metadata" not in plan_of(recall, statement), statement[0]
    assert re.search(r'"Index Cond": "(?:[^"\\]|\\.)* < ', plan_of(recall, from_the_middle)), plan_of(recall, from_the_middle)
    for suffix in ("open", "turns"):
        recall.run(f"DROP INDEX {{schema}}.{recall.table}_settle_{suffix}")
