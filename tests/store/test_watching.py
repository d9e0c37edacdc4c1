"""The few numbers that say whether a screen may have changed."""

from __future__ import annotations

from datetime import timedelta

from actions.records import NewEntry
from actions.store.base import ActionStore
from tests.recall_writer import RecordWriter
from tests.store.conftest import fenced
from tests.store.gestures import decide

pytestmark = fenced


def test_the_revision_moves_with_every_record(store: ActionStore, recall: RecordWriter) -> None:
    before = store.read_watch().revision
    recall.action("a", 1)
    recall.turn("a", 1)

    assert store.read_watch().revision == before + 2


def test_a_settle_moves_revision_and_entries(store: ActionStore, recall: RecordWriter) -> None:
    ref = recall.action("a", 1)
    before = store.read_watch()

    decide(store, ref)

    after = store.read_watch()
    assert (after.revision, after.entries) == (before.revision + 2, before.entries + 1)


def test_an_entry_alone_moves_the_entries(store: ActionStore) -> None:
    before = store.read_watch()
    store.append_entry(NewEntry(kind="refused", actor="operator ana"))

    after = store.read_watch()
    assert (after.revision, after.entries) == (before.revision, before.entries + 1)


def test_the_next_expiry_is_that_of_the_live_lease_that_ends_first(store: ActionStore, recall: RecordWriter) -> None:
    recall.lease("a", state="live", ttl=timedelta(seconds=90))
    recall.lease("b", state="live", ttl=timedelta(seconds=30))
    recall.lease("c", state="expired")
    recall.lease("d", state="released")

    watch = store.read_watch()

    lease = store.find_lease("b")
    assert lease is not None
    assert watch.next_expiry == lease.expires_at


def test_without_a_live_lease_there_is_nothing_to_wait_for(store: ActionStore, recall: RecordWriter) -> None:
    recall.lease("a", state="expired")
    recall.lease("b", state="released")

    assert store.read_watch().next_expiry is None


def test_a_reading_alone_moves_nothing(store: ActionStore, recall: RecordWriter) -> None:
    recall.action("a", 1)
    before = store.read_watch()
    store.get_action("a", 1)
    store.list_turns("a", limit=5)

    after = store.read_watch()
    assert (after.revision, after.entries, after.next_expiry) == (before.revision, before.entries, before.next_expiry)
    assert after.read_at > before.read_at
