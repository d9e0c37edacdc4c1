"""Ends that are nobody's here: entered once, however many saw them, and never where the end is ours."""

from __future__ import annotations

from contextlib import closing
from functools import partial

import psycopg
import pytest

from actions.errors import StoreReadOnly
from actions.records import Entry, NewEntry
from actions.store.base import ActionStore
from actions.store.postgres import PostgresStore
from tests.recall_writer import RecallWriter
from tests.store.conftest import Backend, fenced
from tests.store.gestures import decide, race, verify

WATCHERS = 6


def seen(agent: str = "a", seq: int = 1, decision_id: str = "end-1", outcome: str = "done") -> NewEntry:
    return NewEntry(kind="observed", actor="system watcher", agent=agent, seq=seq, decision_id=decision_id, outcome=outcome)


def test_an_end_is_entered_once_for_each_id_and_action(store: ActionStore) -> None:
    first, again = store.append_observed(seen()), store.append_observed(seen())
    other_end, other_action = store.append_observed(seen(decision_id="end-2")), store.append_observed(seen(seq=2))

    assert first is not None
    assert again == first
    assert [entry and entry.number for entry in (first, other_end, other_action)] == [1, 2, 3]
    assert store.read_head().number == 3
    assert verify(store).is_intact


@fenced
def test_an_end_of_ours_is_never_entered_as_seen(backend: Backend) -> None:
    ref = backend.recall.action("a", 1)
    settled = decide(backend.store, ref).entry

    assert backend.store.append_observed(seen()) is None
    assert backend.store.list_entries(limit=5) == (settled,)


def test_an_end_that_may_be_half_written_is_not_entered_as_seen(store: ActionStore) -> None:
    intent = store.append_entry(NewEntry(kind="settling", actor="operator ana", agent="a", seq=1, decision_id="decision-1"))

    assert store.append_observed(seen()) is None
    assert store.append_observed(seen(seq=2)) is not None
    assert store.list_entries(limit=5, agent="a", seq=1) == (intent,)


def test_an_end_that_was_entered_is_found_also_after_a_decision(backend: Backend) -> None:
    unknown = backend.store.append_observed(seen(outcome="unknown"))
    backend.store.append_entry(NewEntry(kind="settled", actor="operator ana", agent="a", seq=1, decision_id="decision-1"))

    assert backend.store.append_observed(seen(outcome="unknown")) == unknown
    assert backend.store.append_observed(seen(decision_id="end-2")) is None
    assert backend.store.read_head().number == 2


def test_of_many_watchers_at_one_moment_one_enters_it_and_all_are_told(backend: Backend) -> None:
    stores = [backend.again() for _ in range(WATCHERS)]
    for number in range(1, 5):
        answers = race(*(partial(store.append_observed, seen(seq=number)) for store in stores))

        assert {answer.number for answer in answers if isinstance(answer, Entry)} == {number}, answers
    assert verify(backend.store).entries == 4


def test_where_nothing_may_be_written_nothing_is(alone_url: str) -> None:
    with psycopg.connect(alone_url, autocommit=True) as owner:
        owner.execute("DROP SCHEMA settle_audit CASCADE")
    with closing(PostgresStore(alone_url)) as store, RecallWriter(alone_url), pytest.raises(StoreReadOnly):
        store.append_observed(seen())
