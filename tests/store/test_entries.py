"""The audit chain: who decided what, in one order, and no change goes unnoticed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import pytest

from actions.digests import canonical_json
from actions.errors import StoreReadOnly, StoreUnusable, WriteConflict
from actions.records import ActionStatus, ChainHead, Entry, Link, NewEntry
from actions.store.audit import GENESIS, Anchor, link_hash, verify_chain
from actions.store.base import ActionStore
from actions.store.checkpoints import proven_by, public_key, sign_tombstone
from actions.store.memory import MemoryStore
from actions.store.postgres import PostgresStore
from local.postgres import Postgres
from tests.recall_writer import RecallWriter, RecordWriter
from tests.store.conftest import fenced
from tests.store.gestures import an_end, decide, verify
from tests.store.memory_writer import MemoryWriter
from tests.unit.test_checkpoints import SEED

FULL = NewEntry(
    kind="proposed",
    actor="operator ana",
    agent="billing-7",
    seq=3,
    tool="create_payment",
    decision_id="decision-1",
    outcome="done",
    reason="in the ledger",
    evidence_id="verdict-9",
    content_digest="abc",
    detail={"amount": 42, "nested": {"list": [1, None, True, "x"]}},
)


def append(store: ActionStore, count: int) -> list[Entry]:
    return [
        store.append_entry(NewEntry(kind="observed", actor="system watcher", agent="a", seq=number))
        for number in range(1, count + 1)
    ]


@fenced
def test_an_entry_is_given_number_time_and_predecessor(store: ActionStore) -> None:
    earliest = store.read_watch().read_at

    entry = store.append_entry(FULL)

    assert (entry.number, entry.prev) == (1, GENESIS)
    assert earliest <= entry.at <= store.read_watch().read_at
    kept = set(FULL.__slots__) - {"redacted"}  # what was to be hidden is hidden by then
    assert {name: getattr(entry, name) for name in kept} == {name: getattr(FULL, name) for name in kept}
    assert entry.hash == link_hash(GENESIS, entry.text)
    assert json.loads(entry.text)["number"] == 1
    assert store.list_entries(limit=5) == (entry,)


def test_entries_are_numbered_without_a_gap_and_each_follows_its_predecessor(store: ActionStore) -> None:
    one, two, three = append(store, 3)

    assert [one.number, two.number, three.number] == [1, 2, 3]
    assert (two.prev, three.prev) == (one.hash, two.hash)
    assert (store.read_head().number, store.read_head().hash) == (3, three.hash)


def test_an_empty_chain_has_a_head_of_nothing(store: ActionStore) -> None:
    head = store.read_head()

    assert (head.number, head.hash) == (0, GENESIS)
    assert list(store.iterate_links()) == []
    assert store.list_entries(limit=5) == ()
    assert verify(store).is_intact


def test_entries_come_newest_first_and_by_page(store: ActionStore) -> None:
    append(store, 5)

    assert [entry.number for entry in store.list_entries(limit=2)] == [5, 4]
    assert [entry.number for entry in store.list_entries(limit=9, before=4)] == [3, 2, 1]
    assert store.list_entries(limit=9, before=1) == ()


def test_entries_of_one_agent_or_one_action(store: ActionStore) -> None:
    append(store, 3)
    store.append_entry(NewEntry(kind="observed", actor="system watcher", agent="b", seq=2))
    store.append_entry(NewEntry(kind="revealed", actor="operator ana"))

    assert [entry.number for entry in store.list_entries(limit=9, agent="a")] == [3, 2, 1]
    assert [entry.number for entry in store.list_entries(limit=9, agent="a", seq=2)] == [2]
    assert [entry.number for entry in store.list_entries(limit=9, agent="a", before=3)] == [2, 1]
    assert store.list_entries(limit=9, agent="a", seq=10**30) == ()
    assert store.list_entries(limit=9, agent="a\x00") == ()


def test_entries_of_some_kinds(store: ActionStore) -> None:
    append(store, 2)
    store.append_entry(FULL)
    store.append_entry(NewEntry(kind="revealed", actor="operator ana", agent="a"))

    assert [entry.number for entry in store.list_entries(limit=9, kinds=("proposed", "revealed"))] == [4, 3]
    assert [entry.number for entry in store.list_entries(limit=1, agent="a", kinds={"observed"})] == [2]
    assert store.list_entries(limit=9, kinds=()) == ()


def test_links_are_streamed_oldest_first(store: ActionStore) -> None:
    entries = append(store, 4)

    assert list(store.iterate_links()) == [Link(e.number, e.text, e.prev, e.hash) for e in entries]
    assert [link.number for link in store.iterate_links(after=2)] == [3, 4]
    assert list(store.iterate_links(after=4)) == []


def test_a_settled_entry_is_found_by_its_decision_id_and_others_are_not(store: ActionStore, recall: RecordWriter) -> None:
    ref = recall.action("a", 1)
    store.append_entry(NewEntry(kind="proposed", actor="operator ana", decision_id="decision-7"))

    assert store.find_settled_entry("decision-7") is None
    settled = decide(store, ref, decision_id="decision-7")

    assert store.find_settled_entry("decision-7") == settled.entry
    for unknown in ("", "decision-8", "x\x00", "\ud800"):
        assert store.find_settled_entry(unknown) is None


@fenced
def test_a_decision_may_have_many_entries_beside_its_settled_one(store: ActionStore, recall: RecordWriter) -> None:
    ref = recall.action("a", 1)
    for kind in ("proposed", "held", "waiting"):
        store.append_entry(NewEntry(kind=kind, actor="operator ana", agent="a", seq=1, decision_id="decision-7"))
    decide(store, ref, decision_id="decision-7")

    assert [entry.kind for entry in store.list_entries(limit=9, agent="a", seq=1)] == ["settled", "waiting", "held", "proposed"]
    assert verify(store).is_intact


@pytest.mark.parametrize(
    "text", ["\x00", "\ud800", "\u202e", "<script>", "ümlaut 🎉", "'; DROP TABLE entries; --", "\n\r\t", "a" * 10_000]
)
def test_any_text_comes_back_as_it_was(store: ActionStore, text: str) -> None:
    new = NewEntry(
        kind="refused", actor=text, agent=text, tool=text, decision_id=text, reason=text, outcome=text, detail={text: text}
    )

    entry = store.append_entry(new)

    (found,) = store.list_entries(limit=1)
    assert found == entry
    assert (found.actor, found.reason, dict(found.detail)) == (text, text, {text: text})
    assert verify(store).is_intact


def test_a_number_beyond_64_bits_is_kept_in_the_text(store: ActionStore) -> None:
    store.append_entry(NewEntry(kind="refused", actor="operator ana", agent="a", seq=2**70))

    assert store.list_entries(limit=1)[0].seq == 2**70


def test_a_detail_that_is_no_json_writes_nothing(store: ActionStore) -> None:
    with pytest.raises((TypeError, ValueError)):
        store.append_entry(NewEntry(kind="refused", actor="operator ana", detail={"x": float("nan")}))

    assert store.read_head().number == 0
    assert store.append_entry(FULL).number == 1


def test_two_collections_have_two_chains(records_url: str) -> None:
    one, other = PostgresStore(f"{records_url}?collection=one"), PostgresStore(f"{records_url}?collection=other")
    one.append_entry(FULL)
    other.append_entry(FULL)

    assert one.read_head().chain == "recall.one_agents"
    assert (one.read_head().number, other.read_head().number) == (1, 1)
    assert (verify(one).is_intact, verify(other).is_intact) == (True, True)
    one.close()
    other.close()


# --- retention ---------------------------------------------------------------------------------------------------------


def retain(store: ActionStore, last: Entry, store_name: str = "main") -> Entry:
    head = ChainHead(chain=last.chain, number=last.number, hash=last.hash)
    tombstone = sign_tombstone(store_name, head, count=last.number, at=1, seed=SEED)
    return store.remove_entries(head, NewEntry(kind="retained", actor="shell root", detail={"tombstone": tombstone.line}))


def test_the_oldest_entries_are_removed_and_the_chain_stays_whole(store: ActionStore) -> None:
    entries = append(store, 5)

    said = retain(store, entries[2])
    retain(store, entries[3])
    append(store, 1)

    links = list(store.iterate_links())
    assert (said.number, said.kind) == (6, "retained")
    assert [link.number for link in links] == [5, 6, 7, 8]
    head = store.read_head()
    trusted = proven_by("main", [public_key(SEED)])
    report = verify_chain(head.chain, links, head, removed_by=trusted, anchors=[Anchor(number=2, hash="gone", at=0)])
    assert (report.is_intact, report.removed, report.entries) == (True, 4, 4)
    assert verify_chain(head.chain, links, head).first_bad == 1  # nobody of ours stands for it


def test_what_is_not_there_or_is_the_newest_is_not_removed(store: ActionStore) -> None:
    entries = append(store, 3)

    with pytest.raises(WriteConflict, match="newest"):
        retain(store, entries[2])
    with pytest.raises(WriteConflict, match="is not the one"):
        retain(store, replace(entries[0], hash="0" * 64))

    assert [link.number for link in store.iterate_links()] == [1, 2, 3]
    assert verify(store).is_intact


def test_only_an_owner_removes_entries(
    role: str, alone: tuple[PostgresStore, RecallWriter], alone_url: str, pg_server: Postgres
) -> None:
    store, recall = alone
    entries = append(store, 3)
    recall.run(f"GRANT USAGE ON SCHEMA settle_audit TO {role}")
    recall.run(f"GRANT ALL ON settle_audit.entries, settle_audit.heads TO {role}")
    parts = urlsplit(alone_url)
    console = PostgresStore(f"postgres://{role}:{role}@{parts.hostname}:{parts.port}{parts.path}")

    with closing(console), pytest.raises(StoreReadOnly):
        retain(console, entries[0])

    assert [link.number for link in store.iterate_links()] == [1, 2, 3]
    retain(store, entries[0])  # as the owner, and the trigger is in place again afterwards
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        recall.run("DELETE FROM settle_audit.entries")


# --- tampering, by somebody who may do everything ----------------------------------------------------------------------


def tampered(store: PostgresStore, recall: RecallWriter, *statements: str) -> tuple[int | None, str]:
    """Append four entries, do as the owner what no trigger stops, verify: the first bad entry and what is said of it."""
    append(store, 2)
    decide(store, recall.action("a", 1), an_end(ActionStatus.DONE))
    append(store, 1)
    assert verify(store).is_intact
    recall.run("ALTER TABLE settle_audit.entries DISABLE TRIGGER ALL")
    for statement in statements:
        recall.run(statement)
    report = verify(store)
    assert not report.is_intact
    return report.first_bad, report.problem


def test_a_changed_text_is_found(alone: tuple[PostgresStore, RecallWriter]) -> None:
    first_bad, problem = tampered(*alone, "UPDATE settle_audit.entries SET text = replace(text, 'ana', 'eve') WHERE number = 3")

    assert (first_bad, "was changed" in problem) == (3, True)


def test_a_text_changed_together_with_its_hash_is_found(alone: tuple[PostgresStore, RecallWriter]) -> None:
    first_bad, problem = tampered(
        *alone,
        "UPDATE settle_audit.entries SET text = replace(text, 'ana', 'eve'), actor = replace(actor, 'ana', 'eve') WHERE number = 3",
        "UPDATE settle_audit.entries SET hash = encode(sha256(convert_to(prev || chr(10) || text, 'UTF8')), 'hex') WHERE number = 3",
    )

    assert (first_bad, "does not follow" in problem) == (4, True)


def test_a_removed_entry_is_found(alone: tuple[PostgresStore, RecallWriter]) -> None:
    first_bad, problem = tampered(*alone, "DELETE FROM settle_audit.entries WHERE number = 2")

    assert (first_bad, "is missing" in problem) == (2, True)


def test_a_cut_tail_is_found_by_the_head(alone: tuple[PostgresStore, RecallWriter]) -> None:
    first_bad, problem = tampered(*alone, "DELETE FROM settle_audit.entries WHERE number = 4")

    assert (first_bad, "head says 4" in problem) == (4, True)


COLUMNS = {
    "at": ("at + interval '1 microsecond'", "'infinity'"),
    "kind": ("'observed'", "''"),
    "actor": ("'operator eve'", "''"),
    "agent": ("'b'", "''"),
    "seq": ("seq + 1", "NULL"),
    "tool": ("'other'", "''"),
    "decision_id": ("'decision-x'", "''"),
    "outcome": ("'failed'", "''"),
}


@pytest.mark.parametrize(("column", "value"), [(column, value) for column, values in COLUMNS.items() for value in values])
def test_a_column_that_does_not_say_what_the_text_says_is_found(
    alone: tuple[PostgresStore, RecallWriter], column: str, value: str
) -> None:
    """Everything searches by the columns; the hash covers the text alone."""
    first_bad, problem = tampered(*alone, f"UPDATE settle_audit.entries SET {column} = {value} WHERE number = 3")

    assert (first_bad, f"its {column} is not what its text says" in problem) == (3, True)


@pytest.mark.parametrize("column", COLUMNS)
def test_a_column_that_was_emptied_is_found(alone: tuple[PostgresStore, RecallWriter], column: str) -> None:
    first_bad, problem = tampered(
        *alone,
        f"ALTER TABLE settle_audit.entries ALTER {column} DROP NOT NULL",
        f"UPDATE settle_audit.entries SET {column} = NULL WHERE number = 3",
    )

    assert (first_bad, f"its {column} is not" in problem) == (3, True)


def test_the_first_of_several_is_named(alone: tuple[PostgresStore, RecallWriter]) -> None:
    first_bad, problem = tampered(*alone, "UPDATE settle_audit.entries SET agent = 'b', outcome = 'x' WHERE number > 2")

    assert (first_bad, "its agent is not" in problem) == (3, True)


@pytest.mark.parametrize("number", [0, -1, -(2**63) + 1])
def test_a_row_put_before_the_first_entry_is_found(alone: tuple[PostgresStore, RecallWriter], number: int) -> None:
    """It would be listed, and found by its decision id."""
    first_bad, problem = tampered(
        *alone,
        f"""INSERT INTO settle_audit.entries SELECT chain, {number}, at, kind, actor, agent, seq, tool, 'decision-x', outcome, text, prev, hash
        FROM settle_audit.entries WHERE number = 3""",
    )

    assert (first_bad, "before the first" in problem) == (number, True)


@pytest.mark.parametrize("text", ['{{"seq": {{}}}}', "[]", "1", "x", '{{"chain": 1}}'])
def test_a_text_that_is_no_entry_is_found_and_breaks_nothing(alone: tuple[PostgresStore, RecallWriter], text: str) -> None:
    first_bad, _ = tampered(*alone, f"UPDATE settle_audit.entries SET text = '{text}' WHERE number = 3")

    assert first_bad == 3


def test_a_decision_id_that_is_not_found_any_more_is_noticed_in_memory() -> None:
    store = MemoryStore()
    recall = MemoryWriter(store)
    decide(store, recall.action("a", 1), decision_id="decision-1")
    assert verify(store).is_intact
    del store._settled["decision-1"]

    assert (verify(store).first_bad, "its decision_id is not" in verify(store).problem) == (1, True)


def test_what_no_column_can_hold_is_no_tampering(store: ActionStore) -> None:
    """A NUL, half a surrogate pair and a number beyond 64 bits stand in the text only."""
    for text in ("\x00", "\ud800", "a\x00b"):
        store.append_entry(NewEntry(kind="refused", actor=text, agent=text, tool=text, decision_id=text, outcome=text, seq=2**70))

    assert verify(store).is_intact


def test_an_entry_of_another_chain_is_found(alone: tuple[PostgresStore, RecallWriter]) -> None:
    first_bad, problem = tampered(
        *alone,
        """UPDATE settle_audit.entries SET text = replace(text, 'recall.recall_lexical_v1_agents', 'recall.other') WHERE number = 1""",
        "UPDATE settle_audit.entries SET hash = encode(sha256(convert_to(prev || chr(10) || text, 'UTF8')), 'hex') WHERE number = 1",
    )

    assert (first_bad, "chain recall.other" in problem) == (1, True)


def test_swapped_entries_are_found(alone: tuple[PostgresStore, RecallWriter]) -> None:
    first_bad, _ = tampered(
        *alone,
        "UPDATE settle_audit.entries SET number = -number WHERE number IN (1, 2)",
        "UPDATE settle_audit.entries SET number = 3 + number WHERE number < 0",
    )

    assert first_bad == 1


# --- a history that cannot be read is no empty one ---------------------------------------------------------------------

READS: dict[str, Callable[[ActionStore], object]] = {
    "list_entries": lambda store: store.list_entries(limit=5),
    "find_settled_entry": lambda store: store.find_settled_entry("decision-1"),
    "iterate_links": lambda store: list(store.iterate_links()),
    "read_head": lambda store: store.read_head(),
}
HIDING = {
    "entries": "REVOKE SELECT ON settle_audit.entries FROM {role}",
    "heads": "REVOKE SELECT ON settle_audit.heads FROM {role}",
    "the schema": "REVOKE USAGE ON SCHEMA settle_audit FROM {role}",
}


@pytest.fixture
def role(pg_server: Postgres, alone: tuple[PostgresStore, RecallWriter]) -> Iterator[str]:
    """A role that may read everything, until the test takes something away."""
    name = f"r_{uuid4().hex[:12]}"
    alone[1].run(f"CREATE ROLE {name} LOGIN PASSWORD '{name}'")
    for schema in ("recall", "settle_audit"):
        alone[1].run(f"GRANT USAGE ON SCHEMA {schema} TO {name}")
        alone[1].run(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {name}")
    yield name
    alone[1].run(f"DROP OWNED BY {name}")
    alone[1].run(f"DROP ROLE {name}")


@pytest.mark.parametrize("is_known", [False, True], ids=["from the start", "meanwhile"])
@pytest.mark.parametrize("hiding", HIDING)
@pytest.mark.parametrize("read", READS)
def test_entries_that_we_may_not_read_are_not_none(
    alone: tuple[PostgresStore, RecallWriter], alone_url: str, role: str, read: str, hiding: str, is_known: bool
) -> None:
    append(alone[0], 2)
    parts = urlsplit(alone_url)
    with closing(PostgresStore(f"postgres://{role}:{role}@{parts.hostname}:{parts.port}{parts.path}")) as store:
        if is_known:
            assert len(store.list_entries(limit=5)) == 2
            alone[1].action("a", 1)
            store.get_action("a", 1)
        alone[1].run(HIDING[hiding].replace("{role}", role))
        if is_known and read != "read_head" and hiding == "heads":
            READS[read](store)  # it needs the entries alone
        elif is_known and read == "read_head" and hiding == "entries":
            assert store.read_head().number == 2
        else:
            with pytest.raises(StoreUnusable, match="may not read"):
                READS[read](store)
        assert store.read_watch() if not is_known else True  # the queue goes on


@pytest.mark.parametrize("table", ["entries", "heads"])
@pytest.mark.parametrize("read", READS)
def test_half_a_history_is_none_either(alone: tuple[PostgresStore, RecallWriter], alone_url: str, read: str, table: str) -> None:
    append(alone[0], 2)
    alone[1].run(f"ALTER TABLE settle_audit.{table} RENAME TO gone")

    with closing(PostgresStore(alone_url)) as store, pytest.raises(StoreUnusable, match=f"settle_audit.{table} is not there"):
        READS[read](store)


def test_a_store_that_was_never_prepared_has_an_empty_history(pg_url: str) -> None:
    with closing(PostgresStore(pg_url)) as store:
        assert (store.list_entries(limit=5), store.read_head().number, list(store.iterate_links())) == ((), 0, [])
        assert store.find_settled_entry("decision-1") is None


def test_a_tampered_row_is_shown_and_never_left_out(alone: tuple[PostgresStore, RecallWriter]) -> None:
    store, recall = alone
    append(store, 2)
    recall.run("ALTER TABLE settle_audit.entries DISABLE TRIGGER ALL")
    recall.run("UPDATE settle_audit.entries SET text = 'gone' WHERE number = 2")

    bad, good = store.list_entries(limit=5)

    assert (bad.kind, bad.number, bad.text) == ("unreadable", 2, "gone")
    assert good.kind == "observed"


def test_a_head_that_was_set_back_stops_the_writing(alone: tuple[PostgresStore, RecallWriter]) -> None:
    store, recall = alone
    append(store, 3)
    ref = recall.action("a", 1)
    recall.run("UPDATE settle_audit.heads SET number = 1")

    with pytest.raises(Exception, match="verify_audit"):
        decide(store, ref)

    assert recall.body_of("a:act:1")["status"] == "started"
    assert recall.lease_of("a") is None
    assert len(store.list_entries(limit=9)) == 3


def test_verification_reads_a_chain_link_by_link(store: ActionStore) -> None:
    append(store, 3)
    links = store.iterate_links()

    assert next(links).number == 1
    report = verify_chain(store.read_head().chain, store.iterate_links(), store.read_head())
    assert (report.is_intact, report.entries) == (True, 3)


def test_the_stored_text_is_canonical(store: ActionStore) -> None:
    entry = store.append_entry(FULL)

    assert entry.text == canonical_json(json.loads(entry.text))
